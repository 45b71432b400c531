//! What operators did: windows, assignments, pauses, orders and images, and the time span in which each was valid; and
//! when the database could not be written.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::eim::cron::RepeatedWindows;
use evenkeel_simulator::ground_truth::{ImageReplacement, Span};

/// A node of the simulated fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedMember {
    /// ID of its host, such as `host-0a1b2c3d`.
    pub host: String,
    /// ID of its instance, such as `inst-0a1b2c3d`.
    pub instance: String,
    /// ID of its site; empty if it has none.
    pub site: String,
    /// Whether its agent is EIM's, which needs a pause between two windows.
    pub is_eim: bool,
    /// Whether its operating system is updated by images.
    pub is_image: bool,
}

/// A request to a server, repeated until there is an answer. It takes effect at some instant in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Time of the first request.
    pub requested_at: Time,
    /// Time of the answer. `None` if there is none, so it is unknown whether the request took effect.
    pub done_at: Option<Time>,
}

/// Time span in which something is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The request that created it.
    pub created: Action,
    /// The request that removed it.
    pub removed: Option<Action>,
}

impl Validity {
    /// Starts a time span that has no end yet.
    pub const fn since(created: Action) -> Self {
        Self { created, removed: None }
    }

    /// Whether it may have been valid at some instant of a time span.
    pub fn may_apply(&self, (from, to): Span) -> bool {
        let is_gone =
            self.removed.and_then(|removed| removed.done_at).is_some_and(|done| done < from);
        self.created.requested_at <= to && !is_gone
    }

    /// Whether it was certainly valid during the whole time span.
    pub fn must_apply(&self, (from, to): Span) -> bool {
        let is_made = self.created.done_at.is_some_and(|done| done <= from);
        is_made && self.removed.is_none_or(|removed| to < removed.requested_at)
    }
}

/// Scope as in the REST API: ID of an instance, a host, a site or a policy, or `project`.
pub type Scope = String;

/// A window that an operator created.
#[derive(Clone, Debug)]
pub struct WindowRecord {
    pub scope: Scope,
    /// Start and end. For an order only the outermost bounds are known.
    pub window: Span,
    /// Whether it comes from an order to update now. Only the latest order of an instance is valid.
    pub is_order: bool,
    pub validity: Validity,
}

/// A repeated schedule.
#[derive(Clone, Debug)]
pub struct ScheduleRecord {
    pub scope: Scope,
    pub schedule: RepeatedWindows,
    pub validity: Validity,
}

/// An image of the catalogue.
#[derive(Clone, Debug)]
pub struct ImageRecord {
    /// Version of the image.
    pub image: String,
    pub validity: Validity,
}

/// Image that a policy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesiredImage {
    Newest,
    /// This image, even if it is older than the current one.
    Image(String),
    /// This image, if it is newer than the current one.
    NewerImage(String),
}

/// An assignment of a policy.
#[derive(Clone, Debug)]
pub struct AssignmentRecord {
    pub scope: Scope,
    /// ID of the policy. It applies to image nodes if it has a desired image, otherwise to package nodes.
    pub policy: String,
    pub validity: Validity,
}

#[derive(Clone, Debug)]
pub struct PauseRecord {
    pub scope: Scope,
    pub validity: Validity,
}

/// Everything that operators did.
#[derive(Clone, Debug, Default)]
pub struct OperatorLog {
    /// Windows, including those of orders.
    pub windows: Vec<WindowRecord>,
    pub repeated_schedules: Vec<ScheduleRecord>,
    pub assignments: Vec<AssignmentRecord>,
    pub pauses: Vec<PauseRecord>,
    /// Orders that cancel, by instance.
    pub cancellations: Vec<(Scope, Action)>,
    /// Images of the catalogue.
    pub images: Vec<ImageRecord>,
    /// Desired image of each image policy, by policy ID.
    pub desired_images: BTreeMap<String, DesiredImage>,
    /// How long a run may stay in one state before the servers time it out, by their settings.
    pub run_timeout: TimeDelta,
    /// From the start of the first node to the end of the last one.
    pub period: Span,
    /// When nothing could be written to the database.
    pub read_only: Vec<Span>,
}

impl SimulatedMember {
    /// Whether the scope includes this node.
    pub fn is_in(&self, scope: &str) -> bool {
        scope == "project" || [&self.host, &self.instance, &self.site].iter().any(|id| *id == scope)
    }
}

impl DesiredImage {
    /// Whether this is an image change that the policy asks for.
    pub fn accepts(&self, change: &ImageReplacement) -> bool {
        let is_newer = version_numbers(&change.from) < version_numbers(&change.to);
        match self {
            Self::Newest => is_newer,
            Self::Image(image) => *image == change.to,
            Self::NewerImage(image) => *image == change.to && is_newer,
        }
    }
}

/// Parts of a version as numbers.
fn version_numbers(image: &str) -> Vec<u64> {
    let numbers = image.split('.').map(|number| number.parse().unwrap_or(0));
    numbers.collect()
}

impl OperatorLog {
    /// The part of the log that concerns a node.
    #[must_use]
    pub fn for_node(&self, member: &SimulatedMember) -> Self {
        let is_paused = |scope: &str| member.is_in(scope) || scope.starts_with("osupdatepolicy-");
        let mut log = self.clone();
        log.windows.retain(|opened| member.is_in(&opened.scope));
        log.repeated_schedules.retain(|repeated| member.is_in(&repeated.scope));
        log.assignments.retain(|assignment| {
            member.is_in(&assignment.scope)
                && self.desired_images.contains_key(&assignment.policy) == member.is_image
        });
        log.pauses.retain(|paused| is_paused(&paused.scope));
        log.cancellations.retain(|(scope, _)| member.is_in(scope));
        log
    }

    /// Whether a window may have been valid at some instant of a time span, from a single or a repeated schedule.
    pub fn has_window(&self, between: Span, window: Span) -> bool {
        let mut once = self.windows.iter().filter(|opened| !opened.is_order);
        let mut again = self.repeated_schedules.iter();
        once.any(|opened| opened.window == window && opened.validity.may_apply(between))
            || again
                .any(|one| one.schedule.contains_window(window) && one.validity.may_apply(between))
    }

    /// Windows that may have been open at `at` and end at `end`.
    pub fn windows_closing_at(&self, at: Time, end: Time) -> impl Iterator<Item = Span> {
        let once = self.windows.iter().filter(|opened| !opened.is_order);
        let once = once.map(|opened| opened.window);
        let again =
            self.repeated_schedules.iter().map(move |one| (end - one.schedule.length(), end));
        let is_open = move |window: &Span| window.0 <= at && at < window.1 && window.1 == end;
        once.chain(again)
            .filter(move |window| is_open(window) && self.has_window((at, at), *window))
    }

    /// Whether a repeated schedule may have been valid at some instant of a time span.
    pub fn has_schedule(&self, between: Span, schedule: &RepeatedWindows) -> bool {
        let mut again = self.repeated_schedules.iter();
        again.any(|one| one.schedule == *schedule && one.validity.may_apply(between))
    }

    /// Whether a window may come from an order for a node.
    pub fn has_ordered_window(&self, between: Span, (start, end): Span) -> bool {
        // EIM's protocol has whole seconds.
        let second = TimeDelta::seconds(1);
        let mut orders = self.windows.iter().filter(|opened| opened.is_order);
        orders.any(|order| {
            order.window.0 - second <= start
                && end <= order.window.1 + second
                && order.validity.may_apply(between)
        })
    }

    /// Whether an order to update may have been given in a time span.
    pub fn has_order(&self, (from, to): Span) -> bool {
        let mut orders = self.windows.iter().filter(|opened| opened.is_order);
        orders.any(|order| {
            let Action { requested_at, done_at: done } = order.validity.created;
            requested_at <= to && done.is_none_or(|done| from <= done)
        })
    }

    /// Whether a window was cancelled before a request was sent, with no order between the cancellation and the answer.
    pub fn is_cancelled(&self, window: Span, (requested_at, answered): Span) -> bool {
        self.effective_cancellations((requested_at, answered))
            .any(|action| window.0 <= action.requested_at)
    }

    /// Whether something that is open since an instant was called off before a request was sent, with no order
    /// between the cancellation and the answer.
    pub fn is_called_off(&self, opened: Time, (requested_at, answered): Span) -> bool {
        self.effective_cancellations((requested_at, answered))
            .any(|action| opened <= action.requested_at)
    }

    /// Whether an attempt that has not started may be called off: no update is surely desired, or it was cancelled.
    pub fn may_be_called_off(&self, at: Time) -> bool {
        let mut assignments = self.assignments.iter();
        let mut cancels = self.cancellations.iter();
        !assignments.any(|assignment| assignment.validity.must_apply((at, at)))
            || cancels.any(|(_, action)| action.requested_at <= at)
    }

    /// Cancellations that were in effect during a whole time span.
    fn effective_cancellations(
        &self,
        (requested_at, answered): Span,
    ) -> impl Iterator<Item = &Action> {
        let steps = self.cancellations.iter().map(|(_, action)| action);
        steps.filter(move |action| {
            let is_later = |order: &WindowRecord| {
                let ordered_at = order.validity.created.requested_at;
                order.is_order && action.requested_at <= ordered_at && ordered_at <= answered
            };
            let counts = action.done_at.is_some_and(|done| done <= requested_at);
            counts && !self.windows.iter().any(is_later)
        })
    }

    /// Whether a policy may have been assigned at some instant of a time span. `None` means any policy.
    pub fn may_be_assigned(&self, policy: Option<&str>, between: Span) -> bool {
        let mut assignments = self.assignments.iter();
        assignments.any(|assignment| {
            policy.is_none_or(|policy| policy == assignment.policy)
                && assignment.validity.may_apply(between)
        })
    }

    /// Whether an image may have been desired at some instant of a time span, by any policy or by this one.
    pub fn may_desire_image(
        &self,
        policy: Option<&str>,
        change: &ImageReplacement,
        between: Span,
    ) -> bool {
        let mut assignments = self.assignments.iter().filter(|assignment| {
            policy.is_none_or(|policy| policy == assignment.policy)
                && assignment.validity.may_apply(between)
        });
        let is_newest = || {
            let mut others = self.images.iter().filter(|one| one.validity.must_apply(between));
            !others.any(|other| version_numbers(&change.to) < version_numbers(&other.image))
        };
        assignments.any(|assignment| {
            let desired = self.desired_images.get(&assignment.policy);
            desired.is_some_and(|desired| {
                desired.accepts(change) && (*desired != DesiredImage::Newest || is_newest())
            })
        })
    }

    /// A pause that covered the whole time span. A pause of a policy is considered only if that policy is given.
    pub fn find_pause(&self, policy: Option<&str>, between: Span) -> Option<&PauseRecord> {
        self.pauses.iter().find(|paused| {
            let is_other = paused.scope.starts_with("osupdatepolicy-")
                && policy != Some(paused.scope.as_str());
            !is_other && paused.validity.must_apply(between)
        })
    }

    /// A pause that covered the whole time span, if every policy that may have been assigned was paused.
    pub fn find_pause_of_all_policies(&self, between: Span) -> Option<&PauseRecord> {
        let assignments = self.assignments.iter();
        let mut assignments =
            assignments.filter(|assignment| assignment.validity.may_apply(between));
        let pause = assignments.try_fold(None, |_, assignment| {
            self.find_pause(Some(&assignment.policy), between).map(Some)
        });
        pause.flatten()
    }
}
