//! Loads the input of decisions in one transaction. Polls, starts and explanations read the same
//! input.

mod input_builder;
mod node_inputs;
mod project_inputs;
mod schedule_set;
mod unreadable;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{AssignedPolicy, LimitUsage, Scope};
use evenkeel_domain::decide::{
    Act, AgentProtocol, Decision, LastRun, NodeFacts, QuarantinedImage, UpdateIntent, decide,
    steady_until,
};
use evenkeel_domain::eim::{self, AnswerInput, DeliveryState};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{InstanceId, OsId, RunId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::run::{CancelCause, OpenRun, UpdateRun};
use sea_orm::QueryResult;
use serde::de::DeserializeOwned;

use crate::chain::ScopeChain;
use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::limit_usage::{self, LimitUsageByScope};
use crate::nodes::{NodeBrief, NodeState};
use crate::rows::{JsonColumn, instance, or_corrupt};
use crate::tx::Tx;
use input_builder::DecisionInputBuilder;
use node_inputs::{NodeInputs, load_node_inputs};
use project_inputs::ProjectInputs;

/// Server-wide settings that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanningLimits {
    /// How long before its window a node may download.
    pub fetch_ahead: TimeDelta,
    /// Length of a window of an open-ended schedule.
    pub max_window: TimeDelta,
}

impl Default for PlanningLimits {
    fn default() -> Self {
        Self { fetch_ahead: TimeDelta::hours(6), max_window: TimeDelta::hours(24) }
    }
}

/// The time of a reading, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// To display a decision. Counts may change at any time.
    Preview(Time),
    /// To grant a start in this transaction. If a limit applies, no other transaction counts its
    /// slots until the end of this one. The caller has called [`Tx::lock_for_decision`] and then
    /// locked the node.
    Grant(Time),
}

impl ReadMode {
    /// The current time.
    #[must_use]
    pub const fn now(self) -> Time {
        match self {
            Self::Preview(now) | Self::Grant(now) => now,
        }
    }
}

/// The subject of a decision: a host and the part of its node's state that decisions use.
#[derive(Clone, Copy, Debug)]
pub struct DecisionSubject<'a> {
    pub host: &'a Host,
    pub instance: InstanceId,
    pub os: OsId,
    /// Whether the node has reported since its instance was created.
    pub provisioned: bool,
    pub protocol: &'a AgentProtocol,
    /// How its last attempt ended.
    pub last_end: Option<&'a LastRun>,
    /// The images that failed on it.
    pub bad_images: &'a [QuarantinedImage],
    /// What was last delivered to an EIM agent.
    pub delivered: &'a DeliveryState,
}

impl<'a> DecisionSubject<'a> {
    /// A host and the full state of its node.
    #[must_use]
    pub const fn from_node(host: &'a Host, node: &'a NodeState) -> Self {
        Self {
            host,
            instance: node.instance,
            os: node.os,
            provisioned: node.provisioned,
            protocol: &node.protocol,
            last_end: node.last_end.as_ref(),
            bad_images: node.bad_images.as_slice(),
            delivered: &node.delivered,
        }
    }

    /// A host and the part of its node's state that each poll reads.
    #[must_use]
    pub const fn from_brief(host: &'a Host, node: &'a NodeBrief) -> Self {
        Self {
            host,
            instance: node.instance,
            os: node.os,
            provisioned: node.provisioned,
            protocol: &node.protocol,
            last_end: node.last_end.as_ref(),
            bad_images: node.bad_images.as_slice(),
            delivered: &node.delivered,
        }
    }
}

/// Everything that a decision depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionInput {
    pub instance: InstanceId,
    /// The scopes that contain it.
    pub chain: ScopeChain,
    /// The known facts about the node.
    pub facts: NodeFacts,
    /// Policies, images, windows and pauses that apply to it.
    pub desired: UpdateIntent,
    /// Its open run, without its planned packages.
    pub run: Option<UpdateRun>,
    /// Its open run, if a newer release wrote it and this release cannot read it. Then
    /// [`Self::run`] is none, and the node waits ([`UpdateIntent::unreadable`]).
    pub unreadable_run: Option<RunId>,
    /// What was last delivered to an EIM agent.
    pub delivered: DeliveryState,
    /// When the first slot of the applicable assignment, including the node's own, expires if no
    /// report arrives; none if no slot expires or the slots were not counted.
    pub first_slot_free_at: Option<Time>,
}

impl DecisionInput {
    /// Decides what the node should do now, and why.
    #[must_use]
    pub fn decide(&self, now: Time) -> Decision {
        decide(&self.facts, &self.desired, self.open_run(now).as_ref(), now)
    }

    /// Until when time alone does not change the answer to the node. This includes the checks
    /// outside the decision: whether its attempt is forgotten or superseded, and how far limits are
    /// used up. None if time never changes the answer. The answer may stay valid longer, but never
    /// changes sooner.
    ///
    /// For an EIM agent this holds once the answer was sent and recorded.
    #[must_use]
    pub fn steady_until(&self, now: Time) -> Option<Time> {
        let (facts, desired, open) = (&self.facts, &self.desired, self.open_run(now));
        let decided = steady_until(facts, desired, open.as_ref(), now);
        let is_eim = facts.protocol == AgentProtocol::Eim;
        let answered = is_eim.then(|| self.eim_answer_steady_until(now)).flatten();
        let run = self.run.as_ref();
        let forgotten = run.and_then(UpdateRun::forgotten_at);
        let outlived = run.zip(self.delivered.last_heard_at);
        let outlived = outlived.and_then(|(run, last_heard_at)| run.orphaned_at(last_heard_at));
        let delivered_until = self.delivered.steady_until(now);
        let instants = [decided, answered, delivered_until, forgotten, outlived];
        let instants = instants.into_iter().chain([self.first_slot_free_at]);
        instants.flatten().filter(|at| now < *at).min()
    }

    /// Until when time alone does not change the answer to an EIM agent.
    fn eim_answer_steady_until(&self, now: Time) -> Option<Time> {
        let open = self.run.as_ref().and_then(UpdateRun::as_open);
        let decision = self.decide(now);
        let query = AnswerInput {
            facts: &self.facts,
            desired: &self.desired,
            open_run: open.as_ref(),
            decision: &decision,
            delivered: &self.delivered,
        };
        eim::steady_until(&query, now)
    }

    /// Its open run in the form that decisions use.
    fn open_run(&self, now: Time) -> Option<OpenRun> {
        let open = self.run.as_ref().and_then(UpdateRun::as_open)?;
        Some(OpenRun { may_begin_until: self.may_begin_until(now), ..open })
    }

    /// Until when an EIM agent that our agent has replaced may begin the open run: while its last
    /// instructions permit it and a report from it may still arrive.
    fn may_begin_until(&self, now: Time) -> Option<Time> {
        let run = self.run.as_ref()?;
        let last_heard_at = self.delivered.last_heard_at;
        let reports_until = last_heard_at.and_then(|last_heard_at| run.orphaned_at(last_heard_at));
        let allowed_until = self.delivered.may_begin_until(now)?;
        Some(reports_until.map_or(allowed_until, |reports_until| reports_until.min(allowed_until)))
    }

    /// The open run that a replaced EIM agent has only downloaded and can no longer begin, and why
    /// it must be cancelled. No report would ever end this run.
    #[must_use]
    pub fn superseded_run(&self, now: Time) -> Option<(RunId, CancelCause)> {
        let is_ours = matches!(self.facts.protocol, AgentProtocol::Own { .. });
        self.run.as_ref().filter(|run| is_ours && run.attempt.is_none())?;
        match self.decide(now).act {
            Act::Cancel { run, cause } => Some((run, cause)),
            _ => None,
        }
    }

    /// Counts again how far the limits of the applicable policy are used up. Used with
    /// [`ReadMode::Grant`] when a preview would grant the start.
    pub async fn refresh_usage(&mut self, tx: &Tx, mode: ReadMode) -> Result<(), StoreError> {
        let Some(scope) = self.applicable_policy().map(|assigned| assigned.scope) else {
            return Ok(());
        };
        self.read_usage(tx, scope, mode.now()).await?;
        match mode {
            ReadMode::Preview(_) => Ok(()),
            ReadMode::Grant(now) => self.refresh_usage_locked(tx, scope, now).await,
        }
    }

    /// Counts again under a lock if the first count leaves a slot free. A refusal needs no exact
    /// count, so refused nodes do not wait for each other.
    async fn refresh_usage_locked(
        &mut self,
        tx: &Tx,
        scope: Scope,
        now: Time,
    ) -> Result<(), StoreError> {
        let is_free = self
            .applicable_policy()
            .is_some_and(|assigned| self.desired.hold_reason(assigned).is_none());
        if !is_free {
            return Ok(());
        }
        limit_usage::lock(tx, scope).await?;
        self.read_usage(tx, scope, now).await
    }

    async fn read_usage(&mut self, tx: &Tx, scope: Scope, now: Time) -> Result<(), StoreError> {
        let usages = limit_usage::read(tx, &[(self.instance, scope)], now).await?;
        self.set_usage(&usages, scope);
        Ok(())
    }

    fn set_usage(&mut self, usages: &LimitUsageByScope, scope: Scope) {
        self.first_slot_free_at = usages.first_slot_free_at(scope);
        let usage = usages.usage_for(self.instance, scope);
        let mut policies = self.desired.policies.iter_mut();
        if let Some(assigned) = policies.find(|assigned| assigned.scope == scope) {
            let behind = assigned.usage.yields_until;
            assigned.usage = LimitUsage { yields_until: behind, ..usage };
        }
    }

    /// The scope of the applicable assignment, if it has limits: then other nodes affect the
    /// decision.
    #[must_use]
    pub fn limited_scope(&self) -> Option<Scope> {
        let assigned = self.applicable_policy().filter(|assigned| assigned.limits.is_limited());
        assigned.map(|assigned| assigned.scope)
    }

    /// A node that starts by itself and missed a window lets the other nodes start first.
    fn defer_to_others(&mut self, subject: &DecisionSubject<'_>, scope: Scope, now: Time) {
        if *subject.protocol != AgentProtocol::Eim {
            return;
        }
        let open = self.run.as_ref().and_then(UpdateRun::as_open);
        let (facts, delivered) = (&self.facts, subject.delivered);
        let missed_window = delivered.unused_window(facts, open.as_ref(), now);
        let node = (facts, open.as_ref());
        let behind = missed_window
            .and_then(|_| delivered.yields_until(node, &self.desired, self.instance, now));
        let mut policies = self.desired.policies.iter_mut();
        if let Some(assigned) = policies.find(|assigned| assigned.scope == scope) {
            assigned.usage.yields_until = behind;
        }
    }

    /// The applicable assignment: the nearest one that fits.
    #[must_use]
    pub fn applicable_policy(&self) -> Option<&AssignedPolicy> {
        self.desired.effective_policy(&self.facts)
    }
}

/// Loads the decision inputs of nodes of a project, in the order of the subjects: at most three
/// statements for any number of nodes, and none for no nodes. A corrupt row of one node does not
/// affect the others; to find the node of a shared corrupt row takes more statements.
///
/// # Errors
/// The database cannot be reached. For a single node: its operating system is not in the project,
/// or a row of it is corrupt.
pub async fn load_decision_inputs(
    tx: &Tx,
    of: &[DecisionSubject<'_>],
    planning_limits: &PlanningLimits,
    now: Time,
) -> Result<Vec<Result<DecisionInput, StoreError>>, StoreError> {
    let mut inputs = Vec::with_capacity(of.len());
    let mut parts = vec![of];
    while let Some(part) = parts.pop() {
        match load_batch(tx, part, planning_limits, now).await {
            Ok(batch) => inputs.extend(batch),
            Err(StoreError::Corrupt { .. }) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error @ StoreError::Corrupt { .. }) => inputs.push(Err(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(inputs)
}

/// Loads one batch. Fails as a whole if a row that several nodes share is corrupt.
async fn load_batch(
    tx: &Tx,
    of: &[DecisionSubject<'_>],
    planning_limits: &PlanningLimits,
    now: Time,
) -> Result<Vec<Result<DecisionInput, StoreError>>, StoreError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let all_node_inputs = load_node_inputs(tx, of).await?;
    let mut project_inputs = ProjectInputs::default();
    project_inputs.load(tx, of, Some(now)).await?;
    let mut builder = DecisionInputBuilder::new(&project_inputs, planning_limits, now);
    let (mut inputs, mut limited) = (Vec::with_capacity(of.len()), Vec::new());
    for (subject, node_inputs) in of.iter().zip(all_node_inputs) {
        let mut input = node_inputs.and_then(|node_inputs| builder.build(subject, node_inputs));
        if let Ok(input) = &mut input
            && let Some(scope) = input.limited_scope()
        {
            input.defer_to_others(subject, scope, now);
            limited.push((input.instance, scope));
        }
        inputs.push(input);
    }
    let usages = limit_usage::read(tx, &limited, now).await?;
    for input in inputs.iter_mut().flatten() {
        if let Some(scope) = input.limited_scope() {
            input.set_usage(&usages, scope);
        }
    }
    Ok(inputs)
}

/// Loads the decision input of a node.
///
/// # Errors
/// The database cannot be reached, the operating system of the node is not in the project, or a row
/// of it is corrupt.
pub async fn load_decision_input(
    tx: &Tx,
    host: &Host,
    node: &NodeState,
    planning_limits: &PlanningLimits,
    mode: ReadMode,
) -> Result<DecisionInput, StoreError> {
    let subject = DecisionSubject::from_node(host, node);
    let loaded = load_decision_inputs(tx, &[subject], planning_limits, mode.now()).await?.pop();
    let what = instance::Entity::RESOURCE;
    let mut input = loaded.ok_or(StoreError::NotFound { what })??;
    if let (ReadMode::Grant(now), Some(scope)) = (mode, input.limited_scope()) {
        input.refresh_usage_locked(tx, scope, now).await?;
    }
    Ok(input)
}

/// The policies that apply to instances, in their order: for each the nearest one that fits; none
/// while an object that applies to the instance cannot be read. Like
/// [`DecisionInput::applicable_policy`], but reads neither schedules nor limits. One statement for
/// any number of instances, and none for no instances.
pub async fn load_applicable_policies(
    tx: &Tx,
    of: &[(&Host, &Instance)],
) -> Result<Vec<Option<AssignedPolicy>>, StoreError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    // The node's reports and its past attempts do not affect which policy fits.
    let (protocol, delivered) = (AgentProtocol::Unknown, DeliveryState::default());
    let subjects = of.iter().map(|&(host, instance)| DecisionSubject {
        host,
        instance: instance.id,
        os: instance.summary.os,
        provisioned: instance.summary.provisioned,
        protocol: &protocol,
        last_end: None,
        bad_images: &[],
        delivered: &delivered,
    });
    let subjects: Vec<_> = subjects.collect();
    let mut project_inputs = ProjectInputs::default();
    project_inputs.load(tx, &subjects, None).await?;
    let applicable = |(subject, (_, instance)): (&DecisionSubject<'_>, &(&Host, &Instance))| {
        // Neither do its order and its run.
        let trusted = instance.is_trusted();
        let node_inputs =
            NodeInputs { trusted, order: None, run: None, unreadable_run: None, unreadable: None };
        let facts = project_inputs.node_facts(subject, &node_inputs)?;
        let chain = project_inputs.chain(subject);
        if project_inputs.unreadable(&chain, &facts).is_some() {
            return Ok(None);
        }
        let mut policies = project_inputs.policies(&chain).into_iter();
        Ok::<_, StoreError>(policies.find(|assigned| assigned.mismatch(&facts).is_none()))
    };
    subjects.iter().zip(of).map(applicable).collect()
}

/// The rows that a JSON column aggregates.
fn json_rows<M: DeserializeOwned>(
    row: &QueryResult,
    column: &'static str,
) -> Result<Vec<M>, StoreError> {
    // The row exists, so a value that cannot be decoded is corrupt.
    let rows = row.try_get::<Option<JsonColumn<Vec<M>>>>("", column);
    let rows = or_corrupt(rows.ok(), "decision input", 0, column)?;
    Ok(rows.map(|stored| stored.0).unwrap_or_default())
}
