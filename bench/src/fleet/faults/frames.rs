//! The frames of clients that break the rules of HTTP/2. The crate `h2` encodes them, but never hears
//! from the server, so that it obeys no limits, and its bytes can be cut anywhere. The headers of
//! incoming frames are read here, because a library would react to them.

use std::io;

use bytes::{BufMut as _, Bytes};
use futures_util::FutureExt as _;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::task::unconstrained;

/// URI of a poll of our own agents.
const POLL_URI: &str = "https://localhost/evenkeel.agent.v1.AgentService/Poll";

/// Types of frames (RFC 9113).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Flags of frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// Length of a frame header, in bytes.
pub const FRAME_HEADER_BYTES: usize = 9;

/// Acknowledges the settings of the peer.
pub const SETTINGS_ACKNOWLEDGEMENT: [u8; FRAME_HEADER_BYTES] = [0, 0, 0, SETTINGS, ACK, 0, 0, 0, 0];

/// Room for the frames of a poll, in bytes.
const BUFFER_BYTES: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload, in bytes.
    pub length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Meaning of a frame for a client that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameMeaning {
    /// The answer, or its beginning.
    Answer,
    /// There will be no answer.
    Refusal,
    /// Settings to acknowledge.
    Settings,
    /// Any other frame.
    Other,
}

impl FrameHeader {
    pub fn parse(bytes: [u8; FRAME_HEADER_BYTES]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = bytes;
        let length = u32::from_be_bytes([0, high, middle, low]);
        Self {
            length: usize::try_from(length).unwrap_or(usize::MAX),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        }
    }

    /// Meaning of the frame for a client that waits for the answer on a stream.
    pub const fn meaning_for(self, stream: u32) -> FrameMeaning {
        let (is_on_stream, ends) = (self.stream == stream, self.flags & END_STREAM != 0);
        match self.kind {
            SETTINGS if self.flags & ACK == 0 => FrameMeaning::Settings,
            DATA if is_on_stream && 0 < self.length => FrameMeaning::Answer,
            HEADERS if is_on_stream && ends => FrameMeaning::Refusal,
            RST_STREAM if is_on_stream => FrameMeaning::Refusal,
            GOAWAY => FrameMeaning::Refusal,
            _ => FrameMeaning::Other,
        }
    }
}

/// The two frames of a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollFrames {
    pub stream: u32,
    pub headers: Vec<u8>,
    pub data: Vec<u8>,
}

/// Encodes the frames of one connection.
pub struct FrameEncoder {
    requests: SendRequest<Bytes>,
    connection: Connection<DuplexStream, Bytes>,
    encoded: DuplexStream,
    /// A request without its answer would be cancelled.
    answers: Vec<ResponseFuture>,
}

impl FrameEncoder {
    /// Returns the frames, and the first bytes of a client: the preface and default settings.
    pub async fn start() -> io::Result<(Self, Vec<u8>)> {
        let (input, encoded) = tokio::io::duplex(BUFFER_BYTES);
        let started = Builder::new().initial_max_send_streams(usize::MAX).handshake(input).await;
        let (requests, connection) = started.map_err(io::Error::other)?;
        let mut frames = Self { requests, connection, encoded, answers: Vec::new() };
        let preface = frames.take_encoded()?;
        Ok((frames, preface))
    }

    /// Encodes the next poll. `authorization` is the value of that header, `message` the encoded
    /// request.
    pub fn encode_poll(&mut self, authorization: &str, message: &[u8]) -> io::Result<PollFrames> {
        let request = http::Request::post(POLL_URI)
            .header(CONTENT_TYPE, "application/grpc")
            .header(AUTHORIZATION, authorization)
            .header(TE, "trailers")
            .body(())
            .map_err(io::Error::other)?;
        let sent = self.requests.send_request(request, false);
        let (answer, mut body) = sent.map_err(io::Error::other)?;
        let stream = answer.stream_id().as_u32();
        self.answers.push(answer);
        let headers = self.take_encoded()?;
        // Prefix of a gRPC message: not compressed, length.
        let mut prefixed = vec![0];
        prefixed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        prefixed.put_slice(message);
        body.send_data(prefixed.into(), true).map_err(io::Error::other)?;
        Ok(PollFrames { stream, headers, data: self.take_encoded()? })
    }

    /// Takes the frames that were encoded since the last time. There is always room for them, so
    /// nothing waits, unless the runtime makes the task yield.
    fn take_encoded(&mut self) -> io::Result<Vec<u8>> {
        if let Some(end) = unconstrained(&mut self.connection).now_or_never() {
            end.map_err(io::Error::other)?;
        }
        let mut frames = vec![0; BUFFER_BYTES];
        let read = unconstrained(self.encoded.read(&mut frames)).now_or_never();
        frames.truncate(read.transpose()?.unwrap_or(0));
        Ok(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flag of a HEADERS frame that no other frame continues.
    const END_HEADERS: u8 = 4;

    fn parse_header(bytes: &[u8]) -> FrameHeader {
        FrameHeader::parse(bytes[..FRAME_HEADER_BYTES].try_into().expect("nine bytes"))
    }

    #[tokio::test]
    async fn a_poll_is_a_headers_frame_and_a_data_frame_on_its_stream() {
        let (mut encoder, preface) = FrameEncoder::start().await.expect("a connection");
        let settings = preface.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert_eq!(parse_header(settings.expect("the preface comes first")).kind, SETTINGS);
        for number in 0..200 {
            let poll = encoder.encode_poll(&"x".repeat(700), &[8, 1]).expect("a poll");
            assert_eq!(poll.stream, 1 + 2 * number);
            let (first, second) = (parse_header(&poll.headers), parse_header(&poll.data));
            assert_eq!(
                (first.kind, first.flags, first.stream),
                (HEADERS, END_HEADERS, poll.stream)
            );
            assert_eq!(first.length, poll.headers.len() - FRAME_HEADER_BYTES);
            assert_eq!((second.kind, second.flags, second.stream), (DATA, END_STREAM, poll.stream));
            assert_eq!(poll.data[FRAME_HEADER_BYTES..], [0, 0, 0, 0, 2, 8, 1]);
        }
    }

    #[test]
    fn answers_and_refusals_are_distinguished() {
        let means = |kind, flags, stream| {
            FrameHeader::parse([0, 0, 1, kind, flags, 0, 0, 0, stream]).meaning_for(5)
        };
        assert_eq!(means(DATA, 0, 5), FrameMeaning::Answer);
        assert_eq!(means(DATA, 0, 3), FrameMeaning::Other, "a frame of another call");
        assert_eq!(means(HEADERS, END_HEADERS, 5), FrameMeaning::Other);
        let only_trailers = END_HEADERS | END_STREAM;
        assert_eq!(means(HEADERS, only_trailers, 5), FrameMeaning::Refusal);
        assert_eq!(means(RST_STREAM, 0, 5), FrameMeaning::Refusal);
        assert_eq!(means(GOAWAY, 0, 0), FrameMeaning::Refusal);
        assert_eq!(means(SETTINGS, 0, 0), FrameMeaning::Settings);
        let acknowledged = FrameHeader::parse(SETTINGS_ACKNOWLEDGEMENT);
        assert_eq!(acknowledged.meaning_for(5), FrameMeaning::Other);
    }
}
