//! `cargo xtask tidy`: the rules of the house that no linter knows.
//!
//! Each rule is a function from the tree (its files and packages) to findings. A finding says where
//! it is, what is wrong and what would be right. Every rule has a test that shows it failing.

mod licences;
mod packages;
mod rust;
mod source;

use std::fmt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::Step;
pub use packages::Package;

/// Something that breaks a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    place: String,
    problem: String,
}

impl Finding {
    fn new(place: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self {
            place: place.to_string(),
            problem: problem.to_string(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

/// A text file of the tree.
#[derive(Clone, Debug)]
pub struct File {
    /// Relative to the root, with slashes.
    path: String,
    text: String,
}

/// What the rules look at.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: Vec<File>,
    packages: Vec<Package>,
}

/// A rule: its name, what it is for, and the function that finds what breaks it.
type Rule = (&'static str, fn(&Tree) -> Vec<Finding>);

const LAYERING: &[Rule] = &[
    (
        "lower crates stand alone",
        packages::lower_crates_stand_alone,
    ),
    (
        "the network stays in server and lgr",
        packages::network_stays_out,
    ),
    ("unsafe stays in diode", source::unsafe_stays_in_diode),
];

const HOUSE: &[Rule] = &[
    (
        "every module starts with its story",
        source::modules_have_a_story,
    ),
    ("text files are clean", source::text_is_clean),
    ("no paths of one machine", source::no_machine_paths),
    ("versions stand in one place", source::versions_in_one_place),
    ("lints are the workspace's", source::lints_are_inherited),
    ("floors of dependencies hold", packages::floors_hold),
    ("licences are on the list", licences::on_the_list),
];

/// Checks all rules, as `cargo xtask tidy` does.
///
/// # Errors
/// When a rule is broken, or the tree can't be read.
pub fn all() -> Result<Step> {
    check(&[LAYERING, HOUSE].concat())
}

/// Checks the rules on layers only.
///
/// # Errors
/// When a rule is broken, or the tree can't be read.
pub fn layering() -> Result<Step> {
    check(LAYERING)
}

fn check(rules: &[Rule]) -> Result<Step> {
    let tree = Tree::load()?;
    let mut broken = 0;
    for (name, rule) in rules {
        let findings = rule(&tree);
        println!(
            "{} {name}",
            if findings.is_empty() { "ok  " } else { "FAIL" }
        );
        for finding in &findings {
            println!("     {finding}");
        }
        broken += usize::from(!findings.is_empty());
    }
    if broken > 0 {
        bail!("{broken} of {} rules are broken", rules.len());
    }
    Ok(Step::Passed(rules.len() as u64))
}

impl Tree {
    /// The files that git knows or would add, and what cargo says about the packages.
    fn load() -> Result<Self> {
        let root = cargo::root();
        let listing = Command::new("git")
            .current_dir(&root)
            .args([
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "-z",
            ])
            .output()
            .context("cannot start git")?;
        if !listing.status.success() {
            bail!(
                "git ls-files: {}",
                String::from_utf8_lossy(&listing.stderr).trim()
            );
        }
        let listing = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
        let mut files = Vec::new();
        for path in listing.split('\0').filter(|path| !path.is_empty()) {
            // A file that was deleted but is still in the index has no text; neither has a picture.
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                let path = path.to_owned();
                files.push(File { path, text });
            }
        }
        Ok(Self {
            files,
            packages: packages::from_metadata(&cargo::metadata()?)?,
        })
    }

    fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// The manifests of the workspace's members (what is a workspace of its own has its own rules).
    fn manifests(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| {
            file.path.ends_with("/Cargo.toml") && !file.text.contains("\n[workspace]\n")
        })
    }

    #[cfg(test)]
    fn with_file(path: &str, text: &str) -> Self {
        Self {
            files: vec![File {
                path: path.to_owned(),
                text: text.to_owned(),
            }],
            packages: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_names_its_place() {
        let finding = Finding::new("crates/a/src/lib.rs:3", "is wrong");
        assert_eq!(finding.to_string(), "crates/a/src/lib.rs:3: is wrong");
    }
}
