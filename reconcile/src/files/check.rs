//! Verdicts of `File` entries.

use std::collections::BTreeSet;

use evenkeel_configuration::document::{Desired, Document, FileState};
use evenkeel_configuration::{Component, Entry};
use serde_json::json;

use crate::finding::{Deviation, Difference, EntryCheck};

use super::inspect::{FileContext, PathInspection};
use super::spec::{FileObject, FileSpec, PathGoal, USER};
use super::state::{PathKind, PathState};

/// Most names of a pruned directory in a report.
const MAX_REPORTED_NAMES: usize = 100;

/// Most names of a pruned directory in a sentence.
const MAX_NAMES_IN_REASON: usize = 5;

/// Checks all `File` entries of a document, in its order.
pub fn check(context: &FileContext<'_>, document: &Document) -> Vec<EntryCheck> {
    let created = CreatedAccounts::from_document(document);
    let check_entry = |entry: &Entry| match &entry.desired {
        Desired::File(state) => Some(check_file(context, &created, (&entry.name, state))),
        _ => None,
    };
    document.entries().filter_map(|(_, entry)| check_entry(entry)).collect()
}

/// Checks one `File` entry.
pub(crate) fn check_file(
    context: &FileContext<'_>,
    created: &CreatedAccounts<'_>,
    (name, state): (&str, &FileState),
) -> EntryCheck {
    let deviation = match FileSpec::from_entry(name, state) {
        Ok(spec) => check_spec(context, &spec, created),
        Err(error) => Deviation::from_failure(error.to_string()),
    };
    deviation.into_check(Component::File, name)
}

/// Users and groups that the document creates.
#[derive(Debug)]
pub(crate) struct CreatedAccounts<'a>(BTreeSet<(Component, &'a str)>);

impl<'a> CreatedAccounts<'a> {
    pub(crate) fn from_document(document: &'a Document) -> Self {
        let created = |entry: &'a Entry| match &entry.desired {
            Desired::User(state) if !state.absent => Some(entry.key()),
            Desired::UserGroup(state) if !state.absent => Some(entry.key()),
            _ => None,
        };
        Self(document.entries().filter_map(|(_, entry)| created(entry)).collect())
    }

    fn describe_missing(&self, kind: &str, name: &str) -> String {
        // useradd creates a group with the name of the user.
        let is_created = self.0.contains(&(Component::User, name))
            || (kind != USER && self.0.contains(&(Component::UserGroup, name)));
        let advice = if is_created {
            "an entry of the document creates it"
        } else {
            "add an entry for it, or write a number"
        };
        format!("the {kind} {name} does not exist; {advice}")
    }
}

fn check_spec(
    context: &FileContext<'_>,
    spec: &FileSpec<'_>,
    created: &CreatedAccounts<'_>,
) -> Deviation {
    let inspection = context.inspect(spec);
    if inspection.is_good() {
        return Deviation::default();
    }
    let mut differences = FileDifferences::default();
    if let Some(goal) = &inspection.goal {
        differences.compare(context, spec, &inspection, goal);
        for (kind, name) in &goal.unknown_accounts {
            let reason = created.describe_missing(kind, name);
            differences.0.add_difference(Difference::Attributes, reason);
        }
    }
    differences.add_unmanaged(&inspection.unmanaged);
    let mut deviation = differences.0;
    if let Some(problem) = inspection.problem {
        deviation.add_failure(problem);
        // No plan can correct the entry.
        deviation.differences.clear();
    }
    deviation
}

/// How a path differs from its entry.
#[derive(Default)]
struct FileDifferences(Deviation);

impl FileDifferences {
    fn compare(
        &mut self,
        context: &FileContext<'_>,
        spec: &FileSpec<'_>,
        inspection: &PathInspection,
        goal: &PathGoal,
    ) {
        let (current, desired) = (&inspection.observation.state, &goal.state);
        if self.compare_type(&current.kind, &desired.kind, inspection.problem.is_some()) {
            return;
        }
        if !desired.kind.accepts(&current.kind) {
            self.compare_content(spec, inspection, &desired.kind);
        }
        self.compare_attributes(context, current, desired);
        for (kind, name) in &goal.unknown_accounts {
            let is_user = *kind == USER;
            let field = if is_user { "owner" } else { "group" };
            let current = if is_user {
                context.accounts.user_name(current.uid)
            } else {
                context.accounts.group_name(current.gid)
            };
            if current != *name {
                self.0.current.insert(field.to_owned(), json!(current));
            }
        }
    }

    /// Returns whether the types differ.
    fn compare_type(&mut self, current: &PathKind, desired: &PathKind, has_problem: bool) -> bool {
        if current.name() == desired.name() {
            return false;
        }
        let reason = match (current, desired) {
            // The problem names the type.
            _ if has_problem && *current != PathKind::Missing => String::new(),
            (PathKind::Missing, desired) => {
                let noun = desired.label().trim_start_matches("a ");
                format!("the {noun} does not exist")
            }
            (current, PathKind::Missing) => format!("{} is at the path", current.label()),
            (current, desired) => {
                format!("{} is at the path and not {}", current.label(), desired.label())
            }
        };
        let is_missing = matches!(current, PathKind::Missing);
        let difference = if is_missing || matches!(desired, PathKind::Missing) {
            Difference::Existence
        } else {
            Difference::Content
        };
        self.0.current.insert("type".to_owned(), json!(current.name()));
        if !reason.is_empty() {
            self.0.add_difference(difference, reason);
        }
        true
    }

    fn compare_content(
        &mut self,
        spec: &FileSpec<'_>,
        inspection: &PathInspection,
        desired: &PathKind,
    ) {
        match (&inspection.observation.state.kind, desired) {
            (PathKind::Symlink { target: current }, PathKind::Symlink { target: desired }) => {
                let reason = format!("the link points to {current} and not to {desired}");
                self.0.add_field(Difference::Content, "target", json!(current), reason);
            }
            (PathKind::File { digest }, _) => {
                let is_secret = matches!(
                    &spec.object,
                    FileObject::File { content } if content.is_secret()
                );
                let current = match digest {
                    _ if is_secret => json!({}),
                    Some(digest) => json!({ "sha256": digest }),
                    None => json!({ "size": inspection.observation.size }),
                };
                self.0.add_field(Difference::Content, "content", current, "the content differs");
            }
            _ => {}
        }
    }

    fn compare_attributes(
        &mut self,
        context: &FileContext<'_>,
        current: &PathState,
        desired: &PathState,
    ) {
        if current.mode != desired.mode {
            let [current, desired] = [current.mode, desired.mode].map(|mode| format!("{mode:04o}"));
            let reason = format!("the mode is {current} and not {desired}");
            self.0.add_field(Difference::Attributes, "mode", json!(current), reason);
        }
        let accounts = &context.accounts;
        if current.uid != desired.uid {
            let names = [current.uid, desired.uid].map(|id| accounts.user_name(id));
            let reason = format!("the owner is {} and not {}", names[0], names[1]);
            self.0.add_field(Difference::Attributes, "owner", json!(names[0]), reason);
        }
        if current.gid != desired.gid {
            let names = [current.gid, desired.gid].map(|id| accounts.group_name(id));
            let reason = format!("the group is {} and not {}", names[0], names[1]);
            self.0.add_field(Difference::Attributes, "group", json!(names[0]), reason);
        }
    }

    fn add_unmanaged(&mut self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        let first = &names[..names.len().min(MAX_NAMES_IN_REASON)];
        let more = names.len() - first.len();
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let reason =
            format!("the directory has names without an entry: {}{rest}", first.join(", "));
        let reported = &names[..names.len().min(MAX_REPORTED_NAMES)];
        self.0.add_field(Difference::Content, "prune", json!(reported), reason);
    }
}
