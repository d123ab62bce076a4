//! Calling cargo: the same cargo that runs us, from the root of the workspace.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The root of the work tree.
pub fn root() -> PathBuf {
    // Set by `cargo run`; the compiled-in path is for those who start the executable by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The directory that cargo builds into.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// A cargo command at the root, without what `cargo run` told us about ourselves.
pub fn command() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // They describe xtask, and build scripts that look at them would be run again for nothing.
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        if text == "CARGO_MANIFEST_DIR"
            || text == "CARGO_MANIFEST_PATH"
            || text.starts_with("CARGO_PKG_")
        {
            command.env_remove(&name);
        }
    }
    command
}

/// What this machine is called as a target. Naming it keeps build scripts and procedural macros, which
/// run on this machine, free of flags that are for what is tested.
///
/// # Errors
/// When the compiler doesn't tell.
pub fn host() -> Result<String> {
    let output = Command::new("rustc")
        .current_dir(root())
        .arg("-vV")
        .output()
        .context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from)
        .context("rustc does not tell its host")
}

/// The two executables that a user meets.
#[derive(Debug)]
pub struct Binaries {
    /// The router.
    pub router: PathBuf,
    /// The companion command line.
    pub lgr: PathBuf,
}

/// What to build the binaries with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Profile {
    /// Quick to build; shared with the tests.
    Dev,
    /// What users run.
    Release,
}

/// Builds the binaries `router` and `lgr` and says where they are.
///
/// # Errors
/// When the build fails.
pub fn build_binaries(profile: Profile) -> Result<Binaries> {
    let mut build = command();
    build
        .args(["build", "--package", "server", "--package", "lgr", "--bins"])
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if profile == Profile::Release {
        build.arg("--release");
    }
    let output = build.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("building router and lgr failed");
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    Ok(Binaries {
        router: executable(&messages, "router")?,
        lgr: executable(&messages, "lgr")?,
    })
}

/// Finds where cargo put the binary `name` in its JSON messages.
///
/// # Errors
/// When it isn't mentioned.
pub fn executable(messages: &str, name: &str) -> Result<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no binary {name}"))
}

/// `cargo metadata` with the dependency graph.
///
/// # Errors
/// When cargo fails or says something unintelligible.
pub fn metadata() -> Result<Value> {
    let output = command()
        .args(["metadata", "--format-version=1", "--all-features"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed");
    }
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_executable_among_the_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"router"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"router"},"executable":"/x/router"}"#,
            "\n",
        );
        assert_eq!(
            executable(messages, "router").unwrap(),
            PathBuf::from("/x/router")
        );
        let error = executable(messages, "lgr").unwrap_err();
        assert_eq!(error.to_string(), "cargo built no binary lgr");
    }
}
