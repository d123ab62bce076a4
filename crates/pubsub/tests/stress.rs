//! Publishers, subscribers and unsubscribers at once, with everything checked that must hold
//! whatever the schedule.
//!
//! Nothing here measures time; the rounds are few enough for a busy machine and many enough that a
//! mistake in handing versions over would show, above all under a sanitizer.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use common::Numbers;
use pubsub::{Interest, Path, PubSub, Subscription};

fn event(key: u32) -> Numbers {
    Numbers {
        keys: vec![key],
        shard_hash: None,
    }
}

/// How many changes the busiest tests make.
const CHANGES: u64 = if cfg!(debug_assertions) {
    20_000
} else {
    200_000
};

/// A subscriber that knows when it joined and can tell whether it is intact.
struct Numbered {
    version: u64,
    checksum: u64,
}

impl Numbered {
    fn new(version: u64) -> Self {
        Numbered {
            version,
            checksum: checksum(version),
        }
    }

    fn check(&self) {
        assert_eq!(self.checksum, checksum(self.version));
    }
}

fn checksum(version: u64) -> u64 {
    version.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555
}

impl Drop for Numbered {
    fn drop(&mut self) {
        // Whoever still looks at it will see that it should not.
        self.check();
        self.checksum = 0;
    }
}

/// Field case P13: one writer replaces a subscription with three paths again and again; readers
/// never see half of one, nor an older one after a newer one, nor one that is gone.
#[test]
fn versions_are_whole_and_never_go_backwards() {
    let tree = PubSub::<u32, Numbered>::new();
    let interest = || Interest::new([0, 1, 2].map(|key: u32| Path::root().key(key)));
    let mut current = tree.subscribe(Numbered::new(0), interest());
    let done = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut publisher = tree.publisher();
                let batch = [event(0), event(1), event(2)];
                let mut newest = 0;
                while !done.load(Relaxed) {
                    // The next one joins before the last one leaves: one or two are there, and
                    // they follow each other.
                    let mut seen = Vec::new();
                    let published =
                        publisher.publish_batch(batch.iter(), |subscriber, selection| {
                            subscriber.check();
                            assert!(selection.is_all(), "half a subscription: {selection:?}");
                            seen.push(subscriber.version);
                        });
                    assert_eq!(published.panicked, 0);
                    seen.sort_unstable();
                    assert!(seen.len() == 1 || seen.len() == 2 && seen[0] + 1 == seen[1]);
                    assert!(seen[0] + 1 >= newest, "{seen:?} after {newest}");
                    newest = seen[seen.len() - 1].max(newest);

                    let mut one = 0;
                    let published = tree.publish(&batch[1], |subscriber| {
                        subscriber.check();
                        one = one.max(subscriber.version);
                    });
                    assert_eq!(published.panicked, 0);
                    assert!(one >= newest);
                    newest = one;
                    looks.fetch_add(1, Relaxed);
                }
            });
        }
        for version in 1..=CHANGES {
            let next = tree.subscribe(Numbered::new(version), interest());
            current = next;
        }
        // Every reader had its share, however the machine schedules.
        while looks.load(Relaxed) < 1000 {
            thread::yield_now();
        }
        done.store(true, Relaxed);
    });
    drop(current);
    assert_eq!((tree.len(), tree.nodes()), (0, 1));
}

/// Field case P11: publishers flat out, callbacks that change the tree, and a thread that does
/// nothing else. Who stays subscribed gets everything.
#[test]
fn publishers_and_changes_do_not_hinder_each_other() {
    const PUBLISHERS: usize = 4;
    const EVENTS: usize = 5_000;
    let tree = PubSub::<u32, AtomicUsize>::new();
    let steady = tree.subscribe(AtomicUsize::new(0), Interest::new([Path::root()]));
    let running = AtomicUsize::new(PUBLISHERS);
    let changes = AtomicUsize::new(0);
    let kept: Mutex<Vec<Subscription<u32, AtomicUsize>>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for id in 0..PUBLISHERS {
            let (tree, running, kept) = (&tree, &running, &kept);
            scope.spawn(move || {
                let mut publisher = tree.publisher();
                let mut call = |subscriber: &AtomicUsize| {
                    let count = subscriber.fetch_add(1, Relaxed);
                    if count % 64 == id {
                        let path = Path::root().key((count % 50) as u32);
                        let new = tree.subscribe(AtomicUsize::new(0), Interest::new([path]));
                        let mut kept = kept.lock().unwrap();
                        kept.push(new);
                        if kept.len() > 100 {
                            let oldest = kept.remove(0);
                            drop(kept);
                            oldest.unsubscribe();
                        }
                    }
                };
                for number in 0..EVENTS as u32 / 2 {
                    let one = tree.publish(&event(number % 50), &mut call);
                    let batch = [event(number % 50), event(number % 7)];
                    // A batch calls once, so only half of these are counted.
                    let two =
                        publisher.publish_batch(batch.iter(), |subscriber, _| call(subscriber));
                    assert_eq!(one.panicked + two.panicked, 0);
                }
                running.fetch_sub(1, Relaxed);
            });
        }
        scope.spawn(|| {
            let mut number = 0_u32;
            while running.load(Relaxed) > 0 {
                let paths = [
                    Path::root().key(number % 50),
                    Path::root().any().key(number),
                ];
                let interest = Interest::new(paths).shard(format!("g{}", number % 3));
                drop(tree.subscribe(AtomicUsize::new(0), interest));
                number += 1;
                changes.store(number as usize, Relaxed);
            }
        });
    });
    assert_eq!(steady.subscriber().load(Relaxed), PUBLISHERS * EVENTS);
    assert!(changes.load(Relaxed) > 0);
    kept.lock().unwrap().clear();
    assert_eq!((tree.len(), tree.nodes()), (1, 1));
}

/// Many writers: no change is lost, and the tree is empty in the end.
#[test]
fn concurrent_changes_all_count() {
    let tree = PubSub::<u32, u32>::new();
    let rounds = (CHANGES / 20) as u32;
    let kept: Vec<Subscription<u32, u32>> = thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u32)
            .map(|writer| {
                let tree = &tree;
                scope.spawn(move || {
                    let mut live = Vec::new();
                    for round in 0..rounds {
                        let paths = [
                            Path::root().key(round % 100),
                            Path::root().key(writer).any(),
                            Path::root(),
                        ];
                        let interest =
                            Interest::new(paths.into_iter().take(1 + round as usize % 3));
                        live.push(tree.subscribe(writer, interest));
                        if round % 3 != 0 {
                            drop(live.swap_remove(round as usize % live.len()));
                        }
                    }
                    live
                })
            })
            .collect();
        let join = |writer: thread::ScopedJoinHandle<'_, _>| writer.join().expect("no panic");
        writers.into_iter().flat_map(join).collect()
    });
    assert_eq!(tree.len(), kept.len());
    assert_eq!(kept.len() as u32, 4 * rounds.div_ceil(3));
    drop(kept);
    assert_eq!((tree.len(), tree.nodes()), (0, 1));
}
