//! What several test files need: a waker that counts, values that count their drops or weigh what
//! they are told to, and sizes that shrink where every step is slow.

#![allow(dead_code, reason = "no test file needs all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Wake, Waker};
use std::time::Duration;

use diode::Weigh;

/// After this long something hangs. Never a measure of speed.
pub const HANG: Duration = Duration::from_secs(60);

/// `full`, or a hundredth of it under a sanitizer (`DIODE_SMALL=1`), which slows everything down.
pub fn rounds(full: u64) -> u64 {
    if std::env::var_os("DIODE_SMALL").is_some() {
        (full / 100).max(1)
    } else {
        full
    }
}

/// Counts its wakes.
#[derive(Default)]
pub struct Bell(AtomicU64);

impl Bell {
    pub fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::new(Self::default());
        let waker = Waker::from(Arc::clone(&bell));
        (bell, waker)
    }

    pub fn rung(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Counts how many [`Counted`] values live.
#[derive(Clone, Default)]
pub struct Population(Arc<()>);

impl Population {
    pub fn value(&self, number: u64) -> Counted {
        Counted {
            number,
            _alive: self.clone(),
        }
    }

    pub fn alive(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

pub struct Counted {
    pub number: u64,
    _alive: Population,
}

/// Weighs what it says and remembers a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    pub number: u64,
    pub weight: usize,
    pub bytes: usize,
}

impl Weigh for Value {
    fn weight(&self) -> usize {
        self.weight
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Small and repeatable pseudo-random numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
