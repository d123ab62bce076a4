//! Plays a routing vector on the real subscriber tree. One difference is meant: a stream gets an
//! envelope once, however many of its selectors match, so counts above 1 are 1.

use std::collections::BTreeMap;
use std::hash::Hash;

use pubsub::{Event, Interest, PubSub};
use serde_json::Value;

use super::bytes;

pub const VECTORS: &str = include_str!("../vectors/routing.jsonl");

/// How often the one envelope of a case is published: enough that each member of a group of two
/// gets it at times, but for one run in 10^30.
const ROUNDS: usize = 100;

/// Subscribes and unsubscribes as the case says, publishes `event`, and compares who got it.
pub fn check<K>(case: &Value, event: &impl Event<K>, interest: impl Fn(&[u8]) -> Interest<K>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    let tree = PubSub::new();
    let mut subscriptions = BTreeMap::new();
    for subscriber in case["subscribe"].as_array().unwrap() {
        let id = subscriber["id"].as_str().unwrap().to_owned();
        let interest = interest(&bytes(subscriber, "request_b64"));
        let subscription = tree.subscribe(id.clone(), interest);
        assert!(subscriptions.insert(id, subscription).is_none(), "{case}");
    }
    for id in case["unsubscribe"].as_array().into_iter().flatten() {
        drop(subscriptions.remove(id.as_str().unwrap()).unwrap());
    }

    let mut totals = BTreeMap::<String, usize>::new();
    for round in 0..ROUNDS {
        let mut copies = BTreeMap::<String, usize>::new();
        tree.publish(event, |id: &String| {
            *copies.entry(id.clone()).or_default() += 1
        });
        for (id, count) in case["always"].as_object().unwrap() {
            let expected = count.as_u64().unwrap().min(1) as usize;
            assert_eq!(
                copies.remove(id).unwrap_or(0),
                expected,
                "{id}, round {round}: {case}"
            );
        }
        for group in case["random"].as_array().into_iter().flatten() {
            let members = group["members"].as_array().unwrap();
            let mut sum = 0;
            for member in members {
                let member = member.as_str().unwrap().to_owned();
                let count = copies.remove(&member).unwrap_or(0);
                *totals.entry(member).or_default() += count;
                sum += count;
            }
            assert_eq!(
                sum as u64,
                group["sum"].as_u64().unwrap(),
                "round {round}: {case}"
            );
        }
        assert_eq!(
            copies,
            BTreeMap::new(),
            "nobody else, round {round}: {case}"
        );
    }
    for (member, total) in totals {
        assert!(total > 0, "{member} never got one of {ROUNDS}: {case}");
    }
}
