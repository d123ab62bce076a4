//! A list of checks, run one after the other to the end, whatever fails on the way.
//!
//! A person who waits sees which step runs, what it says and how long it took; the last line counts
//! passed and failed tests. Steps are either commands, whose libtest output is condensed and
//! counted, or functions of our own.

use std::io::{BufRead, BufReader, IsTerminal};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{self, Group, Interrupted};

/// No step may take longer. Only something that hangs does.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// What ran so far.
#[derive(Debug)]
pub struct Steps {
    title: &'static str,
    started: Instant,
    counts: Counts,
    done: Vec<Done>,
}

#[derive(Debug)]
struct Done {
    name: String,
    outcome: Outcome,
    took: Duration,
}

#[derive(Debug, Eq, PartialEq)]
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// How a step of our own ended well.
#[derive(Debug)]
pub enum Step {
    /// It was done, with so many single checks; none of them failed.
    Passed(u64),
    /// It can't be done here, for this reason.
    Skipped(String),
}

/// Single tests, over all steps.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Steps {
    /// An empty list; `title` is the subcommand that the summary names.
    pub fn new(title: &'static str) -> Self {
        Self {
            title,
            started: Instant::now(),
            counts: Counts::default(),
            done: Vec::new(),
        }
    }

    /// Runs `command`, condensing and counting what it prints as libtest does.
    pub fn run(&mut self, name: &str, command: &mut Command) {
        let mut counts = Counts::default();
        self.step(name, || run_counting(name, command, &mut counts));
        self.counts.add(counts);
    }

    /// Runs a check of our own.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<Step>) {
        let mut passed = 0;
        self.step(name, || {
            Ok(match check()? {
                Step::Passed(count) => {
                    passed = count;
                    Outcome::Passed
                }
                Step::Skipped(why) => Outcome::Skipped(why),
            })
        });
        self.counts.passed += passed;
    }

    fn step(&mut self, name: &str, run: impl FnOnce() -> Result<Outcome>) {
        if process::interrupted() {
            return;
        }
        println!("\n=== {name} ===");
        let started = Instant::now();
        let outcome = run().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        let took = started.elapsed();
        match &outcome {
            Outcome::Passed => println!("--- passed in {}", seconds(took)),
            Outcome::Failed(why) => println!("--- FAILED in {}: {why}", seconds(took)),
            Outcome::Skipped(why) => println!("--- skipped: {why}"),
        }
        self.done.push(Done {
            name: name.to_owned(),
            outcome,
            took,
        });
    }

    /// Prints the summary.
    ///
    /// # Errors
    /// When a step failed or somebody pressed ctrl-c.
    pub fn finish(self) -> Result<()> {
        println!("\n=== summary ===");
        for done in &self.done {
            let (word, note) = match &done.outcome {
                Outcome::Passed => ("passed", String::new()),
                Outcome::Failed(why) => ("FAILED", format!(": {why}")),
                Outcome::Skipped(why) => ("skipped", format!(": {why}")),
            };
            println!("{word:>8} {:>8}  {}{note}", seconds(done.took), done.name);
        }
        let failed_steps = self.failed_steps();
        // A step may fail without a failed test in it, when something doesn't build, for example.
        let failed = self.counts.failed.max(failed_steps);
        println!(
            "{}: {} passed, {failed} failed, {} ignored; {} steps, {failed_steps} failed; {}",
            self.title,
            self.counts.passed,
            self.counts.ignored,
            self.done.len(),
            seconds(self.started.elapsed()),
        );
        if process::interrupted() {
            return Err(Interrupted.into());
        }
        if failed > 0 {
            bail!(
                "{}: {failed_steps} of {} steps failed",
                self.title,
                self.done.len()
            );
        }
        Ok(())
    }

    fn failed_steps(&self) -> u64 {
        let failed = |done: &&Done| matches!(done.outcome, Outcome::Failed(_));
        self.done.iter().filter(failed).count() as u64
    }
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Reads the line that libtest ends with, if this is one.
    fn parse(line: &str) -> Option<Self> {
        let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let number = |word: &str| {
            let part = numbers.split(';').find(|part| part.trim().ends_with(word));
            part.and_then(|part| part.trim().split(' ').next()?.parse().ok())
        };
        Some(Self {
            passed: number(" passed")?,
            failed: number(" failed")?,
            ignored: number(" ignored")?,
        })
    }
}

/// Runs one command. Its stderr (cargo's progress) goes to ours, its stdout is filtered.
fn run_counting(name: &str, command: &mut Command, counts: &mut Counts) -> Result<Outcome> {
    if std::io::stderr().is_terminal() && std::env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    println!("$ {}", shown(command));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut group = Group::spawn(name, command)?;
    let stdout = group.child().stdout.take().context("no pipe to the step")?;
    let reader = std::thread::spawn(move || {
        let mut counts = Counts::default();
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if let Some(result) = Counts::parse(&line) {
                counts.add(result);
            }
            if worth_showing(&line) {
                println!("{line}");
            }
        }
        counts
    });
    let status = group.wait(LIMIT);
    // Ends what a test may have left running, so that the pipe closes.
    drop(group);
    counts.add(reader.join().unwrap_or_default());
    let status = status?;
    Ok(if status.success() {
        Outcome::Passed
    } else if counts.failed > 0 {
        Outcome::Failed(format!("{} tests failed", counts.failed))
    } else {
        Outcome::Failed(format!("{status}"))
    })
}

/// Hides what libtest says about tests that passed.
fn worth_showing(line: &str) -> bool {
    let passed = line.starts_with("test ") && line.ends_with(" ... ok");
    let heading = line.starts_with("running ") && line.ends_with("tests");
    !(passed || heading || line.is_empty())
}

/// The command as a person would type it.
fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        let name = name.to_str()?;
        let told = [
            "RUSTFLAGS",
            "RUSTDOCFLAGS",
            "CARGO_TARGET_DIR",
            "RUSTC_BOOTSTRAP",
        ];
        let value = told.contains(&name).then_some(value)??;
        Some(format!("{name}={:?}", value.to_string_lossy()))
    });
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let arguments = command
        .get_args()
        .map(|argument| argument.to_string_lossy());
    let words: Vec<_> = variables
        .chain([program.into_owned()])
        .chain(arguments.map(String::from))
        .collect();
    words.join(" ")
}

/// A duration for people.
pub fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = duration.as_secs();
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const PASSED: &str = "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s";
    const FAILED: &str = "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.01s";

    #[test]
    fn counts_what_libtest_reports() {
        assert_eq!(
            Counts::parse(PASSED),
            Some(Counts {
                passed: 12,
                failed: 0,
                ignored: 3
            })
        );
        assert_eq!(Counts::parse(FAILED).map(|counts| counts.failed), Some(2));
        assert_eq!(Counts::parse("test result: what?"), None);
        assert_eq!(Counts::parse("test diode::result ... ok"), None);
    }

    #[test]
    fn shows_failures_and_hides_successes() {
        assert!(!worth_showing("test ring::conserves ... ok"));
        assert!(!worth_showing("running 3 tests"));
        assert!(worth_showing("test ring::conserves ... FAILED"));
        assert!(worth_showing("assertion failed: left == right"));
        assert!(worth_showing(PASSED));
    }

    #[test]
    fn all_steps_run_although_one_fails() {
        let mut steps = Steps::new("test");
        steps.run("fails", &mut shell("exit 4"));
        steps.run("passes", &mut shell(&format!("echo '{PASSED}'")));
        steps.check("skips", || Ok(Step::Skipped("not here".into())));
        assert_eq!(steps.counts.passed, 12);
        assert_eq!(steps.done.len(), 3);
        assert_eq!(steps.done[1].outcome, Outcome::Passed);
        assert_eq!(steps.failed_steps(), 1);
        let error = steps.finish().unwrap_err();
        assert_eq!(error.to_string(), "test: 1 of 3 steps failed");
    }

    #[test]
    fn a_failed_test_fails_the_run() {
        let mut steps = Steps::new("test");
        steps.run("tests", &mut shell(&format!("echo '{FAILED}'; exit 101")));
        assert_eq!(steps.counts.failed, 2);
        assert!(steps.finish().is_err());
    }

    #[test]
    fn an_error_of_our_own_check_fails_the_run() {
        let mut steps = Steps::new("ci");
        steps.check("rule", || bail!("broken"));
        assert!(steps.finish().is_err());
    }

    #[test]
    fn all_well_is_all_well() {
        let mut steps = Steps::new("ci");
        steps.check("rule", || Ok(Step::Passed(4)));
        assert_eq!(steps.counts.passed, 4);
        assert!(steps.finish().is_ok());
    }
}
