//! Reads `groups.xml`.

use std::collections::HashMap;

use super::definitions::GroupDefinitions;
use super::includes::{ReadInclude, parse_with_includes};
use super::names::{GroupId, GroupNames};
use super::{FileFindings, XmlElement};
use crate::bcfg2::xml::ElementLocation;
use crate::validation::{FieldError, short};

/// Attributes of `<Group>` in all versions of Bcfg2.
const GROUP_ATTRIBUTES: &[&str] =
    &["name", "profile", "public", "default", "category", "negate", "comment", "toolset"];

/// The definitions, memberships and conditions of a `groups.xml`.
#[derive(Debug, Default)]
pub struct GroupFile {
    pub(super) names: GroupNames,
    pub(super) definitions: GroupDefinitions,
    /// Each one follows the condition that it is in.
    pub(super) conditions: Vec<Condition>,
    /// Groups that clients join, in the order of the document.
    pub(super) memberships: GroupRules,
    /// Groups that clients are removed from.
    pub(super) removals: GroupRules,
    warnings: Vec<FieldError>,
}

/// A `Group` or `Client` with children.
#[derive(Debug)]
pub(super) struct Condition {
    /// The condition that it is in, which must hold as well.
    pub parent: Option<usize>,
    pub subject: ConditionSubject,
    pub is_negated: bool,
}

#[derive(Debug)]
pub(super) enum ConditionSubject {
    Group(GroupId),
    Client(String),
}

/// Rules by group, in the order of their first rules. One of them suffices.
#[derive(Debug, Default)]
pub(super) struct GroupRules {
    pub groups: Vec<(GroupId, Vec<GroupRule>)>,
    positions: HashMap<GroupId, usize>,
}

/// A `Group` without children. Bcfg2 takes a `Client` without children inside of a condition as one.
#[derive(Debug)]
pub(super) struct GroupRule {
    /// Index of the condition that it is in.
    pub condition: usize,
    pub location: ElementLocation,
}

impl GroupFile {
    /// Reads a `groups.xml`, and with `read_include` the files that it includes.
    ///
    /// # Errors
    /// The text is no such file, has something that is not offered, or Bcfg2 fails on it. The path
    /// of each error is the line.
    pub fn read(
        text: &str,
        read_include: Option<&mut ReadInclude<'_>>,
    ) -> Result<Self, Vec<FieldError>> {
        let mut reader = GroupReader::default();
        let root = parse_with_includes(text, read_include, &mut reader.findings)?;
        reader.findings.check_root(&root, "Groups");
        reader.read_children(&root, Position::default());
        reader.define_groups();
        reader.add_rules();
        let GroupReader { mut file, findings, .. } = reader;
        file.warnings = findings.warnings.into_warnings();
        let errors = findings.errors.into_errors();
        if errors.is_empty() { Ok(file) } else { Err(errors) }
    }

    /// What Bcfg2 ignores in the file, and what it may not do as expected. The paths are lines.
    #[must_use]
    pub fn warnings(&self) -> &[FieldError] {
        &self.warnings
    }
}

impl GroupRules {
    fn add(&mut self, group: GroupId, rule: GroupRule) {
        let position = *self.positions.entry(group).or_insert(self.groups.len());
        match self.groups.get_mut(position) {
            Some((_, rules)) => rules.push(rule),
            None => self.groups.push((group, vec![rule])),
        }
    }
}

/// Where an element is.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// Whether the parent is a `Group` or a `Client`, and not `Groups`.
    is_nested: bool,
    /// The innermost condition around the element.
    condition: Option<usize>,
    is_in_group: bool,
}

/// A `Group` or `Client` in its position.
#[derive(Debug)]
struct GroupNode<'e> {
    element: &'e XmlElement,
    name: &'e str,
    position: Position,
}

#[derive(Debug, Default)]
struct GroupReader<'e> {
    file: GroupFile,
    findings: FileFindings,
    /// All of them, in the order of the document.
    nodes: Vec<GroupNode<'e>>,
}

impl<'e> GroupReader<'e> {
    fn read_children(&mut self, parent: &'e XmlElement, position: Position) {
        for element in &parent.children {
            match element.name.as_str() {
                "Group" | "Client" => self.read_node(element, position),
                "Groups" => self.read_children(element, Position { is_nested: false, ..position }),
                "Bundle" => self.check_bundle(element, parent, position),
                _ => self.findings.refuse_element(element, "Group, Client and Bundle"),
            }
        }
    }

    fn read_node(&mut self, element: &'e XmlElement, position: Position) {
        let is_group = element.name == "Group";
        let known = if is_group { GROUP_ATTRIBUTES } else { &["name", "negate"] };
        self.findings.check_attributes(element, known);
        let Some(name) = self.findings.require(element, "name") else {
            return;
        };
        if is_group && position.condition.is_none() {
            self.check_negated_definition(element);
        }
        if !is_group {
            self.check_client(element, name, position);
        }
        self.nodes.push(GroupNode { element, name, position });
        if element.children.is_empty() {
            return;
        }
        let condition = self.add_condition(element, name, position.condition);
        let is_in_group = position.is_in_group || (is_group && !position.is_nested);
        let inside = Position { is_nested: true, condition: Some(condition), is_in_group };
        self.read_children(element, inside);
    }

    fn add_condition(&mut self, element: &XmlElement, name: &str, parent: Option<usize>) -> usize {
        let subject = match element.name.as_str() {
            "Group" => ConditionSubject::Group(self.file.names.insert(name)),
            _ => ConditionSubject::Client(name.to_owned()),
        };
        let condition = Condition { parent, subject, is_negated: is_negated(element) };
        self.file.conditions.push(condition);
        self.file.conditions.len() - 1
    }

    /// Bcfg2 gives the bundles of a negated definition to the members of the group.
    fn check_negated_definition(&mut self, element: &XmlElement) {
        if !is_negated(element) {
            return;
        }
        if element.children.iter().any(|child| child.name == "Bundle") {
            self.findings.add_warning(
                element,
                "negate=\"true\" with bundles: Bcfg2 gives them to the members of the group, not to \
                 others; put the bundles into another group, and that group into this element",
            );
        } else if is_membership(element) {
            self.findings.add_warning(
                element,
                "negate=\"true\" without groups inside has no effect in Bcfg2; to remove a client \
                 from the group, put this element into a condition",
            );
        }
    }

    fn check_client(&mut self, element: &XmlElement, name: &str, position: Position) {
        let name = short(name);
        if name.chars().any(char::is_uppercase) {
            let message = format!(
                "client {name} never matches, because names of clients are lower-case in Bcfg2; \
                 write {}",
                name.to_lowercase()
            );
            self.findings.add_warning(element, message);
        }
        if !is_membership(element) {
            return;
        }
        if position.condition.is_none() {
            self.findings.add_warning(element, format!("client {name} has no groups inside"));
        } else {
            let message = format!(
                "<Client> without groups inside: Bcfg2 takes it as a group {name}; remove it, or \
                 put groups inside"
            );
            self.findings.add_warning(element, message);
        }
    }

    fn check_bundle(&mut self, element: &XmlElement, parent: &XmlElement, position: Position) {
        self.findings.check_attributes(element, &["name"]);
        for child in &element.children {
            self.findings.refuse_element(child, "none");
        }
        let Some(name) = self.findings.require(element, "name") else {
            return;
        };
        let name = short(name);
        if parent.name == "Groups" {
            self.findings.add_warning(element, format!("bundle {name} is in no group"));
            return;
        }
        // The parent is the condition around the element; only a definition has no other one.
        let outer = position.condition.and_then(|index| self.file.conditions[index].parent);
        if parent.name != "Group" || outer.is_some() {
            let message = format!(
                "bundle {name} is inside of a condition: Bcfg2 ignores the bundle or the condition; \
                 define a group with the bundle below <Groups>, and put that group into the \
                 condition"
            );
            self.findings.add_warning(element, message);
        }
    }

    /// Bcfg2 reads the groups below `<Groups>` first, so their definitions precede others.
    fn define_groups(&mut self) {
        let groups = self.nodes.iter().filter(|node| node.element.name == "Group");
        let (outer, inner): (Vec<_>, Vec<_>) = groups.partition(|node| !node.position.is_nested);
        let inner = inner.into_iter().filter(|node| node.position.is_in_group);
        for node in outer.into_iter().chain(inner) {
            let group = (self.file.names.insert(node.name), &self.file.names);
            self.file.definitions.add(group, node.element, &mut self.findings);
        }
    }

    /// Bcfg2 reads all groups inside of groups before those that are only inside of clients.
    fn add_rules(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        let (first, second): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| node.position.is_in_group);
        for node in first.into_iter().chain(second) {
            if let Some(condition) = node.position.condition {
                self.add_rule(&node, condition);
            }
        }
    }

    fn add_rule(&mut self, node: &GroupNode<'_>, condition: usize) {
        let name = short(node.name);
        if !is_membership(node.element) {
            if node.element.children.is_empty() {
                let message = format!(
                    "Bcfg2 takes {name} as a condition, because it has a comment inside; \
                     move the comment"
                );
                self.findings.add_warning(node.element, message);
            }
            return;
        }
        let group = self.file.names.insert(node.name);
        let rule = GroupRule { condition, location: node.element.location.clone() };
        if is_negated(node.element) {
            self.file.removals.add(group, rule);
        } else if self.file.definitions.get(group).is_some() {
            self.file.memberships.add(group, rule);
        } else {
            let message = format!(
                "group {name} is not defined, and Bcfg2 reads no definition inside of a client; \
                 add <Group name=\"{name}\"/> below <Groups>"
            );
            self.findings.add_error(node.element, message);
        }
    }
}

fn is_negated(element: &XmlElement) -> bool {
    element.attribute("negate").is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether a `Group` is no condition. Bcfg2 counts comments as children.
fn is_membership(element: &XmlElement) -> bool {
    element.children.is_empty() && !element.has_comment
}
