//! Connections and streams that misbehave, or are many: who lags, vanishes, cancels or floods
//! costs the others nothing, and what a connection holds is bounded.

mod common;
#[path = "common/process.rs"]
mod process;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use common::*;
use h2::{Ping, Reason};
use http::{HeaderValue, Request};
use lgr::client::{BatchedReceiver, Client, Options, every_kind};
use loggregator::v2;
use process::Process;
use prost::Message as _;
use server::{Keepalive, Server};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;
use tonic::Code;

/// Field case R7.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_subscriber_that_lags_keeps_its_stream() {
    // many pings pass while it lags
    let keepalive = Keepalive {
        interval: Duration::from_millis(10),
        timeout: PATIENCE,
    };
    let server = start_with(&[("ROUTER_EGRESS_V2_BUFFER_SIZE", "100")], keepalive);
    let lagging = client_with(&server, small_window()).await;
    let mut lagging = lagging.batched_receiver(firehose());
    assert!(lagging.confirmed(PATIENCE).await.unwrap());

    let client = client(&server).await;
    let of_it = || server.router().subscriptions()[0].clone();
    while of_it().dropped < 10_000 {
        let some = batch((0..100).map(|_| log("a", vec![0; 1_000])));
        client.send(&some).await.unwrap();
    }
    time::sleep(Duration::from_millis(300)).await;

    client.send(&batch([log("a", "new")])).await.unwrap();
    let mut received = 0;
    loop {
        let some = receive(&mut lagging, 1).await.concat();
        received += some.len() as u64;
        if some.iter().any(|envelope| payload(envelope) == b"new") {
            break;
        }
    }
    assert_eq!(received, of_it().egress);
    assert_eq!(of_it().matched, received + of_it().dropped);

    let drained = tokio::task::spawn_blocking(|| server.drain());
    assert_eq!(ending(&mut lagging).await, Some(Code::Unavailable));
    assert!(drained.await.unwrap());
}

/// Field case R9.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_subscriber_that_vanishes_leaves_its_shard_to_the_others() {
    let keepalive = Keepalive {
        interval: Duration::from_millis(100),
        timeout: Duration::from_secs(3),
    };
    let server = start_with(&[], keepalive);
    let (way, cut) = way_to(server.grpc_address()).await;
    let member = |client: &Client| {
        client.batched_receiver(v2::EgressBatchRequest {
            shard_id: "g".to_owned(),
            ..firehose()
        })
    };
    let (vanishing, staying) = (client_at(way, large_window()).await, client(&server).await);
    let (mut vanishing, mut staying) = (member(&vanishing), member(&staying));
    assert!(vanishing.confirmed(PATIENCE).await.unwrap());
    assert!(staying.confirmed(PATIENCE).await.unwrap());

    cut.cancel();
    let client = client(&server).await;
    let some = batch((0..20).map(|_| log("a", vec![0; 60_000])));
    let one_left = async {
        while server.router().counters().subscriptions > 1 {
            client.send(&some).await.unwrap();
            while let Ok(next) = time::timeout(Duration::from_millis(10), staying.next()).await {
                next.unwrap().expect("it stays");
            }
        }
    };
    time::timeout(PATIENCE, one_left)
        .await
        .expect("the vanished one is found");

    client
        .send(&batch((0..100).map(|n| log("b", format!("{n}")))))
        .await
        .unwrap();
    let mut from_b = BTreeSet::new();
    while from_b.len() < 100 {
        for envelope in receive(&mut staying, 1).await.concat() {
            if envelope.source_id == "b" {
                from_b.insert(payload(&envelope).to_vec());
            }
        }
    }
    // and its connection is not kept
    let debug = server.debug_address();
    let closed = async {
        while !get(debug, "/metrics").await.1.contains("\nconnections 2\n") {
            time::sleep(Duration::from_millis(50)).await;
        }
    };
    time::timeout(PATIENCE, closed)
        .await
        .expect("the connection ends");
}

/// Field case R10: there is no such thing as too many pings, with streams or without.
#[tokio::test]
async fn pings_are_answered_however_many() {
    let server = start(&[]);
    let mut raw = Raw::connect(server.grpc_address()).await;
    for _ in 0..500 {
        raw.ping().await;
    }
    let (response, _) = raw
        .requests
        .send_request(request("/unknown"), true)
        .unwrap();
    let response = time::timeout(PATIENCE, response).await.unwrap().unwrap();
    assert_eq!(response.headers()["grpc-status"], "12");
    assert!(!raw.driver.is_finished());
}

#[tokio::test]
async fn requests_that_are_not_understood_say_why() {
    let server = start(&[]);
    let mut raw = Raw::connect(server.grpc_address()).await;
    let mut answer = async |name: &'static str, value: &'static str| {
        let mut request = request(v2::INGRESS_BATCH_SENDER);
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
        let (response, mut body) = raw.requests.send_request(request, false).unwrap();
        let empty_batch = Bytes::from_static(&[0; 5]);
        // which may come too late
        let _ = body.send_data(empty_batch, true);
        time::timeout(PATIENCE, response).await.unwrap().unwrap()
    };

    let response = answer("grpc-encoding", "gzip").await;
    assert_eq!(response.headers()["grpc-status"], "12");
    assert_eq!(response.headers()["grpc-accept-encoding"], "identity");

    let response = answer("content-type", "application/json").await;
    assert_eq!(response.status(), 415);

    let response = answer("grpc-encoding", "identity").await;
    assert_eq!(response.headers()["content-type"], "application/grpc");
    let mut body = response.into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), &[0; 5][..]);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
}

/// A producer that sends messages of a hundred envelopes is not told after each of them that it may
/// send more: that is a write, which wakes it up.
#[tokio::test]
async fn not_every_message_takes_an_update_of_the_window() {
    let server = start(&[]);
    let mut raw = Raw::connect(server.grpc_address()).await;
    let (_answer, mut body) = raw
        .requests
        .send_request(request(v2::INGRESS_BATCH_SENDER), false)
        .unwrap();
    body.reserve_capacity(1 << 30);
    raw.ping().await;
    let window = body.capacity();
    let message = batch((0..100).map(|_| log("a", vec![0; 320]))).encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    assert_eq!(message.len() / 1_000, 33);

    let mut unchanged = 0;
    for sent in 1..=30 {
        let before = body.capacity();
        body.send_data(Bytes::from(message.clone()), false).unwrap();
        let taken = || server.router().counters().ingress == 100 * sent;
        eventually("the message is taken", taken).await;
        // an update goes out with the answer to the second at the latest
        raw.ping().await;
        raw.ping().await;
        unchanged += u64::from(body.capacity() == before - message.len());
    }
    assert!((10..30).contains(&unchanged), "no update after {unchanged}");
    assert!(
        body.capacity() > window / 2,
        "all that was taken is given back"
    );
}

/// Field case R17.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn streams_opened_and_reset_cost_the_others_nothing() {
    let router = Process::start(&variables(&[]));
    let client = client_at(router.grpc(), Options::default()).await;
    let mut receiver = client.batched_receiver(firehose());
    assert!(receiver.confirmed(PATIENCE).await.unwrap());

    let mut raw = Raw::connect(router.grpc()).await;
    let mut memory = Vec::new();
    for _ in 0..20 {
        for _ in 0..500 {
            raw.open_and_reset().await.expect("it is let go on");
        }
        // all of that has been read
        raw.ping().await;
        client.send(&batch([log("a", "x")])).await.unwrap();
        receive(&mut receiver, 1).await;
        memory.push(router.memory());
    }
    // without a pause it may be told to go away, which nobody else notices
    for _ in 0..40_000 {
        if raw.open_and_reset().await.is_err() {
            break;
        }
    }
    client.send(&batch([log("a", "y")])).await.unwrap();
    receive(&mut receiver, 1).await;
    memory.push(router.memory());
    let (first, most) = (memory[0], memory.iter().max().expect("several"));
    assert!(most - first < 32 << 20, "{memory:?}");
}

/// Field case R15: what streams hold that nobody reads. They share what their rings hold of the
/// same messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unread_streams_hold_little() {
    let grown = growth(&[], 500, 4, |_| String::new()).await;
    assert!(grown < 250 << 20, "{grown} bytes");
}

/// Field case R15: here they share nothing, since each gets logs of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unread_streams_hold_no_more_than_their_rings_may() {
    let bound = [("ROUTER_EGRESS_BUFFER_BYTES", "262144")];
    let grown = growth(&bound, 100, 40, |n| n.to_string()).await;
    // its ring, a batch on its way into HTTP/2, and what is behind that
    assert!(grown < 100 * (3 * 262_144) + (32 << 20), "{grown} bytes");
}

/// By how many bytes a router has grown when so many unread streams, each of the source that
/// `source` says, have been fed `rounds` times a log of 60 KB for each. There are idle streams, too.
async fn growth(
    more: &[(&'static str, &str)],
    streams: usize,
    rounds: usize,
    source: fn(usize) -> String,
) -> u64 {
    let router = Process::start(&variables(more));
    let before = router.memory();
    let from = |source: String| v2::EgressBatchRequest {
        selectors: every_kind(&source),
        ..Default::default()
    };
    let idle = client_at(router.grpc(), Options::default()).await;
    let unread = client_at(router.grpc(), small_window()).await;
    let mut all: Vec<_> = (0..500)
        .map(|_| idle.batched_receiver(from("nobody".to_owned())))
        .chain((0..streams).map(|n| unread.batched_receiver(from(source(n)))))
        .collect();
    for stream in &mut all {
        assert!(stream.confirmed(PATIENCE).await.unwrap());
    }

    let client = client_at(router.grpc(), Options::default()).await;
    let for_each: Vec<_> = (0..streams)
        .map(|n| log(&source(n), vec![0; 60_000]))
        .collect();
    let mut most = 0;
    for _ in 0..rounds {
        for some in for_each.chunks(100) {
            client.send(&batch(some.to_vec())).await.unwrap();
            most = most.max(router.memory());
        }
    }
    most.saturating_sub(before)
}

/// Field case R18.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn under_full_load_pings_and_new_streams_are_served() {
    for variables in [
        &[][..],
        &[
            ("ROUTER_FANOUT_WRITER_ENABLED", "true"),
            ("ROUTER_PUBLISH_WORKERS", "2"),
        ],
    ] {
        let server = start(variables);
        let stop = Arc::new(AtomicBool::new(false));
        let mut crowd = JoinSet::new();
        for producer in 0..3 {
            let mut producing = client(&server).await.batch_sender();
            let mut consuming = client(&server).await.batched_receiver(firehose());
            let stop = stop.clone();
            crowd.spawn(async move {
                let some = batch((0..100).map(|_| log(&producer.to_string(), [0; 300])));
                while !stop.load(Relaxed) && producing.send(&some).await.is_ok() {}
            });
            crowd.spawn(async move { while let Ok(Some(_)) = consuming.next_raw().await {} });
        }
        eventually("load", || server.router().counters().egress > 10_000).await;

        let mut raw = Raw::connect(server.grpc_address()).await;
        for _ in 0..20 {
            raw.ping().await;
        }
        for n in 0..5 {
            let source = format!("new-{n}");
            let client = client(&server).await;
            let mut receiver = client.batched_receiver(v2::EgressBatchRequest {
                selectors: every_kind(&source),
                ..Default::default()
            });
            assert!(receiver.confirmed(PATIENCE).await.unwrap());
            // the ingress ring overruns, so a single one may be lost
            let mut arrived = false;
            while !arrived {
                client.send(&batch([log(&source, "x")])).await.unwrap();
                let next = time::timeout(Duration::from_millis(20), receiver.next()).await;
                arrived = next.is_ok();
            }
        }
        stop.store(true, Relaxed);
        crowd.shutdown().await;
    }
}

/// Field case R19: nobody's stream ends with OK, both ends get new connections, and what is lost
/// is no more than what was on its way when a connection was cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn old_connections_are_replaced_at_little_loss() {
    const ENOUGH: usize = 400;

    let server = start(&[
        ("ROUTER_MAX_CONNECTION_AGE_SECONDS", "1"),
        ("ROUTER_MAX_CONNECTION_AGE_GRACE_SECONDS", "1"),
    ]);
    let (mut cuts, mut lost) = (0, 0);
    let mut consumer = subscriber(&server).await;
    let mut producer = client(&server).await.batch_sender();
    // one at a time, until both ends have been cut off often enough to tell
    let mut sent = 0;
    while cuts < 3 || sent < ENOUGH {
        let number = sent.to_string();
        let envelope = batch([log("a", number.clone())]);
        if producer.send(&envelope).await.is_err() {
            cuts += 1;
            producer = client(&server).await.batch_sender();
            continue;
        }
        sent += 1;
        let arrived = async {
            loop {
                let received = tokio::select! {
                    received = consumer.next() => received,
                    ended = producer.ended() => return Err(ended.map(drop)),
                };
                let batch = received.map_err(Err)?.expect("not OK");
                if payload(&batch.batch[0]) == number.as_bytes() {
                    return Ok(());
                }
            }
        };
        let arrived = time::timeout(PATIENCE, arrived).await.expect("an end");
        if let Err(cut) = arrived {
            // it may have been on its way through either connection
            cut.expect_err("no stream ends with OK");
            (cuts, lost) = (cuts + 1, lost + 1);
            consumer = subscriber(&server).await;
            producer = client(&server).await.batch_sender();
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    assert!(lost <= cuts, "{lost} of {sent} lost at {cuts} cuts");
    let counters = server.router().counters();
    assert_eq!(counters.panics, 0);
}

/// Field case O11, the part on cancels.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn cancels_and_broken_connections_are_no_news() {
    let router = Process::start(&variables(&[]));
    let mut client = client_at(router.grpc(), Options::default()).await;
    router.debug();
    let lines = router.stderr().len();
    for n in 0..300 {
        let mut receiver = client.batched_receiver(firehose());
        assert!(receiver.confirmed(PATIENCE).await.unwrap());
        let mut producer = client.batch_sender();
        producer.send(&batch([log("a", "x")])).await.unwrap();
        if n % 10 == 0 {
            // with streams on it
            client = client_at(router.grpc(), Options::default()).await;
        }
    }
    router.terminate();
    let log = &router.ended().stderr[lines..];
    let [draining, drained] = log else {
        panic!("{log:#?}");
    };
    assert!(draining.contains("draining") && drained.contains("drained"));
}

/// Field case O20: connections of one stream each, and as many streams on a few connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn many_connections_get_what_many_streams_get() {
    let server = start(&[]);
    let mut streams = Vec::new();
    for connections in [100, 2] {
        let mut joining = JoinSet::new();
        for _ in 0..connections {
            let client = client(&server).await;
            joining.spawn(async move {
                let mut streams = Vec::new();
                for _ in 0..100 / connections {
                    let mut stream = client.batched_receiver(firehose());
                    assert!(stream.confirmed(PATIENCE).await.unwrap());
                    streams.push(stream);
                }
                streams
            });
        }
        streams.extend(joining.join_all().await.into_iter().flatten());
    }
    assert_eq!(server.router().counters().subscriptions, 200);
    let client = client(&server).await;
    for round in 0..20 {
        let some = batch((0..10).map(|n| log("a", format!("{round} {n}"))));
        client.send(&some).await.unwrap();
        for stream in &mut streams {
            assert_eq!(receive(stream, 10).await.concat(), some.batch);
        }
    }
}

async fn subscriber(server: &Server) -> BatchedReceiver {
    let mut subscriber = client(server).await.batched_receiver(firehose());
    assert!(subscriber.confirmed(PATIENCE).await.unwrap());
    subscriber
}

fn start_with(variables: &[(&'static str, &str)], keepalive: Keepalive) -> Server {
    Server::start_with(&settings(variables), keepalive).expect("the router starts")
}

/// The variables of a router that is a process of its own.
fn variables(more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let path = |file| {
        CERTIFICATES
            .path(file)
            .to_str()
            .expect("a plain path")
            .to_owned()
    };
    let mut all = vec![
        ("ROUTER_CA_FILE", path("ca.crt")),
        ("ROUTER_CERT_FILE", path("doppler.crt")),
        ("ROUTER_KEY_FILE", path("doppler.key")),
    ];
    all.extend(
        more.iter()
            .map(|(name, value)| (*name, (*value).to_owned())),
    );
    all
}

/// Options of a client that takes little in advance.
fn small_window() -> Options {
    Options {
        stream_window: Some(65_535),
        connection_window: Some(65_535),
        ..Options::default()
    }
}

/// Options of a client that takes in advance whatever there is, so that buffers fill up to the
/// router's socket.
fn large_window() -> Options {
    Options {
        stream_window: Some(1 << 30),
        connection_window: Some(1 << 30),
        ..Options::default()
    }
}

/// A way to the router for one connection. Once it is cut, neither side hears of the other any
/// more, and neither is told.
async fn way_to(router: SocketAddr) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cut = CancellationToken::new();
    let when_cut = cut.clone();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut router = TcpStream::connect(("127.0.0.1", router.port()))
            .await
            .unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut router) => {}
            // the sockets stay open
            () = when_cut.cancelled() => std::future::pending().await,
        }
    });
    (address, cut)
}

/// A connection without a gRPC library, for what none would do.
struct Raw {
    requests: h2::client::SendRequest<Bytes>,
    pings: h2::PingPong,
    driver: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Raw {
    async fn connect(router: SocketAddr) -> Self {
        let router = SocketAddr::from(([127, 0, 0, 1], router.port()));
        let socket = tls(router, &CERTIFICATES.credentials()).await.unwrap();
        let (requests, mut connection) = h2::client::handshake(socket).await.unwrap();
        let pings = connection.ping_pong().expect("taken only here");
        Self {
            requests,
            pings,
            driver: tokio::spawn(connection),
        }
    }

    async fn open_and_reset(&mut self) -> Result<(), h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        let path = v2::EGRESS_BATCHED_RECEIVER;
        let (_, mut body) = requests.send_request(request(path), false)?;
        body.send_reset(Reason::CANCEL);
        Ok(())
    }

    async fn ping(&mut self) {
        let answer = time::timeout(PATIENCE, self.pings.ping(Ping::opaque())).await;
        answer.expect("an answer").expect("a live connection");
    }
}

fn request(path: &str) -> Request<()> {
    Request::post(format!("https://doppler{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}
