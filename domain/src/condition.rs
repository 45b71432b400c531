//! Conditions of an instance: problems that users must know about although no run failed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Time;

named! {
    ConditionKind {
        /// The assigned policy does not fit the instance.
        PolicyDoesNotFit = "policy_does_not_fit",
        /// The desired image is not newer than the running image.
        NotNewer = "not_newer",
        /// The policy names no image, and the catalogue has no image of the profile.
        NoImage = "no_image",
        /// The agent has no module for the desired update.
        AgentLacks = "agent_lacks",
        /// The desired image failed on this node before.
        Quarantined = "quarantined",
        /// The node reported an image that is not in the catalogue.
        UnknownImage = "unknown_image",
        /// The node reported an image of another profile than that of its instance.
        ProfileMismatch = "profile_mismatch",
        /// The node reported another image than the target of its update.
        OtherImage = "other_image",
        /// Two machines use the identity of this instance.
        TwoMachines = "two_machines",
        /// The agent reported a failure although no update was running.
        AgentAnomaly = "agent_anomaly",
        /// The node sent more than the server stores; the rest was cut off.
        DetailCut = "detail_cut",
        /// The agent reports a problem with itself.
        AgentError = "agent_error",
        /// A daily limit refused a call of the node.
        DailyLimit = "daily_limit",
        /// The node cannot refresh its package lists, or has not done so for days.
        PackageListsOutdated = "package_lists_outdated",
        /// Other programs on the machine update it by themselves.
        OtherUpdaters = "other_updaters",
        /// The node reported hardware that cannot be stored; the rest of its hardware is stored.
        HardwareIncomplete = "hardware_incomplete",
    }
}

/// End of the text of a condition that says how much of a package list is stored.
pub const CUT_LIST_SUFFIX: &str = " of them are kept";

impl ConditionKind {
    /// Whether the condition follows from the desired update and is removed when that changes. All others follow from
    /// reports of the node.
    #[must_use]
    pub const fn depends_on_policy(self) -> bool {
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

/// The kind of a stored condition. While servers are upgraded, a newer one may have written a kind that this one does
/// not know: it is kept and shown by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoredConditionKind {
    Known(ConditionKind),
    Unknown(String),
}

impl StoredConditionKind {
    /// The kind, if this release knows it.
    #[must_use]
    pub const fn known(&self) -> Option<ConditionKind> {
        match self {
            Self::Known(kind) => Some(*kind),
            Self::Unknown(_) => None,
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Known(kind) => kind.name(),
            Self::Unknown(name) => name,
        }
    }
}

impl From<ConditionKind> for StoredConditionKind {
    fn from(kind: ConditionKind) -> Self {
        Self::Known(kind)
    }
}

impl PartialEq<ConditionKind> for StoredConditionKind {
    fn eq(&self, other: &ConditionKind) -> bool {
        self.known() == Some(*other)
    }
}

impl fmt::Display for StoredConditionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A problem that users must know about. An instance has at most one condition of each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub kind: StoredConditionKind,
    /// Details for users.
    pub text: String,
    pub since: Time,
}

/// Replaces the conditions of the kinds that `covers` selects by `holds`. A condition whose text is unchanged keeps its
/// time. Conditions of unknown kinds stay. Sorts the conditions by kind.
pub fn replace(
    conditions: &mut Vec<Condition>,
    covers: impl Fn(ConditionKind) -> bool,
    holds: impl IntoIterator<Item = (ConditionKind, String)>,
    now: Time,
) {
    let before = std::mem::take(conditions);
    let (mut remaining, _replaced): (Vec<_>, Vec<_>) =
        before.iter().cloned().partition(|condition| !condition.kind.known().is_some_and(&covers));
    for (kind, text) in holds {
        let same = before.iter().find(|condition| condition.kind == kind && condition.text == text);
        remaining.retain(|condition| condition.kind != kind);
        remaining.push(Condition {
            kind: kind.into(),
            since: same.map_or(now, |condition| condition.since),
            text,
        });
    }
    remaining.sort_by(|one, other| one.kind.cmp(&other.kind));
    *conditions = remaining;
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;
    use ConditionKind as K;

    #[test]
    fn an_unchanged_condition_keeps_its_time() {
        let start = DateTime::UNIX_EPOCH;
        let later = start + TimeDelta::hours(1);
        let mut conditions = Vec::new();
        replace(
            &mut conditions,
            |_| true,
            [(K::OtherImage, "b".into()), (K::NotNewer, "a".into())],
            start,
        );
        replace(&mut conditions, K::depends_on_policy, [(K::NotNewer, "a".into())], later);
        let listed: Vec<_> = conditions.iter().map(|c| (c.kind.known(), c.since)).collect();
        assert_eq!(listed, [(Some(K::NotNewer), start), (Some(K::OtherImage), start)]);
        replace(&mut conditions, K::depends_on_policy, [(K::NotNewer, "c".into())], later);
        assert_eq!(conditions[0].since, later, "another text is another condition");
        replace(&mut conditions, K::depends_on_policy, [], later);
        assert_eq!(conditions.len(), 1, "conditions from node reports remain");
    }

    #[test]
    fn a_condition_of_an_unknown_kind_is_kept() {
        let start = DateTime::UNIX_EPOCH;
        let stored = r#"[{"kind":"not_newer","text":"a","since":"1970-01-01T00:00:00Z"},
            {"kind":"from_a_newer_release","text":"b","since":"1970-01-01T00:00:00Z","more":1}]"#;
        let mut conditions: Vec<Condition> = serde_json::from_str(stored).expect("conditions");
        replace(&mut conditions, |_| true, [(K::OtherImage, "c".into())], start);
        let names: Vec<_> = conditions.iter().map(|condition| condition.kind.name()).collect();
        assert_eq!(names, ["other_image", "from_a_newer_release"]);
        let written = serde_json::to_value(&conditions).expect("JSON");
        assert_eq!(written[1]["kind"], "from_a_newer_release");
        assert_eq!(written[0]["kind"], "other_image");
    }
}
