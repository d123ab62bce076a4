//! `cargo xtask api`: the public interface of each library, written down and held against the code.
//!
//! `docs/api/NAME.txt` lists every public item of the library NAME, a line each. A change of the
//! interface shows as a change of that file, so that nobody makes one without noticing; `--update`
//! writes it anew. The lists come from rustdoc's JSON, which the pinned compiler gives only with
//! `RUSTC_BOOTSTRAP`; nothing that ships is built that way.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use public_api::Builder;

use crate::cargo;
use crate::steps::Step;

/// What other services depend on.
const LIBRARIES: [&str; 7] = [
    "config",
    "diode",
    "fanout",
    "gather",
    "loggregator",
    "pubsub",
    "router",
];

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Write the lists anew instead of comparing
    #[arg(long)]
    update: bool,
}

/// Compares, or writes anew.
///
/// # Errors
/// When an interface is not what is written down, or can't be read.
pub fn run(options: &Options) -> Result<()> {
    if !options.update {
        return check().map(|_| ());
    }
    for (name, listing) in listings()? {
        let file = written(name);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&file, listing).with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote {}", file.display());
    }
    Ok(())
}

/// The comparison as a step of `cargo xtask ci`.
///
/// # Errors
/// As [`run`].
pub fn check() -> Result<Step> {
    let mut changed = String::new();
    for (name, listing) in listings()? {
        let file = written(name);
        let before = fs::read_to_string(&file).unwrap_or_default();
        if let Some(changes) = changes(&before, &listing) {
            let _ = write!(changed, "{name}:\n{changes}");
        } else {
            println!("ok   {name}: {} public items", listing.lines().count());
        }
    }
    ensure!(
        changed.is_empty(),
        "public interfaces have changed; if that is meant, run `cargo xtask api --update`\n{changed}"
    );
    Ok(Step::Passed(LIBRARIES.len() as u64))
}

fn written(name: &str) -> PathBuf {
    cargo::root().join("docs/api").join(format!("{name}.txt"))
}

/// The public items of each library.
fn listings() -> Result<Vec<(&'static str, String)>> {
    let target = cargo::target_dir().join("api");
    let mut doc = cargo::command();
    doc.args(["doc", "--quiet", "--no-deps", "--lib", "--all-features"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json")
        .env("CARGO_TARGET_DIR", &target);
    for name in LIBRARIES {
        doc.args(["--package", name]);
    }
    let status = doc.status().context("cannot start cargo doc")?;
    if !status.success() {
        bail!("rustdoc gave no JSON: {status}");
    }
    LIBRARIES
        .iter()
        .map(|name| Ok((*name, listing(&target.join(format!("doc/{name}.json")))?)))
        .collect()
}

fn listing(json: &Path) -> Result<String> {
    let api = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .with_context(|| format!("cannot read {}", json.display()))?;
    let mut listing = String::new();
    for item in api.items() {
        let _ = writeln!(listing, "{item}");
    }
    Ok(listing)
}

/// Lines that came and went; none if there are none.
fn changes(before: &str, now: &str) -> Option<String> {
    let mut changes = String::new();
    for line in before.lines() {
        if !now.lines().any(|other| other == line) {
            let _ = writeln!(changes, "  - {line}");
        }
    }
    for line in now.lines() {
        if !before.lines().any(|other| other == line) {
            let _ = writeln!(changes, "  + {line}");
        }
    }
    (!changes.is_empty()).then_some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_interface_is_told_line_by_line() {
        let before = "pub fn a()\npub fn b()\n";
        let now = "pub fn a()\npub fn b(u8)\n";
        assert_eq!(changes(before, before), None);
        let told = changes(before, now).unwrap();
        assert_eq!(told, "  - pub fn b()\n  + pub fn b(u8)\n");
    }
}
