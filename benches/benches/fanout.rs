//! The worker stage against publishing directly and against what else one would put there: a channel
//! and some threads. Wall time per envelope, by fixture (`Fixture` says what they are):
//!
//! - `FIXTURE/direct`: publishing on the thread that has the envelope.
//! - `FIXTURE/plain/N`, `FIXTURE/lanes/N`: through the stage, with N workers.
//! - `FIXTURE/crossbeam-channel/N`, `FIXTURE/std-mpsc/N`: N threads behind a bounded channel with two
//!   slots for each, the second with the receiver behind a lock.
//!
//! Envelopes go to five subscribers each, in the proposal's tree; in `one-spin` to a single one that
//! costs about a microsecond, without a tree. They are known by number, so that nothing but the
//! stage is added to the publishing. A round ends when the last envelope is through; threads start
//! and end outside of it.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use benches::{Fixture, Tree, message, source_id};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use fanout::FanoutWriter;
use loggregator::{Key, Message};
use pubsub::PubSub;

/// How many workers.
const SWEEP: [usize; 5] = [1, 2, 4, 8, 16];
/// Envelopes of so many different sources come round and round.
const ENVELOPES: usize = 256;

/// What is done with the envelope of a number.
#[derive(Clone)]
enum Work {
    Publish(PubSub<Key, Fixture>, Message),
    Receive(Fixture),
}

impl Work {
    #[inline]
    fn run(&self, number: u64) {
        match self {
            Work::Publish(tree, message) => {
                let facts = message.facts(number as usize % ENVELOPES);
                let published = tree.publish(&facts, |fixture| fixture.receive());
                black_box(published.delivered);
            }
            Work::Receive(fixture) => fixture.receive(),
        }
    }
}

fn fixtures(criterion: &mut Criterion) {
    for fixture in Fixture::ALL {
        let mut group = criterion.benchmark_group(fixture.name());
        let tree = std::cell::OnceCell::new();
        ways(&mut group, &|| {
            let tree = tree.get_or_init(|| Tree::new(fixture));
            let message = message((0..ENVELOPES).map(source_id));
            Work::Publish(tree.tree.clone(), message)
        });
        group.finish();
    }
    let mut group = criterion.benchmark_group("one-spin");
    ways(&mut group, &|| Work::Receive(Fixture::Spin));
    group.finish();
}

/// All ways to do this work. It is made when a benchmark runs, not for those that are filtered out.
fn ways(group: &mut BenchmarkGroup<'_, WallTime>, work: &dyn Fn() -> Work) {
    group.bench_function("direct", |bencher| {
        let work = work();
        bencher.iter_custom(|iterations| {
            let started = Instant::now();
            for number in 0..iterations {
                work.run(black_box(number));
            }
            started.elapsed()
        });
    });
    for workers in SWEEP {
        group.bench_function(BenchmarkId::new("plain", workers), |bencher| {
            let work = work();
            bencher.iter_custom(|iterations| staged(&work, workers, false, iterations));
        });
    }
    for workers in SWEEP {
        group.bench_function(BenchmarkId::new("lanes", workers), |bencher| {
            let work = work();
            bencher.iter_custom(|iterations| staged(&work, workers, true, iterations));
        });
    }
    for workers in SWEEP {
        group.bench_function(BenchmarkId::new("crossbeam-channel", workers), |bencher| {
            let work = work();
            bencher.iter_custom(|iterations| {
                let (sender, receiver) = crossbeam_channel::bounded(2 * workers);
                let receive = move || receiver.recv().ok();
                channelled(&work, workers, iterations, receive, move |number| {
                    sender.send(number).expect("receivers");
                })
            });
        });
    }
    for workers in SWEEP {
        group.bench_function(BenchmarkId::new("std-mpsc", workers), |bencher| {
            let work = work();
            bencher.iter_custom(|iterations| {
                let (sender, receiver) = mpsc::sync_channel(2 * workers);
                let receiver = Arc::new(Mutex::new(receiver));
                let receive = move || receiver.lock().expect("no panics").recv().ok();
                channelled(&work, workers, iterations, receive, move |number| {
                    sender.send(number).expect("receivers");
                })
            });
        });
    }
}

/// Through the stage.
fn staged(work: &Work, workers: usize, lanes: bool, iterations: u64) -> Duration {
    let done = Done::new(workers + 1);
    let stage = FanoutWriter::new(workers, {
        let (work, done) = (work.clone(), done.clone());
        move |worker| {
            let (work, done) = (work.clone(), done.clone());
            move |number| {
                work.run(number);
                done.count(worker);
            }
        }
    })
    .expect("some workers");
    let stage = match lanes {
        // the hash of a source id, as the router's lanes have it
        true => stage.with_lanes(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32),
        false => stage,
    };
    stage.start().expect("threads");
    let started = Instant::now();
    for number in 0..iterations {
        stage.write(black_box(number)).expect("a running stage");
    }
    done.wait_for(iterations);
    let took = started.elapsed();
    stage.stop();
    took
}

/// Through threads that receive from a channel, which must be closed when `send` is dropped.
fn channelled<R, S>(work: &Work, workers: usize, iterations: u64, receive: R, send: S) -> Duration
where
    R: Fn() -> Option<u64> + Clone + Send + 'static,
    S: Fn(u64),
{
    let done = Done::new(workers);
    let threads: Vec<_> = (0..workers)
        .map(|worker| {
            let (work, done, receive) = (work.clone(), done.clone(), receive.clone());
            thread::spawn(move || {
                while let Some(number) = receive() {
                    work.run(number);
                    done.count(worker);
                }
            })
        })
        .collect();
    drop(receive);
    let started = Instant::now();
    for number in 0..iterations {
        send(black_box(number));
    }
    done.wait_for(iterations);
    let took = started.elapsed();
    drop(send);
    for thread in threads {
        thread.join().expect("no panics");
    }
    took
}

/// How many envelopes are through: a count for each worker, on cache lines of their own.
#[derive(Clone)]
struct Done(Arc<[Count]>);

#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Done {
    fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| Count::default()).collect())
    }

    #[inline]
    fn count(&self, worker: usize) {
        let count = &self.0[worker].0;
        // nobody else writes it
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn wait_for(&self, all: u64) {
        let done = || {
            self.0
                .iter()
                .map(|count| count.0.load(Ordering::Acquire))
                .sum::<u64>()
        };
        while done() < all {
            thread::yield_now();
        }
    }
}

criterion_group!(benches, fixtures);
criterion_main!(benches);
