//! `cargo xtask demo`: the whole thing on one machine, live.
//!
//! It builds the binaries, makes throw-away certificates, starts a router on a free port, connects
//! a subscriber, and lets an emitter send. Without a number it runs until ctrl-c; with one it stops
//! by itself. The last line accounts for every envelope: sent by the emitter, received by the
//! subscriber, dropped according to the router. They must add up.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::{self, Binaries, Profile};
use crate::metrics::Metrics;
use crate::process::{self, Group, Interrupted};

/// A hang guard: nothing here should take that long.
const PATIENCE: Duration = Duration::from_secs(60);

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

    let mut router = Router::start(&binaries.router, certs, variables)?;
    println!(
        "demo: router at {}, debug port at {}",
        router.grpc, router.debug
    );
    let account = exchange(binaries, certs, &mut router, options)?;
    let ordered = router.ordered;
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

fn make_certificates(lgr: &Path, dir: &Path) -> Result<()> {
    let output = Command::new(lgr)
        .arg("certs")
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .context("cannot start lgr certs")?;
    ensure!(
        output.status.success(),
        "lgr certs failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// A router of our own.
#[derive(Debug)]
struct Router {
    group: Group,
    grpc: SocketAddr,
    debug: SocketAddr,
    /// Whether it was asked to keep the order per source.
    ordered: bool,
}

impl Router {
    fn start(program: &Path, certs: &Path, variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(program);
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let defaults: [(&str, PathBuf); 5] = [
            ("ROUTER_CA_FILE", certs.join("ca.crt")),
            ("ROUTER_CERT_FILE", certs.join("doppler.crt")),
            ("ROUTER_KEY_FILE", certs.join("doppler.key")),
            ("ROUTER_PORT", "0".into()),
            ("ROUTER_PPROF_PORT", "0".into()),
        ];
        for (name, value) in defaults {
            if !set(name) {
                command.env(name, value);
            }
        }
        command.envs(variables.iter().copied());
        let ordering = variables
            .iter()
            .find(|(name, _)| *name == "ROUTER_FANOUT_ORDERING")
            .map(|(_, value)| (*value).to_owned())
            .or_else(|| env::var("ROUTER_FANOUT_ORDERING").ok());

        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut group = Group::spawn("the router", &mut command)?;
        let stderr = group
            .child()
            .stderr
            .take()
            .context("no pipe to the router")?;
        let (lines, bound) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                println!("router | {line}");
                // Nobody listens any more once both ports are known.
                let _ = lines.send(line);
            }
        });

        let mut grpc = None;
        let mut debug = None;
        let deadline = Instant::now() + PATIENCE;
        while grpc.is_none() || debug.is_none() {
            match bound.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    grpc = grpc.or_else(|| bound_to(&line, "grpc"));
                    debug = debug.or_else(|| bound_to(&line, "pprof"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = group.wait(PATIENCE)?;
                    bail!("the router ended before it listened: {status}");
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if process::interrupted() {
                        return Err(Interrupted.into());
                    }
                    ensure!(Instant::now() < deadline, "the router never listened");
                }
            }
        }
        Ok(Self {
            group,
            grpc: grpc.context("no gRPC port")?,
            debug: debug.context("no debug port")?,
            ordered: ordering.as_deref() == Some("source"),
        })
    }

    /// Waits until a reading of the metrics satisfies `done`.
    fn wait_for(&mut self, what: &str, done: impl Fn(&Metrics) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.group.try_wait()? {
                bail!("the router ended while we waited for {what}: {status}");
            }
            if process::interrupted() {
                return Err(Interrupted.into());
            }
            if done(&Metrics::read(self.debug)?) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{what}: nothing after {PATIENCE:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks the router to drain and end.
    fn stop(mut self) -> Result<()> {
        match self.group.stop(PATIENCE) {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("the router ended badly: {status}"),
            None => bail!("the router did not end within {PATIENCE:?}"),
        }
    }
}

/// The address in a line such as `... grpc bound to: [::]:4242`, on loopback.
fn bound_to(line: &str, what: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once(&format!("{what} bound to: "))?;
    let (_, port) = address.trim().rsplit_once(':')?;
    Some((Ipv4Addr::LOCALHOST, port.parse().ok()?).into())
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
    fn finds_the_ports_in_the_log() {
        let expect = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let line = "2026/01/02 03:04:05.678901 grpc bound to: [::]:4242";
        assert_eq!(bound_to(line, "grpc"), expect(4242));
        assert_eq!(bound_to(line, "pprof"), None);
        assert_eq!(
            bound_to("pprof bound to: 127.0.0.1:99", "pprof"),
            expect(99)
        );
        assert_eq!(bound_to("grpc bound to: nowhere", "grpc"), None);
    }

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
