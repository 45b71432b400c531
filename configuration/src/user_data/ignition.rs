//! The JSON of Ignition.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::plan::{
    PlannedActivation, PlannedContent, PlannedObject, PlannedPath, PlannedUnit, ProvisionPlan,
};

const SPEC_VERSION: &str = "3.3.0";

#[derive(Serialize)]
struct IgnitionConfig<'a> {
    ignition: IgnitionVersion,
    storage: IgnitionStorage<'a>,
    systemd: IgnitionSystemd<'a>,
}

#[derive(Serialize)]
struct IgnitionVersion {
    version: &'static str,
}

#[derive(Default, Serialize)]
struct IgnitionStorage<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    directories: Vec<IgnitionDirectory<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<IgnitionFile<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<IgnitionLink<'a>>,
}

#[derive(Serialize)]
struct IgnitionFile<'a> {
    path: &'a str,
    overwrite: bool,
    mode: u32,
    user: IgnitionAccount<'a>,
    group: IgnitionAccount<'a>,
    contents: IgnitionContents,
}

#[derive(Serialize)]
struct IgnitionDirectory<'a> {
    path: &'a str,
    mode: u32,
    user: IgnitionAccount<'a>,
    group: IgnitionAccount<'a>,
}

#[derive(Serialize)]
struct IgnitionLink<'a> {
    path: &'a str,
    overwrite: bool,
    target: &'a str,
    user: IgnitionAccount<'a>,
    group: IgnitionAccount<'a>,
}

/// A user or a group.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum IgnitionAccount<'a> {
    Id(u32),
    Name(&'a str),
}

#[derive(Serialize)]
struct IgnitionContents {
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<IgnitionVerification>,
}

#[derive(Serialize)]
struct IgnitionVerification {
    hash: String,
}

#[derive(Serialize)]
struct IgnitionSystemd<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    units: Vec<IgnitionUnit<'a>>,
}

#[derive(Serialize)]
struct IgnitionUnit<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contents: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    dropins: Vec<IgnitionDropIn<'a>>,
}

#[derive(Serialize)]
struct IgnitionDropIn<'a> {
    name: &'a str,
    contents: &'a str,
}

/// Renders the JSON in one line.
pub(super) fn render(plan: &ProvisionPlan<'_>) -> String {
    let mut storage = IgnitionStorage::default();
    for planned in &plan.paths {
        add_path(&mut storage, planned);
    }
    let units = plan.units.iter().map(ignition_unit).collect();
    let config = IgnitionConfig {
        ignition: IgnitionVersion { version: SPEC_VERSION },
        storage,
        systemd: IgnitionSystemd { units },
    };
    let mut json = serde_json::to_string(&config).expect("every key is a string");
    json.push('\n');
    json
}

fn add_path<'a>(storage: &mut IgnitionStorage<'a>, planned: &'a PlannedPath<'a>) {
    let path = planned.path;
    let (user, group) = (account(planned.owner), account(planned.group));
    match &planned.object {
        PlannedObject::File { mode, content } => {
            let contents = ignition_contents(content);
            let mode = *mode;
            storage.files.push(IgnitionFile { path, overwrite: true, mode, user, group, contents });
        }
        PlannedObject::Directory { mode } => {
            storage.directories.push(IgnitionDirectory { path, mode: *mode, user, group });
        }
        PlannedObject::Symlink { target } => {
            storage.links.push(IgnitionLink { path, overwrite: true, target, user, group });
        }
    }
}

fn account(text: &str) -> IgnitionAccount<'_> {
    match text.parse() {
        Ok(id) => IgnitionAccount::Id(id),
        Err(_) => IgnitionAccount::Name(text),
    }
}

fn ignition_contents(content: &PlannedContent<'_>) -> IgnitionContents {
    let source = match content {
        PlannedContent::Text(content) => {
            let percent = percent_encode(content.text);
            let base64 = base64_url(content.text.as_bytes());
            if content.is_readable || percent.len() <= base64.len() { percent } else { base64 }
        }
        PlannedContent::Binary(bytes) => base64_url(bytes),
        PlannedContent::Download { uri, .. } => (*uri).to_owned(),
    };
    let verification = match content {
        PlannedContent::Download { sha256, .. } => {
            Some(IgnitionVerification { hash: format!("sha256-{sha256}") })
        }
        PlannedContent::Text(_) | PlannedContent::Binary(_) => None,
    };
    IgnitionContents { source, verification }
}

fn base64_url(bytes: &[u8]) -> String {
    format!("data:;base64,{}", STANDARD.encode(bytes))
}

/// A data URL in which characters that Ignition refuses or interprets are percent-encoded.
fn percent_encode(text: &str) -> String {
    let mut url = "data:,".to_owned();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.!~*'();/:@&=+$,".contains(&byte) {
            url.push(char::from(byte));
        } else {
            write!(url, "%{byte:02X}").expect("a String accepts every text");
        }
    }
    url
}

fn ignition_unit<'a>(unit: &PlannedUnit<'a>) -> IgnitionUnit<'a> {
    let drop_ins = unit.drop_ins.iter();
    IgnitionUnit {
        name: unit.name,
        enabled: match unit.activation {
            PlannedActivation::Enabled | PlannedActivation::Stopped => Some(true),
            PlannedActivation::Disabled => Some(false),
            PlannedActivation::Template => None,
        },
        contents: unit.content.map(|content| content.text),
        dropins: drop_ins
            .map(|(name, content)| IgnitionDropIn { name, contents: content.text })
            .collect(),
    }
}
