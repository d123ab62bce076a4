//! The tree against a model that is too simple to be wrong: a list of subscriptions, matched one
//! by one.
//!
//! Random programs subscribe, unsubscribe and publish, one by one and in batches, with few keys so
//! that paths meet often, and with hashes cut down so that keys collide. After every step the tree
//! must have delivered exactly what the model says, and have exactly the nodes that the live paths
//! need.

mod common;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::Numbers;
use proptest::collection::vec;
use proptest::prelude::*;
use pubsub::{Interest, Path, PubSub, Segment, Subscription};

type Segments = Vec<Segment<u32>>;

#[derive(Clone, Debug)]
struct Wish {
    paths: Vec<Segments>,
    shard_id: &'static str,
    name: &'static str,
}

#[derive(Clone, Debug)]
enum Step {
    Subscribe(Wish),
    SubscribeAll(Vec<Wish>),
    /// Which of the live ones, modulo their number.
    Unsubscribe(usize),
    Publish(Numbers, u64),
    Batch(Vec<Numbers>, u64),
}

struct Live {
    id: usize,
    wish: Wish,
    _subscription: Subscription<u32, usize>,
}

/// What one event is delivered to, by the rules as they are written down.
fn expected(live: &[Live], event: &Numbers, random: u64) -> BTreeSet<usize> {
    let mut chosen = BTreeSet::new();
    let mut groups: BTreeMap<(&Segments, &str), Vec<&Live>> = BTreeMap::new();
    for one in live {
        // Equal paths in one request count once.
        let paths: BTreeSet<&Segments> = one.wish.paths.iter().collect();
        for path in paths {
            if !matches(path, event) {
                continue;
            }
            if one.wish.shard_id.is_empty() {
                chosen.insert(one.id);
            } else {
                let group = groups.entry((path, one.wish.shard_id)).or_default();
                group.push(one);
            }
        }
    }
    for members in groups.values_mut() {
        members.sort_by_key(|one| (one.wish.name.as_bytes(), one.id));
        let named = members.iter().any(|one| !one.wish.name.is_empty());
        let number = match event.shard_hash {
            Some(hash) if named => hash,
            _ => random,
        };
        chosen.insert(members[(number % members.len() as u64) as usize].id);
    }
    chosen
}

fn matches(path: &Segments, event: &Numbers) -> bool {
    path.len() <= event.keys.len()
        && path
            .iter()
            .zip(&event.keys)
            .all(|(segment, key)| match segment {
                Segment::Any => true,
                Segment::Key(own) => own == key,
            })
}

fn expected_nodes(live: &[Live]) -> usize {
    let paths = live.iter().flat_map(|one| &one.wish.paths);
    let prefixes = paths.flat_map(|path| (0..=path.len()).map(|end| &path[..end]));
    prefixes.chain([&[][..]]).collect::<HashSet<_>>().len()
}

fn interest(wish: &Wish) -> Interest<u32> {
    let paths = wish.paths.iter().cloned().map(Path::try_from);
    Interest::new(paths.map(|path| path.expect("short")))
        .shard(wish.shard_id)
        .name(wish.name)
}

/// Runs a program on tree and model side by side.
fn run(hash_bits: u32, steps: Vec<Step>) -> Result<(), TestCaseError> {
    // Within a step all draws give the same number, whatever their order; how many there were is
    // counted.
    let random = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let source = Arc::clone(&random);
    let tree = PubSub::<u32, usize>::builder()
        .hash_bits(hash_bits)
        .random(move || {
            source.1.fetch_add(1, Relaxed);
            source.0.load(Relaxed)
        })
        .build();
    let mut publisher = tree.publisher();
    let mut live: Vec<Live> = Vec::new();
    let mut ids = 0..;

    for step in steps {
        random.1.store(0, Relaxed);
        match step {
            Step::Subscribe(wish) => {
                let id = ids.next().expect("endless");
                let _subscription = tree.subscribe(id, interest(&wish));
                live.push(Live {
                    id,
                    wish,
                    _subscription,
                });
            }
            Step::SubscribeAll(wishes) => {
                let new: Vec<_> = ids.by_ref().zip(wishes).collect();
                let wanted = new.iter().map(|(id, wish)| (*id, interest(wish)));
                let subscriptions = tree.subscribe_all(wanted);
                prop_assert_eq!(subscriptions.len(), new.len());
                for ((id, wish), _subscription) in new.into_iter().zip(subscriptions) {
                    prop_assert_eq!(*_subscription.subscriber(), id);
                    live.push(Live {
                        id,
                        wish,
                        _subscription,
                    });
                }
            }
            Step::Unsubscribe(which) => {
                if !live.is_empty() {
                    live.remove(which % live.len());
                }
            }
            Step::Publish(event, number) => {
                random.0.store(number, Relaxed);
                let mut got = Vec::new();
                let published = tree.publish(&event, |id| got.push(*id));
                prop_assert_eq!(published.delivered, got.len());
                prop_assert!(random.1.load(Relaxed) <= 1, "one draw per event at most");
                let once: BTreeSet<usize> = got.iter().copied().collect();
                prop_assert_eq!(once.len(), got.len(), "delivered twice: {:?}", got);
                prop_assert_eq!(once, expected(&live, &event, number));
            }
            Step::Batch(events, number) => {
                random.0.store(number, Relaxed);
                let mut got = BTreeMap::new();
                let mut twice = None;
                let published = publisher.publish_batch(events.iter(), |id, selection| {
                    let indices: Vec<usize> = selection.indices().collect();
                    assert_eq!(indices.len(), selection.count());
                    assert_eq!(indices.len() == events.len(), selection.is_all());
                    for index in 0..events.len() {
                        assert_eq!(indices.contains(&index), selection.contains(index));
                    }
                    if got.insert(*id, indices).is_some() {
                        twice = Some(*id);
                    }
                });
                prop_assert_eq!(published.panicked, 0);
                prop_assert_eq!(published.delivered, got.len());
                prop_assert_eq!(twice, None, "one call per subscriber and batch");
                prop_assert!(random.1.load(Relaxed) <= events.len() as u64);
                let mut want: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
                for (index, event) in events.iter().enumerate() {
                    for id in expected(&live, event, number) {
                        want.entry(id).or_default().push(index);
                    }
                }
                prop_assert_eq!(got, want);
            }
        }
        prop_assert_eq!(tree.len(), live.len());
        prop_assert_eq!(tree.nodes(), expected_nodes(&live));
    }
    drop(live);
    prop_assert_eq!((tree.len(), tree.nodes()), (0, 1));
    Ok(())
}

fn segment() -> impl Strategy<Value = Segment<u32>> {
    prop_oneof![2 => Just(Segment::Any), 3 => (0..4_u32).prop_map(Segment::Key)]
}

fn wish() -> impl Strategy<Value = Wish> {
    let shard_id = prop_oneof![2 => Just(""), 2 => Just("g"), 1 => Just("h")];
    let name = prop_oneof![2 => Just(""), 1 => Just("n1"), 1 => Just("n2"), 1 => Just("n10")];
    (vec(vec(segment(), 0..4), 0..5), shard_id, name).prop_map(|(paths, shard_id, name)| Wish {
        paths,
        shard_id,
        name,
    })
}

fn event() -> impl Strategy<Value = Numbers> {
    (vec(0..5_u32, 0..5), proptest::option::of(any::<u64>()))
        .prop_map(|(keys, shard_hash)| Numbers { keys, shard_hash })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => wish().prop_map(Step::Subscribe),
        1 => vec(wish(), 0..6).prop_map(Step::SubscribeAll),
        3 => any::<usize>().prop_map(Step::Unsubscribe),
        4 => (event(), any::<u64>()).prop_map(|(event, random)| Step::Publish(event, random)),
        2 => (vec(event(), 0..140), any::<u64>())
            .prop_map(|(events, random)| Step::Batch(events, random)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tree_does_what_the_model_does(
        hash_bits in prop_oneof![Just(0), Just(3), Just(64)],
        steps in vec(step(), 1..40),
    ) {
        run(hash_bits, steps)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Hundreds of members at one node and thousands of keys: lists and maps of several levels.
    #[test]
    fn large_trees_do_too(
        keys in vec(0..3000_u32, 200..1500),
        gone in vec(any::<usize>(), 0..1500),
        events in vec(0..3000_u32, 1..200),
        random in any::<u64>(),
    ) {
        let wishes = keys.iter().enumerate().map(|(i, &key)| Wish {
            paths: if i % 3 == 0 {
                vec![vec![]]
            } else if i % 3 == 1 {
                vec![vec![Segment::Key(key)], vec![Segment::Any, Segment::Key(key % 7)]]
            } else {
                vec![vec![Segment::Key(key)]]
            },
            shard_id: ["", "g", "h", ""][i % 4],
            name: ["", "n1", "n2", "n3", "n4"][key as usize % 5],
        });
        let mut steps: Vec<Step> = wishes.map(Step::Subscribe).collect();
        let events: Vec<Numbers> = events
            .into_iter()
            .map(|key| Numbers {
                keys: vec![key, key % 11],
                shard_hash: (key % 2 == 0).then_some(u64::from(key) * 0x9e37_79b9),
            })
            .collect();
        steps.push(Step::Batch(events.clone(), random));
        steps.extend(gone.into_iter().map(Step::Unsubscribe));
        steps.push(Step::Batch(events.clone(), random));
        steps.extend(events.into_iter().take(20).map(|event| Step::Publish(event, random)));
        // Counting the model's nodes after each step would take most of the time.
        run_without_counting(steps)?;
    }
}

fn run_without_counting(steps: Vec<Step>) -> Result<(), TestCaseError> {
    run(64, steps)
}
