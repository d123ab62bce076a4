//! Blocking on a poll function.
//!
//! A reader has one way of being woken, a [`Waker`](std::task::Waker). Waiting on a thread is the
//! same as waiting in a task whose waker unparks that thread, so that the wake-up handshake of each
//! ring exists once and is proved once.

use std::task::{Context, Poll};

#[cfg(not(diode_loom))]
mod imp {
    use super::{Context, Poll};
    use crossbeam_utils::sync::{Parker, Unparker};
    use std::sync::Arc;
    use std::task::{Wake, Waker};

    struct Unpark(Unparker);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    fn parker() -> (Parker, Waker) {
        let parker = Parker::new();
        let waker = Waker::from(Arc::new(Unpark(parker.unparker().clone())));
        (parker, waker)
    }

    thread_local! {
        // A parker of our own, not `std::thread::park`: the token of the latter belongs to everybody
        // on the thread, and taking one that was meant for an enclosing executor loses its wake-up.
        static PARKER: (Parker, Waker) = parker();
    }

    /// Calls `poll` until it is ready; in between the thread sleeps until the waker is used.
    pub(crate) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        match PARKER.try_with(|(parker, waker)| park_on(parker, waker, &mut poll)) {
            Ok(value) => value,
            // The thread is ending and its locals are gone: a parker for this one call will do.
            Err(_) => {
                let (parker, waker) = parker();
                park_on(&parker, &waker, &mut poll)
            }
        }
    }

    fn park_on<T>(
        parker: &Parker,
        waker: &Waker,
        poll: &mut impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> T {
        let mut cx = Context::from_waker(waker);
        loop {
            match poll(&mut cx) {
                Poll::Ready(value) => return value,
                Poll::Pending => parker.park(),
            }
        }
    }
}

#[cfg(diode_loom)]
mod imp {
    use super::{Context, Poll};

    pub(crate) fn block_on<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        loom::future::block_on(std::future::poll_fn(poll))
    }
}

pub(crate) use imp::block_on;
