//! One turn of a node: advance the attempt, report, poll, act.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::target::Spec;
use evenkeel_proto::agent::{
    Attempt, BeginRequest, BeginResponse, Decision, FailureKind, PollRequest, PollResponse,
    ReportResponse, Target,
};
use tonic::Status;

use super::OwnNode;
use super::journal::{ImageTrial, JournalEntry, OfflineGrant, Phase};
use super::wire;
use crate::clock::Time;
use crate::connection::{increment, is_network_error, retry_pushback};
use crate::ground_truth::{Span, StartPermit};

/// The minimum interval between two attempts at the same target, so that a server that forgot an
/// attempt does not make the node run in circles.
const MIN_RETRY_INTERVAL: TimeDelta = TimeDelta::seconds(2);

/// Servers that are overloaded for this time count as unreachable.
const MAX_OVERLOAD_WAIT: TimeDelta = TimeDelta::minutes(2);

impl OwnNode {
    /// Takes a turn. Returns the delay until the next one.
    pub async fn turn(&mut self) -> Duration {
        if !self.is_finishing {
            if self.rng.happens(self.habits.crash_per_mille) {
                return self.crash();
            }
            if self.rng.happens(self.habits.fact_change_per_mille) {
                wire::change_facts(&mut self.facts, &mut self.rng);
            }
            let now = self.clock.now().true_time;
            if self.outage_until.is_none() && self.rng.happens(self.habits.outage_per_mille) {
                let is_long = self.rng.happens(self.habits.long_outage_per_mille);
                let length = self.rng.duration(if is_long {
                    self.habits.long_outage_time
                } else {
                    self.habits.outage_time
                });
                self.outage_until = Some(now + TimeDelta::from_std(length).unwrap_or_default());
            }
            self.outage_until = self.outage_until.filter(|until| now < *until);
        }
        self.advance();
        // Errors are counted where they happen; the next turn is the retry.
        if let Err(status) = self.exchange().await
            && self.are_servers_unreachable(&status)
        {
            self.begin_offline();
        }
        self.rng.duration(self.habits.turn_interval)
    }

    /// Whether an error means that no server can be reached. An overloaded server gets some time.
    fn are_servers_unreachable(&mut self, status: &Status) -> bool {
        let Some(again) = retry_pushback(status) else {
            return is_network_error(status);
        };
        let now = self.clock.now().true_time;
        let since = self.memory.overloaded.map_or(now, |(since, _)| since);
        let until = now + TimeDelta::from_std(again).unwrap_or_default();
        let may_wait = now - since < MAX_OVERLOAD_WAIT;
        // The offline grant is not lost because of this.
        let until = if may_wait { until.min(since + MAX_OVERLOAD_WAIT) } else { until };
        self.memory.overloaded = Some((since, until));
        !may_wait
    }

    /// Whether the node must wait because the servers are overloaded.
    fn must_wait(&self, now: Time) -> bool {
        self.memory.overloaded.is_some_and(|(_, until)| now < until)
    }

    /// The process crashes, sometimes together with the machine and all its memory.
    fn crash(&mut self) -> Duration {
        self.memory = super::Memory::default();
        if self.rng.happens(500) {
            let boot = self.rng.uuid().to_string();
            self.facts.boot_id.clone_from(&boot);
            if let Some(entry) = &mut self.journal.entry {
                entry.boot_id = boot;
            }
        }
        if self.rng.happens(self.habits.journal_loss_per_mille) {
            self.journal.offline_grant = None;
            self.journal.last_ended = None;
            if let Some(entry) = self.journal.entry.take() {
                self.done.push(entry.into_ground_truth(true));
            }
        }
        self.rng.duration(self.habits.crash_downtime)
    }

    /// Advances what needs no server.
    fn advance(&mut self) {
        let now = self.clock.now();
        let Some(entry) = &mut self.journal.entry else {
            return;
        };
        entry.catch_up(now);
        if let Phase::Downloading { until, succeeds } = entry.phase
            && until <= now.true_time
        {
            entry.phase = Phase::Staged;
            let event = if succeeds {
                wire::downloaded()
            } else {
                wire::failed(FailureKind::Download, entry.image.as_ref())
            };
            entry.push(event, now);
        }
        if matches!(entry.phase, Phase::Changing { .. }) && entry.boot_id != self.facts.boot_id {
            self.facts.boot_id.clone_from(&entry.boot_id);
        }
        entry.update_image_facts(&mut self.facts);
    }

    /// Reports the unsent events, and polls unless an update is running.
    async fn exchange(&mut self) -> Result<(), Status> {
        if self.outage_until.is_some() {
            return Err(Status::unavailable("no network"));
        }
        if self.must_wait(self.clock.now().true_time) {
            return Ok(());
        }
        self.send_events().await?;
        let has_ended = |entry: &JournalEntry| matches!(entry.phase, Phase::Ended);
        if let Some(entry) = self.journal.entry.take_if(|entry| has_ended(entry)) {
            self.journal.last_ended = Some((entry.digest.clone(), self.clock.now().true_time));
            self.done.push(entry.into_ground_truth(false));
        }
        let busy = self.journal.entry.as_ref();
        if busy.is_some_and(|entry| matches!(entry.phase, Phase::Changing { .. })) {
            return Ok(());
        }
        let requested_at = self.clock.now().true_time;
        let answer = self.poll().await?;
        let answered_at = wire::parse_time(answer.now);
        if let Some(decision) = answer.decision {
            self.store_grant(&decision, answered_at.map(|answered_at| (requested_at, answered_at)));
            let is_resting = matches!(
                decision.act,
                None | Some(Act::Idle(_) | Act::Continue(_) | Act::Fetch(_))
            );
            self.execute_decision(decision).await?;
            self.memory.is_resting = is_resting;
        }
        Ok(())
    }

    async fn send_events(&mut self) -> Result<(), Status> {
        let Some(entry) = &mut self.journal.entry else {
            return Ok(());
        };
        let request = entry.build_report();
        if request.events.is_empty() {
            return Ok(());
        }
        let send = |channel, request| async move {
            AgentServiceClient::new(channel).report(request).await
        };
        let connection = self.connection.for_reports();
        let answer: ReportResponse = connection.call(&mut self.rng, request, send).await?;
        increment(&self.connection.network().counters.other_calls);
        // The server cannot have stored more than was sent.
        let stored = answer.acknowledged.min(entry.last_sequence());
        entry.acknowledged = entry.acknowledged.max(stored);
        if stored < entry.last_sequence() {
            return Err(Status::aborted("not all events were stored"));
        }
        Ok(())
    }

    /// The duration of a long poll that is made now. It is zero while an attempt makes progress.
    fn long_poll_duration(&mut self, sends_facts: bool) -> Duration {
        let is_resting = std::mem::take(&mut self.memory.is_resting);
        let entry = self.journal.entry.as_ref();
        let is_waiting = entry.is_none_or(|entry| matches!(entry.phase, Phase::Staged));
        if !self.habits.uses_long_polls
            || self.is_finishing
            || sends_facts
            || !is_resting
            || !is_waiting
        {
            return Duration::ZERO;
        }
        let allowed = Duration::from_millis(self.memory.session.max_long_poll_millis.into());
        self.rng.duration(self.habits.long_poll_time).min(allowed)
    }

    async fn poll(&mut self) -> Result<PollResponse, Status> {
        let digest = wire::digest(&self.facts);
        let has_changed_facts =
            self.memory.reported_facts.as_ref().is_some_and(|reported| *reported != digest);
        let session = &self.memory.session;
        let (sends_packages, facts_required) = (session.packages_required, session.facts_required);
        let sends_facts = has_changed_facts || facts_required || sends_packages;
        let attempt = self.journal.entry.as_ref().map(|entry| Attempt {
            id: entry.id.to_string(),
            last_sequence: entry.last_sequence(),
        });
        let long_poll = self.long_poll_duration(sends_facts);
        let millis = u32::try_from(long_poll.as_millis()).unwrap_or(u32::MAX);
        let packages = sends_packages.then(|| wire::package_list(&self.facts));
        let request = PollRequest {
            facts: sends_facts.then(|| self.facts.clone()),
            attempt,
            packages: packages.unwrap_or_default(),
            ..self.memory.session.build_request(&digest, millis)
        };
        let send =
            |channel, request| async move { AgentServiceClient::new(channel).poll(request).await };
        let answer: Result<PollResponse, Status> =
            self.connection.call(&mut self.rng, request, send).await;
        let answer = answer.map_err(|status| {
            if long_poll.is_zero() || retry_pushback(&status).is_some() {
                return status;
            }
            // It shows only that this connection is gone.
            Status::aborted("the server ended the long poll")
        })?;
        increment(&self.connection.network().counters.polls);
        self.memory.overloaded = None;
        self.memory.session.accept(&answer);
        if !answer.facts_required {
            self.memory.reported_facts = Some(digest);
        }
        if !answer.credential.is_empty() {
            self.connection.set_credential(&answer.credential);
        }
        Ok(answer)
    }

    /// Stores the offline grant of an answer, which replaces the previous one.
    fn store_grant(&mut self, decision: &Decision, between: Option<Span>) {
        self.journal.offline_grant =
            decision.offline_grant.as_ref().zip(between).and_then(|(grant, between)| {
                let windows = grant.windows.iter();
                let span = |start, end| Some((wire::parse_time(start)?, wire::parse_time(end)?));
                Some(OfflineGrant {
                    digest: grant.target_digest.clone(),
                    windows: windows.filter_map(|window| span(window.start, window.end)).collect(),
                    expires: wire::parse_time(grant.expires_at)?,
                    between,
                })
            });
    }

    async fn execute_decision(&mut self, decision: Decision) -> Result<(), Status> {
        let act = decision.act.unwrap_or(Act::Idle(evenkeel_proto::agent::Idle {}));
        match act {
            // A download continues without the server.
            Act::Idle(_) | Act::Continue(_) => {}
            Act::Cancel(cancel) => self.cancel(&cancel.cause),
            Act::Fetch(fetch) => self.prepare_attempt(fetch.target, false),
            Act::Apply(apply) => {
                self.prepare_attempt(apply.target, true);
                return self.request_start().await;
            }
        }
        Ok(())
    }

    fn cancel(&mut self, cause: &str) {
        let now = self.clock.now();
        if let Some(entry) = &mut self.journal.entry {
            entry.push(wire::cancelled(cause), now);
        }
    }

    /// Opens an attempt at a target, or gives up the attempt at another target. For an attempt that
    /// has not begun, updates whether a failed image may be tried again.
    fn prepare_attempt(&mut self, target: Option<Target>, may_apply: bool) {
        let Some(target) = target else { return };
        let now = self.clock.now();
        let image = self.trial_for(target.spec);
        if let Some(entry) = &mut self.journal.entry {
            if entry.digest != target.digest {
                entry.push(wire::cancelled("withdrawn"), now);
            } else if let (Some(current), Some(requested)) = (&mut entry.image, &image) {
                current.again = requested.again;
            }
            return;
        }
        let settled = self.journal.last_ended.as_ref();
        let settled = settled.is_some_and(|(digest, at)| {
            *digest == target.digest && now.true_time < *at + MIN_RETRY_INTERVAL
        });
        if settled || self.is_finishing {
            return;
        }
        let is_nothing = image
            .as_ref()
            .map_or_else(|| self.rng.happens(self.habits.no_op_per_mille), ImageTrial::is_running);
        if is_nothing && !may_apply {
            return;
        }
        let id = self.rng.uuid();
        let mut entry = JournalEntry::new(id, &target.digest, &self.facts.boot_id);
        let refused = image.as_ref().filter(|trial| trial.is_quarantined(&self.facts));
        if is_nothing {
            entry.push(wire::nothing_to_do(), now);
        } else if refused.is_some() {
            entry.push(wire::failed(FailureKind::Verify, refused), now);
        } else {
            let length = self.rng.duration(self.habits.download_time);
            entry.push(wire::downloading(image.as_ref()), now);
            entry.phase = Phase::Downloading {
                until: now.true_time + TimeDelta::from_std(length).unwrap_or_default(),
                succeeds: !self.rng.happens(self.habits.failure_per_mille / 3),
            };
        }
        entry.image = image;
        entry.update_image_facts(&mut self.facts);
        self.journal.entry = Some(entry);
    }

    /// The image trial of a target; `None` for packages.
    fn trial_for(&self, spec: Option<Spec>) -> Option<ImageTrial> {
        let running = self.facts.booted_image.as_ref()?;
        match spec? {
            Spec::Image(image) => Some(ImageTrial::new(image, &running.image_id)),
            Spec::Packages(_) | Spec::Kernel(_) => None,
        }
    }

    /// Requests permission to begin, and begins.
    async fn request_start(&mut self) -> Result<(), Status> {
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
        let requested_at = self.clock.now().true_time;
        let send =
            |channel, request| async move { AgentServiceClient::new(channel).begin(request).await };
        let answer: BeginResponse = self.connection.call(&mut self.rng, request, send).await?;
        increment(&self.connection.network().counters.other_calls);
        let granted = match answer.answer {
            Some(Answer::Granted(granted)) => granted,
            // A refusal takes precedence over the offline grant.
            Some(Answer::Refused(_)) | None => {
                self.journal.offline_grant = None;
                return Ok(());
            }
        };
        let times = wire::parse_time(granted.start_deadline).zip(wire::parse_time(answer.now));
        let Some((start_before, granted_at)) = times else {
            return Ok(());
        };
        // The duration of the permit counts from the request, so that no clock of the node matters.
        let now = self.clock.now();
        if now.true_time - requested_at >= start_before - granted_at
            || self.rng.happens(self.habits.crash_per_mille)
        {
            return Ok(());
        }
        let permit = StartPermit::Online { requested_at, granted_at, start_before };
        self.start_change(permit);
        Ok(())
    }

    /// Begins without a request, if an offline grant allows it.
    fn begin_offline(&mut self) {
        let now = self.clock.now();
        let (Some(entry), Some(grant)) = (&self.journal.entry, &self.journal.offline_grant) else {
            return;
        };
        let is_staged = matches!(entry.phase, Phase::Staged);
        if is_staged && !self.is_finishing && grant.allows(&entry.digest, now.node_time) {
            let permit = StartPermit::Offline {
                requested_at: grant.between.0,
                granted_at: grant.between.1,
                windows: grant.windows.clone(),
                expires: grant.expires,
            };
            self.journal.offline_grant = None;
            self.start_change(permit);
        }
    }

    fn start_change(&mut self, permit: StartPermit) {
        let now = self.clock.now();
        if let Some(entry) = &mut self.journal.entry {
            let (step, fail) = (self.habits.step_time, self.habits.failure_per_mille);
            let steps = wire::draw_steps(&mut self.rng, step, fail, entry.image.as_ref());
            entry.begin(permit, steps, now);
        }
    }
}
