//! What the benchmarks have in common: the proposal's tree, envelopes as agents send them, and
//! subscribers whose cost is known.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use loggregator::{Key, Limits, Message, selectors_to_interest, v2};
use prost::Message as _;
use pubsub::{PubSub, Subscription};

/// Live subscriptions in the proposal's tree.
pub const SUBSCRIPTIONS: usize = 100_000;
/// Source ids that they are spread over: five subscriptions match each envelope.
pub const SOURCES: usize = 20_000;

/// A subscriber whose cost per envelope is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fixture {
    /// Does nothing: what is measured is the router.
    Noop,
    /// Keeps the processor busy for about a microsecond, as real work does. What it takes depends on
    /// the processor and on nothing else: the same steps every time, not a look at the clock, which
    /// would count the time that others run.
    Spin,
    /// Gives up the processor until a microsecond has passed, as somebody who sleeps or waits for a
    /// reply does. Many can wait at once, so a worker stage looks better with it than it is.
    Wait,
}

impl Fixture {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 3] = [Self::Noop, Self::Spin, Self::Wait];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Spin => "spin",
            Self::Wait => "wait",
        }
    }

    /// What the subscriber does with an envelope.
    #[inline]
    pub fn receive(self) {
        match self {
            Self::Noop => {}
            Self::Spin => spin(),
            Self::Wait => wait(),
        }
    }
}

/// Steps of [`spin`]: six dependent operations each, a microsecond at about 3 GHz.
const STEPS: u32 = 500;

#[inline(never)]
fn spin() {
    let mut state = black_box(0x9E37_79B9_7F4A_7C15_u64);
    for _ in 0..STEPS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

#[inline(never)]
fn wait() {
    let started = Instant::now();
    while started.elapsed() < Duration::from_micros(1) {
        thread::yield_now();
    }
}

/// The proposal's tree with one kind of subscriber. Subscriptions end when it is dropped.
pub struct Tree {
    /// The tree.
    pub tree: PubSub<Key, Fixture>,
    subscriptions: Vec<Subscription<Key, Fixture>>,
}

impl Tree {
    /// 100,000 subscriptions over 20,000 source ids.
    pub fn new(fixture: Fixture) -> Self {
        Self::of_size(fixture, SUBSCRIPTIONS, SOURCES)
    }

    /// So many subscriptions over so many source ids.
    pub fn of_size(fixture: Fixture, subscriptions: usize, sources: usize) -> Self {
        // Hashes alike in every run, so that instruction counts are.
        let tree = PubSub::builder().hash_seed(1).build();
        let all = (0..subscriptions).map(|number| {
            let request = request(&source_id(number % sources));
            (fixture, selectors_to_interest(&request))
        });
        let subscriptions = tree.subscribe_all(all);
        Self {
            tree,
            subscriptions,
        }
    }

    /// How many subscriptions it has.
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }
}

/// Source ids as the platform has them: unique from the first digit on.
pub fn source_id(number: usize) -> String {
    let mixed = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!(
        "{:08x}-{:04x}-4c7d-8e9f-{number:012x}",
        mixed >> 32,
        mixed & 0xffff
    )
}

/// The request of a stream that wants the logs of one source.
pub fn request(source_id: &str) -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        selectors: vec![v2::Selector {
            source_id: source_id.to_owned(),
            message: Some(v2::selector::Message::Log(v2::LogSelector {})),
        }],
        ..Default::default()
    }
}

/// A message as it comes from the wire: one log of about 330 bytes for each of the sources.
pub fn wire_message(sources: impl IntoIterator<Item = String>) -> Vec<u8> {
    let batch = sources.into_iter().map(log).collect();
    v2::EnvelopeBatch { batch }.encode_to_vec()
}

/// The same, checked and ready to publish.
///
/// # Panics
///
/// Never: the message is well formed.
pub fn message(sources: impl IntoIterator<Item = String>) -> Message {
    Message::parse(&wire_message(sources), Limits::default()).expect("a well-formed message")
}

/// A log with 128 bytes of payload and the six tags that agents add.
fn log(source_id: String) -> v2::Envelope {
    let tags = [
        ("app_name", "checkout"),
        ("deployment", "cf-prod"),
        ("index", "c52d-2"),
        ("ip", "10.0.16.24"),
        ("job", "diego-cell"),
        ("origin", "rep"),
    ];
    let log = v2::Log {
        payload: vec![b'x'; 128],
        r#type: 0,
    };
    v2::Envelope {
        timestamp: 1_700_000_000_123_456_789,
        source_id,
        instance_id: "4".into(),
        tags: tags.map(|(name, value)| (name.into(), value.into())).into(),
        message: Some(v2::envelope::Message::Log(log)),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_subscriptions_match_each_envelope() {
        let tree = Tree::of_size(Fixture::Noop, 1000, 200);
        assert_eq!(tree.len(), 1000);
        let message = message([source_id(0), source_id(199), source_id(200)]);
        let published: Vec<_> = (0..3)
            .map(|index| tree.tree.publish(&message.facts(index), |_| ()).delivered)
            .collect();
        assert_eq!(published, [5, 5, 0]);
    }

    #[test]
    fn an_envelope_is_as_large_as_it_says() {
        let one = message([source_id(0)]);
        assert!((300..360).contains(&one.byte_len()), "{}", one.byte_len());
    }
}
