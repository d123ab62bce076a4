//! gRPC on HTTP/2: what a request's body says, and how it is answered.
//!
//! A library would gather what arrives in a buffer of its own, and what goes out in another: two
//! more copies of every envelope (`docs/performance.md` says what they cost). Here a message is
//! gathered where it will stay; [`delivery`](crate::delivery) lays those that go out.

use std::{
    convert::Infallible,
    future::{poll_fn, ready},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Body;
use tonic::Status;

/// Largest request message; one byte more ends that stream with RESOURCE_EXHAUSTED.
pub const MAX_REQUEST_BYTES: usize = 10 * 1024 * 1024;

/// In front of each message: whether it is compressed, and its length in four bytes.
pub(crate) const PREFIX: usize = 5;

/// Part of a response.
pub(crate) type Data = Box<dyn Buf + Send>;

/// The body of a response.
pub(crate) type Reply = UnsyncBoxBody<Data, Infallible>;

/// The prefix of a message that is not compressed.
///
/// # Panics
///
/// From 4 GiB on, which no batch comes near.
pub(crate) fn prefix(length: usize) -> [u8; PREFIX] {
    let length = u32::try_from(length).expect("a message below 4 GiB");
    let [a, b, c, d] = length.to_be_bytes();
    [0, a, b, c, d]
}

/// Whether a request is one that can be understood, by its headers.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Box<Response<Reply>>> {
    let is_grpc = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if !is_grpc {
        let mut response = refused(&Status::invalid_argument(
            "content type is not application/grpc",
        ));
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(response.into());
    }
    match headers.get("grpc-encoding") {
        Some(encoding) if encoding != "identity" => {
            let encoding = encoding.as_bytes().escape_ascii();
            let mut response = refused(&Status::unimplemented(format!(
                "messages compressed by {encoding} are not understood"
            )));
            let understood = HeaderValue::from_static("identity");
            response
                .headers_mut()
                .insert("grpc-accept-encoding", understood);
            Err(response.into())
        }
        _ => Ok(()),
    }
}

/// Begins an answer.
pub(crate) fn answered(body: Reply) -> Response<Reply> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The whole answer to a request that went well and asks for nothing.
pub(crate) fn done() -> Response<Reply> {
    let nothing: Data = Box::new(Bytes::from_static(&[0; PREFIX]));
    let end = ready(Some(Ok(trailers(&Status::ok("")))));
    answered(Full::new(nothing).with_trailers(end).boxed_unsync())
}

/// The whole answer to a request that failed.
pub(crate) fn refused(status: &Status) -> Response<Reply> {
    let mut response = answered(Reply::default());
    response.headers_mut().extend(trailers(status));
    response
}

/// How an answer ends.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // all that can fail is metadata, of which there is none: the message is escaped
    status.add_header(&mut trailers).unwrap_or_else(|_| {
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from(status.code() as i32));
    });
    trailers
}

/// The messages of a request, each in an allocation of its own.
pub(crate) struct Messages<B> {
    body: B,
    /// What has come and was not looked at yet.
    data: Bytes,
    prefix: [u8; PREFIX],
    /// How many bytes of the prefix there are; with all of them, `length` holds.
    prefixed: usize,
    length: usize,
    message: Vec<u8>,
}

impl<B: Body<Data = Bytes> + Unpin> Messages<B> {
    pub(crate) fn of(body: B) -> Self {
        Self {
            body,
            data: Bytes::new(),
            prefix: [0; PREFIX],
            prefixed: 0,
            length: 0,
            message: Vec::new(),
        }
    }

    /// The next message; `None` once the peer has ended the stream, or is gone. After an error
    /// there is nothing more to be had.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Vec<u8>, Status>>> {
        loop {
            if let Some(message) = self.gather().transpose() {
                return Poll::Ready(Some(message));
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            self.data = match frame.map(|frame| frame.map(|frame| frame.into_data())) {
                Some(Ok(Ok(data))) => data,
                // a peer that is gone can't be told what is wrong
                Some(Err(_)) => return Poll::Ready(None),
                // requests have no trailers that say anything
                Some(Ok(Err(_))) | None if self.prefixed == 0 => return Poll::Ready(None),
                Some(Ok(Err(_))) | None => {
                    return Poll::Ready(Some(Err(Status::internal(
                        "the stream ends in the middle of a message",
                    ))));
                }
            };
        }
    }

    /// The message of a request that has exactly one.
    pub(crate) async fn only(mut self) -> Result<Vec<u8>, Status> {
        let one = || Status::unimplemented("the method takes exactly one message");
        let message = poll_fn(|context| self.poll_next(context)).await;
        let message = message.ok_or_else(one)??;
        match poll_fn(|context| self.poll_next(context)).await {
            None => Ok(message),
            Some(another) => another.and_then(|_| Err(one())),
        }
    }

    /// Moves what has come to where it belongs, up to the end of the message.
    fn gather(&mut self) -> Result<Option<Vec<u8>>, Status> {
        if self.prefixed < PREFIX {
            let part = self.data.len().min(PREFIX - self.prefixed);
            self.data
                .copy_to_slice(&mut self.prefix[self.prefixed..][..part]);
            self.prefixed += part;
            if self.prefixed < PREFIX {
                return Ok(None);
            }
            self.length = length(self.prefix)?;
            // not touched before there is something to put there, so a promise costs no memory
            self.message.reserve_exact(self.length);
        }
        let part = self.data.len().min(self.length - self.message.len());
        self.message.extend_from_slice(&self.data[..part]);
        self.data.advance(part);
        if self.message.len() < self.length {
            return Ok(None);
        }
        self.prefixed = 0;
        Ok(Some(std::mem::take(&mut self.message)))
    }
}

/// How long the message is, if it may be.
fn length([compressed, a, b, c, d]: [u8; PREFIX]) -> Result<usize, Status> {
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    match compressed {
        0 if length <= MAX_REQUEST_BYTES => Ok(length),
        0 => Err(Status::resource_exhausted(format!(
            "a message of {length} bytes; the limit is {MAX_REQUEST_BYTES}"
        ))),
        1 => Err(Status::internal(
            "a compressed message in a stream without grpc-encoding",
        )),
        flag => Err(Status::internal(format!(
            "a message with the compressed flag {flag}, which is neither 0 nor 1"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use hyper::body::Frame;
    use tonic::Code;

    use super::*;

    /// A body that is there already, and how it ends.
    struct Script(VecDeque<Result<Frame<Bytes>, &'static str>>);

    impl Body for Script {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            Poll::Ready(self.0.pop_front())
        }
    }

    fn script(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Messages<Script> {
        let data = |part: &[u8]| Ok(Frame::data(Bytes::copy_from_slice(part)));
        let parts = parts.into_iter().map(|part| data(part.as_ref()));
        Messages::of(Script(parts.collect()))
    }

    async fn next<B: Body<Data = Bytes> + Unpin>(
        messages: &mut Messages<B>,
    ) -> Option<Result<Vec<u8>, Status>> {
        poll_fn(|context| messages.poll_next(context)).await
    }

    fn message(content: &[u8]) -> Vec<u8> {
        [&prefix(content.len()), content].concat()
    }

    #[tokio::test]
    async fn messages_are_found_however_the_body_is_cut() {
        let contents: [&[u8]; 5] = [b"one", b"", b"", &[7; 300], b"last"];
        let body = contents.map(message).concat();
        for first in 0..body.len() {
            for rest in [1, 2, 5, 7, 100, 1_000] {
                let (head, tail) = body.split_at(first);
                let mut messages = script([head].into_iter().chain(tail.chunks(rest)));
                for content in contents {
                    let message = next(&mut messages).await.unwrap().unwrap();
                    assert_eq!(message, content);
                    assert_eq!(message.capacity(), content.len(), "it will stay there");
                }
                assert!(next(&mut messages).await.is_none());
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_with_a_reason() {
        let too_long = [&[0][..], &(MAX_REQUEST_BYTES as u32 + 1).to_be_bytes()].concat();
        for (body, code, words) in [
            (&too_long[..], Code::ResourceExhausted, "limit is 10485760"),
            (&[1, 0, 0, 0, 1, 9], Code::Internal, "without grpc-encoding"),
            (&[7, 0, 0, 0, 1, 9], Code::Internal, "flag 7"),
            (&[0], Code::Internal, "middle of a message"),
            (&[0, 0, 0, 0, 2, 9], Code::Internal, "middle of a message"),
        ] {
            let mut messages = script([message(b"good"), body.to_vec()]);
            assert_eq!(next(&mut messages).await.unwrap().unwrap(), b"good");
            let status = next(&mut messages).await.unwrap().unwrap_err();
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(words), "{status}");
        }
        // one byte less is not too long, it is not there
        let at_the_limit = [&[0][..], &(MAX_REQUEST_BYTES as u32).to_be_bytes()].concat();
        let status = next(&mut script([at_the_limit]))
            .await
            .unwrap()
            .unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_ends_its_messages() {
        let mut messages = script([message(b"good"), vec![0, 0]]);
        messages.body.0.push_back(Err("reset"));
        assert_eq!(next(&mut messages).await.unwrap().unwrap(), b"good");
        assert!(next(&mut messages).await.is_none());
    }

    #[tokio::test]
    async fn trailers_end_the_messages() {
        let mut messages = script([message(b"good")]);
        messages
            .body
            .0
            .push_back(Ok(Frame::trailers(HeaderMap::new())));
        assert_eq!(next(&mut messages).await.unwrap().unwrap(), b"good");
        assert!(next(&mut messages).await.is_none());
    }

    #[tokio::test]
    async fn a_method_of_one_message_takes_neither_none_nor_two() {
        assert_eq!(script([message(b"one")]).only().await.unwrap(), b"one");
        for parts in [vec![], vec![message(b"one"), message(b"two")]] {
            let status = script(parts).only().await.unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{status}");
        }
        let status = script([message(b"one"), vec![0]]).only().await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status}");
    }

    #[test]
    fn statuses_survive_whatever_their_message_is() {
        let trailers = trailers(&Status::internal("malformed \u{1F4A9}\n\0 %"));
        assert_eq!(trailers["grpc-status"], "13");
        let status = Status::from_header_map(&trailers).unwrap();
        assert_eq!(status.message(), "malformed \u{1F4A9}\n\0 %");
    }
}
