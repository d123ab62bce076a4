//! `cargo xtask bench`: did this change make something slower?
//!
//! Times on a laptop or a shared machine move by themselves, by more than most changes do. So:
//! nothing is compared that wasn't measured side by side. A run consists of rounds; in each round
//! every executable runs once per side, the sides taking turns in who goes first, and gives one
//! number per benchmark. Rank tests over the rounds say what is significant, and what looks changed
//! is measured a second time before it is called so.

mod baseline;
mod chart;
mod compare;
mod instructions;
mod peers;
mod report;
mod results;
mod revision;
mod select;
mod stats;
mod suite;
#[cfg(test)]
pub mod synthetic;

pub use instructions::check as check_instructions;

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;
use crate::process::{self, Interrupted};
use crate::steps::seconds;

use baseline::{Baseline, Fingerprint};
use compare::Pair;
use results::{Results, Row};
use suite::{Executable, Pace};

/// What to measure, and what with.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Benchmarks to run: executables, parts of names, or `libs` [default: all]
    filters: Vec<String>,
    /// Name the benchmarks instead of running them
    #[arg(long)]
    list: bool,
    /// Keep the numbers, and what gave them, under this name
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    /// Compare with what was kept under this name
    #[arg(long, value_name = "NAME", conflicts_with = "against")]
    baseline: Option<String>,
    /// Compare with this commit: build it in a work tree of its own, and measure both in turn
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Fail when something became significantly slower by more than this
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    max_regression: Option<f64>,
    /// How many times to run each side
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Print JSON instead of the table
    #[arg(long, conflicts_with = "go_format")]
    json: bool,
    /// Print what Go's benchstat reads instead of the table (`benchstat -col side`)
    #[arg(long)]
    go_format: bool,
    /// Count instructions of the hot paths and compare with the counts in the repository
    #[arg(long, conflicts_with_all = ["filters", "list", "save", "baseline", "against", "max_regression", "go_format"])]
    instructions: bool,
    /// With --instructions: write the counts to the repository
    #[arg(long, requires = "instructions")]
    update: bool,
}

/// `10%` or `10`, as a share.
fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(percent / 100.0),
        _ => Err("must be a number of percent above 0, for example 10%".to_owned()),
    }
}

/// Runs, compares, prints, keeps.
///
/// # Errors
/// When a name is unknown, something can't be built or run, or a slowdown is above the limit.
pub fn run(options: &Options) -> Result<()> {
    if options.instructions {
        return instructions::run(options.update, options.json);
    }
    // What can't work is told before anything takes minutes.
    ensure!(
        options.max_regression.is_none() || options.baseline.is_some() || options.against.is_some(),
        "--max-regression needs something to compare with: --baseline NAME or --against REV"
    );
    if let Some(name) = &options.save {
        baseline::check_name(name)?;
    }
    let base = options
        .baseline
        .as_deref()
        .map(Baseline::load)
        .transpose()?;
    let against = options
        .against
        .as_deref()
        .map(revision::check_out)
        .transpose()?;

    eprintln!("bench: building (optimised as what ships, which takes its time)");
    let only = select::executables(&suite::names(&cargo::root()), &options.filters);
    let executables = suite::build(&cargo::root(), only.as_deref())?;
    let all = list(&executables)?;
    let names = select::select(&all, &options.filters)?;
    if options.list {
        for name in names {
            println!("{name}");
        }
        return Ok(());
    }

    let fingerprint = Fingerprint::here()?;
    let mut warnings = warnings_about_the_machine();
    let new = Side {
        executables,
        names: names.clone(),
    };
    let (label, old, stored) = match (&base, &against) {
        (Some(base), _) => {
            let label = options.baseline.clone().unwrap_or_default();
            warnings.extend(warnings_about(base, &fingerprint));
            let old = Side::new(base.executables.clone(), &names)?;
            (
                Some(format!("{label} ({})", base.revision)),
                old,
                Some(base),
            )
        }
        (_, Some(tree)) => {
            eprintln!("bench: building {} in {}", tree.commit, tree.path.display());
            let old = Side::new(suite::build(&tree.path, only.as_deref())?, &names)?;
            (Some(tree.commit.clone()), old, None)
        }
        (None, None) => (None, Side::default(), None),
    };

    let (mut old_samples, new_samples) = measure(&old, &new, options.rounds)?;
    if let Some(base) = stored {
        // Without its executable there are only the numbers of back then.
        for name in names.iter().filter(|name| !old.names.contains(*name)) {
            if let Some(samples) = base.samples.get(name) {
                old_samples.insert(name.clone(), samples.clone());
            }
        }
    }
    let results = Results {
        rows: judge(&names, old_samples, new_samples, options, &old, &new)?,
        fingerprint,
        revision: baseline::revision(),
        base: label,
        warnings,
    };

    print(&results, options)?;
    if let Some(name) = &options.save {
        let place = Baseline {
            revision: results.revision.clone(),
            fingerprint: results.fingerprint.clone(),
            samples: results.samples(),
            executables: new.used(),
        }
        .save(name)?;
        eprintln!("bench: kept as {name} in {}", place.display());
    }
    verdict(&results, options.max_regression)
}

/// The names of all benchmarks: `EXECUTABLE/BENCHMARK`.
fn list(executables: &[Executable]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for executable in executables {
        for id in executable.list()? {
            names.push(format!("{}/{id}", executable.name));
        }
    }
    Ok(names)
}

/// One side of a comparison: executables, and the benchmarks in them that are wanted.
#[derive(Clone, Debug, Default)]
struct Side {
    executables: Vec<Executable>,
    names: Vec<String>,
}

impl Side {
    /// The wanted benchmarks as far as the executables have them.
    fn new(executables: Vec<Executable>, wanted: &[String]) -> Result<Self> {
        let mut names = list(&executables)?;
        names.retain(|name| wanted.contains(name));
        Ok(Self { executables, names })
    }

    /// Each executable with the benchmarks to run in it.
    fn jobs(&self) -> Vec<(&Executable, Vec<String>)> {
        let ids = |executable: &Executable| -> Vec<String> {
            let prefix = format!("{}/", executable.name);
            let id = |name: &String| name.strip_prefix(&prefix).map(String::from);
            self.names.iter().filter_map(id).collect()
        };
        let job = |executable| Some((executable, ids(executable)));
        let wanted = |(_, ids): &(&Executable, Vec<String>)| !ids.is_empty();
        self.executables
            .iter()
            .filter_map(job)
            .filter(wanted)
            .collect()
    }

    /// The executables that have a benchmark to run.
    fn used(&self) -> Vec<Executable> {
        self.jobs()
            .into_iter()
            .map(|(executable, _)| executable.clone())
            .collect()
    }

    fn only(&self, names: &[String]) -> Self {
        let mut side = self.clone();
        side.names.retain(|name| names.contains(name));
        side
    }
}

type Samples = BTreeMap<String, Vec<f64>>;

/// Measures both sides in turn.
fn measure(old: &Side, new: &Side, rounds: u64) -> Result<(Samples, Samples)> {
    let mut samples = [Samples::new(), Samples::new()];
    let jobs = [old.jobs(), new.jobs()];
    let names: std::collections::BTreeSet<&String> = jobs
        .iter()
        .flatten()
        .map(|(executable, _)| &executable.name)
        .collect();
    let per_round = jobs[0].len() + jobs[1].len();
    let mut progress = Progress::new(per_round * rounds as usize);
    for round in 0..rounds {
        for name in &names {
            // Whoever goes second may find the machine warmer: each side does half of the time.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let job = jobs[side]
                    .iter()
                    .find(|(executable, _)| executable.name == **name);
                let Some((executable, ids)) = job else {
                    continue;
                };
                progress.tell(round + 1, rounds, name);
                for (id, time) in executable.measure(ids, Pace::default())? {
                    let name = format!("{}/{id}", executable.name);
                    samples[side].entry(name).or_default().push(time);
                }
                progress.done += 1;
                if process::interrupted() {
                    return Err(Interrupted.into());
                }
            }
        }
    }
    progress.finish();
    let [old, new] = samples;
    Ok((old, new))
}

/// A line that tells how far it is and how long it will take.
struct Progress {
    started: Instant,
    total: usize,
    done: usize,
    terminal: bool,
    told_round: u64,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self {
            started: Instant::now(),
            total,
            done: 0,
            terminal: std::io::stderr().is_terminal(),
            told_round: 0,
        }
    }

    fn tell(&mut self, round: u64, rounds: u64, name: &str) {
        let left = match self.done {
            0 => "?".to_owned(),
            done => {
                let each = self.started.elapsed().as_secs_f64() / done as f64;
                seconds(Duration::from_secs_f64(each * (self.total - done) as f64))
            }
        };
        if self.terminal {
            eprint!("\r\x1b[Kbench: round {round} of {rounds}, {name}, {left} left");
            let _ = std::io::stderr().flush();
        } else if self.told_round != round {
            self.told_round = round;
            eprintln!("bench: round {round} of {rounds}, {left} left");
        }
    }

    fn finish(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        eprintln!("bench: measured in {}", seconds(self.started.elapsed()));
    }
}

/// Judges what is on both sides, measuring again what looks changed.
fn judge(
    names: &[String],
    old_samples: Samples,
    new_samples: Samples,
    options: &Options,
    old: &Side,
    new: &Side,
) -> Result<Vec<Row>> {
    let take = |samples: &Samples, name: &String| samples.get(name).cloned().unwrap_or_default();
    let pair = |old: &Samples, new: &Samples, name: &String| Pair {
        base: take(old, name),
        new: take(new, name),
    };
    let both: Vec<String> = names
        .iter()
        .filter(|name| old_samples.contains_key(*name) && new_samples.contains_key(*name))
        .cloned()
        .collect();
    let pairs = both
        .iter()
        .map(|name| pair(&old_samples, &new_samples, name))
        .collect();
    let matters = options.max_regression.unwrap_or(compare::MATTERS);
    let (pairs, judgements) = compare::confirm(pairs, matters, |indices| {
        let again: Vec<String> = indices.iter().map(|&index| both[index].clone()).collect();
        eprintln!(
            "bench: measuring again what looks changed: {}",
            again.join(", ")
        );
        let (second_old, second_new) =
            measure(&old.only(&again), &new.only(&again), options.rounds)?;
        let second = |name: &String| {
            let mut pair = pair(&second_old, &second_new, name);
            if pair.base.is_empty() {
                // Numbers of back then can't be measured again.
                pair.base = take(&old_samples, name);
            }
            pair
        };
        Ok::<_, anyhow::Error>(again.iter().map(second).collect())
    })?;
    let judged: BTreeMap<&String, _> = both.iter().zip(pairs.into_iter().zip(judgements)).collect();
    Ok(names
        .iter()
        .map(|name| match judged.get(name) {
            Some((pair, judgement)) => Row {
                name: name.clone(),
                base: pair.base.clone(),
                new: pair.new.clone(),
                judgement: Some(*judgement),
            },
            None => Row {
                name: name.clone(),
                base: take(&old_samples, name),
                new: take(&new_samples, name),
                judgement: None,
            },
        })
        .collect())
}

/// What makes times on this machine less worth now.
fn warnings_about_the_machine() -> Vec<String> {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split(' ')
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
    let mut warnings = Vec::new();
    // Our own building counts for a bit.
    if load > 1.5 * processors {
        warnings.push(format!(
            "the machine was busy when the run began: load {load} on {processors} processors"
        ));
    }
    warnings
}

fn warnings_about(base: &Baseline, here: &Fingerprint) -> Vec<String> {
    let mut warnings: Vec<String> = base
        .fingerprint
        .differences(here)
        .into_iter()
        .map(|what| format!("THE BASELINE IS FROM ANOTHER MACHINE OR TOOLCHAIN: {what}"))
        .collect();
    if base.executables.is_empty() {
        warnings.push(
            "THE BASELINE'S EXECUTABLES ARE GONE: compared with numbers of back then, which is \
             worth little on a machine that is not idle"
                .to_owned(),
        );
    }
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    warnings
}

/// Prints to stdout, and writes numbers and pictures to the build directory.
fn print(results: &Results, options: &Options) -> Result<()> {
    let json = serde_json::to_string_pretty(&results.json())? + "\n";
    if options.json {
        print!("{json}");
    } else if options.go_format {
        print!("{}", results.go());
    } else {
        print!("{}", results.table());
    }
    let directory = baseline::home();
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let files = [
        ("results.json", json),
        ("report.html", report::html(results)),
    ];
    for (name, text) in files {
        write_atomically(&directory.join(name), &text)?;
    }
    let place: PathBuf = directory.join("report.html");
    eprintln!("bench: pictures in {}", place.display());
    Ok(())
}

/// A reader finds the old file or the new one, never a part.
fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().context("a file without a directory")?;
    let mut file = tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    file.write_all(text.as_bytes())?;
    file.persist(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

fn verdict(results: &Results, limit: Option<f64>) -> Result<()> {
    let Some(limit) = limit else { return Ok(()) };
    let broken: Vec<String> = results
        .rows
        .iter()
        .filter(|row| {
            row.judgement
                .is_some_and(|judgement| judgement.breaks(limit))
        })
        .map(|row| row.name.clone())
        .collect();
    if !broken.is_empty() {
        bail!(
            "slower by more than {:.0} %: {}",
            100.0 * limit,
            broken.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_parsed() {
        assert_eq!(parse_percent("10%"), Ok(0.1));
        assert_eq!(parse_percent("2.5"), Ok(0.025));
        for wrong in ["", "%", "-1%", "0", "ten", "inf"] {
            assert!(parse_percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn jobs_are_the_wanted_benchmarks_per_executable() {
        let executable = |name: &str| Executable {
            name: name.to_owned(),
            path: PathBuf::new(),
        };
        let side = Side {
            executables: vec![executable("pubsub"), executable("router")],
            names: vec!["router/a/1".to_owned(), "router/b".to_owned()],
        };
        let jobs = side.jobs();
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].0.name, "router");
        assert_eq!(jobs[0].1, ["a/1", "b"]);
        assert_eq!(side.only(&["router/b".to_owned()]).jobs()[0].1, ["b"]);
    }

    #[test]
    fn files_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_atomically(&path, "old").unwrap();
        write_atomically(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
