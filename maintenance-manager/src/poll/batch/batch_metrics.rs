//! Metrics of the polls. The handles are created once, because a lookup is slow compared to a poll.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::admission::concurrency::CallKind;

/// The protocol of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollProtocol {
    /// The protocol of our own agents.
    Own,
    /// EIM's protocol.
    Eim,
}

impl PollProtocol {
    /// The call kind of polls of this protocol.
    pub const fn kind(self) -> CallKind {
        match self {
            Self::Own => CallKind::Query,
            Self::Eim => CallKind::EimQuery,
        }
    }
}

/// Counters for the polls of a protocol, by result.
#[derive(Clone, Debug)]
pub struct PollCounters {
    /// Answered from the cache.
    pub hit: Counter,
    /// Evaluated in the database without a write.
    pub miss: Counter,
    /// Answered with a write.
    pub write: Counter,
    /// Ended as a long poll.
    pub long_poll: Counter,
    /// Refused.
    pub refused: Counter,
    /// The successful calls, counted here because a lookup of the counter costs more than the
    /// increment.
    pub ok: Counter,
}

impl PollCounters {
    fn new(protocol: &'static str, ok: Counter) -> Self {
        let kind = |kind: &'static str| counter!("evenkeel_poll_requests_total", "protocol" => protocol, "kind" => kind);
        Self {
            hit: kind("hit"),
            miss: kind("miss"),
            write: kind("write"),
            long_poll: kind("long_poll"),
            refused: kind("refused"),
            ok,
        }
    }
}

/// A gauge for a length.
#[derive(Debug)]
pub struct LengthGauge(Gauge);

impl LengthGauge {
    pub fn set(&self, length: usize) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a queue is shorter than any float is exact"
        )]
        self.0.set(length as f64);
    }
}

/// The metrics of the batcher.
#[derive(Debug)]
pub struct BatchMetrics {
    own: PollCounters,
    eim: PollCounters,
    /// The number of polls in the queue.
    pub waiting: LengthGauge,
    /// The number of polls in a batch.
    pub size: Histogram,
    /// The duration of a batch in seconds.
    pub seconds: Histogram,
    /// The polls that were refused because they waited too long.
    pub overloaded: Counter,
    /// The audited answers that were wrong.
    pub mismatches: Counter,
}

impl BatchMetrics {
    pub fn new() -> Self {
        Self {
            own: PollCounters::new(
                "own",
                counter!("evenkeel_agent_calls_total", "call" => "poll", "outcome" => "ok"),
            ),
            eim: PollCounters::new("eim", counter!("evenkeel_eim_polls_total", "outcome" => "ok")),
            waiting: LengthGauge(gauge!("evenkeel_poll_batch_waiting")),
            size: histogram!("evenkeel_poll_batch_size"),
            seconds: histogram!("evenkeel_poll_batch_seconds"),
            overloaded: counter!("evenkeel_overload_refused_total", "kind" => "poll_batch"),
            mismatches: counter!("evenkeel_answer_cache_mismatches_total"),
        }
    }

    pub const fn counters(&self, protocol: PollProtocol) -> &PollCounters {
        match protocol {
            PollProtocol::Own => &self.own,
            PollProtocol::Eim => &self.eim,
        }
    }
}
