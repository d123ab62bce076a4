//! `cargo xtask interop`: the router and the official gRPC implementation of another language.
//!
//! Python's grpcio, pinned in `xtask/interop/requirements.txt`, goes into a virtual environment
//! under the build directory; its protobuf compiler makes message classes of our descriptions. Then
//! `xtask/interop/client.py` does what the platform's clients do, against a router of our own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, Profile};
use crate::instance::{Router, make_certificates};
use crate::process::Group;
use crate::steps::Step;

/// For the whole of the client's checks, and for each preparation.
const LIMIT: Duration = Duration::from_secs(10 * 60);

const DESCRIPTIONS: [&str; 4] = [
    "envelope.proto",
    "ingress.proto",
    "egress.proto",
    "plumbing.proto",
];

/// Prepares the client and runs its checks.
///
/// # Errors
/// When there is no Python, something can't be installed, or a check failed.
pub fn run() -> Result<()> {
    match check()? {
        Step::Passed(_) => Ok(()),
        Step::Skipped(why) => bail!("{why}"),
    }
}

/// The same as a step of `cargo xtask ci`: skipped where there is no Python.
///
/// # Errors
/// As [`run`].
pub fn check() -> Result<Step> {
    let Some(python) = environment()? else {
        return Ok(Step::Skipped(
            "no python3 with the module venv (Debian: python3-venv)".to_owned(),
        ));
    };
    let binaries = cargo::build_binaries(Profile::Dev)?;
    let scratch = tempfile::Builder::new()
        .prefix("router-interop-")
        .tempdir()
        .context("cannot make a directory for the certificates")?;
    make_certificates(&binaries.lgr, scratch.path())?;
    generate(&python, scratch.path())?;

    let router = Router::start(&binaries.router, scratch.path(), &[], |line| {
        println!("router | {line}");
    })?;
    let mut client = Command::new(&python);
    client
        .arg(sources().join("client.py"))
        .arg(router.grpc.to_string())
        .arg(scratch.path())
        .env("PYTHONPATH", scratch.path())
        // whatever proxy the environment names is not for loopback
        .env("no_grpc_proxy", "127.0.0.1")
        .stdin(Stdio::null());
    let status = Group::spawn("the client", &mut client)?.wait(LIMIT)?;
    router.stop()?;
    ensure!(status.success(), "the client's checks failed");
    Ok(Step::Passed(1))
}

fn sources() -> PathBuf {
    cargo::root().join("xtask/interop")
}

/// The virtual environment's Python, with what is pinned installed; none if that can't be made
/// here.
fn environment() -> Result<Option<PathBuf>> {
    let place = cargo::target_dir().join("interop");
    let python = place.join("bin/python");
    let pinned = sources().join("requirements.txt");
    let stamp = place.join("installed.txt");
    let wanted =
        fs::read_to_string(&pinned).with_context(|| format!("cannot read {}", pinned.display()))?;
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(Some(python));
    }

    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&place);
    if !quietly("python3 -m venv", &mut make).unwrap_or(false) {
        return Ok(None);
    }
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--requirement"])
        .arg(&pinned);
    ensure!(
        quietly("pip install", &mut install)?,
        "pip could not install what {} names",
        pinned.display()
    );
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(Some(python))
}

/// Makes the message classes of our descriptions.
fn generate(python: &Path, place: &Path) -> Result<()> {
    let descriptions = cargo::root().join("crates/loggregator/proto");
    let mut compile = Command::new(python);
    compile
        .args(["-m", "grpc_tools.protoc", "--proto_path"])
        .arg(&descriptions)
        .arg("--python_out")
        .arg(place)
        .args(DESCRIPTIONS);
    ensure!(
        quietly("protoc", &mut compile)?,
        "the descriptions in {} do not compile with protoc",
        descriptions.display()
    );
    Ok(())
}

/// Whether a command succeeds; only what it complains about is shown.
fn quietly(name: &str, command: &mut Command) -> Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Group::spawn(name, command)?.wait(LIMIT)?.success())
}
