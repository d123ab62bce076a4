//! The rings by themselves, against what one would use instead. Values are 64-bit numbers.
//!
//! - `set and take/WHAT`: one value in and out on one thread (processor time), and as a yardstick the
//!   locked instruction that a `set` of one-to-one has.
//! - `overrun/WHAT`: setting on a ring that is full and that nobody reads, on one thread (processor
//!   time). Drop-on-full channels refuse here, which is less work than to overwrite.
//! - `writers-2/room/WHAT`: two writers at once, with room for all values; the ring is drained
//!   between, outside of the time. Wall time of a writer, per value.
//! - `writers-2/full/WHAT`: two writers at once on a full ring. Wall time of a writer, per value.
//! - `wake/WHAT`: a value there and another one back between two threads that sleep in between.
//!
//! The others: crossbeam's `ArrayQueue` with `force_push`, tokio's `broadcast`, which overwrite; and
//! channels that refuse when they are full (crossbeam, flume, kanal). Of those only `broadcast` tells
//! the reader how many values it has missed.

mod clock;
mod together;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::Measurement;
use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main};
use crossbeam_queue::ArrayQueue;
use diode::{Limits, ManyToOne, OneToOne, Weigh, Weighted, many_to_one, one_to_one, weighted};
use tokio::sync::broadcast;

use clock::ThreadTime;
use together::SpinBarrier;

/// About as many as a subscriber's ring holds envelopes, and a power of two, which some need.
const CAPACITY: usize = 8192;
/// Each writer sets so many values at a time: half of what there is room for.
const CHUNK: u64 = CAPACITY as u64 / 2;

/// The writing side of a ring.
trait Write: Send {
    fn set(&mut self, value: u64);
}

/// The reading side.
trait Read {
    fn take(&mut self) -> Option<u64>;
}

/// What more than one can write to.
trait Shared: Write + Clone + 'static {}

impl<W: Write + Clone + 'static> Shared for W {}

/// A number that weighs one.
struct Number(u64);

impl Weigh for Number {
    fn weight(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        size_of::<u64>()
    }
}

/// How one sets a value on each ring, and takes one.
macro_rules! ends {
    ($($writer:ty: |$to:ident, $value:ident| $set:expr, $reader:ty: |$from:ident| $take:expr;)*) => {$(
        impl Write for $writer {
            #[inline]
            fn set(&mut self, $value: u64) {
                let $to = self;
                $set;
            }
        }

        impl Read for $reader {
            #[inline]
            fn take(&mut self) -> Option<u64> {
                let $from = self;
                $take
            }
        }
    )*};
}

ends! {
    one_to_one::Writer<u64>: |to, value| one_to_one::Writer::set(to, value),
    one_to_one::Reader<u64>: |from| from.try_next().ok();

    many_to_one::Writer<u64>: |to, value| many_to_one::Writer::set(to, value),
    many_to_one::Reader<u64>: |from| from.try_next().ok();

    weighted::Writer<Number>: |to, value| weighted::Writer::set(to, Number(value)),
    weighted::Reader<Number>: |from| from.try_next().ok().map(|number| number.0);

    Arc<ArrayQueue<u64>>: |to, value| black_box(to.force_push(value)),
    Arc<ArrayQueue<u64>>: |from| from.pop();

    broadcast::Sender<u64>: |to, value| black_box(to.send(value).is_ok()),
    broadcast::Receiver<u64>: |from| loop {
        match from.try_recv() {
            Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            value => break value.ok(),
        }
    };

    crossbeam_channel::Sender<u64>: |to, value| black_box(to.try_send(value).is_ok()),
    crossbeam_channel::Receiver<u64>: |from| from.try_recv().ok();

    flume::Sender<u64>: |to, value| black_box(to.try_send(value).is_ok()),
    flume::Receiver<u64>: |from| from.try_recv().ok();

    kanal::Sender<u64>: |to, value| black_box(to.try_send(value).is_ok()),
    kanal::Receiver<u64>: |from| from.try_recv().ok().flatten();
}

fn one_to_one() -> (one_to_one::Writer<u64>, one_to_one::Reader<u64>) {
    OneToOne::new(CAPACITY).expect("a capacity").split()
}

fn many_to_one() -> (many_to_one::Writer<u64>, many_to_one::Reader<u64>) {
    ManyToOne::new(CAPACITY).expect("a capacity").split()
}

fn weighted() -> (weighted::Writer<Number>, weighted::Reader<Number>) {
    let limits = Limits {
        weight: CAPACITY,
        bytes: usize::MAX,
    };
    Weighted::new(limits).expect("a capacity").split()
}

fn array_queue() -> (Arc<ArrayQueue<u64>>, Arc<ArrayQueue<u64>>) {
    let queue = Arc::new(ArrayQueue::new(CAPACITY));
    (queue.clone(), queue)
}

/// Runs a function with each ring that several can write to.
macro_rules! for_each_shared {
    ($call:ident($group:expr)) => {
        $call($group, "many-to-one", many_to_one);
        $call($group, "weighted", weighted);
        $call($group, "crossbeam-array-queue", array_queue);
        $call($group, "tokio-broadcast", || broadcast::channel(CAPACITY));
        $call($group, "crossbeam-channel", || {
            crossbeam_channel::bounded(CAPACITY)
        });
        $call($group, "flume", || flume::bounded(CAPACITY));
        $call($group, "kanal", || kanal::bounded(CAPACITY));
    };
}

fn one_thread(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("set and take");
    // the yardstick: what a writer must do that sees a waiting reader's flag
    group.bench_function("nothing but a locked add", |bencher| {
        let tail = AtomicU64::new(0);
        bencher.iter(|| black_box(&tail).fetch_add(4, AcqRel));
    });
    set_and_take(&mut group, "one-to-one", one_to_one);
    for_each_shared!(set_and_take(&mut group));
    group.finish();

    let mut group = criterion.benchmark_group("overrun");
    overrun(&mut group, "one-to-one", one_to_one);
    for_each_shared!(overrun(&mut group));
    group.finish();
}

fn set_and_take<W: Write, R: Read, M: Measurement>(
    group: &mut BenchmarkGroup<'_, M>,
    name: &str,
    new: impl Fn() -> (W, R),
) {
    group.bench_function(name, |bencher| {
        let (mut writer, mut reader) = new();
        let mut value = 0;
        bencher.iter(|| {
            value += 1;
            writer.set(black_box(value));
            reader.take()
        });
    });
}

fn overrun<W: Write, R: Read, M: Measurement>(
    group: &mut BenchmarkGroup<'_, M>,
    name: &str,
    new: impl Fn() -> (W, R),
) {
    group.bench_function(name, |bencher| {
        let (mut writer, _reader) = new();
        (0..2 * CAPACITY as u64).for_each(|value| writer.set(value));
        let mut value = 0;
        bencher.iter(|| {
            value += 1;
            writer.set(black_box(value));
        });
    });
}

fn two_writers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("writers-2/room");
    for_each_shared!(with_room(&mut group));
    group.finish();

    let mut group = criterion.benchmark_group("writers-2/full");
    for_each_shared!(when_full(&mut group));
    group.finish();
}

fn with_room<W: Shared, R: Read, M: Measurement<Value = Duration>>(
    group: &mut BenchmarkGroup<'_, M>,
    name: &str,
    new: impl Fn() -> (W, R),
) {
    group.bench_function(name, |bencher| {
        let (writer, mut reader) = new();
        bencher.iter_custom(|iterations| {
            let rounds = iterations.div_ceil(CHUNK);
            let spent = together(&writer, rounds, || while reader.take().is_some() {});
            spent.mul_f64(iterations as f64 / (rounds * CHUNK) as f64)
        });
    });
}

fn when_full<W: Shared, R: Read, M: Measurement<Value = Duration>>(
    group: &mut BenchmarkGroup<'_, M>,
    name: &str,
    new: impl Fn() -> (W, R),
) {
    group.bench_function(name, |bencher| {
        let (mut writer, _reader) = new();
        (0..2 * CAPACITY as u64).for_each(|value| writer.set(value));
        bencher.iter_custom(|iterations| {
            let rounds = iterations.div_ceil(CHUNK);
            let spent = together(&writer, rounds, || {});
            spent.mul_f64(iterations as f64 / (rounds * CHUNK) as f64)
        });
    });
}

/// Two threads each set a chunk of values in each round, with something in between that does not
/// count. Returns what a thread spent on its values, on average of both.
fn together<W: Shared>(writer: &W, rounds: u64, mut between: impl FnMut()) -> Duration {
    let barrier = SpinBarrier::default();
    let run = |mut writer: W, between: &mut dyn FnMut()| {
        let mut spent = Duration::ZERO;
        for round in 0..rounds {
            barrier.wait(2, 2 * round + 1);
            let started = Instant::now();
            for value in 0..CHUNK {
                writer.set(black_box(value));
            }
            spent += started.elapsed();
            barrier.wait(2, 2 * round + 2);
            between();
        }
        spent
    };
    let both = thread::scope(|scope| {
        let (run, theirs) = (&run, writer.clone());
        let other = scope.spawn(move || run(theirs, &mut || {}));
        run(writer.clone(), &mut between) + other.join().expect("no panics")
    });
    both / 2
}

fn waking(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("wake");
    group.bench_function("many-to-one", |bencher| {
        bencher.iter_custom(|iterations| {
            let (there, mut arrived) = many_to_one();
            let (back, mut returned) = many_to_one();
            ping_pong(
                iterations,
                |value| there.set(value),
                || returned.next(),
                || arrived.next(),
                |value| back.set(value),
            )
        });
    });
    group.bench_function("crossbeam-channel", |bencher| {
        bencher.iter_custom(|iterations| {
            let (there, arrived) = crossbeam_channel::bounded(CAPACITY);
            let (back, returned) = crossbeam_channel::bounded(CAPACITY);
            ping_pong(
                iterations,
                |value| there.send(value).expect("a receiver"),
                || returned.recv().ok(),
                || arrived.recv().ok(),
                |value| back.send(value).expect("a receiver"),
            )
        });
    });
    group.finish();
}

fn ping_pong(
    iterations: u64,
    send: impl Fn(u64),
    mut receive: impl FnMut() -> Option<u64>,
    mut arrive: impl FnMut() -> Option<u64> + Send,
    answer: impl Fn(u64) + Send,
) -> Duration {
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..iterations {
                let Some(value) = arrive() else { return };
                answer(value);
            }
        });
        let started = Instant::now();
        for value in 0..iterations {
            send(value);
            black_box(receive());
        }
        started.elapsed()
    })
}

criterion_group! {
    name = processor_time;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = one_thread
}
criterion_group!(wall_time, two_writers, waking);
criterion_main!(processor_time, wall_time);
