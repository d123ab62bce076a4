//! The debug port: health, readiness and metrics.

mod common;

use std::{
    collections::BTreeMap,
    net::{Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use common::*;
use loggregator::v2;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

#[tokio::test]
async fn answers_on_the_loopback_interface_only() {
    let server = start(&[]);
    let address = server.debug_address();
    assert_eq!(address.ip().to_string(), "127.0.0.1");
    assert_eq!(get(address, "/healthz").await, (200, "ok\n".to_owned()));
    let other = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
    assert!(TcpStream::connect(other).await.is_err());
}

#[tokio::test]
async fn has_the_paths_that_profile_scripts_look_for() {
    let server = start(&[]);
    let debug = server.debug_address();
    let (status, index) = get(debug, "/debug/pprof/").await;
    assert_eq!(status, 200);
    assert!(
        index.contains("profile") && index.contains("cmdline"),
        "{index}"
    );
    assert_eq!(get(debug, "/debug/pprof").await.0, 307);
    let (status, command_line) = get(debug, "/debug/pprof/cmdline").await;
    assert_eq!(status, 200);
    assert_eq!(
        command_line,
        std::env::args().collect::<Vec<_>>().join("\0")
    );
    for missing in [
        "/",
        "/debug/pprof/heap",
        "/debug/pprof/goroutine",
        "/debug/requests",
    ] {
        assert_eq!(
            get(debug, missing).await,
            (404, format!("nothing at {missing}\n"))
        );
    }
}

#[tokio::test]
async fn only_reads() {
    let server = start(&[]);
    let request = "POST /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let response = raw(server.debug_address(), request).await;
    assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
}

/// Whoever connects and says nothing is sent away, and until then costs the others nothing.
#[tokio::test]
async fn a_silent_client_is_closed() {
    let server = start(&[]);
    let mut silent = TcpStream::connect(server.debug_address()).await.unwrap();
    silent.write_all(b"GET /healthz HT").await.unwrap();
    assert_eq!(get(server.debug_address(), "/healthz").await.0, 200);
    let mut rest = Vec::new();
    let closed = time::timeout(PATIENCE, silent.read_to_end(&mut rest)).await;
    closed.expect("closed by the router").expect("in order");
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
}

/// Field case O19.
#[tokio::test]
async fn ready_exactly_while_the_grpc_port_accepts() {
    let server = start(&[("ROUTER_DRAIN_TIMEOUT_MILLISECONDS", "60000")]);
    let (grpc, debug) = (address(&server), server.debug_address());
    assert_eq!(get(debug, "/readyz").await, (200, "ready\n".to_owned()));
    TcpStream::connect(&grpc).await.expect("it accepts");

    // a subscriber that reads nothing holds the drain up
    let client = client(&server).await;
    let stalled = client.batched_receiver(firehose());
    subscriptions(&server, 1).await;
    let ring_is_in_use = || server.router().subscriptions()[0].queued > 0;
    while !ring_is_in_use() {
        client
            .send(&batch((0..50).map(|_| log("a", vec![0; 60_000]))))
            .await
            .unwrap();
    }
    let ended = Arc::new(AtomicBool::new(false));
    let drained = tokio::task::spawn_blocking({
        let ended = ended.clone();
        move || {
            server.drain();
            ended.store(true, Relaxed);
        }
    });
    let mut refused = false;
    while !refused {
        refused = TcpStream::connect(&grpc).await.is_err();
    }
    assert_eq!(get(debug, "/readyz").await.0, 503);
    assert_eq!(get(debug, "/healthz").await.0, 200);
    assert!(!ended.load(Relaxed), "the drain was to last");
    drop(stalled);
    drop(client);
    time::timeout(PATIENCE, drained)
        .await
        .expect("the drain ends")
        .unwrap();
}

/// Field cases O15 and O16, the part that a scraper sees.
#[tokio::test]
async fn every_series_is_there_from_the_start() {
    let server = start(&[("INGRESS_BUFFER_SIZE", "123")]);
    let series = scrape(server.debug_address()).await;
    let expected = [
        ("ingress_total", 0),
        ("published_total", 0),
        ("matched_total", 0),
        ("egress_total", 0),
        ("dropped_total{direction=\"ingress\"}", 0),
        ("dropped_total{direction=\"egress\"}", 0),
        ("ring_dropped_total{ring=\"ingress\"}", 0),
        ("ring_dropped_total{ring=\"egress_v1\"}", 0),
        ("ring_dropped_total{ring=\"egress_v2\"}", 0),
        ("v1_undecodable_total", 0),
        ("v1_repaired_total", 0),
        ("v1_incomplete_total", 0),
        ("subscriptions", 0),
        ("publish_panics_total", 0),
        ("refused_connections_total", 0),
        ("ingress_queued", 0),
        ("ingress_queued_bytes", 0),
        ("ring_capacity{ring=\"ingress\"}", 123),
        ("ring_capacity{ring=\"egress_v1\"}", 1_000),
        ("ring_capacity{ring=\"egress_v2\"}", 10_000),
        ("ring_capacity_bytes{ring=\"ingress\"}", 64 << 20),
        ("ring_capacity_bytes{ring=\"egress_v1\"}", 16 << 20),
        ("ring_capacity_bytes{ring=\"egress_v2\"}", 16 << 20),
    ];
    for (name, value) in expected {
        assert_eq!(series.get(name), Some(&value), "{name} in {series:#?}");
    }
}

#[tokio::test]
async fn every_series_is_documented() {
    let server = start(&[]);
    let _subscription = server.router().subscribe(&firehose(), "a peer");
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = std::fs::read_to_string(document).expect("the document is there");
    for series in scrape(server.debug_address()).await.into_keys() {
        let name = series.split('{').next().expect("a name");
        assert!(
            document.contains(&format!("`{name}`")) || document.contains(&format!("`{name}{{")),
            "{name} is not in docs/metrics.md"
        );
    }
}

/// Field case O12: which consumer is slow?
#[tokio::test]
async fn each_subscription_has_its_own_counters() {
    let server = start(&[("ROUTER_EGRESS_V2_BUFFER_SIZE", "10")]);
    let client = client(&server).await;
    let request = v2::EgressBatchRequest {
        shard_id: "a \"shard\"\nof \\ two lines".to_owned(),
        deterministic_name: "n1".to_owned(),
        selectors: lgr::client::every_kind("app")[..2].to_vec(),
        ..Default::default()
    };
    let mut fast = client.batched_receiver(request);
    subscriptions(&server, 1).await;
    let slow = server.router().subscribe(&firehose(), "10.0.0.1:4711");
    for _ in 0..5 {
        client
            .send(&batch((0..10).map(|_| log("app", "x"))))
            .await
            .unwrap();
        receive(&mut fast, 10).await;
    }

    let series = scrape(server.debug_address()).await;
    let of = |metric: &str, id: u64| {
        let start = format!("{metric}{{id=\"{id}\",");
        let mut found = series.iter().filter(|(name, _)| name.starts_with(&start));
        let (name, value) = found
            .next()
            .unwrap_or_else(|| panic!("{start} in {series:#?}"));
        assert!(found.next().is_none());
        (name.clone(), *value)
    };
    let (name, matched) = of("subscription_matched_total", slow.info().id);
    assert_eq!(matched, 50);
    assert!(
        name.contains("api=\"v2\",peer=\"10.0.0.1:4711\",shard_id=\"\""),
        "{name}"
    );
    assert_eq!(of("subscription_egress_total", slow.info().id).1, 0);
    let dropped = of("subscription_dropped_total", slow.info().id).1;
    let queued = of("subscription_queued", slow.info().id).1;
    assert_eq!((dropped, queued), (40, 10));
    assert!(of("subscription_queued_bytes", slow.info().id).1 > 0);

    let other = server.router().subscriptions()[0].info.clone();
    let (name, egress) = of("subscription_egress_total", other.id);
    assert_eq!(egress, 50);
    for label in [
        r#"shard_id="a \"shard\"\nof \\ two lines""#,
        r#"deterministic_name="n1""#,
        r#"selectors="log of app, counter of app""#,
    ] {
        assert!(name.contains(label), "{label} in {name}");
    }
    assert!(
        name.contains("peer=\"127.0.0.1:") || name.contains("peer=\"[::ffff:127.0.0.1]:"),
        "{name}"
    );
    assert_eq!(of("subscription_dropped_total", other.id).1, 0);
    assert_eq!(series["dropped_total{direction=\"egress\"}"], 40);
    assert_eq!(series["subscriptions"], 2);
}

#[cfg(not(feature = "cpu-profile"))]
#[tokio::test]
async fn without_the_feature_there_is_no_profile() {
    let server = start(&[]);
    let (status, complaint) = get(server.debug_address(), "/debug/pprof/profile?seconds=1").await;
    assert_eq!(status, 501);
    assert!(complaint.contains("cpu-profile"), "{complaint}");
}

/// Every series and its value.
async fn scrape(debug: SocketAddr) -> BTreeMap<String, u64> {
    let (status, text) = get(debug, "/metrics").await;
    assert_eq!(status, 200);
    assert!(text.ends_with("# EOF\n"), "{text}");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a whole number"))
        })
        .collect()
}

async fn raw(debug: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(debug).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).await.unwrap();
    response
}
