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
use diode::{Weigh, weighted};
use loggregator::{Run, v1::Payload};
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
pub struct Subscription<T: Piece = Run> {
    /// Takes the subscription out of its tree when it is dropped.
    in_tree: Option<Box<dyn Send>>,
    reader: weighted::Reader<T>,
    /// What was taken from the ring and is not in a batch yet.
    taken: VecDeque<T>,
    scratch: Vec<T>,
    limits: EgressLimits,
    shared: Arc<Shared<T>>,
    registry: Arc<Registry>,
}

/// What a subscriber's ring holds: one or more envelopes, serialized as its API wants them.
///
/// Both kinds are laid one after the other to make a message: runs an `EnvelopeBatch`, v1 payloads
/// a `BatchResponse`.
///
/// # Examples
///
/// ```
/// use router::Piece as _;
///
/// let message = loggregator::Message::parse(b"\x0a\x00\x0a\x00", Default::default())?;
/// let (first, rest) = message.whole().split(1, 1_000);
/// assert_eq!((first.envelopes(), rest.unwrap().envelopes()), (1, 1));
/// # Ok::<(), loggregator::Error>(())
/// ```
pub trait Piece: Weigh + Clone + Send + 'static {
    /// How many envelopes it is.
    fn envelopes(&self) -> usize;

    /// Its size in a message, in bytes.
    fn size(&self) -> usize;

    /// Appends it to a message.
    fn append_to(&self, buffer: &mut impl BufMut);

    /// Its first part, of at most so many envelopes and bytes but at least one envelope, and the
    /// rest if there is any.
    fn split(self, envelopes: usize, bytes: usize) -> (Self, Option<Self>);
}

impl Piece for Run {
    fn envelopes(&self) -> usize {
        self.len()
    }

    fn size(&self) -> usize {
        self.byte_len()
    }

    fn append_to(&self, buffer: &mut impl BufMut) {
        self.append_to(buffer);
    }

    fn split(self, envelopes: usize, bytes: usize) -> (Self, Option<Self>) {
        let (first, rest) = self.split_fitting(envelopes, bytes);
        (first, (!rest.is_empty()).then_some(rest))
    }
}

impl Piece for Payload {
    fn envelopes(&self) -> usize {
        1
    }

    fn size(&self) -> usize {
        self.field_len()
    }

    fn append_to(&self, buffer: &mut impl BufMut) {
        self.append_to(buffer);
    }

    fn split(self, _: usize, _: usize) -> (Self, Option<Self>) {
        (self, None)
    }
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
    /// Which API it came by.
    pub api: Api,
    /// Who subscribed: for a network server, the peer's address.
    pub peer: String,
    /// Shard id; empty if not sharded.
    pub shard_id: String,
    /// Deterministic name; empty if it has none.
    pub deterministic_name: String,
    /// The selectors in readable form.
    pub selectors: String,
}

/// The API that a subscriber speaks.
///
/// # Examples
///
/// ```
/// assert_eq!(router::Api::V1.name(), "v1");
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Api {
    /// Batches of `events.Envelope` payloads.
    V1,
    /// Batches of `loggregator.v2.Envelope`.
    V2,
}

impl Api {
    /// `v1` or `v2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

/// Envelopes for one message to a subscriber.
///
/// # Examples
///
/// ```
/// let batch: router::Batch = router::Batch::default();
/// assert!(batch.is_empty());
/// ```
#[derive(Clone)]
pub struct Batch<T: Piece = Run> {
    pieces: SmallVec<[T; 4]>,
    len: usize,
    byte_len: usize,
}

/// What publishers and the stream share.
pub(crate) struct Shared<T> {
    pub(crate) info: Arc<SubscriptionInfo>,
    pub(crate) ring: weighted::Writer<T>,
    matched: AtomicU64,
    egress: AtomicU64,
}

impl<T: Piece> Subscription<T> {
    pub(crate) fn new(
        in_tree: impl Send + 'static,
        reader: weighted::Reader<T>,
        limits: EgressLimits,
        shared: Arc<Shared<T>>,
        registry: Arc<Registry>,
    ) -> Self {
        registry.add(shared.clone());
        Self {
            in_tree: Some(Box::new(in_tree)),
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
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Batch<T>>> {
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
    pub async fn next_async(&mut self) -> Option<Batch<T>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Blocks the thread until there is a batch; see [`poll_next`](Self::poll_next).
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator would hide that this blocks"
    )]
    pub fn next(&mut self) -> Option<Batch<T>> {
        if self.taken.is_empty() {
            let run = self.reader.next()?;
            self.taken.push_back(run);
        }
        Some(self.gather())
    }

    /// A batch of what was taken before, filled up with what the ring holds now.
    fn gather(&mut self) -> Batch<T> {
        let taken: usize = self.taken.iter().map(T::envelopes).sum();
        if let Some(room @ 1..) = self.limits.batch_envelopes.checked_sub(taken)
            && !self.reader.is_empty()
        {
            self.reader.take_into(&mut self.scratch, room);
            self.taken.extend(self.scratch.drain(..));
        }

        let mut batch = Batch::default();
        while let Some(piece) = self.taken.pop_front() {
            let envelopes = self.limits.batch_envelopes - batch.len;
            let bytes = self.limits.batch_bytes.saturating_sub(batch.byte_len);
            if piece.envelopes() <= envelopes && piece.size() <= bytes {
                batch.push(piece);
                continue;
            }
            // at least one: an envelope that is larger than a whole batch goes alone
            let (fits, rest) = piece.clone().split(envelopes, bytes);
            if batch.is_empty() || (envelopes > 0 && fits.size() <= bytes) {
                batch.push(fits);
                if let Some(rest) = rest {
                    self.taken.push_front(rest);
                }
            } else {
                self.taken.push_front(piece);
            }
            break;
        }
        self.shared.egress.fetch_add(batch.len as u64, Relaxed);
        batch
    }
}

impl<T: Piece> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("info", self.info())
            .finish_non_exhaustive()
    }
}

impl<T: Piece> Drop for Subscription<T> {
    fn drop(&mut self) {
        // first of all: nothing is published to a ring that nobody reads
        drop(self.in_tree.take());
        self.reader.close();
        self.registry.remove(self.shared.info.id);
    }
}

impl<T: Piece> Batch<T> {
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

    /// What it is made of, in order.
    pub fn pieces(&self) -> &[T] {
        &self.pieces
    }

    /// Appends the batch as a serialized message: the stored bytes, one after the other.
    pub fn append_to(&self, buffer: &mut impl BufMut) {
        for piece in &self.pieces {
            piece.append_to(buffer);
        }
    }

    fn push(&mut self, piece: T) {
        self.len += piece.envelopes();
        self.byte_len += piece.size();
        self.pieces.push(piece);
    }
}

impl<T: Piece> Default for Batch<T> {
    fn default() -> Self {
        Self {
            pieces: SmallVec::new(),
            len: 0,
            byte_len: 0,
        }
    }
}

impl<T: Piece> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("len", &self.len)
            .field("byte_len", &self.byte_len)
            .finish()
    }
}

/// A subscription as the registry sees it.
pub(crate) trait Counted: Send + Sync {
    fn id(&self) -> u64;
    fn counters(&self) -> SubscriptionCounters;
    /// Ends the stream once it has taken what its ring holds.
    fn close(&self);
}

impl<T: Piece> Counted for Shared<T> {
    fn id(&self) -> u64 {
        self.info.id
    }

    fn counters(&self) -> SubscriptionCounters {
        let dropped = self.ring.missed();
        let egress = self.egress.load(Relaxed);
        SubscriptionCounters {
            info: self.info.clone(),
            // counted before it is set, so that it never lags what became of it
            matched: self.matched.load(Relaxed).max(egress),
            egress,
            dropped,
            queued: self.ring.queued_weight() as u64,
            queued_bytes: self.ring.queued_bytes() as u64,
        }
    }

    fn close(&self) {
        self.ring.close();
    }
}

impl<T: Piece> Shared<T> {
    pub(crate) fn new(info: SubscriptionInfo, ring: weighted::Writer<T>) -> Self {
        Self {
            info: Arc::new(info),
            ring,
            matched: AtomicU64::new(0),
            egress: AtomicU64::new(0),
        }
    }

    /// Sets a piece on the ring, and counts it.
    pub(crate) fn set(&self, piece: T) {
        self.matched.fetch_add(piece.envelopes() as u64, Relaxed);
        self.ring.set(piece);
    }

    /// Sets some pieces at once, and counts them.
    pub(crate) fn set_all(&self, pieces: &[T]) {
        let envelopes: usize = pieces.iter().map(T::envelopes).sum();
        self.matched.fetch_add(envelopes as u64, Relaxed);
        self.ring.set_all(pieces.iter().cloned());
    }
}
