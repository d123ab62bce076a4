//! A router of our own: started on free ports with throw-away certificates, watched, and ended.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::metrics::Metrics;
use crate::process::{self, Group, Interrupted};

/// A hang guard: nothing that a router is asked for should take that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes throw-away certificates.
///
/// # Errors
/// When `lgr` can't.
pub fn make_certificates(lgr: &Path, dir: &Path) -> Result<()> {
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
pub struct Router {
    /// Its process.
    pub group: Group,
    /// Its gRPC port, on loopback.
    pub grpc: SocketAddr,
    /// Its debug port.
    pub debug: SocketAddr,
}

impl Router {
    /// Starts `program` on free ports with the certificates in `certs`, and waits until it listens.
    /// The caller's environment goes through, `variables` come on top. What it logs goes to `log`,
    /// line by line.
    ///
    /// # Errors
    /// When it doesn't start, ends, or doesn't say where it listens.
    pub fn start(
        program: &Path,
        certs: &Path,
        variables: &[(&str, &str)],
        log: impl Fn(&str) + Send + 'static,
    ) -> Result<Self> {
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
                log(&line);
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
        })
    }

    /// Waits until a reading of the metrics satisfies `done`.
    ///
    /// # Errors
    /// When the router ends first, or nothing happens for long.
    pub fn wait_for(&mut self, what: &str, done: impl Fn(&Metrics) -> bool) -> Result<()> {
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
    ///
    /// # Errors
    /// When it doesn't, or ends badly.
    pub fn stop(mut self) -> Result<()> {
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
}
