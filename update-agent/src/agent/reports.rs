//! What the agent tells the server, and what it looks up to tell it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::chain;

use super::hold::{Heard, Rest, Way};
use super::{Agent, AgentError, Ended, unless};
use crate::facts::Facts;
use crate::history::Record;
use crate::journal::{Entry, JournalError, Phase};
use crate::link::{Answer, Question, facts_digest};
use crate::modules::Try;
use crate::node::save_credential;
use crate::status::End;

/// A server that acknowledges less than it is told, so often in a row, is given a rest.
const MOST_REWINDS: u32 = 3;
/// A server asks for the facts, then for the list of packages. One that goes on asking is not listened to.
const MOST_ANSWERS: u32 = 2;

/// Why what was begun is not gone on with.
const OTHERS: &str = "another program is at work on what the update has begun to change";

impl Agent {
    /// Goes on with an attempt from the journal, as far as that needs no word from the server.
    pub(super) async fn go_on(&mut self, open: Entry) -> Result<Option<Entry>, AgentError> {
        let entry = if open.has_begun() {
            tracing::warn!(attempt = %open.attempt, phase = open.phase.name(), "going on with what was begun");
            let entry = self.carry_out(open, Try::Again).await?;
            // Else nobody would hear why it does not end.
            let why = match entry.phase {
                Phase::Over | Phase::Rebooting => "",
                _ => OTHERS,
            };
            self.waits(why.to_owned());
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
        self.flush(&mut entry).await?;
        if entry.phase != Phase::Over {
            return Ok(Some(entry));
        }
        self.engine.close()?;
        Ok(None)
    }

    pub(super) fn remember(&mut self, entry: &Entry) {
        let Some(end) = End::of(entry) else { return };
        let failed = entry.events.last().and_then(|event| event.news.failure());
        let ended = Ended {
            at: end.at,
            trouble: failed.map(|failure| failure.reason.clone()),
        };
        self.memory.ended.insert(end.target.clone(), ended);
        self.status.change(|status| status.last_end = Some(end));
        if let Err(error) = Record::of(entry).map_or(Ok(()), |record| self.history.add(record)) {
            tracing::warn!(error = %chain(&error), "the end of the attempt is missing in the history");
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
    async fn look(&mut self) -> Result<Facts, AgentError> {
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
            Some(rest) => match self.ask_held(question, rest).await? {
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
