//! The codecs of the calls: messages that stay bytes, and the prost messages that are small.
//!
//! Envelope batches stay bytes in both directions, since a load tool must not spend its time on
//! decoding, and a test must be able to send what is no message at all.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Any request encoder together with a decoder that leaves the response as bytes.
#[derive(Clone, Debug)]
pub(crate) struct RawResponse<E>(pub(crate) E);

impl<E> Codec for RawResponse<E>
where
    E: Encoder<Error = Status> + Clone + Send + 'static,
    E::Item: Send + 'static,
{
    type Encode = E::Item;
    type Decode = Bytes;
    type Encoder = E;
    type Decoder = RawDecoder;

    fn encoder(&mut self) -> E {
        self.0.clone()
    }

    fn decoder(&mut self) -> RawDecoder {
        RawDecoder
    }
}

/// Sends bytes as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawEncoder;

impl Encoder for RawEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put_slice(&item);
        Ok(())
    }
}

/// Sends a prost message.
#[derive(Clone, Debug)]
pub(crate) struct ProstEncoder<M>(PhantomData<fn(M)>);

impl<M> Default for ProstEncoder<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: Message> Encoder for ProstEncoder<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, item: M, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

/// Hands a message's bytes out without a copy: they share the stream's buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawDecoder;

impl Decoder for RawDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // An empty message is a message: `None` would mean that more bytes are needed.
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}
