//! Derived events in a tree: what the macro writes does what one would write by hand.

use std::hash::{BuildHasher, Hash};

use pubsub::{Equivalent, Event, Interest, Path, PubSub, Segment, stable_hash};

/// A struct with every kind of attribute, borrowing where it can.
#[derive(Event)]
struct Line<'a> {
    #[event(key = String)]
    source: &'a str,
    r#type: Kind,
    #[event(rename = "port")]
    number: u16,
    #[event(skip)]
    text: &'a str,
    #[event(skip, hash_with = length)]
    weight: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Out,
    Err,
}

fn length(weight: &[u8]) -> u64 {
    weight.len() as u64
}

fn line(source: &str, kind: Kind, number: u16) -> Line<'_> {
    Line {
        source,
        r#type: kind,
        number,
        text: "",
        weight: Vec::new(),
    }
}

#[test]
fn filters_become_paths() {
    let any = Segment::Any;
    let path = |segments: Vec<Segment<LineKey>>| Path::try_from(segments).expect("short");
    let source = || Segment::Key(LineKey::Source("a".into()));
    let port = || Segment::Key(LineKey::Port(80));
    assert_eq!(LineFilter::new().path(), Path::root());
    assert_eq!(LineFilter::new().source("a").path(), path(vec![source()]));
    assert_eq!(
        LineFilter::new().port(80).path(),
        path(vec![any.clone(), any.clone(), port()])
    );
    assert_eq!(
        LineFilter::new().port(80).source("a").path(),
        path(vec![source(), any, port()])
    );
    let all: Path<LineKey> = LineFilter::new()
        .r#type(Kind::Err)
        .source("a")
        .port(80)
        .into();
    assert_eq!(
        all,
        path(vec![
            source(),
            Segment::Key(LineKey::Type(Kind::Err)),
            port()
        ])
    );
}

#[test]
fn a_struct_is_routed_by_its_fields() {
    let tree = PubSub::<LineKey, &str>::new();
    let wishes = [
        ("all", LineFilter::new()),
        ("a", LineFilter::new().source("a")),
        ("err", LineFilter::new().r#type(Kind::Err)),
        ("a 80", LineFilter::new().source("a").port(80)),
    ];
    let _live = wishes.map(|(name, filter)| tree.subscribe(name, Interest::new([filter.path()])));
    let reached = |event: Line| {
        let mut reached = Vec::new();
        tree.publish(&event, |name| reached.push(*name));
        reached.sort_unstable();
        reached
    };
    assert_eq!(reached(line("a", Kind::Out, 80)), ["a", "a 80", "all"]);
    assert_eq!(reached(line("a", Kind::Err, 81)), ["a", "all", "err"]);
    assert_eq!(reached(line("b", Kind::Out, 80)), ["all"]);
    assert_eq!(line("a", Kind::Out, 80).text, "");
}

#[test]
fn the_hash_field_picks_the_member() {
    assert_eq!(line("a", Kind::Out, 1).shard_hash(), Some(0));
    let heavy = Line {
        weight: vec![0; 7],
        ..line("a", Kind::Out, 1)
    };
    assert_eq!(heavy.shard_hash(), Some(7));

    #[derive(Event)]
    struct Counter {
        source: u32,
        #[event(hash)]
        name: String,
    }
    let counter = Counter {
        source: 1,
        name: "requests".into(),
    };
    assert_eq!(counter.shard_hash(), Some(stable_hash("requests")));
    assert!(
        CounterFilter::new()
            .source(1)
            .name("requests")
            .path()
            .depth()
            == 2
    );
}

/// An enum with every kind of variant.
#[derive(Event)]
enum Order {
    Created {
        region: String,
        #[event(skip, hash)]
        number: u64,
    },
    Paid(
        #[event(rename = "method")] String,
        #[expect(dead_code, reason = "what else an event carries")]
        #[event(skip)]
        f64,
    ),
    Cancelled,
    NeverHappened {},
}

fn orders() -> [Order; 4] {
    [
        Order::Created {
            region: "eu".into(),
            number: 5,
        },
        Order::Paid("card".into(), 1.5),
        Order::Cancelled,
        Order::NeverHappened {},
    ]
}

#[test]
fn an_enum_is_routed_by_variant_and_fields() {
    let tree = PubSub::<OrderKey, u32>::new();
    let paths = [
        OrderFilter::all().path(),
        OrderFilter::created().path(),
        OrderFilter::created().region("eu").path(),
        OrderFilter::created().region("us").path(),
        OrderFilter::paid().method("card").path(),
        OrderFilter::cancelled().path(),
        OrderFilter::never_happened().into(),
    ];
    let _live: Vec<_> = (0..)
        .zip(paths)
        .map(|(id, path)| tree.subscribe(id, Interest::new([path])))
        .collect();
    let reached = orders().map(|order| {
        let mut reached = Vec::new();
        tree.publish(&order, |id| reached.push(*id));
        reached.sort_unstable();
        reached
    });
    assert_eq!(reached, [vec![0, 1, 2], vec![0, 4], vec![0, 5], vec![0, 6]]);
    let hashes = orders().map(|order| order.shard_hash());
    assert_eq!(hashes, [Some(stable_hash(&5_u64)), None, None, None]);
    assert_eq!(Path::from(OrderFilter::all()), Path::root());
}

#[derive(Clone, Copy, Event)]
enum Signal {
    Start,
    Stop,
}

#[test]
fn an_enum_of_unit_variants_is_its_own_key() {
    let tree = PubSub::<SignalKey, ()>::new();
    let _live = tree.subscribe((), Interest::new([SignalFilter::stop().path()]));
    let delivered = [Signal::Start, Signal::Stop].map(|s| tree.publish(&s, |()| {}).delivered);
    assert_eq!(delivered, [0, 1]);
}

/// What the tree relies on: a lent key finds the stored one.
#[test]
fn lent_keys_hash_like_stored_ones() {
    fn check<E: Event<K>, K: Hash + Eq>(event: &E, stored: &[K]) {
        let state = std::hash::RandomState::new();
        for (depth, stored) in stored.iter().enumerate() {
            let lent = event.key(depth).expect("a key");
            assert!(lent.equivalent(stored));
            assert_eq!(state.hash_one(lent), state.hash_one(stored));
        }
        assert!(event.key(stored.len()).is_none());
        assert!(stored.len() < 2 || !event.key(0).expect("a key").equivalent(&stored[1]));
    }
    let stored = [
        LineKey::Source("a".into()),
        LineKey::Type(Kind::Out),
        LineKey::Port(80),
    ];
    check(&line("a", Kind::Out, 80), &stored);
    let [created, paid, cancelled, never] = orders();
    check(
        &created,
        &[OrderKey::Created, OrderKey::CreatedRegion("eu".into())],
    );
    check(
        &paid,
        &[OrderKey::Paid, OrderKey::PaidMethod("card".into())],
    );
    check(&cancelled, &[OrderKey::Cancelled]);
    check(&never, &[OrderKey::NeverHappened]);
    check(&Signal::Stop, &[SignalKey::Stop]);
}

/// Names that the macro's own code uses must not disturb it.
mod hygiene {
    #![allow(dead_code)]

    type Option = ();
    type Some = ();
    struct Path;
    struct Default;

    #[derive(pubsub::Event)]
    pub(super) struct Odd {
        depth: u8,
        state: u8,
        key: u8,
        filter: u8,
        lent: u8,
        key_0: u8,
    }

    #[derive(pubsub::Event)]
    #[event(crate = pubsub)]
    pub enum Option2 {
        None,
        Some(#[event(rename = "value")] u8),
        Key { r#fn: u8 },
    }

    #[derive(pubsub::Event)]
    pub(crate) struct Two<'event2, 'b> {
        #[event(key = String)]
        a: &'event2 str,
        #[event(skip)]
        b: &'b str,
        #[event(key = Vec<u8>)]
        c: &'b [u8],
    }
}

#[test]
fn odd_names_are_no_problem() {
    use hygiene::{OddFilter, Option2, Option2Filter, Option2Key, TwoFilter};
    let odd = OddFilter::new()
        .depth(1)
        .state(2)
        .key(3)
        .filter(4)
        .lent(5)
        .key_0(6);
    assert_eq!(odd.path().depth(), 6);
    let tree = PubSub::<Option2Key, ()>::new();
    let paths = [
        Option2Filter::none().path(),
        Option2Filter::some().value(1).path(),
        Option2Filter::key().r#fn(3).path(),
    ];
    let _live = tree.subscribe((), Interest::new(paths));
    let events = [
        Option2::None,
        Option2::Some(1),
        Option2::Some(2),
        Option2::Key { r#fn: 3 },
    ];
    let delivered = events.map(|event| tree.publish(&event, |()| {}).delivered);
    assert_eq!(delivered, [1, 1, 0, 1]);
    assert_eq!(TwoFilter::new().c([1, 2]).a("x").path().depth(), 2);
}
