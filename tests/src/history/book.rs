//! What people wanted, and between which instants it held.

use chrono::TimeDelta;
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::truth::Span;

/// A node of the crowd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its host, such as `host-0a1b2c3d`.
    pub host: String,
    /// Its instance, such as `inst-0a1b2c3d`.
    pub instance: String,
    /// Its site; empty if it has none.
    pub site: String,
    /// Whether its agent is the ancestor's, which needs some rest between two windows.
    pub is_eim: bool,
}

/// Something that was asked of a server until it answered. It happened at some instant of that stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it was asked first.
    pub asked: Time,
    /// When it was answered; none if it never was, so that it may not have happened at all.
    pub done: Option<Time>,
}

/// How long something held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// It was made.
    pub made: Step,
    /// It was taken back.
    pub gone: Option<Step>,
}

impl Held {
    /// Something that was just made.
    pub const fn since(made: Step) -> Self {
        Self { made, gone: None }
    }

    /// Whether it may have held at some instant of a stretch.
    pub fn may_hold(&self, (from, to): Span) -> bool {
        let is_gone = self
            .gone
            .and_then(|gone| gone.done)
            .is_some_and(|done| done < from);
        self.made.asked <= to && !is_gone
    }

    /// Whether it held through a whole stretch, whatever happened on the way.
    pub fn must_hold(&self, (from, to): Span) -> bool {
        let is_made = self.made.done.is_some_and(|done| done <= from);
        is_made && self.gone.is_none_or(|gone| to < gone.asked)
    }
}

/// What something is meant for, as REST writes it: an id of an instance, a host, a site or a policy, or `project`.
pub type Scope = String;

/// A window that was made.
#[derive(Clone, Debug)]
pub struct Opened {
    /// For whom.
    pub scope: Scope,
    /// From when to when. Of an order, only the outermost bounds are known.
    pub window: Span,
    /// Whether a person ordered it for now.
    pub is_order: bool,
    /// While it was there.
    pub held: Held,
}

/// A policy that was assigned.
#[derive(Clone, Debug)]
pub struct Wished {
    /// To what.
    pub scope: Scope,
    /// The policy.
    pub policy: String,
    /// While it was there.
    pub held: Held,
}

/// A pause.
#[derive(Clone, Debug)]
pub struct Paused {
    /// Of what.
    pub scope: Scope,
    /// While it was there.
    pub held: Held,
}

/// What people wanted.
#[derive(Clone, Debug, Default)]
pub struct Book {
    /// Every window that was made, also by an order.
    pub windows: Vec<Opened>,
    /// Every assignment.
    pub wishes: Vec<Wished>,
    /// Every pause.
    pub pauses: Vec<Paused>,
    /// Every cancellation of an instance.
    pub cancelled: Vec<(Scope, Step)>,
}

impl Member {
    /// Whether something of this scope concerns it.
    pub fn is_in(&self, scope: &str) -> bool {
        scope == "project"
            || [&self.host, &self.instance, &self.site]
                .iter()
                .any(|id| *id == scope)
    }
}

impl Book {
    /// The windows that may have counted for a node at some instant of a stretch.
    pub fn windows_of(&self, member: &Member, between: Span) -> impl Iterator<Item = Span> {
        let of = self.of(member, between).filter(|opened| !opened.is_order);
        of.map(|opened| opened.window)
    }

    /// Whether a window may be one that was ordered for a node.
    pub fn ordered(&self, member: &Member, between: Span, (start, end): Span) -> bool {
        // On the ancestor's wire instants are whole seconds.
        let second = TimeDelta::seconds(1);
        let mut orders = self.of(member, between).filter(|opened| opened.is_order);
        orders.any(|order| order.window.0 - second <= start && end <= order.window.1 + second)
    }

    fn of(&self, member: &Member, between: Span) -> impl Iterator<Item = &Opened> {
        let of = self.windows.iter();
        of.filter(move |opened| member.is_in(&opened.scope) && opened.held.may_hold(between))
    }

    /// Whether a window was cancelled for a node before an instant, and no order came after that.
    pub fn is_cancelled(&self, member: &Member, window: Span, asked: Time) -> bool {
        let cancelled = self
            .cancelled
            .iter()
            .filter(|(scope, _)| member.is_in(scope));
        let mut steps = cancelled
            .map(|(_, step)| step)
            .filter(|step| step.done.is_some_and(|done| done <= asked) && window.0 <= step.asked);
        steps.any(|step| {
            let is_later = |order: &&Opened| {
                order.is_order && member.is_in(&order.scope) && step.asked <= order.held.made.asked
            };
            !self.windows.iter().any(|opened| is_later(&opened))
        })
    }

    /// Whether a policy may have been wished for a node at some instant of a stretch; any policy if none is named.
    pub fn may_wish(&self, member: &Member, policy: Option<&str>, between: Span) -> bool {
        self.wishes.iter().any(|wished| {
            member.is_in(&wished.scope)
                && policy.is_none_or(|policy| policy == wished.policy)
                && wished.held.may_hold(between)
        })
    }

    /// The pause that held a node back through a whole stretch. A pause of a policy counts only if that is named.
    pub fn pause(&self, member: &Member, policy: Option<&str>, between: Span) -> Option<&Paused> {
        self.pauses.iter().find(|paused| {
            let concerns = paused.scope == "project"
                || paused.scope == member.site
                || policy.is_some_and(|policy| policy == paused.scope);
            concerns && paused.held.must_hold(between)
        })
    }
}
