//! The proposal's benchmarks: publishing into 100,000 subscriptions over 20,000 source ids, five of
//! which match each envelope.
//!
//! - `router_noop`: one thread, subscribers that do nothing (processor time).
//! - `router_parallel_noop/N`: N threads at once; the time is that of all, per publish.
//! - `router/FIXTURE`: one thread, subscribers that cost a microsecond each.
//! - `router_fanout/FIXTURE/N`: the worker stage in front, with N workers. A round ends when the last
//!   envelope is through; starting and stopping the stage are outside of the timed part.
//! - `subscriber/FIXTURE`: what a subscriber costs by itself, to hold the others against.
//!
//! `Fixture` says what noop, spin and wait are. Times are per envelope.

mod clock;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use benches::{Fixture, Tree, message, source_id};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fanout::FanoutWriter;
use loggregator::{Key, Run};
use pubsub::PubSub;

use clock::ThreadTime;

/// How many threads or workers.
const SWEEP: [usize; 5] = [1, 2, 4, 8, 16];

type Subscribers = PubSub<Key, Fixture>;

/// Publishes the one envelope of `run` to whom it matches.
#[inline]
fn publish(tree: &Subscribers, run: &Run) {
    let published = tree.publish(&run.facts(0), |fixture| fixture.receive());
    debug_assert_eq!(published.delivered, 5);
    black_box(published.delivered);
}

/// The envelope that is published over and over.
fn envelope() -> Run {
    message([source_id(4711)]).whole()
}

fn router_noop(criterion: &mut Criterion<ThreadTime>) {
    let tree = Lazy::new(Fixture::Noop);
    let run = envelope();
    criterion.bench_function("router_noop", |bencher| {
        let tree = tree.get();
        bencher.iter(|| publish(tree, &run));
    });
}

fn router_parallel_noop(criterion: &mut Criterion) {
    let tree = Lazy::new(Fixture::Noop);
    let mut group = criterion.benchmark_group("router_parallel_noop");
    for threads in SWEEP {
        group.bench_function(BenchmarkId::from_parameter(threads), |bencher| {
            let tree = tree.get();
            bencher.iter_custom(|iterations| publish_in_parallel(tree, threads, iterations));
        });
    }
    group.finish();
}

/// The time from the moment when all threads are ready until the last one is done.
fn publish_in_parallel(tree: &Subscribers, threads: usize, iterations: u64) -> Duration {
    // Each does the same, so the first ones may do one more: the time is that of the slowest.
    let share = iterations.div_ceil(threads as u64);
    let (ready, done) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Of its own: a shared message would be a shared reference count.
                let run = envelope();
                ready.wait();
                for _ in 0..share {
                    publish(tree, &run);
                }
                done.wait();
            });
        }
        ready.wait();
        let started = Instant::now();
        done.wait();
        // What was asked for, not what rounding up made of it.
        started
            .elapsed()
            .mul_f64(iterations as f64 / (share * threads as u64) as f64)
    })
}

fn router(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("router");
    for fixture in Fixture::ALL {
        let tree = Lazy::new(fixture);
        let run = envelope();
        group.bench_function(fixture.name(), |bencher| {
            let tree = tree.get();
            // an envelope of its own, as the stage in front of the tree gets it
            bencher.iter(|| publish(tree, &black_box(run.clone())));
        });
    }
    group.finish();
}

fn router_fanout(criterion: &mut Criterion) {
    for fixture in Fixture::ALL {
        let tree = Lazy::new(fixture);
        let run = envelope();
        let mut group = criterion.benchmark_group(format!("router_fanout/{}", fixture.name()));
        for workers in SWEEP {
            group.bench_function(BenchmarkId::from_parameter(workers), |bencher| {
                let tree = tree.get();
                bencher
                    .iter_custom(|iterations| publish_fanned_out(tree, &run, workers, iterations));
            });
        }
        group.finish();
    }
}

/// A count that nobody else's count shares a cache line with.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// The time from the first write until the last envelope is through.
fn publish_fanned_out(tree: &Subscribers, run: &Run, workers: usize, iterations: u64) -> Duration {
    // One for each worker, and one for us, since a writer may do the work itself.
    let counts: Arc<[Count]> = (0..=workers).map(|_| Count::default()).collect();
    let stage = FanoutWriter::new(workers, {
        let tree = tree.clone();
        let counts = counts.clone();
        move |worker| {
            let tree = tree.clone();
            let counts = counts.clone();
            move |run: Run| {
                publish(&tree, &run);
                let count = &counts[worker].0;
                // Nobody else writes it.
                count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
            }
        }
    })
    .expect("some workers");
    stage.start().expect("threads");
    let started = Instant::now();
    for _ in 0..iterations {
        stage.write(run.clone()).expect("a running stage");
    }
    let published = || {
        counts
            .iter()
            .map(|count| count.0.load(Ordering::Acquire))
            .sum::<u64>()
    };
    while published() < iterations {
        thread::yield_now();
    }
    let took = started.elapsed();
    stage.stop();
    took
}

fn subscriber(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("subscriber");
    for fixture in [Fixture::Spin, Fixture::Wait] {
        group.bench_function(fixture.name(), |bencher| bencher.iter(|| fixture.receive()));
    }
    group.finish();
}

/// A tree that is made when the first benchmark asks for it, not for those that were filtered out.
struct Lazy {
    fixture: Fixture,
    tree: std::cell::OnceCell<Tree>,
}

impl Lazy {
    fn new(fixture: Fixture) -> Self {
        Self {
            fixture,
            tree: std::cell::OnceCell::new(),
        }
    }

    fn get(&self) -> &Subscribers {
        &self.tree.get_or_init(|| Tree::new(self.fixture)).tree
    }
}

criterion_group! {
    name = processor_time;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = router_noop
}
criterion_group!(
    wall_time,
    router_parallel_noop,
    router,
    router_fanout,
    subscriber
);
criterion_main!(processor_time, wall_time);
