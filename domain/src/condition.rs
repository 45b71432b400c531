//! Conditions: what people should know about an instance although nothing failed.

use serde::{Deserialize, Serialize};

use crate::Time;

named! {
    /// What kind of thing people should know.
    ConditionKind {
        /// What is assigned cannot be meant for it.
        PolicyDoesNotFit = "policy_does_not_fit",
        /// The image that is wished for is not newer than what runs.
        NotNewer = "not_newer",
        /// The policy names no image, and the catalogue has none of the profile.
        NoImage = "no_image",
        /// Its agent does not know how to do what is wished for.
        AgentLacks = "agent_lacks",
        /// The image that is wished for failed on it before.
        Quarantined = "quarantined",
        /// It reported an image that the catalogue does not have.
        UnknownImage = "unknown_image",
        /// It reported an image of another profile than that of its instance.
        ProfileMismatch = "profile_mismatch",
        /// It reported another image than the one that its update was for.
        OtherImage = "other_image",
        /// Two machines speak with its identity.
        TwoMachines = "two_machines",
        /// Its agent reported a failure where there was no update.
        AgentAnomaly = "agent_anomaly",
        /// It sent more than can be kept; the rest was cut off.
        DetailCut = "detail_cut",
        /// Its agent says that something is wrong with the agent itself.
        AgentTrouble = "agent_trouble",
    }
}

impl ConditionKind {
    /// Whether it follows from what is wanted, so that it goes when that changes; else from what the node said.
    #[must_use]
    pub const fn is_of_wish(self) -> bool {
        matches!(
            self,
            Self::PolicyDoesNotFit
                | Self::NotNewer
                | Self::NoImage
                | Self::AgentLacks
                | Self::Quarantined
        )
    }
}

/// Something that people should know about an instance. There is one of a kind at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// What kind.
    pub kind: ConditionKind,
    /// What exactly, for people.
    pub text: String,
    /// Since when.
    pub since: Time,
}

/// Replaces the conditions of some kinds by what holds now. What held before with the same text keeps its time; the
/// order is that of the kinds.
pub fn replace(
    conditions: &mut Vec<Condition>,
    covers: impl Fn(ConditionKind) -> bool,
    holds: impl IntoIterator<Item = (ConditionKind, String)>,
    now: Time,
) {
    let before = std::mem::take(conditions);
    let (mut kept, _replaced): (Vec<_>, Vec<_>) = before
        .iter()
        .cloned()
        .partition(|condition| !covers(condition.kind));
    for (kind, text) in holds {
        let same = before
            .iter()
            .find(|condition| condition.kind == kind && condition.text == text);
        kept.retain(|condition| condition.kind != kind);
        kept.push(Condition {
            kind,
            since: same.map_or(now, |condition| condition.since),
            text,
        });
    }
    kept.sort_by_key(|condition| condition.kind);
    *conditions = kept;
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;
    use ConditionKind as K;

    #[test]
    fn what_still_holds_keeps_its_time() {
        let start = DateTime::UNIX_EPOCH;
        let later = start + TimeDelta::hours(1);
        let mut conditions = Vec::new();
        replace(
            &mut conditions,
            |_| true,
            [(K::OtherImage, "b".into()), (K::NotNewer, "a".into())],
            start,
        );
        replace(
            &mut conditions,
            K::is_of_wish,
            [(K::NotNewer, "a".into())],
            later,
        );
        let told: Vec<_> = conditions.iter().map(|c| (c.kind, c.since)).collect();
        assert_eq!(told, [(K::NotNewer, start), (K::OtherImage, start)]);
        replace(
            &mut conditions,
            K::is_of_wish,
            [(K::NotNewer, "c".into())],
            later,
        );
        assert_eq!(
            conditions[0].since, later,
            "another text is another condition"
        );
        replace(&mut conditions, K::is_of_wish, [], later);
        assert_eq!(conditions.len(), 1, "what the node said stays");
    }
}
