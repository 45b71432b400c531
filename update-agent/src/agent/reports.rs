//! What the agent tells the server, and what it looks up to tell it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::chain;

use super::acts::{BRIEFLY, wish_name};
use super::hold::{Heard, Rest, Way};
use super::troubles::brief;
use super::{Agent, AgentError, Ended, Pace, unless};
use crate::facts::Facts;
use crate::history::Record;
use crate::journal::{Entry, JournalError, Phase};
use crate::link::{Answer, Question, facts_digest};
use crate::model::{FailureKind, News, Wish};
use crate::modules::Try;
use crate::node::save_credential;
use crate::status::End;

/// A server that acknowledges less than it is told, so often in a row, is given a rest.
const MOST_REWINDS: u32 = 3;
/// A server asks for the facts, then for the list of packages. One that goes on asking is not listened to.
const MOST_ANSWERS: u32 = 2;

impl Agent {
    /// Goes on with an attempt from the journal, as far as that needs no word from the server.
    pub(super) async fn go_on(&mut self, open: Entry) -> Result<Option<Entry>, AgentError> {
        let entry = if open.has_begun() {
            tracing::warn!(attempt = %open.attempt, phase = open.phase.name(), "going on with what was begun");
            let entry = self.carry_out(open, Try::Again).await?;
            // Else nobody would hear why it does not end.
            self.waits(brief(&self.engine.why_open()));
            entry
        } else {
            open
        };
        self.settle(entry).await
    }

    /// Tells what is not told. An attempt that is over and wholly told is forgotten.
    pub(super) async fn settle(&mut self, mut entry: Entry) -> Result<Option<Entry>, AgentError> {
        if entry.phase == Phase::Over {
            self.waits(String::new());
            self.remember(&entry);
        }
        if entry.phase == Phase::Rebooting && entry.reboot_is_the_change {
            // What is ready to boot boots with any reset: a server that is slow to hear of it does not put that off.
            self.flush_briefly(&mut entry).await?;
            return Ok(Some(entry));
        }
        self.flush(&mut entry).await?;
        if entry.phase != Phase::Over {
            return Ok(Some(entry));
        }
        self.engine.close(&entry).await?;
        Ok(None)
    }

    pub(super) fn remember(&mut self, entry: &Entry) {
        let Some(end) = End::of(entry) else { return };
        let failed = entry.events.last().and_then(|event| event.news.failure());
        let ended = Ended {
            at: end.at,
            trouble: failed.map(|failure| failure.reason.clone()),
            again_after: again_after(&self.pace, entry),
        };
        self.memory.ended.insert(wish_name(&entry.target), ended);
        self.status.change(|status| status.last_end = Some(end));
        if let Err(error) = Record::of(entry).map_or(Ok(()), |record| self.history.add(record)) {
            tracing::warn!(error = %chain(&error), "the end of the attempt is missing in the history");
        }
    }

    /// Tells what can be told in a few seconds. The rest is told later.
    pub(super) async fn flush_briefly(&self, entry: &mut Entry) -> Result<(), AgentError> {
        match tokio::time::timeout(BRIEFLY, self.flush(entry)).await {
            Ok(Err(AgentError::Journal(error))) => Err(error.into()),
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "what has begun will be told later");
                Ok(())
            }
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    pub(super) async fn flush(&self, entry: &mut Entry) -> Result<(), AgentError> {
        let mut rewinds = 0;
        while !entry.unsent().is_empty() {
            let before = entry.acknowledged;
            let stored = self.unless_stopped(self.link.report(entry)).await??;
            // More than was ever said cannot be stored.
            let upto = stored.min(entry.last_sequence());
            self.engine.acknowledge(entry, upto)?;
            if upto <= before {
                rewinds += 1;
            }
            if rewinds > MOST_REWINDS {
                return Err(AgentError::NoProgress);
            }
        }
        Ok(())
    }

    /// Makes the lists of packages current from time to time, so that the facts know what is available.
    pub(super) async fn refresh_if_due(&mut self, once: bool) -> Result<(), AgentError> {
        let now = self.clock.now();
        let due = match self.memory.refreshed {
            None => once || self.is_past(self.status.get().refreshed, self.pace.refresh_every),
            some => self.is_past(some, self.pace.refresh_every),
        };
        if !due {
            return Ok(());
        }
        self.memory.refreshed = Some(now);
        match self.unless_stopped(self.engine.refresh()).await? {
            Ok(()) => self.status.change(|status| {
                status.refreshed = Some(now);
                status.refresh_trouble.clear();
            }),
            Err(failure) => {
                tracing::warn!(error = %failure, "the lists of packages are not current");
                self.status
                    .change(|status| status.refresh_trouble = failure.reason);
            }
        }
        Ok(())
    }

    /// Whether an instant lies at least so long in the past. An instant in the future is one of a wrong clock.
    pub(super) fn is_past(&self, instant: Option<DateTime<Utc>>, by: TimeDelta) -> bool {
        let now = self.clock.now();
        instant.is_none_or(|instant| instant > now || now - instant >= by)
    }

    /// Looks at the node, and adds what the agent knows of itself.
    pub(super) async fn look(&mut self) -> Result<Facts, AgentError> {
        let stop = self.stop.clone();
        let mut facts = match unless(&stop, self.facts.read()).await? {
            Ok(facts) => facts,
            Err(failure) => {
                tracing::warn!(error = %failure, "the node cannot be looked at");
                self.facts.blind(&failure)
            }
        };
        self.complete(&mut facts);
        let shown = self.status.get();
        if shown.troubles != facts.troubles || shown.limits != facts.limits {
            self.status.change(|status| {
                status.troubles.clone_from(&facts.troubles);
                status.limits.clone_from(&facts.limits);
            });
        }
        Ok(facts)
    }

    /// Says what is known and asks what to do. An agent that rests lets the server keep the poll open.
    pub(super) async fn poll(
        &mut self,
        entry: Option<&Entry>,
        rest: Option<Rest>,
    ) -> Result<Heard, AgentError> {
        let stop = self.stop.clone();
        let facts = self.look().await?;
        let waiting = self.memory.waiting.clone();
        let digest = facts_digest(&facts);
        let whole = self.memory.told.is_some_and(|told| told != digest);
        // News is for an answer at once.
        let rest = rest.filter(|_| !whole);
        let hold = rest.map_or(Duration::ZERO, |rest| self.hold(rest));
        let question = Question {
            facts: &facts,
            whole,
            packages: None,
            attempt: entry.map(|entry| (entry.attempt, entry.last_sequence())),
            waiting: &waiting,
            tag: self.memory.terms.tag,
            hold,
        };
        let (mut answer, mut way) = match rest.filter(|_| !hold.is_zero()) {
            None => (self.ask(question).await?, Way::AtOnce),
            Some(rest) => match self.ask_held(question, rest, digest).await? {
                Heard::Answer(answer, way) => (answer, way),
                nothing => return Ok(nothing),
            },
        };
        for _ in 0..MOST_ANSWERS {
            let packages = if answer.want_packages {
                unless(&stop, self.facts.packages(&facts)).await?
            } else {
                None
            };
            if !answer.want_facts && packages.is_none() {
                break;
            }
            let question = Question {
                whole: answer.want_facts,
                packages: packages.as_deref(),
                hold: Duration::ZERO,
                ..question
            };
            (answer, way) = (self.ask(question).await?, Way::AtOnce);
        }
        self.memory.told = Some(digest);
        Ok(Heard::Answer(answer, way))
    }

    async fn ask(&mut self, question: Question<'_>) -> Result<Box<Answer>, AgentError> {
        let answer = self.unless_stopped(self.link.poll(question)).await??;
        self.note(&answer)?;
        Ok(Box::new(answer))
    }

    /// Keeps what comes with every answer.
    pub(super) fn note(&mut self, answer: &Answer) -> Result<(), AgentError> {
        self.memory.busy = None;
        self.keep_terms(answer);
        self.memory.ahead = answer.now.map(|server| self.clock.now() - server);
        self.grants
            .hear(answer.decision.grant.as_ref(), answer.now)
            .map_err(AgentError::Grant)?;
        if let Some(credential) = &answer.credential {
            save_credential(&self.place, credential).map_err(JournalError::from)?;
            self.link.renew(credential)?;
            tracing::info!("the server gave a new credential");
        }
        Ok(())
    }
}

/// How long the wish of an attempt that is over is left alone. An image that could not be fetched or written is some GB
/// that would be asked for again and again.
fn again_after(pace: &Pace, entry: &Entry) -> TimeDelta {
    let is_image = matches!(entry.target.wish, Wish::Image(_));
    let mut events = entry.events.iter();
    let had_begun = events.any(|event| event.news == News::Began);
    let failed = entry.events.last().and_then(|event| event.news.failure());
    match failed.map(|failure| failure.kind) {
        Some(FailureKind::Download | FailureKind::Storage) if is_image && !had_begun => {
            pace.retry_after.max(pace.fetch_again_after)
        }
        _ => pace.retry_after,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::model::{Event, Failure, ImageWish, PackageMode, PackageWish, Target};

    const PACE: Pace = Pace {
        refresh_every: TimeDelta::hours(4),
        fetch_again_after: TimeDelta::hours(1),
        retry_after: TimeDelta::minutes(1),
        poll_at_least_every: Duration::from_hours(1),
    };

    fn image() -> Wish {
        Wish::Image(ImageWish::sample("1.1"))
    }

    /// When a wish is tried again whose attempt ended so.
    fn after(wish: Wish, news: &[News]) -> TimeDelta {
        let target = Target {
            digest: "os".into(),
            wish,
        };
        let mut entry = Entry::new(Uuid::from_u128(1), target);
        entry.events = (1..)
            .zip(news)
            .map(|(sequence, news)| Event {
                sequence,
                at: DateTime::UNIX_EPOCH,
                boot_id: "boot-1".into(),
                news: news.clone(),
                account: None,
            })
            .collect();
        again_after(&PACE, &entry)
    }

    #[test]
    fn what_took_long_to_fetch_in_vain_is_not_asked_for_again_at_once() {
        let failed = |kind| News::failed(Failure::new(kind, "no"), None);
        for kind in [FailureKind::Download, FailureKind::Storage] {
            assert_eq!(after(image(), &[failed(kind)]), PACE.fetch_again_after);
            let begun = [News::Began, failed(kind)];
            assert_eq!(after(image(), &begun), PACE.retry_after);
            let packages = Wish::Packages(PackageWish::new(PackageMode::Latest));
            assert_eq!(after(packages, &[failed(kind)]), PACE.retry_after);
        }
        let unsigned = failed(FailureKind::Signature);
        assert_eq!(after(image(), &[unsigned]), PACE.retry_after);
        assert_eq!(after(image(), &[News::NothingToDo]), PACE.retry_after);
    }
}
