//! `cargo xtask test`: everything that a contributor must pass.
//!
//! Lower crates first, each built and tested alone, since other services take them one by one. Then
//! the rest of the workspace, the documentation's examples, the models of the rings, and the rules
//! on layers.

use std::process::Command;

use anyhow::Result;

use crate::cargo;
use crate::steps::Steps;
use crate::tidy;

/// Crates that must build and pass alone, with every way to build them.
const ALONE: &[(&str, &[&[&str]])] = &[
    ("diode", &[&[]]),
    ("pubsub", &[&[], &["--features", "derive"]]),
    ("fanout", &[&[]]),
    ("config", &[&[]]),
];

/// Runs all tests.
///
/// # Errors
/// When something failed.
pub fn run() -> Result<()> {
    let mut steps = Steps::new("test");
    add_to(&mut steps);
    steps.finish()
}

/// Runs all tests as steps of something larger.
pub fn add_to(steps: &mut Steps) {
    for (name, variants) in ALONE {
        for features in *variants {
            let title = [&[*name, "alone"], *features].concat().join(" ");
            // A build without the tests has no help from their dependencies' features.
            let mut build = cargo::command();
            build.args(["build", "--package", name]).args(*features);
            steps.run(&format!("{title}: build"), &mut build);
            let mut test = cargo::command();
            test.args(["test", "--no-fail-fast", "--package", name])
                .args(*features);
            steps.run(&format!("{title}: test"), &mut test);
        }
    }
    steps.run(
        "workspace: libraries, binaries, tests, examples",
        upper(&mut cargo::command()).args(["--lib", "--bins", "--tests", "--examples"]),
    );
    steps.run(
        "workspace: documentation",
        upper(&mut cargo::command()).arg("--doc"),
    );
    steps.run("diode, pubsub: loom models", &mut loom());
    steps.check("layers", tidy::layering);
}

/// The tests of all members that were not tested alone.
fn upper(command: &mut Command) -> &mut Command {
    command.args(["test", "--no-fail-fast", "--workspace", "--all-features"]);
    for (name, _) in ALONE {
        command.args(["--exclude", name]);
    }
    command
}

/// Checks the interleavings of small models. `--cfg` changes every crate's fingerprint, hence the
/// build directory of its own; cfgs of our own names leave other crates as they are.
///
/// Some models have millions of interleavings. Unless the caller sets loom's variables, each is
/// explored for ten seconds at most, with two switches by force at most, which is where such bugs
/// are found.
fn loom() -> Command {
    let mut command = cargo::command();
    command
        .args(["test", "--release", "--no-fail-fast", "--test", "loom"])
        .args(["--package", "diode", "--package", "pubsub"])
        .env("RUSTFLAGS", "--cfg diode_loom --cfg pubsub_loom")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_TARGET_DIR", cargo::target_dir().join("loom"));
    for (name, value) in [("LOOM_MAX_PREEMPTIONS", "2"), ("LOOM_MAX_DURATION", "10")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command
}
