//! What the pipeline counts, always in envelopes.
//!
//! The hot path touches only counters of its own: the ingress ring's, and one set per subscription.
//! Totals over all subscriptions are summed when somebody asks, from the live ones and from what
//! the ended ones left behind, so that they never run backwards.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::subscription::Counted;

/// The pipeline's totals at one moment.
///
/// Once the pipeline is at rest, `ingress == published + dropped_ingress` and
/// `matched == egress + dropped_egress`; while it runs, the left sides lead by what is queued.
///
/// # Examples
///
/// ```
/// let (router, _repeater) = router::Router::new(Default::default())?;
/// assert_eq!(router.counters(), router::Counters::default());
/// # Ok::<(), router::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Envelopes accepted from producers.
    pub ingress: u64,
    /// Envelopes that went through the tree, whether or not anybody matched.
    pub published: u64,
    /// Envelopes overwritten in the ingress ring.
    pub dropped_ingress: u64,
    /// Deliveries: each envelope once for each subscription that it matched.
    pub matched: u64,
    /// Deliveries taken by subscribers.
    pub egress: u64,
    /// Deliveries overwritten in subscriber rings, or left in them when their stream ended.
    pub dropped_egress: u64,
    /// Live subscriptions.
    pub subscriptions: u64,
    /// The part of v1 in the four above; the rest is v2's.
    pub v1: Deliveries,
    /// Envelopes queued in the ingress ring.
    pub ingress_queued: u64,
    /// Bytes queued in the ingress ring.
    pub ingress_queued_bytes: u64,
    /// Bytes queued in the rings of all subscribers.
    pub egress_queued_bytes: u64,
    /// Runs of envelopes that wait for a worker of the fan-out stage.
    pub fanout_queued: u64,
    /// v1 forms that nobody could get although somebody had asked: v1 requires a field that the v2
    /// envelope has not (a log without payload, a timer without a request id).
    pub v1_incomplete: u64,
    /// v1 envelopes with text that was not UTF-8, repaired for v2 subscribers.
    pub v1_repaired: u64,
    /// Panics contained while publishing; always 0 unless something is badly wrong.
    pub panics: u64,
}

/// What became of the envelopes that subscribers of one API matched.
///
/// # Examples
///
/// ```
/// let (router, _repeater) = router::Router::new(Default::default())?;
/// let _subscription = router.subscribe_v1(&Default::default(), "a peer");
/// let counters = router.counters();
/// assert_eq!((counters.subscriptions, counters.v1.subscriptions), (1, 1));
/// # Ok::<(), router::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Deliveries {
    /// Deliveries: each envelope once for each subscription that it matched.
    pub matched: u64,
    /// Deliveries taken by subscribers.
    pub egress: u64,
    /// Deliveries overwritten, or left in a ring when its stream ended.
    pub dropped: u64,
    /// Live subscriptions.
    pub subscriptions: u64,
}

/// One subscription's counters at one moment, for "which consumer is slow?".
///
/// # Examples
///
/// ```
/// let (router, _repeater) = router::Router::new(Default::default())?;
/// let subscription = router.subscribe(&Default::default(), "10.0.0.1:4711");
/// let of_it = &router.subscriptions()[0];
/// assert_eq!((&*of_it.info.peer, of_it.dropped), ("10.0.0.1:4711", 0));
/// # Ok::<(), router::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SubscriptionCounters {
    /// Who it is.
    pub info: Arc<crate::SubscriptionInfo>,
    /// Envelopes that matched.
    pub matched: u64,
    /// Envelopes that its stream took.
    pub egress: u64,
    /// Envelopes overwritten in its ring.
    pub dropped: u64,
    /// Envelopes queued in its ring.
    pub queued: u64,
    /// Bytes queued in its ring.
    pub queued_bytes: u64,
}

/// Every live subscription by id, and the sums of those that have ended.
#[derive(Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct Inner {
    live: BTreeMap<u64, Arc<dyn Counted>>,
    /// By API: v1, v2.
    ended: [Deliveries; 2],
    closed: bool,
}

impl Registry {
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Adds a subscription; on a registry that is closed already it is closed at once.
    pub(crate) fn add(&self, shared: Arc<dyn Counted>) {
        let mut inner = self.lock();
        if inner.closed {
            shared.close();
        }
        inner.live.insert(shared.id(), shared);
    }

    /// Moves a subscription's figures to the sums of the ended ones.
    pub(crate) fn remove(&self, id: u64) {
        let mut inner = self.lock();
        if let Some(shared) = inner.live.remove(&id) {
            let of_it = shared.counters();
            let ended = &mut inner.ended[of_it.info.api as usize];
            ended.matched += of_it.matched;
            ended.egress += of_it.egress;
            // what nobody took was overwritten, or left in the ring when the stream ended
            ended.dropped += of_it.matched - of_it.egress;
        }
    }

    /// Ends every stream once it has taken what its ring holds.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for shared in inner.live.values() {
            shared.close();
        }
    }

    pub(crate) fn sum_into(&self, counters: &mut Counters) {
        let inner = self.lock();
        let mut sums = inner.ended;
        for shared in inner.live.values() {
            let of_it = shared.counters();
            let sum = &mut sums[of_it.info.api as usize];
            sum.matched += of_it.matched;
            sum.egress += of_it.egress;
            sum.dropped += of_it.dropped;
            sum.subscriptions += 1;
        }
        let [v1, v2] = sums;
        counters.matched = v1.matched + v2.matched;
        counters.egress = v1.egress + v2.egress;
        counters.dropped_egress = v1.dropped + v2.dropped;
        counters.subscriptions = v1.subscriptions + v2.subscriptions;
        counters.v1 = v1;
    }

    pub(crate) fn each(&self) -> Vec<SubscriptionCounters> {
        self.lock()
            .live
            .values()
            .map(|shared| shared.counters())
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // no user code runs under this lock, so a poisoned one is still in order
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
