//! One update on the node, as time passes.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::update_status::StatusType;

use super::EimNode;
use super::jobs::Jobs;
use crate::clock::{Moment, Time};
use crate::truth::{End, Span, Update};

/// An update that goes on.
#[derive(Debug)]
pub(super) struct Running {
    update: usize,
    window: Span,
    /// When the machine goes down for it, if it does.
    pub(super) goes_down: Option<Time>,
    /// When it is over.
    pub(super) over: Time,
    /// How; none if nothing is ever heard of it again.
    end: Option<End>,
}

/// The name of a kind of sample.
pub(super) const fn name(kind: StatusType) -> &'static str {
    match kind {
        StatusType::Unspecified => "unspecified",
        StatusType::UpToDate => "up_to_date",
        StatusType::Started => "started",
        StatusType::Updated => "updated",
        StatusType::Failed => "failed",
        StatusType::Downloading => "downloading",
        StatusType::Downloaded => "downloaded",
    }
}

impl EimNode {
    /// Lets everything happen whose time has come.
    pub(super) fn advance(&mut self) {
        let now = self.clock.moment();
        if let Some(running) = &self.running {
            if now.truth < running.over {
                return;
            }
            self.end();
        }
        if self.is_finishing || self.down_until.is_some() {
            return;
        }
        if let Some((window, begins)) = self.jobs.due(now.node) {
            self.begin(window, self.clock.by_node(begins));
            if self
                .running
                .as_ref()
                .is_some_and(|running| running.over <= now.truth)
            {
                self.end();
            }
        }
    }

    fn begin(&mut self, window: Span, at: Moment) {
        let update = self.truth.updates.len();
        self.truth.updates.push(Update {
            window: Some(window),
            began: Some(at),
            ended: None,
        });
        let length = |length: Duration| TimeDelta::from_std(length).unwrap_or_default();
        let working = length(self.chance.length(self.habits.working));
        let mut end = self.draw();
        // The length of the window is the budget of its update.
        if window.1 - window.0 < working {
            end = Some(End::Failed);
        }
        let reboots =
            end == Some(End::Updated) || (end == Some(End::Failed) && self.chance.hits(400));
        let down = at.truth + working;
        let rebooting = length(self.chance.length(self.habits.rebooting));
        self.running = Some(Running {
            update,
            window,
            goes_down: reboots.then_some(down),
            over: if reboots { down + rebooting } else { down },
            end,
        });
        self.file.kind = StatusType::Started;
        self.file.update = Some(update);
    }

    fn draw(&mut self) -> Option<End> {
        let habits = self.habits;
        if self.chance.hits(habits.stuck) {
            None
        } else if self.chance.hits(habits.fail) {
            Some(End::Failed)
        } else if self.chance.hits(habits.nothing) {
            Some(End::Nothing)
        } else {
            Some(End::Updated)
        }
    }

    /// The update is over: the agent looks, after a reboot in a new process, and writes down what it finds.
    fn end(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        let at = self.clock.at(running.over);
        if running.goes_down.is_some() {
            let is_inside = running.window.0 <= at.node && at.node < running.window.1;
            self.file.is_used |= is_inside && self.file.single == Some(running.window);
            self.jobs = Jobs::at_start(self.file.single);
        }
        let Some(end) = running.end else { return };
        self.file.update = Some(running.update);
        self.truth.updates[running.update].ended = Some((at, end));
        match end {
            End::Updated => {
                self.file.kind = StatusType::Updated;
                self.file.detail = self.detail(running.update, "SUCCESS");
            }
            End::Failed => {
                self.file.kind = StatusType::Failed;
                self.file.detail = self.detail(running.update, "FAIL");
            }
            // What stood there stays.
            End::Nothing => self.file.kind = StatusType::UpToDate,
        }
    }

    /// What stands beside an end: mostly of this very update, often the same as the last time, sometimes nothing.
    fn detail(&mut self, update: usize, status: &str) -> String {
        let (key, value) = if status == "SUCCESS" {
            ("Version", "12")
        } else {
            ("FailureReason", "download")
        };
        match self.chance.between(0, 9) {
            0 => String::new(),
            1..=3 => format!(
                "{{\"UpdateLog\":[{{\"StatusDetail.Status\":\"{status}\",\"{key}\":\"{value}\"}}]}}"
            ),
            4 => format!("cannot download: try {update}"),
            _ => format!(
                "{{\"UpdateLog\":[{{\"StatusDetail.Status\":\"{status}\",\"{key}\":\"{value}\",\"Update\":\"{update}\"}}]}}"
            ),
        }
    }

    /// The process dies. What it was about it goes on with when it is back.
    pub(super) fn crash(&mut self) -> Duration {
        let down = self.chance.length(self.habits.down);
        let until = self.clock.moment().truth + TimeDelta::from_std(down).unwrap_or_default();
        self.jobs = Jobs::at_start(self.file.single);
        if let Some(running) = &mut self.running {
            running.over = running.over.max(until);
        }
        self.down_until = Some(until);
        down
    }
}
