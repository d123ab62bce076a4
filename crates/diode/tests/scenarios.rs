//! What the two rings of a fixed capacity have in common, from outside: the same scenarios run
//! against each of them.

mod common;

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use common::{Bell, HANG, Population};
use diode::{Error, TryNextError};

macro_rules! scenarios {
    ($module:ident, $ring:ident, $positions:expr) => {
        #[allow(
            unused_mut,
            reason = "one of the two writers is used by shared reference"
        )]
        mod $module {
            use super::*;
            use diode::$module::{Reader, Writer};
            use diode::$ring;

            fn ring<T>(capacity: usize) -> (Writer<T>, Reader<T>) {
                $ring::new(capacity).unwrap().split()
            }

            fn drain<T>(reader: &mut Reader<T>) -> Vec<T> {
                std::iter::from_fn(|| reader.try_next().ok()).collect()
            }

            #[test]
            fn the_capacity_is_checked() {
                assert_eq!($ring::<u8>::new(0).unwrap_err(), Error::ZeroCapacity);
                let error = $ring::<u8>::new(usize::MAX).unwrap_err();
                assert!(
                    error.to_string().contains(&usize::MAX.to_string()),
                    "{error}"
                );
            }

            /// Field case D3.
            #[test]
            fn an_overrun_loses_only_what_was_overwritten() {
                let (mut writer, mut reader) = ring(4);
                for letter in ["a", "b", "c", "d", "e"] {
                    writer.set(letter);
                }
                assert_eq!(drain(&mut reader), ["b", "c", "d", "e"]);
                assert_eq!((reader.missed(), writer.missed()), (1, 1));
            }

            /// Field case D4.
            #[test]
            fn a_drained_ring_starts_afresh_after_an_overrun() {
                let (mut writer, mut reader) = ring(4);
                (0..6).for_each(|number| writer.set(number));
                assert_eq!(drain(&mut reader), [2, 3, 4, 5]);
                assert_eq!(reader.try_next(), Err(TryNextError::Empty));
                writer.set(6);
                assert_eq!(drain(&mut reader), [6]);
                assert_eq!(reader.missed(), 2);
            }

            #[test]
            fn every_capacity_is_exact() {
                for capacity in 1..=70_usize {
                    for set in [1, capacity - 1, capacity, capacity + 1, 3 * capacity, 500] {
                        let (mut writer, mut reader) = ring(capacity);
                        for lap in 0..3 {
                            (0..set).for_each(|number| writer.set((lap, number)));
                            let kept = set.min(capacity);
                            let expected: Vec<_> =
                                (set - kept..set).map(|number| (lap, number)).collect();
                            assert_eq!(drain(&mut reader), expected, "capacity {capacity}");
                            let missed = (lap + 1) * (set - kept);
                            assert_eq!(reader.missed(), missed as u64, "capacity {capacity}");
                        }
                    }
                }
            }

            /// Field case D8.
            #[test]
            fn nothing_happens_where_positions_wrap() {
                for capacity in [1, 3, 4, 100] {
                    for before in 0..300 {
                        let start = ($positions).wrapping_sub(before);
                        let ring = $ring::new(capacity).unwrap().starting_at(start);
                        let (mut writer, mut reader) = ring.split();
                        for number in 0..300 {
                            writer.set(number);
                            assert_eq!(reader.try_next(), Ok(number));
                            assert_eq!(reader.try_next(), Err(TryNextError::Empty));
                        }
                        assert_eq!(reader.missed(), 0);
                        (0..300).for_each(|number| writer.set(number));
                        let kept: Vec<_> = (300 - capacity..300).collect();
                        assert_eq!(drain(&mut reader), kept);
                        assert_eq!(reader.missed(), 300 - capacity as u64);
                    }
                }
            }

            #[test]
            fn several_are_taken_in_order_and_no_more_than_asked_for() {
                let (mut writer, mut reader) = ring(100);
                let mut batch = vec![99];
                assert_eq!(reader.take_into(&mut batch, 10), 0);
                (0..50).for_each(|number| writer.set(number));
                assert_eq!(reader.take_into(&mut batch, 0), 0);
                assert_eq!(reader.take_into(&mut batch, 20), 20);
                assert_eq!(reader.try_next(), Ok(20));
                assert_eq!(reader.take_into(&mut batch, usize::MAX), 29);
                let mut expected: Vec<_> = (0..50).filter(|number| *number != 20).collect();
                expected.insert(0, 99);
                assert_eq!(batch, expected);

                (0..150).for_each(|number| writer.set(number));
                batch.clear();
                assert_eq!(reader.take_into(&mut batch, 200), 100);
                assert_eq!((batch[0], reader.missed()), (50, 50));
            }

            /// Field case D6.
            #[test]
            fn closing_ends_a_waiting_reader() {
                let (mut writer, mut reader) = ring::<u8>(10);
                let (done, ended) = mpsc::channel();
                let waiting = thread::spawn(move || {
                    let end = reader.next();
                    done.send(()).unwrap();
                    end
                });
                thread::sleep(Duration::from_millis(20));
                writer.close();
                ended.recv_timeout(HANG).expect("a waiting reader ends");
                assert_eq!(waiting.join().unwrap(), None);
            }

            /// Field case D6.
            #[test]
            fn what_is_stored_outlives_the_closing() {
                let (mut writer, mut reader) = ring(10);
                writer.set(0);
                writer.set(1);
                writer.close();
                writer.close();
                writer.set(2);
                assert!(writer.is_closed() && reader.is_closed());
                assert_eq!(
                    (reader.next(), reader.next(), reader.next()),
                    (Some(0), Some(1), None)
                );
                assert_eq!(reader.try_next(), Err(TryNextError::Closed));
                assert_eq!(reader.missed(), 1, "set after the closing");

                let (mut writer, mut reader) = ring(10);
                writer.set(0);
                reader.close();
                writer.set(1);
                writer.set(2);
                assert!(writer.is_closed());
                assert_eq!(drain(&mut reader), [0]);
                assert_eq!((reader.next(), writer.missed()), (None, 2));
            }

            #[test]
            fn a_writer_gone_closes() {
                let (mut writer, mut reader) = ring(10);
                writer.set(0);
                drop(writer);
                assert_eq!((reader.next(), reader.next()), (Some(0), None));
            }

            #[test]
            fn a_reader_gone_counts_what_it_left() {
                for set in 0..20 {
                    let (mut writer, mut reader) = ring(8);
                    (0..set).for_each(|number| writer.set(number));
                    let delivered = u64::from(reader.try_next().is_ok());
                    drop(reader);
                    assert_eq!(delivered + writer.missed(), set);
                    writer.set(99);
                    writer.set(99);
                    assert_eq!(delivered + writer.missed(), set + 2);
                    assert!(writer.is_closed());
                }
            }

            #[test]
            fn every_value_is_dropped_once() {
                for set in [0, 1, 3, 4, 5, 9, 100] {
                    for take in [0, 1, 2, 4] {
                        for reader_first in [false, true] {
                            let population = Population::default();
                            let (mut writer, mut reader) = ring(4);
                            (0..set).for_each(|number| writer.set(population.value(number)));
                            let taken: Vec<_> =
                                (0..take).filter_map(|_| reader.try_next().ok()).collect();
                            (0..2).for_each(|number| writer.set(population.value(number)));
                            if reader_first {
                                drop(reader);
                                writer.set(population.value(set));
                                assert!(population.alive() <= taken.len() + 8);
                                drop(writer);
                            } else {
                                drop(writer);
                                drop(reader);
                            }
                            assert_eq!(population.alive(), taken.len(), "set {set}, take {take}");
                        }
                    }
                }
            }

            #[test]
            fn a_full_ring_holds_a_bounded_number_of_values() {
                for capacity in [1_usize, 2, 5, 16, 100, 1000] {
                    let population = Population::default();
                    let (mut writer, _reader) = ring(capacity);
                    (0..10_000).for_each(|number| writer.set(population.value(number)));
                    let bound = capacity + (capacity / 2).max(2);
                    let bound = bound.max(capacity.next_power_of_two());
                    assert!(
                        population.alive() <= bound,
                        "{} in {capacity}",
                        population.alive()
                    );
                }
            }

            #[test]
            fn a_panicking_drop_leaves_the_ring_whole() {
                struct Bomb(u64);
                impl Drop for Bomb {
                    fn drop(&mut self) {
                        assert!(self.0 % 7 != 3, "boom");
                    }
                }

                let (mut writer, mut reader) = ring(4);
                let mut booms = 0;
                for number in 0..100 {
                    booms += u64::from(
                        catch_unwind(AssertUnwindSafe(|| writer.set(Bomb(number)))).is_err(),
                    );
                }
                let mut delivered = Vec::new();
                loop {
                    match catch_unwind(AssertUnwindSafe(|| reader.try_next())) {
                        Ok(Ok(bomb)) => {
                            delivered.push(bomb.0);
                            std::mem::forget(bomb);
                        }
                        Ok(Err(_)) => break,
                        Err(_) => booms += 1,
                    }
                }
                assert_eq!(delivered, [96, 97, 98, 99]);
                assert_eq!(reader.missed(), 96);
                let exploding = (0..96).filter(|number| number % 7 == 3).count() as u64;
                assert!((1..=exploding).contains(&booms));
            }

            /// Field case D10.
            #[test]
            fn misses_are_reported_on_the_readers_side_and_add_up() {
                let sum = Arc::new(AtomicU64::new(0));
                let (reported, this) = (Arc::clone(&sum), thread::current().id());
                let (mut writer, mut reader) = $ring::new(4)
                    .unwrap()
                    .on_missed(move |missed| {
                        assert_ne!(thread::current().id(), this, "the writer's thread");
                        thread::sleep(Duration::from_millis(1));
                        reported.fetch_add(missed, Relaxed);
                    })
                    .split();
                (0..10).for_each(|number| writer.set(number));
                assert_eq!(sum.load(Relaxed), 0);
                let mut reader = thread::spawn(move || {
                    assert_eq!(reader.next(), Some(6));
                    reader
                })
                .join()
                .unwrap();
                assert_eq!(sum.load(Relaxed), 6);
                (0..10).for_each(|number| writer.set(number));
                writer.close();
                writer.set(10);
                let reader = thread::spawn(move || {
                    assert_eq!(reader.by_ref().count(), 4);
                    reader
                });
                assert_eq!(reader.join().unwrap().missed(), sum.load(Relaxed));
                assert_eq!(sum.load(Relaxed), 6 + 9 + 1);
            }

            #[test]
            fn a_panicking_callback_costs_no_value() {
                let ring = $ring::new(2).unwrap();
                let (mut writer, mut reader) = ring.on_missed(|_| panic!("missed")).split();
                (0..3).for_each(|number| writer.set(number));
                assert!(catch_unwind(AssertUnwindSafe(|| reader.try_next())).is_err());
                assert_eq!(drain(&mut reader), [1, 2]);
                assert_eq!(reader.missed(), 1);
            }

            #[test]
            fn a_wait_is_woken_once_and_only_by_its_last_waker() {
                let ((old, old_waker), (new, new_waker)) = (Bell::new(), Bell::new());
                let mut cx = Context::from_waker(&new_waker);
                let (mut writer, mut reader) = ring(4);
                assert!(
                    reader
                        .poll_next(&mut Context::from_waker(&old_waker))
                        .is_pending()
                );
                assert!(reader.poll_next(&mut cx).is_pending());
                assert!(reader.poll_next(&mut cx).is_pending());
                writer.set(0);
                writer.set(1);
                assert_eq!((old.rung(), new.rung()), (0, 1));
                assert_eq!(reader.poll_next(&mut cx), Poll::Ready(Some(0)));
                assert_eq!(reader.poll_next(&mut cx), Poll::Ready(Some(1)));
                assert!(reader.poll_next(&mut cx).is_pending());
                writer.close();
                assert_eq!(new.rung(), 2);
                assert_eq!(reader.poll_next(&mut cx), Poll::Ready(None));
            }

            #[test]
            fn a_dropped_wait_loses_nothing() {
                let (bell, waker) = Bell::new();
                let mut cx = Context::from_waker(&waker);
                let (mut writer, mut reader) = ring(4);
                for number in 0..10 {
                    assert!(pin!(reader.next_async()).poll(&mut cx).is_pending());
                    writer.set(number);
                    assert_eq!(bell.rung(), number + 1);
                    let again = pin!(reader.next_async()).poll(&mut cx);
                    assert_eq!(again, Poll::Ready(Some(number)));
                }
            }

            /// The waiting ticket itself is overwritten before the reader looks again.
            #[test]
            fn a_wait_survives_an_overrun() {
                for capacity in 1..10 {
                    for set in 1..30 {
                        let (bell, waker) = Bell::new();
                        let mut cx = Context::from_waker(&waker);
                        let (mut writer, mut reader) = ring(capacity);
                        for lap in 0..3 {
                            assert!(reader.poll_next(&mut cx).is_pending());
                            (0..set).for_each(|number| writer.set(number));
                            assert!(bell.rung() > lap);
                            let kept = set.min(capacity as u64);
                            for number in set - kept..set {
                                assert_eq!(reader.poll_next(&mut cx), Poll::Ready(Some(number)));
                            }
                        }
                    }
                }
            }

            #[test]
            fn any_value_that_can_be_sent_will_do() {
                fn is_send<T: Send>(_: &T) {}

                let (mut writer, mut reader) = ring(3);
                writer.set(Cell::new(1)); // not Sync
                is_send(&writer);
                is_send(&reader);
                assert_eq!(reader.try_next().unwrap().get(), 1);

                let (mut writer, mut reader) = ring(3);
                (0..5).for_each(|_| writer.set(()));
                assert_eq!((drain(&mut reader).len(), reader.missed()), (3, 2));

                let (mut writer, mut reader) = ring(2);
                (0..5_u8).for_each(|number| writer.set([number; 1000]));
                assert_eq!(drain(&mut reader), [[3; 1000], [4; 1000]]);
            }

            #[test]
            fn debug_asks_nothing_of_the_values() {
                struct Opaque;
                let builder = $ring::<Opaque>::new(7).unwrap().on_missed(|_| {});
                assert!(format!("{builder:?}").contains('7'));
                let (writer, reader) = builder.split();
                assert!(format!("{writer:?}").contains("capacity: 7"));
                assert!(format!("{reader:?}").contains("closed: false"));
            }
        }
    };
}

scenarios!(many_to_one, ManyToOne, u64::MAX >> 4);
scenarios!(one_to_one, OneToOne, u64::MAX >> 2);

#[test]
fn the_last_of_many_writers_closes() {
    let (writer, mut reader) = diode::ManyToOne::new(4).unwrap().split();
    let other = writer.clone();
    writer.set(0);
    drop(writer);
    assert_eq!(reader.try_next(), Ok(0));
    assert_eq!(reader.try_next(), Err(TryNextError::Empty));
    other.set(1);
    drop(other);
    assert_eq!((reader.next(), reader.next()), (Some(1), None));
}

#[test]
fn a_writer_of_many_may_be_shared() {
    let (writer, mut reader) = diode::ManyToOne::new(100).unwrap().split();
    thread::scope(|scope| {
        for number in 0..4 {
            let writer = &writer;
            scope.spawn(move || writer.set(number));
        }
    });
    let mut got = Vec::new();
    assert_eq!(reader.take_into(&mut got, 9), 4);
    got.sort_unstable();
    assert_eq!(got, [0, 1, 2, 3]);
}
