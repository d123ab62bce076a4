//! `set` and `try_next` don't allocate, which this whole process can see: the only test in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use diode::{ManyToOne, OneToOne};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is the same
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same, and the pointer came from there
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn setting_and_taking_allocate_nothing() {
    let (many, mut from_many) = ManyToOne::new(100).unwrap().split();
    let (mut one, mut from_one) = OneToOne::new(100).unwrap().split();
    let before = ALLOCATIONS.load(Relaxed);
    for value in 0..10_000_u64 {
        many.set(value);
        one.set(value);
        // every other time, so that both overrun, too
        if value % 2 == 0 {
            from_many.try_next().unwrap();
            from_one.try_next().unwrap();
        }
    }
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0);
    assert!(from_many.missed() > 0 && from_one.missed() > 0);

    drop(vec![0; 100]);
    assert!(ALLOCATIONS.load(Relaxed) > before, "nothing was counted");
}
