//! Rules on packages: who depends on whom, and from which version on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Finding, Tree};

/// A package of the dependency graph.
#[derive(Clone, Debug, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What its manifest says about its licence.
    pub licence: Option<String>,
    /// Whether it is ours.
    pub member: bool,
    /// Packages that it needs, however it needs them.
    pub dependencies: Vec<Dependency>,
}

/// A dependency as resolved.
#[derive(Clone, Debug)]
pub struct Dependency {
    /// The package depended on.
    pub name: String,
    /// Only for tests, benchmarks and examples.
    pub dev_only: bool,
}

/// Reads the graph from what `cargo metadata` prints.
///
/// # Errors
/// When a field isn't there.
pub fn from_metadata(metadata: &Value) -> Result<Vec<Package>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(String::from);
    let members: BTreeSet<_> = list(&metadata["workspace_members"])
        .iter()
        .filter_map(text)
        .collect();
    let names: BTreeMap<_, _> = list(&metadata["packages"])
        .iter()
        .filter_map(|package| Some((text(&package["id"])?, text(&package["name"])?)))
        .collect();
    let mut edges: BTreeMap<String, Vec<Dependency>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let id = text(&node["id"]).context("a node without an id")?;
        for dependency in list(&node["deps"]) {
            let target = text(&dependency["pkg"]).context("a dependency without a package")?;
            let kinds = list(&dependency["dep_kinds"]);
            edges.entry(id.clone()).or_default().push(Dependency {
                name: names.get(&target).cloned().unwrap_or(target),
                dev_only: kinds.iter().all(|kind| kind["kind"] == "dev"),
            });
        }
    }
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let id = text(&package["id"]).context("a package without an id")?;
            Ok(Package {
                name: text(&package["name"]).context("a package without a name")?,
                version: text(&package["version"]).context("a package without a version")?,
                licence: text(&package["license"]),
                member: members.contains(&id),
                dependencies: edges.remove(&id).unwrap_or_default(),
            })
        })
        .collect()
}

/// Crates that other services take singly, and the only members that each may depend on.
pub const LOWER: &[(&str, &[&str])] = &[
    ("diode", &[]),
    ("pubsub", &["pubsub-derive"]),
    ("fanout", &[]),
    ("config", &[]),
];

/// Async runtimes, and executors that are nearly one.
const RUNTIMES: &[&str] = &[
    "async-executor",
    "async-std",
    "compio",
    "futures-executor",
    "glommio",
    "monoio",
    "smol",
    "tokio",
];

/// What is Loggregator's wire, or speaks it.
const WIRE: &[&str] = &["loggregator", "prost", "tonic"];

/// diode, pubsub, fanout and config depend on no other member, on no async runtime and on nothing of
/// Loggregator. Tests, too: each is tested alone.
pub fn lower_crates_stand_alone(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for &(name, allowed) in LOWER {
        let Some(package) = member(tree, name) else {
            findings.push(Finding::new(
                name,
                "is not a member of the workspace any more",
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let other = dependency.name.as_str();
            if member(tree, other).is_some() && !allowed.contains(&other) {
                findings.push(Finding::new(
                    name,
                    format_args!("depends on {other}, but must stand alone"),
                ));
            }
        }
        for (other, path) in reachable(tree, name, true) {
            if RUNTIMES.contains(&other.as_str()) {
                findings.push(Finding::new(
                    name,
                    format_args!("pulls in the async runtime {other} ({path})"),
                ));
            }
            if WIRE.contains(&other.as_str()) {
                findings.push(Finding::new(
                    name,
                    format_args!("pulls in {other} ({path}), but must know nothing of Loggregator"),
                ));
            }
        }
    }
    findings
}

/// The network, TLS and gRPC.
const NETWORK: &[&str] = &[
    "h2",
    "hyper",
    "hyper-util",
    "mio",
    "rustls",
    "socket2",
    "tokio-rustls",
    "tonic",
];

/// The members that may know them: the two binaries, and what they share about connections.
const NETWORKED: &[&str] = &["gather", "lgr", "server"];

/// Only server and lgr know tonic, tokio's network and rustls. (`mio` and `socket2` are what tokio
/// has it by.)
pub fn network_stays_out(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in tree.packages.iter().filter(|package| package.member) {
        if NETWORKED.contains(&package.name.as_str()) {
            continue;
        }
        for (other, path) in reachable(tree, &package.name, false) {
            if NETWORK.contains(&other.as_str()) {
                findings.push(Finding::new(
                    &package.name,
                    format_args!("pulls in {other} ({path}); only {NETWORKED:?} may"),
                ));
            }
        }
    }
    findings
}

/// Versions below which something is wrong that we can't live with.
const FLOORS: &[(&str, &str, &str)] = &[
    (
        "arc-swap",
        "1.9.5",
        "`load` could return a value of another instance after address reuse before it",
    ),
    (
        "h2",
        "0.4.20",
        "earlier versions end connections over small unread frames",
    ),
    (
        "tonic",
        "0.14.9",
        "connection age and unwinding were wrong before",
    ),
];

/// The lock file holds at least these versions.
pub fn floors_hold(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for &(name, floor, reason) in FLOORS {
        let mut found = tree.packages.iter().filter(|p| p.name == name).peekable();
        if found.peek().is_none() {
            findings.push(Finding::new(
                "Cargo.lock",
                format_args!("has no {name} any more: remove its floor from this rule"),
            ));
        }
        for package in found.filter(|package| version(&package.version) < version(floor)) {
            findings.push(Finding::new(
                "Cargo.lock",
                format_args!(
                    "{name} {} is older than {floor}: {reason}; run cargo update -p {name}",
                    package.version
                ),
            ));
        }
    }
    findings
}

fn version(text: &str) -> Vec<u64> {
    let core = text.split(['-', '+']).next().unwrap_or_default();
    core.split('.')
        .map(|part| part.parse().unwrap_or(0))
        .collect()
}

fn member<'a>(tree: &'a Tree, name: &str) -> Option<&'a Package> {
    tree.packages
        .iter()
        .find(|package| package.member && package.name == name)
}

/// All packages that `start` pulls in, each with the way that leads there; with its own
/// dev-dependencies or without.
fn reachable(tree: &Tree, start: &str, with_dev: bool) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut open = vec![(start.to_owned(), start.to_owned())];
    while let Some((name, path)) = open.pop() {
        for package in tree.packages.iter().filter(|package| package.name == name) {
            for dependency in &package.dependencies {
                // What a dependency needs for its own tests never gets built.
                if dependency.dev_only && !(with_dev && name == start) {
                    continue;
                }
                let path = format!("{path} > {}", dependency.name);
                if !seen.contains_key(&dependency.name) {
                    seen.insert(dependency.name.clone(), path.clone());
                    open.push((dependency.name.clone(), path));
                }
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, member: bool, dependencies: &[(&str, bool)]) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: None,
            member,
            dependencies: dependencies
                .iter()
                .map(|&(name, dev_only)| Dependency {
                    name: name.to_owned(),
                    dev_only,
                })
                .collect(),
        }
    }

    /// A sound workspace with one more package; it replaces one of the same name.
    fn workspace(extra: Vec<Package>) -> Tree {
        let mut packages = vec![
            package("diode", true, &[("proptest", true)]),
            package("pubsub", true, &[("pubsub-derive", false)]),
            package("pubsub-derive", true, &[]),
            package("fanout", true, &[]),
            package("config", true, &[]),
            package("router", true, &[("diode", false), ("server", true)]),
            package("server", true, &[("tonic", false), ("router", false)]),
            package("tonic", false, &[("h2", false)]),
            package("h2", false, &[("tokio", true)]),
            package("proptest", false, &[]),
        ];
        packages.retain(|old| extra.iter().all(|new| new.name != old.name));
        packages.extend(extra);
        Tree {
            files: Vec::new(),
            packages,
        }
    }

    #[test]
    fn a_sound_workspace_passes() {
        let tree = workspace(vec![]);
        assert_eq!(lower_crates_stand_alone(&tree), []);
        assert_eq!(network_stays_out(&tree), []);
    }

    #[test]
    fn a_lower_crate_with_another_member_is_found() {
        let tree = workspace(vec![package("fanout", true, &[("diode", false)])]);
        let findings = lower_crates_stand_alone(&tree);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().contains("depends on diode"));
        // For its tests, too.
        let tree = workspace(vec![package("fanout", true, &[("diode", true)])]);
        assert_eq!(lower_crates_stand_alone(&tree).len(), 1);
    }

    #[test]
    fn a_lower_crate_with_a_runtime_is_found_with_the_way_there() {
        let tree = workspace(vec![
            package("diode", true, &[("waker", false)]),
            package("waker", false, &[("tokio", false)]),
        ]);
        let findings = lower_crates_stand_alone(&tree);
        assert_eq!(findings.len(), 1);
        let text = findings[0].to_string();
        assert!(text.contains("diode > waker > tokio"), "{text}");
    }

    #[test]
    fn a_lower_crate_that_is_gone_is_found() {
        let mut tree = workspace(vec![]);
        tree.packages.retain(|package| package.name != "config");
        assert_eq!(lower_crates_stand_alone(&tree).len(), 1);
    }

    #[test]
    fn a_network_in_the_pipeline_is_found() {
        let tree = workspace(vec![package("router", true, &[("tonic", false)])]);
        // tonic, and the h2 that comes with it
        assert_eq!(network_stays_out(&tree).len(), 2);
    }

    #[test]
    fn an_old_version_is_found() {
        let mut tree = workspace(vec![]);
        let with = |arc_swap: &str| {
            let new = |name: &str, version: &str| Package {
                name: name.to_owned(),
                version: version.to_owned(),
                ..Package::default()
            };
            vec![
                new("arc-swap", arc_swap),
                new("h2", "0.5.0"),
                new("tonic", "0.14.10"),
            ]
        };
        tree.packages = with("1.10.0");
        assert_eq!(floors_hold(&tree), []);
        tree.packages = with("1.9.4");
        assert_eq!(floors_hold(&tree).len(), 1);
        tree.packages = with("1.9.5");
        tree.packages.pop();
        assert_eq!(floors_hold(&tree).len(), 1);
    }

    #[test]
    fn reads_what_cargo_prints() {
        let metadata = serde_json::json!({
            "workspace_members": ["a 0.1"],
            "packages": [
                {"id": "a 0.1", "name": "a", "version": "0.1.0", "license": "MIT"},
                {"id": "b 2", "name": "b", "version": "2.0.0", "license": null},
            ],
            "resolve": {"nodes": [
                {"id": "a 0.1", "deps": [{"pkg": "b 2", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "b 2", "deps": []},
            ]},
        });
        let packages = from_metadata(&metadata).unwrap();
        assert!(packages[0].member && !packages[1].member);
        assert_eq!(packages[0].dependencies[0].name, "b");
        assert!(packages[0].dependencies[0].dev_only);
    }
}
