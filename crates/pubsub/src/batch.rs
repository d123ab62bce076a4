//! Publishing a batch.
//!
//! All events walk one version of the tree. At each node that they pass, a bitmap notes which of
//! them did; a subscription that hangs at one node gets that node's bitmap as it is, so its cost
//! does not depend on how many events the batch has. Subscriptions with several paths, and picked
//! members of shard groups, collect the bits that are theirs in a bitmap of their own. Event order,
//! and "once, however many paths match", come with the bitmaps for free.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use crate::interest::Reach;
use crate::members::{Group, Member, Record};
use crate::node::Node;
use crate::ordered::Ordered;
use crate::publish::{Calls, Published, publish};
use crate::random::Random;
use crate::selection::{Selection, WORD};
use crate::table::Table;
use crate::tree::Shared;
use crate::{Equivalent, Event};

/// Events that are walked with bitmaps of one size. A larger batch goes through in windows.
const WINDOW: usize = 4096;

/// Publishes batches; see [`PubSub::publisher`](crate::PubSub::publisher).
///
/// It keeps scratch memory between batches, so that publishing allocates nothing once it is warm,
/// and nothing of the tree: what was unsubscribed is freed though a publisher lies idle.
///
/// ```
/// use pubsub::{Event, Interest, Path, PubSub};
///
/// struct From(&'static str);
/// impl Event<String> for From {
///     type Key<'a> = &'a str;
///     fn key(&self, depth: usize) -> Option<&str> {
///         (depth == 0).then_some(self.0)
///     }
/// }
///
/// let tree = PubSub::<String, &str>::new();
/// let _all = tree.subscribe("all", Interest::new([Path::root()]));
/// let _a = tree.subscribe("a", Interest::new([Path::root().key("a")]));
///
/// let mut publisher = tree.publisher();
/// let mut got = Vec::new();
/// let batch = [From("a"), From("b"), From("a")];
/// let published = publisher.publish_batch(batch.iter(), |subscriber, selection| {
///     got.push((*subscriber, selection.indices().collect::<Vec<_>>()));
/// });
/// got.sort();
/// assert_eq!(got, [("a", vec![0, 2]), ("all", vec![0, 1, 2])]);
/// assert_eq!(published.delivered, 2);
/// ```
pub struct Publisher<K: 'static, S: 'static> {
    shared: Arc<Shared<K, S>>,
    scratch: Scratch<'static, K, S>,
}

/// What a batch notes on its way. Between batches all of it is empty.
struct Scratch<'t, K, S> {
    /// Words per bitmap.
    width: usize,
    /// Numbers of nodes and of targets, by address.
    table: Table,
    nodes: Vec<Passed<'t, K, S>>,
    /// The bitmaps of `nodes`, one after the other.
    node_words: Vec<u64>,
    /// Subscriptions that can't use the bitmap of a node.
    targets: Vec<&'t Record<S>>,
    /// The bitmaps of `targets`.
    target_words: Vec<u64>,
    /// Per event, as far as it was asked for.
    hashes: Vec<Option<u64>>,
    /// Per event, as far as it was needed.
    draws: Vec<Option<u64>>,
    /// The numbers of the nodes at the current depth of the current event, and at the next one.
    here: Vec<u32>,
    next: Vec<u32>,
}

/// A node that events of the batch passed.
struct Passed<'t, K, S> {
    node: &'t Node<K, S>,
    /// The number of its child for any key, once an event passed that.
    any: Option<u32>,
    /// Key and number of the child that an event passed last. Events of one batch often come in
    /// runs, and comparing is cheaper than looking up.
    last: Option<(&'t K, u32)>,
}

impl<K, S> Publisher<K, S>
where
    K: Hash + Eq + 'static,
    S: 'static,
{
    pub(crate) fn new(shared: Arc<Shared<K, S>>) -> Self {
        Publisher {
            shared,
            scratch: Scratch::new(),
        }
    }

    /// Hands a batch to everybody it concerns, as it was at one moment: `deliver` is called once
    /// for each subscriber that some of the events match, with the selection of those events.
    ///
    /// Each event goes to the subscribers that [`publish`](crate::PubSub::publish) would give it to.
    /// Panics in `deliver` are caught and counted; `deliver` may subscribe, unsubscribe and publish
    /// (by another publisher).
    ///
    /// A batch of more than 4096 events goes through in pieces of that many: a subscriber is called
    /// once for each piece with an event for it, in order.
    ///
    /// # Panics
    ///
    /// If the methods of an event or the iterator do.
    pub fn publish_batch<E: Event<K>>(
        &mut self,
        events: impl ExactSizeIterator<Item = E>,
        mut deliver: impl FnMut(&S, &Selection<'_>),
    ) -> Published {
        let shared = &*self.shared;
        let len = events.len();
        let mut events = events;
        if len == 1
            && let Some(event) = events.next()
        {
            let selection = Selection::new(1, 0, &[1]);
            return publish(shared, &event, |subscriber| deliver(subscriber, &selection));
        }
        let version = shared.load();
        let mut published = Published::default();
        let mut scratch = self.scratch.take();
        for start in (0..len).step_by(WINDOW) {
            let size = (len - start).min(WINDOW);
            scratch.begin(&version.root, size);
            for (index, event) in events.by_ref().take(size).enumerate() {
                scratch.walk(index, &event, shared);
            }
            let mut calls = Calls::new(&mut deliver);
            let piece = calls.run(|calls| {
                scratch.deliver(&shared.random, &mut |subscriber, words| {
                    let selection = Selection::new(len, start, words);
                    calls.call(|deliver| deliver(subscriber, &selection));
                });
            });
            published.delivered += piece.delivered;
            published.panicked += piece.panicked;
        }
        self.scratch = scratch.put_away();
        published
    }
}

impl<K, S> fmt::Debug for Publisher<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl<K, S> Scratch<'static, K, S> {
    fn new() -> Self {
        Scratch {
            width: 0,
            table: Table::new(),
            nodes: Vec::new(),
            node_words: Vec::new(),
            targets: Vec::new(),
            target_words: Vec::new(),
            hashes: Vec::new(),
            draws: Vec::new(),
            here: Vec::new(),
            next: Vec::new(),
        }
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Scratch::new())
    }
}

impl<'t, K, S> Scratch<'t, K, S> {
    /// Begins a piece of `size` events at `root`, which all of them pass.
    fn begin(&mut self, root: &'t Node<K, S>, size: usize) {
        self.table.clear();
        self.nodes.clear();
        self.node_words.clear();
        self.targets.clear();
        self.target_words.clear();
        self.hashes.clear();
        self.draws.clear();
        self.width = size.div_ceil(WORD);
        self.passed(root);
        self.node_words.fill(u64::MAX);
        if !size.is_multiple_of(WORD)
            && let Some(last) = self.node_words.last_mut()
        {
            *last = (1 << (size % WORD)) - 1;
        }
    }

    /// Notes a node that no event has passed yet. Returns its number.
    fn passed(&mut self, node: &'t Node<K, S>) -> u32 {
        let number = self.nodes.len() as u32;
        self.nodes.push(Passed {
            node,
            any: None,
            last: None,
        });
        let words = self.node_words.len() + self.width;
        self.node_words.resize(words, 0);
        number
    }

    /// Notes at each node that `event` passes that it did.
    fn walk<E: Event<K>>(&mut self, index: usize, event: &E, shared: &Shared<K, S>) {
        let root = self.nodes[0].node;
        self.note_hash(root, index, event);
        self.here.clear();
        if !root.is_end() {
            self.here.push(0);
        }
        let mut depth = 0;
        while !self.here.is_empty() {
            let Some(key) = event.key(depth) else { return };
            let mut hash = None;
            self.next.clear();
            for at in 0..self.here.len() {
                let parent = self.here[at];
                let node = self.nodes[parent as usize].node;
                if let Some(any) = node.any.as_deref() {
                    let number = self.nodes[parent as usize].any.unwrap_or_else(|| {
                        let number = self.passed(any);
                        self.nodes[parent as usize].any = Some(number);
                        number
                    });
                    self.note(any, number, index, event);
                }
                if node.children.is_empty() {
                    continue;
                }
                let last = self.nodes[parent as usize].last;
                let number = match last {
                    Some((same, number)) if key.equivalent(same) => number,
                    _ => {
                        let hash = *hash.get_or_insert_with(|| shared.hashing.hash(&key));
                        let Some((stored, own)) = node.children.get(hash, &key) else {
                            continue;
                        };
                        let next = self.nodes.len() as u32;
                        let address = std::ptr::from_ref(own).addr();
                        let number = self.table.number(address, || next);
                        if number == next {
                            self.passed(own);
                        }
                        self.nodes[parent as usize].last = Some((stored, number));
                        number
                    }
                };
                self.note(self.nodes[number as usize].node, number, index, event);
            }
            std::mem::swap(&mut self.here, &mut self.next);
            depth += 1;
        }
    }

    /// Notes that an event passes a node.
    fn note<E: Event<K>>(&mut self, node: &Node<K, S>, number: u32, index: usize, event: &E) {
        set(&mut self.node_words, self.width, number, index);
        self.note_hash(node, index, event);
        if !node.is_end() {
            self.next.push(number);
        }
    }

    /// Groups are dealt with when the event is gone: keeps its hash if one may want it.
    fn note_hash<E: Event<K>>(&mut self, node: &Node<K, S>, index: usize, event: &E) {
        if node.members.has_groups() && self.hashes.len() <= index {
            self.hashes.resize(index, None);
            self.hashes.push(event.shard_hash());
        }
    }

    /// Calls `deliver` for everybody with the bitmap of what is theirs; each time it runs, the same
    /// calls in the same order.
    fn deliver(&mut self, random: &Random, deliver: &mut impl FnMut(&S, &[u64])) {
        for number in 0..self.nodes.len() {
            let members = &self.nodes[number].node.members;
            let words = &self.node_words[number * self.width..][..self.width];
            members.single.for_each(&mut |record| {
                deliver(&record.subscriber, words);
            });
            let Some(rest) = &members.rest else { continue };
            rest.several
                .for_each(&mut |member| self.all(number, member, deliver));
            rest.groups.for_each(&mut |group| {
                if let Ordered::One(member) = &group.members {
                    self.all(number, member, deliver);
                } else {
                    self.one_each(number, group, random);
                }
            });
        }
        for (number, target) in self.targets.iter().enumerate() {
            let words = &self.target_words[number * self.width..][..self.width];
            deliver(&target.subscriber, words);
        }
    }

    /// `member` gets every event that passed the node.
    #[inline]
    fn all(&mut self, number: usize, member: &'t Member<S>, deliver: &mut impl FnMut(&S, &[u64])) {
        let from = number * self.width;
        if member.reach == Reach::One {
            let words = &self.node_words[from..][..self.width];
            deliver(&member.record.subscriber, words);
            return;
        }
        let target = self.target(member) as usize * self.width;
        let theirs = &mut self.target_words[target..][..self.width];
        for (to, word) in theirs.iter_mut().zip(&self.node_words[from..]) {
            *to |= word;
        }
    }

    /// Each event that passed the node goes to one member of `group`.
    fn one_each(&mut self, number: usize, group: &'t Group<S>, random: &Random) {
        for at in 0..self.width {
            let mut word = self.node_words[number * self.width + at];
            while word != 0 {
                let index = at * WORD + word.trailing_zeros() as usize;
                word &= word - 1;
                let member = group.at(|named| {
                    let hash = self.hashes.get(index).copied().flatten();
                    let hash = hash.filter(|_| named);
                    hash.unwrap_or_else(|| self.draw(index, random))
                });
                let target = self.target(member);
                set(&mut self.target_words, self.width, target, index);
            }
        }
    }

    /// The random number of an event, the same for all groups.
    fn draw(&mut self, index: usize, random: &Random) -> u64 {
        if self.draws.len() <= index {
            self.draws.resize(index + 1, None);
        }
        *self.draws[index].get_or_insert_with(|| random.next())
    }

    /// The number of a subscription with a bitmap of its own.
    fn target(&mut self, member: &'t Member<S>) -> u32 {
        let next = self.targets.len() as u32;
        let number = self.table.number(member.address(), || next);
        if number == next {
            self.targets.push(&member.record);
            let words = self.target_words.len() + self.width;
            self.target_words.resize(words, 0);
        }
        number
    }

    /// Lets go of the tree, and of memory that only an unusual batch needs.
    fn put_away(mut self) -> Scratch<'static, K, S> {
        Scratch {
            width: 0,
            table: {
                self.table.shrink(KEPT);
                self.table
            },
            nodes: emptied(self.nodes),
            node_words: trimmed(self.node_words),
            targets: emptied(self.targets),
            target_words: trimmed(self.target_words),
            hashes: self.hashes,
            draws: self.draws,
            here: trimmed(self.here),
            next: trimmed(self.next),
        }
    }
}

/// Most items of each kind that a publisher keeps room for.
const KEPT: usize = 1 << 15;

fn trimmed<T>(mut items: Vec<T>) -> Vec<T> {
    items.clear();
    items.shrink_to(KEPT);
    items
}

/// The memory of `items` for items with another lifetime. `collect` reuses the allocation, since
/// both kinds of item have one layout.
fn emptied<T, U>(items: Vec<T>) -> Vec<U> {
    let mut items = trimmed(items);
    items.clear();
    items
        .into_iter()
        .map(|_| unreachable!("it is empty"))
        .collect()
}

#[inline]
fn set(words: &mut [u64], width: usize, number: u32, index: usize) {
    words[number as usize * width + index / WORD] |= 1 << (index % WORD);
}
