//! The whole pipeline in process: what goes in comes out, or is counted.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    thread,
    time::{Duration, Instant},
};

use common::*;
use diode::Limits;
use router::{EgressLimits, FanOut, Options, Ordering, Router};

const ROOMY: Limits = Limits {
    weight: 10_000_000,
    bytes: usize::MAX,
};

fn roomy(fanout: Option<FanOut>) -> Options {
    Options {
        ingress: ROOMY,
        egress: EgressLimits {
            ring: ROOMY,
            ..EgressLimits::default()
        },
        egress_total_bytes: usize::MAX,
        fanout,
        ..Options::default()
    }
}

/// So many workers that get every run, whether or not that is worth it.
fn workers(count: usize, ordering: Ordering) -> Option<FanOut> {
    let workers = NonZeroUsize::new(count).expect("some workers");
    Some(FanOut {
        ordering,
        caller_runs: false,
        ..FanOut::new(workers)
    })
}

/// Field case F1: nothing is lost between four workers that publish to one subscriber.
#[test]
fn four_workers_into_one_subscriber_lose_nothing() {
    const MESSAGES: u64 = 20_000;
    const EACH: u64 = 100;
    let (router, repeater) = start(roomy(workers(4, Ordering::None)));
    let mut subscription = router.subscribe(&logs_of(""), "test");

    let producer = {
        let router = router.clone();
        thread::spawn(move || {
            for m in 0..MESSAGES {
                let envelopes = (0..EACH).map(|n| log("a", m * EACH + n));
                router
                    .ingress()
                    .send(message(envelopes))
                    .expect("the router runs");
            }
            router.stop();
        })
    };
    let mut seen = vec![false; (MESSAGES * EACH) as usize];
    while let Some(batch) = subscription.next() {
        assert!(batch.len() <= 100);
        for run in batch.pieces() {
            for facts in run.events() {
                let number = timestamp(facts.bytes()) as usize;
                assert!(
                    !std::mem::replace(&mut seen[number], true),
                    "{number} came twice"
                );
            }
        }
    }
    producer.join().expect("the producer");
    repeater.join();

    assert!(seen.iter().all(|seen| *seen));
    let counters = router.counters();
    assert_eq!(counters.ingress, MESSAGES * EACH);
    assert_eq!(counters.published, counters.ingress);
    assert_eq!((counters.dropped_ingress, counters.dropped_egress), (0, 0));
    assert_eq!(
        (counters.matched, counters.egress),
        (counters.ingress, counters.ingress)
    );
}

/// The first field of the test's logs: a varint timestamp.
fn timestamp(envelope: &[u8]) -> u64 {
    if envelope.first() != Some(&0x08) {
        return 0; // proto3 leaves 0 out
    }
    envelope[1..]
        .iter()
        .take_while(|byte| **byte >= 0x80)
        .count()
        .checked_add(1)
        .map(|length| {
            envelope[1..=length]
                .iter()
                .rev()
                .fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
        })
        .expect("a short envelope")
}

/// Field case F4: order with one worker, without order the same set, with lanes order per source.
#[test]
fn order_is_kept_as_promised() {
    const SOURCES: u64 = 7;
    const ENVELOPES: u64 = 100_000;
    for (fanout, ordered) in [
        (None, true),
        (workers(1, Ordering::None), true),
        (workers(4, Ordering::None), false),
        (workers(4, Ordering::Source), true),
        (
            workers(4, Ordering::Source).map(|fanout| FanOut {
                caller_runs: true,
                ..fanout
            }),
            true,
        ),
    ] {
        let (router, repeater) = start(roomy(fanout));
        let mut subscription = router.subscribe(&logs_of(""), "test");
        for first in (0..ENVELOPES).step_by(50) {
            let envelopes = (first..first + 50).map(|n| log(&format!("s{}", n % SOURCES), n));
            router
                .ingress()
                .send(message(envelopes))
                .expect("the router runs");
        }
        router.stop();

        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<String, i64> = BTreeMap::new();
        while let Some(batch) = subscription.next() {
            for envelope in envelopes(&batch) {
                let before = last.insert(envelope.source_id, envelope.timestamp);
                assert!(!ordered || before < Some(envelope.timestamp), "{fanout:?}");
                seen.insert(envelope.timestamp as u64);
            }
        }
        repeater.join();
        assert!(seen.into_iter().eq(0..ENVELOPES), "{fanout:?}");
        assert_eq!(router.counters().published, ENVELOPES, "{fanout:?}");
    }
}

#[test]
fn an_overrun_loses_the_oldest_and_counts_them() {
    let options = Options {
        ingress: Limits {
            weight: 1_000,
            bytes: usize::MAX,
        },
        egress: EgressLimits {
            ring: Limits {
                weight: 100,
                bytes: usize::MAX,
            },
            ..EgressLimits::default()
        },
        fanout: None,
        ..Options::default()
    };
    let (router, repeater) = Router::new(options).expect("a router");
    let mut subscription = router.subscribe(&logs_of(""), "test");
    // the repeater does not run yet: the ingress ring overruns
    for n in 0..1_500 {
        router
            .ingress()
            .send(message([log("a", n)]))
            .expect("the router runs");
    }
    assert_eq!(router.counters().dropped_ingress, 500);
    router.stop();
    repeater.run_here();
    let counters = router.counters();
    assert_eq!(
        counters.ingress,
        counters.published + counters.dropped_ingress
    );
    assert_eq!(
        (
            counters.published,
            counters.matched,
            counters.dropped_egress
        ),
        (1_000, 1_000, 900)
    );

    let batch = subscription.next().expect("what the ring kept");
    let kept: Vec<_> = envelopes(&batch)
        .into_iter()
        .map(|envelope| envelope.timestamp)
        .collect();
    assert!(kept.into_iter().eq(1_400..1_500));
    assert!(subscription.next().is_none());
    let counters = router.counters();
    assert_eq!(counters.matched, counters.egress + counters.dropped_egress);
}

#[test]
fn a_message_larger_than_the_ring_keeps_its_newest() {
    let options = Options {
        ingress: Limits {
            weight: 10,
            bytes: usize::MAX,
        },
        ..Options::default()
    };
    let (router, repeater) = Router::new(options).expect("a router");
    let mut subscription = router.subscribe(&logs_of(""), "test");
    router
        .ingress()
        .send(message((0..95).map(|n| log("a", n))))
        .expect("the router runs");
    router.stop();
    repeater.run_here();

    let mut numbers = Vec::new();
    while let Some(batch) = subscription.next() {
        numbers.extend(
            envelopes(&batch)
                .into_iter()
                .map(|envelope| envelope.timestamp),
        );
    }
    // at least as many as fit but for the rest of one run, and always the newest
    assert!(
        (1..=10).contains(&numbers.len()) && numbers.ends_with(&[94]),
        "{numbers:?}"
    );
    assert_eq!(router.counters().dropped_ingress, 95 - numbers.len() as u64);
}

/// What is left in a ring when its stream ends is counted, too.
#[test]
fn leftovers_of_an_ended_subscription_count_as_dropped() {
    let (router, repeater) = Router::new(Options::default()).expect("a router");
    let mut subscription = router.subscribe(&logs_of(""), "test");
    router
        .ingress()
        .send(message((0..150).map(|n| log("a", n))))
        .expect("the router runs");
    router.stop();
    repeater.run_here();
    assert_eq!(subscription.next().map(|batch| batch.len()), Some(100));
    drop(subscription);

    let counters = router.counters();
    assert_eq!(
        (counters.matched, counters.egress, counters.dropped_egress),
        (150, 100, 50)
    );
    assert_eq!(counters.subscriptions, 0);
}

/// Field cases P1 and P2.
#[test]
fn an_envelope_comes_once_however_many_selectors_match() {
    let both = || {
        let mut request = logs_of("");
        request.selectors.extend(logs_of("a").selectors);
        request
    };
    let (router, repeater) = start(roomy(None));
    let mut alone = router.subscribe(&both(), "alone");
    let sharded = router::Router::subscribe;
    let mut members: Vec<_> = (0..2)
        .map(|_| {
            let mut request = both();
            request.shard_id = "g".to_owned();
            sharded(&router, &request, "member")
        })
        .collect();
    for n in 0..1_000 {
        router
            .ingress()
            .send(message([log("a", n)]))
            .expect("the router runs");
    }
    router.stop();
    repeater.join();

    let mut count = |subscription: &mut router::Subscription| {
        let mut count = 0;
        while let Some(batch) = subscription.next() {
            count += batch.len();
        }
        count
    };
    assert_eq!(count(&mut alone), 1_000);
    assert_eq!(members.iter_mut().map(&mut count).sum::<usize>(), 1_000);
}

/// Field case P9: a counter's name decides the member, whoever joined first.
#[test]
fn deterministic_members_get_the_same_counters_in_any_join_order() {
    let assignment = |join_order: [&'static str; 3]| {
        let (router, repeater) = start(roomy(None));
        let mut members = join_order.map(|name| {
            let mut request = counters();
            request.shard_id = "g".to_owned();
            request.deterministic_name = name.to_owned();
            (name, router.subscribe(&request, name))
        });
        for n in 0..100 {
            for _ in 0..10 {
                let envelope = counter(&format!("source-{n}"), &format!("counter-{n}"));
                router
                    .ingress()
                    .send(message([envelope]))
                    .expect("the router runs");
            }
        }
        router.stop();
        repeater.join();

        let mut assignment: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
        let mut total = 0;
        for (name, subscription) in &mut members {
            while let Some(batch) = subscription.next() {
                for envelope in envelopes(&batch) {
                    let Some(loggregator::v2::envelope::Message::Counter(counter)) =
                        envelope.message
                    else {
                        panic!("not a counter");
                    };
                    assignment.entry(counter.name).or_default().insert(name);
                    total += 1;
                }
            }
        }
        assert_eq!(total, 1_000);
        assert!(
            assignment.values().all(|members| members.len() == 1),
            "{assignment:?}"
        );
        assignment
    };
    assert_eq!(
        assignment(["n1", "n2", "n3"]),
        assignment(["n3", "n1", "n2"])
    );
}

/// Field case F2, for the router: what is sent after the stop comes back, all else is published.
#[test]
fn stop_under_fire_loses_nothing_that_was_accepted() {
    for round in 0..200 {
        let fanout = [
            None,
            workers(2, Ordering::None),
            workers(2, Ordering::Source),
        ][round % 3];
        let (router, repeater) = start(roomy(fanout));
        let producer = {
            let router = router.clone();
            thread::spawn(move || {
                let mut accepted = 0;
                while router.ingress().send(message([log("a", accepted)])).is_ok() {
                    accepted += 1;
                }
                accepted
            })
        };
        while router.counters().published < 20 {
            thread::yield_now();
        }
        router.stop();
        router.stop();
        repeater.join();
        let accepted = producer.join().expect("the producer");
        let counters = router.counters();
        assert_eq!(
            (counters.ingress, counters.published),
            (accepted, accepted),
            "{fanout:?}"
        );
    }
}

#[test]
fn stop_before_start_is_harmless() {
    let (router, repeater) = Router::new(roomy(workers(2, Ordering::None))).expect("a router");
    router
        .ingress()
        .send(message([log("a", 1)]))
        .expect("not stopped yet");
    router.stop();
    assert!(router.ingress().send(message([log("a", 2)])).is_err());
    repeater.run_here();
    assert_eq!(router.counters().published, 1);

    // a subscription that comes too late ends at once
    assert!(router.subscribe(&logs_of(""), "late").next().is_none());
}

/// Field case F5: producers never wait, whoever is slow.
#[test]
fn producers_do_not_wait_for_a_stalled_repeater() {
    let (router, repeater) = Router::new(Options::default()).expect("a router");
    let sent = 100_000;
    let began = Instant::now();
    for n in 0..sent {
        router
            .ingress()
            .send(message([log("a", n)]))
            .expect("the router runs");
    }
    // a hang guard, not a measurement: nobody has read anything yet
    assert!(began.elapsed() < Duration::from_secs(60));
    router.stop();
    repeater.run_here();
    let counters = router.counters();
    assert_eq!(counters.published + counters.dropped_ingress, sent);
    assert_eq!(counters.published, 10_000);
}

/// Field case D9: a kept envelope does not keep the batch that it came in.
#[test]
fn a_small_selection_does_not_pin_its_message() {
    let (router, repeater) = start(roomy(None));
    let mut subscription = router.subscribe(&logs_of("y"), "stalled");
    let large = {
        let mut envelope = log("x", 0);
        if let Some(loggregator::v2::envelope::Message::Log(log)) = &mut envelope.message {
            log.payload = vec![0; 60_000];
        }
        envelope
    };
    for n in 0..100 {
        let envelopes = std::iter::repeat_n(large.clone(), 9).chain([log("y", n)]);
        router
            .ingress()
            .send(message(envelopes))
            .expect("the router runs");
    }
    router.stop();
    repeater.join();

    let batch = subscription.next().expect("the envelopes of y");
    assert_eq!(batch.len(), 100);
    for run in batch.pieces() {
        assert!(run.message().memory() < 1_000, "{run:?}");
    }
}

/// Field case R15: whoever stalls, and however many do, memory stays within the cap.
#[test]
fn stalled_subscribers_stay_within_the_total() {
    let total = 1 << 20;
    let options = Options {
        egress_total_bytes: total,
        ..Options::default()
    };
    let (router, repeater) = start(options);
    let stalled: Vec<_> = (0..50)
        .map(|n| router.subscribe(&logs_of(&format!("s{}", n % 10)), "stalled"))
        .collect();
    let large = |source_id: &str| {
        let mut envelope = log(source_id, 0);
        if let Some(loggregator::v2::envelope::Message::Log(log)) = &mut envelope.message {
            log.payload = vec![0; 6_000];
        }
        envelope
    };
    for n in 0..1_000 {
        let envelope = large(&format!("s{}", n % 10));
        router
            .ingress()
            .send(message([envelope]))
            .expect("the router runs");
    }
    router.stop();
    repeater.join();
    let counters = router.counters();
    // each ring may exceed the total by its newest envelope
    assert!(
        counters.egress_queued_bytes <= total as u64 + 50 * 7_000,
        "{counters:?}"
    );
    assert_eq!(counters.matched, 5_000);
    assert!(counters.dropped_egress > 4_000, "{counters:?}");
    drop(stalled);
    assert_eq!(router.counters().egress_queued_bytes, 0);
}
