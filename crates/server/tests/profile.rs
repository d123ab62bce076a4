//! CPU profiles on the debug port: what a pprof viewer gets to see.

#![cfg(feature = "cpu-profile")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use common::*;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

#[tokio::test]
async fn a_profile_shows_what_keeps_the_cpu_busy() {
    let server = start(&[]);
    let stop = Arc::new(AtomicBool::new(false));
    let busy = std::thread::Builder::new().name("busy".to_owned());
    let busy = busy.spawn({
        let stop = stop.clone();
        move || spin_until(&stop)
    });
    let (status, body) = get_bytes(server.debug_address(), "/debug/pprof/profile?seconds=1").await;
    let again = get_bytes(server.debug_address(), "/debug/pprof/profile?seconds=1");
    let meanwhile = get_bytes(server.debug_address(), "/debug/pprof/profile?seconds=1");
    let ((one, _), (other, _)) = tokio::join!(again, meanwhile);
    stop.store(true, Relaxed);
    busy.unwrap().join().unwrap();

    assert_eq!(status, 200);
    let profile = Profile::decode(&*body).expect("a profile");
    let text = |index: i64| profile.string_table[index as usize].as_str();
    assert_eq!(text(0), "");
    let types: Vec<_> = profile
        .sample_type
        .iter()
        .map(|of| (text(of.r#type), text(of.unit)))
        .collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert_eq!(profile.duration_nanos, 1_000_000_000);
    assert!(profile.time_nanos > 0 && profile.period > 0);

    let functions: BTreeMap<_, _> = profile
        .function
        .iter()
        .map(|function| (function.id, text(function.name)))
        .collect();
    let locations: BTreeMap<_, Vec<_>> = profile
        .location
        .iter()
        .map(|location| {
            let functions = location
                .line
                .iter()
                .map(|line| functions[&line.function_id]);
            (location.id, functions.collect())
        })
        .collect();
    let of_the_busy_thread = profile.sample.iter().filter(|sample| {
        sample
            .label
            .iter()
            .any(|label| (text(label.key), text(label.str)) == ("thread", "busy"))
    });
    let seen: BTreeSet<_> = of_the_busy_thread
        .flat_map(|sample| &sample.location_id)
        .flat_map(|id| &locations[id])
        .collect();
    assert!(
        seen.iter().any(|name| name.contains("spin_until")),
        "{seen:?}"
    );
    let cpu: i64 = profile.sample.iter().map(|sample| sample.value[1]).sum();
    assert!(cpu > 0);

    // one at a time: the process has one timer
    assert_eq!(
        [one, other].into_iter().collect::<BTreeSet<_>>(),
        [200, 409].into()
    );
    let (status, complaint) = get(server.debug_address(), "/debug/pprof/profile?seconds=0").await;
    assert_eq!(
        (status, complaint.as_str()),
        (400, "seconds is \"0\": allowed is 1 to 300\n")
    );
}

#[inline(never)]
fn spin_until(stop: &AtomicBool) {
    let mut value = 1_u64;
    while !stop.load(Relaxed) {
        for _ in 0..1_000 {
            value = std::hint::black_box(value.wrapping_mul(31).rotate_left(7));
        }
    }
}

async fn get_bytes(debug: SocketAddr, path: &str) -> (u16, Vec<u8>) {
    let mut socket = TcpStream::connect(debug).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    socket.read_to_end(&mut response).await.unwrap();
    let end = response
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .expect("a head");
    let status = std::str::from_utf8(&response[9..12])
        .unwrap()
        .parse()
        .unwrap();
    (status, response[end + 4..].to_vec())
}

/// `perftools.profiles.Profile`, as far as the test looks.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}
