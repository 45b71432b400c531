//! What is installed on a host, and what could be.

use std::collections::BTreeMap;

use clap::Args;
use evenkeel_api::decision::{AvailableUpdate, Decision};
use evenkeel_api::instance::InstanceResource;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::client::Client;
use crate::commands::instance;
use crate::resource::{self, Resource};
use crate::view::{Cell, Printer, Tone};

/// Which packages of which host.
#[derive(Debug, Args)]
pub struct Packages {
    /// The host's id or name.
    host: String,
    /// Only those whose name has this text in it.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    name: String,
}

/// A package as a node or the manifest of an image names it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Package {
    name: String,
    version: String,
    architecture: String,
}

/// The form in which packages are told: in groups, or as one list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    Groups(BTreeMap<String, Vec<Package>>),
    List(Vec<Package>),
}

impl Packages {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let instance = running_on(client, &self.host).await?;
        let mut packages = read(&instance.runtime_packages).map_err(|source| {
            Failure::usage(format!("the packages of the host cannot be read: {source}"))
        })?;
        if packages.is_empty() && printer.is_for_people() {
            return printer.text("the host has not told its packages");
        }
        packages.retain(|package| package.name.contains(&self.name));
        let rows = packages.iter().map(|package| {
            vec![
                Cell::from(package.name.clone()),
                package.version.clone().into(),
                package.architecture.clone().into(),
            ]
        });
        let names: Vec<_> = packages.iter().map(|one| one.name.as_str()).collect();
        printer.rows(
            &packages,
            &names,
            &["PACKAGE", "VERSION", "ARCHITECTURE"],
            rows.collect(),
        )
    }
}

/// The packages in a text of a node; none in an empty one.
fn read(text: &str) -> Result<Vec<Package>, serde_json::Error> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut packages = match serde_json::from_str(text)? {
        Told::Groups(groups) => groups.into_values().flatten().collect(),
        Told::List(packages) => packages,
    };
    let key = |one: &Package| (one.name.clone(), one.architecture.clone());
    packages.sort_by_cached_key(key);
    Ok(packages)
}

/// Shows the updates that a host could have.
pub async fn updates(
    client: &Client,
    host: &str,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let instance = running_on(client, host).await?;
    let path = format!(
        "{}/decision",
        InstanceResource::address(&instance.resource_id)
    );
    let decision: Decision = client.get(&path).await?;
    let updates = decision.available_updates;
    let image = image(&instance.os_update_available);
    if updates.is_empty() && printer.is_for_people() {
        return match image {
            None => printer.text("there is nothing newer for the host"),
            Some(name) => printer.line(&format!("the image {name}")),
        };
    }
    let names = updates.iter().map(|update| update.name.as_str());
    let names: Vec<_> = names.chain(image).collect();
    if let (true, Some(image)) = (updates.is_empty(), image) {
        return printer.rows(
            &[serde_json::json!({ "image": image })],
            &names,
            &[],
            vec![],
        );
    }
    let rows = updates.iter().map(row).collect();
    let header = [
        "PACKAGE",
        "ARCHITECTURE",
        "INSTALLED",
        "AVAILABLE",
        "POLICY",
    ];
    printer.rows(&updates, &names, &header, rows)
}

fn row(update: &AvailableUpdate) -> Vec<Cell> {
    let policy = if update.left_out {
        Cell::from("leaves it out")
    } else {
        Cell::from("")
    };
    vec![
        update.name.clone().into(),
        update.architecture.clone().into(),
        update.installed.clone().into(),
        Cell::toned(update.available.clone(), Tone::Busy),
        policy,
    ]
}

/// The name of the newest image, if that is what could be installed: packages are a list.
fn image(available: &str) -> Option<&str> {
    let is_list = available.starts_with('[');
    (!available.is_empty() && !is_list).then_some(available)
}

/// What runs on the host that a person means, whole.
async fn running_on(client: &Client, host: &str) -> Result<InstanceResource, Failure> {
    let (_, instance) = instance::of_host(client, host).await?;
    resource::find::<InstanceResource>(client, &instance).await
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
            let packages = read(&text).expect("packages");
            let names: Vec<_> = packages.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(names, ["apt", "jq"], "{text}");
        }
        assert!(read("").expect("none").is_empty());
        assert!(read("7").is_err());
    }

    #[test]
    fn an_image_is_a_name_and_no_list() {
        assert_eq!(image("edge 3.0.2"), Some("edge 3.0.2"));
        assert_eq!(image(r#"[{"name":"jq"}]"#), None);
        assert_eq!(image(""), None);
    }
}
