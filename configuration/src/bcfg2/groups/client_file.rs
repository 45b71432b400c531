//! Reads `clients.xml`.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::includes::{ReadInclude, parse_with_includes};
use super::{FileFindings, XmlElement};
use crate::bcfg2::xml::ElementLocation;
use crate::validation::{FieldError, short};

/// Attributes of `<Client>` in all versions of Bcfg2.
const CLIENT_ATTRIBUTES: &[&str] = &[
    "name", "profile", "address", "auth", "floating", "location", "password", "pingable",
    "pingtime", "secure", "uuid", "version",
];

/// The clients of a `clients.xml`, with their profiles and aliases.
#[derive(Debug, Default)]
pub struct ClientFile {
    /// By name, in lower case.
    clients: HashMap<String, ClientRecord>,
    /// Names of clients by alias.
    aliases: BTreeMap<String, String>,
    warnings: Vec<FieldError>,
}

#[derive(Debug)]
struct ClientRecord {
    /// More than one if the file has the client several times.
    profiles: Vec<String>,
    location: ElementLocation,
}

impl ClientFile {
    /// Reads a `clients.xml`, and with `read_include` the files that it includes.
    ///
    /// # Errors
    /// The text is no such file, or a client has no name or no profile. The path of each error is
    /// the line.
    pub fn read(
        text: &str,
        read_include: Option<&mut ReadInclude<'_>>,
    ) -> Result<Self, Vec<FieldError>> {
        let mut file = Self::default();
        let mut findings = FileFindings::default();
        let root = parse_with_includes(text, read_include, &mut findings)?;
        findings.check_root(&root, "Clients");
        file.read_children(&root, &mut findings);
        file.check_aliases(&mut findings);
        file.warnings = findings.warnings.into_warnings();
        let errors = findings.errors.into_errors();
        if errors.is_empty() { Ok(file) } else { Err(errors) }
    }

    /// What Bcfg2 ignores in the file. The paths are lines.
    #[must_use]
    pub fn warnings(&self) -> &[FieldError] {
        &self.warnings
    }

    /// The name of the client that has this name or alias.
    pub(super) fn resolve_name(&self, node: &str) -> String {
        let name = node.to_lowercase();
        self.aliases.get(&name).cloned().unwrap_or(name)
    }

    /// The profiles of a client, in the order of the document. None if there is no such client.
    pub(super) fn profiles(&self, client: &str) -> &[String] {
        self.clients.get(client).map_or(&[], |client| &client.profiles)
    }

    fn read_children(&mut self, parent: &XmlElement, findings: &mut FileFindings) {
        for element in &parent.children {
            match element.name.as_str() {
                "Client" => self.read_client(element, findings),
                "Clients" => self.read_children(element, findings),
                _ => findings.refuse_element(element, "Client"),
            }
        }
    }

    fn read_client(&mut self, element: &XmlElement, findings: &mut FileFindings) {
        findings.check_attributes(element, CLIENT_ATTRIBUTES);
        let name = findings.require(element, "name");
        let profile = findings.require(element, "profile");
        let (Some(name), Some(profile)) = (name, profile) else {
            return;
        };
        let name = name.to_lowercase();
        for alias in &element.children {
            self.read_alias(alias, &name, findings);
        }
        let profile = profile.to_owned();
        match self.clients.entry(name) {
            Entry::Vacant(entry) => {
                let location = element.location.clone();
                entry.insert(ClientRecord { profiles: vec![profile], location });
            }
            Entry::Occupied(mut entry) => {
                let (name, location) = (short(entry.key()), &entry.get().location);
                let message = format!(
                    "client {name} is in {location} as well; Bcfg2 gives it all of the profiles"
                );
                findings.add_warning(element, message);
                entry.get_mut().profiles.push(profile);
            }
        }
    }

    fn read_alias(&mut self, element: &XmlElement, client: &str, findings: &mut FileFindings) {
        if element.name != "Alias" {
            findings.refuse_element(element, "Alias");
            return;
        }
        findings.check_attributes(element, &["name", "address"]);
        let Some(alias) = findings.require(element, "name") else {
            return;
        };
        let name = short(alias);
        if alias.chars().any(char::is_uppercase) {
            let message = format!(
                "alias {name} matches no node, because Bcfg2 compares lower-case names; write {}",
                name.to_lowercase()
            );
            findings.add_warning(element, message);
        }
        let other = self.aliases.insert(alias.to_owned(), client.to_owned());
        if let Some(other) = other.filter(|other| other != client) {
            let (other, client) = (short(&other), short(client));
            let message =
                format!("{name} is an alias of {other} as well; Bcfg2 takes it as {client}");
            findings.add_warning(element, message);
        }
    }

    /// Bcfg2 replaces aliases first, so an alias hides a client of that name.
    fn check_aliases(&self, findings: &mut FileFindings) {
        for (alias, target) in self.aliases.iter().filter(|(alias, target)| alias != target) {
            if let Some(hidden) = self.clients.get(alias) {
                let (name, target) = (short(alias), short(target));
                let message = format!("Bcfg2 takes {name} as an alias of client {target}");
                findings.warnings.add(&hidden.location.to_string(), message);
            }
        }
    }
}
