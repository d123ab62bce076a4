//! The weighted ring from outside: limits, losses, waiting and closing, one scenario each.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use common::{Bell, Value};
use diode::weighted::{Reader, Writer};
use diode::{Budget, Error, Limits, TryNextError, Weigh, Weighted};

fn value(number: u64, weight: usize, bytes: usize) -> Value {
    Value {
        number,
        weight,
        bytes,
    }
}

fn one(number: u64) -> Value {
    value(number, 1, 1)
}

fn ring(weight: usize, bytes: usize) -> (Writer<Value>, Reader<Value>) {
    Weighted::new(Limits { weight, bytes }).unwrap().split()
}

fn drain(reader: &mut Reader<Value>) -> Vec<u64> {
    std::iter::from_fn(|| reader.try_next().ok())
        .map(|value| value.number)
        .collect()
}

#[test]
fn each_limit_must_allow_something() {
    let weight = Limits {
        weight: 0,
        bytes: 1,
    };
    let bytes = Limits {
        weight: 1,
        bytes: 0,
    };
    assert_eq!(
        Weighted::<Value>::new(weight).unwrap_err(),
        Error::ZeroCapacity
    );
    assert_eq!(
        Weighted::<Value>::new(bytes).unwrap_err(),
        Error::ZeroCapacity
    );
}

/// Field case D3.
#[test]
fn an_overrun_loses_only_what_was_overwritten() {
    let (writer, mut reader) = ring(4, 100);
    writer.set_all((0..5).map(one));
    assert_eq!(drain(&mut reader), [1, 2, 3, 4]);
    assert_eq!(reader.missed(), 1);
}

/// Field case D4.
#[test]
fn a_drained_ring_starts_afresh_after_an_overrun() {
    let (writer, mut reader) = ring(4, 100);
    (0..6).for_each(|number| writer.set(one(number)));
    assert_eq!(drain(&mut reader), [2, 3, 4, 5]);
    assert_eq!(reader.try_next(), Err(TryNextError::Empty));
    writer.set(one(6));
    assert_eq!(drain(&mut reader), [6]);
    assert_eq!(reader.missed(), 2);
}

#[test]
fn the_oldest_go_until_both_limits_hold() {
    let (writer, mut reader) = ring(10, 100);
    writer.set(value(0, 5, 10));
    writer.set(value(1, 5, 10));
    writer.set(value(2, 1, 10)); // one too heavy: 0 goes
    assert_eq!((writer.queued_weight(), writer.queued_bytes()), (6, 20));
    writer.set(value(3, 1, 85)); // 5 bytes too many: 1 goes
    assert_eq!((writer.queued_weight(), writer.queued_bytes()), (2, 95));
    assert_eq!(writer.missed(), 10);
    assert_eq!(drain(&mut reader), [2, 3]);
    assert_eq!((writer.queued_weight(), writer.queued_bytes()), (0, 0));
}

#[test]
fn the_newest_is_kept_even_if_it_is_too_large() {
    let (writer, mut reader) = ring(10, 100);
    writer.set_all((0..10).map(one));
    writer.set(value(10, usize::MAX, usize::MAX));
    assert_eq!((reader.len(), reader.missed()), (1, 10));
    writer.set(value(11, 11, 1));
    assert_eq!(drain(&mut reader), [11]);
}

#[test]
fn values_without_weight_are_bounded_too() {
    let (writer, mut reader) = ring(3, 100);
    writer.set_all((0..10).map(|number| value(number, 0, 0)));
    assert_eq!(drain(&mut reader), [7, 8, 9]);
    assert_eq!(reader.missed(), 0, "they weigh nothing");
}

#[test]
fn one_heavy_value_may_evict_more_than_a_chunk() {
    let (writer, mut reader) = ring(100, 1000);
    writer.set_all((0..100).map(one));
    writer.set(value(100, 99, 1));
    assert_eq!(drain(&mut reader), [99, 100]);
    assert_eq!(reader.missed(), 99);
}

#[test]
fn taking_several_takes_whole_values_and_at_least_one() {
    let (writer, mut reader) = ring(100, 1000);
    let mut batch = Vec::new();
    assert_eq!(reader.take_into(&mut batch, 10), 0);
    writer.set_all([
        value(0, 4, 1),
        value(1, 4, 1),
        value(2, 4, 1),
        value(3, 50, 1),
    ]);
    assert_eq!(reader.take_into(&mut batch, 10), 2);
    assert_eq!(reader.take_into(&mut batch, 10), 1);
    assert_eq!(
        reader.take_into(&mut batch, 10),
        1,
        "heavier than asked for, but the oldest"
    );
    writer.set_all([one(4), one(5)]);
    assert_eq!(reader.take_into(&mut batch, 0), 1);
    assert_eq!(reader.take_into(&mut batch, usize::MAX), 1);
    let numbers: Vec<_> = batch.iter().map(|value| value.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_set_of_many_wakes_once() {
    let (bell, waker) = Bell::new();
    let mut cx = Context::from_waker(&waker);
    let (writer, mut reader) = ring(100, 1000);

    assert!(reader.poll_next(&mut cx).is_pending());
    assert!(
        reader.poll_next(&mut cx).is_pending(),
        "the same waker again"
    );
    writer.set_all((0..50).map(one));
    assert_eq!(bell.rung(), 1);
    writer.set(one(50));
    assert_eq!(bell.rung(), 1, "nobody waits");
    assert_eq!(reader.poll_next(&mut cx), Poll::Ready(Some(one(0))));
    let mut batch = Vec::new();
    assert_eq!(
        reader.poll_take_into(&mut cx, &mut batch, 50),
        Poll::Ready(50)
    );
    assert_eq!(
        reader.poll_take_into(&mut cx, &mut batch, 50),
        Poll::Pending
    );
    writer.close();
    assert_eq!(bell.rung(), 2);
    assert_eq!(
        reader.poll_take_into(&mut cx, &mut batch, 50),
        Poll::Ready(0)
    );
    assert_eq!(reader.poll_next(&mut cx), Poll::Ready(None));
}

#[test]
fn only_the_last_waker_is_woken() {
    let ((old, old_waker), (new, new_waker)) = (Bell::new(), Bell::new());
    let (writer, mut reader) = ring(1, 1);
    assert!(
        reader
            .poll_next(&mut Context::from_waker(&old_waker))
            .is_pending()
    );
    assert!(
        reader
            .poll_next(&mut Context::from_waker(&new_waker))
            .is_pending()
    );
    writer.set(one(0));
    assert_eq!((old.rung(), new.rung()), (0, 1));
}

/// Field case D6.
#[test]
fn closing_ends_a_waiting_reader_and_keeps_what_is_stored() {
    let (writer, mut reader) = ring(10, 100);
    let (done, ended) = mpsc::channel();
    let waiting = thread::spawn(move || {
        let seen: Vec<_> = reader.by_ref().map(|value| value.number).collect();
        done.send(()).unwrap();
        (seen, reader)
    });
    thread::sleep(Duration::from_millis(20));
    writer.close();
    ended
        .recv_timeout(Duration::from_secs(30))
        .expect("a waiting reader ends");
    assert_eq!(waiting.join().unwrap().0, []);

    let (writer, mut reader) = ring(10, 100);
    writer.set_all([one(0), one(1)]);
    reader.close();
    writer.set(one(2));
    assert_eq!(writer.missed(), 1, "set after the close");
    assert_eq!(drain(&mut reader), [0, 1]);
    assert_eq!(reader.try_next(), Err(TryNextError::Closed));
    assert!(writer.is_closed() && reader.is_closed());
}

#[test]
fn the_last_writer_closes_and_a_reader_gone_counts_what_it_left() {
    let (writer, mut reader) = ring(10, 100);
    drop(writer.clone());
    assert_eq!(reader.try_next(), Err(TryNextError::Empty));
    writer.set_all([value(0, 3, 1), value(1, 4, 1)]);
    assert!(reader.try_next().is_ok());
    drop(reader);
    assert_eq!((writer.missed(), writer.queued_weight()), (4, 0));
    writer.set(value(2, 5, 1));
    writer.set_all([one(3), one(4)]);
    assert_eq!(writer.missed(), 11, "14 set, 3 delivered");

    let (writer, mut reader) = ring(10, 100);
    drop(writer);
    assert_eq!(reader.try_next(), Err(TryNextError::Closed));
}

/// Field case D10.
#[test]
fn misses_are_reported_on_the_readers_side_and_add_up() {
    let reports = Arc::new(AtomicU64::new(0));
    let sum = Arc::clone(&reports);
    let limits = Limits {
        weight: 2,
        bytes: 100,
    };
    let (writer, mut reader) = Weighted::new(limits)
        .unwrap()
        .on_missed(move |weight| {
            sum.fetch_add(weight, Ordering::Relaxed);
        })
        .split();
    writer.set_all((0..5).map(one));
    assert_eq!(
        reports.load(Ordering::Relaxed),
        0,
        "nothing runs on the writer's side"
    );
    assert_eq!(drain(&mut reader), [3, 4]);
    assert_eq!((reports.load(Ordering::Relaxed), reader.missed()), (3, 3));
}

#[test]
fn a_panicking_callback_costs_no_value() {
    let limits = Limits {
        weight: 2,
        bytes: 100,
    };
    let (writer, mut reader) = Weighted::new(limits)
        .unwrap()
        .on_missed(|weight| panic!("missed {weight}"))
        .split();
    writer.set_all((0..3).map(one));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reader.try_next()));
    assert!(caught.is_err());
    assert_eq!(drain(&mut reader), [1, 2]);
}

#[test]
fn a_panicking_drop_leaves_the_ring_whole() {
    struct Bomb(u64);
    impl Weigh for Bomb {
        fn weight(&self) -> usize {
            1
        }
        fn bytes(&self) -> usize {
            1
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(self.0 != 0, "boom");
        }
    }

    let limits = Limits {
        weight: 2,
        bytes: 100,
    };
    let (writer, mut reader) = Weighted::new(limits).unwrap().split();
    writer.set_all((0..2).map(Bomb));
    let caught = std::panic::catch_unwind(|| writer.set(Bomb(2)));
    assert!(
        caught.is_err(),
        "the evicted value's drop reaches the writer"
    );
    let numbers: Vec<_> = std::iter::from_fn(|| reader.try_next().ok())
        .map(|bomb| bomb.0)
        .collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(reader.missed(), 1);
}

/// Field cases D1 and D2.
#[test]
fn concurrent_writers_and_a_busy_reader_conserve() {
    const EACH: u64 = 200_000;
    let (writer, mut reader) = ring(128, 1 << 20);
    let writers: Vec<_> = (0..2)
        .map(|offset| {
            let writer = writer.clone();
            thread::spawn(move || (0..EACH).for_each(|n| writer.set(one(2 * n + offset))))
        })
        .collect();
    drop(writer);
    let mut newest = [None; 2];
    let mut delivered = 0;
    for value in reader.by_ref() {
        let newest = &mut newest[(value.number % 2) as usize];
        assert!(
            *newest < Some(value.number),
            "the order of each writer is kept"
        );
        *newest = Some(value.number);
        delivered += 1;
    }
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
    assert_eq!(delivered + reader.missed(), 2 * EACH);
}

/// Rings that share a budget stay within it, whoever fills up first, and give everything back.
#[test]
fn a_budget_bounds_rings_together() {
    let budget = Budget::new(100);
    let limits = Limits {
        weight: 1_000,
        bytes: 1_000,
    };
    let ring = || Weighted::new(limits).unwrap().within(&budget).split();
    let (first, mut first_reader) = ring();
    let (second, second_reader) = ring();
    for number in 0..20 {
        first.set(value(number, 1, 10));
    }
    assert_eq!((budget.used(), first.missed()), (100, 10));
    // its own newest is kept, also above the budget
    second.set(value(0, 1, 10));
    second.set(value(1, 1, 10));
    assert_eq!((second.queued_bytes(), second.missed()), (10, 1));
    assert_eq!(budget.used(), 110);

    // the first one must make room now
    first.set(value(20, 1, 10));
    assert_eq!(budget.used(), 100);
    while first_reader.try_next().is_ok() {}
    assert_eq!(budget.used(), 10);
    drop(second_reader);
    assert_eq!(budget.used(), 0);
    // a closed ring takes nothing
    second.set(value(2, 1, 10));
    assert_eq!(budget.used(), 0);
}

/// A ring over its limit (a single large value) has no room for anything, be it weightless.
#[test]
fn a_weightless_value_does_not_fit_into_a_ring_over_its_limit() {
    let (writer, mut reader) = ring(2, 100);
    writer.set(value(0, 3, 1));
    writer.set(value(1, 0, 0));
    assert_eq!(drain(&mut reader), [1]);
    assert_eq!(reader.missed(), 3);
}

/// Without weight they would all fit, however many there are and whatever room was made for them.
#[test]
fn values_without_weight_are_taken_by_number() {
    let (writer, mut reader) = ring(10, 10);
    writer.set_all((0..5).map(|number| value(number, 0, 0)));
    let mut taken = Vec::new();
    assert_eq!(reader.take_into(&mut taken, 0), 1);
    assert_eq!(reader.take_into(&mut taken, 3), 3);
    assert_eq!(reader.take_into(&mut taken, 3), 1);
    assert_eq!(reader.missed(), 0);
}
