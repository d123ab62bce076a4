//! The life of the process: what signals do, who can hold up its end (nobody), what a crowd of
//! clients does to it, and what it says about files that it can't use.

mod common;
#[path = "common/process.rs"]
mod process;

use std::{fs, path::Path, time::Duration};

use common::*;
use lgr::{
    certs::{Authority, Files, Identity, Profile, Validity},
    client::{Client, Credentials, Ending, Options},
};
use process::{Ended, Process};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time,
};
use tonic::Code;

/// A drain that only ends by itself: whoever waits for somebody waits for ever.
const NO_DEADLINE: (&str, &str) = ("ROUTER_DRAIN_TIMEOUT_MILLISECONDS", "86400000");

/// Field case O1.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn peers_that_never_speak_do_not_hold_up_the_end() {
    let router = start(&[
        NO_DEADLINE,
        ("ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS", "86400000"),
    ]);
    let grpc = router.grpc();
    let credentials = CERTIFICATES.credentials();

    let _tcp_only = TcpStream::connect(grpc).await.unwrap();
    let mut half_a_hello = TcpStream::connect(grpc).await.unwrap();
    half_a_hello.write_all(&[22, 3, 1]).await.unwrap();
    let _tls_only = tls(grpc, &credentials).await.unwrap();
    let mut half_a_preface = tls(grpc, &credentials).await.unwrap();
    half_a_preface.write_all(b"PRI * HT").await.unwrap();
    half_a_preface.flush().await.unwrap();
    let _no_streams = client_at(grpc, Options::default()).await;
    // these two speak
    let client = client_at(grpc, Options::default()).await;
    let mut subscriber = client.batched_receiver(firehose());
    assert!(subscriber.confirmed(PATIENCE).await.unwrap());
    let mut producer = client.batch_sender();
    producer.send(&batch([log("a", "x")])).await.unwrap();
    receive(&mut subscriber, 1).await;

    router.signal("TERM");
    drained(router.ended());
    assert_eq!(ending(&mut subscriber).await, Some(Code::Unavailable));
    let status = producer.ended().await.unwrap_err();
    assert_eq!(status.code(), Some(Code::Unavailable));
}

/// Field case O2.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_was_accepted_is_delivered_before_the_end() {
    let router = start(&[NO_DEADLINE]);
    let client = client_at(router.grpc(), small_window()).await;
    let mut subscriber = client.batched_receiver(firehose());
    assert!(subscriber.confirmed(PATIENCE).await.unwrap());
    let mut producer = client_at(router.grpc(), Options::default())
        .await
        .batch_sender();
    for first in (0..5_000).step_by(100) {
        let numbers = first..first + 100;
        producer
            .send(&batch(numbers.map(|n| log("a", format!("{n:0200}")))))
            .await
            .unwrap();
    }
    assert_eq!(producer.finish().await.unwrap(), Ending::Response);

    router.signal("TERM");
    router.line("draining");
    let received = receive(&mut subscriber, 5_000).await.concat();
    for (n, envelope) in received.iter().enumerate() {
        assert_eq!(payload(envelope), format!("{n:0200}").as_bytes());
    }
    assert_eq!(ending(&mut subscriber).await, Some(Code::Unavailable));
    drained(router.ended());
}

/// Field case O2, the second signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_second_signal_ends_at_once() {
    for (first, second) in [("TERM", "TERM"), ("INT", "TERM"), ("TERM", "INT")] {
        let router = start(&[NO_DEADLINE]);
        let client = client_at(router.grpc(), small_window()).await;
        let stalled = client.batched_receiver(firehose());
        stall(&router).await;

        router.signal(first);
        let line = router.line("draining");
        assert!(line.contains(&format!("SIG{first}")), "{line}");
        router.signal(second);
        let Ended { status, stderr, .. } = router.ended();
        assert_eq!(status.code(), Some(130), "{stderr:#?}");
        assert_eq!(stderr.last(), Some(&line), "{stderr:#?}");
        drop(stalled);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn after_the_deadline_whoever_is_left_is_cut_off() {
    let router = start(&[("ROUTER_DRAIN_TIMEOUT_MILLISECONDS", "100")]);
    let client = client_at(router.grpc(), small_window()).await;
    let mut stalled = client.batched_receiver(firehose());
    stall(&router).await;

    router.signal("TERM");
    let Ended { status, stderr, .. } = router.ended();
    assert_eq!(status.code(), Some(0), "{stderr:#?}");
    assert!(
        stderr.iter().any(|line| line.contains("deadline")),
        "{stderr:#?}"
    );
    assert_ne!(ending(&mut stalled).await, Some(Code::Ok));
}

/// Whoever has seen the ports may send a signal: it drains and does not kill.
#[test]
fn a_signal_right_after_the_start_drains() {
    for (line, signal) in [
        ("grpc bound to: ", "TERM"),
        ("pprof bound to: ", "TERM"),
        ("grpc bound to: ", "INT"),
    ] {
        let router = start(&[]);
        router.line(line);
        router.signal(signal);
        drained(router.ended());
    }
}

/// Field case O3, those who say nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn silent_peers_keep_nobody_out_and_are_closed() {
    let router = start(&[("ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS", "2000")]);
    let grpc = router.grpc();
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(grpc).await.unwrap());
    }

    let client = client_at(grpc, Options::default()).await;
    let mut subscriber = client.batched_receiver(firehose());
    assert!(subscriber.confirmed(PATIENCE).await.unwrap());
    client.send(&batch([log("a", "x")])).await.unwrap();
    receive(&mut subscriber, 1).await;

    for socket in &mut silent {
        let mut rest = Vec::new();
        let closed = time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        closed.expect("it is closed").unwrap();
    }
    until_metrics_hold(&router, "\nrefused_connections_total 200\n").await;
    let lines = router.stderr();
    let told = lines.iter().filter(|line| line.contains("refused")).count();
    assert!((1..10).contains(&told), "{lines:#?}");
    // the client that has spoken is still there
    client.send(&batch([log("a", "y")])).await.unwrap();
    receive(&mut subscriber, 1).await;
}

/// Field case O3, a fleet that comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_crowd_connects_at_once() {
    let router = start(&[("ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS", "60000")]);
    let grpc = router.grpc();
    let mut crowd = JoinSet::new();
    for _ in 0..250 {
        crowd.spawn(async move {
            let patient = Options {
                connect_timeout: 2 * PATIENCE,
                ..Options::default()
            };
            let client = client_at(grpc, patient).await;
            let mut subscriber = client.batched_receiver(firehose());
            assert!(subscriber.confirmed(2 * PATIENCE).await.unwrap());
            (client, subscriber)
        });
    }
    let mut members = crowd.join_all().await;
    until_metrics_hold(&router, "\nconnections 250\n").await;
    members[0].0.send(&batch([log("a", "x")])).await.unwrap();
    for (_, subscriber) in &mut members {
        receive(subscriber, 1).await;
    }
    router.signal("TERM");
    drained(router.ended());
    for (_, subscriber) in &mut members {
        assert_eq!(ending(subscriber).await, Some(Code::Unavailable));
    }
}

/// Field case O10.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn buffer_sizes_of_zero_are_the_defaults() {
    for variables in [
        &[][..],
        &[("INGRESS_BUFFER_SIZE", "0"), ("EGRESS_BUFFER_SIZE", "0")],
        &[("INGRESS_BUFFER_SIZE", ""), ("EGRESS_BUFFER_SIZE", "")],
    ] {
        let router = start(variables);
        let (_, metrics) = get(router.debug(), "/metrics").await;
        for capacity in [
            "ring_capacity{ring=\"ingress\"} 10000\n",
            "ring_capacity{ring=\"egress_v1\"} 1000\n",
        ] {
            assert!(metrics.contains(capacity), "{metrics}");
        }

        let client = client_at(router.grpc(), Options::default()).await;
        let mut subscriber = client.batched_receiver(firehose());
        assert!(subscriber.confirmed(PATIENCE).await.unwrap());
        client.send(&batch([log("a", "x")])).await.unwrap();
        receive(&mut subscriber, 1).await;
    }
}

#[test]
fn unusable_certificate_files_are_named() {
    let authority = Authority::new("an authority").unwrap();
    let issue = |validity| {
        let profile = Profile {
            validity,
            ..Profile::default()
        };
        authority.issue("doppler", &profile).unwrap()
    };
    let good = issue(Validity::Now);
    let other = issue(Validity::Now);
    // what is wrong, with which file, and how to bring it about
    type Spoil<'a> = &'a dyn Fn(&Files);
    let cases: [(&str, &str, Spoil<'_>); 8] = [
        ("doppler.crt", "expired", &|files| {
            write(&issue(Validity::Expired), files)
        }),
        ("doppler.crt", "not valid yet", &|files| {
            write(&issue(Validity::NotYet), files)
        }),
        ("doppler.key", "does not belong to", &|files| {
            fs::write(&files.key, &other.key).unwrap()
        }),
        ("doppler.crt", "can't read", &|files| {
            fs::remove_file(&files.cert).unwrap()
        }),
        // as root, a file without permissions is still readable; a directory never is
        ("doppler.key", "can't read", &|files| {
            fs::remove_file(&files.key).unwrap();
            fs::create_dir(&files.key).unwrap();
        }),
        ("ca.crt", "does not hold", &|files| {
            fs::write(&files.ca, "").unwrap()
        }),
        ("doppler.key", "does not hold", &|files| {
            fs::write(&files.key, &good.cert).unwrap()
        }),
        ("doppler.crt", "does not hold", &|files| {
            fs::write(&files.cert, &good.cert[..good.cert.len() / 2]).unwrap()
        }),
    ];
    for (file, wrong, spoil) in cases {
        let directory = tempfile::tempdir().unwrap();
        let files = good.write(directory.path()).unwrap();
        spoil(&files);
        let Ended { status, stderr, .. } = start_with(directory.path(), &[]).ended();
        assert_eq!(status.code(), Some(1), "{file} {wrong}: {stderr:#?}");
        let [line] = log_of(&stderr) else {
            panic!("{file} {wrong}: {stderr:#?}");
        };
        assert!(line.contains(file) && line.contains(wrong), "{line}");
        assert!(line.len() < 300, "{line}");
    }
}

/// Field case O5.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn certificates_can_be_replaced() {
    let (old, new) = (
        Authority::new("old").unwrap(),
        Authority::new("new").unwrap(),
    );
    let directory = tempfile::tempdir().unwrap();
    let issue = |authority: &Authority| authority.issue("doppler", &Profile::default()).unwrap();
    let files = issue(&old).write(directory.path()).unwrap();
    let router = start_with(directory.path(), &[]);
    let from_old = member(&router, &old).await.expect("it trusts the old");
    let mut stream = from_old.batched_receiver(firehose());
    assert!(stream.confirmed(PATIENCE).await.unwrap());

    // new files alone change nothing
    issue(&new).write(directory.path()).unwrap();
    assert!(member(&router, &new).await.is_none());
    router.signal("HUP");
    router.line("certificates read again");
    let from_new = member(&router, &new).await.expect("it trusts the new");
    assert!(member(&router, &old).await.is_none());
    from_new.send(&batch([log("a", "new")])).await.unwrap();
    from_old.send(&batch([log("a", "old")])).await.unwrap();
    let received = receive(&mut stream, 2).await.concat();
    assert_eq!(received, [log("a", "new"), log("a", "old")]);

    // a key that does not fit
    let key = fs::read(&files.key).unwrap();
    fs::write(&files.key, issue(&new).key).unwrap();
    router.signal("HUP");
    let line = router.line("certificates not read again");
    assert!(line.contains("doppler.key"), "{line}");
    assert!(member(&router, &new).await.is_some());
    let (_, metrics) = get(router.debug(), "/metrics").await;
    for series in ["{result=\"done\"} 1\n", "{result=\"failed\"} 1\n"] {
        let series = format!("certificate_reloads_total{series}");
        assert!(metrics.contains(&series), "{metrics}");
    }

    // and at a restart
    fs::write(&files.key, key).unwrap();
    router.signal("TERM");
    drained(router.ended());
    let router = start_with(directory.path(), &[]);
    assert!(member(&router, &new).await.is_some());
    assert!(member(&router, &old).await.is_none());
}

/// A router with the usual certificates and these variables.
fn start(variables: &[(&str, &str)]) -> Process {
    start_with(&CERTIFICATES.path(""), variables)
}

/// A router with the certificates of a directory.
fn start_with(directory: &Path, variables: &[(&str, &str)]) -> Process {
    let files = Files::of(directory, "doppler");
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let mut all = vec![
        ("ROUTER_CERT_FILE", path(&files.cert)),
        ("ROUTER_KEY_FILE", path(&files.key)),
        ("ROUTER_CA_FILE", path(&files.ca)),
    ];
    all.extend(
        variables
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned())),
    );
    Process::start(&all)
}

/// A client with a certificate of `authority` that is really let in.
async fn member(router: &Process, authority: &Authority) -> Option<Client> {
    let identity = authority.issue("agent", &Profile::default()).unwrap();
    let credentials = Credentials::from_identity(&identity).unwrap();
    let address = router.grpc().to_string();
    let client = Client::connect(&address, &credentials, &Options::default()).await;
    // with TLS 1.3 a refusal shows only at the first call
    let client = client.ok()?;
    client.send(&batch([])).await.ok()?;
    Some(client)
}

fn write(identity: &Identity, files: &Files) {
    let directory = files.cert.parent().expect("a directory");
    identity.write(directory).unwrap();
}

/// Options of a client that takes little in advance, so that what it does not read waits in the
/// router.
fn small_window() -> Options {
    Options {
        stream_window: Some(65_535),
        connection_window: Some(65_535),
        ..Options::default()
    }
}

async fn until_metrics_hold(router: &Process, part: &str) {
    let polling = async {
        while !get(router.debug(), "/metrics").await.1.contains(part) {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    if time::timeout(PATIENCE, polling).await.is_err() {
        panic!("no {part:?} in {}", get(router.debug(), "/metrics").await.1);
    }
}

/// Sends envelopes until some wait in the ring of a subscriber that does not read.
async fn stall(router: &Process) {
    let client = client_at(router.grpc(), Options::default()).await;
    let queued = async {
        loop {
            let some = batch((0..50).map(|_| log("a", vec![0; 20_000])));
            client.send(&some).await.unwrap();
            let (_, metrics) = get(router.debug(), "/metrics").await;
            let in_ring = metrics
                .lines()
                .find(|line| line.starts_with("subscription_queued{"))
                .and_then(|line| line.rsplit_once(' '))
                .is_some_and(|(_, queued)| queued != "0");
            if in_ring {
                return;
            }
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(PATIENCE, queued)
        .await
        .expect("the ring fills");
}

/// Checks that a process has ended in order.
fn drained(ended: Ended) {
    let Ended { status, stderr, .. } = ended;
    assert_eq!(status.code(), Some(0), "{stderr:#?}");
    let last = stderr.last().expect("a line");
    assert!(last.ends_with(" drained"), "{stderr:#?}");
}

/// The lines behind the start-up report.
fn log_of(stderr: &[String]) -> &[String] {
    stderr
        .get(1 + config::VARIABLES.len()..)
        .unwrap_or_default()
}
