//! A server without a wire.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::grants::Grant;
use evenkeel_update_agent::journal::Entry;
use evenkeel_update_agent::link::{Answer, Applicant, Enrolled, Leave, Link, LinkError, Question};
use evenkeel_update_agent::model::{Act, Decision, Event, News, Target, Wish};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use uuid::Uuid;

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    #[default]
    Here,
    /// For one more poll.
    Leaving,
    Away,
    /// It can, and does not accept the node's credential.
    Denying,
}

/// What the server wants, what it was told, and how it misbehaves.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a way of its own to misbehave, and goes with any of the others"
)]
pub struct World {
    pub target: Option<Target>,
    /// Whether a window is open.
    pub open: bool,
    /// What it was told, by attempt.
    pub told: BTreeMap<Uuid, Vec<Event>>,
    /// Every event that arrived, repeated or not.
    pub arrived: usize,
    pub facts: Option<Facts>,
    /// The list of packages that it was told.
    pub packages: Option<String>,
    /// How often a list of packages arrived.
    pub lists: u32,
    /// Whether it can be reached.
    pub presence: Presence,
    /// Leave for the time when it is away.
    pub grant: Option<Grant>,
    /// Its clock.
    pub now: Option<DateTime<Utc>>,
    /// So many polls are not answered.
    pub silent_polls: u32,
    /// So many reports are stored, and the answer is lost.
    pub lost_answers: u32,
    /// So many reports are forgotten but for their first event, and so it is answered.
    pub forgotten: u32,
    /// Asks for leave are refused, whatever the decision says.
    pub refuse: bool,
    /// Goes on to want what was seen through already.
    pub forgetful: bool,
    /// A person orders the image anew as soon as it is heard that the node went back.
    pub orders: bool,
    /// The credential that the next poll brings.
    pub renewal: Option<String>,
    /// The credentials that the link was given.
    pub renewed: Vec<String>,
    pub polls: u32,
    /// Why the node does not begin, as each poll told it.
    pub waiting: Vec<String>,
    pub begins: u32,
    /// When the leave that it gives ends.
    pub before: Option<DateTime<Utc>>,
    /// Polls may be held so long; zero from a server that knows nothing of that.
    pub hold: Duration,
    /// After losing the connection nodes come back over so long a time.
    pub spread: Duration,
    /// It lets go of polls so much sooner than it may.
    pub early: Duration,
    /// It never answers a poll that it holds: the connection is gone, and nobody said so.
    pub is_deaf: bool,
    /// It answers polls at once that it might hold.
    pub declines: bool,
    /// It has too much to do, and wants to be asked again after this time.
    pub busy: Option<Duration>,
    /// How long each poll might be held.
    pub holds: Vec<Duration>,
    /// When each poll came, since the first one.
    pub times: Vec<Duration>,
    first: Option<tokio::time::Instant>,
    /// Wakes the polls that are held.
    pub changed: Arc<Notify>,
}

impl World {
    /// The only attempt that it was told of.
    pub fn only_attempt(&self) -> &[Event] {
        assert_eq!(self.told.len(), 1, "{:?}", self.told);
        self.told.values().next().unwrap()
    }

    /// The names of the events of the only attempt.
    pub fn story(&self) -> String {
        let names = self.only_attempt().iter().map(|event| event.news.name());
        names.collect::<Vec<_>>().join(", ")
    }

    fn reach(&self) -> Result<(), LinkError> {
        if let Some(again) = self.busy {
            let why = "too much to do".into();
            return Err(LinkError::Busy { again, why });
        }
        match self.presence {
            Presence::Here | Presence::Leaving => Ok(()),
            Presence::Away => Err(LinkError::Unavailable("nobody is there".into())),
            Presence::Denying => Err(LinkError::Denied("the credential is not valid".into())),
        }
    }

    /// As the real one: when the facts have a digest of which it has no text.
    fn wants_packages(&self) -> bool {
        let told = self.facts.as_ref().and_then(|facts| facts.packages_digest);
        let has = self.packages.as_ref();
        told.is_some() && told != has.map(|text| Sha256::digest(text).into())
    }

    /// As the real one: the same for the same decision.
    fn tag(&self, attempt: Option<Uuid>) -> u64 {
        if self.hold.is_zero() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        format!("{:?} {:?}", self.decide(attempt), self.grant).hash(&mut hasher);
        hasher.finish().max(1)
    }

    /// A poll comes in.
    fn arrive(&mut self, question: &Question<'_>) -> Result<(), LinkError> {
        self.polls += 1;
        self.holds.push(question.hold);
        let now = tokio::time::Instant::now();
        let first = *self.first.get_or_insert(now);
        self.times.push(now - first);
        self.reach()?;
        self.waiting.push(question.waiting.to_owned());
        if self.silent_polls > 0 {
            self.silent_polls -= 1;
            return Err(LinkError::Unavailable("nobody is there".into()));
        }
        if question.whole {
            self.facts = Some(question.facts.clone());
        }
        if let Some(packages) = question.packages {
            self.packages = Some(packages.to_owned());
            self.lists += 1;
        }
        Ok(())
    }

    /// Whether it has nothing to say to a poll that it may hold.
    fn is_silent(&self, question: &Question<'_>) -> Result<bool, LinkError> {
        if self.is_deaf {
            return Ok(true);
        }
        self.reach()?;
        let tag = self.tag(question.attempt.map(|(id, _)| id));
        Ok(!self.declines && tag != 0 && tag == question.tag)
    }

    fn answer(&mut self, question: &Question<'_>) -> Answer {
        let attempt = question.attempt.map(|(id, _)| id);
        let (act, tag) = (self.decide(attempt), self.tag(attempt));
        if self.presence == Presence::Leaving {
            self.presence = Presence::Away;
        }
        Answer {
            want_facts: self.facts.as_ref() != Some(question.facts),
            want_packages: self.wants_packages(),
            now: self.now,
            next_poll: Duration::from_mins(1),
            decision: Decision {
                act,
                reason: "the test wants it so".into(),
                next: None,
                grant: self.grant.clone(),
            },
            credential: self.renewal.take().map(Secret::new),
            tag,
            hold: self.hold,
            spread: self.spread,
        }
    }

    /// The image is to be tried although it failed.
    fn order(&mut self) {
        if let Some(Target {
            wish: Wish::Image(wish),
            ..
        }) = &mut self.target
        {
            wish.again = true;
        }
        self.forgetful = true;
    }

    fn decide(&self, attempt: Option<Uuid>) -> Act {
        let told = |id| self.told.get(&id).map_or(&[][..], Vec::as_slice);
        let open = attempt.map(told);
        let begun = |events: &[Event]| events.iter().any(|event| event.news == News::Began);
        let over = |events: &Vec<Event>| events.last().is_some_and(|e| e.news.is_terminal());
        match (&self.target, open) {
            (_, Some(events)) if begun(events) => Act::Continue,
            (None, Some(_)) => Act::Cancel {
                cause: "withdrawn".into(),
            },
            (None, None) => Act::Idle,
            (Some(_), None) if !self.forgetful && self.told.values().any(over) => Act::Idle,
            (Some(target), _) if self.open => Act::Apply {
                target: target.clone(),
                before: None,
            },
            (Some(_), Some(_)) => Act::Continue,
            (Some(target), None) => Act::Fetch(target.clone()),
        }
    }
}

/// The way to it.
#[derive(Clone, Debug, Default)]
pub struct FakeLink(pub Arc<Mutex<World>>);

impl FakeLink {
    /// Keeps a poll open until its time is over, or there is something else to say or nobody any more to say it.
    async fn keep(&self, question: &Question<'_>) -> Result<(), LinkError> {
        let early = self.0.lock().unwrap().early;
        let end = tokio::time::Instant::now() + question.hold.saturating_sub(early);
        loop {
            let changed = Arc::clone(&self.0.lock().unwrap().changed);
            let changed = changed.notified();
            let is_deaf = {
                let world = self.0.lock().unwrap();
                if !world.is_silent(question)? {
                    return Ok(());
                }
                world.is_deaf
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(end), if !is_deaf => return Ok(()),
            }
        }
    }

    /// Changes what is so, and polls that are held hear of it.
    pub fn change(&self, change: impl FnOnce(&mut World)) {
        let mut world = self.0.lock().unwrap();
        change(&mut world);
        world.changed.notify_waiters();
    }
}

#[async_trait::async_trait]
impl Link for FakeLink {
    async fn enroll(&self, _applicant: &Applicant) -> Result<Enrolled, LinkError> {
        Err(LinkError::Refused("nobody enrols here".into()))
    }

    async fn poll(&self, question: Question<'_>) -> Result<Answer, LinkError> {
        self.0.lock().unwrap().arrive(&question)?;
        if !question.hold.is_zero() {
            self.keep(&question).await?;
        }
        Ok(self.0.lock().unwrap().answer(&question))
    }

    async fn begin(&self, entry: &Entry) -> Result<Leave, LinkError> {
        let mut world = self.0.lock().unwrap();
        world.begins += 1;
        world.reach()?;
        assert!(entry.unsent().is_empty(), "all earlier news is told first");
        Ok(if world.open && !world.refuse {
            Leave::Granted {
                before: world.before,
            }
        } else {
            Leave::Refused {
                reason: "the window is closed".into(),
            }
        })
    }

    async fn report(&self, entry: &Entry) -> Result<u32, LinkError> {
        let mut world = self.0.lock().unwrap();
        world.reach()?;
        world.arrived += entry.unsent().len();
        let forget = world.forgotten > 0;
        world.forgotten = world.forgotten.saturating_sub(1);
        let told = world.told.entry(entry.attempt).or_default();
        if forget {
            told.truncate(1);
        }
        for event in entry.unsent() {
            let next = u32::try_from(told.len()).unwrap() + 1;
            assert!(event.sequence <= next || forget, "a gap before {event:?}");
            if event.sequence == next && !forget {
                told.push(event.clone());
            } else if let Some(known) = told.get(event.sequence as usize - 1) {
                assert_eq!(known, event, "a repeated event is the same event");
            }
        }
        let stored = u32::try_from(told.len()).unwrap();
        let went_back = matches!(
            told.last().map(|last| &last.news),
            Some(News::Reverted { .. })
        );
        if went_back && world.orders {
            world.order();
        }
        if world.lost_answers > 0 {
            world.lost_answers -= 1;
            return Err(LinkError::Unavailable("the answer was lost".into()));
        }
        Ok(stored)
    }

    fn renew(&self, credential: &Secret) -> Result<(), LinkError> {
        let mut world = self.0.lock().unwrap();
        world.renewed.push(credential.reveal().to_owned());
        Ok(())
    }
}
