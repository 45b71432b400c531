//! Objects that this release cannot read, because a newer one wrote them. The nodes to which such an
//! object applies wait; the other nodes are decided as before.

use std::collections::{HashMap, HashSet};

use evenkeel_domain::decide::{NodeFacts, UnreadableObject};
use evenkeel_domain::id::{OsId, PolicyId};
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::schedule::ScheduleTarget;
use sea_orm::QueryResult;
use serde::de::DeserializeOwned;

use super::json_rows;
use super::schedule_set::UnreadableSchedule;
use crate::error::StoreError;
use crate::unreadable_log::LoggedErrors;

static LOGGED_ERRORS: LoggedErrors = LoggedErrors::new();

/// The objects of a project that cannot be read.
#[derive(Debug, Default)]
pub struct UnreadableObjects {
    policies: HashSet<PolicyId>,
    profiles: HashSet<OsId>,
    /// An entry of the catalogue by the name of its profile. It may be the newest image.
    images_by_profile: HashMap<String, OsId>,
    schedules: HashMap<ScheduleTarget, UnreadableObject>,
    /// An assignment or a pause of an unknown kind of scope: it may apply to every node.
    for_project: Option<UnreadableObject>,
}

impl UnreadableObjects {
    pub fn add_profile(&mut self, os: OsId) {
        self.profiles.insert(os);
    }

    /// Adds an image of the series that a node runs. A profile that only a policy names is none: whether
    /// it was read depends on the other nodes of the batch.
    pub fn add_image_of_series(&mut self, image: &Image) {
        self.add_profile(image.os);
        self.images_by_profile.insert(image.profile_name.clone(), image.os);
    }

    /// Adds assignments, by the policies that they assign.
    pub fn add_assignments(&mut self, policies: impl Iterator<Item = PolicyId>) {
        for policy in policies {
            let object = UnreadableObject { kind: "assignment of", id: policy.to_string() };
            self.for_project.get_or_insert(object);
        }
    }

    pub fn add_policies(&mut self, policies: impl Iterator<Item = PolicyId>) {
        self.policies.extend(policies);
    }

    /// Adds pauses, by the kinds of their scopes.
    pub fn add_pauses(&mut self, scope_kinds: Vec<String>) {
        for id in scope_kinds {
            self.for_project.get_or_insert(UnreadableObject { kind: "pause of a", id });
        }
    }

    pub fn add_schedules(&mut self, schedules: Vec<UnreadableSchedule>) {
        for (target, object) in schedules {
            self.schedules.entry(target).or_insert(object);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
            && self.profiles.is_empty()
            && self.schedules.is_empty()
            && self.for_project.is_none()
    }

    /// An object that may apply to every node of the project.
    pub fn for_project(&self) -> Option<UnreadableObject> {
        self.for_project.clone()
    }

    /// The profile that a node runs, or an image that may be the newest of its profile.
    pub fn profile_of(&self, facts: &NodeFacts) -> Option<UnreadableObject> {
        let newest = match facts.os_kind {
            OsKind::Immutable => self.images_by_profile.get(&facts.running.profile_name),
            OsKind::Mutable => None,
        };
        self.profile(facts.running.os).or_else(|| newest.and_then(|os| self.profile(*os)))
    }

    pub fn profile(&self, os: OsId) -> Option<UnreadableObject> {
        let id = self.profiles.get(&os)?;
        Some(UnreadableObject { kind: "operating system profile", id: id.to_string() })
    }

    pub fn policy(&self, policy: PolicyId) -> Option<UnreadableObject> {
        let id = self.policies.get(&policy)?;
        Some(UnreadableObject { kind: "policy", id: id.to_string() })
    }

    pub fn schedule(&self, target: ScheduleTarget) -> Option<UnreadableObject> {
        self.schedules.get(&target).cloned()
    }
}

/// The converted rows that a column aggregates, and the keys of the rows that cannot be converted.
pub fn converted_rows<M, T, K>(
    row: &QueryResult,
    column: &'static str,
    key: fn(&M) -> K,
) -> Result<(Vec<T>, Vec<K>), StoreError>
where
    M: DeserializeOwned,
    T: TryFrom<M, Error = StoreError>,
{
    let (mut converted, mut unreadable) = (Vec::new(), Vec::new());
    for model in json_rows::<M>(row, column)? {
        let key = key(&model);
        match T::try_from(model) {
            Ok(item) => converted.push(item),
            Err(error) => {
                log_unreadable(&error);
                unreadable.push(key);
            }
        }
    }
    Ok((converted, unreadable))
}

/// Logs a row that cannot be read, once.
pub fn log_unreadable(error: &StoreError) {
    if let Some(error) = LOGGED_ERRORS.insert(error) {
        tracing::warn!(%error, "a stored row cannot be read; the nodes that it applies to wait");
    }
}
