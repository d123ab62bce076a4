//! The rings against naive models: any sequence of operations on one thread gives what a queue of
//! limited length gives.

mod common;

use std::collections::VecDeque;

use common::Value;
use diode::{Limits, ManyToOne, OneToOne, TryNextError, Weighted};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Set(u8),
    TryNext,
    TakeInto(usize),
    Close,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (1..60_u8).prop_map(Op::Set),
        4 => Just(Op::TryNext),
        4 => (0..80_usize).prop_map(Op::TakeInto),
    ];
    let closes = prop_oneof![3 => Just(None), 1 => (0..60_usize).prop_map(Some)];
    (prop::collection::vec(op, 1..60), closes).prop_map(|(mut ops, close)| {
        if let Some(place) = close {
            ops.insert(place.min(ops.len()), Op::Close);
        }
        ops
    })
}

/// Start near a wrap-around in half of the cases.
fn starts(positions: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        0..200_u64,
        (0..200_u64).prop_map(move |before| positions - before)
    ]
}

/// A queue that gives up the oldest.
#[derive(Default)]
struct Naive {
    queue: VecDeque<Value>,
    missed: u64,
    closed: bool,
}

impl Naive {
    fn set(&mut self, value: Value, fits: impl Fn(&VecDeque<Value>) -> bool) {
        if self.closed {
            self.missed += value.weight as u64;
            return;
        }
        self.queue.push_back(value);
        while self.queue.len() > 1 && !fits(&self.queue) {
            self.missed += self.queue.pop_front().unwrap().weight as u64;
        }
    }

    fn next(&mut self) -> Result<Value, TryNextError> {
        self.queue.pop_front().ok_or(if self.closed {
            TryNextError::Closed
        } else {
            TryNextError::Empty
        })
    }
}

macro_rules! fixed_capacity {
    ($name:ident, $ring:ident, $positions:expr) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(2000))]

            #[test]
            #[allow(unused_mut, reason = "one of the two writers is used by shared reference")]
            fn $name(capacity in 1..70_usize, start in starts($positions), ops in ops()) {
                let ring = $ring::new(capacity).unwrap().starting_at(start);
                let (mut writer, mut reader) = ring.split();
                let mut naive = Naive::default();
                let mut number = 0;
                for op in ops {
                    match op {
                        Op::Set(sets) => for _ in 0..sets {
                            number += 1;
                            let value = Value { number, weight: 1, bytes: 1 };
                            writer.set(value);
                            naive.set(value, |queue| queue.len() <= capacity);
                        },
                        Op::TryNext => prop_assert_eq!(reader.try_next(), naive.next()),
                        Op::TakeInto(max) => {
                            let mut got = Vec::new();
                            prop_assert_eq!(reader.take_into(&mut got, max), got.len());
                            let expected: Vec<_> = (0..max).map_while(|_| naive.next().ok()).collect();
                            prop_assert_eq!(got, expected);
                        }
                        Op::Close => {
                            naive.closed = true;
                            if number % 2 == 0 { writer.close() } else { reader.close() }
                        }
                    }
                }
                while let Ok(value) = naive.next() {
                    prop_assert_eq!(reader.try_next(), Ok(value));
                }
                prop_assert_eq!(reader.try_next().err(), naive.next().err());
                prop_assert_eq!(reader.missed(), naive.missed);
                prop_assert_eq!(writer.missed(), naive.missed);
            }
        }
    };
}

fixed_capacity!(many_to_one, ManyToOne, u64::MAX >> 4);
fixed_capacity!(one_to_one, OneToOne, u64::MAX >> 2);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn weighted(
        limits in (1..100_usize, 1..100_usize),
        sizes in prop::collection::vec((0..40_usize, 0..40_usize), 1..50),
        ops in ops(),
    ) {
        let (weight, bytes) = limits;
        let (writer, mut reader) = Weighted::new(Limits { weight, bytes }).unwrap().split();
        let fits = |queue: &VecDeque<Value>| {
            queue.len() <= weight
                && queue.iter().map(|value| value.weight).sum::<usize>() <= weight
                && queue.iter().map(|value| value.bytes).sum::<usize>() <= bytes
        };
        let mut naive = Naive::default();
        let mut number = 0;
        for op in ops {
            match op {
                Op::Set(sets) => {
                    let values: Vec<_> = (0..sets).map(|_| {
                        number += 1;
                        let (weight, bytes) = sizes[number as usize % sizes.len()];
                        Value { number, weight, bytes }
                    }).collect();
                    values.iter().for_each(|value| naive.set(*value, fits));
                    if sets % 2 == 0 {
                        writer.set_all(values);
                    } else {
                        values.into_iter().for_each(|value| writer.set(value));
                    }
                }
                Op::TryNext => prop_assert_eq!(reader.try_next(), naive.next()),
                Op::TakeInto(max) => {
                    let mut got = Vec::new();
                    prop_assert_eq!(reader.take_into(&mut got, max), got.len());
                    let mut expected = Vec::new();
                    let mut room = max;
                    while let Some(oldest) = naive.queue.front()
                        && (expected.is_empty()
                            || expected.len() < max && oldest.weight <= room)
                    {
                        room = room.saturating_sub(oldest.weight);
                        expected.extend(naive.next());
                    }
                    prop_assert_eq!(got, expected);
                }
                Op::Close => {
                    naive.closed = true;
                    if number % 2 == 0 { writer.close() } else { reader.close() }
                }
            }
            prop_assert_eq!(reader.len(), naive.queue.len());
            let queued: usize = naive.queue.iter().map(|value| value.weight).sum();
            prop_assert_eq!(writer.queued_weight(), queued);
            let queued: usize = naive.queue.iter().map(|value| value.bytes).sum();
            prop_assert_eq!(writer.queued_bytes(), queued);
            prop_assert_eq!(reader.missed(), naive.missed);
        }
    }
}
