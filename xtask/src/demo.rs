//! `cargo xtask demo`: the whole thing on one machine, live.
//!
//! It builds the binaries, makes throw-away certificates, starts a router on a free port, connects
//! a subscriber, and lets an emitter send. Without a number it runs until ctrl-c; with one it stops
//! by itself. The last line accounts for every envelope: sent by the emitter, received by the
//! subscriber, dropped according to the router. They must add up.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::{self, Binaries, Profile};
use crate::instance::{PATIENCE, Router, make_certificates};
use crate::metrics::Metrics;
use crate::process::{self, Group, Interrupted};

/// What the demo does.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Stop by itself after so many envelopes; the exit code tells whether all are accounted for
    #[arg(long, value_name = "N")]
    pub envelopes: Option<u64>,
    /// Send from so many sources
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub sources: u64,
    /// Send so many envelopes a second [default: 10 to watch, 5000 with --envelopes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
}

/// Where every envelope went.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Account {
    sent: u64,
    received: u64,
    dropped: u64,
    duplicated: u64,
    out_of_order: u64,
}

impl Account {
    /// What is wrong with it, if anything.
    fn check(self, ordered: bool) -> Result<()> {
        ensure!(
            self.sent == self.received + self.dropped,
            "sent is not received + dropped: envelopes are not accounted for"
        );
        ensure!(
            self.duplicated == 0,
            "{} envelopes were delivered more than once",
            self.duplicated
        );
        ensure!(
            !ordered || self.out_of_order == 0,
            "{} envelopes overtook others of their source",
            self.out_of_order
        );
        Ok(())
    }
}

/// Runs the demo.
///
/// # Errors
/// When something can't be built or started, and when envelopes are not accounted for.
pub fn run(options: &Options) -> Result<()> {
    println!("demo: building the router and lgr");
    let binaries = cargo::build_binaries(Profile::Dev)?;
    run_with(&binaries, options, &[])
}

/// Runs the demo with binaries that are there, and with `variables` on top of the caller's.
///
/// # Errors
/// As [`run`].
pub fn run_with(binaries: &Binaries, options: &Options, variables: &[(&str, &str)]) -> Result<()> {
    let scratch = tempfile::Builder::new()
        .prefix("router-demo-")
        .tempdir()
        .context("cannot make a directory for the certificates")?;
    let certs = scratch.path();
    make_certificates(&binaries.lgr, certs)?;

    let mut router = Router::start(&binaries.router, certs, variables, |line| {
        println!("router | {line}");
    })?;
    println!(
        "demo: router at {}, debug port at {}",
        router.grpc, router.debug
    );
    let account = exchange(binaries, certs, &mut router, options)?;
    let ordered = ordering(variables).as_deref() == Some("source");
    let orderly = router.stop();

    // The account comes last, whatever else there is to say.
    let verdict = orderly.and_then(|()| account.check(ordered));
    if let Err(problem) = &verdict {
        println!("demo: {problem:#}");
    } else if ordered {
        println!("demo: the envelopes of each source came in order");
    }
    println!(
        "demo: sent={} received={} dropped={}",
        account.sent, account.received, account.dropped
    );
    verdict
}

/// What order the router was asked to keep.
fn ordering(variables: &[(&str, &str)]) -> Option<String> {
    variables
        .iter()
        .find(|(name, _)| *name == "ROUTER_FANOUT_ORDERING")
        .map(|(_, value)| (*value).to_owned())
        .or_else(|| env::var("ROUTER_FANOUT_ORDERING").ok())
}

/// Subscribes, emits, and counts.
fn exchange(
    binaries: &Binaries,
    certs: &Path,
    router: &mut Router,
    options: &Options,
) -> Result<Account> {
    let mut tail = Client::start(
        binaries,
        "tail",
        certs,
        router.grpc,
        &tail_arguments(options),
    )?;
    router.wait_for("the subscription", |metrics| {
        metrics.sum("subscriptions", "") >= 1
    })?;
    let mut emit = Client::start(
        binaries,
        "emit",
        certs,
        router.grpc,
        &emit_arguments(options),
    )?;

    let limit = match options.envelopes {
        Some(count) => PATIENCE + Duration::from_secs(count / rate(options)) * 2,
        None => Duration::from_secs(u64::from(u32::MAX)),
    };
    let started = Instant::now();
    let mut told = started;
    while emit.group.try_wait()?.is_none() {
        if process::interrupted() {
            if options.envelopes.is_some() {
                return Err(Interrupted.into());
            }
            break;
        }
        if let Some(status) = router.group.try_wait()? {
            bail!("the router ended by itself: {status}");
        }
        ensure!(
            started.elapsed() < limit,
            "lgr emit took longer than {limit:?}"
        );
        if options.envelopes.is_some() && told.elapsed() >= Duration::from_secs(1) {
            told = Instant::now();
            let metrics = Metrics::read(router.debug)?;
            println!(
                "demo: {} in, {} out, {} dropped",
                metrics.sum("ingress", ""),
                metrics.sum("egress", ""),
                metrics.sum("dropped", "")
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let emitted = emit.finish()?;
    let tailed = if options.envelopes.is_some() {
        tail.group.wait(PATIENCE).map(|_| ())?;
        tail.finish()?
    } else {
        // Let what is on its way arrive.
        std::thread::sleep(Duration::from_millis(500));
        tail.finish()?
    };
    let metrics = Metrics::read(router.debug)?;
    Ok(Account {
        sent: number(&emitted, "sent")?,
        received: number(&tailed, "received")?,
        dropped: metrics.sum("dropped", "direction=\"ingress\"")
            + metrics.sum("dropped", "direction=\"egress\""),
        duplicated: number(&tailed, "duplicated")?,
        out_of_order: number(&tailed, "out_of_order")?,
    })
}

fn rate(options: &Options) -> u64 {
    let default = if options.envelopes.is_some() {
        5000
    } else {
        10
    };
    options.rate.unwrap_or(default)
}

fn tail_arguments(options: &Options) -> Vec<String> {
    let mut arguments = vec!["--numbered".to_owned(), "--json-summary".to_owned()];
    if let Some(count) = options.envelopes {
        arguments.extend(["--expect".to_owned(), count.to_string()]);
        // Counted from the last envelope: when some were dropped, the rest never comes.
        arguments.extend(["--idle-timeout".to_owned(), "5s".to_owned()]);
    }
    arguments
}

fn emit_arguments(options: &Options) -> Vec<String> {
    let mut arguments = vec!["--numbered".to_owned(), "--json-summary".to_owned()];
    arguments.extend(["--kind".to_owned(), "log".to_owned()]);
    arguments.extend(["--sources".to_owned(), options.sources.to_string()]);
    arguments.extend(["--rate".to_owned(), rate(options).to_string()]);
    match options.envelopes {
        Some(count) => arguments.extend(["--count".to_owned(), count.to_string()]),
        // Lines that fit a terminal.
        None => arguments.extend(["--payload".to_owned(), "24".to_owned()]),
    }
    arguments
}

/// A running `lgr`, whose last line on stdout is a summary in JSON.
#[derive(Debug)]
struct Client {
    name: String,
    group: Group,
    last_line: std::thread::JoinHandle<String>,
}

impl Client {
    fn start(
        binaries: &Binaries,
        name: &str,
        certs: &Path,
        router: SocketAddr,
        arguments: &[String],
    ) -> Result<Self> {
        let mut command = Command::new(&binaries.lgr);
        command
            .arg(name)
            .args(["--addr", &router.to_string()])
            .arg("--certs")
            .arg(certs)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut group = Group::spawn(&format!("lgr {name}"), &mut command)?;
        let stdout = group.child().stdout.take().context("no pipe to lgr")?;
        let stderr = group.child().stderr.take().context("no pipe to lgr")?;
        echo(name, stderr);
        let last_line = echo(name, stdout);
        Ok(Self {
            name: name.to_owned(),
            group,
            last_line,
        })
    }

    /// Ends it, unless it has ended, and reads its summary.
    fn finish(mut self) -> Result<Value> {
        let name = &self.name;
        match self.group.stop(PATIENCE) {
            Some(status) if status.success() => {}
            Some(status) => bail!("lgr {name} failed: {status}"),
            None => bail!("lgr {name} did not end within {PATIENCE:?}"),
        }
        let line = self.last_line.join().unwrap_or_default();
        serde_json::from_str(&line)
            .with_context(|| format!("lgr {name} ended without a summary: {line:?}"))
    }
}

/// Prints what comes through the pipe, and returns the last line in the end.
fn echo(name: &str, pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    let prefix = format!("{name:6}");
    std::thread::spawn(move || {
        let mut last = String::new();
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            println!("{prefix} | {line}");
            last = line;
        }
        last
    })
}

fn number(summary: &Value, field: &str) -> Result<u64> {
    summary[field]
        .as_u64()
        .with_context(|| format!("no number {field:?} in the summary {summary}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_envelope_is_accounted_for() {
        let good = Account {
            sent: 10,
            received: 7,
            dropped: 3,
            ..Account::default()
        };
        good.check(true).unwrap();
        let lost = Account { dropped: 2, ..good };
        assert!(lost.check(false).is_err());
        let twice = Account {
            duplicated: 1,
            ..good
        };
        assert!(twice.check(false).is_err());
    }

    #[test]
    fn order_counts_only_where_it_was_asked_for() {
        let overtaken = Account {
            sent: 1,
            received: 1,
            out_of_order: 1,
            ..Account::default()
        };
        overtaken.check(false).unwrap();
        assert!(overtaken.check(true).is_err());
    }
}
