//! The process from its start to its first connection: the report, the log, what it says and how
//! it ends when something is wrong, and the job that BOSH renders.

mod common;
#[path = "common/process.rs"]
mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpListener,
    path::Path,
};

use common::CERTIFICATES;
use process::{Ended, Process};

#[test]
fn reports_its_variables_and_none_of_their_values() {
    let mut variables = usual();
    // each value is one that can be found again
    variables.insert("ROUTER_METRIC_SOURCE_ID", "a-secret-name".to_owned());
    variables.insert("INGRESS_BUFFER_SIZE", "54321".to_owned());
    let router = start(&variables);
    router.grpc();
    router.debug();
    router.terminate();
    let Ended {
        status,
        stderr,
        stdout,
    } = router.ended();
    assert_eq!(status.code(), Some(0));
    assert!(stdout.is_empty());

    let (report, log) = stderr.split_at(1 + config::VARIABLES.len());
    let columns = |row: &str| {
        row.split("  ")
            .filter(|cell| !cell.is_empty())
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        columns(&report[0]),
        ["FIELD NAME:", "TYPE:", "ENV:", "REQUIRED:", "VALUE:"]
    );
    let starts: Vec<_> = report[0]
        .match_indices(':')
        .map(|(end, _)| report[0][..end].rfind("  ").map_or(0, |gap| gap + 2))
        .collect();
    for (row, variable) in report[1..].iter().zip(config::VARIABLES) {
        assert_eq!(columns(row)[2], variable.env, "{row}");
        assert_eq!(columns(row)[4], "(OMITTED)", "{row}");
        for start in &starts[1..] {
            assert_eq!(&row[start - 2..*start], "  ", "{row} is out of line");
        }
    }
    let all = stderr.join("\n");
    for value in [
        "a-secret-name",
        "54321",
        CERTIFICATES.path("").to_str().expect("a plain path"),
    ] {
        assert!(!all.contains(value), "{value} is in {all}");
    }
    assert!(
        !log.is_empty() && log.iter().all(|line| !line.contains("OMITTED")),
        "{log:#?}"
    );
}

/// Field case O13.
#[test]
fn each_line_has_one_timestamp() {
    // 2026/08/01 12:00:00.123456
    let local = |line: &str| {
        shape(line).starts_with("9999/99/99 99:99:99.999999 ") && count_of_times(line) == 1
    };
    // 2026-08-01T12:00:00.123456789Z
    let rfc3339 = |line: &str| {
        shape(line).starts_with("9999-99-99T99:99:99.999999999Z ") && count_of_times(line) == 1
    };
    for (value, is_right) in [
        ("false", &local as &dyn Fn(&str) -> bool),
        ("TRUE", &local),
        ("true", &rfc3339),
        ("1", &rfc3339),
    ] {
        let mut variables = usual();
        variables.insert("USE_RFC339", value.to_owned());
        let router = start(&variables);
        router.debug();
        router.terminate();
        let lines = router.ended().stderr;
        let log = &lines[1 + config::VARIABLES.len()..];
        assert!(
            log.len() >= 3 && log.iter().all(|line| is_right(line)),
            "{value}: {log:#?}"
        );
    }
}

#[test]
fn ports_are_where_harnesses_look_for_them() {
    let router = start(&usual());
    let line = router.line("grpc bound to: ");
    // the second on a machine without IPv6
    let addresses = [" grpc bound to: [::]:", " grpc bound to: 0.0.0.0:"];
    assert!(
        addresses.iter().any(|address| line.contains(address)),
        "{line}"
    );
    let line = router.line("pprof bound to: ");
    assert!(line.contains(" pprof bound to: 127.0.0.1:"), "{line}");
    assert_ne!(router.grpc().port(), 0);
    assert_ne!(router.debug().port(), 0);
}

#[test]
fn a_wrong_variable_is_named_before_the_report() {
    for (name, value, allowed) in [
        ("ROUTER_PORT", "70000", "0 to 65535"),
        ("ROUTER_PORT", "+8082", "0 to 65535"),
        ("ROUTER_PPROF_PORT", "4294984378", "0 to 65535"),
        ("INGRESS_BUFFER_SIZE", "-1", "10000"),
        ("EGRESS_BUFFER_SIZE", "many", "1000"),
        (
            "ROUTER_CIPHER_SUITES",
            "TLS_RSA_WITH_RC4_128_SHA",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ),
        ("ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS", "-5", "0 to"),
        ("ROUTER_PUBLISH_WORKERS", "1000000", "1024"),
        ("ROUTER_FANOUT_ORDERING", "random", "none or source"),
    ] {
        let mut variables = usual();
        variables.insert(name, value.to_owned());
        let Ended { status, stderr, .. } = start(&variables).ended();
        assert_eq!(status.code(), Some(1), "{name}={value}");
        assert_eq!(stderr.len(), 1, "{stderr:#?}");
        assert!(
            [name, value, allowed]
                .iter()
                .all(|part| stderr[0].contains(part)),
            "{stderr:#?}"
        );
        assert!(
            shape(&stderr[0]).starts_with("9999/99/99 99:99:99"),
            "{stderr:#?}"
        );
    }
}

#[test]
fn all_that_is_missing_is_named_at_once() {
    let none: [(&str, &str); 0] = [];
    let Ended { status, stderr, .. } = Process::start(&none).ended();
    assert_eq!(status.code(), Some(1));
    assert_eq!(stderr.len(), 3, "{stderr:#?}");
    for name in ["ROUTER_CERT_FILE", "ROUTER_KEY_FILE", "ROUTER_CA_FILE"] {
        assert!(
            stderr
                .iter()
                .any(|line| line.contains(&format!("{name} is not set"))),
            "{stderr:#?}"
        );
    }
}

#[test]
fn a_bad_file_is_named_behind_the_report() {
    for (name, file) in [
        ("ROUTER_CERT_FILE", "no-such.crt"),
        ("ROUTER_KEY_FILE", "ca.crt"),
        ("ROUTER_CA_FILE", "doppler.key"),
        ("ROUTER_KEY_FILE", "metron.key"),
    ] {
        let path = CERTIFICATES
            .path(file)
            .to_str()
            .expect("a plain path")
            .to_owned();
        let mut variables = usual();
        variables.insert(name, path.clone());
        let Ended { status, stderr, .. } = start(&variables).ended();
        assert_eq!(status.code(), Some(1), "{name}={file}");
        assert!(stderr[0].starts_with("FIELD NAME:"));
        let [line] = &stderr[1 + config::VARIABLES.len()..] else {
            panic!("{stderr:#?}")
        };
        assert!(line.contains(&path), "{line}");
    }
}

#[test]
fn a_taken_port_is_named_with_its_variable() {
    let taken = TcpListener::bind("[::]:0")
        .or_else(|_| TcpListener::bind("0.0.0.0:0"))
        .unwrap();
    let taken = (taken.local_addr().unwrap().port().to_string(), taken);
    for name in ["ROUTER_PORT", "ROUTER_PPROF_PORT"] {
        let mut variables = usual();
        variables.insert(name, taken.0.clone());
        let Ended { status, stderr, .. } = start(&variables).ended();
        assert_eq!(status.code(), Some(2), "{name}: {stderr:#?}");
        let last = stderr.last().expect("a line");
        assert!(last.contains(name) && last.contains(&taken.0), "{last}");
    }
}

/// Each variable of the rendered job is one that the router knows, each of the reference's that
/// the job sets is there, and the router starts from it.
#[test]
fn the_rendered_bosh_job_starts() {
    let job = read("bosh/bpm.yml");
    let rendered = environment(&job);
    let known: BTreeSet<_> = config::VARIABLES
        .iter()
        .map(|variable| variable.env)
        .collect();
    for name in rendered.keys() {
        assert!(
            known.contains(name.as_str()),
            "the job sets {name}, which the router does not know"
        );
    }
    let not_settable = [
        "ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS",
        "ROUTER_METRIC_SOURCE_ID",
    ];
    for variable in config::VARIABLES.iter().filter(|variable| !variable.ours) {
        assert_eq!(
            rendered.contains_key(variable.env),
            !not_settable.contains(&variable.env),
            "{}",
            variable.env
        );
    }
    let settings = config::Settings::read(|name| rendered.get(name)).expect("right values");
    assert_eq!(settings.warnings, []);
    assert_eq!(settings.listen.port, 8082);

    // the same values, but files and ports that are there
    let mut variables = rendered.clone();
    for (name, value) in usual() {
        variables.insert(name.to_owned(), value);
    }
    variables.insert("ROUTER_PORT".to_owned(), "0".to_owned());
    let router = Process::start(&variables.into_iter().collect::<Vec<_>>());
    router.grpc();
    router.terminate();
    assert_eq!(router.ended().status.code(), Some(0));
}

/// The document has a row for each variable, and none for a variable that is not there.
#[test]
fn the_bosh_document_knows_every_variable() {
    let document = read("bosh.md");
    let told: BTreeSet<_> = document
        .split('`')
        .filter(|part| {
            let is_name = part
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
            is_name && part.contains('_')
        })
        .collect();
    let known: BTreeSet<_> = config::VARIABLES
        .iter()
        .map(|variable| variable.env)
        .collect();
    assert_eq!(told, known);
}

/// The variables without which the router does not start.
fn usual() -> BTreeMap<&'static str, String> {
    [
        ("ROUTER_CA_FILE", "ca.crt"),
        ("ROUTER_CERT_FILE", "doppler.crt"),
        ("ROUTER_KEY_FILE", "doppler.key"),
    ]
    .map(|(name, file)| {
        (
            name,
            CERTIFICATES
                .path(file)
                .to_str()
                .expect("a plain path")
                .to_owned(),
        )
    })
    .into()
}

fn start(variables: &BTreeMap<&'static str, String>) -> Process {
    Process::start(&variables.iter().collect::<Vec<_>>())
}

/// A line with each digit as a 9.
fn shape(line: &str) -> String {
    line.chars()
        .map(|c| if c.is_ascii_digit() { '9' } else { c })
        .collect()
}

fn count_of_times(line: &str) -> usize {
    shape(line).matches("99:99:99").count()
}

fn read(document: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(document);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The `env` of a bpm file: names with quoted values, one a line.
fn environment(job: &str) -> BTreeMap<String, String> {
    job.lines()
        .skip_while(|line| line.trim() != "env:")
        .skip(1)
        .take_while(|line| line.starts_with("    "))
        .map(|line| {
            let (name, value) = line.trim().split_once(": ").expect("a name and a value");
            let value = value
                .strip_prefix('"')
                .and_then(|value| value.strip_suffix('"'));
            (name.to_owned(), value.expect("a quoted value").to_owned())
        })
        .collect()
}
