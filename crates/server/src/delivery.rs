//! A subscription as the body of a response.
//!
//! Batches go out as they are stored: their pieces are handed to the transport as they lie, if they
//! are of a size that is worth it, and laid one after the other otherwise.

use std::{
    convert::Infallible,
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, BytesMut};
use hyper::body::{Body, Frame};
use loggregator::{Run, v1::Payload};
use router::{Batch, Piece, Subscription};
use tonic::Status;

use crate::grpc::{self, Data, PREFIX, Reply, prefix};

/// From this many bytes on, on average, a piece is not copied to its neighbours.
const LARGE: usize = 1024;

/// `Egress/BatchedReceiver`: each batch an `EnvelopeBatch`.
pub(crate) fn envelope_batches(subscription: Subscription<Run>) -> Reply {
    Delivery::of(subscription, |batch| {
        if batch.byte_len() < LARGE * batch.pieces().len() {
            whole(&batch)
        } else {
            Box::new(Pieces::of(batch))
        }
    })
}

/// `Egress/Receiver`: each envelope a message.
pub(crate) fn envelopes(subscription: Subscription<Run>) -> Reply {
    Delivery::of(subscription, |batch| {
        let mut buffer = BytesMut::with_capacity(batch.byte_len() + PREFIX * batch.len());
        for envelope in batch.pieces().iter().flat_map(Run::events) {
            let envelope = envelope.bytes();
            buffer.put_slice(&prefix(envelope.len()));
            buffer.put_slice(envelope);
        }
        Box::new(buffer)
    })
}

/// `Doppler/BatchSubscribe`: each batch a `BatchResponse`.
pub(crate) fn payload_batches(subscription: Subscription<Payload>) -> Reply {
    Delivery::of(subscription, |batch| whole(&batch))
}

/// `Doppler/Subscribe`: each envelope a `Response`.
pub(crate) fn payloads(subscription: Subscription<Payload>) -> Reply {
    Delivery::of(subscription, |batch| {
        let mut buffer = BytesMut::with_capacity(batch.byte_len() + PREFIX * batch.len());
        for payload in batch.pieces() {
            buffer.put_slice(&prefix(payload.field_len()));
            payload.append_to(&mut buffer);
        }
        Box::new(buffer)
    })
}

/// A batch as one message, copied.
fn whole<T: Piece>(batch: &Batch<T>) -> Data {
    let mut buffer = BytesMut::with_capacity(PREFIX + batch.byte_len());
    buffer.put_slice(&prefix(batch.byte_len()));
    batch.append_to(&mut buffer);
    Box::new(buffer)
}

/// It ends only when the router does, and then never with OK: a client that sees an error connects
/// elsewhere.
struct Delivery<T: Piece> {
    subscription: Subscription<T>,
    lay: fn(Batch<T>) -> Data,
    ended: bool,
}

impl<T: Piece + Unpin> Delivery<T> {
    fn of(subscription: Subscription<T>, lay: fn(Batch<T>) -> Data) -> Reply {
        Reply::new(Self {
            subscription,
            lay,
            ended: false,
        })
    }
}

impl<T: Piece + Unpin> Body for Delivery<T> {
    type Data = Data;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(
            match ready!(self.subscription.poll_next(context)) {
                Some(batch) => Frame::data((self.lay)(batch)),
                None => {
                    self.ended = true;
                    Frame::trailers(grpc::trailers(&draining()))
                }
            },
        )))
    }
}

pub(crate) fn draining() -> Status {
    Status::unavailable("the router is shutting down")
}

/// A batch as one message, in the pieces that it is stored in.
struct Pieces {
    prefix: [u8; PREFIX],
    batch: Batch,
    /// The first part that is not used up, counted from the prefix, and how much of it is.
    part: usize,
    used: usize,
    remaining: usize,
}

impl Pieces {
    fn of(batch: Batch) -> Self {
        Self {
            prefix: prefix(batch.byte_len()),
            part: 0,
            used: 0,
            remaining: PREFIX + batch.byte_len(),
            batch,
        }
    }

    fn part(&self, index: usize) -> &[u8] {
        match index.checked_sub(1) {
            None => &self.prefix,
            Some(piece) => self.batch.pieces().get(piece).map_or(&[], Run::bytes),
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.part(self.part)[self.used..]
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts = (self.part + 1..=self.batch.pieces().len()).map(|index| self.part(index));
        let parts = std::iter::once(self.chunk()).chain(parts);
        let filled = slices.iter_mut().zip(parts.filter(|part| !part.is_empty()));
        filled
            .map(|(slice, part)| *slice = IoSlice::new(part))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(
            count <= self.remaining,
            "{count} of {} bytes",
            self.remaining
        );
        self.remaining -= count;
        while self.part <= self.batch.pieces().len() && count >= self.chunk().len() {
            count -= self.chunk().len();
            self.part += 1;
            self.used = 0;
        }
        self.used += count;
    }
}

#[cfg(test)]
mod tests {
    use loggregator::{Limits, Message};
    use router::Router;

    use super::*;

    /// A batch of so many pieces, and the message that it makes.
    fn batch(pieces: usize) -> (Batch, Vec<u8>) {
        let (router, repeater) = Router::new(router::Options::default()).unwrap();
        let _repeater = repeater.spawn_thread().unwrap();
        let mut subscription = router.subscribe(
            &loggregator::v2::EgressBatchRequest {
                selectors: lgr::client::every_kind(""),
                ..Default::default()
            },
            "test",
        );
        let mut all = Vec::new();
        for piece in 0..pieces {
            let log = vec![b'x'; 10 * piece];
            let log = [
                &[0x22, log.len() as u8 + 2, 0x0A, log.len() as u8],
                &log[..],
            ]
            .concat();
            let bytes = [&[0x0A, log.len() as u8], &log[..]].concat();
            all.extend_from_slice(&bytes);
            let message = Message::from_vec(bytes, Limits::default()).unwrap();
            router.ingress().send(message).unwrap();
        }
        while router.counters().matched < pieces as u64 {
            std::thread::yield_now();
        }
        let batch = subscription.next().unwrap();
        assert_eq!(batch.pieces().len(), pieces);
        (batch, [&prefix(all.len()), &all[..]].concat())
    }

    fn bytes(mut data: impl Buf) -> Vec<u8> {
        data.copy_to_bytes(data.remaining()).to_vec()
    }

    #[test]
    fn copied_or_not_it_is_the_same_message() {
        for pieces in 1..10 {
            let (batch, message) = batch(pieces);
            assert_eq!(bytes(whole(&batch)), message);
            assert_eq!(bytes(Pieces::of(batch)), message);
        }
    }

    #[test]
    fn pieces_are_taken_in_steps_of_any_size() {
        let (batch, message) = batch(8);
        for step in 1..=message.len() {
            let mut pieces = Pieces::of(batch.clone());
            let mut taken = 0;
            while pieces.has_remaining() {
                let rest = &message[taken..];
                assert_eq!(pieces.remaining(), rest.len());
                assert!(!pieces.chunk().is_empty() && rest.starts_with(pieces.chunk()));
                for slots in 1..=10 {
                    let mut slices = vec![IoSlice::new(&[]); slots];
                    let filled = pieces.chunks_vectored(&mut slices);
                    assert!((1..=slots).contains(&filled));
                    let laid: Vec<u8> = slices[..filled]
                        .iter()
                        .flat_map(|part| part.iter().copied())
                        .collect();
                    assert!(rest.starts_with(&laid));
                    assert!(
                        slots < 10 || laid == rest,
                        "all of it, if there are slots enough"
                    );
                }
                let step = step.min(rest.len());
                pieces.advance(step);
                taken += step;
            }
            assert_eq!(
                (
                    pieces.chunk(),
                    pieces.chunks_vectored(&mut [IoSlice::new(&[])])
                ),
                (&[][..], 0)
            );
        }
    }

    #[test]
    #[should_panic = "8 of 7 bytes"]
    fn there_is_no_more_than_there_is() {
        let (batch, _) = batch(1);
        let mut pieces = Pieces::of(batch);
        pieces.advance(pieces.remaining() - 7);
        pieces.advance(8);
    }
}
