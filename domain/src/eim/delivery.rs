//! What such an agent is answered, and what must be remembered of it (southbound section 9.4).

use serde::{Deserialize, Serialize};

use chrono::TimeDelta;

use crate::Time;
use crate::assignment::{Assigned, Scope};
use crate::decide::{
    Act, Decision, NodeFacts, Reason, Target, TargetKind, Verdict, Wanted, target,
};
use crate::eim::repeated::{self, RepeatedOnWire};
use crate::id::PolicyId;
use crate::order::OrderKind;
use crate::os::Image;
use crate::policy::UpdatePolicy;
use crate::run::OpenRun;
use crate::window::{Opener, Window};

/// For how long the agent is answered without a window before another one: longer than it repeats a call whose answer
/// was lost, so that it has seen the empty answer (southbound section 3.3).
pub(super) const REST: TimeDelta = TimeDelta::seconds(15);

/// For how long after its window something may still be heard of an update.
pub(super) const ECHO: TimeDelta = TimeDelta::hours(1);

/// So far a node's clock may be from ours, either way.
pub(super) const SKEW: TimeDelta = TimeDelta::minutes(5);

/// An agent that is told of a window that is open begins at once if so much of it is left, else never (southbound
/// section 3.5).
pub(super) const WORTHWHILE: TimeDelta = TimeDelta::minutes(10);

/// What was answered last. Its echo is judged against this. Kept as one JSON value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Delivered {
    /// The single schedule, as `[start, end)`.
    pub single: Option<(Time, Time)>,
    /// Of the schedules that the agent repeats itself: the window that is open or was last, else the next one.
    pub occurrence: Option<(Time, Time)>,
    /// A window that was taken back, or replaced, after it had opened: until then. It ends before it starts if it had
    /// opened by no clock but perhaps the node's.
    pub past: Option<(Time, Time)>,
    /// The policy whose wish went with it.
    pub policy: Option<PolicyId>,
    /// The image that went with it, without its signatures.
    pub image: Option<Image>,
    /// Whether it was the command line of the kernel for a system that is updated by images.
    pub kernel: bool,
    /// When a window was taken back so that another can follow.
    pub cleared_at: Option<Time>,
    /// A window of a counted slot that the node let pass: it goes behind the others until it begins something.
    pub unused: Option<(Time, Time)>,
    /// Since our own agent has taken its place: when it was heard last, or when that was.
    pub last_word: Option<Time>,
}

impl Delivered {
    /// Whether a delivered window was open, or was over for less than an hour: an update may end after its window.
    #[must_use]
    pub fn was_open(&self, now: Time) -> bool {
        self.may_begin_until(now).is_some()
    }

    /// Whether the node may have begun something, or may still end it: by its own clock, which may be ahead of ours, a
    /// window opens earlier.
    #[must_use]
    pub fn may_have_begun(&self, now: Time) -> bool {
        self.open_until(now, SKEW).is_some()
    }

    /// Until when an agent that ours has replaced may still begin, or say that it began, by what it was told; none if it
    /// may not.
    #[must_use]
    pub fn may_begin_until(&self, now: Time) -> Option<Time> {
        self.open_until(now, TimeDelta::zero())
    }

    /// Until when something may be heard of what was begun by a clock that is so far ahead of ours.
    fn open_until(&self, now: Time, ahead: TimeDelta) -> Option<Time> {
        let spans = [self.single, self.occurrence, self.past];
        let spans = spans.into_iter().flatten();
        let spans = spans.map(|(start, end)| (start - ahead, end));
        let open = spans.filter(|(start, end)| *start <= now.min(*end) && now - ECHO < *end);
        open.map(|(_, end)| end + ECHO).max()
    }

    /// The wish that was delivered, given the policy that it came from: what an update is for that nobody announced.
    #[must_use]
    pub fn target(&self, policy: &UpdatePolicy) -> Option<Target> {
        if self.policy != Some(policy.id) {
            return None;
        }
        if self.kernel {
            return Target::of_kernel(policy);
        }
        Some(match &self.image {
            Some(image) => Target::of_image(policy, image.clone()),
            None => Target::of_packages(policy),
        })
    }

    /// Takes over what is told now. Without a wish the last one is remembered while an echo of it may come.
    fn told(&mut self, wish: Option<&Target>, before: &Self, now: Time) {
        if let Some(target) = wish {
            self.policy = Some(target.policy);
            self.kernel = matches!(target.wish, TargetKind::Kernel { .. });
            self.image = match &target.wish {
                // Such an agent checks no signatures.
                TargetKind::Image(image) => Some(image.unsigned()),
                _ => None,
            };
        } else if before.may_have_begun(now) {
            self.policy = before.policy;
            self.kernel = before.kernel;
            self.image.clone_from(&before.image);
        }
    }
}

/// A node that asks, and what is known, wished for and decided for it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What is known about it.
    pub known: &'a NodeFacts,
    /// What applies to it.
    pub wanted: &'a Wanted,
    /// Its run that is not over.
    pub open: Option<&'a OpenRun>,
    /// What it should do.
    pub decision: &'a Decision,
    /// What it was answered last.
    pub before: &'a Delivered,
}

/// An answer in the agent's own terms. Everything is present, possibly empty: an absent schedule would cancel nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The kernel's command line; empty if it is not to be changed.
    pub kernel_command: String,
    /// Sources, one DEB822 stanza each.
    pub custom_repos: Vec<String>,
    /// Names of packages to install, one a line, without versions.
    pub installed_packages: String,
    /// The image; none if there is none to install.
    pub image: Option<Image>,
    /// The window.
    pub single: Option<(Time, Time)>,
    /// The schedules that the agent repeats itself, in the order of their ids.
    pub repeated: Vec<RepeatedOnWire>,
    /// The slot that goes with it. It is taken, or kept, in the transaction that gives this answer; without one, the
    /// slot that the instance held is free.
    pub slot: Option<Slot>,
    /// What is to be remembered if it differs from what was remembered before.
    pub delivered: Delivered,
}

/// One of the places that an assignment with limits has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The assignment.
    pub scope: Scope,
    /// When it is free again although nothing was heard; none while a run is open: then its end or time-out frees it.
    pub until: Option<Time>,
}

impl Answer {
    /// Whether the instance holds a slot from now on.
    #[must_use]
    pub const fn wants_slot(&self) -> bool {
        self.slot.is_some()
    }
}

/// Renders a decision for an agent that starts by itself.
///
/// A delivered window that is open stays as it is until it ends. A window that changes is delivered after answers
/// without any, because the agent ignores a replaced one. There is no window without a wish that the node can obey,
/// none while nothing may start, and none without a slot where they are counted.
#[must_use]
pub fn answer(asked: &Asked<'_>, now: Time) -> Answer {
    let before = asked.before;
    let wish = asked.wish();
    let mut answer = Answer::default();
    if let Some(target) = &wish {
        answer.fill(&target.wish);
    }
    let mut chosen = None;
    let assigned = asked.wanted.nearest(asked.known);
    if let (Some(target), Some(assigned)) = (&wish, assigned) {
        let plan = Plan::of(asked, assigned, target, now);
        match asked.wanted.held(assigned) {
            // What was seen through in its window does not begin once more, so it holds nobody up.
            None if assigned.limits.any() && asked.is_settled() => (),
            None => {
                chosen = plan.choose();
                answer.delivered.occurrence = plan.occurrence();
                answer.repeated = plan.repeated.into_iter().map(|one| one.1).collect();
            }
            // What has begun goes on in its window.
            Some(Reason::NoFreeSlot { .. } | Reason::GivesWay { .. } | Reason::Stopped { .. })
                if asked.has_begun() =>
            {
                chosen = plan.kept();
            }
            Some(_) => (),
        }
    }
    let replaced = before.single.is_some() && before.single != chosen;
    let resting = before.cleared_at.filter(|at| now < *at + REST);
    let cleared_at = if replaced { Some(now) } else { resting };
    answer.single = if cleared_at.is_some() { None } else { chosen };
    answer.slot = assigned.and_then(|assigned| asked.slot(assigned, chosen, answer.single));
    answer.delivered.single = answer.single;
    answer.delivered.cleared_at = cleared_at;
    answer.delivered.past = past(before, &answer.delivered, now);
    if assigned.is_some_and(|assigned| assigned.limits.max_concurrent.is_some()) {
        answer.delivered.unused = before.passed(asked.known, asked.open, now);
    }
    answer.delivered.told(wish.as_ref(), before, now);
    answer
}

impl Answer {
    fn fill(&mut self, wish: &TargetKind) {
        match wish {
            TargetKind::Packages {
                exactly,
                sources,
                kernel_command,
                // The ancestor's agents know no rules.
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

impl Asked<'_> {
    /// The wish that the node is told: that of its open run, which is frozen, else the one that applies.
    fn wish(&self) -> Option<Target> {
        let refused = matches!(
            self.decision.because,
            Reason::NotTrusted | Reason::NotProvisioned
        );
        if refused || matches!(self.decision.act, Act::Cancel { .. }) {
            return None;
        }
        if let Some(frozen) = self.open.and_then(|run| run.target.clone()) {
            return Some(frozen);
        }
        let wish = target(self.known, self.wanted).ok()?;
        let is_deliverable = match &wish.wish {
            TargetKind::Packages { .. } => true,
            // The agent would fetch an empty address.
            TargetKind::Image(image) => !image.url.is_empty(),
            // It would restart the node in every window (southbound section 3.7).
            TargetKind::Kernel { .. } => !self.was_done(&wish),
        };
        is_deliverable.then_some(wish)
    }

    fn was_done(&self, wish: &Target) -> bool {
        let end = self.known.last_end.as_ref();
        end.is_some_and(|end| {
            end.verdict == Verdict::Good && end.target.as_deref() == Some(wish.digest().as_str())
        })
    }

    /// Whether the wish was seen through in this window, well or not.
    fn is_settled(&self) -> bool {
        matches!(
            self.decision.because,
            Reason::UpToDate { .. } | Reason::FailedInWindow { .. }
        )
    }

    fn has_begun(&self) -> bool {
        self.open.is_some_and(|run| !run.state.is_untouched())
    }

    /// The slot that the instance holds from now on.
    fn slot(
        &self,
        assigned: &Assigned,
        chosen: Option<(Time, Time)>,
        single: Option<(Time, Time)>,
    ) -> Option<Slot> {
        if !assigned.limits.any() {
            return None;
        }
        let scope = assigned.scope;
        let mine = assigned.brake.mine;
        if self.has_begun() {
            let held = mine || single.is_some();
            return held.then_some(Slot { scope, until: None });
        }
        // Between two windows the slot is kept, so that nobody takes it meanwhile.
        let (_, end) = single.or(chosen.filter(|_| mine))?;
        Some(Slot {
            scope,
            until: Some(end + ECHO),
        })
    }
}

/// The windows that a node may be told, and how.
struct Plan<'a> {
    /// Each as a window of its own.
    concrete: Vec<Window>,
    /// The schedules that the agent repeats itself, and the id of each.
    repeated: Vec<(Opener, RepeatedOnWire)>,
    windows: Vec<Window>,
    asked: &'a Asked<'a>,
    now: Time,
}

impl<'a> Plan<'a> {
    fn of(asked: &'a Asked<'a>, assigned: &Assigned, wish: &Target, now: Time) -> Self {
        let wanted = asked.wanted;
        let windows = wanted.windows_now(now).as_slice().to_vec();
        let is_counted = assigned.limits.any();
        // What is counted or ordered is said window by window, because a schedule of the agent's own would go on.
        let repeated = if is_counted || has_order(wanted, now) {
            Vec::new()
        } else {
            repeated::on_wire(&wanted.repeated)
        };
        // What is counted is said when it counts: when the node may begin, or may fetch its image.
        let ahead = ahead(&wish.wish, wanted);
        let is_told = |window: &&Window| {
            let is_repeated = repeated.iter().any(|(opener, _)| *opener == window.opener);
            let is_due = !is_counted || window.start - ahead <= now;
            !is_repeated && is_due
        };
        Self {
            concrete: windows.iter().filter(is_told).copied().collect(),
            repeated,
            windows,
            asked,
            now,
        }
    }

    /// The window that was ordered, for it is urgent; the delivered window while it is open and still wanted; else the
    /// open one that ends first, of those that are worth it if there are any; else the next one.
    fn choose(&self) -> Option<(Time, Time)> {
        let now = self.now;
        let span = |window: &Window| (window.start, window.end);
        let open = || self.concrete.iter().filter(|window| window.is_open(now));
        let ordered = open().find(|window| window.opener == Opener::Order);
        // What was seen through is not begun once more by another window that is open.
        let is_settled = self.asked.is_settled();
        if let Some(ordered) = ordered.filter(|_| self.asked.open.is_none() && !is_settled) {
            return Some(span(ordered));
        }
        let fresh = open().filter(|_| !is_settled);
        let fresh = fresh.min_by_key(|window| (window.end - now < WORTHWHILE, window.end));
        let next = self.concrete.iter().filter(|window| now < window.start);
        let next = next.min_by_key(|window| (window.start, window.end));
        let kept = self.kept();
        kept.or_else(|| fresh.map(span)).or_else(|| next.map(span))
    }

    /// The delivered window while it is open and still wanted.
    fn kept(&self) -> Option<(Time, Time)> {
        let open = self
            .concrete
            .iter()
            .filter(|window| window.is_open(self.now));
        let mut open = open.map(|window| (window.start, window.end));
        open.find(|span| self.asked.before.single == Some(*span))
    }

    /// The window of the schedules that the agent repeats itself by which what it says can be judged.
    fn occurrence(&self) -> Option<(Time, Time)> {
        let now = self.now;
        let of_repeated = |window: &&Window| {
            let mut repeated = self.repeated.iter();
            repeated.any(|(opener, _)| *opener == window.opener)
        };
        let windows = || self.windows.iter().filter(of_repeated);
        let open = windows().filter(|window| window.is_open(now));
        let open = open.max_by_key(|window| window.end);
        let span = |window: &Window| (window.start, window.end);
        let recent = self.asked.before.occurrence;
        let recent = recent.filter(|(start, end)| *start <= now && now - ECHO < *end);
        open.map(span)
            .or(recent)
            .or_else(|| windows().find(|window| now < window.start).map(span))
    }
}

/// How long before its window a wish is of use to the agent: it fetches images ahead, and only images.
pub(super) const fn ahead(wish: &TargetKind, wanted: &Wanted) -> TimeDelta {
    match wish {
        TargetKind::Image(_) => wanted.fetch_ahead,
        TargetKind::Packages { .. } | TargetKind::Kernel { .. } => TimeDelta::zero(),
    }
}

/// Whether what a person ordered still makes a difference.
fn has_order(wanted: &Wanted, now: Time) -> bool {
    wanted.order.as_ref().is_some_and(|order| match order.kind {
        OrderKind::Now => now < order.until,
        OrderKind::Cancel => {
            let mut windows = wanted.windows.as_slice().iter();
            windows.any(|window| window.start <= order.at && now < window.end)
        }
    })
}

/// What was open, by the node's clock at least, and is not delivered any more: an update may have begun in it.
fn past(before: &Delivered, after: &Delivered, now: Time) -> Option<(Time, Time)> {
    let gone = |old: Option<(Time, Time)>, new: Option<(Time, Time)>| {
        old.filter(|(start, _)| old != new && *start - SKEW <= now)
            .map(|(start, end)| (start, end.min(now)))
    };
    let single = gone(before.single, after.single);
    let occurrence = gone(before.occurrence, after.occurrence);
    let spans = [single, occurrence, before.past].into_iter().flatten();
    let recent = spans.filter(|(_, end)| now - ECHO < *end);
    recent.max_by_key(|(start, end)| (start <= end, *end))
}
