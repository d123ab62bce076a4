//! The commands, a module each: its arguments with their help texts, and what it does.

mod certs;
mod emit;
mod load;
mod tail;

use std::io::{self, Write};

use lgr::Error;

use crate::stop::Stop;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Certs(certs::Arguments),
    Emit(emit::Arguments),
    Tail(tail::Arguments),
    Load(load::Arguments),
}

pub(crate) fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Certs(arguments) => certs::run(&arguments),
        Command::Emit(arguments) => on_runtime(async |stop| emit::run(arguments, stop).await),
        Command::Tail(arguments) => on_runtime(async |stop| tail::run(arguments, stop).await),
        Command::Load(arguments) => on_runtime(async |stop| load::run(arguments, stop).await),
    }
}

/// Runs a command on this thread, with ears for signals.
fn on_runtime(run: impl AsyncFnOnce(Stop) -> Result<(), Error>) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Runtime { source };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async { run(Stop::listen().map_err(failed)?).await })
}

/// Prints a result on standard output.
fn print(result: &impl std::fmt::Display) -> Result<(), Error> {
    writeln!(io::stdout().lock(), "{result}").map_err(|source| Error::Standard {
        stream: "output",
        source,
    })
}
