//! The subscriber tree by itself, against what one would build instead: 100,000 subscriptions over
//! 20,000 source ids, five of which match each event, with subscribers that do nothing.
//!
//! - `publish/hot/WHAT`: one event over and over (processor time).
//! - `publish/random/WHAT`: source ids drawn at random, so that caches are cold (processor time).
//! - `publish/threads-N/WHAT`: N threads at once; the time is that of all, per publish.
//! - `p99/quiet/WHAT`, `p99/changing/WHAT`: the 99th percentile of single publishes, alone and while
//!   another thread subscribes and unsubscribes 10,000 times a second. Two looks at the clock are
//!   part of it.
//! - `subscribe/known/WHAT/LIVE`, `subscribe/new/WHAT/LIVE`, `unsubscribe/WHAT/LIVE`: one change with
//!   so many live subscriptions, at a source id that has some, or at a new one (processor time).
//! - `batch/N/WHAT`: 100 events of 50 sources to N firehoses and to the five of each source, as one
//!   batch and one by one; the time is that of the whole batch (processor time).
//!
//! The others are a `HashMap` behind a lock, `DashMap`, a `HashMap` that is copied for each change
//! and swapped, and a map of tokio's broadcast channels. They know exact source ids, no wildcards
//! and no groups, and hash like the tree does. A broadcast channel takes an event once for all its
//! receivers, who fetch it later: work that the others have done by then.

mod clock;
mod together;

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use benches::{SOURCES, SUBSCRIPTIONS, source_id};
use criterion::measurement::Measurement;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dashmap::DashMap;
use pubsub::{Event, Interest, Path, PubSub, Subscription};
use tokio::sync::broadcast;

use clock::ThreadTime;
use together::at_once;

/// What subscriptions can be kept in.
trait Subscribers: Default + Send + Sync {
    const NAME: &'static str;
    /// Ends a subscription when it is given back.
    type Handle: Send + Sync;

    fn subscribe(&self, source: &str, subscriber: u64) -> Self::Handle;
    fn unsubscribe(&self, handle: Self::Handle);
    /// Returns how many were reached.
    fn publish(&self, source: &str) -> usize;

    fn subscribe_all(&self, all: Vec<(String, u64)>) -> Vec<Self::Handle> {
        let all = all.iter();
        all.map(|(source, subscriber)| self.subscribe(source, *subscriber))
            .collect()
    }
}

/// What a subscriber does: nothing, but the compiler doesn't know.
#[inline]
fn receive(subscriber: &u64) {
    black_box(subscriber);
}

struct From<'a>(&'a str);

impl Event<String> for From<'_> {
    type Key<'a>
        = &'a str
    where
        Self: 'a;

    #[inline]
    fn key(&self, depth: usize) -> Option<&str> {
        (depth == 0).then_some(self.0)
    }
}

#[derive(Default)]
struct Tree(PubSub<String, u64>);

fn interest(source: &str) -> Interest<String> {
    Interest::new([Path::root().key(source)])
}

impl Subscribers for Tree {
    const NAME: &'static str = "tree";
    type Handle = Subscription<String, u64>;

    fn subscribe(&self, source: &str, subscriber: u64) -> Self::Handle {
        self.0.subscribe(subscriber, interest(source))
    }

    fn unsubscribe(&self, handle: Self::Handle) {
        drop(handle);
    }

    #[inline]
    fn publish(&self, source: &str) -> usize {
        self.0.publish(&From(source), receive).delivered
    }

    fn subscribe_all(&self, all: Vec<(String, u64)>) -> Vec<Self::Handle> {
        let all = all.iter();
        self.0
            .subscribe_all(all.map(|(source, number)| (*number, interest(source))))
    }
}

/// The same hashing for everybody.
type Map<V> = HashMap<String, V, ahash::RandomState>;

fn remove(list: &mut Vec<u64>, subscriber: u64) -> bool {
    if let Some(at) = list.iter().position(|other| *other == subscriber) {
        list.remove(at);
    }
    list.is_empty()
}

#[derive(Default)]
struct Locked(RwLock<Map<Vec<u64>>>);

impl Subscribers for Locked {
    const NAME: &'static str = "rwlock-hashmap";
    type Handle = (String, u64);

    fn subscribe(&self, source: &str, subscriber: u64) -> Self::Handle {
        let mut map = self.0.write().expect("no panics");
        map.entry(source.to_owned()).or_default().push(subscriber);
        (source.to_owned(), subscriber)
    }

    fn unsubscribe(&self, (source, subscriber): Self::Handle) {
        let mut map = self.0.write().expect("no panics");
        if map
            .get_mut(&source)
            .is_some_and(|list| remove(list, subscriber))
        {
            map.remove(&source);
        }
    }

    #[inline]
    fn publish(&self, source: &str) -> usize {
        let map = self.0.read().expect("no panics");
        let list = map.get(source).map_or(&[][..], |list| list);
        list.iter().for_each(receive);
        list.len()
    }
}

#[derive(Default)]
struct Dashed(DashMap<String, Vec<u64>, ahash::RandomState>);

impl Subscribers for Dashed {
    const NAME: &'static str = "dashmap";
    type Handle = (String, u64);

    fn subscribe(&self, source: &str, subscriber: u64) -> Self::Handle {
        self.0
            .entry(source.to_owned())
            .or_default()
            .push(subscriber);
        (source.to_owned(), subscriber)
    }

    fn unsubscribe(&self, (source, subscriber): Self::Handle) {
        self.0
            .remove_if_mut(&source, |_, list| remove(list, subscriber));
    }

    #[inline]
    fn publish(&self, source: &str) -> usize {
        let list = self.0.get(source);
        let list = list.as_ref().map_or(&[][..], |list| list);
        list.iter().for_each(receive);
        list.len()
    }
}

#[derive(Default)]
struct Copied(ArcSwap<Map<Vec<u64>>>);

impl Subscribers for Copied {
    const NAME: &'static str = "copied-hashmap";
    type Handle = (String, u64);

    fn subscribe(&self, source: &str, subscriber: u64) -> Self::Handle {
        let mut map = Map::clone(&self.0.load());
        map.entry(source.to_owned()).or_default().push(subscriber);
        self.0.store(Arc::new(map));
        (source.to_owned(), subscriber)
    }

    fn unsubscribe(&self, (source, subscriber): Self::Handle) {
        let mut map = Map::clone(&self.0.load());
        if map
            .get_mut(&source)
            .is_some_and(|list| remove(list, subscriber))
        {
            map.remove(&source);
        }
        self.0.store(Arc::new(map));
    }

    #[inline]
    fn publish(&self, source: &str) -> usize {
        let map = self.0.load();
        let list = map.get(source).map_or(&[][..], |list| list);
        list.iter().for_each(receive);
        list.len()
    }

    fn subscribe_all(&self, all: Vec<(String, u64)>) -> Vec<Self::Handle> {
        let mut map = Map::clone(&self.0.load());
        for (source, subscriber) in &all {
            map.entry(source.clone()).or_default().push(*subscriber);
        }
        self.0.store(Arc::new(map));
        all
    }
}

#[derive(Default)]
struct Broadcast(RwLock<Map<broadcast::Sender<u64>>>);

impl Subscribers for Broadcast {
    const NAME: &'static str = "tokio-broadcast";
    type Handle = (String, broadcast::Receiver<u64>);

    fn subscribe(&self, source: &str, _subscriber: u64) -> Self::Handle {
        let mut map = self.0.write().expect("no panics");
        let channel = map.entry(source.to_owned());
        let receiver = channel
            .or_insert_with(|| broadcast::channel(16).0)
            .subscribe();
        (source.to_owned(), receiver)
    }

    fn unsubscribe(&self, (source, receiver): Self::Handle) {
        drop(receiver);
        let mut map = self.0.write().expect("no panics");
        if map
            .get(&source)
            .is_some_and(|channel| channel.receiver_count() == 0)
        {
            map.remove(&source);
        }
    }

    #[inline]
    fn publish(&self, source: &str) -> usize {
        let map = self.0.read().expect("no panics");
        let channel = map.get(source);
        channel.map_or(0, |channel| channel.send(black_box(1)).unwrap_or(0))
    }
}

/// Subscriptions that live as long as this.
struct Live<T: Subscribers> {
    subscribers: T,
    sources: Vec<String>,
    _handles: Vec<T::Handle>,
}

impl<T: Subscribers> Live<T> {
    fn new(subscriptions: usize, sources: usize) -> Self {
        let sources: Vec<String> = (0..sources).map(source_id).collect();
        let subscribers = T::default();
        let each = (0..subscriptions).map(|number| {
            let source = &sources[number % sources.len()];
            (source.clone(), number as u64)
        });
        let _handles = subscribers.subscribe_all(each.collect());
        Live {
            subscribers,
            sources,
            _handles,
        }
    }

    fn large() -> Self {
        Self::new(SUBSCRIPTIONS, SOURCES)
    }

    #[inline]
    fn publish(&self, source: usize) {
        let reached = self.subscribers.publish(black_box(&self.sources[source]));
        debug_assert_eq!(reached, 5);
        black_box(reached);
    }
}

/// Indices in an order that no prefetcher knows.
fn shuffled(count: usize) -> impl FnMut() -> usize {
    let mut state = 1_u64;
    move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize % count
    }
}

/// Runs a benchmark on each kind, made when it is asked for and not for those filtered out.
macro_rules! each {
    ($run:ident $arguments:tt: $($kind:ty),*) => {
        $($run::<$kind> $arguments;)*
    };
}

fn publish_hot<T: Subscribers>(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("publish/hot");
    group.bench_function(T::NAME, |bencher| {
        let live = Live::<T>::large();
        bencher.iter(|| live.publish(4711));
    });
}

fn publish_random<T: Subscribers>(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("publish/random");
    group.bench_function(T::NAME, |bencher| {
        let live = Live::<T>::large();
        let mut next = shuffled(SOURCES);
        bencher.iter(|| live.publish(next()));
    });
}

fn publish(criterion: &mut Criterion<ThreadTime>) {
    each!(publish_hot(criterion): Tree, Locked, Dashed, Copied, Broadcast);
    each!(publish_random(criterion): Tree, Locked, Dashed, Copied, Broadcast);
}

/// Publishes of a thread, at least, whatever criterion asks for: new threads take a while to find
/// processors of their own.
const LONG: u64 = 1_000_000;

fn publish_threads<T: Subscribers>(criterion: &mut Criterion, threads: u64) {
    let mut group = criterion.benchmark_group(format!("publish/threads-{threads}"));
    group.bench_function(T::NAME, |bencher| {
        let live = Live::<T>::large();
        bencher.iter_custom(|iterations| {
            let share = iterations.div_ceil(threads).max(LONG);
            let spent = at_once(threads, || {
                for _ in 0..share {
                    live.publish(4711);
                }
            });
            // each has made its share in that time
            spent.mul_f64(iterations as f64 / (share * threads) as f64)
        });
    });
}

fn threads(criterion: &mut Criterion) {
    for threads in [1, 2] {
        each!(publish_threads(criterion, threads): Tree, Locked, Dashed, Copied, Broadcast);
    }
}

/// Publishes that a percentile is taken of, whatever criterion asks for.
const LOOKS: usize = 20_000;
/// The changes come in bursts of so many, since no thread wakes up 10,000 times a second on time.
const BURST: u32 = 10;

fn publish_p99<T: Subscribers>(criterion: &mut Criterion, changing: bool) {
    let when = if changing { "changing" } else { "quiet" };
    let mut group = criterion.benchmark_group(format!("p99/{when}"));
    group.bench_function(T::NAME, |bencher| {
        let live = Live::<T>::large();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            if changing {
                scope.spawn(|| {
                    let started = Instant::now();
                    let mut next = shuffled(SOURCES);
                    for burst in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        for _ in 0..BURST {
                            let source = &live.sources[next()];
                            let handle = live.subscribers.subscribe(source, u64::MAX);
                            live.subscribers.unsubscribe(handle);
                        }
                        let due = burst * BURST * Duration::from_micros(100);
                        thread::sleep(due.saturating_sub(started.elapsed()));
                    }
                });
            }
            let mut next = shuffled(SOURCES);
            let mut times = Vec::with_capacity(LOOKS);
            bencher.iter_custom(|iterations| {
                times.clear();
                for _ in 0..LOOKS {
                    let source = next();
                    let started = Instant::now();
                    live.publish(source);
                    times.push(started.elapsed());
                }
                let (_, p99, _) = times.select_nth_unstable(LOOKS * 99 / 100);
                *p99 * iterations as u32
            });
            stop.store(true, Ordering::Relaxed);
        });
    });
}

fn p99(criterion: &mut Criterion) {
    for changing in [false, true] {
        each!(publish_p99(criterion, changing): Tree, Locked, Dashed);
    }
}

/// Changes that are made in a row before they are undone, so that the number of live subscriptions
/// stays about what it is said to be.
const ROW: u64 = 50;

/// What one of a number of changes takes, by the processor's time.
fn timed(iterations: u64, mut row: impl FnMut(&mut dyn FnMut(&mut dyn FnMut()))) -> f64 {
    let mut took = 0.0;
    let mut made = 0;
    while made < iterations {
        row(&mut |change| {
            let started = ThreadTime.start();
            change();
            took += ThreadTime.end(started);
        });
        made += ROW;
    }
    took * iterations as f64 / made as f64
}

fn changes<T: Subscribers>(criterion: &mut Criterion<ThreadTime>, live: usize) {
    let sources = live / 5;
    let id = BenchmarkId::new(T::NAME, live);
    let mut group = criterion.benchmark_group("subscribe/known");
    group.bench_function(id.clone(), |bencher| {
        let live = Live::<T>::new(live, sources);
        let mut next = shuffled(sources);
        bencher.iter_custom(|iterations| {
            timed(iterations, |timed| {
                let mut handles = Vec::with_capacity(ROW as usize);
                timed(&mut || {
                    for number in 0..ROW {
                        let source = &live.sources[next()];
                        handles.push(live.subscribers.subscribe(source, u64::MAX - number));
                    }
                });
                handles
                    .into_iter()
                    .for_each(|h| live.subscribers.unsubscribe(h));
            })
        });
    });
    group.finish();
    let mut group = criterion.benchmark_group("subscribe/new");
    group.bench_function(id.clone(), |bencher| {
        let live = Live::<T>::new(live, sources);
        let mut fresh = (1_000_000..).map(source_id);
        bencher.iter_custom(|iterations| {
            timed(iterations, |timed| {
                let sources: Vec<String> = fresh.by_ref().take(ROW as usize).collect();
                let mut handles = Vec::with_capacity(ROW as usize);
                timed(&mut || {
                    for source in &sources {
                        handles.push(live.subscribers.subscribe(source, u64::MAX));
                    }
                });
                handles
                    .into_iter()
                    .for_each(|h| live.subscribers.unsubscribe(h));
            })
        });
    });
    group.finish();
    let mut group = criterion.benchmark_group("unsubscribe");
    group.bench_function(id, |bencher| {
        let live = Live::<T>::new(live, sources);
        let mut next = shuffled(sources);
        bencher.iter_custom(|iterations| {
            timed(iterations, |timed| {
                let mut subscribe = |number| {
                    let source = &live.sources[next()];
                    live.subscribers.subscribe(source, u64::MAX - number)
                };
                let mut handles: Vec<_> = (0..ROW).map(&mut subscribe).collect();
                timed(&mut || {
                    handles
                        .drain(..)
                        .for_each(|h| live.subscribers.unsubscribe(h))
                });
            })
        });
    });
}

fn subscribe(criterion: &mut Criterion<ThreadTime>) {
    for live in [1000, 100_000] {
        each!(changes(criterion, live): Tree, Locked, Dashed);
    }
    // A copy of everything takes too long at 100,000 to be repeated often.
    each!(changes(criterion, 1000): Copied);
}

/// Events of a batch.
const BATCH: usize = 100;

fn batch(criterion: &mut Criterion<ThreadTime>) {
    for firehoses in [1, 10, 100] {
        let setup = || {
            let live = Live::<Tree>::large();
            let all = (0..firehoses).map(|number| (number, Interest::new([Path::root()])));
            let firehoses = live.subscribers.0.subscribe_all(all);
            (live, firehoses)
        };
        let sources = |live: &Live<Tree>| -> Vec<String> {
            (0..BATCH)
                .map(|index| live.sources[index % 50].clone())
                .collect()
        };
        let mut group = criterion.benchmark_group(format!("batch/{firehoses}"));
        group.bench_function("tree-batch", |bencher| {
            let (live, _firehoses) = setup();
            let sources = sources(&live);
            let mut publisher = live.subscribers.0.publisher();
            bencher.iter(|| {
                let events = black_box(&sources).iter().map(|source| From(source));
                let published = publisher.publish_batch(events, |subscriber, selection| {
                    black_box((subscriber, selection));
                });
                debug_assert_eq!(published.delivered, 250 + firehoses as usize);
                published
            });
        });
        group.bench_function("tree-singly", |bencher| {
            let (live, _firehoses) = setup();
            let sources = sources(&live);
            bencher.iter(|| {
                let each = black_box(&sources).iter();
                each.map(|source| live.subscribers.publish(source))
                    .sum::<usize>()
            });
        });
        group.bench_function("rwlock-hashmap", |bencher| {
            let live = Live::<Locked>::large();
            let sources: Vec<String> = (0..BATCH)
                .map(|index| live.sources[index % 50].clone())
                .collect();
            let firehoses: RwLock<Vec<u64>> = RwLock::new((0..firehoses).collect());
            bencher.iter(|| {
                let firehoses = firehoses.read().expect("no panics");
                let each = black_box(&sources).iter();
                each.map(|source| {
                    firehoses.iter().for_each(receive);
                    live.subscribers.publish(source) + firehoses.len()
                })
                .sum::<usize>()
            });
        });
        group.finish();
    }
}

criterion_group! {
    name = processor_time;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = publish, subscribe, batch
}
criterion_group!(wall_time, threads, p99);
criterion_main!(processor_time, wall_time);
