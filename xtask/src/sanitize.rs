//! `cargo xtask sanitize`: diode under the address and thread sanitizers.
//!
//! The sanitizers are unstable flags. They work on a nightly toolchain, and on the pinned stable one
//! when it is told to accept unstable flags (`RUSTC_BOOTSTRAP`, which is for verification like this
//! and for nothing that ships). Where the platform has no sanitizer, the steps are skipped and say so.

use std::process::{Command, Stdio};

use anyhow::Result;
use clap::ValueEnum;

use crate::cargo;
use crate::steps::{Step, Steps};

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Which sanitizer [default: both]
    #[arg(value_enum)]
    only: Option<Sanitizer>,
}

/// A sanitizer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Sanitizer {
    /// Use after free, out of bounds
    Address,
    /// Data races
    Thread,
}

impl Sanitizer {
    fn flag(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }
}

/// Runs the sanitizers.
///
/// # Errors
/// When one of them found something.
pub fn run(options: &Options) -> Result<()> {
    let mut steps = Steps::new("sanitize");
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        if options.only.is_none_or(|only| only == sanitizer) {
            add(&mut steps, sanitizer);
        }
    }
    steps.finish()
}

/// Runs both as steps of something larger.
pub fn add_to(steps: &mut Steps) {
    add(steps, Sanitizer::Address);
    add(steps, Sanitizer::Thread);
}

fn add(steps: &mut Steps, sanitizer: Sanitizer) {
    let name = format!("diode: {} sanitizer", sanitizer.flag());
    if let Some(why) = missing(sanitizer) {
        steps.check(&name, || Ok(Step::Skipped(why)));
        return;
    }
    let host = match cargo::host() {
        Ok(host) => host,
        Err(error) => return steps.check(&name, || Err(error)),
    };
    let mut command = cargo::command();
    command
        .env(
            "CARGO_TARGET_DIR",
            cargo::target_dir().join(sanitizer.flag()),
        )
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags(sanitizer));
    match sanitizer {
        Sanitizer::Address => {
            command.args(["test", "--package", "diode", "--target", &host]);
            command.args(["--lib", "--tests"]);
        }
        Sanitizer::Thread => {
            // The standard library isn't instrumented, so libtest gives false reports: a program
            // that spawns and joins, and suppressions for what joining reads.
            let races = cargo::root().join("xtask/races");
            let suppressions = races.join("suppressions.txt");
            let options = format!("halt_on_error=1 suppressions={}", suppressions.display());
            command.current_dir(races).args(["run", "--target", &host]);
            command.env("TSAN_OPTIONS", options);
        }
    }
    steps.run(&name, &mut command);
}

fn flags(sanitizer: Sanitizer) -> String {
    // The standard library comes without the sanitizer: that is the mismatch to allow.
    format!(
        "-Zsanitizer={} -Cunsafe-allow-abi-mismatch=sanitizer",
        sanitizer.flag()
    )
}

/// Why the sanitizer can't be used here: asks the compiler to build nothing with it.
fn missing(sanitizer: Sanitizer) -> Option<String> {
    let scratch = match tempfile::tempdir() {
        Ok(scratch) => scratch,
        Err(error) => return Some(format!("no temporary directory: {error}")),
    };
    let empty = scratch.path().join("empty.rs");
    if let Err(error) = std::fs::write(&empty, "fn main() {}\n") {
        return Some(format!("cannot write a file to try it with: {error}"));
    }
    let host = match cargo::host() {
        Ok(host) => host,
        Err(error) => return Some(error.to_string()),
    };
    let compiled = Command::new("rustc")
        .current_dir(cargo::root())
        .arg(&empty)
        .arg("-o")
        .arg(scratch.path().join("empty"))
        .args(["--target", &host])
        .args(flags(sanitizer).split(' '))
        .env("RUSTC_BOOTSTRAP", "1")
        .stdin(Stdio::null())
        .output();
    match compiled {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            let first = message.lines().next().unwrap_or("no message").to_owned();
            Some(format!("this toolchain can't build with it: {first}"))
        }
        Err(error) => Some(format!("cannot start rustc: {error}")),
    }
}
