//! The benchmarks as executables: building them, asking what is in them, running them.
//!
//! Criterion is the driver: it decides how many iterations make a sample and writes the samples to
//! files. We run each executable many times for a short while instead of once for long, and take
//! from each run one number per benchmark, the median time per operation. Between runs lie other
//! memory addresses, other neighbours on the machine and the other side of the comparison, so the
//! numbers vary by what really varies.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo;
use crate::process::{self, Group, Interrupted};

use super::stats;

/// No run of one executable takes longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// One executable, made of one file in `benches/benches`.
#[derive(Clone, Debug)]
pub struct Executable {
    /// The file's name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// How long to run each benchmark in each round.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Before the first sample.
    pub warm_up: Duration,
    /// For all samples of the round.
    pub measure: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            warm_up: Duration::from_millis(30),
            measure: Duration::from_millis(100),
        }
    }
}

/// The executables of the work tree at `root`, by name: one for each file.
pub fn names(root: &Path) -> Vec<String> {
    let files = fs::read_dir(root.join("benches/benches"))
        .into_iter()
        .flatten();
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Where the work tree at `root` is built: each in a place of its own. Cargo tells packages apart by where
/// they are in their workspace, which is the same in all work trees of one repository; in a common
/// place it would take the executables of one for those of the other.
fn target_dir(root: &Path) -> PathBuf {
    if root == cargo::root() {
        cargo::target_dir()
    } else {
        root.join("target")
    }
}

/// Builds the benchmarks of the work tree at `root`: those executables of `only` that it has, or all.
///
/// # Errors
/// When the build fails.
pub fn build(root: &Path, only: Option<&[String]>) -> Result<Vec<Executable>> {
    let mut command = cargo::command();
    command
        .current_dir(root)
        .args(["bench", "--package", "benches", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .env("CARGO_TARGET_DIR", target_dir(root))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    match only {
        None => {
            command.arg("--benches");
        }
        Some(only) => {
            let there = names(root);
            let wanted: Vec<_> = only.iter().filter(|name| there.contains(name)).collect();
            if wanted.is_empty() {
                return Ok(Vec::new());
            }
            for name in wanted {
                command.args(["--bench", name]);
            }
        }
    }
    let output = command.output().context("cannot start cargo bench")?;
    if process::interrupted() {
        return Err(Interrupted.into());
    }
    ensure!(output.status.success(), "building the benchmarks failed");
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let mut executables: Vec<_> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["kind"][0] == "bench")
        .filter_map(|message| {
            Some(Executable {
                name: message["target"]["name"].as_str()?.to_owned(),
                path: message["executable"].as_str()?.into(),
            })
        })
        .collect();
    executables.sort_by(|a, b| a.name.cmp(&b.name));
    ensure!(!executables.is_empty(), "cargo built no benchmarks");
    Ok(executables)
}

impl Executable {
    /// The names of its benchmarks, as criterion has them, in the order in which they run.
    ///
    /// # Errors
    /// When it doesn't run.
    pub fn list(&self) -> Result<Vec<String>> {
        let output = self
            .command(&["--list"])
            .output()
            .with_context(|| format!("cannot start the benchmarks {}", self.name))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            bail!("the benchmarks {} can't be listed: {message}", self.name);
        }
        Ok(parse_list(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Runs the benchmarks called `ids` once; nanoseconds per operation for each.
    ///
    /// # Errors
    /// When it fails, or doesn't tell about one of them.
    pub fn measure(&self, ids: &[String], pace: Pace) -> Result<BTreeMap<String, f64>> {
        let scratch = tempfile::tempdir().context("no temporary directory")?;
        let mut command = self.command(&["--noplot", "--sample-size", "10"]);
        command
            .args(["--warm-up-time", &pace.warm_up.as_secs_f64().to_string()])
            .args([
                "--measurement-time",
                &pace.measure.as_secs_f64().to_string(),
            ])
            // Criterion's own statistics aren't used: as few resamples as it allows.
            .args(["--nresamples", "1001"])
            .arg(pattern(ids))
            .env("CRITERION_HOME", scratch.path());
        let log = scratch.path().join("log");
        let file = fs::File::create(&log).context("cannot write a log")?;
        command.stdout(file.try_clone()?).stderr(file);
        let mut group = Group::spawn(&format!("the benchmarks {}", self.name), &mut command)?;
        let status = group.wait(LIMIT)?;
        if !status.success() {
            let log = fs::read_to_string(&log).unwrap_or_default();
            bail!("the benchmarks {} failed: {status}\n{log}", self.name);
        }
        let times = read_samples(scratch.path())?;
        for id in ids {
            ensure!(
                times.contains_key(id),
                "{} gave no time for {id}",
                self.name
            );
        }
        Ok(times)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        // What cargo would do.
        command
            .current_dir(cargo::root().join("benches"))
            .arg("--bench")
            .args(arguments)
            .stdin(Stdio::null());
        command
    }
}

/// The lines `NAME: benchmark`.
fn parse_list(output: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| line.strip_suffix(": benchmark"))
        .map(String::from)
        .collect()
}

/// A regular expression that matches these names and no others.
fn pattern(ids: &[String]) -> String {
    let escape = |id: &String| {
        id.chars()
            .flat_map(|c| {
                let special = !(c.is_alphanumeric() || "_ /".contains(c));
                special.then_some('\\').into_iter().chain([c])
            })
            .collect::<String>()
    };
    let names: Vec<_> = ids.iter().map(escape).collect();
    format!("^(?:{})$", names.join("|"))
}

/// Reads all samples that criterion left below `dir`.
fn read_samples(dir: &Path) -> Result<BTreeMap<String, f64>> {
    let mut times = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        if path.ends_with("new") {
            let about = read_json(&path.join("benchmark.json"))?;
            let id = about["full_id"]
                .as_str()
                .context("a benchmark without an id")?;
            let sample = read_json(&path.join("sample.json"))?;
            times.insert(id.to_owned(), time_per_operation(&about, &sample)?);
        } else {
            times.extend(read_samples(&path)?);
        }
    }
    Ok(times)
}

fn read_json(path: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
}

/// The median over the samples. An iteration may stand for many operations: the throughput tells.
fn time_per_operation(about: &Value, sample: &Value) -> Result<f64> {
    let numbers = |name: &str| -> Option<Vec<f64>> {
        sample[name].as_array()?.iter().map(Value::as_f64).collect()
    };
    let iterations = numbers("iters").context("a sample without iterations")?;
    let times = numbers("times").context("a sample without times")?;
    let per_iteration: Vec<f64> = times.iter().zip(&iterations).map(|(t, i)| t / i).collect();
    let operations = about["throughput"]["Elements"].as_f64().unwrap_or(1.0);
    let time = stats::median(&per_iteration) / operations;
    ensure!(time > 0.0, "{} took no time at all", about["full_id"]);
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_list() {
        let output = "router_noop: benchmark\nrouter_fanout/spin/4: benchmark\n\nother\n";
        assert_eq!(parse_list(output), ["router_noop", "router_fanout/spin/4"]);
    }

    /// A workspace whose benchmark is called `word`.
    fn workspace(word: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("benches/benches")).unwrap();
        fs::create_dir_all(dir.path().join("benches/src")).unwrap();
        for (path, content) in [
            (
                "Cargo.toml",
                "workspace = { members = ['benches'], resolver = '3' }".into(),
            ),
            (
                "benches/Cargo.toml",
                "package = { name = 'benches', edition = '2024' }
                bench = [{ name = 'words', harness = false }]"
                    .into(),
            ),
            (
                "benches/src/lib.rs",
                format!("pub const WORD: &str = {word:?};"),
            ),
            (
                "benches/benches/words.rs",
                r#"fn main() { println!("{}: benchmark", benches::WORD); }"#.to_owned(),
            ),
        ] {
            fs::write(dir.path().join(path), content).unwrap();
        }
        dir
    }

    #[test]
    fn work_trees_do_not_get_each_others_executables() {
        let trees = ["first", "second"].map(|word| (word, workspace(word)));
        let built = trees.each_ref().map(|(word, tree)| {
            let executables = build(tree.path(), None).unwrap();
            (*word, executables)
        });
        for (word, executables) in built {
            assert_eq!(executables.len(), 1);
            assert_eq!(executables[0].list().unwrap(), [word]);
        }
    }

    #[test]
    fn patterns_are_exact() {
        let ids = ["a/b.c".to_owned(), "set + take (one)".to_owned()];
        assert_eq!(pattern(&ids), r"^(?:a/b\.c|set \+ take \(one\))$");
    }

    #[test]
    fn an_operation_is_an_element() {
        let sample = serde_json::json!({"iters": [1.0, 2.0, 3.0], "times": [500.0, 600.0, 1200.0]});
        let about = serde_json::json!({"full_id": "a", "throughput": {"Elements": 100}});
        assert_eq!(time_per_operation(&about, &sample).unwrap(), 4.0);
        let about = serde_json::json!({"full_id": "a", "throughput": null});
        assert_eq!(time_per_operation(&about, &sample).unwrap(), 400.0);
        let nothing = serde_json::json!({"iters": [1.0], "times": [0.0]});
        assert!(time_per_operation(&about, &nothing).is_err());
    }

    #[test]
    fn samples_are_found_where_criterion_puts_them() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("group/spin/4/new");
        fs::create_dir_all(&new).unwrap();
        fs::write(new.join("benchmark.json"), r#"{"full_id": "group/spin/4"}"#).unwrap();
        fs::write(
            new.join("sample.json"),
            r#"{"iters": [2.0], "times": [84.0]}"#,
        )
        .unwrap();
        let times = read_samples(dir.path()).unwrap();
        assert_eq!(times["group/spin/4"], 42.0);
        fs::write(new.join("sample.json"), "half a fi").unwrap();
        let error = format!("{:#}", read_samples(dir.path()).unwrap_err());
        assert!(error.contains("sample.json"), "{error}");
    }
}
