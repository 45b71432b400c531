//! Images: fetched before a window, booted in it.

use chrono::TimeDelta;
use evenkeel_proto::maintmgr::OsProfileUpdateSource;
use evenkeel_proto::maintmgr::update_status::StatusType;

use super::EimNode;
use super::cron::Repeats;
use crate::clock::{Moment, Time};
use crate::truth::{End, Span, Targeted};

/// An image as the agent knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// The line of releases that it is one of.
    pub profile: String,
    /// Its version.
    pub image: String,
    /// Of the file. Only by this the agent tells images apart.
    pub sha: String,
}

/// What a node that is updated by images has of them.
#[derive(Debug)]
pub(super) struct Images {
    /// What runs. The agent does not know it.
    booted: Picture,
    /// What the agent says that it runs: what it was told last when an update ended well.
    actual: Picture,
    /// What it was told last.
    desired: Option<Picture>,
    /// What was fetched. Not even a crash of the agent alone survives.
    fetched: Option<String>,
    /// For what it was fetched last: not again for the same.
    tried: Option<(String, Awaited)>,
    fetching: Option<Fetching>,
    /// A window that opened while an image was fetched.
    due: Option<Span>,
}

/// The windows that an image is fetched for.
type Awaited = (Option<Span>, Vec<Repeats>);

#[derive(Debug)]
struct Fetching {
    update: usize,
    sha: String,
    until: Time,
    works: bool,
}

impl Images {
    pub(super) fn running(booted: Picture) -> Self {
        Self {
            booted,
            actual: Picture::default(),
            desired: None,
            fetched: None,
            tried: None,
            fetching: None,
            due: None,
        }
    }

    /// Profile and image that the agent says.
    pub(super) fn echo(&self) -> (String, String) {
        (self.actual.profile.clone(), self.actual.image.clone())
    }

    pub(super) fn booted(&self) -> &str {
        &self.booted.image
    }

    pub(super) const fn is_busy(&self) -> bool {
        self.fetching.is_some()
    }

    /// The image that an update would bring; none if it has that already, or was told none.
    pub(super) fn next(&self) -> Option<&Picture> {
        let desired = self.desired.as_ref();
        desired.filter(|desired| desired.sha != self.actual.sha)
    }

    /// Whether an image was fetched.
    pub(super) fn has(&self, picture: Option<&Picture>) -> bool {
        picture.is_some_and(|picture| self.fetched.as_ref() == Some(&picture.sha))
    }
}

impl EimNode {
    /// Takes the image of an answer, whatever goes on. Returns whether there is nothing in it that the node could be
    /// brought to, though it needs it.
    pub(super) fn desire(&mut self, told: Option<&OsProfileUpdateSource>, between: Span) -> bool {
        let Some(images) = &mut self.images else {
            return false;
        };
        let told = told.filter(|told| !told.os_image_url.is_empty());
        images.desired = told.map(|told| Picture {
            profile: told.profile_name.clone(),
            image: told.os_image_id.clone(),
            sha: told.os_image_sha.clone(),
        });
        let Some(desired) = &images.desired else {
            return true;
        };
        let targets = &mut self.truth.targets;
        match targets
            .last_mut()
            .filter(|last| last.image == desired.image)
        {
            Some(last) => last.last = between,
            None => targets.push(Targeted {
                image: desired.image.clone(),
                running: images.booted.image.clone(),
                first: between,
                last: between,
            }),
        }
        false
    }

    /// Fetches what it was told for the window that it waits for. What failed is not tried again for the same window.
    pub(super) fn fetch(&mut self, now: Moment) {
        let Some(awaited) = self.jobs.awaits() else {
            return;
        };
        if self.is_finishing || self.running.is_some() {
            return;
        }
        let Some(images) = &mut self.images else {
            return;
        };
        let Some(picture) = images.next().cloned() else {
            return;
        };
        let is_fetching = images.fetching.as_ref();
        let plan = (picture.sha.clone(), awaited);
        if images.has(Some(&picture))
            || is_fetching.is_some_and(|fetching| fetching.sha == picture.sha)
            || images.tried.as_ref() == Some(&plan)
        {
            return;
        }
        images.tried = Some(plan);
        let length = self.chance.length(self.habits.fetching);
        let works = !self.chance.hits(self.habits.fail / 3);
        let update = self.open(Some(&picture));
        if let Some(images) = &mut self.images {
            images.fetching = Some(Fetching {
                update,
                sha: picture.sha,
                until: now.truth + TimeDelta::from_std(length).unwrap_or_default(),
                works,
            });
        }
        self.file.kind = StatusType::Downloading;
        self.file.update = Some(update);
    }

    /// Ends fetching when its time has come, and begins in the window that opened meanwhile.
    pub(super) fn fetched(&mut self, now: Moment) {
        let Some(images) = &mut self.images else {
            return;
        };
        let Some(done) = images.fetching.take_if(|one| one.until <= now.truth) else {
            return;
        };
        let due = images.due.take();
        let at = self.clock.at(done.until);
        self.file.update = Some(done.update);
        if !done.works {
            self.file.kind = StatusType::Failed;
            self.file.detail = format!("cannot download: {} of update {}", done.sha, done.update);
            self.truth.updates[done.update].ended = Some((at, End::Failed));
            return;
        }
        images.fetched = Some(done.sha);
        self.file.kind = StatusType::Downloaded;
        // The length of the window is the budget of its update.
        let due = due.filter(|window| at.node < window.1 && !self.is_finishing);
        if let Some(window) = due {
            self.begin(window, at, now);
        }
    }

    /// Whether an image is still being fetched: then the window has to wait.
    pub(super) fn waits_for_image(&mut self, window: Span) -> bool {
        let Some(images) = self.images.as_mut().filter(|images| images.is_busy()) else {
            return false;
        };
        images.due = Some(window);
        true
    }

    /// The process ends, and what it had in memory is gone.
    pub(super) fn forget_images(&mut self) {
        if let Some(images) = &mut self.images {
            images.fetched = None;
            images.tried = None;
            images.fetching = None;
            images.due = None;
        }
    }

    /// The machine runs another image. The agent says that it is the one that it was told last.
    pub(super) fn boot(&mut self, picture: Option<Picture>) {
        if let (Some(images), Some(picture)) = (&mut self.images, picture) {
            images.booted = picture;
            images.actual = images.desired.clone().unwrap_or_default();
        }
    }
}
