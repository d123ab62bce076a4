//! `cargo xtask ci`: everything that a change must pass, in the order in which it fails fastest.

use anyhow::Result;
use clap::ValueEnum;

use crate::api;
use crate::bench;
use crate::cargo::{self, Profile};
use crate::demo;
use crate::fuzz;
use crate::interop;
use crate::sanitize;
use crate::steps::{Step, Steps};
use crate::test;
use crate::tidy;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Leave a part out, when it ran already
    #[arg(long, value_name = "PART")]
    skip: Vec<Part>,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Part {
    Format,
    Tidy,
    Clippy,
    Docs,
    Api,
    Test,
    Package,
    Demo,
    Interop,
    Bench,
    Sanitize,
    Fuzz,
}

/// Members that other services may depend on. They are packaged together, since some need others
/// that are nowhere else yet.
const LIBRARIES: &[&str] = &[
    "config",
    "diode",
    "fanout",
    "gather",
    "loggregator",
    "pubsub",
    "pubsub-derive",
    "router",
];

/// The demo's ways: what it is called, and the variables.
const DEMOS: &[(&str, &[(&str, &str)])] = &[
    ("direct", &[("ROUTER_FANOUT_WRITER_ENABLED", "false")]),
    (
        "fan-out",
        &[
            ("ROUTER_FANOUT_WRITER_ENABLED", "true"),
            ("ROUTER_PUBLISH_WORKERS", "4"),
        ],
    ),
    (
        "fan-out in lanes",
        &[
            ("ROUTER_FANOUT_WRITER_ENABLED", "true"),
            ("ROUTER_PUBLISH_WORKERS", "4"),
            ("ROUTER_FANOUT_ORDERING", "source"),
        ],
    ),
];

/// Runs all parts but those left out.
///
/// # Errors
/// When something failed.
pub fn run(options: &Options) -> Result<()> {
    let mut steps = Steps::new("ci");
    let wanted = |part| !options.skip.contains(&part);
    if wanted(Part::Format) {
        steps.run("format", cargo::command().args(["fmt", "--all", "--check"]));
    }
    if wanted(Part::Tidy) {
        steps.check("rules", tidy::all);
    }
    if wanted(Part::Clippy) {
        let mut clippy = cargo::command();
        clippy.args(["clippy", "--workspace", "--all-targets", "--all-features"]);
        steps.run("clippy", clippy.args(["--", "--deny", "warnings"]));
    }
    if wanted(Part::Docs) {
        let mut docs = cargo::command();
        docs.args(["doc", "--workspace", "--all-features", "--no-deps"]);
        steps.run("documentation", docs.env("RUSTDOCFLAGS", "-D warnings"));
    }
    if wanted(Part::Api) {
        steps.check("public interfaces", api::check);
    }
    if wanted(Part::Test) {
        test::add_to(&mut steps);
    }
    if wanted(Part::Demo) {
        add_demos(&mut steps);
    }
    if wanted(Part::Interop) {
        steps.check("interop", interop::check);
    }
    if wanted(Part::Package) {
        let mut package = cargo::command();
        // Not built again: cargo would take an earlier package of the same version from its cache.
        package.args(["package", "--allow-dirty", "--no-verify"]);
        for name in LIBRARIES {
            package.args(["--package", name]);
        }
        steps.run("packages", &mut package);
    }
    if wanted(Part::Bench) {
        // Each benchmark once, unoptimised: they all still run.
        let mut smoke = cargo::command();
        smoke.args(["test", "--package", "benches", "--benches"]);
        steps.run("benchmarks run", &mut smoke);
        steps.check("instruction counts", bench::check_instructions);
    }
    if wanted(Part::Sanitize) {
        sanitize::add_to(&mut steps);
    }
    if wanted(Part::Fuzz) {
        fuzz::add_to(&mut steps, fuzz::SMOKE);
    }
    steps.finish()
}

fn add_demos(steps: &mut Steps) {
    let mut binaries = None;
    steps.check("demo: build", || {
        binaries = Some(cargo::build_binaries(Profile::Dev)?);
        Ok(Step::Passed(1))
    });
    let Some(binaries) = binaries else { return };
    let options = demo::Options {
        envelopes: Some(10_000),
        sources: 10,
        rate: None,
    };
    for (name, variables) in DEMOS {
        steps.check(&format!("demo: {name}"), || {
            demo::run_with(&binaries, &options, variables)?;
            Ok(Step::Passed(1))
        });
    }
}
