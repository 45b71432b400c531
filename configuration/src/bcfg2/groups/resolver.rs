//! Evaluates the rules of `groups.xml` for one node.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use super::group_file::{ConditionSubject, GroupFile, GroupRule};
use super::names::{GroupId, GroupNames, GroupSet};
use super::{ClientFile, NodeGroups};
use crate::bcfg2::xml::ElementLocation;
use crate::validation::{FieldError, short};

/// How many conditions and rules are evaluated for one node. A file with 5,000 groups needs about
/// 100,000.
const MAX_STEPS: usize = 100_000_000;

/// Why the groups of a node cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// `clients.xml` does not have the node, and `groups.xml` has no default profile.
    UnknownNode(String),
    /// The memberships change without end.
    Endless(FieldError),
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode(node) => {
                write!(f, "node {node} is not a client, and no group is the default profile")
            }
            Self::Endless(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ResolveError {}

/// The groups and bundles of a node.
///
/// `fact_groups` are the groups that facts of the node give it, in the order in which they join.
///
/// # Errors
/// The node has no profile, or its memberships change without end.
pub fn resolve(
    groups: &GroupFile,
    clients: &ClientFile,
    node: &str,
    fact_groups: &[String],
) -> Result<NodeGroups, ResolveError> {
    let client = clients.resolve_name(node);
    let mut names = groups.names.clone();
    let facts: Vec<_> = fact_groups.iter().map(|group| names.insert(group)).collect();
    let profiles: Vec<_> =
        clients.profiles(&client).iter().map(|profile| names.insert(profile)).collect();
    let mut resolver = Resolver::new(groups, client, names);
    resolver.add_profiles(&profiles)?;
    resolver.evaluate_rules()?;
    if resolver.groups.len() == 0
        && let Some(default) = groups.definitions.default_profile
    {
        resolver.add_initial_group(default);
        resolver.evaluate_rules()?;
    }
    resolver.add_bundles();
    resolver.select_profile();
    if !facts.is_empty() {
        resolver.add_fact_groups(&facts)?;
    }
    Ok(resolver.finish())
}

#[derive(Debug)]
struct Resolver<'f> {
    file: &'f GroupFile,
    names: GroupNames,
    client: String,
    groups: GroupSet,
    /// The group of each category that the client is in.
    categories: HashMap<&'f str, GroupId>,
    profile: Option<GroupId>,
    bundles: BTreeSet<String>,
    warnings: Vec<String>,
    /// Groups with a warning about their category.
    suppressed: GroupSet,
    /// The group that was removed last, and where the rule is.
    last_removal: Option<(GroupId, &'f ElementLocation)>,
    steps: usize,
}

impl<'f> Resolver<'f> {
    fn new(file: &'f GroupFile, client: String, names: GroupNames) -> Self {
        let groups = GroupSet::new(&names);
        Self {
            file,
            names,
            client,
            suppressed: groups.clone(),
            groups,
            categories: HashMap::new(),
            profile: None,
            bundles: BTreeSet::new(),
            warnings: Vec::new(),
            last_removal: None,
            steps: 0,
        }
    }

    /// Adds the profiles of a client, or the default profile.
    fn add_profiles(&mut self, profiles: &[GroupId]) -> Result<(), ResolveError> {
        let definitions = &self.file.definitions;
        let client = short(&self.client);
        if profiles.is_empty() {
            let Some(group) = definitions.default_profile else {
                return Err(ResolveError::UnknownNode(client));
            };
            let name = short(self.names.name(group));
            self.warnings
                .push(format!("node {client} is not a client; it gets the default profile {name}"));
            self.add_initial_group(group);
        }
        for group in profiles {
            let problem = match definitions.get(*group) {
                None => Some("defined"),
                Some(definition) if !definition.is_profile => Some("a profile group"),
                Some(_) => None,
            };
            if let Some(problem) = problem {
                let name = short(self.names.name(*group));
                self.warnings.push(format!(
                    "client {client} has the profile {name}, which is not {problem}"
                ));
            }
            self.add_initial_group(*group);
        }
        Ok(())
    }

    fn add_initial_group(&mut self, group: GroupId) {
        if self.add_group(group) && self.profile.is_none() {
            self.profile = Some(group).filter(|group| self.file.definitions.is_profile(*group));
        }
    }

    /// Adds a group, unless the client is in another group of its category.
    fn add_group(&mut self, group: GroupId) -> bool {
        let is_free = self.claim_category(group);
        if is_free {
            self.groups.insert(group);
        }
        is_free
    }

    fn claim_category(&mut self, group: GroupId) -> bool {
        let Some(category) = self.file.definitions.category(group) else {
            return true;
        };
        let Some(other) = self.categories.get(category) else {
            self.categories.insert(category, group);
            return true;
        };
        if !self.suppressed.contains(group) {
            self.suppressed.insert(group);
            let (other, name) = (self.names.name(*other), self.names.name(group));
            self.warnings.push(format!(
                "node {} does not join group {}: category {} already has group {}",
                short(&self.client),
                short(name),
                short(category),
                short(other)
            ));
        }
        false
    }

    /// Evaluates all rules until the number of groups stays the same, as Bcfg2 does.
    fn evaluate_rules(&mut self) -> Result<(), ResolveError> {
        // Finds a repeated state by Brent's algorithm: compare with one earlier state, and take a
        // later one after 1, 2, 4, … passes.
        let mut earlier = self.groups.clone();
        let (mut passes, mut next_copy) = (0_usize, 1_usize);
        loop {
            let length = self.groups.len();
            self.add_members();
            self.remove_members();
            if self.groups.len() == length {
                return Ok(());
            }
            if self.groups == earlier || self.steps > MAX_STEPS {
                return Err(ResolveError::Endless(self.endless_error()));
            }
            passes += 1;
            if passes == next_copy {
                earlier.clone_from(&self.groups);
                next_copy *= 2;
            }
        }
    }

    fn add_members(&mut self) {
        let holds = self.evaluate_conditions();
        let mut members = Vec::new();
        for (group, rules) in &self.file.memberships.groups {
            self.steps += rules.len();
            if !self.groups.contains(*group)
                && rules.iter().any(|rule| holds[rule.condition])
                && self.claim_category(*group)
            {
                members.push(*group);
            }
        }
        for group in members {
            self.groups.insert(group);
        }
    }

    fn remove_members(&mut self) {
        let holds = self.evaluate_conditions();
        let applies = |rule: &&GroupRule| holds[rule.condition];
        for (group, rules) in &self.file.removals.groups {
            self.steps += rules.len();
            if !self.groups.contains(*group) {
                continue;
            }
            if let Some(rule) = rules.iter().find(applies) {
                self.groups.remove(*group);
                self.last_removal = Some((*group, &rule.location));
                if let Some(category) = self.file.definitions.category(*group) {
                    self.categories.remove(category);
                }
            }
        }
    }

    /// Whether each condition holds, with all conditions that it is in.
    fn evaluate_conditions(&mut self) -> Vec<bool> {
        let conditions = &self.file.conditions;
        self.steps += conditions.len();
        let mut holds = Vec::with_capacity(conditions.len());
        for condition in conditions {
            let is_match = match &condition.subject {
                ConditionSubject::Group(group) => self.groups.contains(*group),
                ConditionSubject::Client(name) => *name == self.client,
            };
            let is_parent_true = condition.parent.is_none_or(|parent| holds[parent]);
            holds.push(is_parent_true && is_match != condition.is_negated);
        }
        holds
    }

    fn endless_error(&self) -> FieldError {
        let Some((group, location)) = self.last_removal.filter(|_| self.steps <= MAX_STEPS) else {
            let message = format!(
                "the groups of node {} need more than {MAX_STEPS} evaluations; remove conditions \
                 that depend on each other",
                short(&self.client)
            );
            return FieldError::new("", message);
        };
        let message = format!(
            "node {} joins and leaves group {} without end, because groups that depend on each \
             other are negated; change this condition. The server of Bcfg2 hangs on it.",
            short(&self.client),
            short(self.names.name(group))
        );
        FieldError::new(location.to_string(), message)
    }

    /// Adds the bundles of all groups. Bundles of groups that are removed later stay.
    fn add_bundles(&mut self) {
        let definitions = self.groups.iter().filter_map(|group| self.file.definitions.get(group));
        self.bundles.extend(definitions.flat_map(|definition| definition.bundles.clone()));
    }

    /// Takes a group as the profile if the client has none. Bcfg2 takes any one.
    fn select_profile(&mut self) {
        if self.profile.is_some() {
            return;
        }
        let profiles = self.groups.iter().filter(|group| self.file.definitions.is_profile(*group));
        let mut profiles: Vec<_> =
            profiles.map(|group| (self.names.name(group).to_owned(), group)).collect();
        profiles.sort_unstable();
        self.profile = profiles.first().map(|(_, group)| *group);
        if let [(first, _), (second, _), ..] = profiles.as_slice() {
            self.warnings.push(format!(
                "node {} has no profile of its own, and is in the profile groups {} and {}; Bcfg2 \
                 may take another one than {}",
                short(&self.client),
                short(first),
                short(second),
                short(first)
            ));
        }
    }

    fn add_fact_groups(&mut self, groups: &[GroupId]) -> Result<(), ResolveError> {
        for group in groups {
            if !self.groups.contains(*group) {
                self.add_group(*group);
            }
        }
        self.evaluate_rules()?;
        self.add_bundles();
        if self.profile.is_none() {
            let definitions = &self.file.definitions;
            let mut profiles = groups.iter().filter(|group| definitions.is_profile(**group));
            self.profile = profiles.next().copied().or(definitions.default_profile);
        }
        Ok(())
    }

    fn finish(self) -> NodeGroups {
        let name = |group| self.names.name(group).to_owned();
        NodeGroups {
            profile: self.profile.map(name),
            groups: self.groups.iter().map(name).collect(),
            node: self.client,
            bundles: self.bundles,
            warnings: self.warnings,
        }
    }
}
