//! What people wanted, and between which instants it held.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::eim::cron::Repeats;
use evenkeel_simulator::truth::{Change, Span};

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
    /// Whether its system is updated by images.
    pub is_image: bool,
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
    /// Whether a person ordered it for now. Only the latest order of an instance counts.
    pub is_order: bool,
    /// While it was there.
    pub held: Held,
}

/// Windows that were made to open again and again.
#[derive(Clone, Debug)]
pub struct Repeated {
    /// For whom.
    pub scope: Scope,
    /// When.
    pub schedule: Repeats,
    /// While it was there.
    pub held: Held,
}

/// An image of the catalogue.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its version.
    pub image: String,
    /// While it was there.
    pub held: Held,
}

/// What a policy wants of systems that are updated by images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The newest one.
    Newest,
    /// This one, also if it is older.
    Image(String),
    /// This one, if it is newer.
    NewerImage(String),
}

/// A policy that was assigned.
#[derive(Clone, Debug)]
pub struct Wished {
    /// To what.
    pub scope: Scope,
    /// The policy. It is one for images if it has an aim, else for packages, and concerns nobody else.
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
    /// Every schedule that repeats itself.
    pub repeated: Vec<Repeated>,
    /// Every assignment.
    pub wishes: Vec<Wished>,
    /// Every pause.
    pub pauses: Vec<Paused>,
    /// Every cancellation of an instance.
    pub cancelled: Vec<(Scope, Step)>,
    /// The catalogue of images.
    pub images: Vec<Published>,
    /// What the policies for images want.
    pub aims: BTreeMap<String, Aim>,
    /// How long a run may stand where it stands, by the settings of the servers, before it may be given up.
    pub patience: TimeDelta,
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

impl Aim {
    /// Whether it wants this change.
    pub fn wants(&self, change: &Change) -> bool {
        let is_newer = version(&change.from) < version(&change.to);
        match self {
            Self::Newest => is_newer,
            Self::Image(image) => *image == change.to,
            Self::NewerImage(image) => *image == change.to && is_newer,
        }
    }
}

/// The numbers of a version.
fn version(image: &str) -> Vec<u64> {
    let numbers = image.split('.').map(|number| number.parse().unwrap_or(0));
    numbers.collect()
}

impl Book {
    /// The part of it that concerns a node.
    #[must_use]
    pub fn of(&self, member: &Member) -> Self {
        let is_paused = |scope: &str| member.is_in(scope) || scope.starts_with("osupdatepolicy-");
        let mut book = self.clone();
        book.windows.retain(|opened| member.is_in(&opened.scope));
        book.repeated
            .retain(|repeated| member.is_in(&repeated.scope));
        book.wishes.retain(|wished| {
            member.is_in(&wished.scope) && self.aims.contains_key(&wished.policy) == member.is_image
        });
        book.pauses.retain(|paused| is_paused(&paused.scope));
        book.cancelled.retain(|(scope, _)| member.is_in(scope));
        book
    }

    /// Whether a window may have been made, by a schedule that opens once or by one that repeats itself, and may have
    /// counted at some instant of a stretch.
    pub fn has_window(&self, between: Span, window: Span) -> bool {
        let mut once = self.windows.iter().filter(|opened| !opened.is_order);
        let mut again = self.repeated.iter();
        once.any(|opened| opened.window == window && opened.held.may_hold(between))
            || again.any(|one| one.schedule.opens(window) && one.held.may_hold(between))
    }

    /// The windows that may have been open at an instant and end at another.
    pub fn closing(&self, at: Time, end: Time) -> impl Iterator<Item = Span> {
        let once = self.windows.iter().filter(|opened| !opened.is_order);
        let once = once.map(|opened| opened.window);
        let again = self
            .repeated
            .iter()
            .map(move |one| (end - one.schedule.length(), end));
        let is_open = move |window: &Span| window.0 <= at && at < window.1 && window.1 == end;
        once.chain(again)
            .filter(move |window| is_open(window) && self.has_window((at, at), *window))
    }

    /// Whether a schedule that repeats itself may have counted at some instant of a stretch.
    pub fn repeats(&self, between: Span, schedule: &Repeats) -> bool {
        let mut again = self.repeated.iter();
        again.any(|one| one.schedule == *schedule && one.held.may_hold(between))
    }

    /// Whether a window may be one that was ordered for a node.
    pub fn ordered(&self, between: Span, (start, end): Span) -> bool {
        // On the ancestor's wire instants are whole seconds.
        let second = TimeDelta::seconds(1);
        let mut orders = self.windows.iter().filter(|opened| opened.is_order);
        orders.any(|order| {
            order.window.0 - second <= start
                && end <= order.window.1 + second
                && order.held.may_hold(between)
        })
    }

    /// Whether a person may have ordered an update in a stretch.
    pub fn has_order(&self, (from, to): Span) -> bool {
        let mut orders = self.windows.iter().filter(|opened| opened.is_order);
        orders.any(|order| {
            let Step { asked, done } = order.held.made;
            asked <= to && done.is_none_or(|done| from <= done)
        })
    }

    /// Whether a window was cancelled before a question was asked, and no order came after that and before its answer.
    pub fn is_cancelled(&self, window: Span, (asked, answered): Span) -> bool {
        self.cancels((asked, answered))
            .any(|step| window.0 <= step.asked)
    }

    /// Whether what was open since an instant was called off before a question was asked, and no order came after that
    /// and before its answer.
    pub fn is_called_off(&self, opened: Time, (asked, answered): Span) -> bool {
        self.cancels((asked, answered))
            .any(|step| opened <= step.asked)
    }

    /// Whether what has not begun may be called off at an instant: nothing is surely wished for, or somebody cancelled.
    pub fn may_be_called_off(&self, at: Time) -> bool {
        let mut wishes = self.wishes.iter();
        let mut cancels = self.cancelled.iter();
        !wishes.any(|wished| wished.held.must_hold((at, at)))
            || cancels.any(|(_, step)| step.asked <= at)
    }

    /// The cancellations that counted through a whole stretch.
    fn cancels(&self, (asked, answered): Span) -> impl Iterator<Item = &Step> {
        let steps = self.cancelled.iter().map(|(_, step)| step);
        steps.filter(move |step| {
            let is_later = |order: &Opened| {
                let made = order.held.made.asked;
                order.is_order && step.asked <= made && made <= answered
            };
            let counts = step.done.is_some_and(|done| done <= asked);
            counts && !self.windows.iter().any(is_later)
        })
    }

    /// Whether a policy may have been wished for at some instant of a stretch; any policy if none is named.
    pub fn may_wish(&self, policy: Option<&str>, between: Span) -> bool {
        let mut wishes = self.wishes.iter();
        wishes.any(|wished| {
            policy.is_none_or(|policy| policy == wished.policy) && wished.held.may_hold(between)
        })
    }

    /// Whether an image may have been wished for at some instant of a stretch, by a policy if one is named.
    pub fn may_change(&self, policy: Option<&str>, change: &Change, between: Span) -> bool {
        let mut wishes = self.wishes.iter().filter(|wished| {
            policy.is_none_or(|policy| policy == wished.policy) && wished.held.may_hold(between)
        });
        let is_newest = || {
            let mut others = self.images.iter().filter(|one| one.held.must_hold(between));
            !others.any(|other| version(&change.to) < version(&other.image))
        };
        wishes.any(|wished| {
            let aim = self.aims.get(&wished.policy);
            aim.is_some_and(|aim| aim.wants(change) && (*aim != Aim::Newest || is_newest()))
        })
    }

    /// The pause that held a node back through a whole stretch. A pause of a policy counts only if that is named.
    pub fn pause(&self, policy: Option<&str>, between: Span) -> Option<&Paused> {
        self.pauses.iter().find(|paused| {
            let is_other = paused.scope.starts_with("osupdatepolicy-")
                && policy != Some(paused.scope.as_str());
            !is_other && paused.held.must_hold(between)
        })
    }

    /// A pause that held a node back through a whole stretch, because every policy that may have been wished for in it was
    /// paused: whichever applied was.
    pub fn pause_of_all(&self, between: Span) -> Option<&Paused> {
        let wishes = self.wishes.iter();
        let mut wishes = wishes.filter(|wished| wished.held.may_hold(between));
        let held = wishes.try_fold(None, |_, wished| {
            self.pause(Some(&wished.policy), between).map(Some)
        });
        held.flatten()
    }
}
