//! Spans of traces: what a span is, and the bounded queue from the code that ends a span to the task
//! that sends it. Without [`install`] there is no queue, and nothing is recorded.

use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use tokio::sync::mpsc;
use uuid::Uuid;

static QUEUE: OnceLock<SpanQueue> = OnceLock::new();

/// Identity of a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// ID of the trace.
    pub trace_id: [u8; 16],
    /// ID of the span in the trace.
    pub span_id: [u8; 8],
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Identity of the span.
    pub context: SpanContext,
    /// ID of the parent in the same trace; none for the root.
    pub parent: Option<[u8; 8]>,
    /// Name of the operation.
    pub name: String,
    /// Begin of the operation.
    pub start: DateTime<Utc>,
    /// End of the operation.
    pub end: DateTime<Utc>,
    /// Attributes: names and values. They never contain a secret.
    pub attributes: Vec<(&'static str, String)>,
    /// Span of another trace that caused this one.
    pub link: Option<SpanContext>,
    /// Whether the operation failed.
    pub is_error: bool,
    /// HTTP status of the response, if the operation is a request to this process.
    pub http_status: Option<u16>,
}

/// The queue of this process.
#[derive(Debug)]
struct SpanQueue {
    sender: mpsc::Sender<Span>,
    sample_percentage: u8,
    on_drop: fn(),
}

/// Creates the queue of this process, with at most `capacity` spans. Only `sample_percentage` of all
/// traces enter it. `on_drop` is called for each span that finds it full. None if there is a queue
/// already.
pub fn install(
    capacity: usize,
    sample_percentage: u8,
    on_drop: fn(),
) -> Option<mpsc::Receiver<Span>> {
    let (sender, receiver) = mpsc::channel(capacity);
    QUEUE.set(SpanQueue { sender, sample_percentage, on_drop }).ok().map(|()| receiver)
}

/// Whether this process sends spans.
#[must_use]
pub fn are_enabled() -> bool {
    QUEUE.get().is_some()
}

/// Whether spans of this trace are sent.
#[must_use]
pub fn is_sampled(context: &SpanContext) -> bool {
    QUEUE.get().is_some_and(|queue| sample(&context.trace_id) < queue.sample_percentage)
}

/// Queues a span if its trace is sampled. Never waits: without space, the span is dropped.
pub fn send(span: Span) {
    let Some(queue) = QUEUE.get().filter(|_| is_sampled(&span.context)) else {
        return;
    };
    if queue.sender.try_send(span).is_err() {
        (queue.on_drop)();
    }
}

/// A number from 0 to 99 that each process computes from the trace ID. Its last seven bytes are
/// random, as W3C Trace Context recommends.
fn sample(trace_id: &[u8; 16]) -> u8 {
    let [.., a, b, c, d, _, _, _] = *trace_id;
    let random = u64::from(u32::from_be_bytes([a, b, c, d]));
    u8::try_from((random * 100) >> 32).unwrap_or(u8::MAX)
}

impl SpanContext {
    /// The root of a trace that is derived from a name: each process computes the same IDs.
    #[must_use]
    pub fn derive(scope: Uuid, name: &str) -> Self {
        let trace = Uuid::new_v5(&scope, name.as_bytes());
        Self { trace_id: trace.into_bytes(), span_id: last_half(trace) }.child("root")
    }

    /// A span of the same trace that is derived from a name.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let span = Uuid::new_v5(&Uuid::from_bytes(self.trace_id), name.as_bytes());
        Self { span_id: last_half(span), ..*self }
    }

    /// The root of a new trace.
    #[must_use]
    pub fn random() -> Self {
        Self { trace_id: Uuid::new_v4().into_bytes(), span_id: last_half(Uuid::new_v4()) }
    }

    /// A new span of the same trace.
    #[must_use]
    pub fn random_child(&self) -> Self {
        Self { span_id: last_half(Uuid::new_v4()), ..*self }
    }

    /// Parses the header `traceparent` of W3C Trace Context, and whether its sender records the
    /// trace. None if it is invalid.
    #[must_use]
    pub fn parse_traceparent(text: &str) -> Option<(Self, bool)> {
        let mut parts = text.split('-');
        let version = parse_hex::<1>(parts.next()?)?;
        let trace_id = parse_hex::<16>(parts.next()?)?;
        let span_id = parse_hex::<8>(parts.next()?)?;
        let [flags] = parse_hex::<1>(parts.next()?)?;
        // Later versions may append fields; version 255 is invalid.
        let is_valid = version != [255]
            && (version != [0] || parts.next().is_none())
            && trace_id != [0; 16]
            && span_id != [0; 8];
        is_valid.then_some((Self { trace_id, span_id }, flags & 1 == 1))
    }

    /// The header `traceparent` for this span.
    #[must_use]
    pub fn to_traceparent(self, is_sampled: bool) -> String {
        let trace = u128::from_be_bytes(self.trace_id);
        let span = u64::from_be_bytes(self.span_id);
        format!("00-{trace:032x}-{span:016x}-{:02x}", u8::from(is_sampled))
    }
}

/// The last half of a UUID. It is never zero, because it contains the variant.
fn last_half(id: Uuid) -> [u8; 8] {
    let (_, last) = id.as_u64_pair();
    last.to_be_bytes()
}

/// Parses bytes in lower-case hexadecimal digits.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(is_hex) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_written_as_it_was_read() {
        let (context, is_sampled) = SpanContext::parse_traceparent(HEADER).expect("a header");
        assert!(is_sampled);
        assert_eq!(context.to_traceparent(true), HEADER);
    }

    #[test]
    fn an_invalid_traceparent_is_refused() {
        let invalid = [
            String::new(),
            "00".to_owned(),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01".to_owned(),
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01".to_owned(),
            HEADER.replacen("00", "ff", 1),
            HEADER.to_uppercase(),
            HEADER.replacen("-01", "-1", 1),
            HEADER.replacen("-01", "-+1", 1),
            HEADER.replacen("-0a", "-a", 1),
            format!("{HEADER}-"),
            format!("{HEADER}-00"),
        ];
        for text in invalid {
            assert_eq!(SpanContext::parse_traceparent(&text), None, "{text}");
        }
    }

    #[test]
    fn a_later_version_of_traceparent_may_have_more_fields() {
        let later = format!("{}-00", HEADER.replacen("00", "01", 1));
        let expected = SpanContext::parse_traceparent(HEADER);
        assert!(expected.is_some());
        assert_eq!(SpanContext::parse_traceparent(&later), expected);
    }

    #[test]
    fn the_flag_forbids_recording() {
        for (flags, may_record) in [("00", false), ("01", true), ("02", false), ("03", true)] {
            let text = HEADER.replacen("-01", &format!("-{flags}"), 1);
            let (_, is_sampled) = SpanContext::parse_traceparent(&text).expect("a header");
            assert_eq!(is_sampled, may_record, "{flags}");
        }
    }

    #[test]
    fn derived_contexts_are_equal_in_each_process_and_differ_by_name() {
        let scope = Uuid::from_u128(1);
        let root = SpanContext::derive(scope, "a");
        assert_eq!(root, SpanContext::derive(scope, "a"));
        assert_ne!(root.trace_id, SpanContext::derive(scope, "b").trace_id);
        assert_eq!(root.child("x").trace_id, root.trace_id);
        assert_ne!(root.child("x").span_id, root.child("y").span_id);
    }

    #[test]
    fn samples_of_derived_traces_are_spread_evenly() {
        let root = |nth: u32| SpanContext::derive(Uuid::nil(), &nth.to_string());
        let sampled = (0..10_000).filter(|nth| sample(&root(*nth).trace_id) < 10).count();
        assert!((800..1_200).contains(&sampled), "{sampled} of 10,000");
    }

    #[test]
    fn a_process_without_a_queue_records_nothing() {
        assert!(!are_enabled());
        assert!(!is_sampled(&SpanContext::random()));
    }
}
