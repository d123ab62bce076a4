//! Baselines: what was measured under a name, to be compared with later.
//!
//! A baseline keeps the numbers, the machine and toolchain that they were taken on, and the
//! executables that gave them. The executables are the point: numbers of another hour say little on
//! a machine that is busier now, so a comparison runs the old code again, in turn with the new. The
//! numbers alone are compared only when the executables are gone, with a warning.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cargo;

use super::select::did_you_mean;
use super::suite::Executable;

/// Times in nanoseconds per operation, one per round, by name.
pub type Samples = BTreeMap<String, Vec<f64>>;

/// The version of the file, to be raised when older ones can't be understood any more.
const FORMAT: u64 = 1;

/// What was measured, where and with what.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// The commit, with `+` if something was changed in the work tree.
    pub revision: String,
    /// Machine and toolchain.
    pub fingerprint: Fingerprint,
    /// The numbers.
    pub samples: Samples,
    /// The executables that gave them, those that are still there.
    pub executables: Vec<Executable>,
}

/// What has to be the same for times to be comparable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fingerprint(BTreeMap<String, String>);

impl Fingerprint {
    /// The fingerprint of this machine and toolchain.
    ///
    /// # Errors
    /// When the compiler doesn't tell its version.
    pub fn here() -> Result<Self> {
        let rustc = Command::new("rustc")
            .current_dir(cargo::root())
            .arg("-vV")
            .output()
            .context("cannot start rustc")?;
        let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
        let line = |prefix: &str| {
            let found = rustc.lines().find_map(|line| line.strip_prefix(prefix));
            found.unwrap_or("unknown").trim().to_owned()
        };
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        let facts = [
            ("processor", processor()),
            ("processors", processors.to_string()),
            ("memory", memory()),
            (
                "system",
                format!("{} {}", env::consts::OS, env::consts::ARCH),
            ),
            ("rustc", line("release:")),
            ("compiler commit", line("commit-hash:")),
            ("RUSTFLAGS", env::var("RUSTFLAGS").unwrap_or_default()),
        ];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        Ok(Self(facts.into()))
    }

    /// What differs, in words.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let value = |side: &Self, name: &String| side.0.get(name).cloned().unwrap_or_default();
        names
            .into_iter()
            .filter(|name| self.0.get(*name) != other.0.get(*name))
            .map(|name| {
                format!(
                    "{name}: {:?} then, {:?} now",
                    value(self, name),
                    value(other, name)
                )
            })
            .collect()
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let get = |name: &str| self.0.get(name).map_or("?", String::as_str);
        format!(
            "{}, {} processors, {}, {}, rustc {}",
            get("processor"),
            get("processors"),
            get("memory"),
            get("system"),
            get("rustc")
        )
    }

    /// The processor's name.
    pub fn processor(&self) -> &str {
        self.0.get("processor").map_or("unknown", String::as_str)
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!(self.0)
    }

    fn from_json(value: &Value) -> Option<Self> {
        let facts = value.as_object()?;
        let fact =
            |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        facts.iter().map(fact).collect::<Option<_>>().map(Self)
    }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    line.map_or("unknown", |line| line.trim_start_matches([' ', '\t', ':']))
        .to_owned()
}

/// The memory, in whole GiB: the last digits differ from boot to boot.
fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or("unknown".to_owned(), |kib| {
        format!("{} GiB", (kib + (1 << 19)) >> 20)
    })
}

/// The commit of the work tree, with `+` if files differ from it.
pub fn revision() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(cargo::root())
            .args(arguments)
            .output();
        output.ok().filter(|output| output.status.success())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let clean = git(&["diff", "--quiet", "HEAD"]).is_some();
    let head = String::from_utf8_lossy(&head.stdout).trim().to_owned();
    head + if clean { "" } else { "+" }
}

/// Where everything is kept that `cargo xtask bench` writes.
pub fn home() -> PathBuf {
    cargo::target_dir().join("xtask-bench")
}

fn directory() -> PathBuf {
    home().join("baselines")
}

/// A name must be a plain file name.
///
/// # Errors
/// When it isn't.
pub fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        bail!(
            "{name:?} can't be a baseline's name: letters, digits, dots, dashes and underscores can"
        );
    }
    Ok(())
}

impl Baseline {
    /// Keeps it as `name`, in place of an older one of that name.
    ///
    /// # Errors
    /// When it can't be written; an older one is untouched then.
    pub fn save(&self, name: &str) -> Result<PathBuf> {
        self.save_in(&directory(), name)
    }

    fn save_in(&self, directory: &Path, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        let final_place = directory.join(name);
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        // Complete beside its place, then moved there at once; cleaned up if we don't get that far.
        let scratch = tempfile::Builder::new()
            .prefix(".unfinished-")
            .tempdir_in(directory)
            .with_context(|| format!("cannot write to {}", directory.display()))?;
        let mut executables = BTreeMap::new();
        for executable in &self.executables {
            fs::copy(&executable.path, scratch.path().join(&executable.name))
                .with_context(|| format!("cannot keep {}", executable.path.display()))?;
            executables.insert(&executable.name, &executable.name);
        }
        let about = json!({
            "format": FORMAT,
            "revision": self.revision,
            "fingerprint": self.fingerprint.to_json(),
            "unit": "nanoseconds per operation, one median per round",
            "samples": self.samples,
            "executables": executables,
        });
        let text = serde_json::to_string_pretty(&about)? + "\n";
        fs::write(scratch.path().join("baseline.json"), text)
            .context("cannot write baseline.json")?;
        let retired = tempfile::Builder::new()
            .prefix(".retired-")
            .tempdir_in(directory)?;
        if final_place.exists() {
            fs::rename(&final_place, retired.path().join("old"))
                .with_context(|| format!("cannot replace {}", final_place.display()))?;
        }
        fs::rename(scratch.keep(), &final_place)
            .with_context(|| format!("cannot move the baseline to {}", final_place.display()))?;
        Ok(final_place)
    }

    /// Reads the baseline called `name`.
    ///
    /// # Errors
    /// When there is none, naming those that there are; when it can't be understood.
    pub fn load(name: &str) -> Result<Self> {
        Self::load_from(&directory(), name)
    }

    fn load_from(directory: &Path, name: &str) -> Result<Self> {
        check_name(name)?;
        let place = directory.join(name);
        if !place.is_dir() {
            let mut known: Vec<String> = fs::read_dir(directory)
                .into_iter()
                .flatten()
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .filter(|name| !name.starts_with('.'))
                .collect();
            known.sort();
            let near = did_you_mean(name, &known);
            let all = if known.is_empty() {
                "; there are none yet: --save NAME makes one".to_owned()
            } else {
                format!("; there are {}", known.join(", "))
            };
            bail!(
                "there is no baseline {name:?}{}",
                if near.is_empty() { all } else { near }
            );
        }
        let file = place.join("baseline.json");
        let text = fs::read_to_string(&file)
            .with_context(|| format!("cannot read the baseline {}", file.display()))?;
        let about: Value = serde_json::from_str(&text)
            .with_context(|| format!("the baseline {} is damaged", file.display()))?;
        Self::from_json(&about, &place)
            .with_context(|| format!("the baseline {} is of another version", file.display()))
    }

    fn from_json(about: &Value, place: &Path) -> Option<Self> {
        if about["format"].as_u64()? != FORMAT {
            return None;
        }
        let mut samples = Samples::new();
        for (name, times) in about["samples"].as_object()? {
            let times = times
                .as_array()?
                .iter()
                .map(Value::as_f64)
                .collect::<Option<_>>()?;
            samples.insert(name.clone(), times);
        }
        let executables = about["executables"]
            .as_object()?
            .keys()
            .map(|name| Executable {
                name: name.clone(),
                path: place.join(name),
            });
        Some(Self {
            revision: about["revision"].as_str()?.to_owned(),
            fingerprint: Fingerprint::from_json(&about["fingerprint"])?,
            samples,
            executables: executables.filter(|found| found.path.is_file()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(rustc: &str) -> Fingerprint {
        Fingerprint(BTreeMap::from([("rustc".to_owned(), rustc.to_owned())]))
    }

    fn example(dir: &Path) -> Baseline {
        let path = dir.join("an-executable");
        fs::write(&path, "#!/bin/sh\n").unwrap();
        Baseline {
            revision: "0123abcd+".to_owned(),
            fingerprint: fingerprint("1.95.0"),
            samples: Samples::from([("router/router_noop".to_owned(), vec![41.5, 40.0])]),
            executables: vec![Executable {
                name: "router".to_owned(),
                path,
            }],
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let baselines = dir.path().join("baselines");
        let saved = example(dir.path());
        saved.save_in(&baselines, "base").unwrap();
        // A second time replaces the first.
        saved.save_in(&baselines, "base").unwrap();
        let loaded = Baseline::load_from(&baselines, "base").unwrap();
        assert_eq!(loaded.samples, saved.samples);
        assert_eq!(loaded.fingerprint, saved.fingerprint);
        assert_eq!(loaded.executables[0].path, baselines.join("base/router"));
        let left: Vec<_> = fs::read_dir(&baselines).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_baseline_that_cannot_be_completed_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let baselines = dir.path().join("baselines");
        let mut baseline = example(dir.path());
        baseline.save_in(&baselines, "base").unwrap();
        baseline.samples.clear();
        baseline.executables[0].path = dir.path().join("not-there");
        let error = baseline.save_in(&baselines, "base").unwrap_err();
        assert!(error.to_string().contains("not-there"), "{error}");
        let loaded = Baseline::load_from(&baselines, "base").unwrap();
        assert_eq!(loaded.samples.len(), 1);
        assert_eq!(fs::read_dir(&baselines).unwrap().count(), 1);
    }

    #[test]
    fn unknown_baselines_are_answered_with_near_ones() {
        let dir = tempfile::tempdir().unwrap();
        let load = |name: &str| {
            let error = Baseline::load_from(&dir.path().join("baselines"), name).unwrap_err();
            error.to_string()
        };
        assert!(load("base").contains("--save"), "{}", load("base"));
        let baselines = dir.path().join("baselines");
        example(dir.path()).save_in(&baselines, "before").unwrap();
        assert!(
            load("befor").contains("did you mean before"),
            "{}",
            load("befor")
        );
        assert!(
            load("other").contains("there are before"),
            "{}",
            load("other")
        );
        assert!(load("../x").contains("can't be"), "{}", load("../x"));
    }

    #[test]
    fn a_damaged_baseline_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("base");
        fs::create_dir(&place).unwrap();
        fs::write(place.join("baseline.json"), "{\"format\": 1, \"sam").unwrap();
        let error = Baseline::load_from(dir.path(), "base").unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
        fs::write(place.join("baseline.json"), "{\"format\": 99}").unwrap();
        let error = Baseline::load_from(dir.path(), "base").unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
    }

    #[test]
    fn another_toolchain_is_a_difference() {
        let then = fingerprint("1.94.0");
        assert_eq!(then.differences(&then), Vec::<String>::new());
        let differences = then.differences(&fingerprint("1.95.0"));
        assert_eq!(differences, ["rustc: \"1.94.0\" then, \"1.95.0\" now"]);
    }

    #[test]
    fn this_machine_has_a_fingerprint() {
        let here = Fingerprint::here().unwrap();
        assert_eq!(
            here.differences(&Fingerprint::here().unwrap()),
            Vec::<String>::new()
        );
        assert!(here.line().contains("rustc 1."), "{}", here.line());
    }
}
