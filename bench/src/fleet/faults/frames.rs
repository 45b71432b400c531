//! A minimal HTTP/2 client (RFC 9113, RFC 7541). It can send half of a frame and does not react as
//! every library would.

/// The connection preface of a client.
const CONNECTION_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Path of a poll of our own agents.
const POLL_PATH: &str = "/evenkeel.agent.v1.AgentService/Poll";

/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Flags of frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Length of a frame header, in bytes.
pub const FRAME_HEADER_BYTES: usize = 9;

/// A frame header.
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

/// The two frames of a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollFrames {
    /// The HEADERS frame.
    pub headers: Vec<u8>,
    /// The DATA frame.
    pub data: Vec<u8>,
}

impl FrameHeader {
    /// Parses a frame header.
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

impl PollFrames {
    /// Encodes a poll on a stream with an odd number. `authorization` is the value of that header,
    /// `message` the encoded request.
    pub fn new(stream: u32, authorization: &str, message: &[u8]) -> Self {
        // Indexes of the static table (RFC 7541, appendix A): POST, https, and header names.
        let mut headers = vec![0x83, 0x87];
        encode_header(4, POLL_PATH, &mut headers);
        encode_header(1, "localhost", &mut headers);
        encode_header(31, "application/grpc", &mut headers);
        encode_header(23, authorization, &mut headers);
        headers.push(0);
        encode_text("te", &mut headers);
        encode_text("trailers", &mut headers);
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        // Prefix of a gRPC message: not compressed, length.
        let message = [&[0][..], &length.to_be_bytes()[..], message].concat();
        Self {
            headers: encode_frame((HEADERS, END_HEADERS), stream, &headers),
            data: encode_frame((DATA, END_STREAM), stream, &message),
        }
    }

    /// Both frames in one buffer.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.headers[..], &self.data[..]].concat()
    }
}

/// The first bytes of a client: the preface and default settings.
pub fn client_preface() -> Vec<u8> {
    [CONNECTION_PREFACE, &encode_frame((SETTINGS, 0), 0, &[])].concat()
}

/// Acknowledges the settings of the peer.
pub fn settings_acknowledgement() -> Vec<u8> {
    encode_frame((SETTINGS, ACK), 0, &[])
}

/// Encodes a frame of a type with its flags.
fn encode_frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Encodes a header by the index of its name, without adding it to the dynamic table.
fn encode_header(name: usize, value: &str, to: &mut Vec<u8>) {
    encode_integer(name, 4, to);
    encode_text(value, to);
}

fn encode_text(text: &str, to: &mut Vec<u8>) {
    encode_integer(text.len(), 7, to);
    to.extend(text.as_bytes());
}

/// Encodes an integer with a prefix of `bits` bits (RFC 7541, 5.1); the other bits are 0.
fn encode_integer(number: usize, bits: u32, to: &mut Vec<u8>) {
    let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    let prefix_max = (1 << bits) - 1;
    if number < prefix_max {
        to.push(byte(number));
        return;
    }
    to.push(byte(prefix_max));
    let mut rest = number - prefix_max;
    while 128 <= rest {
        to.push(byte(128 + rest % 128));
        rest /= 128;
    }
    to.push(byte(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: usize, bits: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_integer(value, bits, &mut bytes);
        bytes
    }

    fn parse_header(bytes: &[u8]) -> FrameHeader {
        FrameHeader::parse(bytes[..FRAME_HEADER_BYTES].try_into().expect("nine bytes"))
    }

    #[test]
    fn integers_are_encoded_as_in_the_examples_of_the_rfc() {
        assert_eq!(encoded(10, 5), [0x0a]);
        assert_eq!(encoded(1_337, 5), [0x1f, 0x9a, 0x0a]);
        assert_eq!(encoded(42, 8), [0x2a]);
        assert_eq!((encoded(126, 7), encoded(127, 7)), (vec![126], vec![127, 0]));
    }

    #[test]
    fn a_poll_is_a_headers_frame_and_a_data_frame_on_its_stream() {
        let poll = PollFrames::new(3, &"x".repeat(700), &[8, 1]);
        let (first, second) = (parse_header(&poll.headers), parse_header(&poll.data));
        assert_eq!((first.kind, first.flags, first.stream), (HEADERS, END_HEADERS, 3));
        assert_eq!(first.length, poll.headers.len() - FRAME_HEADER_BYTES);
        assert_eq!((second.kind, second.flags, second.stream), (DATA, END_STREAM, 3));
        assert_eq!(poll.data[FRAME_HEADER_BYTES..], [0, 0, 0, 0, 2, 8, 1]);
        assert_eq!(poll.to_bytes().len(), poll.headers.len() + poll.data.len());
        let path = [&[4, 36][..], POLL_PATH.as_bytes()].concat();
        assert!(poll.headers.windows(path.len()).any(|part| part == path));
    }

    #[test]
    fn answers_and_refusals_are_distinguished() {
        let means = |kind, flags, stream| {
            parse_header(&encode_frame((kind, flags), stream, &[0])).meaning_for(5)
        };
        assert_eq!(means(DATA, 0, 5), FrameMeaning::Answer);
        assert_eq!(means(DATA, 0, 3), FrameMeaning::Other, "a frame of another call");
        assert_eq!(means(HEADERS, END_HEADERS, 5), FrameMeaning::Other);
        let only_trailers = END_HEADERS | END_STREAM;
        assert_eq!(means(HEADERS, only_trailers, 5), FrameMeaning::Refusal);
        assert_eq!(means(RST_STREAM, 0, 5), FrameMeaning::Refusal);
        assert_eq!(means(GOAWAY, 0, 0), FrameMeaning::Refusal);
        assert_eq!(means(SETTINGS, 0, 0), FrameMeaning::Settings);
        assert_eq!(parse_header(&settings_acknowledgement()).meaning_for(5), FrameMeaning::Other);
    }

    #[test]
    fn the_preface_ends_with_settings() {
        let preface = client_preface();
        let settings = preface.strip_prefix(CONNECTION_PREFACE).expect("the preface comes first");
        assert_eq!((parse_header(settings).kind, parse_header(settings).length), (SETTINGS, 0));
    }
}
