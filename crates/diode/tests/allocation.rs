//! What `set` and `try_next` allocate: nothing.

use std::hint::black_box;

use allocation_counter::measure;
use diode::{ManyToOne, OneToOne};

#[test]
fn setting_and_taking_allocate_nothing() {
    let (many, mut from_many) = ManyToOne::new(100).unwrap().split();
    let (mut one, mut from_one) = OneToOne::new(100).unwrap().split();
    let allocated = measure(|| {
        for value in 0..10_000_u64 {
            many.set(value);
            one.set(value);
            // every other time, so that both overrun, too
            if value % 2 == 0 {
                from_many.try_next().unwrap();
                from_one.try_next().unwrap();
            }
        }
    });
    assert_eq!(allocated.count_total, 0);
    assert!(from_many.missed() > 0 && from_one.missed() > 0);
    assert_eq!(measure(|| drop(black_box(vec![0; 100]))).count_total, 1);
}
