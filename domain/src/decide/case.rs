//! One question about a node that is believed, answered step by step.

use chrono::TimeDelta;

use super::quarantine::{Trial, trial};
use super::steady::full_hour;
use super::{
    Act, Decision, Grant, NodeFacts, Protocol, Reason, Target, TargetKind, Verdict, Wanted, target,
};
use crate::Time;
use crate::order::{Order, OrderKind};
use crate::run::{CancelCause, OpenRun};
use crate::window::{Opener, Window, Windows};

/// One question: a node, what applies to it, and an instant.
pub(super) struct Case<'a> {
    known: &'a NodeFacts,
    wanted: &'a Wanted,
    windows: Windows,
    now: Time,
}

impl<'a> Case<'a> {
    pub(super) fn of(known: &'a NodeFacts, wanted: &'a Wanted, now: Time) -> Self {
        Self {
            known,
            wanted,
            windows: wanted.windows_now(now),
            now,
        }
    }

    /// What to do, without the leave that is given ahead.
    pub(super) fn decide(&self, open: Option<&OpenRun>) -> Decision {
        if !self.known.trusted {
            return Decision::idle(Reason::NotTrusted, None);
        }
        if !self.known.provisioned {
            return Decision::idle(Reason::NotProvisioned, None);
        }
        match open {
            Some(run) if run.state.is_untouched() => self.untouched(run),
            Some(run) => Decision::goes_on(run),
            None => match target(self.known, self.wanted) {
                Ok(target) => self.fresh(target),
                Err(reason) => Decision::idle(reason, None),
            },
        }
    }

    /// An attempt is open and has changed nothing yet.
    fn untouched(&self, run: &OpenRun) -> Decision {
        let cancel = |cause, because| {
            let act = Act::Cancel { run: run.id, cause };
            Decision::of(act, because, None)
        };
        if matches!(self.known.speaks, Protocol::Own { .. }) && run.attempt.is_none() {
            // It is none of ours to go on with: ours waits as long as the agent that it has replaced may begin it.
            return match run.may_begin_until.filter(|until| self.now < *until) {
                Some(until) => Decision {
                    next: Some(until),
                    ..Decision::goes_on(run)
                },
                None => cancel(CancelCause::Withdrawn, Reason::Withdrawn { run: run.id }),
            };
        }
        let order = self.wanted.order.as_ref();
        if order.is_some_and(|o| o.kind == OrderKind::Cancel && run.started_at <= o.at) {
            return cancel(CancelCause::Requested, Reason::Requested { run: run.id });
        }
        let Some(target) = self.kept(run) else {
            return cancel(CancelCause::Withdrawn, Reason::Withdrawn { run: run.id });
        };
        let trial = self.trial(&target);
        if let Trial::Held(reason) = trial {
            // The order was over before it began. The node refuses by itself what is not ordered any more.
            return cancel(CancelCause::Withdrawn, reason);
        }
        let wait = |because, next| Decision::of(Act::Continue(run.id), because, next);
        let open = self.windows.open(self.now);
        let coming = self.windows.next(self.now);
        if open.is_none() && coming.is_none() {
            return cancel(CancelCause::WindowMissed, Reason::NoWindow);
        }
        let ordered = self.ordered_now().filter(|_| trial == Trial::Again);
        let next = self.change().into_iter().chain(ordered.map(|o| o.until));
        if let Some(held) = self.held() {
            let next = next.chain(held.over_at()).min();
            return wait(held, next);
        }
        match (open, coming) {
            (Some(window), _) => {
                let before = window.end;
                let because = Reason::WindowOpen { until: before };
                Decision::of(Act::Apply { target, before }, because, next.min())
            }
            (None, opens) => {
                let opens = opens.map_or(self.now, |window| window.start);
                wait(Reason::WindowClosed { opens }, Some(opens))
            }
        }
    }

    /// The frozen wish of an attempt, while it may be gone on with. One of ours is given up when something else is
    /// wanted. One of the ancestor's agents is only given up when nothing is wanted: it reports what it was told last as
    /// what it did, so another wish must not reach it before the end (southbound section 9.3).
    fn kept(&self, run: &OpenRun) -> Option<Target> {
        let present = target(self.known, self.wanted);
        match (&self.known.speaks, present) {
            (Protocol::Eim, Err(Reason::NoPolicy | Reason::PolicyDoesNotFit { .. })) => None,
            (Protocol::Eim, present) => run.target.clone().or(present.ok()),
            (_, present) => present.ok().filter(|target| {
                let frozen = run.target.as_ref();
                frozen.is_some_and(|frozen| frozen.is_same(target))
            }),
        }
    }

    /// When a window opens or closes next.
    fn change(&self) -> Option<Time> {
        self.windows.next_change(self.now)
    }

    /// The order to update now, while it holds.
    fn ordered_now(&self) -> Option<&Order> {
        let order = self.wanted.order.as_ref();
        order.filter(|o| o.kind == OrderKind::Now && o.at <= self.now && self.now < o.until)
    }

    fn held(&self) -> Option<Reason> {
        let assigned = self.wanted.nearest(self.known)?;
        self.wanted.held(assigned)
    }

    /// Whether a wish may be tried.
    fn trial(&self, target: &Target) -> Trial {
        trial(self.known, self.wanted.order.as_ref(), target, self.now)
    }

    /// Whether what to do failed on this node before, and was ordered since.
    pub(super) fn again(&self, decision: &Decision) -> bool {
        match &decision.act {
            Act::Fetch(target) | Act::Apply { target, .. } => self.trial(target) == Trial::Again,
            Act::Idle | Act::Continue(_) | Act::Cancel { .. } => false,
        }
    }

    /// No attempt is open.
    fn fresh(&self, target: Target) -> Decision {
        if let Trial::Held(reason) = self.trial(&target) {
            return Decision::idle(reason, None);
        }
        let next = self.windows.next(self.now);
        if let Some(window) = self.windows.open(self.now) {
            return self.inside(target, window);
        }
        let Some(next) = next else {
            return Decision::idle(Reason::NoWindow, None);
        };
        match self.held() {
            None | Some(Reason::NoFreeSlot { .. }) => self.ahead(target, next),
            Some(held) => {
                let over = held.over_at().unwrap_or(next.start);
                Decision::idle(held, Some(over))
            }
        }
    }

    /// A window is open.
    fn inside(&self, target: Target, window: Window) -> Decision {
        let ordered = self.ordered_now();
        let change = self.change();
        let change = change
            .into_iter()
            .chain(ordered.map(|order| order.until))
            .min();
        // What was tried before it was ordered says nothing about the order.
        let since = ordered.map_or(window.start, |order| window.start.max(order.at));
        if let Some(reason) = self.settled(&target, since) {
            return Decision::idle(reason, change);
        }
        match self.held() {
            None => {
                let before = window.end;
                let because = Reason::WindowOpen { until: before };
                Decision::of(Act::Apply { target, before }, because, change)
            }
            // What waits for others may get ready meanwhile.
            Some(held @ Reason::NoFreeSlot { .. }) => {
                Decision::of(Act::Fetch(target), held, change)
            }
            Some(held) => {
                let next = change.into_iter().chain(held.over_at()).min();
                Decision::idle(held, next)
            }
        }
    }

    /// No window is open, but one is to come.
    fn ahead(&self, target: Target, next: Window) -> Decision {
        let because = Reason::WindowClosed { opens: next.start };
        let fetch_from = next.start - self.wanted.fetch_ahead;
        if self.now < fetch_from {
            return Decision::idle(because, Some(fetch_from));
        }
        // One try ahead of the window is enough: a mirror that is down would otherwise be asked at every poll.
        if let Some(reason) = self.settled(&target, fetch_from) {
            return Decision::idle(reason, Some(next.start));
        }
        Decision::of(Act::Fetch(target), because, Some(next.start))
    }

    /// Whether this wish was seen through already since an instant. The command line of a kernel is set once for good:
    /// it would restart the node in every window (southbound section 3.7).
    fn settled(&self, target: &Target, since: Time) -> Option<Reason> {
        let end = self.known.last_end.as_ref()?;
        let for_good =
            matches!(target.wish, TargetKind::Kernel { .. }) && end.verdict == Verdict::Good;
        let earlier = end.at < since && !for_good;
        if earlier || end.target.as_deref() != Some(target.digest().as_str()) {
            return None;
        }
        match end.verdict {
            Verdict::Good => Some(Reason::UpToDate {
                run: end.run,
                at: end.at,
            }),
            Verdict::Bad => Some(Reason::FailedInWindow {
                run: end.run,
                at: end.at,
            }),
            Verdict::Open => None,
        }
    }

    /// Leave ahead: the windows that open before it expires. Each answer replaces the leave that the one before gave.
    ///
    /// It expires with the days of the policy, cut down to the full hour: so it never outlives them, and answers within
    /// an hour give the same one. A day is the least, so it lasts for more than 23 hours when it is given.
    pub(super) fn grant(&self, decision: &Decision, open: Option<&OpenRun>) -> Option<Grant> {
        let (target, days) = self.leave_ahead(decision, open)?;
        let expires = full_hour(self.now + days);
        let counts = |window: &&Window| {
            self.now < window.end && window.start < expires && window.opener != Opener::Order
        };
        let windows = self.windows.as_slice().iter().filter(counts);
        let windows: Vec<_> = windows
            .map(|window| (window.start, window.end.min(expires)))
            .collect();
        (!windows.is_empty()).then_some(Grant {
            target,
            windows,
            expires,
        })
    }

    /// What leave is given ahead for, and for how long: what waits for a window or may begin in one, on nodes that ask
    /// before they begin. Whatever is counted or held is never granted ahead, and what a person orders is for a node that
    /// can be reached. What failed before is not either: leave ahead does not say that it was ordered.
    pub(super) fn leave_ahead(
        &self,
        decision: &Decision,
        open: Option<&OpenRun>,
    ) -> Option<(Target, TimeDelta)> {
        if !matches!(self.known.speaks, Protocol::Own { .. }) || self.again(decision) {
            return None;
        }
        let target = match (&decision.act, &decision.because) {
            // The server may be gone when the node asks to begin.
            (Act::Apply { target, .. }, _) | (Act::Fetch(target), Reason::WindowClosed { .. }) => {
                target
            }
            (Act::Continue(_), Reason::WindowClosed { .. }) => open?.target.as_ref()?,
            _ => return None,
        };
        let assigned = self.wanted.nearest(self.known)?;
        let days = assigned.policy.spec.offline_days;
        if days == 0 || assigned.limits.any() || self.wanted.held(assigned).is_some() {
            return None;
        }
        Some((target.clone(), TimeDelta::days(i64::from(days))))
    }
}
