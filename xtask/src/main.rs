//! The project's own commands, each a line of `cargo xtask`.
//!
//! Everything that has to be true about the tree is checked here and nowhere else, so that a person,
//! a clean machine and continuous integration all run the same thing.

#![forbid(unsafe_code)]

mod api;
mod bench;
mod cargo;
mod ci;
mod demo;
mod fuzz;
mod instance;
mod interop;
mod loadtest;
mod metrics;
mod process;
mod sanitize;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Show the router at work: certificates, a router, a subscriber and an emitter
    Demo(demo::Options),
    /// Run everything that a contributor must pass
    Test,
    /// Run everything that a change must pass: format, lints, tests, docs, rules, packages, demo
    Ci(ci::Options),
    /// Load a router end to end and compare with the goals, or with another router
    Loadtest(loadtest::Options),
    /// Talk to a router with the official gRPC implementation of another language
    Interop,
    /// Measure, and compare with a baseline or another commit
    Bench(bench::Options),
    /// Hold the public interfaces of the libraries against what is written down
    Api(api::Options),
    /// Check the rules of the house that no linter knows
    Tidy,
    /// Run diode's tests under the address and thread sanitizers, where that is possible
    Sanitize(sanitize::Options),
    /// Feed random bytes to the envelope view for a fixed number of inputs
    Fuzz(fuzz::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = process::watch_signals().and_then(|()| match arguments.task {
        Task::Demo(options) => demo::run(&options),
        Task::Test => test::run(),
        Task::Ci(options) => ci::run(&options),
        Task::Loadtest(options) => loadtest::run(&options),
        Task::Interop => interop::run(),
        Task::Bench(options) => bench::run(&options),
        Task::Api(options) => api::run(&options),
        Task::Tidy => tidy::all().map(|_| ()),
        Task::Sanitize(options) => sanitize::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<process::Interrupted>() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
