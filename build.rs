//! Tells the linker which functions a run of the proxy uses, so that they lie together.
//!
//! The system maps a program's pages by the sixteen, so a few functions here and there have nearly
//! all of it in memory. Without the list everything works, larger. `text-order.ld` says how it is
//! made. A linker that does not take it, and can't be told here, is served by
//! `CHECKPOINT_TEXT_ORDER=off`.

use std::env;
use std::path::Path;

const SCRIPT: &str = "text-order.ld";
const SWITCH: &str = "CHECKPOINT_TEXT_ORDER";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={SCRIPT}");
    println!("cargo::rerun-if-env-changed={SWITCH}");
    let said = |name: &str| env::var(name).unwrap_or_default();
    let is_linux = said("CARGO_CFG_TARGET_OS") == "linux";
    let is_optimised = said("OPT_LEVEL") != "0";
    // These two read no such list; lld, which comes with Rust, and GNU ld do.
    let flags = said("CARGO_ENCODED_RUSTFLAGS");
    let takes_script = !["mold", "gold"].iter().any(|name| flags.contains(name));
    if is_linux && is_optimised && takes_script && said(SWITCH) != "off" {
        let script = Path::new(&said("CARGO_MANIFEST_DIR")).join(SCRIPT);
        println!(
            "cargo::rustc-link-arg-bin=checkpoint=-T{}",
            script.display()
        );
    }
}
