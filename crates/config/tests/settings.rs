//! What the environment may hold and what comes of it: defaults, ranges, mistakes told all at
//! once, and a table of variables that agrees with the parser.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use config::{
    CipherSuite, Error, Kind, Ordering, Problem, Settings, Timestamps, VARIABLES, Warning,
};

const REQUIRED: [(&str, &str); 3] = [
    ("ROUTER_CA_FILE", "ca.crt"),
    ("ROUTER_CERT_FILE", "doppler.crt"),
    ("ROUTER_KEY_FILE", "doppler.key"),
];

/// The settings of the required variables and these.
fn read(variables: &[(&str, &str)]) -> Result<Settings, Error> {
    let all: HashMap<&str, &str> = REQUIRED.iter().chain(variables).copied().collect();
    Settings::read(|name| all.get(name).copied())
}

fn settings(variables: &[(&str, &str)]) -> Settings {
    read(variables).unwrap_or_else(|error| panic!("{variables:?}: {error}"))
}

/// The only problem, which must be about this variable.
fn problem(variable: &str, value: &str) -> Problem {
    let error = read(&[(variable, value)]).expect_err(&format!("{variable}={value}"));
    assert_eq!(error.problems().len(), 1, "{error}");
    let problem = error.problems()[0].clone();
    assert_eq!(problem.variable(), variable);
    let text = problem.to_string();
    assert!(text.contains(variable) && text.contains(value), "{text}");
    problem
}

#[test]
fn defaults() {
    let s = settings(&[]);
    assert_eq!(s.listen.port, 0);
    assert_eq!(s.listen.data_plane_threads.get(), 1);
    assert_eq!(s.listen.handshake_timeout, Duration::from_secs(10));
    assert_eq!(s.listen.max_connection_age, None);
    assert_eq!(s.tls.ca_file, Path::new("ca.crt"));
    assert_eq!(s.tls.cert_file, Path::new("doppler.crt"));
    assert_eq!(s.tls.key_file, Path::new("doppler.key"));
    assert_eq!(s.tls.cipher_suites, CipherSuite::ALL);
    assert_eq!(s.buffers.ingress, 10_000);
    assert_eq!(s.buffers.ingress_bytes, 64 << 20);
    assert_eq!(s.buffers.egress_v1, 1_000);
    assert_eq!(s.buffers.egress_v2, 10_000);
    assert_eq!(s.buffers.egress_bytes, 16 << 20);
    assert_eq!(s.buffers.egress_total_bytes, 256 << 20);
    assert_eq!(s.buffers.egress_batch_bytes, 256 << 10);
    assert_eq!(s.fanout, None);
    assert_eq!(s.metrics.agent_address, None);
    assert_eq!(s.metrics.interval, Some(Duration::from_secs(5)));
    assert_eq!(s.metrics.source_id, "doppler");
    assert_eq!(s.log.timestamps, Timestamps::Local);
    assert_eq!(s.pprof.port, 0);
    assert_eq!(s.drain.timeout, Duration::from_secs(10));
    assert_eq!(s.warnings, []);
}

#[test]
fn what_the_bosh_job_sets_is_understood() {
    let s = settings(&[
        ("ROUTER_PORT", "8082"),
        ("ROUTER_PPROF_PORT", "0"),
        ("INGRESS_BUFFER_SIZE", "10000"),
        ("EGRESS_BUFFER_SIZE", "1000"),
        ("AGENT_GRPC_ADDRESS", "127.0.0.1:3458"),
        (
            "ROUTER_CIPHER_SUITES",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        ),
        ("USE_RFC339", "true"),
        ("ROUTER_FANOUT_WRITER_ENABLED", "false"),
        ("ROUTER_PUBLISH_WORKERS", "0"),
    ]);
    assert_eq!(s.listen.port, 8082);
    assert_eq!(s.metrics.agent_address.as_deref(), Some("127.0.0.1:3458"));
    assert_eq!(s.log.timestamps, Timestamps::Rfc3339);
    assert_eq!(s.fanout, None);
    assert_eq!(s.warnings, []);
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let empty: Vec<(&str, &str)> = VARIABLES
        .iter()
        .filter(|v| !v.required)
        .map(|v| (v.env, ""))
        .collect();
    assert_eq!(settings(&empty), settings(&[]));

    let error = read(&[("ROUTER_CERT_FILE", "")]).unwrap_err();
    assert!(matches!(
        error.problems(),
        [Problem::Missing {
            variable: "ROUTER_CERT_FILE",
            ..
        }]
    ));
}

#[test]
fn every_mistake_is_told_at_once() {
    let error = Settings::read(|name| match name {
        "ROUTER_CERT_FILE" => Some("doppler.crt"),
        "ROUTER_PORT" => Some("70000"),
        "INGRESS_BUFFER_SIZE" => Some("-1"),
        "EGRESS_BUFFER_SIZE" => Some("many"),
        "ROUTER_PUBLISH_WORKERS" => Some("1000000"),
        "ROUTER_FANOUT_ORDERING" => Some("instance"),
        "ROUTER_CIPHER_SUITES" => Some("RC4"),
        _ => None,
    })
    .unwrap_err();
    let culprits: Vec<_> = error.problems().iter().map(Problem::variable).collect();
    assert_eq!(
        culprits,
        [
            "ROUTER_PORT",
            "ROUTER_KEY_FILE",
            "ROUTER_CA_FILE",
            "ROUTER_CIPHER_SUITES",
            "INGRESS_BUFFER_SIZE",
            "EGRESS_BUFFER_SIZE",
            "ROUTER_PUBLISH_WORKERS",
            "ROUTER_FANOUT_ORDERING",
        ]
    );
    let text = error.to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    for problem in error.problems() {
        assert!(text.contains(&problem.to_string()));
    }
}

/// Field case O10.
#[test]
fn buffer_sizes() {
    for value in ["", "0", "+0"] {
        let s = settings(&[
            ("INGRESS_BUFFER_SIZE", value),
            ("EGRESS_BUFFER_SIZE", value),
        ]);
        assert_eq!(
            (s.buffers.ingress, s.buffers.egress_v1),
            (10_000, 1_000),
            "{value:?}"
        );
    }
    let s = settings(&[("INGRESS_BUFFER_SIZE", "1"), ("EGRESS_BUFFER_SIZE", "+7")]);
    assert_eq!((s.buffers.ingress, s.buffers.egress_v1), (1, 7));
    for variable in [
        "INGRESS_BUFFER_SIZE",
        "EGRESS_BUFFER_SIZE",
        "ROUTER_EGRESS_V2_BUFFER_SIZE",
    ] {
        assert!(matches!(
            problem(variable, "-1"),
            Problem::OutOfRange { .. }
        ));
        assert!(matches!(
            problem(variable, "1e4"),
            Problem::NotANumber { .. }
        ));
    }
}

/// Field case O10.
#[test]
fn ports() {
    for variable in ["ROUTER_PORT", "ROUTER_PPROF_PORT"] {
        assert!(read(&[(variable, "65535")]).is_ok());
        for value in ["65536", "70000", "-1", "4294984378"] {
            let text = problem(variable, value).to_string();
            assert!(text.ends_with("allowed is 0 to 65535"), "{text}");
        }
        for value in ["+8097", " 8099", "http"] {
            assert!(matches!(
                problem(variable, value),
                Problem::NotANumber { .. }
            ));
        }
    }
}

/// Field case O10.
#[test]
fn only_true_and_1_are_true() {
    for variable in ["ROUTER_FANOUT_WRITER_ENABLED", "USE_RFC339"] {
        let is_true = |value| {
            let s = settings(&[(variable, value)]);
            let on = s.fanout.is_some() || s.log.timestamps == Timestamps::Rfc3339;
            (on, s.warnings.len())
        };
        for value in ["true", "1"] {
            assert_eq!(is_true(value), (true, 0), "{value:?}");
        }
        for value in ["", "false", "0"] {
            assert_eq!(is_true(value), (false, 0), "{value:?}");
        }
        for value in ["TRUE", "yes", "on", " true", "2"] {
            assert_eq!(is_true(value), (false, 1), "{value:?}");
        }
    }
}

/// Field case F3.
#[test]
fn publish_workers() {
    let workers = |value| {
        let s = settings(&[
            ("ROUTER_FANOUT_WRITER_ENABLED", "true"),
            ("ROUTER_PUBLISH_WORKERS", value),
        ]);
        s.fanout.expect("it is on").workers.get()
    };
    let cpus = std::thread::available_parallelism().unwrap().get();
    for automatic in ["", "0", "-1", "-99999999999999999999"] {
        assert_eq!(workers(automatic), cpus, "{automatic:?}");
    }
    for (value, expected) in [("1", 1), ("2", 2), ("+16", 16), ("1024", 1024)] {
        assert_eq!(workers(value), expected);
    }
    for absurd in ["1025", "1000000", "99999999999999999999"] {
        let text = problem("ROUTER_PUBLISH_WORKERS", absurd).to_string();
        assert!(text.ends_with("allowed is at most 1024"), "{text}");
    }
    assert!(matches!(
        problem("ROUTER_PUBLISH_WORKERS", "two"),
        Problem::NotANumber { .. }
    ));
}

/// Field case F3: the workers follow the CPUs that this process may use, not those of the machine.
#[cfg(target_os = "linux")]
#[test]
fn automatic_workers_respect_a_restriction_to_one_cpu() {
    use std::process::Command;

    const CHILD: &str = "CONFIG_TEST_RESTRICTED";
    if std::env::var_os(CHILD).is_some() {
        let s = settings(&[("ROUTER_FANOUT_WRITER_ENABLED", "true")]);
        assert_eq!(s.fanout.unwrap().workers.get(), 1);
        return;
    }
    // the first CPU this process may use, as taskset counts them
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    let first = allowed.trim().split([',', '-']).next().unwrap();
    let restricted = Command::new("taskset")
        .args(["-c", first])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "automatic_workers_respect_a_restriction_to_one_cpu",
        ])
        .env(CHILD, "1")
        .output();
    match restricted {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains("1 passed"),
                "{said}"
            );
        }
        Err(error) => eprintln!("skipped, no taskset here: {error}"),
    }
}

#[test]
fn ordering() {
    let ordering = |value| {
        let s = settings(&[
            ("ROUTER_FANOUT_WRITER_ENABLED", "true"),
            ("ROUTER_FANOUT_ORDERING", value),
        ]);
        s.fanout.expect("it is on").ordering
    };
    assert_eq!(ordering(""), Ordering::None);
    assert_eq!(ordering("none"), Ordering::None);
    assert_eq!(ordering("source"), Ordering::Source);
    assert_eq!(
        problem("ROUTER_FANOUT_ORDERING", "Source").to_string(),
        "ROUTER_FANOUT_ORDERING is \"Source\": allowed is none or source",
    );
}

/// Field case O8, as far as the list goes.
#[test]
fn cipher_suites() {
    const AES_128: &str = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    const AES_256: &str = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
    let suites = |value: &str| {
        settings(&[("ROUTER_CIPHER_SUITES", value)])
            .tls
            .cipher_suites
    };

    assert_eq!(suites(""), CipherSuite::ALL);
    assert_eq!(suites(AES_256), [CipherSuite::EcdheRsaAes256GcmSha384]);
    for both in [
        format!("{AES_128},{AES_256}"),
        format!("{AES_128}:{AES_256}"),
        format!("{AES_256} , {AES_128},"),
        format!("{AES_256},{AES_128},{AES_256}"),
    ] {
        assert_eq!(suites(&both), CipherSuite::ALL, "{both:?}");
    }
    assert_eq!(
        suites(&format!("{AES_128},")),
        [CipherSuite::EcdheRsaAes128GcmSha256]
    );

    let s = settings(&[("ROUTER_CIPHER_SUITES", &format!("RC4,{AES_128},DES"))]);
    assert_eq!(s.tls.cipher_suites, [CipherSuite::EcdheRsaAes128GcmSha256]);
    let skipped = |name: &str| Warning::SkippedName {
        variable: "ROUTER_CIPHER_SUITES",
        name: name.to_owned(),
    };
    assert_eq!(s.warnings, [skipped("RC4"), skipped("DES")]);

    for nothing_known in ["RC4", "RC4,DES", ",", " : "] {
        let text = problem("ROUTER_CIPHER_SUITES", nothing_known).to_string();
        assert!(text.contains(AES_128) && text.contains(AES_256), "{text}");
    }
}

#[test]
fn an_agent_address_is_never_an_error() {
    for (value, warnings) in [
        ("127.0.0.1:3458", 0),
        ("agent.example:1", 0),
        ("[::1]:3458", 0),
        ("agent", 1),
        ("a:b", 1),
    ] {
        let s = settings(&[("AGENT_GRPC_ADDRESS", value)]);
        assert_eq!(s.metrics.agent_address.as_deref(), Some(value));
        assert_eq!(s.warnings.len(), warnings, "{value:?}: {:?}", s.warnings);
    }
}

#[test]
fn zero_can_mean_never() {
    let s = settings(&[
        ("ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS", "0"),
        ("ROUTER_MAX_CONNECTION_AGE_SECONDS", "0"),
        ("ROUTER_DRAIN_TIMEOUT_MILLISECONDS", "0"),
    ]);
    assert_eq!(s.metrics.interval, None);
    assert_eq!(s.listen.max_connection_age, None);
    assert_eq!(s.drain.timeout, Duration::ZERO);

    let age = settings(&[
        ("ROUTER_MAX_CONNECTION_AGE_SECONDS", "10"),
        ("ROUTER_MAX_CONNECTION_AGE_GRACE_SECONDS", "5"),
    ]);
    let age = age.listen.max_connection_age.unwrap();
    assert_eq!((age.age.as_secs(), age.grace.as_secs()), (10, 5));
}

#[cfg(unix)]
#[test]
fn only_paths_may_be_other_than_utf8() {
    use std::os::unix::ffi::OsStringExt;

    let odd = || OsString::from_vec(vec![b'a', 0xff]);
    let read = |odd_name: &str| {
        Settings::read(|name| match name {
            _ if name == odd_name => Some(odd()),
            "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file".into()),
            _ => None,
        })
    };
    assert_eq!(
        read("ROUTER_CA_FILE").unwrap().tls.ca_file.as_os_str(),
        odd()
    );
    for variable in VARIABLES.iter().filter(|v| v.kind != Kind::Path) {
        let error = read(variable.env).unwrap_err();
        assert!(
            matches!(error.problems(), [Problem::NotUtf8 { variable: v, .. }] if *v == variable.env),
            "{error}"
        );
    }
}

/// Whatever the table says about a number is what the parser does.
#[test]
fn the_table_of_numbers_holds() {
    for variable in VARIABLES {
        let Kind::Number(number) = variable.kind else {
            continue;
        };
        assert_eq!(
            variable.default,
            number.default.to_string(),
            "{}",
            variable.env
        );
        let result = |value: i64| read(&[(variable.env, &value.to_string())]);

        assert_eq!(
            result(number.default).unwrap(),
            settings(&[]),
            "{}",
            variable.env
        );
        assert!(result(number.max).is_ok(), "{}", variable.env);
        assert!(result(number.min).is_ok(), "{}", variable.env);
        problem(variable.env, &(number.max + 1).to_string());
        if number.min > 1 || (number.min > i64::MIN && !number.zero_is_default) {
            problem(variable.env, &(number.min - 1).to_string());
        }
        if number.zero_is_default {
            assert_eq!(result(0).unwrap(), settings(&[]), "{}", variable.env);
        }
    }
}

#[test]
fn the_table_names_each_variable_once_and_is_the_whole_of_what_is_read() {
    let asked = std::cell::RefCell::new(Vec::new());
    let _ = Settings::read(|name| {
        asked.borrow_mut().push(name.to_owned());
        None::<String>
    });
    let mut asked = asked.into_inner();
    let mut listed: Vec<_> = VARIABLES.iter().map(|v| v.env.to_owned()).collect();
    asked.sort();
    listed.sort();
    assert_eq!(asked, listed);
    listed.dedup();
    assert_eq!(listed.len(), VARIABLES.len());
}

/// The README's table is what `examples/variables.rs` prints.
#[test]
fn the_readme_lists_every_variable_with_its_default_and_range() {
    let readme = include_str!("../README.md");
    for variable in VARIABLES {
        let row = readme
            .lines()
            .find(|line| line.starts_with(&format!("| `{}`", variable.env)))
            .unwrap_or_else(|| panic!("{} is missing", variable.env));
        let allowed = variable.allowed().unwrap_or_default();
        for part in [variable.default, &allowed, variable.doc] {
            assert!(row.contains(part), "{part:?} is missing in {row}");
        }
    }
}
