//! Evaluates one decision step by step.

use chrono::TimeDelta;

use super::quarantine::{QuarantineCheck, check_quarantine};
use super::steady::full_hour;
use super::{
    Act, AgentProtocol, Decision, NodeFacts, OfflineGrant, Reason, Target, TargetKind,
    UpdateIntent, Verdict, resolve_target,
};
use crate::Time;
use crate::order::{Order, OrderKind};
use crate::run::{CancelCause, OpenRun};
use crate::window::{Opener, Window, Windows};

/// Input of one decision: a node, what applies to it, and an instant.
pub(super) struct Evaluation<'a> {
    facts: &'a NodeFacts,
    intent: &'a UpdateIntent,
    windows: Windows,
    now: Time,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(facts: &'a NodeFacts, intent: &'a UpdateIntent, now: Time) -> Self {
        Self { facts, intent, windows: intent.effective_windows(now), now }
    }

    /// The decision without its offline grant.
    pub(super) fn decide(&self, open: Option<&OpenRun>) -> Decision {
        if !self.facts.trusted {
            return Decision::idle(Reason::NotTrusted, None);
        }
        if !self.facts.provisioned {
            return Decision::idle(Reason::NotProvisioned, None);
        }
        match open {
            Some(run) if run.state.is_untouched() => self.decide_untouched(run),
            Some(run) => Decision::continue_run(run),
            None => match resolve_target(self.facts, self.intent) {
                Ok(target) => self.decide_new(target),
                Err(reason) => Decision::idle(reason, None),
            },
        }
    }

    /// Decides about an open run that has changed nothing yet.
    fn decide_untouched(&self, run: &OpenRun) -> Decision {
        let cancel = |cause, reason| {
            let act = Act::Cancel { run: run.id, cause };
            Decision::new(act, reason, None)
        };
        if matches!(self.facts.protocol, AgentProtocol::Own { .. }) && run.attempt.is_none() {
            // The run belongs to an agent that ours has replaced. It stays open while that agent may still begin it.
            return match run.may_begin_until.filter(|until| self.now < *until) {
                Some(until) => Decision { next_change: Some(until), ..Decision::continue_run(run) },
                None => cancel(CancelCause::Withdrawn, Reason::Withdrawn { run: run.id }),
            };
        }
        let order = self.intent.order.as_ref();
        if order.is_some_and(|o| o.kind == OrderKind::Cancel && run.started_at <= o.at) {
            return cancel(CancelCause::Requested, Reason::Requested { run: run.id });
        }
        if let Some(reason) = self.intent.unreadable_reason() {
            // Whether the update is still desired, and until when, is unknown: the run neither begins nor ends.
            return Decision::new(Act::Continue(run.id), reason, None);
        }
        let Some(target) = self.frozen_target(run) else {
            return cancel(CancelCause::Withdrawn, Reason::Withdrawn { run: run.id });
        };
        let quarantine = self.check_quarantine(&target);
        if let QuarantineCheck::Blocked(reason) = quarantine {
            // The order expired before the run began. The node itself refuses to apply what is no longer ordered.
            return cancel(CancelCause::Withdrawn, reason);
        }
        let wait = |reason, next| Decision::new(Act::Continue(run.id), reason, next);
        let open = self.windows.open(self.now);
        let coming = self.windows.next(self.now);
        if open.is_none() && coming.is_none() {
            return cancel(CancelCause::WindowMissed, Reason::NoWindow);
        }
        let ordered = self.active_order().filter(|_| quarantine == QuarantineCheck::RetryOrdered);
        let next = self.next_window_change().into_iter().chain(ordered.map(|o| o.until));
        if let Some(reason) = self.hold_reason() {
            let next = next.chain(reason.ends_at()).min();
            return wait(reason, next);
        }
        match (open, coming) {
            (Some(window), _) => {
                let deadline = window.end;
                let reason = Reason::window_open(&window);
                Decision::new(Act::Apply { target, deadline }, reason, next.min())
            }
            (None, opens) => {
                let opens = opens.map_or(self.now, |window| window.start);
                wait(Reason::WindowClosed { opens }, Some(opens))
            }
        }
    }

    /// The frozen target of an open run, while the run may continue. A run of an Evenkeel agent is cancelled when the
    /// target changes. A run of an EIM agent is cancelled only when nothing is desired any more: an EIM agent reports
    /// the last target that it received as the one that it applied, so it must not receive another one before the end.
    fn frozen_target(&self, run: &OpenRun) -> Option<Target> {
        let present = resolve_target(self.facts, self.intent);
        match (&self.facts.protocol, present) {
            (AgentProtocol::Eim, Err(Reason::NoPolicy | Reason::PolicyDoesNotFit { .. })) => None,
            (AgentProtocol::Eim, present) => run.target.clone().or(present.ok()),
            (_, present) => present.ok().filter(|target| {
                let frozen = run.target.as_ref();
                frozen.is_some_and(|frozen| frozen.is_same(target))
            }),
        }
    }

    /// When the next window opens or the open one closes.
    fn next_window_change(&self) -> Option<Time> {
        self.windows.next_change(self.now)
    }

    /// The order to update now, while it is valid.
    fn active_order(&self) -> Option<&Order> {
        let order = self.intent.order.as_ref();
        order.filter(|o| o.kind == OrderKind::Now && o.at <= self.now && self.now < o.until)
    }

    fn hold_reason(&self) -> Option<Reason> {
        let assigned = self.intent.effective_policy(self.facts)?;
        self.intent.hold_reason(assigned)
    }

    /// Whether the target is quarantined on this node.
    fn check_quarantine(&self, target: &Target) -> QuarantineCheck {
        check_quarantine(self.facts, self.intent.order.as_ref(), target, self.now)
    }

    /// Whether the decision retries an image that failed on this node, because a user ordered it.
    pub(super) fn is_retry(&self, decision: &Decision) -> bool {
        match &decision.act {
            Act::Fetch(target) | Act::Apply { target, .. } => {
                self.check_quarantine(target) == QuarantineCheck::RetryOrdered
            }
            Act::Idle | Act::Continue(_) | Act::Cancel { .. } => false,
        }
    }

    /// Decides while no run is open.
    fn decide_new(&self, target: Target) -> Decision {
        if let QuarantineCheck::Blocked(reason) = self.check_quarantine(&target) {
            return Decision::idle(reason, None);
        }
        let next = self.windows.next(self.now);
        if let Some(window) = self.windows.open(self.now) {
            return self.decide_in_window(target, window);
        }
        let Some(next) = next else {
            return Decision::idle(Reason::NoWindow, None);
        };
        match self.hold_reason() {
            None | Some(Reason::NoFreeSlot { .. }) => self.decide_before_window(target, next),
            Some(reason) => {
                let until = reason.ends_at().unwrap_or(next.start);
                Decision::idle(reason, Some(until))
            }
        }
    }

    /// Decides while a window is open and no run is.
    fn decide_in_window(&self, target: Target, window: Window) -> Decision {
        let ordered = self.active_order();
        let change = self.next_window_change();
        let change = change.into_iter().chain(ordered.map(|order| order.until)).min();
        // A run that ended before the order was given says nothing about the order.
        let since = ordered.map_or(window.start, |order| window.start.max(order.at));
        if let Some(reason) = self.already_tried(&target, since) {
            return Decision::idle(reason, change);
        }
        match self.hold_reason() {
            None => {
                let deadline = window.end;
                let reason = Reason::window_open(&window);
                Decision::new(Act::Apply { target, deadline }, reason, change)
            }
            // While a node waits for a slot it may already download.
            Some(reason @ Reason::NoFreeSlot { .. }) => {
                Decision::new(Act::Fetch(target), reason, change)
            }
            Some(reason) => {
                let next = change.into_iter().chain(reason.ends_at()).min();
                Decision::idle(reason, next)
            }
        }
    }

    /// Decides while no window is open and a later one is known.
    fn decide_before_window(&self, target: Target, next: Window) -> Decision {
        let reason = Reason::WindowClosed { opens: next.start };
        let fetch_from = next.start - self.intent.fetch_ahead;
        if self.now < fetch_from {
            return Decision::idle(reason, Some(fetch_from));
        }
        // One attempt before the window is enough. Otherwise every poll would request a mirror that is down.
        if let Some(reason) = self.already_tried(&target, fetch_from) {
            return Decision::idle(reason, Some(next.start));
        }
        Decision::new(Act::Fetch(target), reason, Some(next.start))
    }

    /// Why the target needs no further run: a run that ended after `since` already settled it. A kernel command line
    /// that was set stays settled: setting it restarts the node, which would happen again in every window.
    fn already_tried(&self, target: &Target, since: Time) -> Option<Reason> {
        let end = self.facts.last_run.as_ref()?;
        let for_good =
            matches!(target.kind, TargetKind::Kernel { .. }) && end.verdict == Verdict::Good;
        let earlier = end.at < since && !for_good;
        if earlier || end.target.as_deref() != Some(target.digest().as_str()) {
            return None;
        }
        match end.verdict {
            Verdict::Good => Some(Reason::UpToDate { run: end.run, at: end.at }),
            Verdict::Bad => Some(Reason::FailedInWindow { run: end.run, at: end.at }),
            Verdict::Inconclusive => None,
        }
    }

    /// The offline grant: the windows that open before it expires. Each answer replaces the grant of the one before.
    ///
    /// The expiry is the policy's number of days from now, rounded down to the full hour. So it never exceeds those
    /// days, and all answers within an hour carry the same grant. With the minimum of one day, a new grant is valid for
    /// more than 23 hours.
    pub(super) fn offline_grant(
        &self,
        decision: &Decision,
        open: Option<&OpenRun>,
    ) -> Option<OfflineGrant> {
        let (target, days) = self.offline_grant_terms(decision, open)?;
        let expires = full_hour(self.now + days);
        let counts = |window: &&Window| {
            self.now < window.end && window.start < expires && window.opener != Opener::Order
        };
        let windows = self.windows.as_slice().iter().filter(counts);
        let windows: Vec<_> =
            windows.map(|window| (window.start, window.end.min(expires))).collect();
        (!windows.is_empty()).then_some(OfflineGrant { target, windows, expires_at: expires })
    }

    /// Target and duration of an offline grant: for a target that waits for a window or may start in the open one, on
    /// nodes that request start permits. Not granted are updates whose assignment has limits or is held back, updates
    /// that a user ordered (the node is reachable then), and retries of failed images (a grant does not carry the order).
    pub(super) fn offline_grant_terms(
        &self,
        decision: &Decision,
        open: Option<&OpenRun>,
    ) -> Option<(Target, TimeDelta)> {
        if !matches!(self.facts.protocol, AgentProtocol::Own { .. }) || self.is_retry(decision) {
            return None;
        }
        let target = match (&decision.act, &decision.reason) {
            // The server may become unreachable before the node requests its start permit.
            (Act::Apply { target, .. }, _) | (Act::Fetch(target), Reason::WindowClosed { .. }) => {
                target
            }
            (Act::Continue(_), Reason::WindowClosed { .. }) => open?.target.as_ref()?,
            _ => return None,
        };
        let assigned = self.intent.effective_policy(self.facts)?;
        let days = assigned.policy.spec.offline_days;
        if days == 0 || assigned.limits.is_limited() || self.intent.hold_reason(assigned).is_some()
        {
            return None;
        }
        Some((target.clone(), TimeDelta::days(i64::from(days))))
    }
}
