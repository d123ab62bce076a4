//! The 24 bytes that every HTTP/2 client begins with.
//!
//! They are read here and handed on, which makes them the last part of the handshake: the HTTP
//! library would wait for them without end, and so a peer that falls silent after TLS would stay
//! for ever and hold up the end of the process.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

const PREFACE: [u8; 24] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Waits for the preface; what is given back still begins with it.
pub(crate) async fn expect<T: AsyncRead + Unpin>(mut io: T) -> io::Result<Begun<T>> {
    let mut begin = [0; PREFACE.len()];
    io.read_exact(&mut begin).await?;
    if begin != PREFACE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it does not speak HTTP/2",
        ));
    }
    Ok(Begun {
        again: &PREFACE,
        io,
    })
}

/// A connection whose preface has been seen and is still to be read.
pub(crate) struct Begun<T> {
    /// What of the preface has not been read again.
    again: &'static [u8],
    io: T,
}

impl<T: AsyncRead + Unpin> AsyncRead for Begun<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.again.is_empty() {
            return Pin::new(&mut self.io).poll_read(context, buffer);
        }
        let (now, later) = self
            .again
            .split_at(self.again.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.again = later;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Begun<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn what_was_looked_at_is_read_again() {
        let (mut peer, io) = tokio::io::duplex(64);
        // in two pieces, and with something behind
        peer.write_all(&PREFACE[..5]).await.unwrap();
        let expecting = tokio::spawn(expect(io));
        peer.write_all(&PREFACE[5..]).await.unwrap();
        peer.write_all(b"and more").await.unwrap();
        drop(peer);

        let mut begun = expecting.await.unwrap().unwrap();
        let mut first = [0; 7];
        begun.read_exact(&mut first).await.unwrap();
        let mut all = first.to_vec();
        begun.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [&PREFACE[..], b"and more"].concat());
    }

    #[tokio::test]
    async fn anything_else_is_an_error() {
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let error = expect(&request[..]).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = expect(&PREFACE[..23]).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
