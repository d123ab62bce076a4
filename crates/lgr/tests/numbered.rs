//! The trackers against a plain set of numbers, and the text of numbers there and back.

use std::collections::HashSet;

use lgr::numbered::{Arrival, Number, Series, TAG, Tracker};
use loggregator::v2;
use proptest::prelude::*;

proptest! {
    /// Any order, any gaps, any repetitions, across word borders.
    #[test]
    fn a_series_is_a_set(sequences in prop::collection::vec(0_u64..400, 0..600)) {
        let (mut series, mut model, mut highest) = (Series::default(), HashSet::new(), None);
        for sequence in sequences {
            let expected = if !model.insert(sequence) {
                Arrival::Duplicate
            } else if Some(sequence) > highest {
                Arrival::InOrder
            } else {
                Arrival::OutOfOrder
            };
            highest = highest.max(Some(sequence));
            prop_assert_eq!(series.record(sequence), expected);
            prop_assert_eq!(series.received(), model.len() as u64);
            prop_assert_eq!(Some(series.end()), highest.map(|highest| highest + 1));
        }
    }

    #[test]
    fn numbers_come_back(run: u32, series: u32, sequence in 0_u64..1 << 48) {
        let number = Number { run, series, sequence };
        let text = number.to_string();
        prop_assert_eq!(Number::parse(text.as_bytes()), Some(number));
        let mut written = [0; Number::LEN];
        number.write(&mut written);
        prop_assert_eq!(&written[..], text.as_bytes());
    }

    #[test]
    fn no_other_text_is_a_number(text in "[0-9a-g.]{28,32}") {
        if let Some(number) = Number::parse(text.as_bytes()) {
            prop_assert_eq!(number.to_string(), text);
        }
    }
}

#[test]
fn texts_that_are_no_numbers() {
    for text in [
        "",
        "00000000.00000000.00000000000",
        "00000000.00000000.0000000000000",
        "00000000-00000000.000000000000",
        "00000000.00000000.00000000000A",
        "0000000g.00000000.000000000000",
    ] {
        assert_eq!(Number::parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn the_number_is_in_the_tag() {
    let number = Number {
        run: 1,
        series: 2,
        sequence: 3,
    };
    let mut envelope = v2::Envelope::default();
    assert_eq!(Number::of(&envelope), None);
    envelope.tags.insert(TAG.to_owned(), number.to_string());
    assert_eq!(Number::of(&envelope), Some(number));
}

#[test]
fn series_of_other_runs_do_not_mix() {
    let mut tracker = Tracker::default();
    for run in 0..2 {
        for series in 0..2 {
            for sequence in [0, 2] {
                let number = Number {
                    run,
                    series,
                    sequence,
                };
                assert_eq!(tracker.record(number), Arrival::InOrder);
            }
        }
    }
    assert_eq!((tracker.received(), tracker.missing()), (8, 4));
    assert_eq!((tracker.duplicated(), tracker.out_of_order()), (0, 0));
}

#[test]
fn a_stray_number_costs_no_memory() {
    let mut tracker = Tracker::default();
    let number = |sequence| Number {
        run: 0,
        series: 0,
        sequence,
    };
    tracker.record(number(0));
    assert_eq!(tracker.record(number((1 << 48) - 1)), Arrival::Stray);
    assert_eq!((tracker.received(), tracker.missing()), (1, 0));
}
