//! Numbers for the names of groups, because rules are evaluated often.

use std::collections::HashMap;

/// A group in [`GroupNames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupId(usize);

/// The names of groups. Equal names have one number.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupNames {
    ids: HashMap<String, GroupId>,
    names: Vec<String>,
}

impl GroupNames {
    /// The number of a name. A new name gets the next number.
    pub fn insert(&mut self, name: &str) -> GroupId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = GroupId(self.names.len());
        self.ids.insert(name.to_owned(), id);
        self.names.push(name.to_owned());
        id
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    pub fn name(&self, id: GroupId) -> &str {
        &self.names[id.0]
    }
}

/// A set of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupSet {
    is_member: Vec<bool>,
    length: usize,
}

impl GroupSet {
    /// An empty set for the groups of `names`.
    pub fn new(names: &GroupNames) -> Self {
        Self { is_member: vec![false; names.count()], length: 0 }
    }

    pub fn contains(&self, group: GroupId) -> bool {
        self.is_member[group.0]
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn insert(&mut self, group: GroupId) {
        self.length += usize::from(!self.contains(group));
        self.is_member[group.0] = true;
    }

    pub fn remove(&mut self, group: GroupId) {
        self.length -= usize::from(self.contains(group));
        self.is_member[group.0] = false;
    }

    pub fn iter(&self) -> impl Iterator<Item = GroupId> {
        let members = self.is_member.iter().enumerate();
        members.filter(|(_, is_member)| **is_member).map(|(index, _)| GroupId(index))
    }
}
