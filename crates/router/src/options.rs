//! How large the rings are and how envelopes are published.

use std::num::NonZeroUsize;

use diode::Limits;

/// Settings of a pipeline.
///
/// # Examples
///
/// ```
/// use router::{FanOut, Options, Ordering};
///
/// let options = Options {
///     fanout: Some(FanOut { ordering: Ordering::Source, ..FanOut::new(4.try_into()?) }),
///     ..Options::default()
/// };
/// assert_eq!(options.ingress.weight, 10_000);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Capacity of the ingress ring. Default: 10,000 envelopes, 64 MiB.
    pub ingress: Limits,
    /// Capacity of each v2 subscriber's ring and of its batches.
    pub egress: EgressLimits,
    /// The same for v1 subscribers. Default: a ring of 1,000 envelopes, else as for v2.
    pub egress_v1: EgressLimits,
    /// Bytes that the rings of all subscribers may hold together. What several of them hold of one
    /// message counts for each, though it is in memory once. Default: 256 MiB.
    pub egress_total_bytes: usize,
    /// Publish with several workers. Default: none, the repeater publishes itself and each
    /// subscriber gets a producer's envelopes in order.
    pub fanout: Option<FanOut>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ingress: Limits {
                weight: 10_000,
                bytes: 64 << 20,
            },
            egress: EgressLimits::default(),
            egress_v1: EgressLimits {
                ring: Limits {
                    weight: 1_000,
                    bytes: 16 << 20,
                },
                ..EgressLimits::default()
            },
            egress_total_bytes: 256 << 20,
            fanout: None,
        }
    }
}

/// Bounds of one subscriber.
///
/// # Examples
///
/// ```
/// let limits = router::EgressLimits::default();
/// assert_eq!((limits.batch_envelopes, limits.batch_bytes), (100, 256 << 10));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EgressLimits {
    /// Capacity of the subscriber's ring. Default: 10,000 envelopes, 16 MiB.
    pub ring: Limits,
    /// Most envelopes in one batch. Default: 100, as clients expect.
    pub batch_envelopes: usize,
    /// Most bytes in one batch, unless a single envelope is larger: it goes alone. Default:
    /// 256 KiB, far below the 4 MiB that gRPC clients accept by default, since a stream that
    /// nobody reads holds a batch in memory.
    pub batch_bytes: usize,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            ring: Limits {
                weight: 10_000,
                bytes: 16 << 20,
            },
            batch_envelopes: 100,
            batch_bytes: 256 << 10,
        }
    }
}

/// The fan-out stage between the repeater and the tree.
///
/// # Examples
///
/// ```
/// let two_workers = router::FanOut::new(2.try_into()?);
/// assert_eq!(two_workers.ordering, router::Ordering::None);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FanOut {
    /// How many workers publish at once.
    pub workers: NonZeroUsize,
    /// What order survives.
    pub ordering: Ordering,
    /// Whether the repeater publishes itself while that is cheaper than waking a worker. Without
    /// it every run is handed over, and the repeater waits when the workers' buffer is full.
    pub caller_runs: bool,
}

impl FanOut {
    /// So many workers, no order, and a repeater that helps itself while there is little to do.
    pub fn new(workers: NonZeroUsize) -> Self {
        Self {
            workers,
            ordering: Ordering::None,
            caller_runs: true,
        }
    }
}

/// What order a subscriber sees when several workers publish.
///
/// # Examples
///
/// ```
/// assert_ne!(router::Ordering::None, router::Ordering::Source);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ordering {
    /// None: a message goes to whichever worker is free.
    None,
    /// Each source id has a lane of its own: its envelopes arrive in order.
    Source,
}
