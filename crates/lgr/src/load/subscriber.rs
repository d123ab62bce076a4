//! Subscribers: they count what they get and note how long it took.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use lgr::Error;
use lgr::client::{Client, Subscription};
use loggregator::v2;
use tokio::time::sleep;

use super::ledger::{Books, Ledger};
use super::plan::{Group, Reading, Request, Scope};
use super::producer::{Random, now};
use super::scan::{Malformed, Scanner};
use super::template::{Api, source_id};

/// A router that doesn't confirm a subscription within this time is taken to confirm none.
const PATIENCE: Duration = Duration::from_secs(1);

/// A group's subscribers and their books.
#[derive(Debug)]
pub(crate) struct GroupState {
    pub(crate) group: Group,
    pub(crate) members: Vec<Arc<Member>>,
    /// Nanoseconds from a timestamp to its arrival.
    pub(crate) latency: Mutex<Histogram<u64>>,
}

/// One subscriber.
#[derive(Debug)]
pub(crate) struct Member {
    request: Request,
    /// Its own, or that of all members of its shard.
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    /// Envelopes that it got, of whatever kind.
    pub(crate) envelopes: AtomicU64,
    pub(crate) messages: AtomicU64,
}

/// Latencies above a minute count as a minute.
const LONGEST: u64 = 60_000_000_000;

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds")
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GroupState {
    pub(crate) fn new(group: &Group, sources: u32, api: Api, books: &Books) -> Arc<Self> {
        let ledger = |scope| Arc::new(Mutex::new(Ledger::new(books, scope)));
        // Members of a shard that select different sources have nothing to share.
        let mut shared: Option<(Scope, Arc<Mutex<Ledger>>)> = None;
        let members = (0..group.count).map(|index| {
            let (request, scope) = group.request(index, sources, api);
            let ledger = match &shared {
                Some((of, ledger)) if *of == scope => Arc::clone(ledger),
                _ => ledger(scope),
            };
            if group.shard.is_some() {
                shared = Some((scope, Arc::clone(&ledger)));
            }
            Arc::new(Member {
                request,
                ledger,
                envelopes: AtomicU64::new(0),
                messages: AtomicU64::new(0),
            })
        });
        let members = members.collect();
        Arc::new(Self {
            group: group.clone(),
            members,
            latency: Mutex::new(histogram()),
        })
    }

    /// The ledgers, each once.
    pub(crate) fn ledgers(&self) -> Vec<Arc<Mutex<Ledger>>> {
        let mut ledgers: Vec<Arc<Mutex<Ledger>>> = Vec::new();
        for member in &self.members {
            if !ledgers
                .last()
                .is_some_and(|last| Arc::ptr_eq(last, &member.ledger))
            {
                ledgers.push(Arc::clone(&member.ledger));
            }
        }
        ledgers
    }

    pub(crate) fn envelopes(&self) -> u64 {
        self.members
            .iter()
            .map(|member| member.envelopes.load(Relaxed))
            .sum()
    }
}

/// Subscribes, says so by calling `ready`, and reads for ever. Latencies count for what was sent
/// within `window`.
pub(crate) async fn follow(
    state: Arc<GroupState>,
    index: usize,
    client: Client,
    window: Arc<Window>,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    match state.members[index].request.clone() {
        Request::V2(request) => {
            read(
                &state,
                index,
                client.batched_receiver(request),
                &client,
                &window,
                ready,
            )
            .await
        }
        Request::V1(request) => {
            read(
                &state,
                index,
                client.batch_subscribe(request),
                &client,
                &window,
                ready,
            )
            .await
        }
    }
}

async fn read<M>(
    state: &GroupState,
    index: usize,
    mut subscription: Subscription<M>,
    client: &Client,
    window: &Window,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let member = &state.members[index];
    subscription.confirmed(PATIENCE).await?;
    ready();
    if state.group.reading == Reading::Never {
        return std::future::pending().await;
    }
    let mut reader = Reader {
        scanner: Scanner::new(state.group.api()),
        delays: Delays::default(),
    };
    while let Some(batch) = subscription.next_raw().await? {
        let taken = reader.take(&batch, member, &state.latency, window);
        taken.map_err(|_| Error::Malformed {
            peer: client.peer().to_owned(),
            reason: "not a batch of envelopes".to_owned(),
        })?;
        if let Reading::Slowly(pause) = state.group.reading {
            sleep(pause).await;
        }
    }
    let (peer, reason) = (
        client.peer().to_owned(),
        "the router ended it with OK".to_owned(),
    );
    Err(Error::Ended { peer, reason })
}

/// What a subscriber needs to look at batches.
#[derive(Debug)]
struct Reader {
    scanner: Scanner,
    delays: Delays,
}

impl Reader {
    /// Books a batch that has just arrived.
    fn take(
        &mut self,
        batch: &[u8],
        member: &Member,
        latency: &Mutex<Histogram<u64>>,
        window: &Window,
    ) -> Result<(), Malformed> {
        let Self { scanner, delays } = self;
        let (arrival, window) = (now(), window.range());
        let mut ledger = lock(&member.ledger);
        let count = scanner.scan(batch, |seen| {
            ledger.record(seen);
            if window.contains(&seen.timestamp) {
                delays.add(arrival.saturating_sub(seen.timestamp));
            }
        })?;
        drop(ledger);
        if !delays.0.is_empty() {
            delays.record(&mut lock(latency));
        }
        member.envelopes.fetch_add(count, Relaxed);
        member.messages.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// The measured time, in nanoseconds since 1970. What was sent within it counts whenever it arrives:
/// leaving out the latest would flatter the router.
#[derive(Debug)]
pub(crate) struct Window {
    start: AtomicI64,
    end: AtomicI64,
}

impl Default for Window {
    /// Not begun yet.
    fn default() -> Self {
        Self {
            start: AtomicI64::new(i64::MAX),
            end: AtomicI64::new(i64::MAX),
        }
    }
}

impl Window {
    /// The first call counts.
    pub(crate) fn begin(&self) {
        self.start.fetch_min(now(), Relaxed);
    }

    pub(crate) fn end(&self) {
        self.end.store(now(), Relaxed);
    }

    fn range(&self) -> std::ops::Range<i64> {
        self.start.load(Relaxed)..self.end.load(Relaxed)
    }
}

/// The delays of a batch. Envelopes that were sent together have the same, so they are few.
#[derive(Debug, Default)]
struct Delays(Vec<(i64, u64)>);

impl Delays {
    #[inline]
    fn add(&mut self, delay: i64) {
        match self.0.last_mut() {
            Some((last, count)) if *last == delay => *count += 1,
            _ => self.0.push((delay, 1)),
        }
    }

    fn record(&mut self, histogram: &mut Histogram<u64>) {
        for (delay, count) in self.0.drain(..) {
            // A clock that was set back in between gives a delay below zero.
            let delay = u64::try_from(delay).unwrap_or(0);
            histogram.saturating_record_n(delay, count);
        }
    }
}

/// Subscribes to sources and unsubscribes at once, `rate` times a second, for ever.
pub(crate) async fn churn(
    client: Client,
    rate: f64,
    sources: u32,
    done: Arc<AtomicU64>,
    failed: impl Fn(Error) + Clone + Send + 'static,
) {
    let mut random = Random(2);
    let start = tokio::time::Instant::now();
    for number in 1_u64.. {
        tokio::time::sleep_until(start + Duration::from_secs_f64(number as f64 / rate)).await;
        let source = random.next() as u32 % sources;
        let request = v2::EgressBatchRequest {
            selectors: lgr::client::every_kind(&source_id(source)),
            ..v2::EgressBatchRequest::default()
        };
        let mut subscription = client.batched_receiver(request);
        let (done, failed) = (Arc::clone(&done), failed.clone());
        tokio::spawn(async move {
            match subscription.confirmed(PATIENCE).await {
                Ok(_) => {
                    done.fetch_add(1, Relaxed);
                }
                Err(error) => failed(error),
            }
        });
    }
}
