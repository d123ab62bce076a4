//! The order that lanes keep: of any two items with one key, the one that was written first is
//! done first, whichever thread does it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fanout::FanoutWriter;
use proptest::prelude::*;

/// An item: its key, its number among all, and how long it takes.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: u64,
    number: u64,
    spin: Duration,
}

/// What came out, in the order in which callbacks began.
type Seen = Arc<Mutex<Vec<Item>>>;

fn stage(workers: usize, lanes: bool) -> (FanoutWriter<Item>, Seen) {
    let seen = Seen::default();
    let fanout = FanoutWriter::new(workers, {
        let seen = seen.clone();
        move |_| {
            let seen = seen.clone();
            move |item: Item| {
                seen.lock().unwrap().push(item);
                let start = Instant::now();
                while start.elapsed() < item.spin {}
            }
        }
    })
    .unwrap();
    let fanout = if lanes {
        fanout.with_lanes(|item| item.key)
    } else {
        fanout
    };
    (fanout, seen)
}

fn numbers_of(seen: &Seen, key: u64) -> Vec<u64> {
    let seen = seen.lock().unwrap();
    seen.iter()
        .filter(|item| item.key == key)
        .map(|item| item.number)
        .collect()
}

/// Field case F4. The items become dear half-way, so that the writer begins to hand them out.
#[test]
fn numbered_items_of_one_source() {
    const ITEMS: u64 = 100_000;
    let run = |workers, lanes, caller_runs| {
        let (fanout, seen) = stage(workers, lanes);
        let fanout = fanout.with_caller_runs(caller_runs).with_buffer_size(64);
        fanout.start().unwrap();
        for number in 0..ITEMS {
            let dear = (50_000..51_000).contains(&number);
            let spin = Duration::from_micros(if dear { 5 } else { 0 });
            fanout
                .write(Item {
                    key: 17,
                    number,
                    spin,
                })
                .unwrap();
        }
        fanout.stop();
        numbers_of(&seen, 17)
    };
    for caller_runs in [true, false] {
        assert!(run(1, false, caller_runs).is_sorted(), "one worker");
        assert!(run(4, true, caller_runs).is_sorted(), "four workers, lanes");
        let mut any_order = run(4, false, caller_runs);
        any_order.sort_unstable();
        assert_eq!(any_order, Vec::from_iter(0..ITEMS), "four workers");
    }
}

/// Two writers of one key take turns: what one wrote before it passed the turn on comes first.
#[test]
fn the_order_holds_across_writers() {
    for caller_runs in [true, false] {
        let (fanout, seen) = stage(3, true);
        let fanout = fanout.with_caller_runs(caller_runs);
        fanout.start().unwrap();
        let next = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let mut number = next.lock().unwrap();
                        if *number == 20_000 {
                            return;
                        }
                        let spin = Duration::from_nanos(*number % 1_000);
                        fanout
                            .write(Item {
                                key: 5,
                                number: *number,
                                spin,
                            })
                            .unwrap();
                        *number += 1;
                    }
                });
            }
        });
        fanout.stop();
        assert_eq!(numbers_of(&seen, 5), Vec::from_iter(0..20_000));
    }
}

/// In a lane, a callback does not begin before the one of the item before has returned.
#[test]
fn the_items_of_a_lane_do_not_overlap() {
    let running: Arc<[AtomicU64; 4]> = Arc::default();
    let fanout = FanoutWriter::new(4, {
        let running = running.clone();
        move |_| {
            let running = running.clone();
            move |number: u64| {
                let lane = &running[number as usize % 4];
                assert_eq!(lane.fetch_add(1, Relaxed), 0, "two at once");
                let start = Instant::now();
                while start.elapsed() < Duration::from_nanos(number % 3_000) {}
                lane.fetch_sub(1, Relaxed);
            }
        }
    })
    .unwrap()
    .with_lanes(|number| *number);
    fanout.start().unwrap();
    for number in 0..50_000 {
        fanout.write(number * 7).unwrap();
    }
    fanout.stop();
    assert_eq!(fanout.stats().panics, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written, by however many, with whatever room: of each writer and key, the items
    /// come out complete and in order.
    #[test]
    fn lanes_keep_the_order_of_each_key(
        workers in 1_usize..6,
        room in 1_usize..40,
        caller_runs: bool,
        writers in prop::collection::vec(
            prop::collection::vec((0_u64..8, 0_u64..4_000), 0..300),
            1..4,
        ),
    ) {
        let (fanout, seen) = stage(workers, true);
        let fanout = fanout.with_buffer_size(room).with_caller_runs(caller_runs);
        fanout.start().unwrap();
        thread::scope(|scope| {
            for (writer, items) in writers.iter().enumerate() {
                let fanout = &fanout;
                scope.spawn(move || {
                    for (number, (key, nanoseconds)) in items.iter().enumerate() {
                        // the writer is told by the number, since the order is each writer's own
                        let number = ((writer as u64) << 32) | number as u64;
                        let spin = Duration::from_nanos(*nanoseconds);
                        fanout.write(Item { key: *key, number, spin }).unwrap();
                    }
                });
            }
        });
        fanout.stop();
        for (writer, items) in writers.iter().enumerate() {
            for key in 0..8 {
                let expected: Vec<u64> = items
                    .iter()
                    .enumerate()
                    .filter(|(_, (k, _))| *k == key)
                    .map(|(number, _)| ((writer as u64) << 32) | number as u64)
                    .collect();
                let got: Vec<u64> = numbers_of(&seen, key)
                    .into_iter()
                    .filter(|number| number >> 32 == writer as u64)
                    .collect();
                prop_assert_eq!(got, expected, "writer {}, key {}", writer, key);
            }
        }
    }
}
