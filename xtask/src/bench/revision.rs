//! Another revision, in a work tree of its own, to measure against.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;

use super::baseline;

/// A work tree of another commit.
#[derive(Debug)]
pub struct WorkTree {
    /// Where it is.
    pub path: PathBuf,
    /// The commit, abbreviated.
    pub commit: String,
}

/// Checks `revision` out beside the build, or finds it there from last time.
///
/// # Errors
/// When there is no such revision or it can't be checked out.
pub fn check_out(revision: &str) -> Result<WorkTree> {
    let commit = git(&[
        "rev-parse",
        "--verify",
        "--quiet",
        &format!("{revision}^{{commit}}"),
    ])
    .with_context(|| format!("there is no revision {revision:?}"))?;
    let commit: String = commit.chars().take(12).collect();
    let path = baseline::home().join("trees").join(&commit);
    // Trees that were deleted by hand, with the build directory for example, are forgotten first.
    git(&["worktree", "prune"])?;
    if !path.join("Cargo.toml").is_file() {
        let target = path
            .to_str()
            .context("the build directory's path is not UTF-8")?;
        git(&["worktree", "add", "--detach", "--force", target, &commit])?;
    }
    Ok(WorkTree { path, commit })
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .current_dir(cargo::root())
        .args(arguments)
        .output()
        .context("cannot start git")?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("git {}: {message}", arguments.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
