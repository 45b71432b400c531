//! Builds decision inputs from the inputs of the project and of the nodes.

use std::collections::HashMap;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::AssignedPolicy;
use evenkeel_domain::decide::{AgentProtocol, UnreadableObject, UpdateIntent};
use evenkeel_domain::host::Host;
use evenkeel_domain::schedule::{RepeatedSchedule, ScheduleTarget, WindowQuery};
use evenkeel_domain::window::{Window, Windows};

use super::node_inputs::NodeInputs;
use super::project_inputs::ProjectInputs;
use super::{DecisionInput, DecisionSubject, PlanningLimits};
use crate::chain::ScopeChain;
use crate::error::StoreError;

/// Builds decision inputs for one point in time.
pub struct DecisionInputBuilder<'a> {
    project_inputs: &'a ProjectInputs,
    planning_limits: &'a PlanningLimits,
    now: Time,
    /// The windows of schedules, computed once for all nodes with the same planning range.
    open_windows: HashMap<(ScheduleTarget, Time, usize), Vec<Window>>,
}

impl<'a> DecisionInputBuilder<'a> {
    pub fn new(
        project_inputs: &'a ProjectInputs,
        planning_limits: &'a PlanningLimits,
        now: Time,
    ) -> Self {
        Self { project_inputs, planning_limits, now, open_windows: HashMap::new() }
    }

    /// Builds the decision input of a node. The use of limits is not counted.
    pub fn build(
        &mut self,
        subject: &DecisionSubject<'_>,
        node_inputs: NodeInputs,
    ) -> Result<DecisionInput, StoreError> {
        let project_inputs = self.project_inputs;
        let chain = project_inputs.chain(subject);
        let facts = project_inputs.node_facts(subject, &node_inputs)?;
        let policies = project_inputs.policies(&chain);
        let ahead = self.window_range(subject.protocol, &policies);
        let ids = policies.iter().map(|assigned| assigned.policy.id);
        let desired = UpdateIntent {
            pauses: project_inputs.pauses(chain.site, ids),
            images: project_inputs.images(&facts),
            windows: self.windows(&chain, &ahead),
            repeated_schedules: self.repeated(&chain),
            fetch_ahead: self.planning_limits.fetch_ahead,
            order: node_inputs.order,
            unreadable: node_inputs
                .unreadable
                .or_else(|| unreadable_host(subject.host))
                .or_else(|| project_inputs.unreadable(&chain, &facts)),
            policies,
        };
        Ok(DecisionInput {
            instance: subject.instance,
            chain,
            facts,
            desired,
            run: node_inputs.run,
            unreadable_run: node_inputs.unreadable_run,
            delivered: subject.delivered.clone(),
            first_slot_free_at: None,
        })
    }

    /// The planning range. For our own agents it covers the offline days of the policies, because
    /// starts in those windows may be granted ahead.
    fn window_range(&self, protocol: &AgentProtocol, policies: &[AssignedPolicy]) -> WindowQuery {
        let (longest, limit) = match protocol {
            AgentProtocol::Own { .. } => {
                let days = policies.iter().map(|a| a.policy.spec.offline_days).max();
                (TimeDelta::days(days.unwrap_or_default().into()), 64)
            }
            AgentProtocol::Eim | AgentProtocol::Unknown => (TimeDelta::zero(), 8),
        };
        WindowQuery {
            now: self.now,
            until: self.now + longest.max(self.planning_limits.fetch_ahead),
            limit,
            max_window: self.planning_limits.max_window,
            filter: self.project_inputs.opens(),
        }
    }

    /// The windows along a chain within the planning range.
    fn windows(&mut self, chain: &ScopeChain, ahead: &WindowQuery) -> Windows {
        let project_inputs = self.project_inputs;
        let mut windows = Vec::new();
        for target in chain.schedule_targets() {
            let Some(scheduled) = project_inputs.schedules(target) else {
                continue;
            };
            let cache_key = (target, ahead.until, ahead.limit);
            let target_windows = self.open_windows.entry(cache_key);
            let target_windows = target_windows.or_insert_with(|| scheduled.windows_from(ahead));
            windows.extend_from_slice(target_windows);
        }
        Windows::from_now_on(windows, self.now)
    }

    /// The repeated schedules along a chain that open windows, by id in the order of the database.
    fn repeated(&self, chain: &ScopeChain) -> Vec<RepeatedSchedule> {
        let opens = self.project_inputs.opens();
        let targets = chain.schedule_targets();
        let along = targets.filter_map(|target| self.project_inputs.schedules(target));
        let all = along.flat_map(|scheduled| &scheduled.repeated);
        let mut all: Vec<_> =
            all.filter(|schedule| opens.admits(schedule.spec.status)).cloned().collect();
        all.sort_unstable_by_key(|schedule| schedule.id.bits().cast_signed());
        all
    }
}

/// A host in a state that only a newer release knows.
fn unreadable_host(host: &Host) -> Option<UnreadableObject> {
    let object = || UnreadableObject { kind: "host", id: host.id.to_string() };
    host.has_unknown_state.then(object)
}
