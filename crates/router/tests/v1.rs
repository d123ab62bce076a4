//! Both APIs side by side: v1 subscribers get v2 envelopes, and the other way round.

mod common;

use common::*;
use diode::Limits as RingLimits;
use loggregator::{
    Limits,
    v1::{
        Envelope, EventType, Payload, Pushed,
        plumbing::{Filter, LogFilter, MetricFilter, SubscriptionRequest, filter},
    },
    v2,
};
use router::{EgressLimits, FanOut, Options, Ordering, Router, Subscription};

fn request(app_id: &str, message: Option<filter::Message>) -> SubscriptionRequest {
    SubscriptionRequest {
        shard_id: String::new(),
        filter: Some(Filter {
            app_id: app_id.to_owned(),
            message,
        }),
    }
}

fn logs(app_id: &str) -> SubscriptionRequest {
    request(app_id, Some(filter::Message::Log(LogFilter {})))
}

fn metrics(app_id: &str) -> SubscriptionRequest {
    request(app_id, Some(filter::Message::Metric(MetricFilter {})))
}

/// Everything that a v1 subscription gets until the router stops.
fn drain(mut subscription: Subscription<Payload>) -> Vec<Payload> {
    let mut payloads = Vec::new();
    while let Some(batch) = subscription.next() {
        assert!(batch.len() <= 100);
        payloads.extend_from_slice(batch.pieces());
    }
    payloads
}

fn envelope(payload: &Payload) -> Envelope<'_> {
    Envelope::parse(payload.bytes(), Limits::default()).expect("a complete envelope")
}

fn pushed(origin: &[u8]) -> Pushed {
    let mut bytes = vec![0x0a, origin.len() as u8];
    bytes.extend_from_slice(origin);
    bytes.extend_from_slice(&[0x10, EventType::CounterEvent.0 as u8]);
    Pushed::parse(&bytes, Limits::default()).expect("a complete envelope")
}

#[test]
fn a_v2_envelope_reaches_the_v1_subscribers_whose_filters_match() {
    let (router, repeater) = Router::new(Options::default()).expect("a router");
    let everything = router.subscribe_v1(&SubscriptionRequest::default(), "test");
    let all_logs = router.subscribe_v1(&logs(""), "test");
    let logs_of_a = router.subscribe_v1(&logs("a"), "test");
    let logs_of_b = router.subscribe_v1(&logs("b"), "test");
    let system = router.subscribe_v1(&metrics("system"), "test");

    let sent = [log("a", 1), counter("a", "requests"), log("a", 2)];
    router.ingress().send(message(sent)).expect("it runs");
    router.stop();
    repeater.run_here();

    let everything = drain(everything);
    let types: Vec<_> = everything
        .iter()
        .map(|payload| envelope(payload).event_type.expect("it is required"))
        .collect();
    let (log, counter) = (EventType::LogMessage, EventType::CounterEvent);
    assert_eq!(types, [log, counter, log]);
    assert_eq!(drain(all_logs).len(), 2);
    assert_eq!(drain(logs_of_a).len(), 2);
    assert_eq!(drain(logs_of_b).len(), 0);
    assert_eq!(drain(system).len(), 1);
}

#[test]
fn a_pushed_envelope_reaches_both_apis() {
    let (router, repeater) = Router::new(Options::default()).expect("a router");
    let v1 = router.subscribe_v1(&SubscriptionRequest::default(), "test");
    let mut v2 = router.subscribe(&counters(), "test");
    let sent = pushed(b"origin");
    router.ingress().push(sent.clone()).expect("it runs");
    router.stop();
    assert!(router.ingress().push(sent.clone()).is_err());
    repeater.run_here();

    assert_eq!(drain(v1), [sent.payload().clone()]);
    let received = envelopes(&v2.next().expect("its v2 form"));
    assert_eq!(received[0].tags["origin"], "origin");
    let counters = router.counters();
    assert_eq!((counters.ingress, counters.published), (1, 1));
    assert_eq!((counters.matched, counters.v1_repaired), (2, 0));
}

/// Field case R4.
#[test]
fn text_that_is_not_utf8_is_repaired_for_v2_and_left_alone_for_v1() {
    let (router, repeater) = Router::new(Options::default()).expect("a router");
    let v1 = router.subscribe_v1(&SubscriptionRequest::default(), "test");
    let mut v2 = router.subscribe(&counters(), "test");
    let sent = pushed(b"\xff\xfe");
    router.ingress().push(sent.clone()).expect("it runs");
    router.stop();
    repeater.run_here();

    assert_eq!(drain(v1), [sent.payload().clone()]);
    let received = envelopes(&v2.next().expect("its v2 form"));
    assert_eq!(received[0].tags["origin"], "\u{fffd}\u{fffd}");
    assert_eq!(router.counters().v1_repaired, 1);
}

/// A log without payload has no v1 form; that somebody missed it is counted.
#[test]
fn incomplete_forms_are_counted_if_somebody_wanted_them() {
    let empty = v2::Envelope {
        source_id: "a".to_owned(),
        message: Some(v2::envelope::Message::Log(v2::Log::default())),
        ..Default::default()
    };
    for (wanted, incomplete) in [("a", 1), ("b", 0)] {
        let (router, repeater) = Router::new(Options::default()).expect("a router");
        let subscription = router.subscribe_v1(&logs(wanted), "test");
        router
            .ingress()
            .send(message([empty.clone()]))
            .expect("it runs");
        router.stop();
        repeater.run_here();
        assert_eq!(drain(subscription).len(), 0);
        assert_eq!(router.counters().v1_incomplete, incomplete);
        assert_eq!(router.counters().matched, 0);
    }
}

#[test]
fn v1_shards_and_rings_have_limits_of_their_own() {
    let options = Options {
        egress_v1: EgressLimits {
            ring: RingLimits {
                weight: 10,
                bytes: usize::MAX,
            },
            ..EgressLimits::default()
        },
        ..Options::default()
    };
    let (router, repeater) = Router::new(options).expect("a router");
    let sharded = SubscriptionRequest {
        shard_id: "g".to_owned(),
        filter: None,
    };
    let members = [(); 2].map(|()| router.subscribe_v1(&sharded, "test"));
    router
        .ingress()
        .send(message((0..100).map(|n| log("a", n))))
        .expect("it runs");
    router.stop();
    repeater.run_here();
    let counters = router.counters();
    assert_eq!((counters.matched, counters.dropped_egress), (100, 80));
    assert_eq!(members.map(|member| drain(member).len()), [10, 10]);
}

#[test]
fn with_lanes_v1_envelopes_keep_their_order_too() {
    let options = Options {
        fanout: Some(FanOut {
            ordering: Ordering::Source,
            caller_runs: false,
            ..FanOut::new(3.try_into().expect("not 0"))
        }),
        ..Options::default()
    };
    let (router, repeater) = start(options);
    let v1 = router.subscribe_v1(&SubscriptionRequest::default(), "test");
    for number in 0..100 {
        // one source: none of these has a deployment or a job
        router
            .ingress()
            .push(pushed(&[b'0' + number / 10, b'0' + number % 10]))
            .expect("it runs");
    }
    router.stop();
    repeater.join();
    let origins: Vec<Vec<u8>> = drain(v1)
        .iter()
        .map(|payload| envelope(payload).origin.expect("it is required").to_vec())
        .collect();
    assert_eq!(origins.len(), 100);
    assert!(origins.is_sorted());
    assert_eq!(router.counters().published, 100);
}
