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
const LOOK: Duration = Duration::from_micros(4);
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
        if pushed.was_idle || watch.items % PROBE == 0 {
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
        if span < SPAN {
            self.countdown = self.stride;
            return None;
        }
        // Over the whole span, so that a dear one among many cheap ones is not missed for ever.
        self.stride = stride(span / self.items);
        self.countdown = self.stride;
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

    /// After a pause so many items were still waiting. The pause is right if the workers have come
    /// to the last quarter of the queue, and not to its end.
    fn adapt_pause(&mut self, waiting: usize, capacity: usize) {
        if waiting == 0 {
            self.pause = (self.pause / 2).max(1);
        } else if waiting > capacity / 4 && (self.pause as usize) < capacity {
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

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// A writer whose time is made up.
    struct Writer {
        now: Instant,
        account: Account,
    }

    impl Writer {
        fn new() -> Writer {
            let now = Instant::now();
            Writer {
                now,
                account: Account::new(now),
            }
        }

        /// Does so many items of this cost, with this pause before each; the cost at which it
        /// hands out, if it comes to that.
        fn run(&mut self, items: u32, cost: Duration, pause: Duration) -> Option<Duration> {
            for _ in 0..items {
                self.now += pause;
                let start = self.now;
                self.now += cost;
                self.account.countdown -= 1;
                if self.account.countdown == 0
                    && let Some(cost) = self.account.hand_out(start, self.now)
                {
                    return Some(cost);
                }
            }
            None
        }
    }

    #[test]
    fn a_writer_that_does_nothing_but_dear_items_hands_out_soon() {
        let mut writer = Writer::new();
        let begin = writer.now;
        assert_eq!(writer.run(1_000, us(1), us(0)), Some(us(1)));
        assert!(writer.now - begin <= us(300), "{:?}", writer.now - begin);

        let mut writer = Writer::new();
        assert_eq!(writer.run(2, us(5_000), us(0)), Some(us(5_000)));
    }

    #[test]
    fn half_of_the_time_is_enough_and_a_third_is_not() {
        assert!(Writer::new().run(1_000, us(10), us(9)).is_some());
        assert!(Writer::new().run(1_000, us(10), us(20)).is_none());
    }

    #[test]
    fn cheap_items_are_never_handed_out_and_the_clock_is_looked_at_seldom() {
        let mut writer = Writer::new();
        assert!(
            writer
                .run(100_000, Duration::from_nanos(40), us(0))
                .is_none()
        );
        assert_eq!(writer.account.stride, 100); // once in 4 us
    }

    #[test]
    fn one_item_that_takes_long_changes_nothing() {
        let mut writer = Writer::new();
        let cheap = Duration::from_nanos(40);
        for _ in 0..10 {
            assert!(writer.run(20_000, cheap, us(0)).is_none());
            // the thread was away while a timed item ran
            writer.account.countdown = 1;
            assert!(writer.run(1, us(3_000), us(0)).is_none());
        }
    }

    #[test]
    fn few_dear_ones_among_many_cheap_ones_are_found() {
        let mut writer = Writer::new();
        let handed_out = (0..10_000).any(|_| {
            writer.run(99, Duration::from_nanos(50), us(0)).is_some()
                || writer.run(1, us(1_000), us(0)).is_some()
        });
        assert!(handed_out);
    }

    #[test]
    fn handing_out_ends_when_items_become_few() {
        let start = Instant::now();
        let mut watch = Watch::new(us(10), start);
        let mut at = |micros: u64, items: u32| {
            watch.items += items;
            watch.is_calm(start + us(micros))
        };
        assert!(!at(1_000, 90)); // nine tenths of the time
        assert!(!at(2_000, 10));
        assert!(!at(3_000, 90)); // the row is broken
        assert!(!at(4_000, 10));
        assert!(!at(4_050, 0)); // too soon for another verdict
        assert!(at(5_000, 10));
    }

    #[test]
    fn handing_out_ends_when_items_become_cheap() {
        let mut watch = Watch::new(us(2), Instant::now());
        assert!(!watch.is_cheap(us(2)));
        let cheap = (0..20).position(|_| watch.is_cheap(Duration::from_nanos(50)));
        assert!(cheap.is_some_and(|timed| timed > 2), "{cheap:?}");
        // and a thread switch in a timed item is forgotten soon
        watch.is_cheap(us(5_000));
        assert!((0..20).any(|_| watch.is_cheap(Duration::from_nanos(50))));
    }

    #[test]
    fn the_pause_settles_where_the_queue_is_nearly_empty() {
        let mut watch = Watch::new(us(1), Instant::now());
        for _ in 0..100 {
            watch.adapt_pause(3, 8);
        }
        assert_eq!(watch.pause, 8);
        watch.adapt_pause(0, 8);
        assert_eq!(watch.pause, 4);
        watch.adapt_pause(2, 8);
        assert_eq!(watch.pause, 4);
        for _ in 0..100 {
            watch.adapt_pause(0, 8);
        }
        assert_eq!(watch.pause, 1);
    }
}
