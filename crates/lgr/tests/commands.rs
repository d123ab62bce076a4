//! The binary as a user sees it: arguments in, lines, errors and exit codes out, against a small
//! router.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use lgr::client::every_kind;
use lgr::numbered::Number;
use loggregator::v2::{self, envelope::Message, selector::Message as Kind};
use serde_json::{Value, json};
use support::{Behaviour, CERTS, FakeRouter, wait_for};
use tonic::Status;

/// A running `lgr`.
struct Lgr {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

fn lgr(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lgr"));
    command.args(arguments);
    command
}

/// With the arguments of a connection to `router`, and patience for machines that do much else.
fn connected(router: &FakeRouter, arguments: &[&str]) -> Command {
    let mut command = lgr(arguments);
    command.args(["--peer-timeout", "60s"]);
    command.args(["--addr", &router.addr, "--certs", &CERTS.good()]);
    command
}

fn start(mut command: Command) -> Lgr {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = Some(collect(child.stdout.take().unwrap()));
    let stderr = Some(collect(child.stderr.take().unwrap()));
    Lgr {
        child,
        stdout,
        stderr,
    }
}

fn collect(pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        BufReader::new(pipe).read_to_string(&mut text).unwrap();
        text
    })
}

impl Lgr {
    /// Gives it lines, and more to come.
    fn type_in(&mut self, text: &str) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    fn interrupt(&self) {
        let kill = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
    }

    /// Waits for its end; its standard input stays open.
    fn wait(mut self) -> (Option<i32>, String, String) {
        let stdin = self.child.stdin.take();
        let mut status = None;
        wait_for("lgr to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        drop(stdin);
        let stdout = self.stdout.take().unwrap().join().unwrap();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        (status.unwrap().code(), stdout, stderr)
    }

    /// Waits for its end, which must be a good one; returns standard output and error.
    fn finish(self) -> (String, String) {
        let (code, stdout, stderr) = self.wait();
        assert_eq!(code, Some(0), "{stderr}");
        (stdout, stderr)
    }

    /// Waits for its end, which must be a failure; returns standard error.
    fn fail(self) -> String {
        let (code, _, stderr) = self.wait();
        assert_eq!(code, Some(1), "{stderr}");
        stderr
    }
}

impl Drop for Lgr {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn envelopes(router: &FakeRouter) -> Vec<v2::Envelope> {
    router
        .ingress()
        .into_iter()
        .flat_map(|batch| batch.batch)
        .collect()
}

fn payloads(router: &FakeRouter) -> Vec<String> {
    let payload = |envelope: v2::Envelope| match envelope.message {
        Some(Message::Log(log)) => String::from_utf8(log.payload).unwrap(),
        other => panic!("no log: {other:?}"),
    };
    envelopes(router).into_iter().map(payload).collect()
}

fn summary(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

fn log(text: &str) -> v2::EnvelopeBatch {
    let log = v2::Log {
        payload: text.as_bytes().to_vec(),
        r#type: 0,
    };
    let envelope = v2::Envelope {
        source_id: "app".to_owned(),
        message: Some(Message::Log(log)),
        ..Default::default()
    };
    v2::EnvelopeBatch {
        batch: vec![envelope],
    }
}

#[test]
fn certs_are_made_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("certs");
    let path = path.to_str().unwrap();
    let run = |extra: &[&str]| start(lgr(&[&["certs", path], extra].concat()));

    run(&["--identity", "extra"]).finish();
    for name in [
        "doppler",
        "metron",
        "reverselogproxy",
        "trafficcontroller",
        "agent",
        "extra",
    ] {
        assert!(
            std::path::Path::new(path)
                .join(format!("{name}.crt"))
                .exists(),
            "{name}"
        );
    }
    let error = run(&[]).fail();
    assert!(
        error.contains("ca.crt is there already") && error.contains("--force"),
        "{error}"
    );
    run(&["--force"]).finish();
    let error = run(&["--force", "--identity", "../x"]).fail();
    assert!(error.contains("`../x`"), "{error}");
}

#[test]
fn lines_become_logs_at_once_and_at_the_end() {
    let router = FakeRouter::start(Behaviour::default());
    let mut emit = start(connected(
        &router,
        &["emit", "--source-id", "app", "--tag", "a=b"],
    ));
    emit.type_in("one\n");
    wait_for("the first line", || payloads(&router) == ["one"]);
    emit.type_in("\ntwo\nno line break");
    drop(emit.child.stdin.take());
    let (_, stderr) = emit.finish();
    assert_eq!(payloads(&router), ["one", "", "two", "no line break"]);
    assert!(stderr.contains("sent 4 envelopes"), "{stderr}");
    let envelope = envelopes(&router).remove(0);
    assert_eq!((&*envelope.source_id, &*envelope.tags["a"]), ("app", "b"));
    assert!(envelope.timestamp > 1_700_000_000_000_000_000);
}

#[test]
fn generated_envelopes_by_each_call() {
    for (call, messages) in [("batch-sender", 3), ("sender", 25), ("send", 3)] {
        let router = FakeRouter::start(Behaviour::default());
        let arguments = [
            "emit",
            "--kind",
            "all",
            "--count",
            "25",
            "--batch",
            "10",
            "--call",
            call,
            "--json-summary",
        ];
        let (stdout, _) = start(connected(&router, &arguments)).finish();
        assert_eq!(
            summary(&stdout),
            json!({ "sent": 25, "messages": messages }),
            "{call}"
        );
        assert_eq!(router.ingress().len(), messages, "{call}");
        let counters = envelopes(&router)
            .iter()
            .filter(|envelope| matches!(envelope.message, Some(Message::Counter(_))))
            .count();
        assert_eq!(counters, 5, "{call}");
    }
}

#[test]
fn several_routers_take_turns() {
    let routers = [0; 2].map(|_| FakeRouter::start(Behaviour::default()));
    let mut command = connected(&routers[0], &["emit", "--kind", "log", "--count", "40"]);
    command.args(["--batch", "10", "--addr", &routers[1].addr]);
    start(command).finish();
    for router in &routers {
        assert_eq!(envelopes(router).len(), 20);
    }
}

#[test]
fn tail_shows_lines_and_json() {
    let router = FakeRouter::start(Behaviour::default());
    let lines = start(connected(&router, &["tail", "--count", "2"]));
    let objects = start(connected(&router, &["tail", "--count", "2", "--json"]));
    router.wait_for_subscribers(2);
    router.publish(&log("one"));
    router.publish(&log("two"));
    router.publish(&log("three"));

    let (stdout, stderr) = lines.finish();
    let zero = "1970-01-01T00:00:00.000000000Z";
    assert_eq!(
        stdout,
        format!("{zero} app LOG OUT one\n{zero} app LOG OUT two\n")
    );
    assert!(
        stderr.contains(&format!("subscribed to {}\n", router.addr)),
        "{stderr}"
    );
    assert!(
        stderr.contains("received 2 envelopes in 2 messages"),
        "{stderr}"
    );

    let (stdout, _) = objects.finish();
    let objects: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 2);
    assert_eq!(objects[1]["log"]["payload"], "dHdv");
}

#[test]
fn tail_asks_for_what_it_was_told() {
    let router = FakeRouter::start(Behaviour::default());
    start(connected(&router, &["tail", "--timeout", "0"])).finish();
    wait_for("a request", || {
        start(connected(&router, &["tail", "--timeout", "100ms"])).finish();
        !router.requests().is_empty()
    });
    assert_eq!(router.requests()[0].selectors, every_kind(""));

    let arguments = [
        "tail",
        "--source-id",
        "app",
        "--counter",
        "requests",
        "--gauge",
        "cpu,memory",
        "--shard-id",
        "group",
        "--deterministic-name",
        "first",
    ];
    let tail = start(connected(&router, &arguments));
    router.wait_for_subscribers(1);
    let selector = |kind| v2::Selector {
        source_id: "app".to_owned(),
        message: Some(kind),
    };
    let names = vec!["cpu".to_owned(), "memory".to_owned()];
    let expected = v2::EgressBatchRequest {
        shard_id: "group".to_owned(),
        deterministic_name: "first".to_owned(),
        selectors: vec![
            selector(Kind::Counter(v2::CounterSelector {
                name: "requests".to_owned(),
            })),
            selector(Kind::Gauge(v2::GaugeSelector { names })),
        ],
        ..Default::default()
    };
    assert_eq!(router.requests().last(), Some(&expected));
    tail.interrupt();
    tail.finish();
}

/// The way of the demo: what was sent and what arrived, by number.
#[test]
fn numbers_tell_what_was_lost_and_duplicated() {
    let router = FakeRouter::start(Behaviour {
        lose: Some(10),
        duplicate: Some(25),
        ..Behaviour::default()
    });
    let arguments = [
        "tail",
        "--numbered",
        "--expect",
        "1000",
        "--idle-timeout",
        "500ms",
        "--json-summary",
    ];
    let tail = start(connected(&router, &arguments));
    router.wait_for_subscribers(1);
    let arguments = [
        "emit",
        "--kind",
        "log",
        "--count",
        "1000",
        "--sources",
        "10",
        "--numbered",
        "--batch",
        "1",
    ];
    start(connected(&router, &arguments)).finish();
    let (stdout, _) = tail.finish();
    // Every 10th message is lost and every 25th sent twice; every 50th is both, so arrives once.
    let expected = json!({
        "received": 920, "messages": 940, "lost": 80, "duplicated": 20, "out_of_order": 0,
    });
    assert_eq!(stdout.lines().count(), 1);
    assert_eq!(summary(&stdout), expected);
}

#[test]
fn numbers_tell_what_was_overtaken() {
    let router = FakeRouter::start(Behaviour::default());
    let tail = start(connected(
        &router,
        &["tail", "--numbered", "--expect", "4", "--json-summary"],
    ));
    router.wait_for_subscribers(1);
    for (series, sequence) in [(0, 0), (1, 1), (1, 0), (0, 1)] {
        let mut batch = log("x");
        let number = Number {
            run: 1,
            series,
            sequence,
        };
        batch.batch[0]
            .tags
            .insert(lgr::numbered::TAG.to_owned(), number.to_string());
        router.publish(&batch);
    }
    let (stdout, _) = tail.finish();
    assert_eq!(summary(&stdout)["out_of_order"], 1);
    assert_eq!(summary(&stdout)["lost"], 0);
}

#[test]
fn ctrl_c_is_a_good_end() {
    let router = FakeRouter::start(Behaviour::default());
    let tail = start(connected(&router, &["tail"]));
    router.wait_for_subscribers(1);

    let arguments = ["emit", "--kind", "log", "--rate", "1000", "--json-summary"];
    let emit = start(connected(&router, &arguments));
    wait_for("some envelopes", || !router.ingress().is_empty());
    emit.interrupt();
    let (stdout, stderr) = emit.finish();
    assert_eq!(summary(&stdout)["sent"], envelopes(&router).len());
    assert!(stderr.contains("sent"), "{stderr}");

    // Nothing comes in any more, on either side.
    let lines = start(connected(&router, &["emit"]));
    std::thread::sleep(std::time::Duration::from_millis(300));
    lines.interrupt();
    lines.finish();
    tail.interrupt();
    let (stdout, stderr) = tail.finish();
    assert!(stderr.contains("received"), "{stderr}");
    assert_eq!(stdout.lines().count(), envelopes(&router).len());
}

#[test]
fn a_reader_that_goes_away_ends_tail_quietly() {
    let router = FakeRouter::start(Behaviour::default());
    let mut command = connected(&router, &["tail"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    router.wait_for_subscribers(1);
    router.publish(&log("one"));
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.ends_with("one\n"), "{line}");
    drop(stdout);
    wait_for("the end", || {
        router.publish(&log("two"));
        child.try_wait().unwrap().is_some()
    });
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert_eq!(stderr, format!("lgr: subscribed to {}\n", router.addr));
}

#[test]
fn what_fails_is_named() {
    let mut router = FakeRouter::start(Behaviour::default());
    let addr = router.addr.clone();
    for command in ["tail", "emit"] {
        let error = start(lgr(&[command, "--addr", &addr, "--certs", "absent"])).fail();
        assert!(error.contains("`lgr certs absent` makes one"), "{error}");

        let foreign = CERTS.foreign();
        let foreign = [
            command,
            "--addr",
            &addr,
            "--certs",
            &foreign,
            "--peer-timeout",
            "60s",
        ];
        let mut refused = start(lgr(&foreign));
        drop(refused.child.stdin.take());
        let error = refused.fail();
        assert!(
            error.contains(&addr) && error.contains("fatal alert"),
            "{error}"
        );

        let error = start(connected(&router, &[command, "--server-name", "other"])).fail();
        assert!(
            error.contains(&addr) && error.contains("not valid for name"),
            "{error}"
        );

        let (code, _, error) = start(lgr(&[command, "--rate", "-1", "--count", "x"])).wait();
        assert_eq!(code, Some(2), "{error}");
    }
    router.stop();
    for command in ["tail", "emit"] {
        wait_for("the port to be closed", || {
            std::net::TcpStream::connect(&addr).is_err()
        });
        let error = start(connected(&router, &[command])).fail();
        assert!(
            error.contains(&addr) && error.contains("refused"),
            "{error}"
        );
    }
}

#[test]
fn streams_that_end_early_are_errors() {
    let status = Status::unavailable("draining");
    let router = FakeRouter::start(Behaviour {
        refuse: Some(status.clone()),
        end: Some((1, status)),
        ..Behaviour::default()
    });
    let tail = start(connected(&router, &["tail"]));
    router.wait_for_subscribers(1);
    router.publish(&log("one"));
    let (code, stdout, stderr) = tail.wait();
    assert_eq!(code, Some(1));
    assert!(stdout.ends_with("one\n"), "{stdout}");
    assert!(stderr.contains("received 1 envelopes"), "{stderr}");
    let expected = format!("{} ended with UNAVAILABLE: draining", router.addr);
    assert!(stderr.contains(&expected), "{stderr}");

    let error = start(connected(&router, &["emit", "--kind", "log"])).fail();
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn tail_subscribes_again() {
    let behaviour = Behaviour {
        end: Some((1, Status::unavailable("draining"))),
        ..Default::default()
    };
    let router = FakeRouter::start(behaviour);
    let mut tail = start(connected(&router, &["tail", "--reconnect", "--count", "2"]));
    wait_for("the end", || {
        router.publish(&log("again"));
        tail.child.try_wait().unwrap().is_some()
    });
    assert_eq!(router.requests().len(), 2);
    let (stdout, stderr) = tail.finish();
    assert_eq!(stdout.lines().count(), 2);
    assert!(
        stderr.contains("ended with UNAVAILABLE: draining; next attempt"),
        "{stderr}"
    );
}

#[test]
fn tail_follows_several_routers() {
    let mut routers = [0; 2].map(|_| FakeRouter::start(Behaviour::default()));
    let mut command = connected(&routers[0], &["tail", "--count", "3"]);
    command.args(["--addr", &routers[1].addr]);
    let mut tail = start(command);
    for router in &routers {
        router.wait_for_subscribers(1);
    }
    routers[0].publish(&log("one"));
    routers[1].publish(&log("one"));
    routers[0].stop();
    wait_for("the end", || {
        routers[1].publish(&log("two"));
        tail.child.try_wait().unwrap().is_some()
    });
    let (stdout, _) = tail.finish();
    assert_eq!(stdout.lines().count(), 3);
}

fn load(router: &FakeRouter, arguments: &[&str]) -> Command {
    let mut command = connected(router, &["load", "--json", "--quiet", "--warm-up", "0"]);
    command.args(arguments);
    command
}

/// Every kind of subscriber gets exactly what it must, told apart by number.
#[test]
fn load_counts_exactly() {
    let router = FakeRouter::start(Behaviour::default());
    // The router delivers everything to everybody: what isn't selected is unexpected.
    let arguments = [
        "--producers",
        "3",
        "--connections",
        "2",
        "--sources",
        "4",
        "--batch",
        "7",
        "--count",
        "5000",
        "--kinds",
        "log:3,counter,gauge",
        "--subscribe",
        "2xfirehose",
        "--subscribe",
        "counter",
        "--subscribe",
        "source=1",
        "--subscribe",
        "firehose:stalled",
        "--strict",
    ];
    let (code, stdout, stderr) = start(load(&router, &arguments)).wait();
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("--strict"), "{stderr}");
    let report = summary(&stdout);
    assert_eq!(
        (&report["sent_total"], &report["lost"]),
        (&json!(5000), &json!(0)),
        "{report}"
    );
    // 1667, 1667 and 1666 envelopes, seven a message.
    assert_eq!(report["messages_total"], 239 + 239 + 238);
    assert_eq!(envelopes(&router).len(), 5000);

    let groups = report["groups"].as_array().unwrap();
    assert_eq!(groups[0]["expected"], 10_000);
    for group in &groups[..3] {
        assert_eq!(group["expected"], group["received"], "{group}");
        assert_eq!(
            (&group["duplicated"], &group["foreign"]),
            (&json!(0), &json!(0)),
            "{group}"
        );
    }
    assert_eq!(
        (&groups[0]["unexpected"], &groups[0]["out_of_order"]),
        (&json!(0), &json!(0))
    );
    let counters = envelopes(&router)
        .iter()
        .filter(|envelope| matches!(envelope.message, Some(Message::Counter(_))))
        .count() as u64;
    assert_eq!(groups[1]["received"], counters);
    assert_eq!(groups[1]["unexpected"], 5000 - counters);
    assert_eq!(
        (&groups[3]["received"], &groups[3]["lost"]),
        (&json!(0), &json!(5000))
    );
    assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0);
    assert!(report["tool"]["cpu_us_per_envelope"].as_f64().is_some());
}

#[test]
fn load_finds_loss_and_duplicates() {
    let router = FakeRouter::start(Behaviour {
        lose: Some(10),
        duplicate: Some(25),
        ..Behaviour::default()
    });
    let (stdout, _) = start(load(&router, &["--count", "1000", "--batch", "1"])).finish();
    let report = summary(&stdout);
    assert_eq!(
        (&report["lost"], &report["duplicated"]),
        (&json!(80), &json!(20)),
        "{report}"
    );
    assert_eq!(report["groups"][0]["received"], 920);

    let (code, ..) = start(load(&router, &["--count", "100", "--strict"])).wait();
    assert_eq!(code, Some(0));
}

#[test]
fn load_shares_the_books_of_a_shard() {
    let router = FakeRouter::start(Behaviour::default());
    let arguments = ["--count", "1000", "--subscribe", "3xfirehose:shard=a:named"];
    let (stdout, _) = start(load(&router, &arguments)).finish();
    let group = &summary(&stdout)["groups"][0];
    // This router knows no shards: each member gets everything. (On a busy machine the last
    // duplicates may come too late.)
    assert_eq!(group["received"], 1000, "{group}");
    assert!(
        (1..=2000).contains(&group["duplicated"].as_u64().unwrap()),
        "{group}"
    );
    let mut requests = router.requests();
    requests.sort_by(|a, b| a.deterministic_name.cmp(&b.deterministic_name));
    for (index, request) in requests.iter().enumerate() {
        assert_eq!(request.shard_id, "a");
        assert_eq!(request.deterministic_name, format!("member-{index}"));
    }
}

#[test]
fn load_speaks_v1() {
    for eof in [false, true] {
        let router = FakeRouter::start(Behaviour {
            eof,
            ..Behaviour::default()
        });
        let arguments = [
            "--api",
            "v1",
            "--producers",
            "2",
            "--count",
            "1000",
            "--kinds",
            "log,counter,gauge",
            "--sources",
            "3",
            "--subscribe",
            "v1",
            "--subscribe",
            "2xv1-log",
        ];
        let (stdout, _) = start(load(&router, &arguments)).finish();
        let report = summary(&stdout);
        assert_eq!(
            (&report["lost"], &report["messages_total"]),
            (&json!(0), &json!(1000)),
            "{report}"
        );
        assert_eq!(report["groups"][0]["received"], 1000, "{report}");
        assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0);
        // The filter is the router's business, and this one has none.
        let logs = &report["groups"][1];
        assert_eq!(
            logs["received"].as_u64().unwrap() + logs["unexpected"].as_u64().unwrap(),
            2000,
            "{report}"
        );
    }
    let router = FakeRouter::start(Behaviour::default());
    for (arguments, reason) in [
        (&["--api", "v1", "--kinds", "event"][..], "--kinds event"),
        (&["--api", "v1", "--batch", "2"], "--batch 2"),
        (&["--kinds", "gauge", "--subscribe", "v1"], "--kinds gauge"),
    ] {
        let error = start(load(&router, arguments)).fail();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn load_keeps_a_rate_and_says_what_it_costs() {
    let router = FakeRouter::start(Behaviour {
        eof: true,
        ..Behaviour::default()
    });
    let pid = std::process::id().to_string();
    let arguments = [
        "--rate",
        "2k",
        "--batch",
        "10",
        "--duration",
        "1s",
        "--pid",
        &pid,
        "--churn",
        "50",
    ];
    let (stdout, _) = start(load(&router, &arguments)).finish();
    let report = summary(&stdout);
    // Pacing can be late, never early.
    assert!(report["sent_total"].as_u64().unwrap() <= 2100, "{report}");
    assert_eq!(report["lost"], 0, "{report}");
    assert!(
        report["router"]["cpu_us_per_envelope"].as_f64().is_some(),
        "{report}"
    );
    assert!(
        report["router"]["resident_kib"].as_u64().unwrap() > 0,
        "{report}"
    );
    assert!(report["churned"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn load_as_a_table_with_progress() {
    let router = FakeRouter::start(Behaviour::default());
    let arguments = [
        "load",
        "--rate",
        "1000M", // more than any machine can
        "--batch",
        "1",
        "--warm-up",
        "0",
        "--duration",
        "1500ms",
    ];
    let (stdout, stderr) = start(connected(&router, &arguments)).finish();
    assert!(stdout.contains("the rate was not kept"), "{stdout}");
    assert!(
        stdout.contains(
            "
firehose "
        ),
        "{stdout}"
    );
    assert!(stderr.contains("lgr: measuring: sent "), "{stderr}");
}

#[test]
fn load_ends_with_the_report_so_far() {
    let router = FakeRouter::start(Behaviour::default());
    let load = start(load(&router, &["--rate", "1k", "--duration", "1h"]));
    wait_for("some envelopes", || router.ingress().len() > 1);
    load.interrupt();
    let (stdout, _) = load.finish();
    let report = summary(&stdout);
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["sent_total"], envelopes(&router).len());
    assert_eq!(report["lost"], 0);
}

#[test]
fn load_fails_with_peer_and_status() {
    let mut router = FakeRouter::start(Behaviour {
        end: Some((3, Status::unavailable("draining"))),
        ..Behaviour::default()
    });
    let expected = format!("{} ended with UNAVAILABLE: draining", router.addr);
    let (code, stdout, stderr) = start(load(&router, &["--rate", "1k"])).wait();
    assert_eq!(code, Some(1));
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(
        summary(&stdout)["sent_total"].as_u64().unwrap() > 0,
        "a report nevertheless"
    );

    let refusing = FakeRouter::start(Behaviour {
        refuse: Some(Status::permission_denied("not you")),
        ..Behaviour::default()
    });
    let error = start(load(&refusing, &[])).fail();
    assert!(error.contains("PERMISSION_DENIED: not you"), "{error}");

    let silent = FakeRouter::start(Behaviour {
        silent: true,
        ..Behaviour::default()
    });
    // Long enough to connect, short enough to wait for.
    let mut hasty = lgr(&["load", "--addr", &silent.addr, "--certs", &CERTS.good()]);
    hasty.args(["--count", "10", "--peer-timeout", "3s"]);
    let error = start(hasty).fail();
    assert!(
        error.contains(&format!("{}: no answer within", silent.addr)),
        "{error}"
    );

    let error = start(load(&router, &["--pid", "4294967295"])).fail();
    assert!(error.contains("--pid 4294967295"), "{error}");
    let error = start(load(&router, &["--addr", "127.0.0.1:1"])).fail();
    assert!(error.contains("one router at a time"), "{error}");
    let garbage = Behaviour {
        first: Some(vec![0xFF].into()),
        ..Behaviour::default()
    };
    let odd = FakeRouter::start(garbage);
    let error = start(load(&odd, &[])).fail();
    assert!(
        error.contains(&odd.addr) && error.contains("malformed"),
        "{error}"
    );

    let mut foreign = lgr(&["load", "--addr", &router.addr, "--certs"]);
    foreign.arg(CERTS.foreign()).args(["--peer-timeout", "60s"]);
    let error = start(foreign).fail();
    assert!(
        error.contains(&router.addr) && error.contains("fatal alert"),
        "{error}"
    );
    router.stop();
    let addr = router.addr.clone();
    wait_for("the port to be closed", || {
        std::net::TcpStream::connect(&addr).is_err()
    });
    let error = start(load(&router, &[])).fail();
    assert!(
        error.contains(&addr) && error.contains("refused"),
        "{error}"
    );
}
