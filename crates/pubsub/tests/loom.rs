//! Every schedule of a few threads on one tree, by model checking.
//!
//! ```text
//! RUSTFLAGS="--cfg pubsub_loom" cargo test -p pubsub --release --test loom
//! ```
#![cfg(pubsub_loom)]

mod common;

use std::sync::Arc;

use common::Numbers;
use loom::thread;
use pubsub::{Interest, Path, PubSub};

fn event(key: u32) -> Numbers {
    Numbers {
        keys: vec![key],
        shard_hash: None,
    }
}

fn paths(keys: impl IntoIterator<Item = u32>) -> Interest<u32> {
    Interest::new(keys.into_iter().map(|key| Path::root().key(key)))
}

/// Two changes at once: none is lost.
#[test]
fn concurrent_subscribes_both_count() {
    loom::model(|| {
        let tree = PubSub::<u32, u32>::builder().hash_seed(1).build();
        let other = thread::spawn({
            let tree = tree.clone();
            move || tree.subscribe(1, paths([1, 2]))
        });
        let own = tree.subscribe(2, paths([2, 3]));
        let other = other.join().expect("no panic");
        assert_eq!((tree.len(), tree.nodes()), (2, 4));
        let ended = thread::spawn(move || drop(other));
        drop(own);
        ended.join().expect("no panic");
        assert_eq!((tree.len(), tree.nodes()), (0, 1));
    });
}

/// A batch sees a subscription with all its paths or not at all, while it comes and while it goes.
#[test]
fn a_subscription_appears_and_disappears_as_one() {
    loom::model(|| {
        let tree = PubSub::<u32, u32>::builder().hash_seed(1).build();
        let writer = thread::spawn({
            let tree = tree.clone();
            move || drop(tree.subscribe(1, paths([1, 2])))
        });
        let batch = [event(1), event(2)];
        let mut whole = true;
        let mut publisher = tree.publisher();
        let published = publisher.publish_batch(batch.iter(), |_, selection| {
            whole &= selection.is_all();
        });
        assert!(whole && published.delivered <= 1);
        writer.join().expect("no panic");
        assert_eq!(
            publisher.publish_batch(batch.iter(), |_, _| {}).delivered,
            0
        );
    });
}

/// Who publishes twice never sees an older version the second time.
#[test]
fn versions_never_go_backwards() {
    loom::model(|| {
        let tree = PubSub::<u32, u32>::builder().hash_seed(1).build();
        let writer = thread::spawn({
            let tree = tree.clone();
            move || [1, 2].map(|id| tree.subscribe(id, paths([1])))
        });
        let first = tree.publish(&event(1), |_| {}).delivered;
        let second = tree.publish(&event(1), |_| {}).delivered;
        assert!(first <= second);
        let live = writer.join().expect("no panic");
        assert_eq!(tree.publish(&event(1), |_| {}).delivered, live.len());
    });
}

/// Ending a subscription from two sides ends it once, and only that one.
#[test]
fn unsubscribing_from_two_threads_counts_once() {
    loom::model(|| {
        let tree = PubSub::<u32, u32>::builder().hash_seed(1).build();
        let _stays = tree.subscribe(1, paths([1]));
        let goes = Arc::new(tree.subscribe(2, paths([1])));
        let other = thread::spawn({
            let goes = Arc::clone(&goes);
            move || goes.unsubscribe()
        });
        goes.unsubscribe();
        other.join().expect("no panic");
        assert_eq!(tree.len(), 1);
        let mut reached = Vec::new();
        tree.publish(&event(1), |id| reached.push(*id));
        assert_eq!(reached, [1]);
    });
}
