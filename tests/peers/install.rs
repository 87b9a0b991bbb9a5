//! Installs the pinned peers under `target/peers`, once for all test processes.
//!
//! A lock file keeps two processes apart; a stamp with the manifests' text and the
//! runtimes' versions says what is installed, so that a changed pin installs again.
//! `benches/ratios` takes its peers from here as well.
//!
//! It must not touch anything outside `target/`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the npm packages and the Node scripts are.
pub(crate) struct Node {
    root: PathBuf,
}

/// Where the two virtual environments are.
pub(crate) struct Python {
    root: PathBuf,
}

impl Node {
    /// Returns the path of one of our Node scripts, beside its packages.
    pub(crate) fn script(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns the argument vector that starts an installed npm upstream.
    pub(crate) fn upstream(&self, name: &str) -> Vec<String> {
        let package = format!("node_modules/@modelcontextprotocol/{name}/dist/index.js");
        vec!["node".to_owned(), text(&self.root.join(package))]
    }
}

impl Python {
    /// Returns the interpreter whose `mcp` package has this major version.
    pub(crate) fn interpreter(&self, major: u32) -> PathBuf {
        self.root.join(format!("mcp{major}/bin/python"))
    }

    /// Returns the path of an installed Python upstream.
    pub(crate) fn upstream(&self, name: &str) -> String {
        text(&self.root.join("mcp2/bin").join(name))
    }
}

/// Returns the path of a committed fixture of the peers.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/peers")
        .join(path)
}

/// Returns a path as text; ours are all UTF-8.
pub(crate) fn text(path: &Path) -> String {
    path.to_str()
        .expect("a path of this test is UTF-8")
        .to_owned()
}

/// Installs the npm packages, and copies our scripts beside them.
pub(crate) fn install_node() -> Result<Node, String> {
    let versions = version("node")? + &version("npm")?;
    let root = peers_root()?.join("node");
    let scripts = [
        "package.json",
        "package-lock.json",
        ".npmrc",
        "plan.js",
        "client-v1.js",
        "client-v2.js",
        "proxy-v1.js",
    ];
    let manifests = [
        fixture("node/package.json"),
        fixture("node/package-lock.json"),
    ];
    once(&root, &versions, &manifests, || {
        for script in scripts {
            copy(&fixture("node").join(script), &root.join(script))?;
        }
        run(Command::new("npm")
            .args(["ci", "--ignore-scripts", "--no-progress"])
            .current_dir(&root))
    })?;
    for script in scripts {
        copy(&fixture("node").join(script), &root.join(script))?;
    }
    Ok(Node { root })
}

/// Makes the two virtual environments of the Python peers.
pub(crate) fn install_python() -> Result<Python, String> {
    let versions = version("python3")?;
    let root = peers_root()?.join("python");
    let requirements = [fixture("python/mcp1.txt"), fixture("python/mcp2.txt")];
    once(&root, &versions, &requirements, || {
        for (name, file) in ["mcp1", "mcp2"].iter().zip(&requirements) {
            environment(&root.join(name), file)?;
        }
        Ok(())
    })?;
    Ok(Python { root })
}

/// Makes the virtual environment with the providers' packages and returns its interpreter.
pub(crate) fn install_providers() -> Result<PathBuf, String> {
    interpreter("providers")
}

/// Makes a virtual environment with the packages of `python/{name}.txt` and returns its
/// interpreter.
pub(crate) fn interpreter(name: &str) -> Result<PathBuf, String> {
    let versions = version("python3")?;
    let root = peers_root()?.join(name);
    let requirements = fixture(&format!("python/{name}.txt"));
    once(
        &root,
        &versions,
        std::slice::from_ref(&requirements),
        || environment(&root.join("all"), &requirements),
    )?;
    Ok(root.join("all/bin/python"))
}

/// Makes a virtual environment with these packages.
fn environment(venv: &Path, requirements: &Path) -> Result<(), String> {
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(venv))?;
    run(Command::new(venv.join("bin/python"))
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
        ])
        .arg(requirements))
}

/// Runs `install` unless the stamp in `root` says that it has been done so already.
fn once(
    root: &Path,
    versions: &str,
    manifests: &[PathBuf],
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let mut wanted = versions.to_owned();
    for manifest in manifests {
        wanted +=
            &fs::read_to_string(manifest).map_err(|error| format!("{manifest:?}: {error}"))?;
    }
    let stamp = root.join(".installed");
    fs::create_dir_all(root).map_err(|error| format!("{root:?}: {error}"))?;
    let lock = File::create(root.join(".lock")).map_err(|error| error.to_string())?;
    // The lock ends with the file, on every way out.
    lock.lock().map_err(|error| error.to_string())?;
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let _ = fs::remove_file(&stamp);
    let _ = writeln!(
        std::io::stderr(),
        "peers: installing {} (once)",
        root.display()
    );
    install()?;
    fs::write(&stamp, wanted).map_err(|error| error.to_string())
}

fn peers_root() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let root = target
        .expect("the target folder holds its tmp folder")
        .join("peers");
    fs::create_dir_all(&root).map_err(|error| format!("{root:?}: {error}"))?;
    Ok(root)
}

fn version(program: &str) -> Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("{program} is not on this machine ({error})"))?;
    Ok(format!(
        "{program} {}\n",
        String::from_utf8_lossy(&output.stdout).trim()
    ))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    // Moved into place, as another test process may be reading the old one.
    let aside = to.with_extension(format!("new{}", std::process::id()));
    fs::copy(from, &aside).map_err(|error| format!("{from:?}: {error}"))?;
    fs::rename(&aside, to).map_err(|error| format!("{to:?}: {error}"))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {said}", output.status))
}
