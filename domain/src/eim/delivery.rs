//! The answer to an EIM agent, and the state that must be stored with it.

use serde::{Deserialize, Serialize};

use chrono::TimeDelta;

use crate::Time;
use crate::assignment::{AssignedPolicy, Scope};
use crate::decide::{
    Act, Decision, NodeFacts, Reason, Target, TargetKind, UpdateIntent, Verdict, resolve_target,
};
use crate::eim::repeated::{self, WireRepeatedSchedule};
use crate::id::PolicyId;
use crate::order::OrderKind;
use crate::os::Image;
use crate::policy::UpdatePolicy;
use crate::run::OpenRun;
use crate::window::{Opener, Window};

/// How long the agent gets no window before it gets another one. This is longer than it retries a call whose answer was
/// lost, so it has seen the empty answer.
pub(super) const REPLACEMENT_GAP: TimeDelta = TimeDelta::seconds(15);

/// How long after the end of a window the agent may still report an update.
pub(super) const LATE_REPORT_PERIOD: TimeDelta = TimeDelta::hours(1);

/// Maximum difference between a node's clock and the server's, in either direction.
pub(super) const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::minutes(5);

/// An agent that receives an open window begins at once if this much of it is left, and otherwise never begins.
pub(super) const MIN_REMAINING_WINDOW: TimeDelta = TimeDelta::minutes(10);

/// The last answer, stored as one JSON value. The samples that follow are checked against it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryState {
    /// The single schedule, as `[start, end)`.
    pub single: Option<(Time, Time)>,
    /// Of the schedules that the agent repeats itself: the window that is open or was last, otherwise the next one.
    pub occurrence: Option<(Time, Time)>,
    /// A window that was withdrawn or replaced after it opened, with the time of withdrawal as its end. It ends before
    /// it starts if only the node's clock can have opened it.
    pub past: Option<(Time, Time)>,
    /// Policy of the delivered target.
    pub policy: Option<PolicyId>,
    /// Delivered image, without its signatures.
    pub image: Option<Image>,
    /// Whether the target was a kernel command line for a node that is updated by images.
    pub kernel: bool,
    /// When a window was withdrawn so that another one can follow.
    pub cleared_at: Option<Time>,
    /// A window with a counted slot that the node did not use. The node yields to the others until it begins an update.
    pub unused: Option<(Time, Time)>,
    /// After Evenkeel's agent has replaced this one: when the old agent was last heard, or when the replacement was
    /// noticed.
    pub last_heard_at: Option<Time>,
}

impl DeliveryState {
    /// Whether a delivered window is open or ended less than an hour ago. An update may end after its window.
    #[must_use]
    pub fn was_open(&self, now: Time) -> bool {
        self.may_begin_until(now).is_some()
    }

    /// Whether the node may have begun an update or may still end one. A window may open earlier by the node's clock,
    /// which may be ahead of the server's.
    #[must_use]
    pub fn may_have_begun(&self, now: Time) -> bool {
        self.open_until(now, MAX_CLOCK_SKEW).is_some()
    }

    /// Until when a replaced EIM agent may still begin an update, or report that it began, according to its last answer.
    #[must_use]
    pub fn may_begin_until(&self, now: Time) -> Option<Time> {
        self.open_until(now, TimeDelta::zero())
    }

    /// Until when an update may be reported if it was begun by a clock that is `ahead` of the server's.
    fn open_until(&self, now: Time, ahead: TimeDelta) -> Option<Time> {
        let spans = [self.single, self.occurrence, self.past];
        let spans = spans.into_iter().flatten();
        let spans = spans.map(|(start, end)| (start - ahead, end));
        let open =
            spans.filter(|(start, end)| *start <= now.min(*end) && now - LATE_REPORT_PERIOD < *end);
        open.map(|(_, end)| end + LATE_REPORT_PERIOD).max()
    }

    /// The delivered target, given the policy that it came from. An update that was not announced is attributed to it.
    #[must_use]
    pub fn target(&self, policy: &UpdatePolicy) -> Option<Target> {
        if self.policy != Some(policy.id) {
            return None;
        }
        if self.kernel {
            return Target::for_kernel(policy);
        }
        Some(match &self.image {
            Some(image) => Target::for_image(policy, image.clone()),
            None => Target::for_packages(policy),
        })
    }

    /// Records the target of the new answer. Without a target the last one stays while late reports of it are possible.
    fn record_target(&mut self, target: Option<&Target>, before: &Self, now: Time) {
        if let Some(target) = target {
            self.policy = Some(target.policy);
            self.kernel = matches!(target.kind, TargetKind::Kernel { .. });
            self.image = match &target.kind {
                // EIM agents do not check signatures.
                TargetKind::Image(image) => Some(image.without_signatures()),
                _ => None,
            };
        } else if before.may_have_begun(now) {
            self.policy = before.policy;
            self.kernel = before.kernel;
            self.image.clone_from(&before.image);
        }
    }
}

/// The facts about a node that polls, and the decision for it.
#[derive(Clone, Copy, Debug)]
pub struct AnswerInput<'a> {
    /// Facts about the node.
    pub facts: &'a NodeFacts,
    /// Policies, windows and orders that apply to the node.
    pub desired: &'a UpdateIntent,
    /// Open run of the node.
    pub open_run: Option<&'a OpenRun>,
    /// Decision for the node.
    pub decision: &'a Decision,
    /// Last answer to the node.
    pub delivered: &'a DeliveryState,
}

/// An answer in the agent's terms. Every field is present, possibly empty: a missing schedule would cancel nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Kernel command line; empty if it does not change.
    pub kernel_command: String,
    /// Package sources, one DEB822 stanza each.
    pub custom_repos: Vec<String>,
    /// Names of packages to install, one a line, without versions.
    pub installed_packages: String,
    /// Image to install.
    pub image: Option<Image>,
    /// Window of the single schedule.
    pub single: Option<(Time, Time)>,
    /// The schedules that the agent repeats itself, in the order of their ids.
    pub repeated: Vec<WireRepeatedSchedule>,
    /// Slot for this answer. The transaction of this answer takes or renews it; without one, it frees the slot of the
    /// instance.
    pub slot: Option<Slot>,
    /// State to store if it differs from the stored one.
    pub delivered: DeliveryState,
}

/// A slot of an assignment with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Assignment that the slot belongs to.
    pub scope: Scope,
    /// When the slot becomes free although nothing was reported. `None` while a run is open: the end or the time-out of
    /// the run frees it.
    pub until: Option<Time>,
}

impl Answer {
    /// Whether the instance holds a slot from now on.
    #[must_use]
    pub const fn holds_slot(&self) -> bool {
        self.slot.is_some()
    }
}

/// Renders a decision for an agent that starts by itself.
///
/// A delivered window that is open does not change until it ends. Answers without a window come before a changed window,
/// because the agent ignores a window that replaces another. The answer has no window without a target that the node can
/// apply, while nothing may start, or without a slot where slots are counted.
#[must_use]
pub fn render_answer(input: &AnswerInput<'_>, now: Time) -> Answer {
    let before = input.delivered;
    let target = input.target();
    let mut answer = Answer::default();
    if let Some(target) = &target {
        answer.fill(&target.kind);
    }
    let mut chosen = None;
    let assigned = input.desired.effective_policy(input.facts);
    if input.desired.unreadable.is_some() {
        // Nothing starts. An update that has begun continues in its window, whatever can no longer be read.
        if target.is_some() && input.has_begun() {
            chosen = input.open_single(now);
            if chosen.is_none() {
                answer.delivered.occurrence = input.open_occurrence(now);
                answer.repeated = input.repeated_in(answer.delivered.occurrence, now);
            }
        }
    } else if let (Some(target), Some(assigned)) = (&target, assigned) {
        let plan = WindowPlan::new(input, assigned, target, now);
        match input.desired.hold_reason(assigned) {
            // An update that is done in its window does not begin again, so it occupies no slot.
            None if assigned.limits.is_limited() && input.is_done_in_window() => (),
            None => {
                chosen = plan.choose_window();
                answer.delivered.occurrence = plan.occurrence();
                answer.repeated = plan.repeated.into_iter().map(|one| one.1).collect();
            }
            // An update that has begun continues in its window.
            Some(
                Reason::NoFreeSlot { .. } | Reason::YieldsSlot { .. } | Reason::Stopped { .. },
            ) if input.has_begun() => {
                chosen = plan.current_window();
            }
            Some(_) => (),
        }
    }
    let replaced = before.single.is_some() && before.single != chosen;
    let resting = before.cleared_at.filter(|at| now < *at + REPLACEMENT_GAP);
    let cleared_at = if replaced { Some(now) } else { resting };
    answer.single = if cleared_at.is_some() { None } else { chosen };
    answer.slot = assigned.and_then(|assigned| input.slot(assigned, chosen, answer.single));
    answer.delivered.single = answer.single;
    answer.delivered.cleared_at = cleared_at;
    answer.delivered.past = past_window(before, &answer.delivered, now);
    if assigned.is_some_and(|assigned| assigned.limits.max_concurrent.is_some()) {
        answer.delivered.unused = before.unused_window(input.facts, input.open_run, now);
    }
    answer.delivered.record_target(target.as_ref(), before, now);
    answer
}

impl Answer {
    fn fill(&mut self, kind: &TargetKind) {
        match kind {
            TargetKind::Packages {
                exactly,
                sources,
                kernel_command,
                // EIM agents have no package rules.
                rules: _,
                allow_downgrades: _,
            } => {
                self.kernel_command.clone_from(kernel_command);
                self.custom_repos.clone_from(sources);
                let names = exactly.iter().flatten();
                let names = names.map(|package| package.name.to_string());
                self.installed_packages = names.collect::<Vec<_>>().join("\n");
            }
            TargetKind::Image(image) => self.image = Some(image.clone()),
            TargetKind::Kernel { command } => self.kernel_command.clone_from(command),
        }
    }
}

impl AnswerInput<'_> {
    /// The target to deliver: the frozen one of the open run, otherwise the one that applies.
    fn target(&self) -> Option<Target> {
        let refused = matches!(self.decision.reason, Reason::NotTrusted | Reason::NotProvisioned);
        if refused || matches!(self.decision.act, Act::Cancel { .. }) {
            return None;
        }
        if let Some(frozen) = self.open_run.and_then(|run| run.target.clone()) {
            return Some(frozen);
        }
        let target = resolve_target(self.facts, self.desired).ok()?;
        let is_deliverable = match &target.kind {
            TargetKind::Packages { .. } => true,
            // The agent would fetch from an empty address.
            TargetKind::Image(image) => !image.url.is_empty(),
            // The agent would restart the node in every window.
            TargetKind::Kernel { .. } => !self.was_applied(&target),
        };
        is_deliverable.then_some(target)
    }

    fn was_applied(&self, target: &Target) -> bool {
        let end = self.facts.last_run.as_ref();
        end.is_some_and(|end| {
            end.verdict == Verdict::Good && end.target.as_deref() == Some(target.digest().as_str())
        })
    }

    /// Whether the update is done in this window, successfully or not.
    fn is_done_in_window(&self) -> bool {
        matches!(self.decision.reason, Reason::UpToDate { .. } | Reason::FailedInWindow { .. })
    }

    fn has_begun(&self) -> bool {
        self.open_run.is_some_and(|run| !run.state.is_untouched())
    }

    /// The delivered single window, if it is open and no order closed it. Needs no schedule and no policy.
    fn open_single(&self, now: Time) -> Option<(Time, Time)> {
        self.delivered.single.filter(|span| self.is_open(*span, now))
    }

    /// The delivered window of a schedule that the agent repeats, as [`Self::open_single`].
    fn open_occurrence(&self, now: Time) -> Option<(Time, Time)> {
        self.delivered.occurrence.filter(|span| self.is_open(*span, now))
    }

    /// Whether a delivered window is open, at least by the node's clock, and no order closed it.
    fn is_open(&self, (start, end): (Time, Time), now: Time) -> bool {
        let order = self.desired.order.as_ref();
        let is_closed =
            order.is_some_and(|order| order.kind == OrderKind::Cancel && start <= order.at);
        start - MAX_CLOCK_SKEW <= now && now < end && !is_closed
    }

    /// The schedules that open a delivered window, of those that can be read and that the agent repeats.
    fn repeated_in(
        &self,
        occurrence: Option<(Time, Time)>,
        now: Time,
    ) -> Vec<WireRepeatedSchedule> {
        if has_active_order(self.desired, now) {
            return Vec::new();
        }
        let windows = self.desired.windows.as_slice().iter();
        let same = windows.filter(|window| Some((window.start, window.end)) == occurrence);
        let openers: Vec<Opener> = same.map(|window| window.opener).collect();
        let schedules = repeated::to_wire(&self.desired.repeated_schedules).into_iter();
        let kept = schedules.filter(|(opener, _)| openers.contains(opener));
        kept.map(|(_, schedule)| schedule).collect()
    }

    /// The slot that the instance holds from now on.
    fn slot(
        &self,
        assigned: &AssignedPolicy,
        chosen: Option<(Time, Time)>,
        single: Option<(Time, Time)>,
    ) -> Option<Slot> {
        if !assigned.limits.is_limited() {
            return None;
        }
        let scope = assigned.scope;
        let mine = assigned.usage.holds_slot;
        if self.has_begun() {
            // While an object cannot be read, the slot may belong to a nearer assignment than this one.
            // The store releases no slot of a node that has begun.
            let may_take = self.desired.unreadable.is_none();
            let holds_slot = mine || (may_take && single.is_some());
            return holds_slot.then_some(Slot { scope, until: None });
        }
        // Between two windows the instance holds its slot, so that no other one takes it.
        let (_, end) = single.or(chosen.filter(|_| mine))?;
        Some(Slot { scope, until: Some(end + LATE_REPORT_PERIOD) })
    }
}

/// The windows that a node may get, and in which form.
struct WindowPlan<'a> {
    /// Windows to deliver as a single schedule.
    concrete: Vec<Window>,
    /// Schedules that the agent repeats itself, and the id of each.
    repeated: Vec<(Opener, WireRepeatedSchedule)>,
    windows: Vec<Window>,
    input: &'a AnswerInput<'a>,
    now: Time,
}

impl<'a> WindowPlan<'a> {
    fn new(
        input: &'a AnswerInput<'a>,
        assigned: &AssignedPolicy,
        target: &Target,
        now: Time,
    ) -> Self {
        let desired = input.desired;
        let windows = desired.effective_windows(now).as_slice().to_vec();
        let is_counted = assigned.limits.is_limited();
        // Counted or ordered windows are delivered one by one: a schedule that the agent repeats would continue.
        let repeated = if is_counted || has_active_order(desired, now) {
            Vec::new()
        } else {
            repeated::to_wire(&desired.repeated_schedules)
        };
        // A counted window is delivered when the node may begin, or may fetch its image.
        let ahead = lead_time(&target.kind, desired);
        let is_concrete = |window: &&Window| {
            let is_repeated = is_repeated(&repeated, window);
            let is_due = !is_counted || window.start - ahead <= now;
            !is_repeated && is_due
        };
        Self {
            concrete: windows.iter().filter(is_concrete).copied().collect(),
            repeated,
            windows,
            input,
            now,
        }
    }

    /// The ordered window, which is urgent; the delivered window while it is open and still applies; otherwise the open
    /// one that ends first, with preference for those with enough time left; otherwise the next one.
    fn choose_window(&self) -> Option<(Time, Time)> {
        let now = self.now;
        let span = |window: &Window| (window.start, window.end);
        let open = || self.concrete.iter().filter(|window| window.is_open(now));
        let ordered = open().find(|window| window.opener == Opener::Order);
        // Another open window does not restart an update that is done.
        let is_settled = self.input.is_done_in_window();
        if let Some(ordered) = ordered.filter(|_| self.input.open_run.is_none() && !is_settled) {
            return Some(span(ordered));
        }
        let fresh = open().filter(|_| !is_settled);
        let fresh =
            fresh.min_by_key(|window| (window.end - now < MIN_REMAINING_WINDOW, window.end));
        let next = self.concrete.iter().filter(|window| now < window.start);
        let next = next.min_by_key(|window| (window.start, window.end));
        let current = self.current_window();
        current.or_else(|| fresh.map(span)).or_else(|| next.map(span))
    }

    /// The delivered window while it is open and still applies.
    fn current_window(&self) -> Option<(Time, Time)> {
        let open = self.concrete.iter().filter(|window| window.is_open(self.now));
        let mut open = open.map(|window| (window.start, window.end));
        open.find(|span| self.input.delivered.single == Some(*span))
    }

    /// The window of the agent's own schedules by which its samples are judged.
    fn occurrence(&self) -> Option<(Time, Time)> {
        let now = self.now;
        let of_repeated = |window: &&Window| is_repeated(&self.repeated, window);
        let windows = || self.windows.iter().filter(of_repeated);
        let open = windows().filter(|window| window.is_open(now));
        let open = open.max_by_key(|window| window.end);
        let span = |window: &Window| (window.start, window.end);
        let recent = self.input.delivered.occurrence;
        let recent = recent.filter(|(start, end)| *start <= now && now - LATE_REPORT_PERIOD < *end);
        open.map(span).or(recent).or_else(|| windows().find(|window| now < window.start).map(span))
    }
}

/// Whether one of these schedules, which are sorted by opener, opens the window.
fn is_repeated(schedules: &[(Opener, WireRepeatedSchedule)], window: &Window) -> bool {
    schedules.binary_search_by_key(&window.opener, |(opener, _)| *opener).is_ok()
}

/// How long before its window a target is of use to the agent. It fetches images ahead, but not packages.
pub(super) const fn lead_time(kind: &TargetKind, desired: &UpdateIntent) -> TimeDelta {
    match kind {
        TargetKind::Image(_) => desired.fetch_ahead,
        TargetKind::Packages { .. } | TargetKind::Kernel { .. } => TimeDelta::zero(),
    }
}

/// Whether an operator's order still makes a difference.
fn has_active_order(desired: &UpdateIntent, now: Time) -> bool {
    desired.order.as_ref().is_some_and(|order| match order.kind {
        OrderKind::Now => now < order.until,
        OrderKind::Cancel => {
            let mut windows = desired.windows.as_slice().iter();
            windows.any(|window| window.start <= order.at && now < window.end)
        }
    })
}

/// A window that was open, at least by the node's clock, and is no longer delivered. An update may have begun in it.
fn past_window(before: &DeliveryState, after: &DeliveryState, now: Time) -> Option<(Time, Time)> {
    let withdrawn = |old: Option<(Time, Time)>, new: Option<(Time, Time)>| {
        old.filter(|(start, _)| old != new && *start - MAX_CLOCK_SKEW <= now)
            .map(|(start, end)| (start, end.min(now)))
    };
    let single = withdrawn(before.single, after.single);
    let occurrence = withdrawn(before.occurrence, after.occurrence);
    let spans = [single, occurrence, before.past].into_iter().flatten();
    let recent = spans.filter(|(_, end)| now - LATE_REPORT_PERIOD < *end);
    recent.max_by_key(|(start, end)| (start <= end, *end))
}
