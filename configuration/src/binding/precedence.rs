//! The order of profiles.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::AssignedProfile;

/// The profiles that are used for a node.
#[derive(Debug, Default)]
pub(super) struct ProfileSelection<'a> {
    /// The profile that wins over all others comes first. No two have the same name.
    pub by_precedence: Vec<&'a AssignedProfile>,
    /// Other versions of these profiles, each with the version that is used.
    pub other_versions: Vec<(&'a AssignedProfile, &'a AssignedProfile)>,
}

impl<'a> ProfileSelection<'a> {
    /// Selects each profile once, at its nearest target.
    pub fn select(profiles: &'a [AssignedProfile]) -> Self {
        let mut selection = Self::default();
        let mut nearest: HashMap<&str, &AssignedProfile> = HashMap::new();
        for assigned in sort(profiles) {
            match nearest.get(assigned.profile.name()) {
                None => {
                    nearest.insert(assigned.profile.name(), assigned);
                    selection.by_precedence.push(assigned);
                }
                Some(&used) if used.profile.revision() != assigned.profile.revision() => {
                    selection.other_versions.push((assigned, used));
                }
                Some(_) => {}
            }
        }
        selection
    }

    /// The profiles in the order of their bundles: those of the farthest target come first.
    pub fn in_bundle_order(&self) -> impl Iterator<Item = &'a AssignedProfile> {
        let by_target = self.by_precedence.chunk_by(|a, b| a.target == b.target);
        by_target.rev().flatten().copied()
    }

    /// Sentences about the versions that are not used.
    pub fn warnings(&self) -> Vec<String> {
        let sentence = |(ignored, used): &(&AssignedProfile, &AssignedProfile)| {
            format!(
                "{} of the profile {} is not used, because {} takes precedence",
                version_text(ignored),
                ignored.profile.name(),
                version_text(used)
            )
        };
        self.other_versions.iter().map(sentence).collect()
    }
}

fn version_text(assigned: &AssignedProfile) -> String {
    format!("version {}", assigned.profile.version().version)
}

/// All profiles by precedence.
pub(super) fn sort(profiles: &[AssignedProfile]) -> Vec<&AssignedProfile> {
    let mut sorted: Vec<&AssignedProfile> = profiles.iter().collect();
    sorted.sort_by(|a, b| compare(a, b));
    sorted
}

/// Versions only matter if a profile is assigned twice to one target.
fn compare(a: &AssignedProfile, b: &AssignedProfile) -> Ordering {
    let by_priority = || b.priority.cmp(&a.priority);
    let by_name = || a.profile.name().cmp(b.profile.name());
    let by_version = || b.profile.version().version.cmp(&a.profile.version().version);
    let by_revision = || a.profile.revision().cmp(b.profile.revision());
    let by_target = a.target.cmp(&b.target);
    by_target.then_with(by_priority).then_with(by_name).then_with(by_version).then_with(by_revision)
}
