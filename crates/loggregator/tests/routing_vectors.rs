//! The reference's routing (`vectors/routing.jsonl`), through selectors, facts and the real
//! subscriber tree.

mod support;

use loggregator::{Limits, Message, selectors_to_interest, v2};
use prost::Message as _;
use pubsub::PubSub;
use support::{bytes, cases, routing};

#[test]
fn v2() {
    let mut seen = 0;
    for case in cases(routing::VECTORS) {
        if case["api"] != "v2" {
            continue;
        }
        let message =
            Message::parse_envelope(&bytes(&case, "publish_b64"), Limits::default()).unwrap();
        routing::check(&case, &message.facts(0), |request| {
            let request = v2::EgressBatchRequest::decode(request).unwrap();
            selectors_to_interest(&request)
        });
        seen += 1;
    }
    assert_eq!(seen, 35);
}

/// Field case P7.
#[test]
fn gauge_names_are_a_set() {
    use v2::selector::Message as Kind;
    let gauge = |names: &[&str]| {
        let metrics = names
            .iter()
            .map(|&name| (name.into(), v2::GaugeValue::default()))
            .collect();
        let message = Some(v2::envelope::Message::Gauge(v2::Gauge { metrics }));
        let envelope = v2::Envelope {
            message,
            ..Default::default()
        };
        Message::parse_envelope(&envelope.encode_to_vec(), Limits::default()).unwrap()
    };
    let gets = |selector: &[&str], envelope: &[&str]| {
        let names = selector.iter().map(|&name| name.into()).collect();
        let message = Some(Kind::Gauge(v2::GaugeSelector { names }));
        let selectors = vec![v2::Selector {
            source_id: String::new(),
            message,
        }];
        let request = v2::EgressBatchRequest {
            selectors,
            ..Default::default()
        };
        let tree = PubSub::new();
        let _subscription = tree.subscribe((), selectors_to_interest(&request));
        let mut got = false;
        tree.publish(&gauge(envelope).facts(0), |()| got = true);
        got
    };
    assert!(gets(&["cpu", "memory"], &["memory", "cpu"]));
    assert!(!gets(&["cpu", "memory"], &["cpu"]));
    assert!(!gets(&["cpu", "memory"], &["cpu", "memory", "disk"]));
    assert!(!gets(&["cpu", "cpu"], &["cpu"]));
    assert!(gets(&[], &["cpu", "memory", "disk"]));
    assert!(gets(&[], &[]));
    assert!(gets(&[""], &[""]), "a metric may have an empty name");
    assert!(!gets(&[""], &[]));
    let many: Vec<String> = (0..100).map(|i| format!("metric-{i}")).collect();
    let many: Vec<&str> = many.iter().map(|name| &**name).collect();
    let reversed: Vec<&str> = many.iter().rev().copied().collect();
    assert!(gets(&reversed, &many));
    assert!(!gets(&many[1..], &many));
}

/// Field case P8.
#[test]
fn requests_that_select_nothing_are_subscriptions() {
    let typeless = v2::Selector {
        source_id: "a".into(),
        message: None,
    };
    for selectors in [vec![], vec![typeless]] {
        let request = v2::EgressBatchRequest {
            selectors,
            ..Default::default()
        };
        let tree = PubSub::new();
        let _subscription = tree.subscribe((), selectors_to_interest(&request));
        assert_eq!(tree.len(), 1);
        let message =
            Message::parse_envelope(&[0x12, 1, b'a', 0x22, 0], Limits::default()).unwrap();
        let published = tree.publish(&message.facts(0), |()| panic!("selects nothing"));
        assert_eq!(published.delivered, 0);
    }
}
