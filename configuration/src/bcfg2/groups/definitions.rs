//! The definitions of groups: their bundles, category and flags.

use std::collections::HashMap;

use super::names::{GroupId, GroupNames};
use super::{FileFindings, XmlElement};
use crate::bcfg2::xml::ElementLocation;
use crate::validation::{excerpt, short};

/// Attributes of a definition.
const OPTIONS: [&str; 4] = ["profile", "public", "default", "category"];

/// What the first definition of a group has.
#[derive(Debug)]
pub(super) struct GroupDefinition {
    pub bundles: Vec<String>,
    pub category: Option<String>,
    pub is_profile: bool,
    location: ElementLocation,
}

/// All defined groups.
#[derive(Debug, Default)]
pub(super) struct GroupDefinitions {
    groups: HashMap<GroupId, GroupDefinition>,
    /// The profile of clients that are not in `clients.xml`.
    pub default_profile: Option<GroupId>,
}

impl GroupDefinitions {
    pub fn get(&self, group: GroupId) -> Option<&GroupDefinition> {
        self.groups.get(&group)
    }

    pub fn is_profile(&self, group: GroupId) -> bool {
        self.get(group).is_some_and(|definition| definition.is_profile)
    }

    pub fn category(&self, group: GroupId) -> Option<&str> {
        self.get(group)?.category.as_deref()
    }

    /// Adds a definition, unless the group has one.
    pub fn add(
        &mut self,
        (group, names): (GroupId, &GroupNames),
        element: &XmlElement,
        findings: &mut FileFindings,
    ) {
        let name = short(names.name(group));
        if let Some(first) = self.groups.get(&group) {
            if has_definition(element) {
                let message = format!(
                    "group {name} is defined in {}; Bcfg2 ignores the attributes and bundles \
                     of this definition",
                    first.location
                );
                findings.add_warning(element, message);
            }
            return;
        }
        let bundles = element.children.iter().filter(|child| child.name == "Bundle");
        let bundles = bundles.filter_map(|bundle| bundle.attribute("name")).map(str::to_owned);
        let category = element.attribute("category").filter(|category| !category.is_empty());
        let definition = GroupDefinition {
            bundles: bundles.collect(),
            category: category.map(str::to_owned),
            is_profile: read_flag(element, "profile", findings),
            location: element.location.clone(),
        };
        // The attribute has no effect on groups. Bcfg2's clients may only select public profiles.
        read_flag(element, "public", findings);
        if read_flag(element, "default", findings) {
            if !definition.is_profile {
                let message =
                    format!("the default group {name} is not a profile; add profile=\"true\"");
                findings.add_warning(element, message);
            }
            if let Some(other) = self.default_profile {
                let other = short(names.name(other));
                let message = format!("group {other} is a default as well; Bcfg2 takes {name}");
                findings.add_warning(element, message);
            }
            self.default_profile = Some(group);
        }
        self.groups.insert(group, definition);
    }
}

/// Whether an element has more than a name and conditions.
fn has_definition(element: &XmlElement) -> bool {
    let has_option = OPTIONS.iter().any(|name| element.attribute(name).is_some());
    has_option || element.children.iter().any(|child| child.name == "Bundle")
}

/// A boolean of a definition. Bcfg2 takes everything else than `true` as false.
fn read_flag(element: &XmlElement, name: &str, findings: &mut FileFindings) -> bool {
    let value = element.attribute(name).unwrap_or("false");
    if !matches!(value, "true" | "false") {
        let value = excerpt(value);
        let message = format!("Bcfg2 takes {name}={value} as false; write \"true\" or \"false\"");
        findings.add_warning(element, message);
    }
    value == "true"
}
