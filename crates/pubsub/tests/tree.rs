//! What the tree promises, one promise a test.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};

use common::Numbers;
use pubsub::{Event, Interest, Path, PubSub, Segment, Subscription};

impl Numbers {
    fn new(keys: impl Into<Vec<u32>>) -> Self {
        Numbers {
            keys: keys.into(),
            shard_hash: None,
        }
    }
}

type Tree<S> = PubSub<u32, S>;

const ANY: Segment<u32> = Segment::Any;

fn path(segments: impl Into<Vec<Segment<u32>>>) -> Path<u32> {
    Path::try_from(segments.into()).expect("short")
}

fn key(key: u32) -> Segment<u32> {
    Segment::Key(key)
}

/// Who gets an event with these keys, sorted.
fn reached<S: Ord + Clone + Send + Sync + 'static>(tree: &Tree<S>, keys: &[u32]) -> Vec<S> {
    let mut got = Vec::new();
    tree.publish(&Numbers::new(keys), |subscriber| {
        got.push(subscriber.clone())
    });
    got.sort();
    got
}

#[test]
fn a_path_matches_everything_below_its_end() {
    let tree = Tree::new();
    let _subscriptions = tree.subscribe_all([
        ("all", Interest::new([path([])])),
        ("1", Interest::new([path([key(1)])])),
        ("1 2", Interest::new([path([key(1), key(2)])])),
        ("* 2", Interest::new([path([ANY, key(2)])])),
        ("* *", Interest::new([path([ANY, ANY])])),
    ]);
    assert_eq!(reached(&tree, &[]), ["all"]);
    assert_eq!(reached(&tree, &[1]), ["1", "all"]);
    assert_eq!(reached(&tree, &[2]), ["all"]);
    assert_eq!(reached(&tree, &[1, 2]), ["* *", "* 2", "1", "1 2", "all"]);
    assert_eq!(reached(&tree, &[3, 2, 9]), ["* *", "* 2", "all"]);
    assert_eq!(tree.nodes(), 6);
}

/// Field case P1.
#[test]
fn overlapping_paths_deliver_once() {
    let tree = Tree::new();
    let (a, log) = (1, 7);
    let both = [path([ANY, key(log)]), path([key(a), key(log)])];
    let _subscription = tree.subscribe("s", Interest::new(both));
    assert_eq!(reached(&tree, &[a, log]), ["s"]);
    assert_eq!(reached(&tree, &[2, log]), ["s"]);
    assert_eq!(tree.nodes(), 5);
}

/// Field case P2.
#[test]
fn a_group_with_overlapping_paths_delivers_once() {
    let tree = Tree::new();
    let (a, log) = (1, 7);
    let both = || [path([ANY, key(log)]), path([key(a), key(log)])];
    let _members = ["x", "y"].map(|s| tree.subscribe(s, Interest::new(both()).shard("g")));
    let mut counts = BTreeMap::new();
    for _ in 0..1000 {
        tree.publish(&Numbers::new([a, log]), |s| {
            *counts.entry(*s).or_insert(0) += 1
        });
    }
    assert_eq!(counts.values().sum::<u32>(), 1000);
    assert_eq!(counts.len(), 2);

    let batch: Vec<Numbers> = (0..1000).map(|_| Numbers::new([a, log])).collect();
    let mut selected = 0;
    tree.publisher()
        .publish_batch(batch.iter(), |_, selection| selected += selection.count());
    assert_eq!(selected, 1000);
}

/// More subscriptions with overlapping paths than are searched one by one.
#[test]
fn very_many_overlapping_subscriptions_get_it_once() {
    let tree = Tree::new();
    let _subscriptions: Vec<_> = (0..1000)
        .map(|id| tree.subscribe(id, Interest::new([path([]), path([ANY]), path([key(1)])])))
        .collect();
    for _ in 0..3 {
        assert_eq!(reached(&tree, &[1]), (0..1000).collect::<Vec<_>>());
    }
}

/// Field case P4: nothing that identifies a subscription is random.
#[test]
fn a_constant_random_source_mixes_nobody_up() {
    let tree = Tree::builder().random(|| 0).build();
    let first = tree.subscribe("first", Interest::new([path([key(1)])]));
    let _second = tree.subscribe("second", Interest::new([path([key(1)])]));
    drop(first);
    assert_eq!(reached(&tree, &[1]), ["second"]);
}

/// Field case P5: equal hashes, different keys. With no bits of the hash left everything collides.
#[test]
fn equal_hashes_are_not_equal_keys() {
    for bits in [0, 1, 4, 5, 64] {
        let tree = Tree::builder().hash_bits(bits).build();
        let ends = |id: u32| Interest::new([path([key(id)])]);
        let mut subscriptions: Vec<Subscription<u32, u32>> =
            (0..40).map(|id| tree.subscribe(id, ends(id))).collect();
        let _wildcard = tree.subscribe(1000, Interest::new([path([ANY, key(0)])]));
        for id in 0..40 {
            assert_eq!(reached(&tree, &[id]), [id]);
            assert_eq!(reached(&tree, &[id, 0]), [id, 1000]);
        }
        assert_eq!(reached(&tree, &[40]), []);
        assert_eq!(tree.nodes(), 43);
        subscriptions.retain(|subscription| subscription.subscriber() % 3 == 0);
        for id in 0..40 {
            assert_eq!(reached(&tree, &[id]).len(), usize::from(id % 3 == 0));
        }
        drop(subscriptions);
        assert_eq!(tree.nodes(), 3);
    }
}

/// Field case P8.
#[test]
fn a_subscription_without_paths_is_silent_and_counts() {
    let tree = Tree::new();
    let silent = tree.subscribe("silent", Interest::new([]));
    assert_eq!((tree.len(), tree.nodes()), (1, 1));
    assert_eq!(reached(&tree, &[1]), [""; 0]);
    drop(silent);
    assert!(tree.is_empty());
}

#[test]
fn equal_paths_count_once() {
    let tree = Tree::new();
    let twice = [path([key(1)]), path([key(1)])];
    let _heavy = tree.subscribe("heavy", Interest::new(twice).shard("g"));
    let _light = tree.subscribe("light", Interest::new([path([key(1)])]).shard("g"));
    let mut heavy = 0;
    for _ in 0..10_000 {
        tree.publish(&Numbers::new([1]), |s| heavy += u32::from(*s == "heavy"));
    }
    assert!((4500..5500).contains(&heavy), "heavy got {heavy} of 10,000");
}

fn counted(tree: &Tree<&'static str>, event: &Numbers, times: u32) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::new();
    for _ in 0..times {
        tree.publish(event, |s| *counts.entry(*s).or_insert(0) += 1);
    }
    counts
}

/// Field case P9: names decide where hashes go, whatever the join order.
#[test]
fn named_members_share_by_hash() {
    let mapping = |order: [&'static str; 3]| {
        let tree = Tree::new();
        let _members =
            order.map(|name| tree.subscribe(name, Interest::new([path([])]).shard("g").name(name)));
        let to: Vec<&str> = (0..100_u64)
            .map(|counter| {
                let event = Numbers {
                    keys: vec![1],
                    shard_hash: Some(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                };
                let counts = counted(&tree, &event, 100);
                assert_eq!(counts.len(), 1, "one counter, one member");
                *counts.keys().next().expect("one")
            })
            .collect();
        for (_, count) in counted(&tree, &Numbers::new([1]), 9000) {
            assert!(
                (2400..3600).contains(&count),
                "no hash, no even spread: {count}"
            );
        }
        to
    };
    let first = mapping(["n1", "n2", "n3"]);
    assert_eq!(mapping(["n3", "n1", "n2"]), first);
    for name in ["n1", "n2", "n3"] {
        assert!(first.contains(&name));
    }
}

/// Byte order of names, unnamed first, equal names as they joined.
#[test]
fn members_are_ordered_by_name_then_by_joining() {
    let tree = Tree::new();
    let joined = [("b", "9"), ("a", "10"), ("u", ""), ("c", "9"), ("v", "")];
    let members = joined
        .map(|(id, name)| tree.subscribe(id, Interest::new([path([])]).shard("g").name(name)));
    let at = |hash| {
        let event = Numbers {
            keys: vec![],
            shard_hash: Some(hash),
        };
        counted(&tree, &event, 1).into_keys().collect::<String>()
    };
    assert_eq!((0..6).map(at).collect::<String>(), "uvabcu");

    // The last named one leaves: random again.
    for named in [0, 1, 3] {
        members[named].unsubscribe();
    }
    let event = Numbers {
        keys: vec![],
        shard_hash: Some(0),
    };
    assert_eq!(counted(&tree, &event, 200).len(), 2);
}

/// Field case P10.
#[test]
fn groups_share_evenly_and_others_get_all() {
    let tree = Tree::new();
    let _members =
        ["a", "b", "c", "d"].map(|id| tree.subscribe(id, Interest::new([path([])]).shard("g")));
    let _others = ["w", "x", "y", "z"]
        .map(|id| tree.subscribe(id, Interest::new([path([])]).shard("").name("ignored")));
    for (id, count) in counted(&tree, &Numbers::new([1]), 40_000) {
        if id < "w" {
            assert!((9500..=10_500).contains(&count), "{id} got {count}");
        } else {
            assert_eq!(count, 40_000);
        }
    }
}

#[test]
fn groups_are_per_node() {
    let tree = Tree::new();
    let _a = tree.subscribe("a", Interest::new([path([ANY])]).shard("g"));
    let _b = tree.subscribe("b", Interest::new([path([key(1)])]).shard("g"));
    assert_eq!(reached(&tree, &[1]), ["a", "b"]);
}

#[test]
fn one_draw_serves_all_nodes() {
    let draws = Arc::new(AtomicU64::new(0));
    let source = Arc::clone(&draws);
    let tree = Tree::builder()
        .random(move || source.fetch_add(1, Relaxed))
        .build();
    let paths = || [path([]), path([ANY]), path([key(1)])];
    let _members = [0, 1, 2].map(|id| tree.subscribe(id, Interest::new(paths()).shard("g")));
    for number in 0..6 {
        assert_eq!(reached(&tree, &[1]), [number % 3]);
    }
    assert_eq!(draws.load(Relaxed), 6);
    let _plain = tree.subscribe(9, Interest::new([path([key(5)])]));
    draws.store(0, Relaxed);
    tree.publish(&Numbers::new([]), |_| {});
    assert_eq!(draws.load(Relaxed), 1);
}

#[test]
fn nothing_is_drawn_where_nothing_is_picked() {
    let tree = Tree::builder().random(|| panic!("not needed")).build();
    let _single = tree.subscribe(1, Interest::new([path([])]).shard("g"));
    let _named =
        ["n1", "n2"].map(|name| tree.subscribe(2, Interest::new([path([])]).shard("h").name(name)));
    let event = Numbers {
        keys: vec![],
        shard_hash: Some(4),
    };
    assert_eq!(tree.publish(&event, |_| {}).delivered, 2);
    let batch = tree
        .publisher()
        .publish_batch([&event; 3].into_iter(), |_, _| {});
    assert_eq!(batch.delivered, 2);
}

/// Field case F8: a panic is counted, stays inside, and costs nobody else the event.
#[test]
fn a_panicking_subscriber_costs_nobody_else_the_event() {
    let tree = Tree::new();
    let _subscriptions: Vec<_> = (0..90)
        .map(|id| {
            let interest = match id % 5 {
                0 => Interest::new([path([])]).shard("g"),
                1 | 3 => Interest::new([path([]), path([key(1)])]),
                _ => Interest::new([path([])]),
            };
            tree.subscribe(id, interest)
        })
        .collect();
    let calls = RefCell::new(BTreeMap::new());
    let call = |id: &usize| {
        *calls.borrow_mut().entry(*id).or_insert(0) += 1;
        if id % 10 == 3 {
            // A panic without a message on stderr.
            resume_unwind(Box::new(*id));
        }
    };
    let published = tree.publish(&Numbers::new([1]), call);
    // 72 alone and one of the group; 9 of them panic.
    assert_eq!((published.delivered, published.panicked), (64, 9));
    assert_eq!(calls.borrow().len(), 73);
    assert!(calls.borrow().values().all(|&count| count == 1));

    calls.borrow_mut().clear();
    let batch = [Numbers::new([1]), Numbers::new([2])];
    let published = tree
        .publisher()
        .publish_batch(batch.iter(), |id, _| call(id));
    assert_eq!(published.panicked, 9);
    assert!(calls.borrow().values().all(|&count| count == 1));
    assert_eq!(published.delivered, calls.borrow().len() - 9);
}

#[test]
fn a_panicking_event_is_the_callers() {
    struct Bad;
    impl Event<u32> for Bad {
        type Key<'a> = u32;
        fn key(&self, _depth: usize) -> Option<u32> {
            panic!("no key today")
        }
    }
    let tree = Tree::new();
    let _subscription = tree.subscribe((), Interest::new([path([]), path([key(1)])]));
    let caught = std::panic::catch_unwind(|| tree.publish(&Bad, |_| {}));
    assert_eq!(
        *caught.unwrap_err().downcast::<&str>().unwrap(),
        "no key today"
    );
    assert_eq!(tree.publish(&Numbers::new([1]), |_| {}).delivered, 1);
}

/// A payload whose drop panics is the worst that a callback can throw.
#[test]
fn a_panicking_payload_is_survived() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("boom");
        }
    }
    let tree = Tree::new();
    let _two = [1, 2].map(|id| tree.subscribe(id, Interest::new([path([])])));
    let published = tree.publish(&Numbers::new([]), |id| {
        if *id == 1 {
            resume_unwind(Box::new(Bomb));
        }
    });
    assert_eq!((published.delivered, published.panicked), (1, 1));
}

#[test]
fn a_callback_may_use_the_tree() {
    let tree = Tree::<u32>::new();
    let mut held = vec![tree.subscribe(0, Interest::new([path([])]))];
    for round in 1..5 {
        let mut fresh = Vec::new();
        let outer = tree.publish(&Numbers::new([]), |id| {
            fresh.push(tree.subscribe(round * 10 + id, Interest::new([path([])])));
            fresh.last().expect("just pushed").unsubscribe();
            let inner = tree.publish(&Numbers::new([]), |_| {});
            assert_eq!(inner.delivered, held.len());
            let batch = [Numbers::new([]), Numbers::new([])];
            let inner = tree.publisher().publish_batch(batch.iter(), |_, _| {});
            assert_eq!(inner.delivered, held.len());
        });
        assert_eq!((outer.delivered, outer.panicked), (held.len(), 0));
        assert_eq!(fresh.len(), held.len());
        held.push(tree.subscribe(round, Interest::new([path([])])));
    }
    // It may even end the subscription that it was called for.
    let held = Mutex::new(held);
    let delivered = tree
        .publish(&Numbers::new([]), |_| drop(held.lock().unwrap().pop()))
        .delivered;
    assert_eq!((delivered, tree.len()), (5, 0));
}

/// The last reference to a subscriber goes while no lock is held, so that its drop may use the
/// tree.
#[test]
fn a_subscribers_drop_may_use_the_tree() {
    struct Farewell(PubSub<u32, Self>, Arc<AtomicUsize>);
    impl Drop for Farewell {
        fn drop(&mut self) {
            self.1.store(self.0.len() + 100, Relaxed);
            drop(self.0.publisher());
        }
    }
    let tree = PubSub::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let farewell = || Farewell(tree.clone(), Arc::clone(&seen));
    drop(tree.subscribe(farewell(), Interest::new([path([key(1)])])));
    assert_eq!(seen.swap(0, Relaxed), 100);

    // The same if a publish is the last one to see it.
    let subscription = Mutex::new(Some(tree.subscribe(farewell(), Interest::new([path([])]))));
    let published = tree.publish(&Numbers::new([]), |_| {
        drop(subscription.lock().unwrap().take());
        assert_eq!(seen.load(Relaxed), 0, "still in use");
    });
    assert_eq!((published.delivered, seen.load(Relaxed)), (1, 100));
}

#[test]
fn a_publisher_does_not_keep_what_was_unsubscribed() {
    let tree = PubSub::new();
    let alive = Arc::new(());
    let subscription = tree.subscribe(Arc::clone(&alive), Interest::new([path([key(1)])]));
    let mut publisher = tree.publisher();
    let batch = [Numbers::new([1]), Numbers::new([2])];
    assert_eq!(
        publisher.publish_batch(batch.iter(), |_, _| {}).delivered,
        1
    );
    drop(subscription);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn unsubscribing_twice_is_harmless() {
    let tree = Tree::new();
    let first = tree.subscribe(1, Interest::new([path([key(1)])]));
    let second = tree.subscribe(2, Interest::new([path([key(1)])]));
    first.unsubscribe();
    first.unsubscribe();
    drop(first);
    assert_eq!(reached(&tree, &[1]), [2]);
    assert_eq!(tree.len(), 1);
    drop(second);
    assert_eq!(tree.len(), 0);
}

#[test]
fn a_subscription_outlives_every_handle_on_the_tree() {
    let tree = Tree::new();
    let subscription = tree.subscribe(1, Interest::new([path([key(1)])]));
    drop(tree);
    assert_eq!(*subscription.subscriber(), 1);
    drop(subscription);
}

#[test]
fn a_batch_of_any_size_reaches_everybody() {
    let tree = Tree::new();
    let _all = tree.subscribe("all", Interest::new([path([])]));
    let _odd = tree.subscribe("odd", Interest::new([path([key(1)])]));
    let _both = tree.subscribe("both", Interest::new([path([key(0)]), path([key(1)])]));
    let mut publisher = tree.publisher();
    for size in [0, 1, 2, 63, 64, 65, 128, 4095, 4096, 4097, 10_000] {
        let mut got: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut calls = 0;
        let events = (0..size).map(|index| Numbers::new([index as u32 % 2]));
        let published = publisher.publish_batch(events, |id, selection| {
            calls += 1;
            assert_eq!(selection.len(), size);
            assert_eq!(selection.is_all(), selection.count() == size);
            assert!(!selection.is_empty() && !selection.contains(size));
            got.entry(id).or_default().extend(selection.indices());
        });
        assert_eq!((published.delivered, published.panicked), (calls, 0));
        let everything: Vec<usize> = (0..size).collect();
        let odd: Vec<usize> = (0..size).filter(|index| index % 2 == 1).collect();
        assert_eq!(got.remove("all").unwrap_or_default(), everything);
        assert_eq!(got.remove("both").unwrap_or_default(), everything);
        assert_eq!(got.remove("odd").unwrap_or_default(), odd);
    }
}

#[test]
fn equal_selections_are_equal() {
    let tree = Tree::new();
    let _a = tree.subscribe("a", Interest::new([path([key(1)])]));
    let _b = tree.subscribe("b", Interest::new([path([key(1)]), path([key(9)])]));
    let _c = tree.subscribe("c", Interest::new([path([])]));
    let batch: Vec<Numbers> = (0..100).map(|i| Numbers::new([i % 3])).collect();
    let mut known: std::collections::HashMap<Vec<std::ops::Range<usize>>, u64> = Default::default();
    let mut hashes = std::collections::HashSet::new();
    let state = std::collections::hash_map::RandomState::new();
    let published = tree
        .publisher()
        .publish_batch(batch.iter(), |_, selection| {
            use std::hash::BuildHasher;
            let hash = state.hash_one(selection);
            hashes.insert(hash);
            let same = *known.entry(selection.ranges().collect()).or_insert(hash);
            assert_eq!(same, hash);
        });
    assert_eq!((published.delivered, published.panicked), (3, 0));
    assert_eq!((known.len(), hashes.len()), (2, 2));
}

#[test]
fn deep_paths_work_down_to_the_limit() {
    let tree = Tree::new();
    let deep = path(vec![ANY; 255]);
    let mixed = path((0..255).map(key).collect::<Vec<_>>());
    let _subscription = tree.subscribe(1, Interest::new([deep, mixed]));
    assert_eq!(tree.nodes(), 511);
    let keys: Vec<u32> = (0..255).collect();
    assert_eq!(reached(&tree, &keys), [1]);
    assert_eq!(reached(&tree, &keys[..254]), []);
    assert!(Path::try_from(vec![ANY; 256]).is_err());
}

#[test]
#[should_panic(expected = "a path has at most 255 segments")]
fn a_path_that_is_too_deep_is_refused() {
    let _ = (0..256).fold(Path::<u32>::root(), |path, _| path.any());
}

/// Keys that are cheap to lend and dear to own.
#[test]
fn borrowed_keys_find_owned_ones() {
    struct Line<'a>(&'a str);
    impl Event<Arc<str>> for Line<'_> {
        type Key<'a>
            = &'a str
        where
            Self: 'a;
        fn key(&self, depth: usize) -> Option<&str> {
            self.0.split(' ').nth(depth)
        }
    }
    let tree = PubSub::<Arc<str>, mpsc::Sender<String>>::new();
    let (sender, receiver) = mpsc::channel();
    let _subscription = tree.subscribe(sender, Interest::new([Path::root().any().key("b")]));
    for line in ["a b", "b a", "b b c"] {
        tree.publish(&Line(line), |to| to.send(line.to_owned()).expect("open"));
    }
    drop((_subscription, tree));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["a b", "b b c"]);
}

#[test]
fn handles_travel_between_threads() {
    fn travels<T: Send + Sync>() {}
    travels::<PubSub<String, Mutex<u32>>>();
    travels::<Subscription<String, Mutex<u32>>>();
    fn moves<T: Send>() {}
    moves::<pubsub::Publisher<String, Mutex<u32>>>();
    let done = AtomicBool::new(false);
    let tree = Tree::new();
    std::thread::scope(|scope| {
        let subscription = tree.subscribe(1, Interest::new([path([])]));
        let mut publisher = tree.publisher();
        scope.spawn(move || {
            publisher.publish_batch([Numbers::new([])].iter(), |_, _| {});
            drop(subscription);
        });
        done.store(true, Relaxed);
    });
    assert!(tree.is_empty());
}
