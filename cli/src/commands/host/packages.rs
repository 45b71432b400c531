//! Installed packages and available updates of a host.

use std::collections::BTreeMap;

use clap::Args;
use evenkeel_api::decision::{AvailableUpdate, Decision};
use evenkeel_api::instance::{InstanceCondition, InstanceHeldBackPackage, InstanceResource};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::client::Client;
use crate::commands::instance::{self, facts};
use crate::output::Printer;
use crate::page::{Cell, Tone, cells, sanitize_text};
use crate::requests;
use crate::resource::Resource;

/// End of the message of a condition that says how many available updates are stored. A condition
/// of the same type says that the log of a run was cut.
const CUT_LIST_SUFFIX: &str = " of them are kept";

/// List the packages installed on a host.
#[derive(Debug, Args)]
pub struct ListPackages {
    /// ID or name of the host.
    host: String,
    /// List only packages whose name contains this text.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    name: String,
}

/// A package as reported by a node or by the manifest of an image.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub architecture: String,
}

/// JSON forms of a package list: groups, or a flat list.
#[derive(Deserialize)]
#[serde(untagged)]
enum PackageList {
    Groups(BTreeMap<String, Vec<Package>>),
    List(Vec<Package>),
}

impl ListPackages {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let instance = find_instance(client, &self.host).await?;
        let mut packages = parse_packages(&instance.runtime_packages).map_err(|source| {
            Failure::usage(format!("cannot parse the package list of the host: {source}"))
        })?;
        if packages.is_empty() && printer.is_human_readable() {
            return printer.print_text("the host has not reported its packages");
        }
        packages.retain(|package| package.name.contains(&self.name));
        let rows = packages
            .iter()
            .map(|package| cells![&package.name, &package.version, &package.architecture]);
        let names: Vec<_> = packages.iter().map(|one| one.name.as_str()).collect();
        printer.print_rows(&packages, &names, &["PACKAGE", "VERSION", "ARCHITECTURE"], rows)
    }
}

/// Number of packages in a package list; 0 if it cannot be read.
pub fn count_packages(text: &str) -> usize {
    parse_packages(text).map(|packages| packages.len()).unwrap_or_default()
}

/// Parses the package list of a node. An empty text is an empty list.
pub fn parse_packages(text: &str) -> Result<Vec<Package>, serde_json::Error> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut packages = match serde_json::from_str(text)? {
        PackageList::Groups(groups) => groups.into_values().flatten().collect(),
        PackageList::List(packages) => packages,
    };
    let key = |one: &Package| (one.name.clone(), one.architecture.clone());
    packages.sort_by_cached_key(key);
    Ok(packages)
}

/// List the updates available for a host, and those that it holds back.
///
/// Fails if the updates are unknown because the package lists of the host are not current.
#[derive(Debug, Args)]
pub struct ListUpdates {
    /// ID or name of the host.
    host: String,
    /// List only security updates and updates whose security flag is unknown.
    #[arg(long)]
    security: bool,
}

/// An update that a node can install or holds back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HostUpdate {
    name: String,
    architecture: String,
    installed: String,
    available: String,
    suites: Vec<String>,
    origins: Vec<String>,
    /// `None` if it is unknown.
    security: Option<bool>,
    /// Whether the policy excludes it, by name or by suite.
    excluded: bool,
    /// Whether the policy requires a greater age.
    too_young: bool,
    /// Why the node holds it back; empty if it does not.
    held_back: String,
}

impl From<&AvailableUpdate> for HostUpdate {
    fn from(update: &AvailableUpdate) -> Self {
        Self {
            name: update.name.clone(),
            architecture: update.architecture.clone(),
            installed: update.installed.clone(),
            available: update.available.clone(),
            suites: update.suites.clone(),
            origins: update.origins.clone(),
            security: update.security,
            excluded: update.excluded,
            too_young: update.too_young,
            held_back: String::new(),
        }
    }
}

impl From<&InstanceHeldBackPackage> for HostUpdate {
    fn from(package: &InstanceHeldBackPackage) -> Self {
        Self {
            name: package.name.clone(),
            architecture: package.architecture.clone(),
            installed: package.installed.clone(),
            available: package.available.clone(),
            suites: package.suites.clone(),
            origins: package.origins.clone(),
            security: package.security,
            excluded: false,
            too_young: false,
            held_back: package.cause.clone(),
        }
    }
}

impl ListUpdates {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let instance = find_instance(client, &self.host).await?;
        let path = format!("{}/decision", InstanceResource::address(&instance.resource_id));
        let decision: Decision = client.get(&path).await?;
        let available = decision.available_updates.iter().map(HostUpdate::from);
        let held_back = instance.held_back_packages.iter().map(HostUpdate::from);
        let mut updates: Vec<_> = available.chain(held_back).collect();
        let image = image_name(&instance.os_update_available);
        let unreported =
            if updates.is_empty() { facts::unreported_lists_reason(&instance) } else { None };
        let unknown = facts::unknown_updates_reason(&instance, printer.now()).or(unreported);
        let unknown = unknown.map(|why| sanitize_text(&why));
        if let (None, Some(why)) = (image, unknown) {
            if updates.is_empty() {
                return Err(unknown_updates_error(&why));
            }
            printer.print_note(&format!("the list may be incomplete: {why}"))?;
        }
        for note in cut_list_notes(&instance) {
            printer.print_note(&note)?;
        }
        updates.retain(|update| !self.security || update.security != Some(false));
        if updates.is_empty() && image.is_none() && printer.is_human_readable() {
            let kind = if self.security { "security updates" } else { "updates" };
            return printer.print_text(&format!("no {kind} available"));
        }
        print_updates(&updates, image, printer)
    }
}

/// Which of the lists lack updates because the server stores or sends only the first of many.
fn cut_list_notes(instance: &InstanceResource) -> Vec<String> {
    let is_cut = |condition: &&InstanceCondition| {
        condition.kind == "detail_cut" && condition.message.ends_with(CUT_LIST_SUFFIX)
    };
    let available = instance.conditions.iter().find(is_cut);
    let available = available.map(|condition| {
        let message = sanitize_text(&condition.message);
        format!("not all available updates are listed: {message}")
    });
    let listed = instance.held_back_packages.len();
    let held_back = facts::is_held_back_list_cut(instance).then(|| {
        let all = instance.held_back_updates.unwrap_or_default();
        format!("showing {listed} of {all} updates that are held back")
    });
    available.into_iter().chain(held_back).collect()
}

fn unknown_updates_error(why: &str) -> Failure {
    Failure::usage_with(
        format!("the available updates are unknown: {why}"),
        "`evenkeel-agent doctor` on the host shows what is wrong",
    )
}

fn print_updates(
    updates: &[HostUpdate],
    image: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    if let (true, true, Some(name)) = (updates.is_empty(), printer.is_human_readable(), image) {
        return printer.print_line(&format!("image {name}"));
    }
    let names = updates.iter().map(|update| update.name.as_str());
    let names: Vec<_> = names.chain(image).collect();
    if let (true, Some(image)) = (updates.is_empty(), image) {
        return printer.print_rows(&[serde_json::json!({ "image": image })], &names, &[], vec![]);
    }
    let rows = updates.iter().map(update_row);
    let header =
        ["PACKAGE", "ARCHITECTURE", "INSTALLED", "AVAILABLE", "SUITE", "SECURITY", "NOT INSTALLED"];
    printer.print_rows(&updates, &names, &header, rows)
}

fn update_row(update: &HostUpdate) -> Vec<Cell> {
    let cause = match (update.excluded, update.too_young) {
        (true, _) => "policy: excluded",
        (false, true) => "policy: too young",
        (false, false) => update.held_back.as_str(),
    };
    cells![
        &update.name,
        &update.architecture,
        &update.installed,
        Cell::toned(update.available.clone(), Tone::Busy),
        facts::main_suite(&update.suites),
        facts::is_security_cell(update.security),
        cause
    ]
}

/// Name of the available image. Package updates are a JSON list instead.
fn image_name(available: &str) -> Option<&str> {
    let is_list = available.starts_with('[');
    (!available.is_empty() && !is_list).then_some(available)
}

/// The full instance of a host.
async fn find_instance(client: &Client, host: &str) -> Result<InstanceResource, Failure> {
    let (_, instance) = instance::find_host_and_instance(client, host).await?;
    requests::find::<InstanceResource>(client, &instance).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_groups_and_from_a_list() {
        let jq = r#"{"name":"jq","version":"1.6","architecture":"amd64"}"#;
        let apt = r#"{"name":"apt","version":"2.6","architecture":"amd64","state":"installed"}"#;
        for text in [
            format!(r#"{{"repo":[{jq},{apt}]}}"#),
            format!(r#"{{"a":[{jq}],"b":[{apt}]}}"#),
            format!("[{jq},{apt}]"),
        ] {
            let packages = parse_packages(&text).expect("packages");
            let names: Vec<_> = packages.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, ["apt", "jq"], "{text}");
        }
        assert!(parse_packages("").expect("none").is_empty());
        assert!(parse_packages("7").is_err());
    }

    #[test]
    fn an_image_is_a_name_and_no_list() {
        assert_eq!(image_name("edge 3.0.2"), Some("edge 3.0.2"));
        assert_eq!(image_name(r#"[{"name":"jq"}]"#), None);
        assert_eq!(image_name(""), None);
    }
}
