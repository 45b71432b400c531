//! `evenkeel os`: the catalog of operating systems, and the tools that publish and copy them.

mod bundle;
mod details;
mod key;
mod mirror;
mod progress;
mod publish;
mod registry_options;
mod settings;
mod sync;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use evenkeel_api::os::{
    OperatingSystemInput, OperatingSystemResource, OsProviderKind, OsType, SecurityFeature,
};
use evenkeel_api::timestamps::Timestamps;
use serde::Deserialize;
use serde_json::Value;

use self::bundle::{CreateBundle, Import};
use self::key::GenerateKey;
use self::mirror::Mirror;
use self::publish::Publish;
use self::settings::OsSettingsCommand;
use self::sync::SyncCommand;
use self::verify::Verify;
use super::{parse_input, read_yaml};
use crate::client::Client;
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, PatchBody, ResourceArg};
use crate::resource::{Resource, ResourceKind};
use crate::{Ending, Failure};

/// SHA-256 of an operating system without an image.
const NO_IMAGE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Manage the catalog of operating systems.
#[derive(Debug, Subcommand)]
pub enum OsCommand {
    /// List operating systems.
    List(ListOptions),
    /// Show an operating system.
    Get(ResourceArg<OperatingSystemResource>),
    /// Create an operating system. Enrolment creates package-managed ones automatically.
    Create(Box<CreateOs>),
    /// Change an operating system. Options that are not given keep their values.
    Set(SetOs),
    /// Delete an operating system that is not in use.
    Delete(ResourceArg<OperatingSystemResource>),
    Sync(SyncCommand),
    /// Show the result and the findings of the last sync of the project.
    SyncReport,
    Settings(OsSettingsCommand),
    #[command(flatten)]
    Transfer(TransferCommand),
}

/// Commands that publish and copy operating systems. They need no server.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    Publish(Box<Publish>),
    Verify(Box<Verify>),
    Mirror(Box<Mirror>),
    Bundle(Box<CreateBundle>),
    Import(Box<Import>),
    Key(GenerateKey),
}

/// Create an operating system from a profile file or from options.
#[derive(Debug, Args)]
pub struct CreateOs {
    /// File with an operating system, as `get -o yaml` or `get -o json` prints it, or with an OS
    /// profile in the format of EIM's command line: the fields below `spec`.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "os_type", "architecture", "profile", "image_version", "image_url", "sha256", "image_signatures", "description"])]
    file: Option<PathBuf>,
    /// Name of the operating system.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// How the operating system is updated.
    #[arg(long = "type", value_enum, required_unless_present = "file")]
    os_type: Option<OsKind>,
    /// CPU architecture.
    #[arg(long, default_value = "x86_64")]
    architecture: String,
    /// Profile that the image belongs to [default: NAME].
    #[arg(long)]
    profile: Option<String>,
    /// Version of the image.
    #[arg(long, default_value = "", hide_default_value = true)]
    image_version: String,
    /// URL of the image.
    #[arg(long, default_value = "", hide_default_value = true)]
    image_url: String,
    /// SHA-256 digest of the image; required for `immutable`.
    #[arg(long, required_if_eq("os_type", "immutable"))]
    sha256: Option<String>,
    /// Signature of the image: SHA-256 of the public key, colon, signature in base64. Can be repeated.
    #[arg(long = "image-signature", value_name = "KEY:SIGNATURE")]
    image_signatures: Vec<String>,
    /// Description.
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
}

/// Change an operating system.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["architecture", "metadata", "image_signatures", "no_image_signatures"]))]
pub struct SetOs {
    /// ID or name of the operating system.
    os: String,
    /// CPU architecture, such as `x86_64`.
    #[arg(long)]
    architecture: Option<String>,
    /// Additional metadata, a JSON object.
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// New signature of the image; replaces all existing ones. Can be repeated. Signatures also cover
    /// the architecture.
    #[arg(long = "image-signature", value_name = "KEY:SIGNATURE")]
    image_signatures: Vec<String>,
    /// Remove all signatures of the image.
    #[arg(long, conflicts_with = "image_signatures")]
    no_image_signatures: bool,
}

/// How an operating system is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OsKind {
    /// By packages.
    Mutable,
    /// By images.
    Immutable,
}

impl OsCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        type Os = OperatingSystemResource;
        match self {
            Self::List(options) => requests::list::<Os>(options, client, printer).await?,
            Self::Get(os) => os.print(client, printer).await?,
            Self::Create(create) => {
                requests::create::<Os>(&create.build_input()?, client, printer).await?;
            }
            Self::Set(set) => printer.print_resource(&set.run(client).await?)?,
            Self::Delete(os) => os.delete(client, printer).await?,
            Self::Sync(sync) => return sync.run(client, printer).await,
            Self::SyncReport => sync::print_last_report(client, printer).await?,
            Self::Settings(settings) => settings.run(client, printer).await?,
            Self::Transfer(moving) => return moving.run(printer).await,
        }
        Ok(Ending::Done)
    }
}

impl TransferCommand {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        match self {
            Self::Publish(publish) => Box::pin(publish.run(printer)).await?,
            Self::Verify(verify) => return Box::pin(verify.run(printer)).await,
            Self::Mirror(mirror) => return Box::pin(mirror.run(printer)).await,
            Self::Bundle(bundle) => return Box::pin(bundle.run(printer)).await,
            Self::Import(import) => return Box::pin(import.run(printer)).await,
            Self::Key(key) => key.run(printer)?,
        }
        Ok(Ending::Done)
    }
}

impl SetOs {
    async fn run(self, client: &Client) -> Result<OperatingSystemResource, Failure> {
        let id = requests::resolve_id::<OperatingSystemResource>(client, &self.os).await?;
        let has_signatures = self.no_image_signatures || !self.image_signatures.is_empty();
        let mut body = PatchBody::default();
        body.set("architecture", self.architecture)
            .set("metadata", self.metadata)
            .set("imageSignatures", has_signatures.then_some(self.image_signatures));
        requests::patch(client, &id, &self.os, &body).await
    }
}

impl CreateOs {
    fn build_input(self) -> Result<OperatingSystemInput, Failure> {
        if let Some(path) = &self.file {
            return read_os(path);
        }
        let name = self.name.unwrap_or_default();
        Ok(OperatingSystemInput {
            architecture: self.architecture,
            image_id: self.image_version,
            image_url: self.image_url,
            sha256: self.sha256.unwrap_or_else(|| NO_IMAGE.to_owned()),
            image_signatures: self.image_signatures,
            profile_name: self.profile.unwrap_or_else(|| name.clone()),
            description: self.description,
            os_type: match self.os_type {
                Some(OsKind::Immutable) => OsType::Immutable,
                Some(OsKind::Mutable) | None => OsType::Mutable,
            },
            name,
            ..OperatingSystemInput::default()
        })
    }
}

/// Reads an operating system as this program prints it, or a profile in the format of EIM's command
/// line.
fn read_os(path: &Path) -> Result<OperatingSystemInput, Failure> {
    const EXPECTED: &str = "an operating system or an OS profile";
    let file: Value = read_yaml(path, EXPECTED)?;
    let Some(spec) = file.get("spec") else {
        return parse_input(file, path, EXPECTED);
    };
    let spec = serde_json::from_value::<ProfileSpec>(spec.clone());
    spec.map(OperatingSystemInput::from).map_err(|error| Failure::Content {
        path: path.to_owned(),
        expected: EXPECTED,
        source: Box::new(error),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProfileSpec {
    name: String,
    #[serde(rename = "type")]
    kind: OsType,
    provider: OsProviderKind,
    architecture: String,
    profile_name: String,
    os_image_url: String,
    os_image_version: String,
    os_image_sha256: String,
    os_image_signatures: Vec<String>,
    security_feature: SecurityFeature,
    description: String,
    metadata: BTreeMap<String, serde_json::Value>,
    tls_ca_cert: String,
    #[serde(rename = "osExistingCvesURL")]
    existing_cves_url: String,
    #[serde(rename = "osFixedCvesURL")]
    fixed_cves_url: String,
}

impl From<ProfileSpec> for OperatingSystemInput {
    fn from(spec: ProfileSpec) -> Self {
        let metadata = if spec.metadata.is_empty() {
            String::new()
        } else {
            serde_json::json!(spec.metadata).to_string()
        };
        let sha256 = if spec.os_image_sha256.is_empty() {
            NO_IMAGE.to_owned()
        } else {
            spec.os_image_sha256
        };
        Self {
            name: spec.name,
            architecture: spec.architecture,
            image_url: spec.os_image_url.clone(),
            image_id: spec.os_image_version,
            sha256,
            image_signatures: spec.os_image_signatures,
            profile_name: spec.profile_name,
            description: spec.description,
            installed_packages_url: String::new(),
            security_feature: spec.security_feature,
            os_type: spec.kind,
            os_provider: spec.provider,
            metadata,
            tls_ca_cert: spec.tls_ca_cert,
            existing_cves_url: spec.existing_cves_url,
            fixed_cves_url: spec.fixed_cves_url,
            repo_url: spec.os_image_url,
        }
    }
}

impl Resource for OperatingSystemResource {
    const KIND: ResourceKind = ResourceKind {
        command: "os",
        id_prefix: "os",
        path: "compute/os",
        list_key: "OperatingSystemResources",
        in_use_hint: Some("delete the instances and policies that use it first"),
        titles: &["TYPE", "ARCHITECTURE", "PROFILE", "IMAGE VERSION"],
        optional_titles: &["AGE", "ARCHITECTURE", "PROFILE", "TYPE", "IMAGE VERSION"],
        ..ResourceKind::new("OS", "operating system", "operating systems")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![type_label(self), &self.architecture, &self.profile_name, &self.image_id]
    }

    fn add_details(&self, page: &mut DetailPage) {
        self.add_columns(page);
        details::add_details(page, self);
    }
}

fn type_label(os: &OperatingSystemResource) -> &'static str {
    match os.os_type {
        OsType::Unspecified => "",
        OsType::Mutable => "mutable",
        OsType::Immutable => "immutable",
    }
}
