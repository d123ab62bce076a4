//! Several threads that really run at the same time: they start from a spin, since waking up takes
//! longer than much of what is measured, and each looks at the clock by itself.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A barrier that is left by all at once.
#[derive(Default)]
pub struct SpinBarrier {
    arrived: AtomicU64,
}

impl SpinBarrier {
    /// Waits until `threads` have come here `times` times. A thread that has waited for long lets
    /// others run.
    pub fn wait(&self, threads: u64, times: u64) {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.arrived.load(Ordering::Acquire) < threads * times {
            spins += 1;
            if spins.is_multiple_of(10_000) {
                thread::yield_now();
            }
            spin_loop();
        }
    }
}

/// Runs `work` on so many threads at once and returns what it took, on average of them.
#[allow(
    dead_code,
    reason = "not every benchmark that has this module calls it"
)]
pub fn at_once(threads: u64, work: impl Fn() + Sync) -> Duration {
    let start = SpinBarrier::default();
    let run = || {
        start.wait(threads, 1);
        let started = Instant::now();
        work();
        started.elapsed()
    };
    let all: Duration = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let times = threads.into_iter().map(|thread| thread.join());
        times.map(|time| time.expect("no panics")).sum()
    });
    all / threads as u32
}
