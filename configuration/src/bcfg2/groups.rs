//! Resolves the groups and bundles of a node from `groups.xml` and `clients.xml` of Bcfg2.
//!
//! The result is that of Bcfg2 1.3.4, including its order of evaluation:
//!
//! - A `Group` with children is a condition, one without is a membership, and the outermost ones
//!   define groups. The first definition of a group counts.
//! - All memberships are evaluated with the groups that the node had before, in the order of the
//!   document; then all removals (`negate="true"`). This repeats until the number of groups stays
//!   the same.
//! - A node is in one group of a category: in the first one.
//! - Groups of facts (probes, in Bcfg2) join after the other groups are complete. The node keeps
//!   the bundles of a group that this removes.
//!
//! Where Bcfg2 does not do what a reader expects, the file has a warning: for example for a bundle
//! inside of a condition, and for a negated definition with bundles. Files are refused if Bcfg2
//! fails on them, or if the result depends on something that is not read.

mod client_file;
mod definitions;
mod group_file;
mod includes;
mod names;
mod resolver;

use std::collections::BTreeSet;

use serde::Serialize;

use super::xml::XmlElement;
use crate::validation::{ErrorList, short};

pub use client_file::ClientFile;
pub use group_file::GroupFile;
pub use includes::ReadInclude;
pub use resolver::{ResolveError, resolve};

/// The groups and bundles of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeGroups {
    /// Name of the client: an alias is replaced, and letters are lower-case.
    pub node: String,
    /// The profile group, if there is one.
    pub profile: Option<String>,
    pub groups: BTreeSet<String>,
    pub bundles: BTreeSet<String>,
    /// What an operator should know about the result.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// What a reader of a file found.
#[derive(Debug, Default)]
struct FileFindings {
    errors: ErrorList,
    warnings: ErrorList,
}

impl FileFindings {
    fn add_error(&mut self, element: &XmlElement, message: impl Into<String>) {
        self.errors.add(&element.location.to_string(), message);
    }

    fn add_warning(&mut self, element: &XmlElement, message: impl Into<String>) {
        self.warnings.add(&element.location.to_string(), message);
    }

    /// The value of an attribute that must be there.
    fn require<'e>(&mut self, element: &'e XmlElement, name: &str) -> Option<&'e str> {
        let value = element.attribute(name).filter(|value| !value.is_empty());
        if value.is_none() {
            let tag = &element.name;
            self.add_error(element, format!("<{tag}> has no attribute {name}; add {name}=\"…\""));
        }
        value
    }

    /// Warns of attributes that Bcfg2 does not have, which are often misspelt.
    fn check_attributes(&mut self, element: &XmlElement, known: &[&str]) {
        for (name, _) in &element.attributes {
            if !known.contains(&name.as_str()) {
                let (tag, name) = (&element.name, short(name));
                let message = format!("<{tag}> has no attribute {name} in Bcfg2; it is ignored");
                self.add_warning(element, message);
            }
        }
    }

    /// Checks the root element. A namespace would hide all elements from Bcfg2.
    fn check_root(&mut self, root: &XmlElement, name: &str) {
        if root.name != name {
            let found = short(&root.name);
            let message = format!("the document is <{found}>; give a file with <{name}>");
            self.add_error(root, message);
        } else if root.attribute("xmlns").is_some() {
            self.add_error(root, "Bcfg2 finds no element in a namespace; remove xmlns");
        }
    }

    /// Refuses an element that is not accepted in its parent.
    fn refuse_element(&mut self, element: &XmlElement, accepted: &str) {
        let tag = short(&element.name);
        self.add_error(element, format!("<{tag}> is not accepted here; accepted: {accepted}"));
    }
}
