//! Connections that were turned away, summed up in the log.
//!
//! A refused peer usually tries again at once. The first refusals of an interval get a line each;
//! the rest are counted, and the ticker prints the sum, also after the last one.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time;

/// How often sums are printed.
const INTERVAL: Duration = Duration::from_secs(10);

/// Lines of their own in an interval.
const LINES: u64 = 5;

#[derive(Default)]
pub(crate) struct Refusals {
    in_interval: AtomicU64,
    total: AtomicU64,
}

impl Refusals {
    pub(crate) fn note(&self, peer: SocketAddr, error: &io::Error) {
        self.total.fetch_add(1, Relaxed);
        if self.in_interval.fetch_add(1, Relaxed) < LINES {
            tracing::warn!("connection from {peer} refused: {}", reason(error));
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
                tracing::warn!("{silent} more connections refused in the last {INTERVAL:?}");
            }
        }
    }
}

/// The TLS library's error in words for an operator.
fn reason(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::TimedOut {
        return "no TLS handshake within the time limit".to_owned();
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "closed during the TLS handshake".to_owned();
    }
    error.to_string()
}
