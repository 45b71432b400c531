//! One tick: send the content of the state file, accept the answer.

use std::time::Duration;

use chrono::DateTime;
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::platform_update_status_response::OsType;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, SingleSchedule, UpdateStatus,
};
use tonic::Status;

use super::EimNode;
use super::cron::RepeatedWindows;
use super::image::ImageState;
use super::update;
use crate::clock::Time;
use crate::connection::increment;
use crate::ground_truth::{DeliveredSchedule, EimSchedule, Span, StatusReport};

/// The maximum number of calls in a tick.
pub(crate) const MAX_TRIES_PER_TICK: u32 = 4;

/// Details that the agent writes after an answer for the other kind of system.
const IMMUTABLE_SKIPPED: &str = "skipping IMMUTABLE update request on Ubuntu node";
const MUTABLE_SKIPPED: &str = "skipping MUTABLE update request on Edge Microvisor Toolkit node";

impl EimNode {
    /// Takes a turn. Returns the delay until the next one.
    pub async fn turn(&mut self) -> Duration {
        if !self.is_finishing
            && self.down_until.is_none()
            && self.rng.happens(self.habits.crash_per_mille)
        {
            return self.crash();
        }
        let now = self.clock.now().true_time;
        self.down_until = self.down_until.filter(|until| now < *until);
        if let Some(until) = self.down_until {
            return (until - now).to_std().unwrap_or_default();
        }
        self.advance();
        let running = self.running.as_ref();
        if let Some(running) = running.filter(|r| r.goes_down_at.is_some_and(|down| down <= now)) {
            return (running.ends_at - now).to_std().unwrap_or_default();
        }
        self.tick().await;
        self.pace.tick
    }

    async fn tick(&mut self) {
        let is_unreadable =
            !self.is_finishing && self.rng.happens(self.habits.unreadable_per_mille);
        let (kind, detail) = if is_unreadable {
            (StatusType::Failed, String::new())
        } else {
            (self.file.kind, self.file.detail.clone())
        };
        let about = self.file.update;
        let image = self.images.as_ref().map(ImageState::reported_image).unwrap_or_default();
        let mut wait = self.pace.retry_delay;
        for _ in 0..MAX_TRIES_PER_TICK {
            let sent_at = self.clock.now().true_time;
            let answer = self.send_status(kind, &detail, &image).await;
            let report = StatusReport {
                kind: update::status_name(kind),
                detail: detail.clone(),
                image_version: image.1.clone(),
                update: about,
                spurious: is_unreadable,
                between: (sent_at, self.clock.now().true_time),
                acknowledged: u64::from(answer.is_ok()),
            };
            let between = report.between;
            self.record_report(report);
            if let Ok(answer) = answer {
                self.advance();
                self.accept_answer(answer, between);
                self.advance();
                // Overwrites whatever the file has by now.
                if kind == StatusType::Updated {
                    self.file.kind = StatusType::UpToDate;
                }
                return;
            }
            tokio::time::sleep(wait).await;
            wait = wait * 3 / 2;
        }
    }

    async fn send_status(
        &mut self,
        kind: StatusType,
        detail: &str,
        (profile_name, os_image_id): &(String, String),
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let status = UpdateStatus {
            status_type: kind.into(),
            status_detail: detail.to_owned(),
            profile_name: profile_name.clone(),
            os_image_id: os_image_id.clone(),
            ..UpdateStatus::default()
        };
        let request = status_request(&self.guid, status);
        let send = |channel, request| async move {
            MaintmgrServiceClient::new(channel).platform_update_status(request).await
        };
        let answer = self.connection.call(&mut self.rng, request, send).await?;
        increment(&self.connection.network().counters.polls);
        Ok(answer)
    }

    /// Records a report. An equal report only extends the previous one.
    fn record_report(&mut self, report: StatusReport) {
        let last = self.ground_truth.reports.last_mut().filter(|last| {
            (last.kind, last.update, last.spurious) == (report.kind, report.update, report.spurious)
                && (&last.detail, &last.image_version) == (&report.detail, &report.image_version)
        });
        match last {
            None => self.ground_truth.reports.push(report),
            Some(last) => {
                last.between.1 = report.between.1;
                last.acknowledged += report.acknowledged;
            }
        }
    }

    /// Accepts an answer, as the real agent does.
    fn accept_answer(&mut self, answer: PlatformUpdateStatusResponse, between: Span) {
        let kind = answer.os_type();
        let (Some(_), Some(schedule)) = (answer.update_source, answer.update_schedule) else {
            return;
        };
        let other = match (&self.images, kind) {
            (None, OsType::Immutable) => Some(IMMUTABLE_SKIPPED),
            (Some(_), OsType::Mutable) => Some(MUTABLE_SKIPPED),
            _ => None,
        };
        if let Some(other) = other {
            other.clone_into(&mut self.file.detail);
            return;
        }
        let is_empty = self.accept_target(answer.os_profile_update_source.as_ref(), between);
        let window = schedule.single_schedule.map(|single| span(&single));
        let repeated = schedule.repeated_schedules.iter().filter_map(RepeatedWindows::from_wire);
        let repeated: Vec<_> = repeated.collect();
        self.record_delivery(window, &repeated, between, is_empty);
        // The file keeps the last window, so that a new process knows it.
        if window.is_some() && self.file.single != window {
            self.file.single = window;
            self.file.is_used = false;
        }
        let now = self.clock.now();
        self.file.is_used |=
            self.jobs.accept_window(window, self.file.is_used, now.node_time, self.pace);
        self.jobs.set_repeated(repeated, now.node_time);
        self.start_download(now);
    }

    /// Records in the ground truth which schedules the node may use from this answer on.
    fn record_delivery(
        &mut self,
        single: Option<Span>,
        repeated: &[RepeatedWindows],
        between: Span,
        is_empty: bool,
    ) {
        let once = single.map(EimSchedule::Single).into_iter();
        let all = once.chain(repeated.iter().cloned().map(EimSchedule::Repeated));
        let mut schedules = Vec::new();
        for window in all {
            let existing = self.delivered.iter().find(|(opening, _)| *opening == window);
            let at = existing.map_or(self.ground_truth.delivered.len(), |(_, at)| *at);
            if existing.is_none() {
                self.ground_truth.delivered.push(DeliveredSchedule {
                    schedule: window.clone(),
                    answers: Vec::new(),
                    is_empty: false,
                });
            }
            let delivered = &mut self.ground_truth.delivered[at];
            delivered.answers.push(between);
            delivered.is_empty |= is_empty;
            schedules.push((window, at));
        }
        self.delivered = schedules;
    }
}

/// The message of a tick.
pub(crate) fn status_request(guid: &str, status: UpdateStatus) -> PlatformUpdateStatusRequest {
    PlatformUpdateStatusRequest { host_guid: guid.to_owned(), update_status: Some(status) }
}

fn span(single: &SingleSchedule) -> Span {
    (instant(single.start_seconds), instant(single.end_seconds))
}

fn instant(seconds: u64) -> Time {
    let seconds = i64::try_from(seconds).ok();
    seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0)).unwrap_or_default()
}
