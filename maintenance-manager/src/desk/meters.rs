//! What is counted at the desk. The handles are made once: a poll is short.

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::load::CallKind;

/// At which door a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// That of our own agents.
    Own,
    /// That of the ancestor's.
    Eim,
}

impl Door {
    /// What a poll is for that comes there.
    pub const fn kind(self) -> CallKind {
        match self {
            Self::Own => CallKind::Quiet,
            Self::Eim => CallKind::Eim,
        }
    }
}

/// How the polls of a door were answered.
#[derive(Clone, Debug)]
pub struct Polls {
    /// From memory.
    pub hit: Counter,
    /// From the database, and nothing was written.
    pub miss: Counter,
    /// With something to write.
    pub news: Counter,
    /// After they were held.
    pub held: Counter,
    /// Not at all.
    pub refused: Counter,
    /// As calls that went well. To look a counter up costs a poll more than to count.
    pub ok: Counter,
}

impl Polls {
    fn at(door: &'static str, ok: Counter) -> Self {
        let kind =
            |kind: &'static str| counter!("evenkeel_polls_total", "door" => door, "kind" => kind);
        Self {
            hit: kind("hit"),
            miss: kind("miss"),
            news: kind("news"),
            held: kind("held"),
            refused: kind("refused"),
            ok,
        }
    }
}

/// A gauge of a length.
#[derive(Debug)]
pub struct Length(Gauge);

impl Length {
    pub fn set(&self, length: usize) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a queue is shorter than any float is exact"
        )]
        self.0.set(length as f64);
    }
}

/// All that is counted at the desk.
#[derive(Debug)]
pub struct Meters {
    own: Polls,
    eim: Polls,
    /// How many polls wait.
    pub waiting: Length,
    /// How many polls were looked at together.
    pub batch: Histogram,
    /// How long that took, in seconds.
    pub seconds: Histogram,
    /// How many polls were sent away.
    pub refused: Counter,
    /// How many answers were found to be wrong.
    pub mismatches: Counter,
}

impl Meters {
    pub fn new() -> Self {
        Self {
            own: Polls::at(
                "own",
                counter!("evenkeel_agent_calls_total", "call" => "poll", "outcome" => "ok"),
            ),
            eim: Polls::at(
                "eim",
                counter!("evenkeel_eim_polls_total", "outcome" => "ok"),
            ),
            waiting: Length(gauge!("evenkeel_desk_waiting")),
            batch: histogram!("evenkeel_desk_batch"),
            seconds: histogram!("evenkeel_desk_seconds"),
            refused: counter!("evenkeel_overload_refused_total", "kind" => "desk"),
            mismatches: counter!("evenkeel_view_mismatches_total"),
        }
    }

    pub const fn of(&self, door: Door) -> &Polls {
        match door {
            Door::Own => &self.own,
            Door::Eim => &self.eim,
        }
    }
}
