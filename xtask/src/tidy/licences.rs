//! The rule on licences: whoever ships the router can ship everything in it.

use super::{Finding, Tree};

/// Licences that ask for no more than being named.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Every package's licence can be fulfilled with licences on the list.
pub fn on_the_list(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &tree.packages {
        let place = format!("{} {}", package.name, package.version);
        match package.licence.as_deref() {
            None => findings.push(Finding::new(place, "states no licence")),
            Some(licence) if !allowed(licence) => findings.push(Finding::new(
                place,
                format_args!("{licence:?} is not on the list in xtask's licences.rs"),
            )),
            Some(_) => {}
        }
    }
    findings
}

/// Whether an SPDX expression can be fulfilled. `AND` binds tighter than `OR`; a slash is an old
/// way to write `OR`.
fn allowed(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let verdict = any(&mut words);
    // Something is left over only if the expression is malformed.
    verdict && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>) -> bool {
    let mut verdict = all(words);
    while words.next_if_eq(&"OR").is_some() {
        verdict |= all(words);
    }
    verdict
}

fn all(words: &mut Words<'_>) -> bool {
    let mut verdict = one(words);
    while words.next_if_eq(&"AND").is_some() {
        verdict &= one(words);
    }
    verdict
}

fn one(words: &mut Words<'_>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let verdict = any(words);
        return words.next_if_eq(&")").is_some() && verdict;
    }
    let mut licence = words.next().unwrap_or_default().to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        licence = format!("{licence} WITH {}", words.next().unwrap_or_default());
    }
    ALLOWED.contains(&licence.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::Package;
    use super::*;

    #[test]
    fn expressions_are_understood() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "ISC AND (Apache-2.0 OR ISC)",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT AND (GPL-3.0 OR MPL-2.0)",
            "GPL-2.0 OR GPL-3.0 AND MIT",
            "(MIT",
            "MIT MIT",
            "",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn a_licence_that_is_not_on_the_list_is_found() {
        let with = |licence: Option<&str>| Tree {
            files: Vec::new(),
            packages: vec![Package {
                name: "a".to_owned(),
                version: "1.0.0".to_owned(),
                licence: licence.map(String::from),
                ..Package::default()
            }],
        };
        assert_eq!(on_the_list(&with(Some("MIT"))), []);
        assert_eq!(on_the_list(&with(Some("AGPL-3.0"))).len(), 1);
        assert_eq!(on_the_list(&with(None)).len(), 1);
    }
}
