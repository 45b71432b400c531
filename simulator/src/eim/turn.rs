//! One tick: show what stands in the state file, take the answer.

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
use super::cron::Repeats;
use super::image::Images;
use super::update;
use crate::clock::Time;
use crate::line::count;
use crate::truth::{Delivered, Opening, Said, Span};

/// Calls of one tick.
const TRIES: u32 = 4;

/// What stands in the detail after an answer for the other kind of system.
const NOT_IMAGES: &str = "skipping IMMUTABLE update request on Ubuntu node";
const NOT_PACKAGES: &str = "skipping MUTABLE update request on Edge Microvisor Toolkit node";

impl EimNode {
    /// Takes a turn. Returns how long it waits before the next one.
    pub async fn turn(&mut self) -> Duration {
        if !self.is_finishing && self.down_until.is_none() && self.chance.hits(self.habits.crash) {
            return self.crash();
        }
        let now = self.clock.moment().truth;
        self.down_until = self.down_until.filter(|until| now < *until);
        if let Some(until) = self.down_until {
            return (until - now).to_std().unwrap_or_default();
        }
        self.advance();
        let running = self.running.as_ref();
        if let Some(running) = running.filter(|r| r.goes_down.is_some_and(|down| down <= now)) {
            return (running.over - now).to_std().unwrap_or_default();
        }
        self.tick().await;
        self.pace.tick
    }

    async fn tick(&mut self) {
        let is_unreadable = !self.is_finishing && self.chance.hits(self.habits.unreadable);
        let (kind, detail) = if is_unreadable {
            (StatusType::Failed, String::new())
        } else {
            (self.file.kind, self.file.detail.clone())
        };
        let about = self.file.update;
        let image = self.images.as_ref().map(Images::echo).unwrap_or_default();
        let mut wait = self.pace.again_after;
        for _ in 0..TRIES {
            let asked = self.clock.moment().truth;
            let answer = self.ask(kind, &detail, &image).await;
            let said = Said {
                kind: update::name(kind),
                detail: detail.clone(),
                image: image.1.clone(),
                update: about,
                spurious: is_unreadable,
                between: (asked, self.clock.moment().truth),
                acknowledged: u64::from(answer.is_ok()),
            };
            let between = said.between;
            self.note(said);
            if let Ok(answer) = answer {
                self.advance();
                self.accept(answer, between);
                self.advance();
                // Whatever stands there by now.
                if kind == StatusType::Updated {
                    self.file.kind = StatusType::UpToDate;
                }
                return;
            }
            tokio::time::sleep(wait).await;
            wait = wait * 3 / 2;
        }
    }

    async fn ask(
        &mut self,
        kind: StatusType,
        detail: &str,
        (profile_name, os_image_id): &(String, String),
    ) -> Result<PlatformUpdateStatusResponse, Status> {
        let request = PlatformUpdateStatusRequest {
            host_guid: self.guid.clone(),
            update_status: Some(UpdateStatus {
                status_type: kind.into(),
                status_detail: detail.to_owned(),
                profile_name: profile_name.clone(),
                os_image_id: os_image_id.clone(),
                ..UpdateStatus::default()
            }),
        };
        let send = |channel, request| async move {
            MaintmgrServiceClient::new(channel)
                .platform_update_status(request)
                .await
        };
        let answer = self.line.call(&mut self.chance, request, send).await?;
        count(&self.line.weather().tally.polls);
        Ok(answer)
    }

    /// Writes down what was said; what was said before in the same words only lasts longer.
    fn note(&mut self, said: Said) {
        let last = self.truth.said.last_mut().filter(|last| {
            (last.kind, last.update, last.spurious) == (said.kind, said.update, said.spurious)
                && (&last.detail, &last.image) == (&said.detail, &said.image)
        });
        match last {
            None => self.truth.said.push(said),
            Some(last) => {
                last.between.1 = said.between.1;
                last.acknowledged += said.acknowledged;
            }
        }
    }

    /// Takes an answer, as the real agent does.
    fn accept(&mut self, answer: PlatformUpdateStatusResponse, between: Span) {
        let kind = answer.os_type();
        let (Some(_), Some(schedule)) = (answer.update_source, answer.update_schedule) else {
            return;
        };
        let other = match (&self.images, kind) {
            (None, OsType::Immutable) => Some(NOT_IMAGES),
            (Some(_), OsType::Mutable) => Some(NOT_PACKAGES),
            _ => None,
        };
        if let Some(other) = other {
            other.clone_into(&mut self.file.detail);
            return;
        }
        let is_empty = self.desire(answer.os_profile_update_source.as_ref(), between);
        let told = schedule.single_schedule.map(|single| span(&single));
        let repeated = schedule.repeated_schedules.iter().filter_map(Repeats::of);
        let repeated: Vec<_> = repeated.collect();
        self.write_down(told, &repeated, between, is_empty);
        // The file has the last window that there was, so that a new process knows it.
        if told.is_some() && self.file.single != told {
            self.file.single = told;
            self.file.is_used = false;
        }
        let now = self.clock.moment();
        self.file.is_used |= self.jobs.hear(told, self.file.is_used, now.node, self.pace);
        self.jobs.repeat(repeated, now.node);
        self.fetch(now);
    }

    /// Keeps for the truth by which windows the node may begin from this answer on.
    fn write_down(
        &mut self,
        single: Option<Span>,
        repeated: &[Repeats],
        between: Span,
        is_empty: bool,
    ) {
        let once = single.map(Opening::Once).into_iter();
        let all = once.chain(repeated.iter().cloned().map(Opening::Again));
        let mut told = Vec::new();
        for window in all {
            let known = self.told.iter().find(|(opening, _)| *opening == window);
            let at = known.map_or(self.truth.delivered.len(), |(_, at)| *at);
            if known.is_none() {
                self.truth.delivered.push(Delivered {
                    window: window.clone(),
                    answers: Vec::new(),
                    is_empty: false,
                });
            }
            let delivered = &mut self.truth.delivered[at];
            delivered.answers.push(between);
            delivered.is_empty |= is_empty;
            told.push((window, at));
        }
        self.told = told;
    }
}

fn span(single: &SingleSchedule) -> Span {
    (instant(single.start_seconds), instant(single.end_seconds))
}

fn instant(seconds: u64) -> Time {
    let seconds = i64::try_from(seconds).ok();
    seconds
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
        .unwrap_or_default()
}
