//! HTTP/2 by hand (RFC 9113, RFC 7541): as much of it as a client needs that asks, also for half of a thing, and then
//! does not do what every library would do for it.

/// What a client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The path of a poll of one of our own agents.
const POLL: &str = "/evenkeel.agent.v1.AgentService/Poll";

/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Flags of frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// How long the head of a frame is, in bytes.
pub const HEAD: usize = 9;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// How many bytes follow it.
    pub length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// What a frame means to a client that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It is an answer, or the beginning of one.
    Answer,
    /// There will be none.
    Refusal,
    /// Settings that are to be acknowledged.
    Settings,
    /// Nothing.
    Nothing,
}

/// A poll in the two frames that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll {
    /// Who asks for what.
    pub head: Vec<u8>,
    /// The message.
    pub message: Vec<u8>,
}

impl Head {
    /// Reads the head of a frame.
    pub fn read(bytes: [u8; HEAD]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = bytes;
        let length = u32::from_be_bytes([0, high, middle, low]);
        Self {
            length: usize::try_from(length).unwrap_or(usize::MAX),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        }
    }

    /// What the frame means to who waits for the answer on a stream.
    pub const fn means(self, stream: u32) -> Meaning {
        let (is_it, ends) = (self.stream == stream, self.flags & END_STREAM != 0);
        match self.kind {
            SETTINGS if self.flags & ACK == 0 => Meaning::Settings,
            DATA if is_it && 0 < self.length => Meaning::Answer,
            HEADERS if is_it && ends => Meaning::Refusal,
            RST_STREAM if is_it => Meaning::Refusal,
            GOAWAY => Meaning::Refusal,
            _ => Meaning::Nothing,
        }
    }
}

impl Poll {
    /// Asks on a stream with an odd number. `authorization` is the value of that header, `message` the encoded request.
    pub fn new(stream: u32, authorization: &str, message: &[u8]) -> Self {
        // The numbers are those of RFC 7541, appendix A: POST, https, and the names of headers.
        let mut head = vec![0x83, 0x87];
        header(4, POLL, &mut head);
        header(1, "localhost", &mut head);
        header(31, "application/grpc", &mut head);
        header(23, authorization, &mut head);
        head.push(0);
        text("te", &mut head);
        text("trailers", &mut head);
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        // gRPC's own head: not compressed, so long.
        let message = [&[0][..], &length.to_be_bytes()[..], message].concat();
        Self {
            head: frame((HEADERS, END_HEADERS), stream, &head),
            message: frame((DATA, END_STREAM), stream, &message),
        }
    }

    /// Both frames.
    pub fn whole(&self) -> Vec<u8> {
        [&self.head[..], &self.message[..]].concat()
    }
}

/// What a client says before it asks for anything: it wants nothing special.
pub fn greeting() -> Vec<u8> {
    [PREFACE, &frame((SETTINGS, 0), 0, &[])].concat()
}

/// Acknowledges the settings of the other end.
pub fn acknowledgement() -> Vec<u8> {
    frame((SETTINGS, ACK), 0, &[])
}

/// A frame of a kind with its flags.
fn frame((kind, flags): (u8, u8), stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header whose name has a number. Nobody is to remember it.
fn header(name: usize, value: &str, to: &mut Vec<u8>) {
    number(name, 4, to);
    text(value, to);
}

fn text(text: &str, to: &mut Vec<u8>) {
    number(text.len(), 7, to);
    to.extend(text.as_bytes());
}

/// A number whose first byte has so many bits for it (RFC 7541, 5.1); the others are 0.
fn number(number: usize, bits: u32, to: &mut Vec<u8>) {
    let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
    let most = (1 << bits) - 1;
    if number < most {
        to.push(byte(number));
        return;
    }
    to.push(byte(most));
    let mut rest = number - most;
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
        number(value, bits, &mut bytes);
        bytes
    }

    fn head(bytes: &[u8]) -> Head {
        Head::read(bytes[..HEAD].try_into().expect("nine bytes"))
    }

    #[test]
    fn numbers_are_written_as_the_examples_of_the_standard_are() {
        assert_eq!(encoded(10, 5), [0x0a]);
        assert_eq!(encoded(1_337, 5), [0x1f, 0x9a, 0x0a]);
        assert_eq!(encoded(42, 8), [0x2a]);
        assert_eq!(
            (encoded(126, 7), encoded(127, 7)),
            (vec![126], vec![127, 0])
        );
    }

    #[test]
    fn a_poll_is_a_head_and_a_message_on_its_stream() {
        let poll = Poll::new(3, &"x".repeat(700), &[8, 1]);
        let (first, second) = (head(&poll.head), head(&poll.message));
        assert_eq!(
            (first.kind, first.flags, first.stream),
            (HEADERS, END_HEADERS, 3)
        );
        assert_eq!(first.length, poll.head.len() - HEAD);
        assert_eq!(
            (second.kind, second.flags, second.stream),
            (DATA, END_STREAM, 3)
        );
        assert_eq!(poll.message[HEAD..], [0, 0, 0, 0, 2, 8, 1]);
        assert_eq!(poll.whole().len(), poll.head.len() + poll.message.len());
        let path = [&[4, 36][..], POLL.as_bytes()].concat();
        assert!(poll.head.windows(path.len()).any(|part| part == path));
    }

    #[test]
    fn a_client_knows_an_answer_from_a_refusal() {
        let means = |kind, flags, stream| head(&frame((kind, flags), stream, &[0])).means(5);
        assert_eq!(means(DATA, 0, 5), Meaning::Answer);
        assert_eq!(means(DATA, 0, 3), Meaning::Nothing, "of another call");
        assert_eq!(means(HEADERS, END_HEADERS, 5), Meaning::Nothing);
        let only_trailers = END_HEADERS | END_STREAM;
        assert_eq!(means(HEADERS, only_trailers, 5), Meaning::Refusal);
        assert_eq!(means(RST_STREAM, 0, 5), Meaning::Refusal);
        assert_eq!(means(GOAWAY, 0, 0), Meaning::Refusal);
        assert_eq!(means(SETTINGS, 0, 0), Meaning::Settings);
        assert_eq!(head(&acknowledgement()).means(5), Meaning::Nothing);
    }

    #[test]
    fn the_greeting_ends_with_settings() {
        let greeting = greeting();
        let settings = greeting.strip_prefix(PREFACE).expect("the preface");
        assert_eq!((head(settings).kind, head(settings).length), (SETTINGS, 0));
    }
}
