//! What the tree allocates: nothing while publishing, little per change, and everything is given
//! back.
//!
//! A counting allocator makes these exact numbers instead of guesses from resident memory. It
//! counts what this thread allocates, so the tests are independent of each other.

mod common;

use allocation_counter::measure;
use common::Numbers;
use pubsub::{Event, Interest, Path, PubSub, Subscription};

/// A quick run tests fewer of the million.
const CYCLES: u64 = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};

fn source(id: u64) -> Path<u64> {
    Path::root().key(id)
}

struct Source(u64);

impl Event<u64> for Source {
    type Key<'a> = u64;

    fn key(&self, depth: usize) -> Option<u64> {
        (depth == 0).then_some(self.0)
    }
}

fn large_tree() -> (PubSub<u64, u64>, Vec<Subscription<u64, u64>>) {
    let tree = PubSub::new();
    let live = (0..100_000_u64).map(|id| (id, Interest::new([source(id % 20_000)])));
    let live = tree.subscribe_all(live);
    (tree, live)
}

#[test]
fn publishing_allocates_nothing() {
    // of a shard group the same member each time: others would be more targets to make room for
    let tree = PubSub::<u32, u32>::builder().random(|| 42).build();
    let paths = |id: u32| match id % 4 {
        0 => vec![Path::root()],
        1 => vec![Path::root().key(id % 10)],
        2 => vec![Path::root().any().key(1_u32), Path::root().key(id % 10)],
        _ => vec![Path::root().key(2_u32), Path::root().key(3_u32).any()],
    };
    let _live: Vec<_> = (0..200)
        .map(|id| {
            let interest = Interest::new(paths(id));
            tree.subscribe(
                id,
                if id % 3 == 0 {
                    interest.shard("g")
                } else {
                    interest
                },
            )
        })
        .collect();
    let batch: Vec<Numbers> = (0..100)
        .map(|key| Numbers {
            keys: vec![key % 10, key % 3],
            shard_hash: (key % 2 == 0).then_some(u64::from(key)),
        })
        .collect();
    let mut publisher = tree.publisher();
    let mut delivered = 0;
    let mut publish = || {
        for event in &batch {
            delivered += tree.publish(event, |_| {}).delivered;
        }
        delivered += publisher.publish_batch(batch.iter(), |_, _| {}).delivered;
    };
    publish();
    let warm = measure(publish);
    assert_eq!(warm.count_total, 0, "{warm:?}");
    assert!(delivered > 10_000);
}

/// Field case P12, first half.
#[test]
fn what_comes_and_goes_leaves_nothing_behind() {
    let tree = PubSub::<u64, u64>::new();
    let cycle = |id| drop(tree.subscribe(id, Interest::new([source(id), source(id).any()])));
    cycle(0);
    let all = measure(|| (0..CYCLES).for_each(cycle));
    assert_eq!((tree.len(), tree.nodes()), (0, 1));
    assert_eq!(all.bytes_current, 0, "{all:?}");
    // And never more at once than a few changes need.
    assert!(all.bytes_max < 8192, "{all:?}");

    let crowd = measure(|| {
        let mut live: Vec<_> = (0..50_000_u64)
            .map(|id| tree.subscribe(id, Interest::new([source(id % 777)]).shard("g")))
            .collect();
        // In an order that has nothing to do with how they came.
        while !live.is_empty() {
            drop(live.swap_remove(live.len() * 7 / 11));
        }
    });
    assert_eq!((tree.len(), tree.nodes()), (0, 1));
    assert_eq!(crowd.bytes_current, 0, "{crowd:?}");
}

/// Field case P12, second half: one more subscription costs far less than a copy of the tree.
#[test]
fn one_more_subscription_copies_a_path_only() {
    // The first look at any tree makes a record of this thread, which stays.
    assert!(PubSub::<u64, u64>::new().is_empty());
    let mut kept = None;
    let whole = measure(|| kept = Some(large_tree()));
    let (tree, live) = kept.expect("made");
    let per_subscription = whole.bytes_current as usize / live.len();
    assert!(per_subscription < 500, "{per_subscription} bytes");

    let mut more = None;
    let one = measure(|| more = Some(tree.subscribe(0, Interest::new([source(777)]))));
    assert!(one.bytes_total < 4096, "{one:?}");
    assert!(one.count_total < 32, "{one:?}");
    drop(more);

    let left = measure(|| drop((tree, live)));
    assert_eq!(left.bytes_current, -whole.bytes_current);
}

/// Thousands at one node, as with many firehoses: still a path, not the list.
#[test]
fn one_more_among_thousands_at_a_node_copies_little() {
    let tree = PubSub::<u64, u64>::new();
    let interest = |id: u64| match id % 2 {
        0 => Interest::new([Path::root()]),
        _ => Interest::new([Path::root()]).shard(format!("group {}", id / 4)),
    };
    let live: Vec<_> = (0..5000)
        .map(|id| tree.subscribe(id, interest(id)))
        .collect();
    for id in [0, 1] {
        let mut more = None;
        let one = measure(|| more = Some(tree.subscribe(id, interest(id))));
        assert!(one.bytes_total < 4096, "{one:?}");
        let gone = measure(|| drop(more));
        assert!(gone.bytes_total < 4096, "{gone:?}");
    }
    drop(live);
    assert!(tree.is_empty());
}

/// A huge batch does not leave its publisher huge.
#[test]
fn a_publisher_forgets_an_unusual_batch() {
    let (tree, _live) = large_tree();
    let mut publisher = tree.publisher();
    let made = measure(|| {
        let many = (0..100_000_u32).map(|id| Source(u64::from(id)));
        let published = publisher.publish_batch(many, |_, _| {});
        assert_eq!(published.delivered, 100_000);
    });
    assert!(made.bytes_current < 3 << 20, "{made:?}");
}
