//! Combines the entries of profiles: which of them win, and in which bundle they are.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::path_claims::PathClaims;
use super::precedence::ProfileSelection;
use super::{AssignedProfile, EntryKey, LostEntry, Profile};
use crate::document::{Bundle, Component, Desired, Entry};
use crate::validation::{short, unique_name};

/// An entry of a profile, with its bundle there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub assigned: &'a AssignedProfile,
    pub bundle: &'a Bundle,
    pub entry: &'a Entry,
}

/// An entry that loses to another.
#[derive(Clone, Copy, Debug)]
struct Loss<'a> {
    loser: Candidate<'a>,
    winner: Candidate<'a>,
    /// Whether the winner is in the document instead of the loser, under the same key.
    is_replaced: bool,
}

/// The entries of several profiles.
#[derive(Debug, Default)]
pub(super) struct MergedProfiles<'a> {
    /// Bundles with the entries that win.
    bundles: Vec<(&'a str, Vec<Candidate<'a>>)>,
    losses: Vec<Loss<'a>>,
}

/// Component and name; names of one kernel setting are equal.
type UniqueKey<'a> = (Component, Cow<'a, str>);

/// The entry of the nearest profile for each key.
#[derive(Debug, Default)]
struct NearestEntries<'a> {
    candidates: Vec<Candidate<'a>>,
    indexes: HashMap<UniqueKey<'a>, usize>,
    /// Indexes of candidates whose paths cannot exist together with the paths of a nearer one.
    clashing: HashSet<usize>,
}

/// The changes that the actions and units of a bundle react to.
#[derive(Debug, Default)]
struct BundleReactions<'a> {
    has_action: bool,
    /// Paths of the files that restart a unit.
    file_paths: HashSet<&'a str>,
}

impl<'a> Candidate<'a> {
    pub fn profile(&self) -> &'a Profile {
        &self.assigned.profile
    }

    fn unique_key(&self) -> UniqueKey<'a> {
        let (component, name) = self.entry.key();
        (component, unique_name(component, name))
    }
}

impl<'a> MergedProfiles<'a> {
    pub fn merge(selection: &ProfileSelection<'a>) -> Self {
        let mut merged = Self::default();
        let nearest = merged.find_nearest(&selection.by_precedence);
        merged.arrange(selection, &nearest);
        merged
    }

    /// The bundles by their names, with the entries that win.
    pub fn bundles(&self) -> impl Iterator<Item = (&'a str, &[Candidate<'a>])> {
        self.bundles.iter().map(|(name, candidates)| (*name, candidates.as_slice()))
    }

    pub fn entry_count(&self) -> usize {
        self.bundles.iter().map(|(_, candidates)| candidates.len()).sum()
    }

    pub fn into_lost(self) -> Vec<LostEntry> {
        self.losses.into_iter().map(Loss::to_lost_entry).collect()
    }

    /// Sentences about entries that move to another bundle, so that the actions or units of their
    /// old bundles do not react to their changes.
    pub fn warnings(&self) -> Vec<String> {
        let bundles = self.bundles();
        let reactions: HashMap<&str, BundleReactions<'_>> =
            bundles.map(|(name, candidates)| (name, BundleReactions::new(candidates))).collect();
        let has_moved = |loss: &&Loss<'_>| {
            let Loss { loser, winner, is_replaced } = loss;
            let old_bundle = reactions.get(loser.bundle.name.as_str());
            let reacts = old_bundle.is_some_and(|bundle| bundle.reacts_to(loser.entry));
            let is_action = loser.entry.component() == Component::Action;
            *is_replaced && loser.bundle.name != winner.bundle.name && (reacts || is_action)
        };
        self.losses.iter().filter(has_moved).map(Loss::warning).collect()
    }

    /// Finds the nearest entry for each key, and records the others as losses.
    fn find_nearest(&mut self, by_precedence: &[&'a AssignedProfile]) -> NearestEntries<'a> {
        let mut nearest = NearestEntries::default();
        let mut paths = PathClaims::default();
        for loser in by_precedence.iter().copied().flat_map(candidates) {
            let index = nearest.candidates.len();
            if let Some(&winner) = nearest.indexes.get(&loser.unique_key()) {
                let is_replaced = !nearest.clashing.contains(&winner);
                self.losses.push(Loss { loser, winner: nearest.candidates[winner], is_replaced });
                continue;
            }
            nearest.indexes.insert(loser.unique_key(), index);
            nearest.candidates.push(loser);
            if let Err(winner) = paths.add(loser.entry, index) {
                nearest.clashing.insert(index);
                let winner = nearest.candidates[winner];
                self.losses.push(Loss { loser, winner, is_replaced: false });
            }
        }
        nearest
    }

    /// Puts the entries into bundles. An entry takes the position of the first entry with its key
    /// in a bundle of the same name.
    fn arrange(&mut self, selection: &ProfileSelection<'a>, nearest: &NearestEntries<'a>) {
        let mut positions: HashMap<&str, usize> = HashMap::new();
        let mut arranged: HashSet<usize> = HashSet::new();
        for occurrence in selection.in_bundle_order().flat_map(candidates) {
            let name = occurrence.bundle.name.as_str();
            let Some(&index) = nearest.indexes.get(&occurrence.unique_key()) else { continue };
            let candidate = nearest.candidates[index];
            let is_here = candidate.bundle.name == name && !nearest.clashing.contains(&index);
            if is_here && arranged.insert(index) {
                let position = *positions.entry(name).or_insert_with(|| {
                    self.bundles.push((name, Vec::new()));
                    self.bundles.len() - 1
                });
                self.bundles[position].1.push(candidate);
            }
        }
    }
}

impl Loss<'_> {
    fn to_lost_entry(self) -> LostEntry {
        let Self { loser, winner, .. } = self;
        LostEntry {
            key: EntryKey::from(loser.entry),
            profile: loser.profile().version().clone(),
            winner: EntryKey::from(winner.entry),
            winner_profile: winner.profile().version().clone(),
            is_conflict: loser.assigned.target == winner.assigned.target,
        }
    }

    fn warning(&self) -> String {
        let Self { loser, winner, .. } = self;
        let (bundle, profile) = (&loser.bundle.name, loser.profile().name());
        let effect = if loser.entry.component() == Component::Action {
            "it does not run for changes of the former bundle"
        } else {
            "the actions and units of the former bundle do not react to its changes"
        };
        format!(
            "{} {} of the bundle {} (profile {profile}) is replaced by the one of the bundle {} \
             (profile {}), so {effect}",
            loser.entry.component(),
            short(&loser.entry.name),
            short(bundle),
            short(&winner.bundle.name),
            winner.profile().name()
        )
    }
}

fn candidates(assigned: &AssignedProfile) -> impl Iterator<Item = Candidate<'_>> {
    let entries = assigned.profile.document().entries();
    entries.map(move |(bundle, entry)| Candidate { assigned, bundle, entry })
}

impl<'a> BundleReactions<'a> {
    fn new(candidates: &[Candidate<'a>]) -> Self {
        let mut reactions = Self::default();
        for candidate in candidates {
            match &candidate.entry.desired {
                Desired::Action(_) => reactions.has_action = true,
                Desired::Unit(state) => {
                    reactions.file_paths.extend(state.file_paths.iter().map(String::as_str));
                }
                _ => {}
            }
        }
        reactions
    }

    /// Whether the bundle runs an action or restarts a unit when an entry changes.
    fn reacts_to(&self, entry: &Entry) -> bool {
        let is_file = entry.component() == Component::File;
        self.has_action || (is_file && self.file_paths.contains(entry.name.as_str()))
    }
}
