//! Identifies nodes that bind alike.

use std::collections::BTreeSet;
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::precedence::ProfileSelection;
use super::secrets::find_version;
use super::{AssignedProfile, BindingInput};

/// Changes if the rules of binding change, so that stored keys do not match.
const RULES: &str = "binding rules 1";

/// Digest of all input that a bound document depends on: the profiles with their order, the facts
/// that they refer to, and the versions of their secrets. Print it as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingKey([u8; 32]);

impl BindingKey {
    pub(super) fn digest(input: &BindingInput<'_>, selection: &ProfileSelection<'_>) -> Self {
        let mut digest = InputDigest::default();
        digest.add_text(RULES);
        // Both orders, because the targets determine the second.
        digest.add_profiles(selection.by_precedence.iter().copied());
        digest.add_profiles(selection.in_bundle_order());
        digest.add_profiles(selection.other_versions.iter().map(|(ignored, _)| *ignored));
        let profiles = || selection.by_precedence.iter().map(|assigned| &assigned.profile);
        let facts: BTreeSet<&String> = profiles().flat_map(|profile| profile.facts()).collect();
        digest.add_number(facts.len());
        for name in facts {
            digest.add_text(name);
            digest.add_optional_text(input.facts.get(name).map(String::as_str));
        }
        let secrets: BTreeSet<_> = profiles().flat_map(|profile| profile.secrets()).collect();
        for secret_ref in secrets {
            match find_version(secret_ref, input.secrets) {
                Ok(version) => digest.add_text(&version.to_string()),
                Err(message) => digest.add_text(&message),
            }
        }
        Self(digest.hasher.finalize().into())
    }
}

impl fmt::Display for BindingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BindingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BindingKey({self})")
    }
}

/// Each text is preceded by its length, so that no two lists of texts are the same bytes.
#[derive(Debug, Default)]
struct InputDigest {
    hasher: Sha256,
}

impl InputDigest {
    fn add_number(&mut self, number: usize) {
        self.hasher.update((number as u64).to_be_bytes());
    }

    fn add_text(&mut self, text: &str) {
        self.add_number(text.len());
        self.hasher.update(text);
    }

    fn add_optional_text(&mut self, text: Option<&str>) {
        self.add_number(usize::from(text.is_some()));
        self.add_text(text.unwrap_or_default());
    }

    fn add_profiles<'a>(&mut self, profiles: impl Iterator<Item = &'a AssignedProfile>) {
        let mut count = 0;
        for AssignedProfile { profile, .. } in profiles {
            self.add_text(profile.name());
            self.add_text(&profile.version().version.to_string());
            self.add_text(profile.revision());
            count += 1;
        }
        self.add_number(count);
    }
}
