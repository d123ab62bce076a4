//! Rules on the text of files.

use super::{Finding, Tree, rust};

/// The only crate that may use `unsafe`.
const UNSAFE_CRATE: &str = "crates/diode/";

/// Every library and binary but diode forbids `unsafe`, and nothing else uses it either.
pub fn unsafe_stays_in_diode(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust_files() {
        if file.path.starts_with(UNSAFE_CRATE) || file.path.starts_with("fuzz/") {
            continue;
        }
        let code = rust::code_only(&file.text);
        for (number, line) in code.lines().enumerate() {
            if words(line).any(|word| word == "unsafe") {
                findings.push(Finding::new(
                    format_args!("{}:{}", file.path, number + 1),
                    "uses `unsafe`, which only diode may: move it there, or do without",
                ));
            }
        }
        let is_root = file.path.ends_with("src/lib.rs")
            || file.path.ends_with("src/main.rs")
            || file.path.contains("/src/bin/");
        if is_root && !code.lines().any(|line| line == "#![forbid(unsafe_code)]") {
            findings.push(Finding::new(
                &file.path,
                "lacks #![forbid(unsafe_code)] under its opening comment",
            ));
        }
    }
    findings
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// Every Rust file opens with a `//!` paragraph: what it is for and how it fits.
pub fn modules_have_a_story(tree: &Tree) -> Vec<Finding> {
    tree.rust_files()
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| {
            Finding::new(
                &file.path,
                "must open with a `//!` paragraph that says what it is for",
            )
        })
        .collect()
}

/// No blanks at line ends, no carriage returns, and a newline at the end.
pub fn text_is_clean(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.split('\n').enumerate() {
            if line.ends_with([' ', '\t', '\r']) {
                findings.push(Finding::new(
                    format_args!("{}:{}", file.path, number + 1),
                    "ends with a blank or a carriage return: remove it",
                ));
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            findings.push(Finding::new(&file.path, "must end with a newline"));
        }
    }
    findings
}

/// Directories that exist on somebody's machine and not on the next one. Written in two parts, so
/// that this file passes its own rule.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/tm", "p/"),
];

/// No path of the machine that something was written on.
pub fn no_machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS {
                if has_absolute(line, path) {
                    findings.push(Finding::new(
                        format_args!("{}:{}", file.path, number + 1),
                        format_args!("names {path}, which is another place on every machine"),
                    ));
                }
            }
        }
    }
    findings
}

/// Whether `path` occurs in `line` as the start of an absolute path, not inside another one.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}".contains(c))
    })
}

/// Members take every dependency's version from `[workspace.dependencies]`.
pub fn versions_in_one_place(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.manifests() {
        let mut section = "";
        for (number, line) in file.text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
                continue;
            }
            let in_dependencies = section.ends_with("dependencies");
            if !in_dependencies || line.is_empty() || line.starts_with('#') {
                continue;
            }
            // Two crates that test each other know one another by path alone: no version, no circle.
            let by_path = line.contains("path = ") && !line.contains("version = ");
            if !line.contains("workspace = true") && !by_path {
                findings.push(Finding::new(
                    format_args!("{}:{}", file.path, number + 1),
                    "must say `workspace = true`: versions stand in the root Cargo.toml only",
                ));
            }
        }
        let table = |line: &str| line.starts_with('[') && line.contains("dependencies.");
        for (number, line) in file.text.lines().enumerate().filter(|(_, l)| table(l)) {
            findings.push(Finding::new(
                format_args!("{}:{}", file.path, number + 1),
                format_args!("write {line} as one line under its dependencies section"),
            ));
        }
    }
    findings
}

/// Every member takes the workspace's lints.
pub fn lints_are_inherited(tree: &Tree) -> Vec<Finding> {
    tree.manifests()
        .filter(|file| !file.text.contains("[lints]\nworkspace = true\n"))
        .map(|file| Finding::new(&file.path, "lacks `[lints]` with `workspace = true`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of findings in a tree of one file.
    fn count(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&Tree::with_file(path, text)).len()
    }

    #[test]
    fn unsafe_outside_of_diode_is_found() {
        let root = "//! Doc.\n#![forbid(unsafe_code)]\n";
        let rule = unsafe_stays_in_diode;
        assert_eq!(count(rule, "crates/router/src/lib.rs", root), 0);
        assert_eq!(count(rule, "crates/router/src/lib.rs", "//! Doc.\n"), 1);
        assert_eq!(count(rule, "benches/benches/a.rs", "unsafe { f() }"), 1);
        assert_eq!(count(rule, "benches/benches/a.rs", "// unsafe\nf()"), 0);
        assert_eq!(
            count(rule, "benches/benches/a.rs", "not_unsafe_at_all()"),
            0
        );
        assert_eq!(count(rule, "crates/diode/src/lib.rs", "unsafe { f() }"), 0);
        // Only quoted is not forbidden.
        let quoted = "//! Doc.\nconst A: &str = \"\n#![forbid(unsafe_code)]\n\";\n";
        assert_eq!(count(rule, "crates/router/src/lib.rs", quoted), 1);
    }

    #[test]
    fn modules_without_a_story_are_found() {
        let rule = modules_have_a_story;
        assert_eq!(count(rule, "a/src/b.rs", "//! What it is.\n"), 0);
        assert_eq!(count(rule, "a/src/b.rs", "use std::fmt;\n"), 1);
        assert_eq!(count(rule, "a/src/b.rs", "//!\n"), 1);
        assert_eq!(count(rule, "README.md", "text\n"), 0);
    }

    #[test]
    fn trailing_blanks_and_missing_newlines_are_found() {
        let rule = text_is_clean;
        assert_eq!(count(rule, "a.md", "one\ntwo\n"), 0);
        assert_eq!(count(rule, "a.md", "one \ntwo\t\nthree\r\n"), 3);
        assert_eq!(count(rule, "a.md", "one"), 1);
    }

    #[test]
    fn machine_paths_are_found() {
        let rule = no_machine_paths;
        let path = MACHINE_PATHS[0];
        assert_eq!(count(rule, "a.md", &format!("see {path}main\n")), 1);
        assert_eq!(count(rule, "a.md", &format!("see docs{path}main\n")), 0);
        assert_eq!(count(rule, "a.md", "see /var/vcap/jobs\n"), 0);
    }

    #[test]
    fn versions_in_members_are_found() {
        let rule = versions_in_one_place;
        let good = "[dependencies]\na.workspace = true\nb = { workspace = true }\n";
        assert_eq!(count(rule, "crates/a/Cargo.toml", good), 0);
        let bad = "[dependencies]\na = \"1\"\n[package]\nname = \"x\"\n";
        assert_eq!(count(rule, "crates/a/Cargo.toml", bad), 1);
        let path = "[dev-dependencies]\na = { path = \"../a\" }\n";
        assert_eq!(count(rule, "crates/b/Cargo.toml", path), 0);
        let both = "[dev-dependencies]\na = { path = \"../a\", version = \"1\" }\n";
        assert_eq!(count(rule, "crates/b/Cargo.toml", both), 1);
        let target = "[target.'cfg(x)'.dev-dependencies]\na = { version = \"1\" }\n";
        assert_eq!(count(rule, "crates/a/Cargo.toml", target), 1);
        let table = "[dependencies.a]\nversion = \"1\"\n";
        assert_eq!(count(rule, "crates/a/Cargo.toml", table), 1);
        assert_eq!(count(rule, "Cargo.toml", bad), 0);
    }

    #[test]
    fn members_without_lints_are_found() {
        let rule = lints_are_inherited;
        let good = "[lints]\nworkspace = true\n";
        assert_eq!(count(rule, "crates/a/Cargo.toml", good), 0);
        assert_eq!(count(rule, "crates/a/Cargo.toml", "[package]\n"), 1);
    }
}
