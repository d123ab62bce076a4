//! Figures that don't move: instructions of the hot paths, counted by valgrind's callgrind.
//!
//! Times on a shared machine can't guard anything in continuous integration; the number of
//! instructions that a path executes can. The executable `instructions` of the package `benches`
//! holds the paths; each runs alone under callgrind, which counts what happens inside one marked
//! function. The counts of record are in the repository, and belong to one compiler and one kind of
//! processor: elsewhere the check is skipped and says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cargo;
use crate::process::{self, Group, Interrupted};
use crate::steps::Step;

use super::results::percent;

/// Where the counts of record are.
const RECORD: &str = "benches/instructions.json";
/// What is said when there are none.
const NO_RECORD: &str =
    "there are no counts of record: cargo xtask bench --instructions --update writes them";
/// How much more than recorded is too much. Twice the same command gives the same figures; a change of
/// the code nearby moves them by one or two in a hundred.
const TOLERANCE: f64 = 0.03;

/// The counts of record, and what they hold for.
#[derive(Clone, Debug, PartialEq)]
struct Record {
    toolchain: String,
    tolerance: f64,
    /// Instructions per operation, by path.
    counts: BTreeMap<String, f64>,
}

/// Counts, prints, and either compares with the record or replaces it.
///
/// # Errors
/// When a path takes more instructions than recorded, or can't be counted.
pub fn run(update: bool, as_json: bool) -> Result<()> {
    if let Some(why) = missing() {
        // An update that changes nothing would look like a success.
        ensure!(!update, "the counts can't be updated: {why}");
        println!("instructions: skipped: {why}");
        return Ok(());
    }
    let counts = count()?;
    if update {
        let record = Record {
            toolchain: toolchain()?,
            tolerance: TOLERANCE,
            counts: counts.clone(),
        };
        let text = serde_json::to_string_pretty(&record.to_json())? + "\n";
        super::write_atomically(&record_path(), &text)?;
        print_counts(&counts, None, as_json);
        println!("instructions: written to {RECORD}");
        return Ok(());
    }
    let Some(record) = Record::load(&record_path())? else {
        print_counts(&counts, None, as_json);
        println!("instructions: not compared: {NO_RECORD}");
        return Ok(());
    };
    print_counts(&counts, Some(&record), as_json);
    if let Some(why) = record.not_for(&toolchain()?) {
        println!("instructions: not compared: {why}");
        return Ok(());
    }
    fail_on(&record.compare(&counts))
}

/// The same as a step of continuous integration.
///
/// # Errors
/// As [`run`].
pub fn check() -> Result<Step> {
    if let Some(why) = missing() {
        return Ok(Step::Skipped(why));
    }
    let Some(record) = Record::load(&record_path())? else {
        return Ok(Step::Skipped(NO_RECORD.to_owned()));
    };
    if let Some(why) = record.not_for(&toolchain()?) {
        return Ok(Step::Skipped(why));
    }
    let counts = count()?;
    print_counts(&counts, Some(&record), false);
    fail_on(&record.compare(&counts))?;
    Ok(Step::Passed(counts.len() as u64))
}

fn fail_on(problems: &[String]) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    bail!(
        "{}; if that is meant to be, keep it with: cargo xtask bench --instructions --update",
        problems.join("; ")
    )
}

fn record_path() -> PathBuf {
    cargo::root().join(RECORD)
}

/// Why instructions can't be counted here.
fn missing() -> Option<String> {
    let valgrind = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match valgrind {
        Ok(status) if status.success() => None,
        _ => Some("there is no valgrind here (the package valgrind has it)".to_owned()),
    }
}

/// Compiler, processor and C library, which the counts depend on: copying memory is the library's.
fn toolchain() -> Result<String> {
    let output = Command::new("rustc")
        .current_dir(cargo::root())
        .arg("--version")
        .output()
        .context("cannot start rustc")?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let libc = Command::new("ldd").arg("--version").output();
    let libc = libc.map_or_else(
        |_| "an unknown C library".to_owned(),
        |output| first_line(&String::from_utf8_lossy(&output.stdout)),
    );
    Ok(format!("{version}, {}, {libc}", std::env::consts::ARCH))
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// Builds the paths and counts each of them.
fn count() -> Result<BTreeMap<String, f64>> {
    let executable = build()?;
    let output = Command::new(&executable)
        .output()
        .context("cannot start the executable to count")?;
    ensure!(
        output.status.success(),
        "the paths to count can't be listed"
    );
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut counts = BTreeMap::new();
    for name in names.lines() {
        if process::interrupted() {
            return Err(Interrupted.into());
        }
        eprintln!("instructions: {name}");
        counts.insert(name.to_owned(), count_one(&executable, name)?);
    }
    ensure!(!counts.is_empty(), "there are no paths to count");
    Ok(counts)
}

fn build() -> Result<PathBuf> {
    let output = cargo::command()
        .args(["build", "--profile", "bench", "--package", "benches"])
        .args([
            "--bin",
            "instructions",
            "--message-format=json-render-diagnostics",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "building the paths to count failed"
    );
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    cargo::executable(&messages, "instructions")
}

/// Runs one path under callgrind; instructions per operation.
fn count_one(executable: &Path, name: &str) -> Result<f64> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let log = scratch.path().join("log");
    let out = scratch.path().join("out");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--collect-atstart=no"])
        // The function whose inside counts: `instructions::counted`.
        .arg("--toggle-collect=*::counted")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(format!("--log-file={}", log.display()))
        .arg(executable)
        .arg(name)
        // Variables of the caller's would move the stack.
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    let mut group = Group::spawn(&format!("valgrind for {name}"), &mut command)?;
    let mut stdout = group.child().stdout.take().context("no pipe to valgrind")?;
    let status = group.wait(std::time::Duration::from_secs(600))?;
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    ensure!(
        status.success(),
        "{name} failed under valgrind: {status}\n{log}"
    );
    let mut operations = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut operations)?;
    let operations: f64 = operations
        .trim()
        .parse()
        .with_context(|| format!("{name} told no number of operations: {operations:?}"))?;
    let collected = collected(&log).with_context(|| format!("no count for {name} in:\n{log}"))?;
    ensure!(collected > 0, "{name}: nothing was counted");
    Ok(collected as f64 / operations)
}

/// The number in valgrind's line `Collected : N`.
fn collected(log: &str) -> Option<u64> {
    let line = log
        .lines()
        .find_map(|line| line.split_once("Collected : "))?;
    line.1.trim().parse().ok()
}

fn print_counts(counts: &BTreeMap<String, f64>, record: Option<&Record>, as_json: bool) {
    if as_json {
        println!("{:#}", json!(counts));
        return;
    }
    let width = counts.keys().map(String::len).max().unwrap_or(0).max(24);
    println!(
        "{:width$}  {:>12}  {:>12}",
        "instructions per operation", "now", "recorded"
    );
    for (name, count) in counts {
        let recorded = record.and_then(|record| record.counts.get(name));
        let change = recorded.map(|recorded| percent(count / recorded - 1.0));
        let recorded = recorded.map_or("-".to_owned(), |recorded| format!("{recorded:.1}"));
        println!(
            "{name:width$}  {count:>12.1}  {recorded:>12}  {}",
            change.unwrap_or_default()
        );
    }
}

impl Record {
    /// The record, if there is one.
    fn load(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the counts of record in {}", path.display()))?;
        let value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        let record = Self::from_json(&value);
        let record = record.with_context(|| format!("{} is incomplete", path.display()))?;
        Ok(Some(record))
    }

    fn to_json(&self) -> Value {
        // Tenths: the rest is noise, and would make differences in the repository.
        let rounded = |count: &f64| (count * 10.0).round() / 10.0;
        let counts: BTreeMap<_, _> = self.counts.iter().map(|(n, c)| (n, rounded(c))).collect();
        json!({
            "what": "instructions per operation; written by cargo xtask bench --instructions --update",
            "toolchain": self.toolchain,
            "tolerance": self.tolerance,
            "counts": counts,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let counts = value["counts"].as_object()?.iter();
        let count = |(name, count): (&String, &Value)| Some((name.clone(), count.as_f64()?));
        Some(Self {
            toolchain: value["toolchain"].as_str()?.to_owned(),
            tolerance: value["tolerance"].as_f64()?,
            counts: counts.map(count).collect::<Option<_>>()?,
        })
    }

    /// Why the counts don't hold for `toolchain`.
    fn not_for(&self, toolchain: &str) -> Option<String> {
        (self.toolchain != toolchain).then(|| {
            format!(
                "the counts of record are for {:?}, this is {toolchain:?}",
                self.toolchain
            )
        })
    }

    /// What is worse than recorded, or not recorded, or gone.
    fn compare(&self, counts: &BTreeMap<String, f64>) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, &count) in counts {
            match self.counts.get(name) {
                None => problems.push(format!("{name} is not recorded")),
                Some(&recorded) => {
                    let change = count / recorded - 1.0;
                    if change > self.tolerance {
                        problems.push(format!(
                            "{name} takes {} instructions ({count:.1} instead of {recorded:.1})",
                            percent(change)
                        ));
                    }
                }
            }
        }
        for name in self
            .counts
            .keys()
            .filter(|name| !counts.contains_key(*name))
        {
            problems.push(format!("{name} is recorded but not there any more"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            toolchain: "rustc 1.95.0, x86_64".to_owned(),
            tolerance: 0.02,
            counts: [("set", 60.0), ("publish", 400.0)]
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Record::from_json(&record().to_json()), Some(record()));
        assert_eq!(Record::from_json(&json!({"counts": {}})), None);
    }

    #[test]
    fn no_record_is_told_from_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("instructions.json");
        assert_eq!(Record::load(&path).unwrap(), None);
        std::fs::write(&path, record().to_json().to_string()).unwrap();
        assert_eq!(Record::load(&path).unwrap(), Some(record()));
        std::fs::write(&path, "{").unwrap();
        assert!(Record::load(&path).is_err());
    }

    #[test]
    fn more_instructions_are_found_and_fewer_are_fine() {
        let record = record();
        let with = |publish: f64| {
            let mut counts = record.counts.clone();
            counts.insert("publish".to_owned(), publish);
            record.compare(&counts)
        };
        assert_eq!(with(400.0), Vec::<String>::new());
        assert_eq!(with(407.0), Vec::<String>::new());
        assert_eq!(with(300.0), Vec::<String>::new());
        let problems = with(480.0);
        assert_eq!(
            problems,
            ["publish takes +20.0 % instructions (480.0 instead of 400.0)"]
        );
        assert!(fail_on(&problems).is_err());
    }

    #[test]
    fn paths_without_a_record_and_records_without_a_path_are_found() {
        let counts = BTreeMap::from([("set".to_owned(), 60.0), ("new".to_owned(), 1.0)]);
        let problems = record().compare(&counts);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn another_compiler_is_not_compared_with() {
        assert_eq!(record().not_for("rustc 1.95.0, x86_64"), None);
        assert!(record().not_for("rustc 1.96.0, x86_64").is_some());
    }

    #[test]
    fn reads_valgrinds_count() {
        let log = "==1== Events    : Ir\n==1== Collected : 123456\n==1== \n";
        assert_eq!(collected(log), Some(123_456));
        assert_eq!(collected("==1== Collected :\n"), None);
    }
}
