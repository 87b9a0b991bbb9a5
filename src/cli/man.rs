//! `checkpoint man [DIR]`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use clap_mangen::Man;

use super::error::{CliError, Kind};
use super::exit::Exit;
use super::output::Output;
use super::proxy_args;

/// Print the manual page, or write one for each command
///
/// To read it: checkpoint man | man -l -. To install: checkpoint man ~/.local/share/man/man1.
#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// Folder for the pages, checkpoint.1 and one for each command; made if it is not there
    #[arg(value_name = "DIR", value_parser = proxy_args::path())]
    folder: Option<PathBuf>,
}

pub(super) fn run(args: &ManArgs) -> Result<Exit, CliError> {
    let pages = pages();
    let Some(folder) = &args.folder else {
        Output::plain().bytes(&pages[0].text)?;
        return Ok(Exit::Ok);
    };
    for page in &pages {
        page.write(folder).map_err(|error| {
            CliError::new(
                Kind::Failure,
                format!("the pages can't be written to {}", folder.display()),
            )
            .because(error)
            .hint("give a folder in which this user may write")
        })?;
    }
    Ok(Exit::Ok)
}

/// One manual page.
struct Page {
    /// `checkpoint-ls.1`.
    file: String,
    text: Vec<u8>,
}

impl Page {
    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::File::create(folder.join(&self.file))?.write_all(&self.text)
    }
}

/// Returns every page, the program's own first.
fn pages() -> Vec<Page> {
    let mut command = super::command();
    // Gives each command its whole name, as it is typed.
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages);
    pages
}

fn add(command: &clap::Command, pages: &mut Vec<Page>) {
    let man = Man::new(command.clone())
        .source(concat!("checkpoint ", env!("CARGO_PKG_VERSION")))
        .manual("checkpoint manual");
    let mut text = Vec::new();
    man.render(&mut text).expect("memory can be written to");
    pages.push(Page {
        file: man.get_filename(),
        text,
    });
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        add(inner, pages);
    }
}
