//! Images: downloaded before a window, booted in it.

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::OsProfileUpdateSource;
use evenkeel_proto::maintmgr::update_status::StatusType;

use super::EimNode;
use super::cron::RepeatedWindows;
use crate::clock::{Moment, Time};
use crate::ground_truth::{DeliveredImage, Span, UpdateEnd};

/// An image as the agent knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EimImage {
    /// The profile that it belongs to.
    pub profile: String,
    pub version: String,
    /// The digest of the file. The agent distinguishes images only by this.
    pub sha: String,
}

/// The images of a node that is updated by images.
#[derive(Debug)]
pub(super) struct ImageState {
    /// The running image. The agent does not know it.
    booted: EimImage,
    /// The image that the agent reports as running: the desired one at the last successful update.
    actual: EimImage,
    /// The image of the last answer.
    desired: Option<EimImage>,
    /// The digest of the downloaded image. It does not even survive a crash of the agent alone.
    downloaded: Option<String>,
    /// The image and the windows of the last download, which is not repeated for the same ones.
    last_tried: Option<(String, AwaitedWindows)>,
    download: Option<ImageDownload>,
    /// A window that opened during a download.
    deferred_window: Option<Span>,
}

/// The windows that an image is downloaded for.
type AwaitedWindows = (Option<Span>, Vec<RepeatedWindows>);

#[derive(Debug)]
struct ImageDownload {
    update: usize,
    sha: String,
    until: Time,
    succeeds: bool,
}

impl ImageState {
    pub(super) fn new(booted: EimImage) -> Self {
        Self {
            booted,
            actual: EimImage::default(),
            desired: None,
            downloaded: None,
            last_tried: None,
            download: None,
            deferred_window: None,
        }
    }

    /// The profile and the version that the agent reports.
    pub(super) fn reported_image(&self) -> (String, String) {
        (self.actual.profile.clone(), self.actual.version.clone())
    }

    pub(super) fn booted_version(&self) -> &str {
        &self.booted.version
    }

    pub(super) const fn is_busy(&self) -> bool {
        self.download.is_some()
    }

    /// The image that an update would install; `None` if the agent has it already or got none.
    pub(super) fn pending(&self) -> Option<&EimImage> {
        let desired = self.desired.as_ref();
        desired.filter(|desired| desired.sha != self.actual.sha)
    }

    pub(super) fn has_downloaded(&self, target: Option<&EimImage>) -> bool {
        target.is_some_and(|target| self.downloaded.as_ref() == Some(&target.sha))
    }
}

impl EimNode {
    /// Accepts the image of an answer, in any state. Returns whether the node is updated by images
    /// and the answer has none.
    pub(super) fn accept_target(
        &mut self,
        source: Option<&OsProfileUpdateSource>,
        between: Span,
    ) -> bool {
        let Some(images) = &mut self.images else {
            return false;
        };
        let source = source.filter(|source| !source.os_image_url.is_empty());
        images.desired = source.map(|source| EimImage {
            profile: source.profile_name.clone(),
            version: source.os_image_id.clone(),
            sha: source.os_image_sha.clone(),
        });
        let Some(desired) = &images.desired else {
            return true;
        };
        let targets = &mut self.ground_truth.images;
        match targets.last_mut().filter(|last| last.version == desired.version) {
            Some(last) => last.last = between,
            None => targets.push(DeliveredImage {
                version: desired.version.clone(),
                running_version: images.booted.version.clone(),
                first: between,
                last: between,
            }),
        }
        false
    }

    /// Downloads the desired image for the next window. A failed download is not repeated for the
    /// same window.
    pub(super) fn start_download(&mut self, now: Moment) {
        let Some(awaited) = self.jobs.awaited() else {
            return;
        };
        if self.is_finishing || self.running.is_some() {
            return;
        }
        let Some(images) = &mut self.images else {
            return;
        };
        let Some(target) = images.pending().cloned() else {
            return;
        };
        let is_fetching = images.download.as_ref();
        let plan = (target.sha.clone(), awaited);
        if images.has_downloaded(Some(&target))
            || is_fetching.is_some_and(|fetching| fetching.sha == target.sha)
            || images.last_tried.as_ref() == Some(&plan)
        {
            return;
        }
        images.last_tried = Some(plan);
        let length = self.rng.duration(self.habits.download_time);
        let succeeds = !self.rng.happens(self.habits.failure_per_mille / 3);
        let update = self.open_update(Some(&target));
        if let Some(images) = &mut self.images {
            images.download = Some(ImageDownload {
                update,
                sha: target.sha,
                until: now.true_time + TimeDelta::from_std(length).unwrap_or_default(),
                succeeds,
            });
        }
        self.file.kind = StatusType::Downloading;
        self.file.update = Some(update);
    }

    /// Ends a download when its time has come, and begins in a window that opened meanwhile.
    pub(super) fn finish_download(&mut self, now: Moment) {
        let Some(images) = &mut self.images else {
            return;
        };
        let Some(done) = images.download.take_if(|one| one.until <= now.true_time) else {
            return;
        };
        let due = images.deferred_window.take();
        let at = self.clock.at_true_time(done.until);
        self.file.update = Some(done.update);
        if !done.succeeds {
            self.file.kind = StatusType::Failed;
            self.file.detail = format!("cannot download: {} of update {}", done.sha, done.update);
            self.ground_truth.updates[done.update].ended = Some((at, UpdateEnd::Failed));
            return;
        }
        images.downloaded = Some(done.sha);
        self.file.kind = StatusType::Downloaded;
        // The length of the window limits its update.
        let due = due.filter(|window| at.node_time < window.1 && !self.is_finishing);
        if let Some(window) = due {
            self.begin(window, at, now);
        }
    }

    /// Whether an image is still being downloaded. In that case the window is deferred.
    pub(super) fn defer_to_download(&mut self, window: Span) -> bool {
        let Some(images) = self.images.as_mut().filter(|images| images.is_busy()) else {
            return false;
        };
        images.deferred_window = Some(window);
        true
    }

    /// The process ends and loses what it has in memory.
    pub(super) fn clear_downloads(&mut self) {
        if let Some(images) = &mut self.images {
            images.downloaded = None;
            images.last_tried = None;
            images.download = None;
            images.deferred_window = None;
        }
    }

    /// The machine boots another image. The agent assumes that it is the one of the last answer.
    pub(super) fn boot(&mut self, target: Option<EimImage>) {
        if let (Some(images), Some(target)) = (&mut self.images, target) {
            images.booted = target;
            images.actual = images.desired.clone().unwrap_or_default();
        }
    }
}
