//! An update on the node, as time passes.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::update_status::StatusType;

use super::EimNode;
use super::image::EimImage;
use super::jobs::WindowJobs;
use crate::clock::{Moment, Time};
use crate::ground_truth::{EimUpdate, ImageReplacement, Span, UpdateEnd};

#[derive(Debug)]
pub(super) struct RunningUpdate {
    update: usize,
    window: Span,
    /// The image that the machine boots; `None` for packages.
    target: Option<EimImage>,
    /// When the machine goes down for the update; `None` if it does not.
    pub(super) goes_down_at: Option<Time>,
    /// When the update ends.
    pub(super) ends_at: Time,
    /// How it ends; `None` if the end is never reported.
    end: Option<UpdateEnd>,
}

pub(super) const fn status_name(kind: StatusType) -> &'static str {
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
    /// Handles everything that is due.
    pub(super) fn advance(&mut self) {
        let now = self.clock.now();
        if let Some(running) = &self.running {
            if now.true_time < running.ends_at {
                return;
            }
            self.end_update();
        }
        self.finish_download(now);
        if self.is_finishing || self.down_until.is_some() || self.running.is_some() {
            return;
        }
        let Some((window, begins)) = self.jobs.take_due(now.node_time) else {
            return;
        };
        // One job runs at a time: a window that became due meanwhile follows.
        let ended = self.ground_truth.updates.last().and_then(|last| last.ended);
        let begins = ended.map_or(begins, |(at, _)| begins.max(at.node_time));
        if begins < window.1 && !self.defer_to_download(window) {
            self.begin(window, self.clock.at_node_time(begins), now);
        }
    }

    /// Begins in a window, if there is anything to do.
    pub(super) fn begin(&mut self, window: Span, at: Moment, now: Moment) {
        let target = self.images.as_ref().map(|images| images.pending().cloned());
        // If the desired image already runs, the agent does nothing and reports nothing.
        if target == Some(None) {
            return;
        }
        let target = target.flatten();
        let is_fetched = self.images.as_ref().is_none_or(|i| i.has_downloaded(target.as_ref()));
        let update = self.open_update(target.as_ref());
        let opened = &mut self.ground_truth.updates[update];
        opened.window = Some(window);
        opened.began = Some(at);
        self.start_change(update, window, at, is_fetched);
        if let Some(running) = &mut self.running {
            running.target = target;
            if running.ends_at <= now.true_time {
                self.end_update();
            }
        }
    }

    /// The open update for this image that has not begun, or a new one.
    pub(super) fn open_update(&mut self, target: Option<&EimImage>) -> usize {
        let image = self.images.as_ref().zip(target).map(|(images, target)| ImageReplacement {
            from: images.booted_version().to_owned(),
            to: target.version.clone(),
        });
        let last = self.ground_truth.updates.last();
        let is_open = last.is_some_and(|last| {
            image.is_some() && last.image == image && last.began.is_none() && last.ended.is_none()
        });
        if !is_open {
            self.ground_truth.updates.push(EimUpdate {
                window: None,
                began: None,
                ended: None,
                image,
            });
        }
        self.ground_truth.updates.len() - 1
    }

    /// Changes the node. The update fails if it is not ready or if the window is too short.
    fn start_change(&mut self, update: usize, window: Span, at: Moment, is_ready: bool) {
        let length = |length: Duration| TimeDelta::from_std(length).unwrap_or_default();
        let working = length(self.rng.duration(self.habits.update_time));
        let mut end = self.draw_end();
        // The length of the window limits its update.
        if !is_ready || window.1 - window.0 < working {
            end = Some(UpdateEnd::Failed);
        }
        let is_halfway = end == Some(UpdateEnd::Failed) && is_ready && self.rng.happens(400);
        let reboots = end == Some(UpdateEnd::Updated) || is_halfway;
        let down = at.true_time + working;
        let rebooting = length(self.rng.duration(self.habits.reboot_time));
        self.running = Some(RunningUpdate {
            update,
            window,
            target: None,
            goes_down_at: reboots.then_some(down),
            ends_at: if reboots { down + rebooting } else { down },
            end,
        });
        self.file.kind = StatusType::Started;
        self.file.update = Some(update);
    }

    fn draw_end(&mut self) -> Option<UpdateEnd> {
        let habits = self.habits;
        if self.rng.happens(habits.stuck_per_mille) {
            None
        } else if self.rng.happens(habits.failure_per_mille) {
            Some(UpdateEnd::Failed)
        } else if self.rng.happens(habits.no_op_per_mille) {
            Some(UpdateEnd::NothingToDo)
        } else {
            Some(UpdateEnd::Updated)
        }
    }

    /// Ends the update: the agent, after a reboot a new process, writes the result to the state
    /// file.
    fn end_update(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        let at = self.clock.at_true_time(running.ends_at);
        if running.goes_down_at.is_some() {
            let is_inside = running.window.0 <= at.node_time && at.node_time < running.window.1;
            self.file.is_used |= is_inside && self.file.single == Some(running.window);
            self.jobs = WindowJobs::with_window(self.file.single);
            self.clear_downloads();
        }
        let Some(end) = running.end else { return };
        self.file.update = Some(running.update);
        self.ground_truth.updates[running.update].ended = Some((at, end));
        match end {
            UpdateEnd::Updated => {
                self.boot(running.target);
                self.file.kind = StatusType::Updated;
                self.file.detail = self.detail(running.update, "SUCCESS");
            }
            UpdateEnd::Failed => {
                self.file.kind = StatusType::Failed;
                self.file.detail = self.detail(running.update, "FAIL");
            }
            // The detail is not changed.
            UpdateEnd::NothingToDo => self.file.kind = StatusType::UpToDate,
        }
    }

    /// The detail of an end: mostly of this update, often the same as the last time, sometimes
    /// empty.
    fn detail(&mut self, update: usize, status: &str) -> String {
        let (key, value) =
            if status == "SUCCESS" { ("Version", "12") } else { ("FailureReason", "download") };
        match self.rng.between(0, 9) {
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

    /// The process crashes. A running update continues after the restart.
    pub(super) fn crash(&mut self) -> Duration {
        let down = self.rng.duration(self.habits.crash_downtime);
        let until = self.clock.now().true_time + TimeDelta::from_std(down).unwrap_or_default();
        self.jobs = WindowJobs::with_window(self.file.single);
        self.clear_downloads();
        if let Some(running) = &mut self.running {
            running.ends_at = running.ends_at.max(until);
        }
        self.down_until = Some(until);
        down
    }
}
