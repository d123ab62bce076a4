//! Publishing a run: one walk of the tree for all its envelopes, then one set per subscriber.
//!
//! However many of a run's envelopes a subscriber matches, its ring gets one set and at most one
//! wake. A subscriber that matches most of a run shares it. One that matches little of it gets a
//! small copy, so that a kept envelope never pins a large message; subscribers with the same
//! selection share that copy.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{BuildHasher, BuildHasherDefault},
    ops::Range,
    sync::Arc,
};

use loggregator::{Facts, Key, KeyRef, Run};
use pubsub::{Event, Published, Publisher, Selection};
use smallvec::SmallVec;

use crate::{pipeline::Core, subscription::Shared};

/// One publishing worker's tools.
pub(crate) struct Publish {
    publisher: Publisher<Key, Arc<Shared>>,
    core: Arc<Core>,
    cuts: Cuts,
}

/// One lane of several: the envelopes of a source id are all in the same one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lane {
    index: u64,
    of: u64,
}

/// What subscribers of one run get who don't get all of it.
#[derive(Default)]
struct Cuts {
    /// The envelopes, and the run that holds them.
    made: SmallVec<[(Ranges, Part); 4]>,
}

type Ranges = SmallVec<[Range<usize>; 4]>;
type Part = SmallVec<[Run; 1]>;

/// More pieces than this cost a ring more than a copy does.
const MOST_PIECES: usize = 4;

impl Publish {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            publisher: core.tree.publisher(),
            core,
            cuts: Cuts::default(),
        }
    }

    /// Publishes all envelopes of a run.
    pub(crate) fn run(&mut self, run: &Run) {
        self.publish(run, run.events());
        self.core.count_published(run.len());
    }

    /// Publishes the envelopes of a run that are in a lane.
    pub(crate) fn lane(&mut self, run: &Run, lane: Lane) {
        let mut envelopes = 0;
        let events = run.events().map(|facts| {
            let here = lane.holds(&facts);
            envelopes += usize::from(here);
            InLane { facts, here }
        });
        self.publish(run, events);
        self.core.count_published(envelopes);
    }

    fn publish<E: Event<Key>>(&mut self, run: &Run, events: impl ExactSizeIterator<Item = E>) {
        let cuts = &mut self.cuts;
        let Published { panicked, .. } =
            self.publisher
                .publish_batch(events, |subscriber: &Arc<Shared>, selection| {
                    subscriber.count_matched(selection.count());
                    if selection.is_all() {
                        subscriber.ring.set(run.clone());
                    } else {
                        match cuts.of(run, selection) {
                            [part] => subscriber.ring.set(part.clone()),
                            parts => subscriber.ring.set_all(parts.iter().cloned()),
                        }
                    }
                });
        cuts.made.clear();
        self.core.count_panics(panicked);
    }
}

impl Cuts {
    /// The selected envelopes of a run, as few handles as is sensible.
    fn of(&mut self, run: &Run, selection: &Selection<'_>) -> &[Run] {
        let known = self
            .made
            .iter()
            .rposition(|(ranges, _)| selection.ranges().eq(ranges.iter().cloned()));
        let index = known.unwrap_or_else(|| {
            let ranges: Ranges = selection.ranges().collect();
            let part = cut(run, &ranges);
            self.made.push((ranges, part));
            self.made.len() - 1
        });
        &self.made[index].1
    }
}

fn cut(run: &Run, ranges: &[Range<usize>]) -> Part {
    let slices = ranges.iter().map(|range| run.slice(range.clone()));
    let kept: usize = slices.clone().map(|slice| slice.byte_len()).sum();
    // what is kept decides over the memory of the whole message
    if ranges.len() <= MOST_PIECES && 2 * kept >= run.message().byte_len() {
        slices.collect()
    } else {
        SmallVec::from_iter([run.select(ranges.iter().cloned())])
    }
}

impl Lane {
    /// The lanes that a run has envelopes in.
    pub(crate) fn of(run: &Run, lanes: u64) -> SmallVec<[Self; 8]> {
        let mut found = SmallVec::<[Self; 8]>::new();
        for facts in run.events() {
            let lane = Self {
                index: source_hash(&facts) % lanes,
                of: lanes,
            };
            if !found.contains(&lane) {
                found.push(lane);
                if found.len() as u64 == lanes {
                    break;
                }
            }
        }
        found
    }

    pub(crate) fn index(self) -> u64 {
        self.index
    }

    fn holds(self, facts: &Facts<'_>) -> bool {
        source_hash(facts) % self.of == self.index
    }
}

fn source_hash(facts: &Facts<'_>) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(facts.source_id_bytes())
}

/// An envelope as the worker of one lane sees it: those of other lanes match nothing.
struct InLane<'a> {
    facts: Facts<'a>,
    here: bool,
}

impl Event<Key> for InLane<'_> {
    type Key<'a>
        = KeyRef<'a>
    where
        Self: 'a;

    fn key(&self, depth: usize) -> Option<KeyRef<'_>> {
        if self.here {
            self.facts.key(depth)
        } else {
            None
        }
    }

    fn shard_hash(&self) -> Option<u64> {
        self.facts.shard_hash()
    }
}
