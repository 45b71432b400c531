mod failures;
mod manual;
mod properties;
mod rules;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    AssignedProfile, BindingInput, BoundDocument, ChainTarget, LostEntry, Profile, SecretVersions,
};
use crate::document::{Desired, Document};
use crate::native;

type Facts = BTreeMap<String, String>;
type Secrets = BTreeMap<String, SecretVersions>;

fn document(text: &str) -> Document {
    native::read(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// A profile at a target, in version 1 and with priority 0.
fn assigned(target: ChainTarget, name: &str, text: &str) -> AssignedProfile {
    let profile = Profile::new(name, 1, document(text)).unwrap();
    AssignedProfile { profile: Arc::new(profile), target, priority: 0 }
}

fn version(assigned: &AssignedProfile, version: u64) -> AssignedProfile {
    let profile = &assigned.profile;
    let profile = Profile::new(profile.name(), version, profile.document().clone()).unwrap();
    AssignedProfile { profile: Arc::new(profile), ..assigned.clone() }
}

fn group(name: &str, priority: i32) -> ChainTarget {
    ChainTarget::Group { priority: Reverse(priority), name: name.to_owned() }
}

fn facts(pairs: &[(&str, &str)]) -> Facts {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn bind(profiles: &[AssignedProfile]) -> BoundDocument {
    bind_with(profiles, &Facts::new(), &Secrets::new())
}

fn bind_with(profiles: &[AssignedProfile], facts: &Facts, secrets: &Secrets) -> BoundDocument {
    let bound = BindingInput { profiles, facts, secrets }.bind();
    bound.unwrap_or_else(|error| panic!("{error}"))
}

/// The entries with their bundles, one a line. Kernel settings have their value.
fn lines(document: &Document) -> Vec<String> {
    let line = |(bundle, entry): (&crate::Bundle, &crate::Entry)| {
        let value = match &entry.desired {
            Desired::Sysctl(state) => format!(" = {}", state.value),
            _ => String::new(),
        };
        format!("{}: {} {}{value}", bundle.name, entry.component(), entry.name)
    };
    document.entries().map(line).collect()
}

fn describe_lost(lost: &LostEntry) -> String {
    let LostEntry { key, profile, winner, winner_profile, is_conflict } = lost;
    let conflict = if *is_conflict { " (conflict)" } else { "" };
    format!("{key} of {} lost to {winner} of {}{conflict}", profile.name, winner_profile.name)
}

fn lost_lines(bound: &BoundDocument) -> Vec<String> {
    bound.lost.iter().map(describe_lost).collect()
}
