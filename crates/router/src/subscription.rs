//! One subscriber's stream: its ring, and how batches are gathered from it.
//!
//! Publishers set runs of envelopes on the ring and never wait; the ring overwrites its oldest
//! when the subscriber is slow. The stream takes what is there, up to a batch's limits, and lays
//! nothing aside for later but the rest of a run that did not fit.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::BufMut;
use diode::weighted;
use loggregator::{Key, Run};
use smallvec::SmallVec;

use crate::{EgressLimits, SubscriptionCounters, counters::Registry};

/// A live subscription. Dropping it ends it; what its ring still holds is counted as dropped.
///
/// # Examples
///
/// ```
/// let (router, _repeater) = router::Router::new(Default::default())?;
/// let subscription = router.subscribe(&Default::default(), "a peer");
/// assert_eq!(router.counters().subscriptions, 1);
/// drop(subscription);
/// assert_eq!(router.counters().subscriptions, 0);
/// # Ok::<(), router::Error>(())
/// ```
pub struct Subscription {
    // dropped first: nothing is published to a ring that nobody reads
    _in_tree: pubsub::Subscription<Key, Arc<Shared>>,
    reader: weighted::Reader<Run>,
    /// What was taken from the ring and is not in a batch yet.
    taken: VecDeque<Run>,
    scratch: Vec<Run>,
    limits: EgressLimits,
    shared: Arc<Shared>,
    registry: Arc<Registry>,
}

/// Who a subscription is.
///
/// # Examples
///
/// ```
/// let (router, _repeater) = router::Router::new(Default::default())?;
/// let subscription = router.subscribe(&Default::default(), "a peer");
/// assert_eq!(subscription.info().peer, "a peer");
/// # Ok::<(), router::Error>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SubscriptionInfo {
    /// Unique in this process; later subscriptions have larger ids.
    pub id: u64,
    /// Who subscribed: for a network server, the peer's address.
    pub peer: String,
    /// Shard id; empty if not sharded.
    pub shard_id: String,
    /// Deterministic name; empty if it has none.
    pub deterministic_name: String,
    /// The selectors in readable form.
    pub selectors: String,
}

/// Envelopes for one message to a subscriber.
///
/// # Examples
///
/// ```
/// let batch = router::Batch::default();
/// assert!(batch.is_empty());
/// ```
#[derive(Clone, Default)]
pub struct Batch {
    runs: SmallVec<[Run; 4]>,
    len: usize,
    byte_len: usize,
}

/// What publishers and the stream share.
pub(crate) struct Shared {
    pub(crate) info: Arc<SubscriptionInfo>,
    pub(crate) ring: weighted::Writer<Run>,
    matched: AtomicU64,
    egress: AtomicU64,
}

impl Subscription {
    pub(crate) fn new(
        in_tree: pubsub::Subscription<Key, Arc<Shared>>,
        reader: weighted::Reader<Run>,
        limits: EgressLimits,
        shared: Arc<Shared>,
        registry: Arc<Registry>,
    ) -> Self {
        registry.add(shared.clone());
        Self {
            _in_tree: in_tree,
            reader,
            taken: VecDeque::new(),
            scratch: Vec::new(),
            limits,
            shared,
            registry,
        }
    }

    /// Who this subscription is.
    pub fn info(&self) -> &SubscriptionInfo {
        &self.shared.info
    }

    /// This subscription's counters now.
    pub fn counters(&self) -> SubscriptionCounters {
        self.shared.counters()
    }

    /// The next batch, or `None` once the router has stopped and everything was taken.
    ///
    /// A batch is never empty and goes out as soon as there is anything: while a subscriber is
    /// busy with one, the next gathers by itself.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Batch>> {
        if self.taken.is_empty() {
            let Self {
                reader,
                scratch,
                limits,
                ..
            } = self;
            if ready!(reader.poll_take_into(context, scratch, limits.batch_envelopes)) == 0 {
                return Poll::Ready(None);
            }
            self.taken.extend(self.scratch.drain(..));
        }
        Poll::Ready(Some(self.gather()))
    }

    /// Waits for the next batch; see [`poll_next`](Self::poll_next).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped before it is ready.
    pub async fn next_async(&mut self) -> Option<Batch> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks the thread until there is a batch; see [`poll_next`](Self::poll_next).
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator would hide that this blocks"
    )]
    pub fn next(&mut self) -> Option<Batch> {
        if self.taken.is_empty() {
            let run = self.reader.next()?;
            self.taken.push_back(run);
        }
        Some(self.gather())
    }

    /// A batch of what was taken before, filled up with what the ring holds now.
    fn gather(&mut self) -> Batch {
        let taken: usize = self.taken.iter().map(Run::len).sum();
        if let Some(room @ 1..) = self.limits.batch_envelopes.checked_sub(taken) {
            if !self.reader.is_empty() {
                self.reader.take_into(&mut self.scratch, room);
                self.taken.extend(self.scratch.drain(..));
            }
        }

        let mut batch = Batch::default();
        while let Some(run) = self.taken.pop_front() {
            let envelopes = self.limits.batch_envelopes - batch.len;
            let bytes = self.limits.batch_bytes.saturating_sub(batch.byte_len);
            if run.len() <= envelopes && run.byte_len() <= bytes {
                batch.push(run);
                continue;
            }
            // at least one: an envelope that is larger than a whole batch goes alone
            let (fits, rest) = run.clone().split_fitting(envelopes, bytes);
            if batch.is_empty() || (envelopes > 0 && fits.byte_len() <= bytes) {
                batch.push(fits);
                if !rest.is_empty() {
                    self.taken.push_front(rest);
                }
            } else {
                self.taken.push_front(run);
            }
            break;
        }
        self.shared.egress.fetch_add(batch.len as u64, Relaxed);
        batch
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("info", self.info())
            .finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self._in_tree.unsubscribe();
        self.reader.close();
        self.registry.remove(self.shared.info.id);
    }
}

impl Batch {
    /// Number of envelopes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none; never so for a batch that came from a subscription.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size as a serialized `EnvelopeBatch`, in bytes.
    pub fn byte_len(&self) -> usize {
        self.byte_len
    }

    /// The runs of envelopes, in order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Appends the batch as a serialized `EnvelopeBatch`: the stored bytes, one after the other.
    pub fn append_to(&self, buffer: &mut impl BufMut) {
        for run in &self.runs {
            buffer.put_slice(run.bytes());
        }
    }

    fn push(&mut self, run: Run) {
        self.len += run.len();
        self.byte_len += run.byte_len();
        self.runs.push(run);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len)
            .field("byte_len", &self.byte_len)
            .finish()
    }
}

impl Shared {
    pub(crate) fn new(info: SubscriptionInfo, ring: weighted::Writer<Run>) -> Self {
        Self {
            info: Arc::new(info),
            ring,
            matched: AtomicU64::new(0),
            egress: AtomicU64::new(0),
        }
    }

    /// Counts a match before it is set, so that `matched` never lags what became of it.
    pub(crate) fn count_matched(&self, envelopes: usize) {
        self.matched.fetch_add(envelopes as u64, Relaxed);
    }

    /// Both figures such that `matched >= egress`.
    pub(crate) fn matched_and_egress(&self) -> (u64, u64) {
        let egress = self.egress.load(Relaxed);
        (self.matched.load(Relaxed).max(egress), egress)
    }

    pub(crate) fn counters(&self) -> SubscriptionCounters {
        let dropped = self.ring.missed();
        let (matched, egress) = self.matched_and_egress();
        SubscriptionCounters {
            info: self.info.clone(),
            matched,
            egress,
            dropped,
            queued: self.ring.queued_weight() as u64,
            queued_bytes: self.ring.queued_bytes() as u64,
        }
    }
}
