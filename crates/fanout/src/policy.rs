//! When a writer does the work itself.
//!
//! Waking another thread costs microseconds, handing an item to one that is awake some hundred
//! nanoseconds; many a callback costs less. So each writing thread does the work itself until it
//! has found that both hold:
//!
//! - callbacks take at least half of its time, so that help is worth waking somebody, and
//! - an item costs more than its hand-over.
//!
//! Then it hands out, until items have become cheap, or so few that it could do them alone.
//!
//! Looking at the clock costs half as much as a cheap item, so not every item is timed: the cheaper
//! they are, the more of them pass between two looks.

use std::time::{Duration, Instant};

use crate::queue::Pushed;

/// Mean cost of an item from which handing it over can gain something.
const DEAR: Duration = Duration::from_nanos(500);
/// Cost below which handing over is given up. Well below `DEAR`, so that neither mode is left for
/// a small change.
const CHEAP: Duration = Duration::from_nanos(350);
/// From one half of the writer's time it hands out; below one in so many it stops.
const LITTLE: u32 = 3;
/// A verdict is given when at least this much time has passed since the last one ...
const SPAN: Duration = Duration::from_micros(100);
/// ... and so many in a row change the mode. One is not enough: a thread switch within a timed item
/// looks like an expensive one, and between two items like a pause.
const VERDICTS: u32 = 2;
/// Time between two looks at the clock, roughly, and the most items between them.
const LOOK: Duration = Duration::from_micros(20);
const MAX_STRIDE: u32 = 256;
/// While handing out, one item in so many is timed; one that the writer does anyway, because the
/// queue is full, counts as several.
const PROBE: u32 = 64;
const OWN: u32 = 8;

/// One writing thread's view of its items.
pub(crate) enum Policy {
    /// The writer does the work.
    Here(Account),
    /// The workers do, as far as they keep up.
    HandingOut(Watch),
}

/// What the writer's items cost it.
pub(crate) struct Account {
    /// Items until the next look at the clock.
    countdown: u32,
    /// Items between two looks.
    stride: u32,
    /// Time of the last verdict; since then so many items, which have cost so much, as far as the
    /// timed ones tell.
    since: Instant,
    items: u32,
    busy: Duration,
    /// Verdicts in a row for handing out.
    row: u32,
}

/// Whether handing out is still worth it.
pub(crate) struct Watch {
    /// Items until the next one is timed.
    countdown: u32,
    /// What an item costs, a moving mean of the timed ones.
    cost: Duration,
    /// Time of the last verdict, and the items since then.
    since: Instant,
    items: u32,
    /// Verdicts in a row against handing out.
    row: u32,
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
        let timed = match self {
            Policy::Here(account) => {
                account.countdown -= 1;
                account.countdown == 0
            }
            Policy::HandingOut(watch) => watch.is_timed(),
        };
        if timed { self.run_timed(work) } else { work() }
    }

    #[cold]
    fn run_timed(&mut self, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        let end = Instant::now();
        match self {
            Policy::Here(account) => {
                if let Some(cost) = account.hand_out(start, end) {
                    *self = Policy::HandingOut(Watch::new(cost, end));
                }
            }
            Policy::HandingOut(watch) => {
                if watch.is_cheap(end - start) {
                    *self = Policy::Here(Account::new(end));
                }
            }
        }
    }

    /// An item was handed out.
    pub(crate) fn handed_out(&mut self, pushed: &Pushed, capacity: usize) {
        let Policy::HandingOut(watch) = self else {
            return;
        };
        if std::mem::take(&mut watch.was_full) {
            watch.adapt_pause(pushed.waiting, capacity);
        }
        watch.items += 1;
        watch.countdown = watch.countdown.saturating_sub(1);
        if pushed.unfinished == 0 || watch.items % PROBE == 0 {
            let now = Instant::now();
            if watch.is_calm(now) {
                *self = Policy::Here(Account::new(now));
            }
        }
    }

    /// The queue is full, and the writer does the item itself.
    pub(crate) fn found_full(&mut self) {
        if let Policy::HandingOut(watch) = self {
            watch.paused = watch.pause;
            watch.was_full = true;
        }
    }
}

impl Account {
    fn new(now: Instant) -> Account {
        Account {
            countdown: 1,
            stride: 1,
            since: now,
            items: 0,
            busy: Duration::ZERO,
            row: 0,
        }
    }

    /// Enters the last `stride` items, of which the last took from `start` to `end`. Says what an
    /// item costs if they are to be handed out from now on.
    fn hand_out(&mut self, start: Instant, end: Instant) -> Option<Duration> {
        self.items += self.stride;
        self.busy += (end - start) * self.stride;
        let span = end - self.since;
        self.stride = stride(span / self.items);
        self.countdown = self.stride;
        if span < SPAN {
            return None;
        }
        let busy = self.busy.min(span);
        let cost = busy / self.items;
        self.row = if busy >= span / 2 && cost >= DEAR {
            self.row + 1
        } else {
            0
        };
        (self.since, self.items, self.busy) = (end, 0, Duration::ZERO);
        (self.row == VERDICTS).then_some(cost)
    }
}

impl Watch {
    fn new(cost: Duration, now: Instant) -> Watch {
        Watch {
            countdown: PROBE,
            cost,
            since: now,
            items: 0,
            row: 0,
            pause: 1,
            paused: 0,
            was_full: false,
        }
    }

    /// Counts an item that the writer does itself.
    fn is_timed(&mut self) -> bool {
        self.items += 1;
        self.paused = self.paused.saturating_sub(1);
        let timed = self.countdown == 0;
        self.countdown = if timed {
            PROBE
        } else {
            self.countdown.saturating_sub(OWN)
        };
        timed
    }

    /// Enters what an item has cost. A single long one counts only so much.
    fn is_cheap(&mut self, cost: Duration) -> bool {
        self.cost = (self.cost * 3 + cost.min(self.cost * 8)) / 4;
        self.cost < CHEAP
    }

    /// Whether the writer could well do alone what comes.
    fn is_calm(&mut self, now: Instant) -> bool {
        let span = now - self.since;
        if span < SPAN {
            return false;
        }
        self.row = if self.cost * self.items < span / LITTLE {
            self.row + 1
        } else {
            0
        };
        (self.since, self.items) = (now, 0);
        self.row == VERDICTS
    }

    /// After a pause so many items were still waiting. The pause is right if the workers have just
    /// come to the second half of the queue.
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
