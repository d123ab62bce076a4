//! gRPC codecs that leave envelopes as they are.
//!
//! A received message is checked and copied straight out of the transport's buffer; a batch for a
//! subscriber is laid into the transport's buffer as stored. Only small requests are decoded into
//! structs.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use loggregator::{
    Limits, Message, Run,
    v1::{Payload, plumbing::EnvelopeData},
};
use prost::Message as _;
use router::{Batch, Piece};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// A codec put together from a decoder and an encoder.
pub(crate) struct With<D, E>(PhantomData<(D, E)>);

impl<D, E> Default for With<D, E> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<D, E> Codec for With<D, E>
where
    D: Decoder<Error = Status> + Default + Send + 'static,
    E: Encoder<Error = Status> + Default + Send + 'static,
    D::Item: Send + 'static,
    E::Item: Send + 'static,
{
    type Encode = E::Item;
    type Decode = D::Item;
    type Encoder = E;
    type Decoder = D;

    fn encoder(&mut self) -> E {
        E::default()
    }

    fn decoder(&mut self) -> D {
        D::default()
    }
}

/// Takes an `EnvelopeBatch`.
#[derive(Default)]
pub(crate) struct BatchIn;

impl Decoder for BatchIn {
    type Item = Message;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Message>, Status> {
        take(buffer, "envelope batch", Message::parse)
    }
}

/// Takes a single `Envelope`.
#[derive(Default)]
pub(crate) struct EnvelopeIn;

impl Decoder for EnvelopeIn {
    type Item = Message;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Message>, Status> {
        take(buffer, "envelope", Message::parse_envelope)
    }
}

fn take(
    buffer: &mut DecodeBuf<'_>,
    what: &str,
    parse: impl FnOnce(&[u8], Limits) -> Result<Message, loggregator::Error>,
) -> Result<Option<Message>, Status> {
    let length = buffer.remaining();
    // the transport's buffer is contiguous, so the chunk is the whole message
    debug_assert_eq!(buffer.chunk().len(), length);
    // the size was checked before the message was gathered
    let parsed = parse(buffer.chunk(), Limits { bytes: usize::MAX });
    buffer.advance(length);
    // an empty message is a message, too: `None` would ask for more data
    parsed
        .map(Some)
        .map_err(|error| Status::internal(format!("malformed {what}: {error}")))
}

/// Takes an `EnvelopeData`, which is a v1 envelope in a field: its bytes, whatever they are.
#[derive(Default)]
pub(crate) struct PayloadIn;

impl Decoder for PayloadIn {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        EnvelopeData::decode(buffer)
            .map(|data| Some(data.payload))
            .map_err(|error| Status::internal(format!("malformed envelope data: {error}")))
    }
}

/// Takes a small message as a struct.
pub(crate) struct Prost<T>(PhantomData<T>);

impl<T> Default for Prost<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: prost::Message + Default> Decoder for Prost<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        T::decode(buffer)
            .map(Some)
            .map_err(|error| Status::internal(format!("malformed request: {error}")))
    }
}

/// For streams to subscribers. Each message makes the room that it needs, and until then thousands of
/// idle streams hold next to nothing; the library would start each of them with 8 KiB.
fn small_at_first() -> BufferSettings {
    BufferSettings::new(256, 32 * 1024)
}

/// Writes an empty message.
#[derive(Default)]
pub(crate) struct EmptyOut;

impl Encoder for EmptyOut {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

/// Writes a batch as an `EnvelopeBatch` or a `BatchResponse`, by what is in it.
pub(crate) struct BatchOut<T>(PhantomData<T>);

impl<T> Default for BatchOut<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Piece> Encoder for BatchOut<T> {
    type Item = Batch<T>;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        small_at_first()
    }

    fn encode(&mut self, batch: Batch<T>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // one contiguous piece: many small ones would each become a TLS record
        buffer.reserve(batch.byte_len());
        batch.append_to(buffer);
        Ok(())
    }
}

/// Writes a v1 payload as a `Response`.
#[derive(Default)]
pub(crate) struct PayloadOut;

impl Encoder for PayloadOut {
    type Item = Payload;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        small_at_first()
    }

    fn encode(&mut self, payload: Payload, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(payload.field_len());
        payload.append_to(buffer);
        Ok(())
    }
}

/// Writes the first envelope of a run as an `Envelope`.
#[derive(Default)]
pub(crate) struct EnvelopeOut;

impl Encoder for EnvelopeOut {
    type Item = Run;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        small_at_first()
    }

    fn encode(&mut self, run: Run, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let envelope = run.facts(0).bytes();
        buffer.reserve(envelope.len());
        buffer.put_slice(envelope);
        Ok(())
    }
}
