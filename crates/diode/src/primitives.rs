//! The building blocks that a model checker has to see: std's, or loom's under `cfg(diode_loom)`.
//!
//! Every other module takes its atomics, cells, locks and wakers from here, so that the code that
//! loom explores is the code that ships. The cfg is our own, since plain `loom` also changes other
//! crates of a user's tree.

#[cfg(not(diode_loom))]
mod imp {
    pub(crate) use atomic_waker::AtomicWaker;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
}

#[cfg(diode_loom)]
mod imp {
    pub(crate) use loom::future::AtomicWaker;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}

pub(crate) use imp::*;
