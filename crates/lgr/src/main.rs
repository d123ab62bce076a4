//! The command line `lgr`: reads the arguments, runs a command, tells what went wrong.
//!
//! Exit codes: 0 when done or interrupted, 1 for an error, 2 for arguments that make no sense. A
//! reader of our output that goes away (`lgr tail | head`) is no error.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod load;
mod show;
mod stop;

use std::process::ExitCode;

use clap::Parser;

use commands::Command;

/// Companion of the Loggregator router: makes certificates, sends envelopes, shows what arrives.
///
/// A first look, with a router on this machine that uses the files certs/doppler.crt,
/// certs/doppler.key and certs/ca.crt:
///
///   lgr certs certs                make an authority and identities in the directory `certs`
///   lgr tail                       show every envelope, until ctrl-c
///   echo hello | lgr emit          (in another terminal) send a line as a log envelope
///   lgr emit --kind all --rate 5   send five envelopes of all kinds a second, until ctrl-c
///   lgr load --rate 10k            measure throughput, loss and latency
#[derive(Debug, Parser)]
#[command(name = "lgr", version, verbatim_doc_comment, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match commands::run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lgr: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_argument_is_explained() {
        for command in Arguments::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let name = format!("{} {}", command.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{name}");
            }
        }
    }
}
