//! `cargo xtask fuzz`: bytes nobody would think of, for the envelope view.
//!
//! The targets live in `fuzz/`, a workspace of its own, and are driven by libFuzzer, which finds its
//! way by coverage. It is built from source, so a C++ compiler must be there; everything else works
//! on the stable toolchain: these are the flags that `cargo fuzz` would set, without a sanitizer.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::cargo;
use crate::steps::{Step, Steps};

/// How many inputs continuous integration tries per target.
pub const SMOKE: u64 = 200_000;

/// Tells libFuzzer which code an input reached.
const COVERAGE: &str = "--cfg fuzzing -C passes=sancov-module \
    -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters \
    -C llvm-args=-sanitizer-coverage-pc-table \
    -C codegen-units=1 -C debug-assertions";

/// What to fuzz.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Stop after so many inputs per target
    #[arg(long, value_name = "N", default_value_t = SMOKE)]
    inputs: u64,
}

/// Fuzzes all targets.
///
/// # Errors
/// When an input broke a target; libFuzzer says which, and where it is kept.
pub fn run(options: &Options) -> Result<()> {
    let mut steps = Steps::new("fuzz");
    add_to(&mut steps, options.inputs);
    steps.finish()
}

/// Fuzzes all targets as steps of something larger.
pub fn add_to(steps: &mut Steps, inputs: u64) {
    if let Some(why) = missing() {
        steps.check("fuzz", || Ok(Step::Skipped(why)));
        return;
    }
    // Inputs to start from, made of the test vectors.
    let mut seeds = cargo::command();
    seeds
        .args([
            "test",
            "--package",
            "loggregator",
            "--test",
            "against_decoder",
            "--",
        ])
        .args(["--ignored", "write_fuzz_corpus"]);
    steps.run("fuzz: inputs to start from", &mut seeds);
    let mut targets = Vec::new();
    steps.check("fuzz: find the targets", || {
        targets = find_targets()?;
        Ok(Step::Passed(targets.len() as u64))
    });
    for target in targets {
        match fuzz(&target, inputs) {
            Ok((mut command, _scratch)) => {
                steps.run(&format!("fuzz: {target}, {inputs} inputs"), &mut command);
            }
            Err(error) => steps.check(&format!("fuzz: {target}"), || Err(error)),
        }
    }
}

/// The command that fuzzes one target, and the directory for what it finds interesting on the way:
/// it is thrown away, so that every run begins with the same inputs.
fn fuzz(target: &str, inputs: u64) -> Result<(Command, tempfile::TempDir)> {
    let home = cargo::root().join("fuzz");
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let artifacts = home.join("artifacts").join(target);
    std::fs::create_dir_all(&artifacts)
        .with_context(|| format!("cannot make {}", artifacts.display()))?;
    let mut command = cargo::command();
    command
        .current_dir(&home)
        .args([
            "run",
            "--release",
            "--bin",
            target,
            "--target",
            &cargo::host()?,
            "--",
        ])
        .arg(scratch.path())
        .arg(home.join("corpus").join(target))
        // The same inputs every time, as far as libFuzzer can.
        .args([
            &format!("-runs={inputs}"),
            "-seed=1",
            "-max_len=4096",
            "-verbosity=0",
        ])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", cargo::target_dir().join("fuzz"));
    Ok((command, scratch))
}

/// Why fuzzing is not possible here.
fn missing() -> Option<String> {
    let compiler = Command::new("c++")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match compiler {
        Ok(status) if status.success() => None,
        _ => Some("libFuzzer needs a C++ compiler, and there is no c++ here".into()),
    }
}

/// The names of the targets: one file each.
fn find_targets() -> Result<Vec<String>> {
    let dir = cargo::root().join("fuzz/fuzz_targets");
    let entries =
        std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(
                path.file_stem()
                    .map(|stem| stem.to_string_lossy().into_owned()),
            );
        }
    }
    names.sort();
    Ok(names)
}
