//! When a writer does the work itself.
//!
//! Waking another thread costs microseconds, handing an item to one that is awake some hundred
//! nanoseconds; many a callback costs less. So each writing thread does the work itself until it
//! has found that both hold:
//!
//! - callbacks take at least half of its time, so that help is worth waking somebody, and
//! - an item costs more than its hand-over.
//!
//! Then it hands out, until items have become cheap or until the workers have run out of work
//! before each of several items in a row.
//!
//! Looking at the clock costs half as much as a cheap item, so not every item is timed: the cheaper
//! the items, the more of them pass between two looks.

use std::time::{Duration, Instant};

use crate::queue::Pushed;

/// Mean cost of an item from which handing it over can gain something.
const DEAR: Duration = Duration::from_nanos(500);
/// Cost below which handing over is given up; well below `DEAR`, so that the mode is stable.
const CHEAP: Duration = Duration::from_nanos(350);
/// An account is closed when it spans this much time.
const SPAN: Duration = Duration::from_micros(100);
/// This many equal verdicts in a row change the mode. One is not enough: a thread switch within a
/// timed item looks like an expensive one.
const VERDICTS: u32 = 2;
/// Time between two looks at the clock, roughly, and the most items between them.
const LOOK: Duration = Duration::from_micros(20);
const MAX_STRIDE: u32 = 64;
/// While handing out, one item in so many is timed; one that the writer does anyway, because the
/// queue is full, counts as several.
const PROBE: u32 = 64;
const OWN: u32 = 8;
/// This many items in a row that found all others finished show that no help is needed.
const CALM: u32 = 8;

/// One writing thread's view of its items.
pub(crate) enum Policy {
    /// The writer does the work.
    Here(Account),
    /// The workers do, as far as they keep up.
    HandingOut(Watch),
}

/// What the writer's items cost it, over some span of time.
pub(crate) struct Account {
    /// Items until the next look at the clock.
    countdown: u32,
    /// Items between two looks.
    stride: u32,
    since: Instant,
    items: u32,
    /// What the items cost, as far as the timed ones tell.
    busy: Duration,
    /// Accounts in a row that spoke for handing out.
    row: u32,
}

/// Whether handing out is still worth it.
pub(crate) struct Watch {
    /// Items until the next one is timed.
    countdown: u32,
    /// Timed items in a row that were cheap.
    cheap: u32,
    /// Items in a row that found nothing else in the stage.
    calm: u32,
    /// Items that the writer does itself when the queue is full before it looks again: each look
    /// takes the queue out of the workers' cache.
    pause: u32,
    /// How many of them are left.
    paused: u32,
    /// Whether the queue was full since the last item was handed out.
    was_full: bool,
}

impl Policy {
    pub(crate) fn new() -> Policy {
        Policy::Here(Account::new(Instant::now()))
    }

    /// Whether the next item is to be done here although it could be handed out.
    #[inline]
    pub(crate) fn prefers_here(&self) -> bool {
        match self {
            Policy::Here(_) => true,
            Policy::HandingOut(watch) => watch.paused > 0 || watch.countdown == 0,
        }
    }

    /// Does the work here, and now and then looks what it costs.
    #[inline]
    pub(crate) fn run(&mut self, work: impl FnOnce()) {
        let countdown = match self {
            Policy::Here(account) => {
                account.countdown -= 1;
                account.countdown
            }
            Policy::HandingOut(watch) => {
                let countdown = watch.countdown;
                watch.countdown = countdown.saturating_sub(OWN);
                watch.paused = watch.paused.saturating_sub(1);
                countdown
            }
        };
        if countdown > 0 {
            work();
        } else {
            self.run_timed(work);
        }
    }

    /// An item was handed out.
    pub(crate) fn handed_out(&mut self, pushed: &Pushed, capacity: usize) {
        let Policy::HandingOut(watch) = self else {
            return;
        };
        watch.countdown = watch.countdown.saturating_sub(1);
        if std::mem::take(&mut watch.was_full) {
            watch.adapt_pause(pushed.waiting, capacity);
        }
        watch.calm = if pushed.unfinished == 0 {
            watch.calm + 1
        } else {
            0
        };
        if watch.calm == CALM {
            *self = Policy::new();
        }
    }

    /// The queue is full, and the writer does the item itself.
    pub(crate) fn found_full(&mut self) {
        if let Policy::HandingOut(watch) = self {
            watch.paused = watch.pause;
            watch.was_full = true;
        }
    }

    #[cold]
    fn run_timed(&mut self, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        let end = Instant::now();
        match self {
            Policy::Here(account) => {
                if account.says_hand_out(start, end) {
                    *self = Policy::HandingOut(Watch::new());
                }
            }
            Policy::HandingOut(watch) => {
                watch.countdown = PROBE;
                watch.cheap = if end - start < CHEAP {
                    watch.cheap + 1
                } else {
                    0
                };
                if watch.cheap == VERDICTS {
                    *self = Policy::Here(Account::new(end));
                }
            }
        }
    }
}

impl Account {
    fn new(since: Instant) -> Account {
        Account {
            countdown: 1,
            stride: 1,
            since,
            items: 0,
            busy: Duration::ZERO,
            row: 0,
        }
    }

    /// Enters the last `stride` items, of which the last took from `start` to `end`.
    fn says_hand_out(&mut self, start: Instant, end: Instant) -> bool {
        self.items += self.stride;
        self.busy += (end - start) * self.stride;
        let span = end - self.since;
        self.stride = stride(span / self.items);
        self.countdown = self.stride;
        if span >= SPAN {
            let busy = self.busy.min(span);
            let worth_it = busy >= span / 2 && busy / self.items >= DEAR;
            self.row = if worth_it { self.row + 1 } else { 0 };
            (self.since, self.items, self.busy) = (end, 0, Duration::ZERO);
        }
        self.row == VERDICTS
    }
}

impl Watch {
    fn new() -> Watch {
        Watch {
            countdown: PROBE,
            cheap: 0,
            calm: 0,
            pause: 1,
            paused: 0,
            was_full: false,
        }
    }

    /// After a pause so many items were still waiting. It is right when the workers have just come
    /// to the second half of the queue.
    fn adapt_pause(&mut self, waiting: usize, capacity: usize) {
        if waiting == 0 {
            self.pause = (self.pause / 2).max(1);
        } else if waiting > capacity / 2 && (self.pause as usize) < capacity / 2 {
            self.pause += 1;
        }
    }
}

/// How many items pass between two looks at the clock if there is one every so often.
fn stride(interval: Duration) -> u32 {
    let items = LOOK.as_nanos() / interval.as_nanos().max(1);
    u32::try_from(items)
        .unwrap_or(MAX_STRIDE)
        .clamp(1, MAX_STRIDE)
}
