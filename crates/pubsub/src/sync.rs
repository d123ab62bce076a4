//! The building blocks that a model checker has to see: std's, or loom's under `cfg(pubsub_loom)`.
//!
//! Nothing else differs between the two builds, so what loom explores is the code that ships, except
//! for `snapshot`, whose `arc-swap` loom can't look into.

#[cfg(pubsub_loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(pubsub_loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
