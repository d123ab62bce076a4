//! Writes that come one after the other go out as one.
//!
//! The HTTP/2 library writes and flushes every frame by itself, so a batch of a hundred envelopes
//! would be three small writes, as many TLS records and more, and wake its receiver up to three
//! times. [`Gather`] stands between the two: it takes what is written and flushed, and a task of its
//! own, which runs when the writer has nothing more to say for now, passes it on.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much may wait; a writer with more to say must wait itself.
const LIMIT: usize = 64 << 10;

/// Empty buffers that a thread keeps. Thousands of connections may each have had a large batch; they
/// need a buffer only while they have something to pass on.
const SPARE: usize = 32;

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The writer's and reader's end of a connection; the task ends with it.
///
/// # Examples
///
/// ```
/// use gather::Gather;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let (near, mut far) = duplex(1024);
/// let mut near = Gather::new(near);
/// near.write_all(b"one ").await?;
/// near.flush().await?;
/// near.write_all(b"two").await?;
///
/// let mut buffer = [0; 1024];
/// let length = far.read(&mut buffer).await?;
/// assert_eq!(&buffer[..length], b"one two");
/// # Ok(())
/// # }
/// ```
pub struct Gather<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    io: T,
    waiting: Waiting,
    /// The task, while nothing waits.
    idle: Option<Waker>,
    /// The writer, while too much waits.
    blocked: Option<Waker>,
    /// The reader, while there is nothing to read.
    reader: Option<Waker>,
    /// Why passing on failed.
    failed: Option<io::Error>,
    closed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Gather<T> {
    /// Stands in front of `io`.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(io: T) -> Self {
        let state = Arc::new(Mutex::new(State {
            io,
            waiting: Waiting::default(),
            idle: None,
            blocked: None,
            reader: None,
            failed: None,
            closed: false,
        }));
        let passed = Arc::clone(&state);
        tokio::spawn(poll_fn(move |cx| lock(&passed).poll_task(cx)));
        Self(state)
    }
}

/// What was written and not passed on yet.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    passed: usize,
}

impl Waiting {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.passed..]
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.passed
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, slice: &[u8]) {
        if self.bytes.capacity() == 0 {
            self.bytes = SPARES.with_borrow_mut(Vec::pop).unwrap_or_default();
        }
        self.bytes.extend_from_slice(slice);
    }

    fn advance(&mut self, passed: usize) {
        self.passed += passed;
        if self.is_empty() {
            let Self { mut bytes, .. } = std::mem::take(self);
            bytes.clear();
            SPARES.with_borrow_mut(|spares| {
                if spares.len() < SPARE {
                    spares.push(bytes);
                }
            });
        }
    }
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: AsyncWrite + Unpin> State<T> {
    /// Passes on what waits, until the other end is gone or there is a failure.
    fn poll_task(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.closed {
            return Poll::Ready(());
        }
        if let Err(error) = ready!(self.poll_pass_on(cx)) {
            self.failed = Some(error);
            // The reader may have lost its place in the queue for the peer's last words.
            wake(&mut self.reader);
            wake(&mut self.blocked);
            return Poll::Ready(());
        }
        self.idle = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_pass_on(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, self.waiting.rest()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.advance(written);
            if self.waiting.len() < LIMIT {
                wake(&mut self.blocked);
            }
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn check(&mut self) -> io::Result<()> {
        match &self.failed {
            None => Ok(()),
            // An error can't be cloned; the writer asks again until it gives up.
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gather<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        let result = Pin::new(&mut state.io).poll_read(cx, buffer);
        if result.is_pending()
            && !state
                .reader
                .as_ref()
                .is_some_and(|last| last.will_wake(cx.waker()))
        {
            state.reader = Some(cx.waker().clone());
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gather<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.0);
        state.check()?;
        if state.waiting.len() >= LIMIT {
            state.blocked = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut written = 0;
        for slice in slices {
            state.waiting.push(slice);
            written += slice.len();
        }
        wake(&mut state.idle);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(lock(&self.0).check())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        state.check()?;
        ready!(state.poll_pass_on(cx))?;
        Pin::new(&mut state.io).poll_shutdown(cx)
    }
}

impl<T> fmt::Debug for Gather<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").finish_non_exhaustive()
    }
}

impl<T> Drop for Gather<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        wake(&mut state.idle);
        wake(&mut state.blocked);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    const HANG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_is_written_in_one_go_arrives_in_one_go() {
        let (near, mut far) = duplex(1 << 20);
        let mut near = Gather::new(near);
        let mut buffer = [0; 100];
        for _ in 0..3 {
            for part in [b"one ", b"two ", b"ten "] {
                near.write_all(part).await.unwrap();
                near.flush().await.unwrap();
            }
            let length = timeout(HANG, far.read(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(&buffer[..length], b"one two ten ");
        }
        far.write_all(b"answer").await.unwrap();
        let length = timeout(HANG, near.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&buffer[..length], b"answer");
    }

    /// A pipe of 100 bytes, and ten times as much as may wait.
    #[tokio::test]
    async fn a_slow_peer_slows_the_writer_down() {
        let (near, mut far) = duplex(100);
        let mut near = Gather::new(near);
        let sent: Vec<u8> = (0..10 * LIMIT).map(|number| number as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            for part in sent.chunks(1000) {
                near.write_all(part).await.unwrap();
                assert!(lock(&near.0).waiting.len() < LIMIT + 1000);
            }
            near.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        timeout(HANG, far.read_to_end(&mut received))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(received, expected);
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_with_nothing_to_say_holds_no_buffer() {
        let mut gathers: Vec<_> = (0..2 * SPARE)
            .map(|_| duplex(LIMIT))
            .map(|(near, far)| (Gather::new(near), far))
            .collect();
        for (near, _) in &mut gathers {
            near.write_all(&[1; 40_000]).await.unwrap();
        }
        for (near, far) in &mut gathers {
            far.read_exact(&mut [0; 40_000]).await.unwrap();
            assert_eq!(lock(&near.0).waiting.bytes.capacity(), 0);
        }
        assert_eq!(SPARES.with_borrow(Vec::len), SPARE);
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_is_an_error() {
        let (near, far) = duplex(100);
        let mut near = Gather::new(near);
        drop(far);
        let write = async {
            loop {
                if let Err(error) = near.write_all(&[0; 1000]).await {
                    return error;
                }
                tokio::task::yield_now().await;
            }
        };
        let error = timeout(HANG, write).await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(near.flush().await.is_err());
    }

    #[tokio::test]
    async fn nothing_is_left_behind() {
        let (near, mut far) = duplex(100);
        let near = Gather::new(near);
        let state = Arc::downgrade(&near.0);
        drop(near);
        let mut rest = Vec::new();
        timeout(HANG, far.read_to_end(&mut rest))
            .await
            .unwrap()
            .unwrap();
        assert!(rest.is_empty() && state.upgrade().is_none());
    }
}
