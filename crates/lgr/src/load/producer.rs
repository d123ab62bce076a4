//! Producers: streams of batches that cost next to nothing to make.
//!
//! A [`Press`] holds a producer's prepared envelopes and its counters. tonic asks the stream,
//! [`Orders`], when it has room for a message; the stream says yes when one is due; the encoder,
//! [`Print`], then patches envelopes and copies them straight into the connection's buffer. Nothing
//! is queued in between, so a timestamp is as late as it can be.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::BufMut;
use tonic::Status;
use tonic::codec::{EncodeBuf, Encoder};
use tonic::codegen::tokio_stream::Stream;

use super::pace::Pacer;
use super::plan::{Mix, Numbering};
use super::template::Template;

/// Nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// A small generator of pseudo-random numbers (splitmix64): runs are repeatable.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Evenly from 0 to below 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Which kind (by its place in the mix) and which source each envelope has, drawn ahead: producers
/// go through it round and round, each from a place of its own.
#[derive(Debug)]
pub(crate) struct Draws(Vec<(u8, u32)>);

impl Draws {
    /// How many at least, so that proportions are right.
    const LENGTH: usize = 1 << 16;
    /// How many at most, whatever the number of sources.
    const LIMIT: usize = 1 << 22;

    /// With skew 0 all sources have the same share; else the share of source i is proportional to
    /// (i + 1) to the power of -skew.
    pub(crate) fn new(mix: &Mix, sources: u32, skew: f64) -> Self {
        let mut random = Random(1);
        let kinds: Vec<u8> = Self::kinds(mix);
        if sources == 1 && kinds.len() == 1 {
            return Self(vec![(0, 0)]);
        }
        let count = sources as usize;
        let length = (count * kinds.len()).clamp(Self::LENGTH, Self::LIMIT);
        let mut drawn_sources = Vec::with_capacity(length);
        if skew == 0.0 {
            let mut order: Vec<u32> = (0..sources).collect();
            while drawn_sources.len() < length {
                for position in (1..order.len()).rev() {
                    order.swap(position, random.next() as usize % (position + 1));
                }
                drawn_sources.extend(&order);
            }
        } else {
            let mut total = 0.0;
            let sums: Vec<f64> = (1..=count)
                .map(|rank| {
                    total += (rank as f64).powf(-skew);
                    total
                })
                .collect();
            for _ in 0..length {
                let point = random.fraction() * total;
                drawn_sources.push(sums.partition_point(|&sum| sum <= point).min(count - 1) as u32);
            }
        }
        let draws = drawn_sources
            .into_iter()
            .map(|source| (kinds[random.next() as usize % kinds.len()], source));
        Self(draws.collect())
    }

    /// Each kind's place in the mix as often as its weight says, in lowest terms.
    fn kinds(mix: &Mix) -> Vec<u8> {
        let divisor = mix
            .0
            .iter()
            .fold(0, |divisor, &(_, weight)| greatest_divisor(divisor, weight));
        let kinds = (0_u8..).zip(&mix.0).flat_map(|(place, &(_, weight))| {
            std::iter::repeat_n(place, (weight / divisor) as usize)
        });
        kinds.collect()
    }
}

fn greatest_divisor(a: u32, b: u32) -> u32 {
    if b == 0 {
        a
    } else {
        greatest_divisor(b, a % b)
    }
}

/// A producer's envelopes and counters; shared with whoever reports.
#[derive(Debug)]
pub(crate) struct Press {
    templates: Vec<Patched>,
    draws: Arc<Draws>,
    cursor: usize,
    numbering: Numbering,
    /// The producer's first series.
    base: u32,
    /// The next sequence number of each of its series: so many were sent.
    pub(crate) sequences: Vec<u64>,
    pub(crate) envelopes: u64,
    pub(crate) messages: u64,
}

/// A template, and what it was patched with last.
#[derive(Clone, Debug)]
struct Patched {
    template: Template,
    source: u32,
    timestamp: i64,
}

impl Press {
    pub(crate) fn new(
        producer: u32,
        templates: &[Template],
        draws: &Arc<Draws>,
        numbering: Numbering,
    ) -> Arc<Mutex<Self>> {
        let base = producer * numbering.per_producer();
        let templates = templates.iter().enumerate().map(|(kind, template)| {
            let mut template = template.clone();
            template.set_source(0);
            template.set_series(base + numbering.within(kind as u32, 0));
            Patched {
                template,
                source: 0,
                timestamp: 0,
            }
        });
        Arc::new(Mutex::new(Self {
            templates: templates.collect(),
            cursor: draws.0.len() / numbering.producers as usize * producer as usize,
            draws: Arc::clone(draws),
            numbering,
            base,
            sequences: vec![0; numbering.per_producer() as usize],
            envelopes: 0,
            messages: 0,
        }))
    }

    /// Makes a batch of `count` envelopes.
    fn print(&mut self, count: u32, timestamp: i64, out: &mut impl BufMut) {
        for _ in 0..count {
            let (kind, source) = self.draws.0[self.cursor];
            self.cursor += 1;
            if self.cursor == self.draws.0.len() {
                self.cursor = 0;
            }
            let series = self.numbering.within(kind.into(), source);
            let patched = &mut self.templates[usize::from(kind)];
            if patched.source != source {
                patched.source = source;
                patched.template.set_source(source);
                patched.template.set_series(self.base + series);
            }
            if patched.timestamp != timestamp {
                patched.timestamp = timestamp;
                patched.template.set_timestamp(timestamp);
            }
            let sequence = &mut self.sequences[series as usize];
            patched.template.set_sequence(*sequence);
            *sequence += 1;
            out.put_slice(patched.template.bytes());
        }
        self.envelopes += u64::from(count);
        self.messages += 1;
    }

    fn size(&self, count: u32) -> usize {
        let largest = self
            .templates
            .iter()
            .map(|patched| patched.template.bytes().len())
            .max();
        largest.unwrap_or(0) * count as usize
    }
}

pub(crate) fn lock(press: &Mutex<Press>) -> MutexGuard<'_, Press> {
    press.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The encoder: makes messages out of nothing but their size.
#[derive(Clone, Debug)]
pub(crate) struct Print(pub(crate) Arc<Mutex<Press>>);

impl Encoder for Print {
    /// How many envelopes.
    type Item = u32;
    type Error = Status;

    fn encode(&mut self, count: u32, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let mut press = lock(&self.0);
        out.reserve(press.size(count));
        press.print(count, now(), out);
        Ok(())
    }
}

/// How fast and how long a producer sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Envelopes per message.
    pub(crate) batch: u32,
    /// Time from one message to the next; `None` as fast as it goes.
    pub(crate) interval: Option<Duration>,
    /// Time from one burst to the next; `None` sends each message when it is due.
    pub(crate) burst: Option<Duration>,
    /// When the first message is due.
    pub(crate) start: Instant,
    /// Envelopes to send at most.
    pub(crate) count: Option<u64>,
}

impl Pace {
    /// When the message with this number, counted from 0, is due.
    fn due(&self, message: u64) -> Instant {
        let Some(interval) = self.interval else {
            return self.start;
        };
        let evenly = interval.mul_f64(message as f64);
        self.start
            + match self.burst {
                Some(burst) if !burst.is_zero() => {
                    burst.mul_f64((evenly.as_secs_f64() / burst.as_secs_f64()).ceil())
                }
                _ => evenly,
            }
    }
}

/// The stream of messages, each just the number of its envelopes. Ends at the count, or when told
/// to stop.
#[derive(Debug)]
pub(crate) struct Orders {
    pace: Pace,
    pacer: Pacer,
    stop: Arc<AtomicBool>,
    /// Messages so far.
    messages: u64,
    left: u64,
}

impl Orders {
    /// Within the runtime that will poll it.
    pub(crate) fn new(pace: Pace, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let left = pace.count.unwrap_or(u64::MAX);
        Ok(Self {
            pace,
            pacer: Pacer::new()?,
            stop,
            messages: 0,
            left,
        })
    }

    /// A producer that sleeps for long must still see that it is to stop.
    const LONGEST_SLEEP: Duration = Duration::from_millis(100);
}

impl Stream for Orders {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<u32>> {
        let this = &mut *self;
        let due = this.pace.due(this.messages);
        loop {
            if this.left == 0 || this.stop.load(Relaxed) {
                return Poll::Ready(None);
            }
            let now = Instant::now();
            if now >= due {
                break;
            }
            let until = due.min(now + Self::LONGEST_SLEEP);
            if ready!(this.pacer.poll_until(cx, until)).is_err() {
                return Poll::Ready(None);
            }
        }
        let count = u64::from(this.pace.batch).min(this.left);
        this.left -= count;
        this.messages += 1;
        Poll::Ready(Some(count as u32))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use lgr::numbered::Number;
    use loggregator::v2::{self, envelope::Message};
    use prost::Message as _;
    use tonic::codegen::tokio_stream::StreamExt;

    use super::*;
    use crate::load::plan::Group;
    use crate::load::template::Api;

    fn press(mix: &str, sources: u32, skew: f64, groups: &[&str]) -> Vec<Arc<Mutex<Press>>> {
        let mix: Mix = mix.parse().unwrap();
        let groups: Vec<Group> = groups.iter().map(|text| text.parse().unwrap()).collect();
        let numbering = Numbering::new(2, &mix, sources, &groups);
        let draws = Arc::new(Draws::new(&mix, sources, skew));
        let templates: Vec<_> = mix
            .0
            .iter()
            .map(|&(kind, _)| Template::new(Api::V2, kind, 50, 3))
            .collect();
        (0..2)
            .map(|producer| Press::new(producer, &templates, &draws, numbering))
            .collect()
    }

    fn print(press: &Mutex<Press>, count: u32, timestamp: i64) -> Vec<v2::Envelope> {
        let mut out = Vec::new();
        lock(press).print(count, timestamp, &mut out);
        assert!(out.len() <= lock(press).size(count));
        v2::EnvelopeBatch::decode(&*out).unwrap().batch
    }

    /// Whatever is told apart: each series counts from 0, and belongs to one producer, kind, source.
    #[test]
    fn every_series_is_numbered_without_gaps() {
        for groups in [&["firehose"][..], &["source", "log"], &["counter"]] {
            let presses = press("log:3,counter:2,event", 20, 0.0, groups);
            let mut next: HashMap<u32, u64> = HashMap::new();
            for round in 0..10 {
                for press in &presses {
                    for envelope in print(press, 100, (1 << 60) + round) {
                        assert_eq!(envelope.timestamp, (1 << 60) + round);
                        let number = Number::of(&envelope).unwrap();
                        let expected = next.entry(number.series).or_default();
                        assert_eq!((number.run, number.sequence), (3, *expected));
                        *expected += 1;
                    }
                }
            }
            let mut sent: HashMap<u32, u64> = HashMap::new();
            for press in &presses {
                let press = lock(press);
                for (series, &count) in (press.base..).zip(&press.sequences) {
                    sent.insert(series, count);
                }
                assert_eq!((press.envelopes, press.messages), (1000, 10));
                assert_eq!(press.sequences.iter().sum::<u64>(), 1000);
            }
            next.retain(|_, &mut count| count > 0);
            sent.retain(|_, &mut count| count > 0);
            assert_eq!(next, sent);
        }
    }

    #[test]
    fn kinds_and_sources_have_their_shares() {
        let mut kinds = [0_u32; 2];
        let mut sources: HashMap<String, u32> = HashMap::new();
        for envelope in print(&press("log:3,counter:1", 4, 0.0, &[])[0], 10_000, 1 << 60) {
            kinds[usize::from(matches!(envelope.message, Some(Message::Counter(_))))] += 1;
            *sources.entry(envelope.source_id).or_default() += 1;
        }
        assert!((7_000..8_000).contains(&kinds[0]), "{kinds:?}");
        assert!(
            sources.values().all(|count| (2_400..2_600).contains(count)),
            "{sources:?}"
        );

        let mut sources: HashMap<String, u32> = HashMap::new();
        for envelope in print(&press("log", 4, 1.0, &[])[0], 10_000, 1 << 60) {
            *sources.entry(envelope.source_id).or_default() += 1;
        }
        let mut shares: Vec<_> = sources.into_values().collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        // 1, 1/2, 1/3, 1/4 of 25/12
        for (share, expected) in shares.iter().zip([4800, 2400, 1600, 1200]) {
            assert!(share.abs_diff(expected) < 300, "{shares:?}");
        }
    }

    fn pace(batch: u32, interval: Option<Duration>, count: Option<u64>) -> Pace {
        Pace {
            batch,
            interval,
            burst: None,
            start: Instant::now(),
            count,
        }
    }

    #[test]
    fn bursts_gather_what_is_due() {
        let evenly = pace(1, Some(Duration::from_millis(1)), None);
        let bursts = Pace {
            burst: Some(Duration::from_millis(10)),
            ..evenly
        };
        let millis = |pace: &Pace, message| (pace.due(message) - pace.start).as_millis();
        assert_eq!([0, 1, 10, 11].map(|n| millis(&evenly, n)), [0, 1, 10, 11]);
        assert_eq!([0, 1, 10, 11].map(|n| millis(&bursts, n)), [0, 10, 10, 20]);
    }

    #[tokio::test]
    async fn orders_end_at_the_count() {
        let orders = Orders::new(pace(100, None, Some(250)), Arc::default()).unwrap();
        assert_eq!(orders.collect::<Vec<_>>().await, [100, 100, 50]);
    }

    #[tokio::test]
    async fn orders_come_no_sooner_than_due() {
        let pace = pace(1, Some(Duration::from_millis(3)), Some(5));
        let mut orders = Orders::new(pace, Arc::default()).unwrap();
        let mut messages = 0;
        while orders.next().await.is_some() {
            assert!(Instant::now() >= pace.start + messages * Duration::from_millis(3));
            messages += 1;
        }
        assert_eq!(messages, 5);
    }

    #[tokio::test]
    async fn orders_end_when_told_even_in_their_sleep() {
        let stop = Arc::new(AtomicBool::new(false));
        let pace = pace(1, Some(Duration::from_secs(3600)), None);
        let mut orders = Orders::new(pace, Arc::clone(&stop)).unwrap();
        assert_eq!(orders.next().await, Some(1));
        let flag = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            stop.store(true, Relaxed);
        });
        assert_eq!(orders.next().await, None);
        flag.join().unwrap();
    }
}
