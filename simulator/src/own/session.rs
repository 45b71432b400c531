//! What a node with our own agent remembers from one poll to the next.

use evenkeel_proto::agent::{PollRequest, PollResponse};

/// The requests of the last answer. A crash loses them.
#[derive(Debug, Default)]
pub(crate) struct PollSession {
    pub(crate) facts_required: bool,
    pub(crate) packages_required: bool,
    /// The tag of the node's current decision.
    decision_tag: u64,
    /// The maximum duration of the next long poll.
    pub(crate) max_long_poll_millis: u32,
    /// The period over which nodes return after their server was away.
    pub(crate) reconnect_spread_millis: u32,
}

impl PollSession {
    /// The next poll, without facts.
    pub(crate) fn build_request(&self, facts: &[u8; 32], long_poll_millis: u32) -> PollRequest {
        PollRequest {
            facts_digest: facts.to_vec(),
            decision_tag: self.decision_tag,
            long_poll_millis: long_poll_millis.min(self.max_long_poll_millis),
            ..PollRequest::default()
        }
    }

    pub(crate) fn accept(&mut self, answer: &PollResponse) {
        self.facts_required = answer.facts_required;
        self.packages_required = answer.packages_required;
        self.decision_tag = answer.decision_tag;
        self.max_long_poll_millis = answer.next_long_poll_millis;
        self.reconnect_spread_millis = answer.reconnect_spread_millis;
    }
}
