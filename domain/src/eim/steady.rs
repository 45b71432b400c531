//! Until when such an agent is answered the same by time alone, the one list of the instants that may end it, and whether
//! a sample says anything new at all.

use chrono::TimeDelta;

use crate::Time;
use crate::condition::{self, Condition};
use crate::decide::{self, Wanted, first_after};
use crate::eim::delivery::{Asked, Delivered, ECHO, REST, SKEW, WORTHWHILE};
use crate::eim::evidence::{Before, Proof, Sample, evidence};
use crate::status::Status;

/// Within this time an agent asks again, also if some of its calls fail: it does each 20 seconds, and tries four times
/// (southbound section 3.3). So a window that is further away can still be taken back.
const ASKS_WITHIN: TimeDelta = TimeDelta::minutes(5);

/// The least that a clock goes on by.
const STEP: TimeDelta = TimeDelta::nanoseconds(1);

/// Before which instant an answer stays as it is by time alone, with what is to be remembered of it; none if it always
/// does. It may stay longer, and never changes sooner.
///
/// This holds of an answer that was given before and is remembered. One that takes a window back notes when it does, so it
/// would be another one at each instant.
#[must_use]
pub fn steady_until(asked: &Asked<'_>, now: Time) -> Option<Time> {
    let wanted = asked.wanted;
    let decided = decide::steady_until(asked.known, wanted, asked.open, now);
    // Too little is left of a window for the agent to begin in it, so another one that is open may be told.
    let too_late = wanted.spans().map(|(_, end)| end - WORTHWHILE + STEP);
    let told = asked.before.steady_until(now);
    first_after(now, too_late.chain(decided).chain(told))
}

/// From when on an agent may begin something before it asks again: a window that applies to it, or that it was told, is open
/// by its own clock, or opens soon. That is not before `now`. None if all of them are over; one that it was told is over an
/// hour after its end, whatever its clock says.
///
/// By time alone it comes to pass, and nothing else changes before an answer may ([`steady_until`]).
#[must_use]
pub fn may_begin_from(wanted: &Wanted, told: &Delivered, now: Time) -> Option<Time> {
    let told = [told.single, told.occurrence].into_iter().flatten();
    let told = told.map(|(start, end)| (start, end + ECHO));
    let left = wanted.spans().chain(told).filter(|(_, end)| now < *end);
    left.map(|(start, _)| (start - SKEW - ASKS_WITHIN).max(now))
        .min()
}

impl Delivered {
    /// Before which instant nothing changes by time alone that follows from what was told: what the node may have begun,
    /// may still begin, and let pass. None if nothing ever does.
    #[must_use]
    pub fn steady_until(&self, now: Time) -> Option<Time> {
        first_after(now, self.instants())
    }

    /// The instants at which something that follows from it may change by time alone; there are no others. A failure that
    /// is doubted is not among them: each sample counts it once more, so it is never settled.
    fn instants(&self) -> Vec<Time> {
        let mut instants = Vec::new();
        let spans = [self.single, self.occurrence, self.past];
        for (start, end) in spans.into_iter().flatten() {
            instants.extend([
                // It may open by the node's clock, which may be ahead of ours: from here on it may have been used.
                start - SKEW,
                // It opens by ours.
                start,
                // It is over: it was used, or the node let it pass.
                end,
                // Nothing is heard any more of what was begun in it, and what was wished for in it is forgotten.
                end + ECHO,
            ]);
        }
        // The agent has seen an answer without a window, so it may be told another one.
        instants.extend(self.cleared_at.map(|at| at + REST));
        instants
    }
}

/// What people are shown of a node.
#[derive(Clone, Copy, Debug)]
pub struct Shows<'a> {
    /// Where its updates stand.
    pub status: &'a Status,
    /// What people should know about it.
    pub conditions: &'a [Condition],
}

impl Shows<'_> {
    /// Whether all that a sample makes known is shown already.
    fn covers(&self, mut proof: Proof, now: Time) -> bool {
        let status = self.status;
        let is_shown = proof.shown.is_none_or(|(text, indication)| {
            status.text == text && status.indication == indication
        });
        let mut conditions = self.conditions.to_vec();
        let holds = std::mem::take(&mut proof.conditions);
        condition::replace(&mut conditions, |kind| proof.judges(kind), holds, now);
        is_shown && conditions == self.conditions
    }
}

/// Whether a sample says nothing new: it proves nothing, and nothing is to be remembered or shown that is not already.
/// Time alone does not change that before what was told does ([`Delivered::steady_until`]).
#[must_use]
pub fn is_settled(before: &Before<'_>, sample: &Sample, shows: &Shows<'_>, now: Time) -> bool {
    let proof = evidence(before, sample, now);
    proof.events.is_empty()
        && proof.image.is_none()
        && proof.seen.as_ref() == before.seen
        && shows.covers(proof, now)
}
