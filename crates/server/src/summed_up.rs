//! What happens too often for a line each: counted, and summed up in the log.
//!
//! A refused peer usually tries again at once, and a broken producer sends more of the same. The
//! first few of an interval get a line each; the rest are counted, and the ticker prints the sum,
//! also after the last one.

use std::{
    fmt::Display,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time;

/// How often sums are printed.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lines of their own in an interval.
const LINES: u64 = 5;

pub(crate) struct SummedUp {
    /// What it is, in the plural.
    what: &'static str,
    in_interval: AtomicU64,
    total: AtomicU64,
}

impl SummedUp {
    pub(crate) fn new(what: &'static str) -> Self {
        Self {
            what,
            in_interval: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    /// Counts one; `line` is only asked for while there are few.
    pub(crate) fn note<L: Display>(&self, line: impl FnOnce() -> L) {
        self.total.fetch_add(1, Relaxed);
        if self.in_interval.fetch_add(1, Relaxed) < LINES {
            tracing::warn!("{}", line());
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Prints the sums, for ever.
    pub(crate) async fn report(&self) {
        let mut ticks = time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            let silent = self.in_interval.swap(0, Relaxed).saturating_sub(LINES);
            if silent > 0 {
                tracing::warn!("{silent} more {} in the last {INTERVAL:?}", self.what);
            }
        }
    }
}
