//! One update on the node, as time passes.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::update_status::StatusType;

use super::EimNode;
use super::image::Picture;
use super::jobs::Jobs;
use crate::clock::{Moment, Time};
use crate::truth::{Change, End, Span, Update};

/// An update that goes on.
#[derive(Debug)]
pub(super) struct Running {
    update: usize,
    window: Span,
    /// The image that the machine boots, if it is one.
    picture: Option<Picture>,
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
        self.fetched(now);
        if self.is_finishing || self.down_until.is_some() || self.running.is_some() {
            return;
        }
        let Some((window, begins)) = self.jobs.due(now.node) else {
            return;
        };
        // One job runs at a time: what was due meanwhile follows.
        let ended = self.truth.updates.last().and_then(|last| last.ended);
        let begins = ended.map_or(begins, |(at, _)| begins.max(at.node));
        if begins < window.1 && !self.waits_for_image(window) {
            self.begin(window, self.clock.by_node(begins), now);
        }
    }

    /// Begins in a window, if there is anything to do.
    pub(super) fn begin(&mut self, window: Span, at: Moment, now: Moment) {
        let picture = self.images.as_ref().map(|images| images.next().cloned());
        // An image that is there already is passed over without a word.
        if picture == Some(None) {
            return;
        }
        let picture = picture.flatten();
        let is_fetched = self.images.as_ref().is_none_or(|i| i.has(picture.as_ref()));
        let update = self.open(picture.as_ref());
        let opened = &mut self.truth.updates[update];
        opened.window = Some(window);
        opened.began = Some(at);
        self.change(update, window, at, is_fetched);
        if let Some(running) = &mut self.running {
            running.picture = picture;
            if running.over <= now.truth {
                self.end();
            }
        }
    }

    /// The update that is open for this image and has not begun, or a new one.
    pub(super) fn open(&mut self, picture: Option<&Picture>) -> usize {
        let image = self
            .images
            .as_ref()
            .zip(picture)
            .map(|(images, picture)| Change {
                from: images.booted().to_owned(),
                to: picture.image.clone(),
            });
        let last = self.truth.updates.last();
        let is_open = last.is_some_and(|last| {
            image.is_some() && last.image == image && last.began.is_none() && last.ended.is_none()
        });
        if !is_open {
            self.truth.updates.push(Update {
                window: None,
                began: None,
                ended: None,
                image,
            });
        }
        self.truth.updates.len() - 1
    }

    /// Changes the node. Without all that it needs it fails.
    fn change(&mut self, update: usize, window: Span, at: Moment, is_ready: bool) {
        let length = |length: Duration| TimeDelta::from_std(length).unwrap_or_default();
        let working = length(self.chance.length(self.habits.working));
        let mut end = self.draw();
        // The length of the window is the budget of its update.
        if !is_ready || window.1 - window.0 < working {
            end = Some(End::Failed);
        }
        let is_halfway = end == Some(End::Failed) && is_ready && self.chance.hits(400);
        let reboots = end == Some(End::Updated) || is_halfway;
        let down = at.truth + working;
        let rebooting = length(self.chance.length(self.habits.rebooting));
        self.running = Some(Running {
            update,
            window,
            picture: None,
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
            self.forget_images();
        }
        let Some(end) = running.end else { return };
        self.file.update = Some(running.update);
        self.truth.updates[running.update].ended = Some((at, end));
        match end {
            End::Updated => {
                self.boot(running.picture);
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
        self.forget_images();
        if let Some(running) = &mut self.running {
            running.over = running.over.max(until);
        }
        self.down_until = Some(until);
        down
    }
}
