//! Publishing a run: one walk of the tree for all its envelopes, then one set per subscriber.
//!
//! However many of a run's envelopes a subscriber matches, its ring gets one set and at most one
//! wake. A subscriber that matches most of a run shares it. One that matches little of it gets a
//! small copy, so that a kept envelope never pins a large message; subscribers with the same
//! selection share that copy.
//!
//! v1 subscribers get what they ask for in v1 form. An envelope of the other API is converted only
//! when somebody gets it, and once, however many do.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{BuildHasher, BuildHasherDefault},
    ops::Range,
    sync::Arc,
};

use loggregator::{
    Facts, Key, KeyRef, Kind, Run,
    convert::v2_to_v1,
    v1::{self, Payload, Pushed},
};
use pubsub::{Event, Published, Publisher, Selection};
use smallvec::SmallVec;

use crate::{item::Item, pipeline::Core, subscription::Shared};

/// One publishing worker's tools.
pub(crate) struct Publish {
    publisher: Publisher<Key, Arc<Shared<Run>>>,
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

    /// Publishes an item: all its envelopes, or those that are in a lane.
    pub(crate) fn item(&mut self, item: &mut Item, lane: Option<Lane>) {
        match item {
            Item::V2(run) => {
                self.run(run, lane);
                if !self.core.v1_tree.is_empty() {
                    let here = |facts: &Facts<'_>| lane.is_none_or(|lane| lane.holds(facts));
                    run.events()
                        .filter(here)
                        .for_each(|facts| self.to_v1(facts));
                }
            }
            Item::V1(v1) => {
                self.pushed(&v1.pushed);
                if self.core.tree.is_empty() {
                    self.core.count_published(1);
                } else {
                    let converted = v1.converted();
                    if converted.repaired {
                        self.core.count_v1_repaired();
                    }
                    self.run(&converted.run, None);
                }
            }
        }
    }

    /// Publishes a run to the v2 subscribers.
    fn run(&mut self, run: &Run, lane: Option<Lane>) {
        let mut envelopes = run.len();
        match lane {
            None => self.publish(run, run.events()),
            Some(lane) => {
                let events = run.events().map(|facts| {
                    let here = lane.holds(&facts);
                    envelopes -= usize::from(!here);
                    InLane { facts, here }
                });
                self.publish(run, events);
            }
        }
        self.core.count_published(envelopes);
    }

    /// Publishes a v1 envelope to the v1 subscribers.
    fn pushed(&self, pushed: &Pushed) {
        let tree = &self.core.v1_tree;
        let published = tree.publish(pushed, |subscriber| {
            subscriber.set(pushed.payload().clone())
        });
        self.core.count_panics(published.panicked);
    }

    /// Publishes the v1 forms of a v2 envelope to the v1 subscribers.
    fn to_v1(&self, facts: Facts<'_>) {
        if !self.v1_wants(&facts) {
            return;
        }
        for form in v2_to_v1(facts).iter() {
            let mut payload: Option<Option<Payload>> = None;
            let published = self.core.v1_tree.publish(&form, |subscriber| {
                if let Some(payload) = payload.get_or_insert_with(|| form.payload()) {
                    subscriber.set(payload.clone());
                }
            });
            if payload == Some(None) {
                self.core.count_v1_incomplete();
            }
            self.core.count_panics(published.panicked);
        }
    }

    /// Whether a v1 subscription may match some form of this envelope. Cheaper than looking at the
    /// forms: only the tags tell which of the possible ones it has.
    fn v1_wants(&self, facts: &Facts<'_>) -> bool {
        let source_id = facts.source_id_bytes();
        let own = |r#type| Probe {
            app_id: source_id,
            r#type,
        };
        let system = Probe {
            app_id: b"system",
            r#type: v1::Type::Metric,
        };
        let wanted = |probe: Probe<'_>| self.core.v1_tree.publish(&probe, |_| {}).delivered > 0;
        match facts.kind() {
            None | Some(Kind::Event) => false,
            Some(Kind::Counter) => wanted(system),
            Some(Kind::Log) => wanted(own(v1::Type::Log)) || wanted(system),
            Some(Kind::Gauge) => wanted(own(v1::Type::Metric)) || wanted(system),
            Some(Kind::Timer) => {
                let lower_case = source_id.to_ascii_lowercase();
                let probe = Probe {
                    app_id: &lower_case,
                    r#type: v1::Type::Metric,
                };
                wanted(probe) || wanted(system)
            }
        }
    }

    fn publish<E: Event<Key>>(&mut self, run: &Run, events: impl ExactSizeIterator<Item = E>) {
        let cuts = &mut self.cuts;
        let Published { panicked, .. } =
            self.publisher
                .publish_batch(events, |subscriber: &Arc<Shared<Run>>, selection| {
                    if selection.is_all() {
                        subscriber.set(run.clone());
                    } else {
                        match cuts.of(run, selection) {
                            [part] => subscriber.set(part.clone()),
                            parts => subscriber.set_all(parts),
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

/// A form that a v2 envelope may have.
struct Probe<'a> {
    app_id: &'a [u8],
    r#type: v1::Type,
}

impl Event<v1::Key> for Probe<'_> {
    type Key<'a>
        = v1::KeyRef<'a>
    where
        Self: 'a;

    fn key(&self, depth: usize) -> Option<v1::KeyRef<'_>> {
        match depth {
            0 => Some(v1::KeyRef::AppId(self.app_id)),
            1 => Some(v1::KeyRef::Type(self.r#type)),
            _ => None,
        }
    }
}
