//! The handle that ties the pipeline together: subscribe, count, stop.

use std::{
    fmt,
    hash::Hash,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use diode::{Budget, Weighted, weighted};
use fanout::FanoutWriter;
use loggregator::{
    Key, Message, Run, v1,
    v1::{Payload, Pushed, plumbing::SubscriptionRequest},
    v2,
};
use pubsub::{Interest, PubSub};

use crate::{
    Api, Counters, EgressLimits, Error, Options, Piece, Repeater, Stopped, Subscription,
    SubscriptionCounters, SubscriptionInfo, counters::Registry, describe, item::Item,
    subscription::Shared,
};

/// A handle on the pipeline; clones are handles on the same one.
///
/// # Examples
///
/// See the [crate's documentation](crate).
#[derive(Clone)]
pub struct Router {
    ingress: Ingress,
    core: Arc<Core>,
    egress: EgressLimits,
    egress_v1: EgressLimits,
    egress_budget: Budget,
}

/// Where producers put their messages; clones write to the same ring.
///
/// # Examples
///
/// ```
/// use loggregator::{Limits, Message};
///
/// let (router, _repeater) = router::Router::new(Default::default())?;
/// let ingress = router.ingress().clone();
/// ingress.send(Message::parse(b"\x0a\x00", Limits::default())?)?;
/// assert_eq!(router.counters().ingress, 1);
///
/// router.stop();
/// let given_back = ingress.send(Message::parse(b"\x0a\x00", Limits::default())?).unwrap_err();
/// assert_eq!(given_back.0.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Ingress {
    ring: weighted::Writer<Item>,
    core: Arc<Core>,
    /// No run is longer, so that an overrun loses no more than this beyond what it must.
    longest_run: usize,
}

/// What every part of the pipeline shares.
pub(crate) struct Core {
    pub(crate) tree: PubSub<Key, Arc<Shared<Run>>>,
    pub(crate) v1_tree: PubSub<v1::Key, Arc<Shared<Payload>>>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) ingress: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) v1_incomplete: AtomicU64,
    pub(crate) v1_repaired: AtomicU64,
    pub(crate) panics: AtomicU64,
    /// Asks the fan-out stage, if there is one.
    stage: OnceLock<Box<dyn Fn() -> Option<fanout::Stats> + Send + Sync>>,
}

impl Core {
    pub(crate) fn count_published(&self, envelopes: usize) {
        self.published.fetch_add(envelopes as u64, Relaxed);
    }

    pub(crate) fn count_v1_incomplete(&self) {
        self.v1_incomplete.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_v1_repaired(&self) {
        self.v1_repaired.fetch_add(1, Relaxed);
    }

    /// Lets the counters tell how full the fan-out stage is, without keeping it alive.
    pub(crate) fn watch_stage<T: Send + 'static>(&self, stage: &Arc<FanoutWriter<T>>) {
        let stage = Arc::downgrade(stage);
        let ask = move || stage.upgrade().map(|stage| stage.stats());
        // there is one stage at most
        let _ = self.stage.set(Box::new(ask));
    }

    pub(crate) fn count_panics(&self, panics: usize) {
        if panics > 0 {
            self.panics.fetch_add(panics as u64, Relaxed);
        }
    }
}

impl Router {
    /// A new pipeline, and the repeater that somebody must drive: nothing is published until it
    /// runs.
    ///
    /// # Errors
    ///
    /// A limit of 0, or a fan-out stage whose threads can't be started.
    pub fn new(options: Options) -> Result<(Self, Repeater), Error> {
        for limits in [options.egress, options.egress_v1] {
            // subscribing can't fail later: the same limits are tried here
            let ring = Weighted::<Run>::new(limits.ring);
            if ring.is_err() || limits.batch_envelopes == 0 || limits.batch_bytes == 0 {
                return Err(Error::NoRoom { ring: "subscriber" });
            }
        }
        let (writer, reader) = Weighted::new(options.ingress)
            .map_err(|_| Error::NoRoom { ring: "ingress" })?
            .split();

        let core = Arc::new(Core {
            tree: PubSub::new(),
            v1_tree: PubSub::new(),
            registry: Arc::default(),
            ingress: AtomicU64::new(0),
            published: AtomicU64::new(0),
            v1_incomplete: AtomicU64::new(0),
            v1_repaired: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            stage: OnceLock::new(),
        });
        let repeater = Repeater::new(reader, core.clone(), options.fanout)?;
        let ingress = Ingress {
            ring: writer,
            core: core.clone(),
            longest_run: options.egress.batch_envelopes.min(options.ingress.weight),
        };
        Ok((
            Self {
                ingress,
                core,
                egress: options.egress,
                egress_v1: options.egress_v1,
                egress_budget: Budget::new(options.egress_total_bytes),
            },
            repeater,
        ))
    }

    /// Where producers put their messages.
    pub fn ingress(&self) -> &Ingress {
        &self.ingress
    }

    /// Subscribes with the selectors, shard id and deterministic name of a request. `peer` says
    /// who it is for, in counters and reports.
    ///
    /// Any request is legal; one without usable selectors gets a stream that stays silent. On a
    /// router that has stopped the stream ends at once.
    pub fn subscribe(
        &self,
        request: &v2::EgressBatchRequest,
        peer: impl Into<String>,
    ) -> Subscription {
        let info = SubscriptionInfo {
            id: self.core.registry.next_id(),
            api: Api::V2,
            peer: peer.into(),
            shard_id: request.shard_id.clone(),
            deterministic_name: request.deterministic_name.clone(),
            selectors: describe::selectors(&request.selectors),
        };
        let interest = loggregator::selectors_to_interest(request);
        self.subscribe_to(&self.core.tree, interest, info, self.egress)
    }

    /// Subscribes by the v1 API, with its filter and shard id; otherwise as
    /// [`subscribe`](Self::subscribe).
    pub fn subscribe_v1(
        &self,
        request: &SubscriptionRequest,
        peer: impl Into<String>,
    ) -> Subscription<Payload> {
        let info = SubscriptionInfo {
            id: self.core.registry.next_id(),
            api: Api::V1,
            peer: peer.into(),
            shard_id: request.shard_id.clone(),
            deterministic_name: String::new(),
            selectors: describe::filter(request.filter.as_ref()),
        };
        let interest = v1::subscription_to_interest(request);
        self.subscribe_to(&self.core.v1_tree, interest, info, self.egress_v1)
    }

    fn subscribe_to<K, T>(
        &self,
        tree: &PubSub<K, Arc<Shared<T>>>,
        interest: Interest<K>,
        info: SubscriptionInfo,
        limits: EgressLimits,
    ) -> Subscription<T>
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
        T: Piece,
    {
        let (ring, reader) = Weighted::new(limits.ring)
            .expect("the limits were accepted when the router was made")
            .within(&self.egress_budget)
            .split();
        let shared = Arc::new(Shared::new(info, ring));
        let in_tree = tree.subscribe(shared.clone(), interest);
        Subscription::new(in_tree, reader, limits, shared, self.core.registry.clone())
    }

    /// The totals now.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // what leads is read last, so that no sum exceeds what it is part of
        self.core.registry.sum_into(&mut counters);
        counters.egress_queued_bytes = self.egress_budget.used() as u64;
        counters.published = self.core.published.load(Relaxed);
        counters.dropped_ingress = self.ingress.ring.missed();
        counters.ingress_queued = self.ingress.ring.queued_weight() as u64;
        counters.ingress_queued_bytes = self.ingress.ring.queued_bytes() as u64;
        counters.v1_incomplete = self.core.v1_incomplete.load(Relaxed);
        counters.v1_repaired = self.core.v1_repaired.load(Relaxed);
        counters.panics = self.core.panics.load(Relaxed);
        if let Some(stage) = self.core.stage.get().and_then(|ask| ask()) {
            counters.fanout_queued = stage.queued as u64;
            counters.panics += stage.panics;
        }
        counters.ingress = self.core.ingress.load(Relaxed);
        counters
    }

    /// Every live subscription's counters, oldest first.
    pub fn subscriptions(&self) -> Vec<SubscriptionCounters> {
        self.core.registry.each()
    }

    /// Accepts nothing more. The repeater then publishes what was accepted and returns; after
    /// that every subscription ends once it has taken what its ring holds. Calling it again, or
    /// before the repeater runs, does no harm.
    pub fn stop(&self) {
        self.ingress.ring.close();
    }
}

impl Ingress {
    /// Puts a message on the ingress ring: never waits. When the ring is full the oldest
    /// envelopes are overwritten and counted as dropped.
    ///
    /// # Errors
    ///
    /// The router has stopped; the error gives the message back.
    pub fn send(&self, message: Message) -> Result<(), Stopped> {
        if message.is_empty() {
            return if self.ring.is_closed() {
                Err(Stopped(message))
            } else {
                Ok(())
            };
        }
        let (first, rest) = message.whole().split_at(self.longest_run);
        // counted first, so that `ingress` never lags what became of it
        let envelopes = message.len() as u64;
        self.core.ingress.fetch_add(envelopes, Relaxed);
        if self.ring.try_set(Item::V2(first)).is_err() {
            self.core.ingress.fetch_sub(envelopes, Relaxed);
            return Err(Stopped(message));
        }
        if !rest.is_empty() {
            // if the stop comes between the two, the rest counts as dropped
            self.ring
                .set_all(rest.chunks(self.longest_run, usize::MAX).map(Item::V2));
        }
        Ok(())
    }

    /// Puts a v1 envelope on the ingress ring, on the same terms as [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// The router has stopped; the error gives the envelope back.
    pub fn push(&self, envelope: Pushed) -> Result<(), Stopped<Pushed>> {
        self.core.ingress.fetch_add(1, Relaxed);
        self.ring.try_set(Item::v1(envelope)).map_err(|refused| {
            self.core.ingress.fetch_sub(1, Relaxed);
            match refused {
                Item::V1(v1) => Stopped(v1.pushed),
                Item::V2(_) => unreachable!("the ring gives back what was set"),
            }
        })
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Ingress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingress").finish_non_exhaustive()
    }
}
