//! Numbered envelopes: what a sender writes into them and how a receiver finds out what was lost,
//! duplicated or overtaken.
//!
//! Every numbered envelope has a tag, [`TAG`], whose value is a [`Number`] in a text of fixed
//! length, so that it can be patched into prepared bytes. A number has three parts: the *run* of
//! the sender, drawn anew each time; the *series*, usually one for each source id (and kind, where
//! subscribers select by it); and the *sequence* number, which counts 0, 1, 2, ... within the
//! series. A receiver puts each number into a [`Tracker`].
//!
//! ```
//! use lgr::numbered::{Number, Tracker};
//!
//! let mut tracker = Tracker::default();
//! for sequence in [0, 1, 3, 2, 2] {
//!     tracker.record(Number { run: 7, series: 0, sequence });
//! }
//! assert_eq!(tracker.received(), 4);
//! assert_eq!(tracker.duplicated(), 1);
//! assert_eq!(tracker.out_of_order(), 1); // 2 after 3
//! assert_eq!(tracker.missing(), 0);
//! ```

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use loggregator::v2;

/// The name of the tag that holds an envelope's number.
pub const TAG: &str = "lgr";

/// The number of an envelope. As text it is `RUN.SERIES.SEQUENCE`, hexadecimal, always
/// [`Number::LEN`] bytes long.
///
/// ```
/// use lgr::numbered::Number;
///
/// let number = Number { run: 0x5f3a09c1, series: 2, sequence: 42 };
/// assert_eq!(number.to_string(), "5f3a09c1.00000002.00000000002a");
/// assert_eq!(Number::parse(b"5f3a09c1.00000002.00000000002a"), Some(number));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number {
    /// Tells one run of a sender from all others.
    pub run: u32,
    /// Which series of the run.
    pub series: u32,
    /// Position within the series, from 0. Only the lower 48 bits are written.
    pub sequence: u64,
}

impl Number {
    /// Length of the text in bytes.
    pub const LEN: usize = 30;
    /// Where the series begins in the text.
    pub const SERIES: usize = 9;
    /// Where the sequence number begins in the text.
    pub const SEQUENCE: usize = 18;

    /// Draws the number of a run.
    pub fn random_run() -> u32 {
        RandomState::new().hash_one(std::process::id()) as u32
    }

    /// Writes the text over the first [`Number::LEN`] bytes of `text`.
    ///
    /// # Panics
    /// If `text` is shorter.
    pub fn write(self, text: &mut [u8]) {
        write_hex(&mut text[..8], self.run.into());
        text[8] = b'.';
        write_hex(&mut text[Self::SERIES..17], self.series.into());
        text[17] = b'.';
        write_hex(&mut text[Self::SEQUENCE..Self::LEN], self.sequence);
    }

    /// Reads the text; `None` if it is not exactly a number's.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text: &[u8; Self::LEN] = text.try_into().ok()?;
        if text[8] != b'.' || text[17] != b'.' {
            return None;
        }
        Some(Self {
            run: read_hex(&text[..8])? as u32,
            series: read_hex(&text[Self::SERIES..17])? as u32,
            sequence: read_hex(&text[Self::SEQUENCE..])?,
        })
    }

    /// The number in an envelope's tag, if it has one.
    pub fn of(envelope: &v2::Envelope) -> Option<Self> {
        Self::parse(envelope.tags.get(TAG)?.as_bytes())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sequence = self.sequence & (u64::MAX >> 16);
        write!(f, "{:08x}.{:08x}.{sequence:012x}", self.run, self.series)
    }
}

/// Fills `text` with the lowest digits of `value`.
pub fn write_hex(text: &mut [u8], mut value: u64) {
    for symbol in text.iter_mut().rev() {
        *symbol = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

/// Lower-case digits only: what is not written by [`write_hex`] is no number of ours.
fn read_hex(text: &[u8]) -> Option<u64> {
    let mut value = 0;
    let mut wrong = 0;
    for &symbol in text {
        let digit = HEX[usize::from(symbol)];
        wrong |= digit;
        value = value << 4 | u64::from(digit & 15);
    }
    (wrong < 16).then_some(value)
}

/// The value of each hexadecimal digit; 16 for everything else.
const HEX: [u8; 256] = {
    let mut table = [16; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// How a sequence number arrived. [`Series`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Higher than all before.
    InOrder,
    /// For the first time, but after a higher one.
    OutOfOrder,
    /// Not for the first time.
    Duplicate,
    /// Absurdly far ahead: no number of a sender that counts.
    Stray,
}

/// Which sequence numbers of one series have arrived: one bit each, from the first that is missing
/// to the highest that is not.
///
/// ```
/// use lgr::numbered::{Arrival, Series};
///
/// let mut series = Series::default();
/// assert_eq!(series.record(5), Arrival::InOrder);
/// assert_eq!(series.record(3), Arrival::OutOfOrder);
/// assert_eq!(series.record(5), Arrival::Duplicate);
/// assert_eq!((series.received(), series.end()), (2, 6));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Words of 64 numbers; the front one holds a number that is missing.
    bits: VecDeque<u64>,
    /// The words before the front one, all complete and not kept.
    complete: u64,
    received: u64,
    end: u64,
}

impl Series {
    /// How far a number may be ahead of the first that is missing, so that a stray one can't use up
    /// the memory: 2^32 numbers are 512 MiB of bits.
    const REACH: u64 = 1 << 32;

    /// Notes the arrival of `sequence`. A number out of reach, 2^32 or more ahead of the first that
    /// is missing, leaves the series as it is.
    pub fn record(&mut self, sequence: u64) -> Arrival {
        let (word, bit) = (sequence / 64, 1_u64 << (sequence % 64));
        let Some(position) = word.checked_sub(self.complete) else {
            return Arrival::Duplicate;
        };
        if position >= Self::REACH / 64 {
            return Arrival::Stray;
        }
        let position = position as usize;
        if position >= self.bits.len() {
            self.bits.resize(position + 1, 0);
        }
        let slot = &mut self.bits[position];
        if *slot & bit != 0 {
            return Arrival::Duplicate;
        }
        *slot |= bit;
        if position == 0 {
            while self.bits.front() == Some(&u64::MAX) {
                self.bits.pop_front();
                self.complete += 1;
            }
        }
        self.received += 1;
        if sequence >= self.end {
            self.end = sequence + 1;
            Arrival::InOrder
        } else {
            Arrival::OutOfOrder
        }
    }

    /// How many different numbers have arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// One more than the highest number that has arrived.
    pub fn end(&self) -> u64 {
        self.end
    }
}

/// The series of all runs, with totals. See the [module](self) for an example.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    series: HashMap<(u32, u32), Series>,
    received: u64,
    duplicated: u64,
    out_of_order: u64,
}

impl Tracker {
    /// Notes the arrival of `number`.
    pub fn record(&mut self, number: Number) -> Arrival {
        let series = self.series.entry((number.run, number.series)).or_default();
        let arrival = series.record(number.sequence);
        match arrival {
            Arrival::InOrder => self.received += 1,
            Arrival::OutOfOrder => {
                self.received += 1;
                self.out_of_order += 1;
            }
            Arrival::Duplicate => self.duplicated += 1,
            Arrival::Stray => {}
        }
        arrival
    }

    /// How many different numbers have arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// How many arrived once more.
    pub fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// How many arrived after a higher one of their series.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// How many lie below the highest of their series and have not arrived. What is missing after
    /// the highest only the sender knows.
    pub fn missing(&self) -> u64 {
        self.series
            .values()
            .map(|series| series.end() - series.received())
            .sum()
    }
}
