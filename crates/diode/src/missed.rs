//! The optional callback for missed values.
//!
//! It runs on the reader's side only, before the reader touches a value: a writer never pays for a
//! slow callback, and a panicking one leaves every value where it was.

use std::fmt;

/// Reports the growth of a running count to a callback, if there is one.
pub(crate) struct OnMissed {
    callback: Option<Box<dyn FnMut(u64) + Send>>,
    reported: u64,
}

impl OnMissed {
    pub(crate) const fn none() -> Self {
        Self {
            callback: None,
            reported: 0,
        }
    }

    pub(crate) fn new(callback: impl FnMut(u64) + Send + 'static) -> Self {
        Self {
            callback: Some(Box::new(callback)),
            reported: 0,
        }
    }

    /// Tells the callback by how much `total` grew since the last report.
    ///
    /// The count is noted before the call, so that a panic in the callback does not repeat a report.
    #[inline]
    pub(crate) fn report(&mut self, total: impl FnOnce() -> u64) {
        if let Some(callback) = &mut self.callback {
            let total = total();
            let growth = total.wrapping_sub(self.reported);
            if growth > 0 {
                self.reported = total;
                callback(growth);
            }
        }
    }
}

impl fmt::Debug for OnMissed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.callback {
            Some(_) => "OnMissed(callback)",
            None => "OnMissed(none)",
        })
    }
}
