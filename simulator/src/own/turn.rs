//! One turn of a node: go on with what was begun, tell, ask, act.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::target::Wish;
use evenkeel_proto::agent::{
    Attempt, BeginRequest, BeginResponse, Decision, FailureKind, PollRequest, PollResponse,
    ReportRequest, ReportResponse, Target,
};
use tonic::Status;

use super::OwnNode;
use super::journal::{Entry, Given, Phase, Trial};
use super::wire;
use crate::clock::Time;
use crate::line::{count, is_lost, pushback};
use crate::truth::{Leave, Span};

/// The same wish is not seen through again before this, so that a server that forgot does not make the node run in
/// circles.
const RETRY: TimeDelta = TimeDelta::seconds(2);

/// Servers that have too much to do for so long are as good as out of reach.
const MOST_BUSY: TimeDelta = TimeDelta::minutes(2);

impl OwnNode {
    /// Takes a turn. Returns how long it wants to wait before the next one.
    pub async fn turn(&mut self) -> Duration {
        if !self.is_finishing {
            if self.chance.hits(self.habits.crash) {
                return self.crash();
            }
            if self.chance.hits(self.habits.news) {
                wire::turn_over(&mut self.facts, &mut self.chance);
            }
            let now = self.clock.moment().truth;
            if self.cut_off_until.is_none() && self.chance.hits(self.habits.cut_off) {
                let is_long = self.chance.hits(self.habits.long_cut_off);
                let length = self.chance.length(if is_long {
                    self.habits.long_cut_off_for
                } else {
                    self.habits.cut_off_for
                });
                self.cut_off_until = Some(now + TimeDelta::from_std(length).unwrap_or_default());
            }
            self.cut_off_until = self.cut_off_until.filter(|until| now < *until);
        }
        self.go_on();
        // An error was counted where it happened; the next turn is the retry.
        if let Err(status) = self.speak().await
            && self.is_left_alone(&status)
        {
            self.begin_unasked();
        }
        self.chance.length(self.habits.turn)
    }

    /// Whether an error means that no server can be reached. A server that has too much to do is given its time.
    fn is_left_alone(&mut self, status: &Status) -> bool {
        let Some(again) = pushback(status) else {
            return is_lost(status);
        };
        let now = self.clock.moment().truth;
        let since = self.memory.busy.map_or(now, |(since, _)| since);
        let until = now + TimeDelta::from_std(again).unwrap_or_default();
        let is_patient = now - since < MOST_BUSY;
        // Leave from before is not lost for it.
        let until = if is_patient {
            until.min(since + MOST_BUSY)
        } else {
            until
        };
        self.memory.busy = Some((since, until));
        !is_patient
    }

    /// Whether servers that had too much to do want to be left in peace.
    fn is_to_wait(&self, now: Time) -> bool {
        self.memory.busy.is_some_and(|(_, until)| now < until)
    }

    /// The process dies, and sometimes the machine with all that it knew.
    fn crash(&mut self) -> Duration {
        self.memory = super::Memory::default();
        if self.chance.hits(500) {
            let boot = self.chance.uuid().to_string();
            self.facts.boot_id.clone_from(&boot);
            if let Some(entry) = &mut self.journal.entry {
                entry.boot_id = boot;
            }
        }
        if self.chance.hits(self.habits.forget) {
            self.journal.given = None;
            self.journal.ended = None;
            if let Some(entry) = self.journal.entry.take() {
                self.done.push(entry.into_truth(true));
            }
        }
        self.chance.length(self.habits.down)
    }

    /// What goes on without any server.
    fn go_on(&mut self) {
        let now = self.clock.moment();
        let Some(entry) = &mut self.journal.entry else {
            return;
        };
        entry.catch_up(now);
        if let Phase::Fetching { until, works } = entry.phase
            && until <= now.truth
        {
            entry.phase = Phase::Staged;
            let news = if works {
                wire::downloaded()
            } else {
                wire::failed(FailureKind::Download, entry.image.as_ref())
            };
            entry.push(news, now);
        }
        if matches!(entry.phase, Phase::Changing { .. }) && entry.boot_id != self.facts.boot_id {
            self.facts.boot_id.clone_from(&entry.boot_id);
        }
        entry.settle(&mut self.facts);
    }

    /// Tells what is not told, and asks what to do when nothing is being changed.
    async fn speak(&mut self) -> Result<(), Status> {
        if self.cut_off_until.is_some() {
            return Err(Status::unavailable("no network"));
        }
        if self.is_to_wait(self.clock.moment().truth) {
            return Ok(());
        }
        self.flush().await?;
        let is_over = |entry: &Entry| matches!(entry.phase, Phase::Over);
        if let Some(entry) = self.journal.entry.take_if(|entry| is_over(entry)) {
            self.journal.ended = Some((entry.digest.clone(), self.clock.moment().truth));
            self.done.push(entry.into_truth(false));
        }
        let busy = self.journal.entry.as_ref();
        if busy.is_some_and(|entry| matches!(entry.phase, Phase::Changing { .. })) {
            return Ok(());
        }
        let asked = self.clock.moment().truth;
        let answer = self.poll().await?;
        let given = wire::time(answer.now);
        if let Some(decision) = answer.decision {
            self.keep_grant(&decision, given.map(|given| (asked, given)));
            let rests = matches!(
                decision.act,
                None | Some(Act::Idle(_) | Act::Continue(_) | Act::Fetch(_))
            );
            self.act(decision).await?;
            self.memory.rests = rests;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Status> {
        let Some(entry) = &mut self.journal.entry else {
            return Ok(());
        };
        let events = entry.unsent();
        if events.is_empty() {
            return Ok(());
        }
        let request = ReportRequest {
            attempt_id: entry.id.to_string(),
            target_digest: entry.digest.clone(),
            events,
        };
        let send = |channel, request| async move {
            AgentServiceClient::new(channel).report(request).await
        };
        let answer: ReportResponse = self.line.call(&mut self.chance, request, send).await?;
        count(&self.line.weather().tally.others);
        // More than was ever said cannot be stored.
        let stored = answer.acknowledged.min(entry.last_sequence());
        entry.acknowledged = entry.acknowledged.max(stored);
        if stored < entry.last_sequence() {
            return Err(Status::aborted("not all of it was taken"));
        }
        Ok(())
    }

    /// How long the poll may be held that is made now: an attempt that goes on by itself is looked after.
    fn hold(&mut self, is_news: bool) -> Duration {
        let rests = std::mem::take(&mut self.memory.rests);
        let entry = self.journal.entry.as_ref();
        let is_quiet = entry.is_none_or(|entry| matches!(entry.phase, Phase::Staged));
        if !self.habits.holds || self.is_finishing || is_news || !rests || !is_quiet {
            return Duration::ZERO;
        }
        let hold = self.chance.length(self.habits.hold);
        hold.min(self.memory.offered)
    }

    async fn poll(&mut self) -> Result<PollResponse, Status> {
        let digest = wire::digest(&self.facts);
        let is_news = self
            .memory
            .told
            .as_ref()
            .is_some_and(|told| *told != digest);
        let whole = is_news || self.memory.wants_facts || self.memory.wants_packages;
        let attempt = self.journal.entry.as_ref().map(|entry| Attempt {
            id: entry.id.to_string(),
            last_sequence: entry.last_sequence(),
        });
        let hold = self.hold(whole);
        let packages = if self.memory.wants_packages {
            wire::packages_of(&self.facts)
        } else {
            String::new()
        };
        let request = PollRequest {
            facts_digest: digest.clone(),
            facts: whole.then(|| self.facts.clone()),
            attempt,
            packages,
            waiting: String::new(),
            decision_tag: self.memory.tag,
            may_hold_millis: u32::try_from(hold.as_millis()).unwrap_or(u32::MAX),
        };
        let send =
            |channel, request| async move { AgentServiceClient::new(channel).poll(request).await };
        let answer: Result<PollResponse, Status> =
            self.line.call(&mut self.chance, request, send).await;
        let answer = answer.map_err(|status| {
            if hold.is_zero() || pushback(&status).is_some() {
                return status;
            }
            // It shows only that this connection is gone.
            Status::aborted("the server let go of the poll that it held")
        })?;
        count(&self.line.weather().tally.polls);
        self.memory.busy = None;
        self.memory.tag = answer.decision_tag;
        self.memory.offered = Duration::from_millis(answer.hold_millis.into());
        self.memory.wants_facts = answer.want_facts;
        self.memory.wants_packages = answer.want_packages;
        if !answer.want_facts {
            self.memory.told = Some(digest);
        }
        if !answer.credential.is_empty() {
            self.line.renew(&answer.credential);
        }
        Ok(answer)
    }

    /// Every answer replaces what was given before.
    fn keep_grant(&mut self, decision: &Decision, between: Option<Span>) {
        self.journal.given = decision
            .grant
            .as_ref()
            .zip(between)
            .and_then(|(grant, between)| {
                let windows = grant.windows.iter();
                let span = |start, end| Some((wire::time(start)?, wire::time(end)?));
                Some(Given {
                    digest: grant.target_digest.clone(),
                    windows: windows
                        .filter_map(|window| span(window.start, window.end))
                        .collect(),
                    expires: wire::time(grant.expires)?,
                    between,
                })
            });
    }

    async fn act(&mut self, decision: Decision) -> Result<(), Status> {
        let act = decision
            .act
            .unwrap_or(Act::Idle(evenkeel_proto::agent::Idle {}));
        match act {
            // What is fetched goes on by itself.
            Act::Idle(_) | Act::Continue(_) => {}
            Act::Cancel(cancel) => self.cancel(&cancel.cause),
            Act::Fetch(fetch) => self.prepare(fetch.target, false),
            Act::Apply(apply) => {
                self.prepare(apply.target, true);
                return self.begin().await;
            }
        }
        Ok(())
    }

    fn cancel(&mut self, cause: &str) {
        let now = self.clock.moment();
        if let Some(entry) = &mut self.journal.entry {
            entry.push(wire::cancelled(cause), now);
        }
    }

    /// Opens an attempt at a target, or gives up the one at another. One that has not begun is told anew whether what
    /// failed may be tried again.
    fn prepare(&mut self, target: Option<Target>, may_apply: bool) {
        let Some(target) = target else { return };
        let now = self.clock.moment();
        let image = self.trial_of(target.wish);
        if let Some(entry) = &mut self.journal.entry {
            if entry.digest != target.digest {
                entry.push(wire::cancelled("withdrawn"), now);
            } else if let (Some(known), Some(told)) = (&mut entry.image, &image) {
                known.again = told.again;
            }
            return;
        }
        let settled = self.journal.ended.as_ref();
        let settled =
            settled.is_some_and(|(digest, at)| *digest == target.digest && now.truth < *at + RETRY);
        if settled || self.is_finishing {
            return;
        }
        let is_nothing = image
            .as_ref()
            .map_or_else(|| self.chance.hits(self.habits.nothing), Trial::is_there);
        if is_nothing && !may_apply {
            return;
        }
        let id = self.chance.uuid();
        let mut entry = Entry::new(id, &target.digest, &self.facts.boot_id);
        let refused = image.as_ref().filter(|trial| trial.is_refused(&self.facts));
        if is_nothing {
            entry.push(wire::nothing_to_do(), now);
        } else if refused.is_some() {
            entry.push(wire::failed(FailureKind::Verify, refused), now);
        } else {
            let length = self.chance.length(self.habits.fetching);
            entry.push(wire::downloading(image.as_ref()), now);
            entry.phase = Phase::Fetching {
                until: now.truth + TimeDelta::from_std(length).unwrap_or_default(),
                works: !self.chance.hits(self.habits.fail / 3),
            };
        }
        entry.image = image;
        entry.settle(&mut self.facts);
        self.journal.entry = Some(entry);
    }

    /// What a wish would boot, if it is one for an image.
    fn trial_of(&self, wish: Option<Wish>) -> Option<Trial> {
        let running = self.facts.booted_image.as_ref()?;
        match wish? {
            Wish::Image(image) => Some(Trial::of(image, &running.image_id)),
            Wish::Packages(_) | Wish::Kernel(_) => None,
        }
    }

    /// Asks for leave and begins.
    async fn begin(&mut self) -> Result<(), Status> {
        let Some(entry) = &self.journal.entry else {
            return Ok(());
        };
        if !matches!(entry.phase, Phase::Staged) || !entry.unsent().is_empty() {
            return Ok(());
        }
        let request = BeginRequest {
            attempt_id: entry.id.to_string(),
            target_digest: entry.digest.clone(),
            last_sequence: entry.last_sequence(),
        };
        let asked = self.clock.moment().truth;
        let send =
            |channel, request| async move { AgentServiceClient::new(channel).begin(request).await };
        let answer: BeginResponse = self.line.call(&mut self.chance, request, send).await?;
        count(&self.line.weather().tally.others);
        let granted = match answer.answer {
            Some(Answer::Granted(granted)) => granted,
            // A word against it counts for more than leave from before.
            Some(Answer::Refused(_)) | None => {
                self.journal.given = None;
                return Ok(());
            }
        };
        let times = wire::time(granted.before).zip(wire::time(answer.now));
        let Some((before, granted)) = times else {
            return Ok(());
        };
        // The length of the leave is counted from when it was asked for, so that no clock of the node matters.
        let now = self.clock.moment();
        if now.truth - asked >= before - granted || self.chance.hits(self.habits.crash) {
            return Ok(());
        }
        let leave = Leave::Asked {
            asked,
            granted,
            before,
        };
        self.change(leave);
        Ok(())
    }

    /// Begins without asking, if that was allowed before and nobody can be asked.
    fn begin_unasked(&mut self) {
        let now = self.clock.moment();
        let (Some(entry), Some(given)) = (&self.journal.entry, &self.journal.given) else {
            return;
        };
        let is_staged = matches!(entry.phase, Phase::Staged);
        if is_staged && !self.is_finishing && given.allows(&entry.digest, now.node) {
            let leave = Leave::Ahead {
                asked: given.between.0,
                given: given.between.1,
                windows: given.windows.clone(),
                expires: given.expires,
            };
            self.journal.given = None;
            self.change(leave);
        }
    }

    fn change(&mut self, leave: Leave) {
        let now = self.clock.moment();
        if let Some(entry) = &mut self.journal.entry {
            let (step, fail) = (self.habits.step, self.habits.fail);
            let steps = wire::steps(&mut self.chance, step, fail, entry.image.as_ref());
            entry.begin(leave, steps, now);
        }
    }
}
