//! When the next message is due, to the microsecond.
//!
//! tokio's timers have steps of a millisecond, which would turn 20,000 messages a second into
//! bursts of twenty: a router finds those much cheaper than an even flow. So a producer sleeps on a
//! timer of the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// Sleeps precisely. Belongs to the runtime that it was made in.
#[derive(Debug)]
pub(crate) struct Pacer {
    timer: AsyncFd<OwnedFd>,
    /// The instant that the timer is set to.
    armed: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[allow(
            deprecated,
            reason = "unsound only for types that change or close their descriptor, unlike this one"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer, armed: None })
    }

    /// Ready when `due` has come.
    pub(crate) fn poll_until(
        &mut self,
        cx: &mut Context<'_>,
        due: Instant,
    ) -> Poll<io::Result<()>> {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Setting the timer again withdraws an expiration, so it need not be read.
                if self.armed.take().is_some()
                    && let Poll::Ready(expired) = self.timer.poll_read_ready(cx)
                {
                    expired?.clear_ready();
                }
                return Poll::Ready(Ok(()));
            }
            if self.armed != Some(due) {
                self.arm(left)?;
                self.armed = Some(due);
            }
            ready!(self.timer.poll_read_ready(cx))?.clear_ready();
            self.armed = None;
        }
    }

    fn arm(&self, left: Duration) -> io::Result<()> {
        let timer = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: left.as_secs() as _,
                tv_nsec: left.subsec_nanos().max(1).into(),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn never_too_early_and_again_and_again() {
        let mut pacer = Pacer::new().unwrap();
        let start = Instant::now();
        for step in 1..=50 {
            let due = start + step * Duration::from_micros(700);
            poll_fn(|cx| pacer.poll_until(cx, due)).await.unwrap();
            assert!(Instant::now() >= due);
        }
    }

    #[tokio::test]
    async fn the_instant_may_change_while_waiting() {
        let mut pacer = Pacer::new().unwrap();
        let now = Instant::now();
        let far = now + Duration::from_secs(3600);
        let near = now + Duration::from_millis(2);
        let pending = poll_fn(|cx| Poll::Ready(pacer.poll_until(cx, far).is_pending())).await;
        assert!(pending);
        poll_fn(|cx| pacer.poll_until(cx, near)).await.unwrap();
        assert!(Instant::now() >= near);
    }
}
