//! Metrics of the polls. The handles are created once, because a lookup is slow compared to a poll.

use metrics::{Counter, counter};

use crate::poll::batch::PollProtocol;

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

/// The metrics of the answers.
#[derive(Debug)]
pub struct PollMetrics {
    own: PollCounters,
    eim: PollCounters,
    /// The audited answers that were wrong.
    pub mismatches: Counter,
}

impl PollMetrics {
    pub fn new() -> Self {
        Self {
            own: PollCounters::new(
                "own",
                counter!("evenkeel_agent_calls_total", "call" => "poll", "outcome" => "ok"),
            ),
            eim: PollCounters::new("eim", counter!("evenkeel_eim_polls_total", "outcome" => "ok")),
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
