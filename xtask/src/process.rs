//! Child processes that never outlive us.
//!
//! Every command that the tool starts gets a process group of its own, so that a hung test or an
//! abandoned demo can be ended together with whatever it started, by id and nothing else. A group
//! ends when its handle is dropped: on success, on an error and on ctrl-c alike. The first ctrl-c
//! asks the children to finish, the second one doesn't ask.

use std::fmt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long a child may take to finish after it was asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How often a waiting parent looks at its child.
const POLL: Duration = Duration::from_millis(20);

static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

/// Catches SIGINT and SIGTERM from now on, so that [`interrupted`] can tell.
///
/// # Errors
/// When the handlers can't be installed.
pub fn watch_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for ctrl-c")?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            INTERRUPTS.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Whether somebody asked us to stop.
pub fn interrupted() -> bool {
    INTERRUPTS.load(Ordering::Relaxed) > 0
}

/// The error of everything that ctrl-c cut short.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// A running command and everything that it started.
#[derive(Debug)]
pub struct Group {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` in a process group of its own; `name` is what messages call it.
    ///
    /// # Errors
    /// When the program can't be started.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({:?})", command.get_program()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            ended: None,
        })
    }

    /// The child itself, to take its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The exit status, if the child has ended. What it left running ends with it.
    ///
    /// # Errors
    /// When the system can't tell.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() && self.has_exited()? {
            // The child isn't reaped yet, so the group's id can't be anybody else's.
            self.signal(Signal::KILL);
            let status = self.child.wait();
            self.ended = Some(status.with_context(|| format!("cannot wait for {}", self.name))?);
        }
        Ok(self.ended)
    }

    /// Looks whether the child has ended, without reaping it.
    fn has_exited(&self) -> Result<bool> {
        let Some(pid) = self.id() else {
            return Ok(true);
        };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let state = waitid(WaitId::Pid(pid), look)
            .with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(state.is_some())
    }

    /// Waits for the child to end by itself.
    ///
    /// # Errors
    /// [`Interrupted`] on ctrl-c, and an error when it takes longer than `limit`; the group is
    /// ended in both cases.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if interrupted() {
                self.end();
                return Err(Interrupted.into());
            }
            if Instant::now() >= deadline {
                self.end();
                bail!(
                    "{} was still running after {} s and was ended",
                    self.name,
                    limit.as_secs()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Asks the group to finish, as ctrl-c in a terminal would, and gives it `grace` to do so.
    ///
    /// Returns the exit status, or nothing when it had to be killed.
    pub fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.try_wait() {
            return Some(status);
        }
        self.signal(Signal::INT);
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.try_wait() {
                return Some(status);
            }
            if INTERRUPTS.load(Ordering::Relaxed) > 1 {
                break;
            }
            std::thread::sleep(POLL);
        }
        None
    }

    /// Ends the group, politely first.
    fn end(&mut self) {
        if self.stop(GRACE).is_none() {
            self.signal(Signal::KILL);
            // A kill can't be refused, so this returns at once.
            self.ended = self.child.wait().ok();
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.id().filter(|_| self.ended.is_none()) {
            // A group without a process left in it is no error.
            let _ = kill_process_group(group, signal);
        }
    }

    /// The id of the child, and of its group.
    fn id(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str) -> Group {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        Group::spawn("sh", &mut command).expect("sh starts")
    }

    #[test]
    fn reports_the_exit_status() {
        let status = shell("exit 3").wait(Duration::from_secs(30)).unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn ends_what_takes_too_long() {
        let error = shell("sleep 600")
            .wait(Duration::from_millis(50))
            .unwrap_err();
        assert!(error.to_string().contains("still running"), "{error}");
    }

    /// The pipe closes only when the grandchild, which inherited it, is gone too.
    #[test]
    fn a_dropped_group_takes_its_grandchildren_along() {
        let mut group = shell("sleep 600 & echo started; wait");
        let mut pipe = group.child().stdout.take().unwrap();
        let mut first = [0; 8];
        pipe.read_exact(&mut first).unwrap();
        drop(group);
        let mut rest = Vec::new();
        pipe.read_to_end(&mut rest).unwrap();
        assert_eq!((&first, rest.as_slice()), (b"started\n", &b""[..]));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Group::spawn("router", &mut Command::new("no-such-program-here")).unwrap_err();
        assert!(
            error.to_string().contains("no-such-program-here"),
            "{error}"
        );
    }
}
