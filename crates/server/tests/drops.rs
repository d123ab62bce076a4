//! Lost envelopes in the log: every one of them, on few lines.

mod common;
#[path = "common/process.rs"]
mod process;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::*;
use lgr::client::{Client, Options};
use loggregator::v2;
use process::Process;

const SLOW: usize = 10;
const CANCELS: usize = 500;

/// Field case O11.
#[tokio::test]
async fn few_lines_tell_all_losses() {
    let file = |name| {
        CERTIFICATES
            .path(name)
            .to_str()
            .expect("a plain path")
            .to_owned()
    };
    let router = Process::start(&[
        ("ROUTER_CA_FILE", file("ca.crt")),
        ("ROUTER_CERT_FILE", file("doppler.crt")),
        ("ROUTER_KEY_FILE", file("doppler.key")),
        ("ROUTER_EGRESS_V2_BUFFER_SIZE", "100".to_owned()),
    ]);
    let (grpc, debug) = (router.grpc().to_string(), router.debug());
    let client = async || {
        let options = Options {
            stream_window: Some(65_535),
            ..Options::default()
        };
        Client::connect(&grpc, &CERTIFICATES.credentials(), &options)
            .await
            .expect("a router")
    };

    let consumer = client().await;
    let slow: Vec<_> = (0..SLOW)
        .map(|index| {
            consumer.batched_receiver(v2::EgressBatchRequest {
                shard_id: format!("shard-{index}"),
                ..firehose()
            })
        })
        .collect();
    let begun = Instant::now();
    let producer = client().await;
    let mut cancels = 0;
    while begun.elapsed() < Duration::from_secs(3) || cancels < CANCELS {
        producer
            .send(&batch((0..100).map(|_| log("a", vec![b'x'; 1_000]))))
            .await
            .unwrap();
        for _ in 0..5 {
            let mut short = producer.batched_receiver(v2::EgressBatchRequest::default());
            short
                .confirmed(Duration::from_millis(1))
                .await
                .expect("accepted");
            cancels += 1;
        }
    }

    // while they live their losses are told under their names
    let all_told = async || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let told = told(&router.stderr());
            let sum: u64 = told.values().map(|(count, _)| count).sum();
            let counted = dropped(debug).await;
            if sum == counted {
                return told;
            }
            assert!(Instant::now() < deadline, "{sum} told, {counted} counted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let losses = all_told().await;
    let seconds = begun.elapsed().as_secs() as usize;
    assert_eq!(losses.len(), SLOW, "{losses:#?}");
    for index in 0..SLOW {
        let key = losses
            .keys()
            .find(|key| key.contains(&format!("shard id \"shard-{index}\",")));
        let key = key.unwrap_or_else(|| panic!("shard-{index} in {losses:#?}"));
        assert!(
            key.contains("v2 subscriber is slow") && key.contains("127.0.0.1"),
            "{key}"
        );
        let (count, lines) = losses[key];
        assert!(count > 0);
        assert!(lines <= seconds + 2, "{lines} lines in {seconds} s");
    }

    // what their rings hold when they end is lost, too
    drop(slow);
    drop(consumer);
    drop(producer);
    let of_the_ended = "v2 subscriber streams that have ended";
    eventually(of_the_ended, || {
        told(&router.stderr())
            .keys()
            .any(|of| of.contains(of_the_ended))
    })
    .await;
    all_told().await;

    let others = router.stderr().split_off(1 + config::VARIABLES.len());
    let others: Vec<_> = others
        .iter()
        .filter(|line| !line.contains("dropped "))
        .collect();
    assert_eq!(
        others.len(),
        2,
        "nothing is logged for a cancelled stream: {others:#?}"
    );
}

/// How many envelopes were told as lost, and on how many lines, by what the lines say of them.
fn told(lines: &[String]) -> BTreeMap<String, (u64, usize)> {
    let mut told = BTreeMap::new();
    for line in lines {
        let Some((_, loss)) = line.split_once("dropped ") else {
            continue;
        };
        let (count, of) = loss.split_once(' ').expect("a count");
        let (sum, lines): &mut (u64, usize) = told.entry(of.to_owned()).or_default();
        *sum += count.parse::<u64>().expect("a count");
        *lines += 1;
    }
    told
}

async fn dropped(debug: std::net::SocketAddr) -> u64 {
    let (_, text) = get(debug, "/metrics").await;
    text.lines()
        .filter_map(|line| line.strip_prefix("dropped_total"))
        .map(|line| {
            line.rsplit_once(' ')
                .expect("a value")
                .1
                .parse::<u64>()
                .expect("a number")
        })
        .sum()
}
