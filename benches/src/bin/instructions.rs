//! The hot paths, each to be run alone under callgrind: `cargo xtask bench --instructions`.
//!
//! Without an argument it lists their names; with one it prepares that path, runs it a few times so
//! that everything is allocated and resolved, runs it many times more inside of `counted`, which is
//! all that callgrind looks at, and prints how many operations that were. Hash keys are fixed and
//! nothing runs beside, so the counts are the same every time.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::process::ExitCode;

use benches::{Fixture, Tree, message, request, source_id, wire_message};
use diode::{Limits, ManyToOne, Weighted};
use loggregator::{Message, selectors_to_interest};

/// Operations before counting.
const WARM_UP: usize = 16;
/// Operations that are counted.
const COUNTED: usize = 256;

/// A path: its name, and what prepares and runs it.
type Path = (&'static str, fn());

const PATHS: &[Path] = &[
    ("diode/many_to_one/set", many_to_one_set),
    (
        "diode/many_to_one/set_overwriting",
        many_to_one_set_overwriting,
    ),
    ("diode/many_to_one/try_next", many_to_one_try_next),
    ("diode/weighted/set", weighted_set),
    ("diode/weighted/set_overwriting", weighted_set_overwriting),
    ("diode/weighted/take_into", weighted_take_into),
    ("pubsub/publish/0_matches", || publish(0)),
    ("pubsub/publish/1_match", || publish(1)),
    ("pubsub/publish/5_matches", || publish(5)),
    ("pubsub/publish_batch/100_envelopes", publish_batch),
    ("pubsub/subscribe_and_unsubscribe", subscribe),
    ("loggregator/parse/100_logs", parse),
    ("loggregator/build_batch/100_logs", build_batch),
    ("loggregator/select/1_of_100_logs", select),
];

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        for (name, _) in PATHS {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    let Some((_, path)) = PATHS.iter().find(|(name, _)| *name == wanted) else {
        eprintln!("there is no path {wanted:?}; without an argument they are listed");
        return ExitCode::FAILURE;
    };
    path();
    println!("{COUNTED}");
    ExitCode::SUCCESS
}

/// Runs the operation as often as it is counted. Callgrind knows this function by its name.
#[inline(never)]
fn counted(operation: &mut dyn FnMut()) {
    for _ in 0..COUNTED {
        operation();
    }
}

/// Runs the operation some times without counting, then counts it.
fn count(mut operation: impl FnMut()) {
    for _ in 0..WARM_UP {
        operation();
    }
    counted(&mut operation);
}

/// Room for everything that one path stores.
const ROOMY: usize = 1024;

fn many_to_one_set() {
    let (writer, reader) = ManyToOne::<u64>::new(ROOMY).expect("room").split();
    count(|| writer.set(black_box(7)));
    drop(reader);
}

fn many_to_one_set_overwriting() {
    let (writer, reader) = ManyToOne::<u64>::new(8).expect("room").split();
    count(|| writer.set(black_box(7)));
    drop(reader);
}

fn many_to_one_try_next() {
    let (writer, mut reader) = ManyToOne::<u64>::new(ROOMY).expect("room").split();
    for number in 0..ROOMY as u64 {
        writer.set(number);
    }
    count(|| {
        black_box(reader.try_next()).expect("a value");
    });
}

/// A ring of runs, as the router's are.
fn weighted(
    envelopes: usize,
) -> (
    diode::weighted::Writer<loggregator::Run>,
    diode::weighted::Reader<loggregator::Run>,
) {
    let limits = Limits {
        weight: envelopes,
        bytes: 64 << 20,
    };
    Weighted::new(limits).expect("room").split()
}

fn weighted_set() {
    let (writer, reader) = weighted(ROOMY);
    let run = message([source_id(1)]).whole();
    count(|| writer.set(run.clone()));
    drop(reader);
}

fn weighted_set_overwriting() {
    let (writer, reader) = weighted(8);
    let run = message([source_id(1)]).whole();
    count(|| writer.set(run.clone()));
    drop(reader);
}

fn weighted_take_into() {
    let (writer, mut reader) = weighted(ROOMY);
    let run = message([source_id(1)]).whole();
    let mut taken = Vec::with_capacity(4);
    for _ in 0..ROOMY {
        writer.set(run.clone());
    }
    count(|| {
        black_box(reader.take_into(&mut taken, 1));
        taken.clear();
    });
}

/// Source ids in the trees.
const SOURCES: usize = 2000;

/// Numbers of sources, all over the tree: how deep one lies depends on its hash.
fn numbers() -> impl Iterator<Item = usize> {
    (0..SOURCES).step_by(7).cycle()
}

/// To so many subscriptions per source id.
fn publish(matches: usize) {
    let tree = Tree::of_size(Fixture::Noop, SOURCES * matches.max(1), SOURCES);
    let first = if matches == 0 { SOURCES } else { 0 };
    let all = numbers().take(WARM_UP + COUNTED);
    let messages: Vec<_> = all
        .map(|number| message([source_id(first + number)]))
        .collect();
    let mut next = messages.iter();
    count(|| {
        let facts = next.next().expect("enough messages").facts(0);
        let published = tree.tree.publish(&facts, |fixture| fixture.receive());
        assert_eq!(black_box(published.delivered), matches);
    });
}

fn publish_batch() {
    let tree = Tree::of_size(Fixture::Noop, SOURCES * 5, SOURCES);
    let message = message(numbers().take(100).map(source_id));
    let mut publisher = tree.tree.publisher();
    count(|| {
        let published = publisher.publish_batch(message.whole().events(), |fixture, selection| {
            black_box(selection.count());
            fixture.receive();
        });
        assert_eq!(black_box(published.delivered), 500);
    });
}

fn subscribe() {
    let tree = Tree::of_size(Fixture::Noop, SOURCES * 5, SOURCES);
    let mut next = numbers().map(|number| request(&source_id(number)));
    count(|| {
        let interest = selectors_to_interest(&next.next().expect("an endless list"));
        drop(black_box(tree.tree.subscribe(Fixture::Noop, interest)));
    });
}

fn parse() {
    let wire = wire_message((0..100).map(source_id));
    count(|| {
        let message = Message::parse(&wire, loggregator::Limits::default());
        black_box(message).expect("a well-formed message");
    });
}

fn build_batch() {
    let runs: Vec<_> = (0..100)
        .map(|number| message([source_id(number)]).whole())
        .collect();
    let mut buffer = Vec::with_capacity(1 << 16);
    count(|| {
        buffer.clear();
        for run in &runs {
            run.append_to(&mut buffer);
        }
        black_box(buffer.as_slice());
    });
}

fn select() {
    let message = message((0..100).map(source_id));
    count(|| {
        // Not a list of one by mistake: the range is what a selection yields.
        let ranges = std::iter::once(50..51);
        black_box(message.select(ranges));
    });
}
