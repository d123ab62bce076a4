//! The tree as its users hold it: subscribing, unsubscribing, and the versions in between.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::slice;
use std::sync::{Arc, PoisonError};

use crate::batch::Publisher;
use crate::interest::{Paths, Reach, unique};
use crate::members::{Record, Shard};
use crate::node::{Hashing, Node};
use crate::publish;
use crate::random::Random;
use crate::snapshot::Cell;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::{Event, Interest, Published};

/// A tree of subscriptions with keys `K` and subscribers `S`. Cloning gives another handle on the
/// same tree.
///
/// `S` is whatever an event is delivered to: a queue, a channel, a callback. The tree hands `&S` to
/// the closure given to [`publish`](PubSub::publish) and never looks inside.
///
/// Publishing walks an immutable version of the tree and never waits, neither for other publishers
/// nor for changes. A change makes the next version by copying what lies on its paths, O(log n) in
/// the number of subscriptions.
///
/// ```
/// use pubsub::{Event, Interest, Path, PubSub};
/// use std::sync::mpsc;
///
/// struct Topic(&'static str);
///
/// impl Event<String> for Topic {
///     type Key<'a> = &'a str;
///     fn key(&self, depth: usize) -> Option<&str> {
///         self.0.split('/').nth(depth)
///     }
/// }
///
/// let tree = PubSub::<String, mpsc::Sender<&'static str>>::new();
/// let (sender, receiver) = mpsc::channel();
/// let created_anywhere = Path::root().key("orders").any().key("created");
/// let subscription = tree.subscribe(sender, Interest::new([created_anywhere]));
///
/// for topic in ["orders/eu/created", "orders/us/paid", "orders/us/created"] {
///     tree.publish(&Topic(topic), |to| to.send(topic).unwrap());
/// }
/// drop(subscription);
/// assert_eq!(tree.publish(&Topic("orders/eu/created"), |_| {}).delivered, 0);
///
/// assert_eq!(receiver.iter().collect::<Vec<_>>(), ["orders/eu/created", "orders/us/created"]);
/// ```
pub struct PubSub<K, S> {
    shared: Arc<Shared<K, S>>,
}

pub(crate) struct Shared<K, S> {
    current: Cell<Version<K, S>>,
    /// Held while the next version is made. Never while anything of the user's is dropped.
    writer: Mutex<()>,
    /// How many have ever subscribed.
    joined: AtomicU64,
    pub(crate) hashing: Hashing,
    pub(crate) random: Random,
}

/// What a publish sees.
pub(crate) struct Version<K, S> {
    pub(crate) root: Node<K, S>,
    subscriptions: usize,
    /// The root not counted.
    nodes: usize,
}

impl<K, S> Shared<K, S> {
    /// Makes the next version out of the current one, and then drops that, unless a publish still
    /// looks at it.
    fn change(&self, change: impl FnOnce(&mut Version<K, S>)) {
        // Poison means nothing here: no panic of a user's code leaves half a change.
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Version::clone(&self.current.load());
        change(&mut next);
        let previous = self.current.swap(Arc::new(next));
        drop(writer);
        drop(previous);
    }

    #[inline]
    pub(crate) fn load(&self) -> impl Deref<Target = Arc<Version<K, S>>> + use<K, S> {
        self.current.load()
    }
}

impl<K, S> PubSub<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: Send + Sync + 'static,
{
    /// An empty tree.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// For tests and special needs: where hashes and random picks come from.
    pub fn builder() -> Builder<K, S> {
        Builder {
            hash_seed: None,
            hash_bits: None,
            random: None,
            tree: PhantomData,
        }
    }

    /// Adds a subscription. It appears with all its paths at once, before this returns, and
    /// disappears as one when the handle is dropped or
    /// [`unsubscribe`](Subscription::unsubscribe) is called.
    pub fn subscribe(&self, subscriber: S, interest: Interest<K>) -> Subscription<K, S> {
        let subscription = self.prepared(subscriber, interest);
        self.enter(slice::from_ref(&subscription));
        subscription
    }

    /// Adds many subscriptions in one step: cheaper than one by one, and a publish sees all of
    /// them or none.
    ///
    /// ```
    /// use pubsub::{Interest, Path, PubSub};
    ///
    /// let tree = PubSub::<String, u32>::new();
    /// let one_each = (0..100).map(|i| (i, Interest::new([Path::root().key(format!("id-{i}"))])));
    /// let subscriptions = tree.subscribe_all(one_each);
    /// assert_eq!(tree.len(), subscriptions.len());
    /// ```
    pub fn subscribe_all(
        &self,
        subscribers: impl IntoIterator<Item = (S, Interest<K>)>,
    ) -> Vec<Subscription<K, S>> {
        let subscriptions: Vec<_> = subscribers
            .into_iter()
            .map(|(subscriber, interest)| self.prepared(subscriber, interest))
            .collect();
        self.enter(&subscriptions);
        subscriptions
    }

    /// All that can be done before the lock is taken.
    fn prepared(&self, subscriber: S, interest: Interest<K>) -> Subscription<K, S> {
        let Interest {
            mut paths,
            shard_id: id,
            name,
        } = interest;
        unique(&mut paths);
        let record = Arc::new(Record {
            subscriber,
            joined: self.shared.joined.fetch_add(1, Ordering::Relaxed),
            reach: Reach::of(&paths),
            shard: (!id.is_empty()).then(|| Box::new(Shard { id, name })),
        });
        Subscription {
            shared: Arc::clone(&self.shared),
            record,
            paths,
            // Until it is entered there is nothing to end, should a panic get in between.
            ended: AtomicBool::new(true),
        }
    }

    /// Makes the next version, with `added` in it.
    fn enter(&self, added: &[Subscription<K, S>]) {
        self.shared.change(|next| {
            for subscription in added {
                for path in &subscription.paths {
                    let record = &subscription.record;
                    let hashing = &self.shared.hashing;
                    next.nodes += next.root.add(path.segments(), record, hashing);
                }
            }
            next.subscriptions += added.len();
        });
        for subscription in added {
            subscription.ended.store(false, Ordering::Relaxed);
        }
    }

    /// Hands `event` to every subscription that it matches: `deliver` is called once for each.
    ///
    /// Of each shard group it calls one member. A panic in `deliver` is caught and counted; the
    /// other subscribers get their event. `deliver` may subscribe, unsubscribe and publish; what it
    /// changes shows in the next publish.
    ///
    /// # Panics
    ///
    /// If the methods of `event` do.
    #[inline]
    pub fn publish(&self, event: &impl Event<K>, deliver: impl FnMut(&S)) -> Published {
        publish::publish(&self.shared, event, deliver)
    }

    /// For publishing in batches: has scratch memory of its own, one per thread or worker.
    pub fn publisher(&self) -> Publisher<K, S> {
        Publisher::new(Arc::clone(&self.shared))
    }
}

impl<K, S> PubSub<K, S> {
    /// How many subscriptions there are, those without paths included.
    pub fn len(&self) -> usize {
        self.shared.load().subscriptions
    }

    /// Whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many nodes the tree has. An empty one has its root, hence 1.
    pub fn nodes(&self) -> usize {
        self.shared.load().nodes + 1
    }
}

/// A live subscription; dropping it ends it.
///
/// ```
/// use pubsub::{Interest, Path, PubSub};
///
/// let tree = PubSub::<u32, &str>::new();
/// let subscription = tree.subscribe("me", Interest::new([Path::root().key(7_u32)]));
/// assert_eq!(*subscription.subscriber(), "me");
/// assert_eq!((tree.len(), tree.nodes()), (1, 2));
///
/// subscription.unsubscribe();
/// subscription.unsubscribe(); // harmless
/// assert_eq!((tree.len(), tree.nodes()), (0, 1));
/// ```
#[must_use = "dropping it ends the subscription"]
pub struct Subscription<K, S>
where
    K: Hash + Eq + Clone,
{
    shared: Arc<Shared<K, S>>,
    record: Arc<Record<S>>,
    paths: Paths<K>,
    ended: AtomicBool,
}

impl<K: Hash + Eq + Clone, S> Subscription<K, S> {
    /// Ends the subscription, all its paths at once. A publish that began before may still deliver
    /// to it; one that begins after this returned does not. The second time nothing happens.
    ///
    /// The subscriber itself lives until this handle is dropped.
    pub fn unsubscribe(&self) {
        // A plain flag: whoever wins makes the change, under the writer's lock.
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = &*self.shared;
        shared.change(|next| {
            for path in &self.paths {
                let gone = next
                    .root
                    .remove(path.segments(), &self.record, &shared.hashing);
                next.nodes -= gone;
            }
            next.subscriptions -= 1;
        });
    }

    /// What was subscribed.
    pub fn subscriber(&self) -> &S {
        &self.record.subscriber
    }
}

impl<K: Hash + Eq + Clone, S> Drop for Subscription<K, S> {
    fn drop(&mut self) {
        self.unsubscribe();
    }
}

/// Makes a [`PubSub`] whose hashes and random picks are under control.
///
/// ```
/// use pubsub::PubSub;
///
/// let tree = PubSub::<String, u32>::builder()
///     .hash_seed(1) // the same hashes in every run
///     .random(|| 42) // every random pick draws 42
///     .build();
/// assert!(tree.is_empty());
/// ```
pub struct Builder<K, S> {
    hash_seed: Option<usize>,
    hash_bits: Option<u32>,
    random: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    tree: PhantomData<fn() -> PubSub<K, S>>,
}

impl<K, S> Builder<K, S> {
    /// Hashes alike in every run. Without it each tree has random hash keys, so that nobody can
    /// choose keys that collide.
    #[must_use]
    pub fn hash_seed(mut self, seed: usize) -> Self {
        self.hash_seed = Some(seed);
        self
    }

    /// Keeps only the lowest `bits` of each hash, so that a test gets as many collisions as it
    /// wants: with 0, all keys have the same hash.
    #[must_use]
    pub fn hash_bits(mut self, bits: u32) -> Self {
        self.hash_bits = Some(bits);
        self
    }

    /// Draws random numbers from `source`, which should be spread over all of `u64`. A group of
    /// `n` members picks number `drawn mod n`.
    #[must_use]
    pub fn random(mut self, source: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.random = Some(Arc::new(source));
        self
    }

    /// The empty tree.
    pub fn build(self) -> PubSub<K, S> {
        let state = match self.hash_seed {
            // Four keys, since one alone is mixed with others that each process draws. The digits
            // of pi are as good as any.
            Some(seed) => ahash::RandomState::with_seeds(
                seed as u64,
                0x243F_6A88_85A3_08D3,
                0x1319_8A2E_0370_7344,
                0xA409_3822_299F_31D0,
            ),
            None => ahash::RandomState::new(),
        };
        let mask = match self.hash_bits {
            Some(bits) if bits < 64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        PubSub {
            shared: Arc::new(Shared {
                current: Cell::new(Version::default()),
                writer: Mutex::new(()),
                joined: AtomicU64::new(0),
                hashing: Hashing { state, mask },
                random: self.random.map_or(Random::Thread, Random::Given),
            }),
        }
    }
}

impl<K, S> Default for Version<K, S> {
    fn default() -> Self {
        Version {
            root: Node::new(),
            subscriptions: 0,
            nodes: 0,
        }
    }
}

impl<K, S> Clone for Version<K, S> {
    fn clone(&self) -> Self {
        Version {
            root: self.root.clone(),
            subscriptions: self.subscriptions,
            nodes: self.nodes,
        }
    }
}

// A version becomes current in one step, after it is complete; no panic leaves half of one.
impl<K, S> UnwindSafe for PubSub<K, S> {}
impl<K, S> RefUnwindSafe for PubSub<K, S> {}

impl<K, S> Clone for PubSub<K, S> {
    fn clone(&self) -> Self {
        PubSub {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K, S> Default for PubSub<K, S>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    S: Send + Sync + 'static,
{
    fn default() -> Self {
        PubSub::new()
    }
}

impl<K, S> fmt::Debug for PubSub<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSub")
            .field("subscriptions", &self.len())
            .field("nodes", &self.nodes())
            .finish()
    }
}

impl<K: Hash + Eq + Clone + fmt::Debug, S> fmt::Debug for Subscription<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("paths", &self.paths)
            .field("ended", &self.ended.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl<K, S> fmt::Debug for Builder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("hash_seed", &self.hash_seed)
            .field("hash_bits", &self.hash_bits)
            .field("random", &self.random.is_some())
            .finish()
    }
}
