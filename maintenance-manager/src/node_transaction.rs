//! Applies the events of a node to its runs, in one transaction. Both protocols use it.

use std::iter;
use std::sync::Arc;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::{AgentProtocol, Target, resolve_target};
use evenkeel_domain::eim::DeliveryState;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RunId};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::run::{AttemptId, Origin, RunEvent, RunEventRecord, UpdateRun};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::cut;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::spans::{self, Span};
use evenkeel_store::decisions::{self, DecisionInput, ReadMode};
use evenkeel_store::nodes::{self, MachineKey, NodeState};
use evenkeel_store::runs::{self, EventBatch, RunOpening, Subject};
use evenkeel_store::{Store, StoreError, Tx, daily_usage, hosts, os_profiles, policies};

use crate::admission::concurrency::{CallKind, Load, Overloaded};
use crate::admission::daily_limits::{DailyLimits, LimitedAmount};
use crate::admission::semaphore::ProjectPermit;
use crate::contacts::Contacts;
use crate::derived_state;
use crate::durations::to_time_delta;
use crate::poll::cache::AnswerCache;
use crate::settings::Settings;
use crate::{run_spans, status};

/// Runs the writes of nodes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeWriter {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub settings: Arc<Settings>,
    pub load: Arc<Load>,
    pub contacts: Contacts,
    pub answer_cache: AnswerCache,
    pub daily_limits: Arc<DailyLimits>,
}

/// A transaction that has locked one node, with the input of decisions about it.
pub struct NodeTransaction<'a> {
    writer: &'a NodeWriter,
    pub tx: Tx,
    pub host: Host,
    pub node: NodeState,
    pub input: DecisionInput,
    pub now: Time,
    before: Box<NodeState>,
    /// Spans of runs that the transaction has ended. They are sent after the commit.
    spans: Vec<Span>,
    /// The permit to write.
    _permit: ProjectPermit,
}

/// The permit of a call to write.
pub type WritePermit<'a> = (&'a NodeWriter, ProjectPermit);

/// The start of an attempt.
pub struct NewAttempt {
    /// The id that the agent gave it.
    pub attempt: Option<AttemptId>,
    /// The target of the attempt.
    pub origin: Origin,
    /// The run whose start permit it continues, and the scope in which the permit must have been
    /// granted.
    pub follows: Option<(RunId, Scope)>,
}

impl<'a> NodeTransaction<'a> {
    /// Locks the node of a machine. Needs a permit ([`NodeWriter::with_write_permit`]).
    /// With `lock_for_decision`, the desired updates cannot change until the end of the
    /// transaction, which is required for granting a start.
    pub async fn open(
        (writer, permit): WritePermit<'a>,
        (tenant, machine): (TenantId, MachineKey),
        lock_for_decision: bool,
    ) -> Result<Self, StoreError> {
        let tx = writer.store.tenant(tenant).await?;
        if lock_for_decision {
            tx.lock_for_decision().await?;
        }
        let (host, node) = nodes::lock_with_host(&tx, machine).await?;
        // The time after the wait for the lock, by the clock of the database: all replicas see a
        // slot or an order end at once, and what is stored decides later about deletion.
        let now = tx.database_time();
        let limits = writer.settings.planning_limits();
        let reading = ReadMode::Preview(now);
        let input = decisions::load_decision_input(&tx, &host, &node, &limits, reading).await?;
        Ok(Self {
            writer,
            tx,
            host,
            before: Box::new(node.clone()),
            node,
            input,
            now,
            spans: Vec::new(),
            _permit: permit,
        })
    }

    /// Charges an amount to the daily limits of the node and its project.
    pub async fn charge(&self, amount: LimitedAmount, count: u64) -> Result<(), tonic::Status> {
        let node = (self.tx.tenant(), self.host.id);
        self.writer.daily_limits.charge(node, amount, count)?;
        self.write_charge(amount, count).await
    }

    /// Writes an amount that the call has charged in memory to the bucket of the node, which all
    /// processes share.
    pub async fn write_charge(
        &self,
        amount: LimitedAmount,
        count: u64,
    ) -> Result<(), tonic::Status> {
        let (node, limits) = ((self.tx.tenant(), self.host.id), &self.writer.daily_limits);
        let Some(charge) = limits.node_charge(node, amount, count) else {
            return Ok(());
        };
        let charged =
            daily_usage::charge_node(&self.tx, self.host.id, amount.name(), charge.cost).await;
        if let Some(wait) = charged.map_err(status::from_store_error)? {
            return Err(limits.refuse_charge(node, &charge, wait));
        }
        limits.note_charged(node, &charge);
        Ok(())
    }

    /// Refuses to record events while only a newer release of the server can read the open run:
    /// which events fit the run is unknown. The node repeats its report.
    pub fn check_run_readable(&self) -> Result<(), tonic::Status> {
        let Some(run) = self.input.unreadable_run else {
            return Ok(());
        };
        let why = format!("a newer release of the server wrote the run {run}; try again");
        Err(tonic::Status::unavailable(why))
    }

    pub async fn find_run(&self, attempt: AttemptId) -> Result<Option<UpdateRun>, StoreError> {
        runs::find_attempt(&self.tx, self.node.instance, attempt).await
    }

    /// Applies an event to a run.
    pub async fn apply_event(
        &mut self,
        subject: Subject,
        record: &RunEventRecord,
    ) -> Result<UpdateRun, StoreError> {
        self.apply_events(subject, record, &[]).await
    }

    /// Applies events to a run that arrived together: the first and the following ones.
    pub async fn apply_events(
        &mut self,
        subject: Subject,
        first: &RunEventRecord,
        rest: &[RunEventRecord],
    ) -> Result<UpdateRun, StoreError> {
        let timeouts = self.writer.settings.run_timeouts();
        let events = EventBatch { first, rest, timeouts: &timeouts, now: self.now };
        self.apply_batch(subject, &events).await
    }

    /// Ends the open run because it timed out at `limit`. The caller has checked the limit.
    pub async fn time_out(&mut self, limit: Time) -> Result<(), StoreError> {
        let Some(run) = self.input.run.clone() else {
            return Ok(());
        };
        let timeouts = self.writer.settings.run_timeouts().capped_at(&run, limit);
        let events = EventBatch {
            first: &RunEventRecord::from_event(RunEvent::TimedOut),
            rest: &[],
            timeouts: &timeouts,
            now: self.now,
        };
        self.apply_batch(Subject::Run(run.id), &events).await?;
        self.reload_input().await
    }

    async fn apply_batch(
        &mut self,
        subject: Subject,
        events: &EventBatch<'_>,
    ) -> Result<UpdateRun, StoreError> {
        // Late events of a replaced attempt do not change the state of the node.
        let open = self.input.run.as_ref();
        let is_late = open.is_some_and(|open| match &subject {
            Subject::Run(id) => open.id != *id,
            Subject::New(_) => true,
        });
        let Self { tx, node, now, .. } = self;
        let mut reflect = |run: &UpdateRun| {
            if !is_late {
                node.reflect(run, *now);
            }
        };
        let run = runs::advance_all(tx, subject, events, &mut reflect).await?;
        if !is_late {
            let (known, node) = (&mut self.input.facts, &self.node);
            known.last_run.clone_from(&node.last_end);
            known.bad_images.clone_from(&node.bad_images);
            self.input.run = Some(run.clone()).filter(|run| !run.state.is_final());
        }
        for record in iter::once(events.first).chain(events.rest) {
            let event = record.event.name();
            metrics::counter!("evenkeel_run_events_total", "event" => event).increment(1);
        }
        if spans::are_enabled() {
            let collected = run_spans::collect_spans(&self.tx, &self.host, &run).await?;
            self.spans.extend(collected);
        }
        Ok(run)
    }

    /// Applies the first events of an attempt: opens its run, and ends another run that is still
    /// open.
    pub async fn begin_attempt(
        &mut self,
        attempt: NewAttempt,
        first: &RunEventRecord,
        rest: &[RunEventRecord],
    ) -> Result<UpdateRun, StoreError> {
        if let Some(other) = self.input.run.take() {
            let superseded = RunEventRecord::from_event(RunEvent::Superseded);
            self.apply_event(Subject::Run(other.id), &superseded).await?;
        }
        self.open_run(attempt, first, rest).await
    }

    /// Records the only event of an attempt that has already ended. An open run is not affected.
    pub async fn record_finished_attempt(
        &mut self,
        attempt: NewAttempt,
        record: &RunEventRecord,
    ) -> Result<UpdateRun, StoreError> {
        self.open_run(attempt, record, &[]).await
    }

    async fn open_run(
        &mut self,
        attempt: NewAttempt,
        first: &RunEventRecord,
        rest: &[RunEventRecord],
    ) -> Result<UpdateRun, StoreError> {
        let running = &self.input.facts.running.name;
        let host: String = self.host.display_name().chars().take(13).collect();
        let assignment = self.assignment_of(&attempt.origin);
        let opening = RunOpening {
            instance: self.node.instance,
            name: format!("{host} update {}", self.now.format("%Y%m%d-%H%M%S")),
            description: cut(&format!("OS update for {running}"), 200),
            attempt: attempt.attempt,
            origin: attempt.origin,
            follows: attempt.follows,
            assignment,
        };
        self.apply_events(Subject::New(Box::new(opening)), first, rest).await
    }

    /// The assignment that applies to the node, if it assigns the policy of an attempt. A late
    /// report of another policy says nothing about it.
    fn assignment_of(&self, origin: &Origin) -> Option<Scope> {
        let assigned = self.input.applicable_policy()?;
        (origin.policy_id() == Some(assigned.policy.id)).then_some(assigned.scope)
    }

    /// The origin of an attempt that names the digest of its target.
    pub async fn origin_from_digest(&self, digest: &str) -> Result<Origin, StoreError> {
        let Some((id, os)) = Target::parse_digest(digest) else {
            return Ok(self.build_origin(None, None));
        };
        let policy = self.find_policy(id).await?;
        let present = resolve_target(&self.input.facts, &self.input.desired).ok();
        if let Some(present) = present.filter(|target| target.digest() == digest) {
            return Ok(self.build_origin(Some(present), policy));
        }
        let image = match os {
            Some(os) => self.find_image(os).await?,
            None => None,
        };
        Ok(self.origin_from_policy(policy, image))
    }

    /// The origin of an attempt that was begun by the last delivered schedule, or by the current
    /// target if nothing was delivered yet.
    pub async fn origin_from_delivered(
        &self,
        delivered: DeliveryState,
    ) -> Result<Origin, StoreError> {
        let present = resolve_target(&self.input.facts, &self.input.desired).ok();
        let delivered_policy = delivered.policy;
        let Some(id) = delivered_policy.or(present.as_ref().map(|target| target.policy)) else {
            return Ok(self.build_origin(None, None));
        };
        let policy = self.find_policy(id).await?;
        let target = match (&policy, delivered_policy) {
            (Some(policy), Some(_)) => delivered.target(policy),
            (_, Some(_)) => None,
            (_, None) => present,
        };
        Ok(self.build_origin(target, policy))
    }

    fn origin_from_policy(&self, policy: Option<UpdatePolicy>, image: Option<Image>) -> Origin {
        let target = policy.as_ref().and_then(|policy| match image {
            Some(image) => Some(Target::for_image(policy, image)),
            None if self.input.facts.os_kind == OsKind::Immutable => Target::for_kernel(policy),
            None => Some(Target::for_packages(policy)),
        });
        self.build_origin(target, policy)
    }

    fn build_origin(&self, target: Option<Target>, policy: Option<UpdatePolicy>) -> Origin {
        Origin { order: self.applicable_order(target.as_ref()), target, policy }
    }

    /// The order that lets the node begin now, if no schedule does. Only an order lets it try an
    /// image again that failed on it.
    fn applicable_order(&self, target: Option<&Target>) -> Option<Order> {
        let desired = &self.input.desired;
        let is_accepted = |order: &&Order| {
            order.kind == OrderKind::Now && order.at <= self.now && self.now < order.until
        };
        let order = desired.order.as_ref().filter(is_accepted)?;
        let failed = target.and_then(|target| self.input.facts.quarantine_reason(target));
        let is_scheduled = desired.windows.open(self.now).is_some() && failed.is_none();
        (!is_scheduled).then(|| order.clone())
    }

    async fn find_policy(&self, id: PolicyId) -> Result<Option<UpdatePolicy>, StoreError> {
        let mut assigned = self.input.desired.policies.iter();
        if let Some(assigned) = assigned.find(|assigned| assigned.policy.id == id) {
            return Ok(Some(assigned.policy.clone()));
        }
        none_if_missing(policies::find(&self.tx, id).await)
    }

    /// An image of the catalogue; `None` if it was removed.
    pub async fn find_image(&self, os: OsId) -> Result<Option<Image>, StoreError> {
        let loaded = self.input.desired.images.iter().find(|image| image.os == os);
        if let Some(image) = loaded {
            return Ok(Some(image.clone()));
        }
        let profile = none_if_missing(os_profiles::find(&self.tx, os).await)?;
        Ok(profile.as_ref().map(Image::from_profile))
    }

    /// Loads the decision input again after a run has ended.
    pub async fn reload_input(&mut self) -> Result<(), StoreError> {
        let limits = self.writer.settings.planning_limits();
        let reading = ReadMode::Preview(self.now);
        let read =
            decisions::load_decision_input(&self.tx, &self.host, &self.node, &limits, reading);
        let protocol = self.input.facts.protocol.clone();
        self.input = read.await?;
        self.input.facts.protocol = protocol;
        self.input.facts.provisioned = true;
        Ok(())
    }

    /// Counts the slots of the assignment, and locks them until the end of the transaction.
    pub async fn count_slots(&mut self) -> Result<(), StoreError> {
        let reading = ReadMode::Grant(self.now);
        self.input.refresh_usage(&self.tx, reading).await
    }

    /// Whether the node state has changed.
    pub fn is_changed(&self) -> bool {
        self.node != *self.before
    }

    /// Whether an open run has begun to change the node. A run that cannot be read may have begun.
    pub fn has_begun_change(&self) -> bool {
        let open = self.input.run.as_ref();
        self.input.unreadable_run.is_some() || open.is_some_and(|run| !run.state.is_untouched())
    }

    /// Sets the image that the node runs.
    pub fn set_running_image(&mut self, image: Image) {
        self.node.os = image.os;
        self.input.facts.running = image;
    }

    /// Stores changes and commits, without recording a contact of the node.
    pub async fn save(self) -> Result<(), StoreError> {
        if self.node != *self.before {
            nodes::save_changes(&self.tx, &self.before, &self.node).await?;
        }
        self.commit_transaction().await
    }

    /// Stores changes, commits, and records a contact of the node.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.node.provisioned = true;
        let running = Status::new(status::RUNNING, Indication::Idle, self.now);
        self.node.status = running.clone().with_time_of(Some(&self.node.status));
        derived_state::update(&mut self.node, &self.input, self.now);
        if self.node != *self.before {
            nodes::save_changes(&self.tx, &self.before, &self.node).await?;
        }
        if self.host.status.text != running.text {
            hosts::set_status(&self.tx, self.host.id, &running).await?;
        }
        let (tenant, instance) = (self.tx.tenant(), self.node.instance);
        let (writer, now) = (self.writer, self.writer.clock.now());
        // EIM's agents call at their own pace.
        let is_ours = matches!(self.node.protocol, AgentProtocol::Own { .. });
        let due = writer.next_contact_due(now).filter(|_| is_ours);
        self.commit_transaction().await?;
        writer.contacts.record(tenant, instance, now, due);
        Ok(())
    }

    /// Commits, and invalidates the cached answers of the node before the call is answered.
    async fn commit_transaction(self) -> Result<(), StoreError> {
        let (tenant, host, instance) = (self.tx.tenant(), self.host.id, self.node.instance);
        let _unsettled = self.writer.pending_invalidation(tenant, host, instance);
        self.tx.commit().await?;
        self.spans.into_iter().for_each(spans::send);
        Ok(())
    }
}

impl NodeWriter {
    /// Runs a write once a permit is available, with a time limit. Excess writers wait for a permit
    /// and not for a connection, so that readers can use the connections.
    pub async fn with_write_permit<'a, T, F>(
        &'a self,
        (project, kind): (TenantId, CallKind),
        write: impl FnOnce(WritePermit<'a>) -> F,
    ) -> Result<T, tonic::Status>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let _guard = self.load.admit_to_database(project, kind).map_err(Overloaded::status)?;
        let permit = self.load.acquire_write_permit(project).await?;
        status::with_database_timeout(Box::pin(write((self, permit)))).await
    }

    /// Until when a node of ours is not silent, if it polls less often than usual: twice the
    /// interval from now.
    pub fn next_contact_due(&self, now: Time) -> Option<Time> {
        let usual = self.settings.poll_interval;
        let interval = self.load.poll_interval(usual);
        (usual < interval).then(|| now + to_time_delta(interval) * 2)
    }

    /// Invalidates the cached answers of a node when it is dropped: on success, on failure, and if
    /// the call is cancelled while the commit is in progress.
    pub fn pending_invalidation(
        &self,
        tenant: TenantId,
        host: HostId,
        instance: InstanceId,
    ) -> PendingInvalidation<'_> {
        PendingInvalidation { cache: &self.answer_cache, node: (tenant, host, instance) }
    }
}

/// A commit in progress.
#[derive(Debug)]
#[must_use]
pub struct PendingInvalidation<'a> {
    cache: &'a AnswerCache,
    node: (TenantId, HostId, InstanceId),
}

impl Drop for PendingInvalidation<'_> {
    fn drop(&mut self) {
        let (tenant, host, instance) = self.node;
        self.cache.invalidate_node(tenant, host, instance);
    }
}

/// Turns "not found" into `None`.
pub fn none_if_missing<T>(answer: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
