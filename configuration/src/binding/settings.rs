//! Combines the settings of profiles.

use std::collections::BTreeSet;

use super::AssignedProfile;
use crate::document::{ApplyMode, Document, ExtraKind, FailureMode};

/// A document without bundles and with the settings of all profiles, which are in the order of
/// their precedence.
///
/// - `applyMode`: the most careful one, so that no entry changes a machine sooner than its profile
///   allows.
/// - `onFailure`: `revert` if one profile has it, because it restores what worked before.
/// - `removeExtras`: all kinds. They are written explicitly, and the entries of all profiles are in
///   the document, so a profile does not remove what another one adds.
pub(super) fn combine(profiles: &[&AssignedProfile], warnings: &mut Vec<String>) -> Document {
    let documents = || profiles.iter().map(|assigned| assigned.profile.document());
    let most_careful =
        profiles.iter().min_by_key(|assigned| carefulness_rank(apply_mode(assigned)));
    if let Some(most_careful) = most_careful {
        warnings.extend(profiles.iter().filter_map(|other| mode_warning(other, most_careful)));
    }
    let reverts = documents().any(|document| document.on_failure == FailureMode::Revert);
    let extras: BTreeSet<ExtraKind> =
        documents().flat_map(|document| document.remove_extras.iter().copied()).collect();
    Document {
        apply_mode: most_careful.map_or_else(ApplyMode::default, |assigned| apply_mode(assigned)),
        on_failure: if reverts { FailureMode::Revert } else { FailureMode::Keep },
        remove_extras: extras.into_iter().collect(),
        ..Document::default()
    }
}

fn apply_mode(assigned: &AssignedProfile) -> ApplyMode {
    assigned.profile.document().apply_mode
}

/// The lowest mode is the most careful one.
fn carefulness_rank(mode: ApplyMode) -> u8 {
    match mode {
        ApplyMode::Audit => 0,
        ApplyMode::Window => 1,
        ApplyMode::Continuous => 2,
    }
}

fn mode_name(mode: ApplyMode) -> &'static str {
    match mode {
        ApplyMode::Audit => "audit",
        ApplyMode::Window => "window",
        ApplyMode::Continuous => "continuous",
    }
}

/// A sentence about a profile whose mode is not used.
fn mode_warning(other: &AssignedProfile, most_careful: &AssignedProfile) -> Option<String> {
    let mode = apply_mode(most_careful);
    (apply_mode(other) != mode).then(|| {
        format!(
            "the profile {} has applyMode {}, but {} is used, because the profile {} has it",
            other.profile.name(),
            mode_name(apply_mode(other)),
            mode_name(mode),
            most_careful.profile.name()
        )
    })
}
