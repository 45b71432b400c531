//! Profiles that cannot have the same target.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;

use super::merge::MergedProfiles;
use super::precedence::{ProfileSelection, sort};
use super::{AssignedProfile, ChainTarget, EntryKey, ProfileVersion};

/// Two profiles of one target that cannot both be bound completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileConflict {
    pub target: ChainTarget,
    pub profile: ProfileVersion,
    pub other: ProfileVersion,
    /// None if both are versions of one profile.
    pub entries: Option<ConflictingEntries>,
}

/// An entry of each profile. The keys differ if both cannot exist on one machine, such as a file
/// and a file below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConflictingEntries {
    /// Entry of `profile`, which wins if both are bound.
    pub entry: EntryKey,
    /// Entry of `other`.
    pub other_entry: EntryKey,
}

/// The conflicts of profiles at the same targets. A server refuses an assignment, and a new version
/// of an assigned profile, that causes one.
///
/// All targets contain one node, because a [`ChainTarget`] does not identify a site or a region.
///
/// If conflicting profiles are bound nevertheless, the profile of the higher priority wins, then
/// the first by name, and the other entry is lost.
pub fn find_conflicts(profiles: &[AssignedProfile]) -> Vec<ProfileConflict> {
    let sorted = sort(profiles);
    let by_target = sorted.chunk_by(|a, b| a.target == b.target);
    by_target.flat_map(find_conflicts_at_target).collect()
}

fn find_conflicts_at_target(profiles: &[&AssignedProfile]) -> Vec<ProfileConflict> {
    let mut conflicts = Vec::new();
    let mut selection = ProfileSelection::default();
    let mut versions: HashMap<&str, &AssignedProfile> = HashMap::new();
    for &assigned in profiles {
        if let Some(first) = versions.get(assigned.profile.name()) {
            conflicts.push(ProfileConflict {
                target: assigned.target.clone(),
                profile: first.profile.version().clone(),
                other: assigned.profile.version().clone(),
                entries: None,
            });
        } else {
            versions.insert(assigned.profile.name(), assigned);
            selection.by_precedence.push(assigned);
        }
    }
    let Some(first) = profiles.first() else { return conflicts };
    for lost in MergedProfiles::merge(&selection).into_lost() {
        conflicts.push(ProfileConflict {
            target: first.target.clone(),
            profile: lost.winner_profile,
            other: lost.profile,
            entries: Some(ConflictingEntries { entry: lost.winner, other_entry: lost.key }),
        });
    }
    conflicts
}

impl fmt::Display for ProfileConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { profile, other, .. } = self;
        match &self.entries {
            None => write!(
                f,
                "{profile} and {other} are versions of one profile; assign only one of them to a \
                 target"
            ),
            Some(ConflictingEntries { entry, other_entry }) if entry == other_entry => write!(
                f,
                "{profile} and {other} both have {entry}; remove one, or assign one of the \
                 profiles to another target"
            ),
            Some(ConflictingEntries { entry, other_entry }) => write!(
                f,
                "{entry} of {profile} and {other_entry} of {other} cannot exist on one machine; \
                 remove one, or assign one of the profiles to another target"
            ),
        }
    }
}
