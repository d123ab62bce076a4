//! Runs and copies keep every envelope, byte for byte, however they are cut and joined.

mod support;

use diode::Weigh;
use loggregator::{Key, Limits, Message, Run, v2};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;
use pubsub::{Equivalent, Event};
use support::element;

/// Counters of different sizes, one per name.
fn message(names: &[String]) -> (Message, Vec<Vec<u8>>) {
    let envelopes: Vec<Vec<u8>> = names
        .iter()
        .map(|name| {
            let counter = v2::Counter {
                name: name.clone(),
                ..Default::default()
            };
            let message = Some(v2::envelope::Message::Counter(counter));
            v2::Envelope {
                source_id: name.clone(),
                message,
                ..Default::default()
            }
            .encode_to_vec()
        })
        .collect();
    let batch: Vec<u8> = envelopes
        .iter()
        .flat_map(|envelope| element(envelope))
        .collect();
    (
        Message::parse(&batch, Limits::default()).unwrap(),
        envelopes,
    )
}

fn names() -> impl Strategy<Value = Vec<String>> {
    vec("[a-z]{0,200}", 0..30)
}

/// Compares a run with the envelopes that it should hold.
fn holds(run: &Run, expected: &[Vec<u8>]) {
    assert_eq!(run.len(), expected.len());
    assert_eq!(run.is_empty(), expected.is_empty());
    let elements: Vec<u8> = expected
        .iter()
        .flat_map(|envelope| element(envelope))
        .collect();
    assert_eq!(run.bytes(), elements);
    assert_eq!(run.byte_len(), elements.len());
    let mut appended = b"before".to_vec();
    run.append_to(&mut appended);
    assert_eq!(appended[6..], elements);
    for (index, (event, envelope)) in run.events().zip(expected).enumerate() {
        assert_eq!(event.bytes(), envelope);
        assert_eq!(run.facts(index).bytes(), envelope);
        assert_eq!(event.counter_name(), Some(event.source_id()));
        let decoded = v2::Envelope::decode(&**envelope).unwrap();
        assert_eq!(event.source_id(), decoded.source_id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn cut_anywhere_and_joined(names in names(), at in 0..40_usize) {
        let (message, envelopes) = message(&names);
        let whole = message.whole();
        holds(&whole, &envelopes);
        let middle = at.min(envelopes.len());
        let (first, rest) = whole.clone().split_at(at);
        holds(&first, &envelopes[..middle]);
        holds(&rest, &envelopes[middle..]);
        holds(&first.try_join(&rest).unwrap(), &envelopes);
        if !first.is_empty() || !rest.is_empty() {
            prop_assert!(rest.try_join(&first).is_none());
        }
        let copy = message.select(std::iter::once(0..message.len()));
        prop_assert!(first.try_join(&copy).is_none(), "of another message");
        prop_assert_eq!(first.memory() + rest.memory(), whole.memory());
        prop_assert_eq!(whole.weight(), envelopes.len());
        prop_assert!(Weigh::bytes(&whole) >= whole.byte_len());
    }

    #[test]
    fn parts_within_limits(names in names(), envelopes_limit in 1..40_usize, bytes_limit in 0..1000_usize) {
        let (message, envelopes) = message(&names);
        let whole = message.whole();
        let mut seen = 0;
        for part in whole.clone().chunks(envelopes_limit, bytes_limit) {
            prop_assert!(!part.is_empty() && part.len() <= envelopes_limit);
            prop_assert!(part.byte_len() <= bytes_limit || part.len() == 1);
            holds(&part, &envelopes[seen..seen + part.len()]);
            seen += part.len();
            // As much as fits: the next one would not.
            if let Some(next) = envelopes.get(seen) && part.len() < envelopes_limit {
                prop_assert!(part.byte_len() + element(next).len() > bytes_limit);
            }
        }
        prop_assert_eq!(seen, envelopes.len());
        let (first, rest) = whole.split_fitting(envelopes_limit, bytes_limit);
        holds(&rest, &envelopes[first.len()..]);
    }

    #[test]
    fn copies_of_some(names in names(), start in 0..10_usize, keep in vec(any::<bool>(), 30)) {
        let (message, envelopes) = message(&names);
        let start = start.min(message.len());
        let run = message.run(start..message.len());
        let kept: Vec<usize> = (start..message.len()).filter(|index| keep[*index]).collect();
        // From the back, so that order is the caller's.
        let ranges = kept.iter().rev().map(|index| index - start..index - start + 1);
        let copy = run.select(ranges.collect::<Vec<_>>());
        let expected: Vec<_> = kept.iter().rev().map(|index| envelopes[*index].clone()).collect();
        holds(&copy, &expected);
        holds(&run.slice(0..run.len()), &envelopes[start..]);
        // A copy is a message like any other.
        prop_assert_eq!(copy.message().len(), kept.len());
        holds(&copy.select(std::iter::once(0..copy.len())), &expected);
    }

    #[test]
    fn borrowed_and_owned_keys_agree(name in "[a-zä]{0,20}", other in "[a-zä]{0,20}", names in vec("[a-c]{0,2}", 0..30)) {
        let hasher = ahash::RandomState::new();
        let (message, _) = message(std::slice::from_ref(&name));
        let facts = message.facts(0);
        for (depth, key, unequal) in [
            (0, Key::source_id(&name), Key::source_id(&other)),
            (2, Key::counter_name(&name), Key::counter_name(&other)),
        ] {
            let borrowed = facts.key(depth).unwrap();
            prop_assert!(borrowed.equivalent(&key));
            prop_assert_eq!(hasher.hash_one(borrowed), hasher.hash_one(&key));
            prop_assert_eq!(borrowed.equivalent(&unequal), name == other);
        }
        prop_assert!(!facts.key(0).unwrap().equivalent(&Key::counter_name(&name)));

        let metrics = names.iter().map(|name| (name.clone(), v2::GaugeValue::default())).collect();
        let gauge = Some(v2::envelope::Message::Gauge(v2::Gauge { metrics }));
        let gauge = v2::Envelope { message: gauge, ..Default::default() }.encode_to_vec();
        let gauge = Message::parse_envelope(&gauge, Limits::default()).unwrap();
        let facts = gauge.facts(0);
        let borrowed = facts.key(2).unwrap();
        let mut distinct = names.clone();
        distinct.sort_by(|a, b| b.cmp(a));
        distinct.dedup();
        let key = Key::metric_names(distinct.iter().map(|name| &**name)).unwrap();
        prop_assert!(borrowed.equivalent(&key));
        prop_assert_eq!(hasher.hash_one(borrowed), hasher.hash_one(&key));
        let owned = Key::metric_names(names.iter().map(|name| &**name));
        prop_assert_eq!(owned.is_some(), distinct.len() == names.len());
        let more = distinct.iter().map(|name| &**name).chain(["one more"]);
        prop_assert!(!borrowed.equivalent(&Key::metric_names(more).unwrap()));
        if let Some(missing) = Key::metric_names(distinct.iter().skip(1).map(|name| &**name)) {
            prop_assert_eq!(borrowed.equivalent(&missing), distinct.is_empty());
        }
    }
}

#[test]
fn memory_of_small_envelopes_is_not_only_their_bytes() {
    let message = Message::parse(&[0x0A, 0].repeat(1000), Limits::default()).unwrap();
    assert_eq!(message.byte_len(), 2000);
    assert!(message.memory() >= 1000 * (2 + 16), "{}", message.memory());
    assert_eq!(message.whole().memory() / 1000, message.run(3..4).memory());
}

#[test]
fn an_empty_message_is_legal() {
    let message = Message::parse(&[], Limits::default()).unwrap();
    assert!(message.is_empty() && message.whole().is_empty());
    assert_eq!(message.whole().chunks(100, 100).count(), 0);
    let (first, rest) = message.whole().split_fitting(1, 1);
    assert!(first.is_empty() && rest.is_empty());
    assert_eq!(message.select([]).bytes(), b"");
}

#[test]
#[should_panic(expected = "envelopes 1..3 of 2")]
fn a_run_ends_within_its_message() {
    let _ = Message::parse(&[0x0A, 0, 0x0A, 0], Limits::default())
        .unwrap()
        .run(1..3);
}
