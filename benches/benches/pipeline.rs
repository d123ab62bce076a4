//! The whole pipeline in process: a message of 100 logs comes in as bytes, is checked, goes through
//! the ingress ring, the repeater and the tree into the subscribers' rings, and leaves as the bytes of
//! batches. Everything runs on the measuring thread (processor time), as it does in the server.
//!
//! - `subscribers/N`: N subscribers that match everything.
//! - `streams/N`: one stream per source and N sources, of which the message has one: what
//!   doesn't match must cost nothing.
//! - `sparse`: one subscriber that matches one envelope of the message.
//!
//! Times are per envelope that comes in.

mod clock;

use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use benches::{request, source_id, wire_message};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loggregator::{Limits, Message, v2};
use router::{Options, Router, Subscription};

use clock::ThreadTime;

/// Envelopes in a message, as agents batch them.
const BATCH: usize = 100;

/// A pipeline that moves when it is told to.
struct Pipeline {
    router: Router,
    repeater: Pin<Box<dyn Future<Output = ()>>>,
    subscriptions: Vec<Subscription>,
    buffer: Vec<u8>,
}

impl Pipeline {
    fn new(requests: impl IntoIterator<Item = v2::EgressBatchRequest>) -> Self {
        let (router, repeater) = Router::new(Options::default()).expect("sound options");
        let subscriptions = requests
            .into_iter()
            .map(|request| router.subscribe(&request, "benchmark"))
            .collect();
        Self {
            router,
            repeater: Box::pin(repeater.run()),
            subscriptions,
            buffer: Vec::with_capacity(1 << 20),
        }
    }

    /// Moves one message through; returns how many envelopes left.
    fn pass(&mut self, wire: &[u8]) -> usize {
        let message = Message::parse(wire, Limits::default()).expect("a well-formed message");
        self.router
            .ingress()
            .send(message)
            .expect("a running router");
        let mut context = Context::from_waker(Waker::noop());
        // It publishes what is there and then waits for more.
        assert!(self.repeater.as_mut().poll(&mut context).is_pending());
        let mut delivered = 0;
        for subscription in &mut self.subscriptions {
            while let Poll::Ready(Some(batch)) = subscription.poll_next(&mut context) {
                self.buffer.clear();
                batch.append_to(&mut self.buffer);
                black_box(self.buffer.as_slice());
                delivered += batch.len();
            }
        }
        delivered
    }
}

/// The request of a stream that wants all logs.
fn everything() -> v2::EgressBatchRequest {
    request("")
}

fn subscribers(criterion: &mut Criterion<ThreadTime>) {
    let wire = wire_message((0..BATCH).map(source_id));
    let mut group = criterion.benchmark_group("subscribers");
    group.throughput(Throughput::Elements(BATCH as u64));
    for subscribers in [1, 10, 100] {
        group.bench_function(BenchmarkId::from_parameter(subscribers), |bencher| {
            let mut pipeline = Pipeline::new((0..subscribers).map(|_| everything()));
            assert_eq!(pipeline.pass(&wire), BATCH * subscribers);
            bencher.iter(|| pipeline.pass(&wire));
        });
    }
    group.finish();
}

fn streams(criterion: &mut Criterion<ThreadTime>) {
    let wire = wire_message((0..BATCH).map(source_id));
    let mut group = criterion.benchmark_group("streams");
    group.throughput(Throughput::Elements(BATCH as u64));
    for streams in [100, 1000, 10_000] {
        // The first source's stream is the one that matches.
        let others = (BATCH..).map(source_id).take(streams - 1);
        let requests: Vec<_> = [source_id(0)].into_iter().chain(others).collect();
        group.bench_function(BenchmarkId::from_parameter(streams), |bencher| {
            let mut pipeline = Pipeline::new(requests.iter().map(|id| request(id)));
            // Only the matching stream is asked for batches: the others sleep.
            let mut silent = pipeline.subscriptions.split_off(1);
            assert_eq!(pipeline.pass(&wire), 1);
            bencher.iter(|| pipeline.pass(&wire));
            let mut context = Context::from_waker(Waker::noop());
            assert!(
                silent
                    .iter_mut()
                    .all(|stream| stream.poll_next(&mut context).is_pending())
            );
        });
    }
    group.finish();
}

fn sparse(criterion: &mut Criterion<ThreadTime>) {
    let wire = wire_message((0..BATCH).map(source_id));
    let mut group = criterion.benchmark_group("sparse");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("1", |bencher| {
        let mut pipeline = Pipeline::new([request(&source_id(50))]);
        assert_eq!(pipeline.pass(&wire), 1);
        bencher.iter(|| pipeline.pass(&wire));
    });
    group.finish();
}

criterion_group! {
    name = processor_time;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = subscribers, streams, sparse
}
criterion_main!(processor_time);
