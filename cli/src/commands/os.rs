//! `evenkeel os`: the catalogue of operating systems, and what fills it.

mod bundle;
mod entry;
mod key;
mod mirror;
mod publish;
mod settings;
mod steps;
mod sync;
mod verify;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use evenkeel_api::os::{
    OperatingSystemInput, OperatingSystemResource, OsProviderKind, OsType, SecurityFeature,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::bundle::{Import, MakeBundle};
use self::key::MakeKey;
use self::mirror::Mirror;
use self::publish::Publish;
use self::settings::Settings;
use self::sync::Sync;
use self::verify::Verify;
use super::read_yaml;
use crate::client::Client;
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};
use crate::{Ending, Failure};

/// Stands for no image at all.
const NO_IMAGE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The catalogue of operating systems.
#[derive(Debug, Subcommand)]
pub enum OsCommand {
    /// List the operating systems.
    List(ListOptions),
    /// Show an operating system.
    Get {
        /// Its id or name.
        os: String,
    },
    /// Add an operating system. Enrolment adds package-managed ones by itself.
    Create(Box<CreateOs>),
    /// Change what can be changed of an operating system; the rest stays.
    Set(SetOs),
    /// Delete an operating system that nothing uses.
    Delete {
        /// Its id or name.
        os: String,
    },
    Sync(Sync),
    /// Show how the last sync of the project went, and what was found.
    SyncReport,
    Settings(Settings),
    #[command(flatten)]
    Moving(MovingCommand),
}

/// What is published, and how it travels. None of it asks the server.
#[derive(Debug, Subcommand)]
pub enum MovingCommand {
    Publish(Box<Publish>),
    Verify(Box<Verify>),
    Mirror(Box<Mirror>),
    Bundle(Box<MakeBundle>),
    Import(Box<Import>),
    Key(MakeKey),
}

/// Add an operating system, from a profile file or from options.
#[derive(Debug, Args)]
pub struct CreateOs {
    /// A profile as YAML, as the ancestor's command line takes it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "os_type", "architecture", "profile", "image_version", "image_url", "sha256", "image_signatures", "description"])]
    file: Option<PathBuf>,
    /// What to call it.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// How it is updated.
    #[arg(long = "type", value_enum, required_unless_present = "file")]
    os_type: Option<Kind>,
    /// Such as `x86_64`.
    #[arg(long, default_value = "x86_64")]
    architecture: String,
    /// The line of releases that it is one of [default: the name].
    #[arg(long)]
    profile: Option<String>,
    /// The version of the image.
    #[arg(long, default_value = "", hide_default_value = true)]
    image_version: String,
    /// Where the image lies.
    #[arg(long, default_value = "", hide_default_value = true)]
    image_url: String,
    /// The SHA-256 digest of the image; needed for an immutable one.
    #[arg(long, required_if_eq("os_type", "immutable"))]
    sha256: Option<String>,
    /// A signature of the image, the SHA-256 of the public key, a colon, and the signature in base64. May be given again.
    #[arg(long = "image-signature", value_name = "KEY:SIGNATURE")]
    image_signatures: Vec<String>,
    /// For people.
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
}

/// What changes about an operating system.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["architecture", "metadata", "image_signatures", "no_image_signatures"]))]
pub struct SetOs {
    /// Its id or name.
    os: String,
    /// Such as `x86_64`.
    #[arg(long)]
    architecture: Option<String>,
    /// What else should be known of it, a JSON object.
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// A signature of the image, in place of those that it has. May be given again. They are of the architecture too.
    #[arg(long = "image-signature", value_name = "KEY:SIGNATURE")]
    image_signatures: Vec<String>,
    /// Take the signatures of the image away.
    #[arg(long, conflicts_with = "image_signatures")]
    no_image_signatures: bool,
}

/// How an operating system is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Package by package.
    Mutable,
    /// As a whole image.
    Immutable,
}

impl OsCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        type Os = OperatingSystemResource;
        match self {
            Self::List(options) => pages::show::<Os>(client, &options.query(), printer).await?,
            Self::Get { os } => printer.one(&resource::find::<Os>(client, &os).await?)?,
            Self::Create(create) => {
                let made: Os = client.post(Os::PATH, &create.input()?).await?;
                printer.one(&made)?;
            }
            Self::Set(set) => printer.one(&set.run(client).await?)?,
            Self::Delete { os } => {
                let id = resource::delete::<Os>(client, &os).await?;
                printer.done(Os::WORD, &id, "deleted")?;
            }
            Self::Sync(sync) => return sync.run(client, printer).await,
            Self::SyncReport => sync::last(client, printer).await?,
            Self::Settings(settings) => settings.run(client, printer).await?,
            Self::Moving(moving) => return moving.run(printer).await,
        }
        Ok(Ending::Done)
    }
}

impl MovingCommand {
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
        let id = resource::id_of::<OperatingSystemResource>(client, &self.os).await?;
        let mut body = Map::new();
        for (name, value) in [
            ("architecture", self.architecture),
            ("metadata", self.metadata),
        ] {
            body.extend(value.map(|value| (name.to_owned(), Value::from(value))));
        }
        if self.no_image_signatures || !self.image_signatures.is_empty() {
            let signatures = Value::from(self.image_signatures);
            body.insert("imageSignatures".to_owned(), signatures);
        }
        resource::change(client, &id, &self.os, &body).await
    }
}

impl CreateOs {
    fn input(self) -> Result<OperatingSystemInput, Failure> {
        if let Some(path) = &self.file {
            return read_yaml::<ProfileFile>(path, "an OS profile").map(|file| file.spec.into());
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
                Some(Kind::Immutable) => OsType::Immutable,
                Some(Kind::Mutable) | None => OsType::Mutable,
            },
            name,
            ..OperatingSystemInput::default()
        })
    }
}

/// A profile as the ancestor's command line reads it.
#[derive(Debug, Deserialize)]
struct ProfileFile {
    spec: ProfileSpec,
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
    const NOUN: &'static str = "os";
    const WORD: &'static str = "operating system";
    const MANY: &'static str = "operating systems";
    const PREFIX: &'static str = "os";
    const PATH: &'static str = "compute/os";
    const KEYS: &'static [&'static str] = &["OperatingSystemResources"];
    const FREE: Option<&'static str> = Some("delete the instances and policies that need it first");
    const HEADER: &'static [&'static str] = &[
        "ID",
        "NAME",
        "TYPE",
        "ARCHITECTURE",
        "PROFILE",
        "IMAGE VERSION",
    ];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            kind(self).into(),
            self.architecture.clone().into(),
            self.profile_name.clone().into(),
            self.image_id.clone().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("type", kind(self))
            .field("architecture", self.architecture.clone())
            .field("profile", self.profile_name.clone())
            .field("image version", self.image_id.clone())
            .field_if("image", &self.image_url)
            .field_if(
                "sha256",
                if self.sha256 == NO_IMAGE {
                    ""
                } else {
                    &self.sha256
                },
            )
            .field_if("description", &self.description)
            .field_if("metadata", &self.metadata)
            .created(self.timestamps.as_ref())
            .table(
                "The image is signed by:",
                &["KEY"],
                self.image_signatures
                    .iter()
                    .map(|one| key_of(one))
                    .collect(),
            );
        page
    }
}

/// The key of a signature; the signature itself tells nobody anything.
fn key_of(signature: &str) -> Vec<Cell> {
    let (key, _) = signature.split_once(':').unwrap_or((signature, ""));
    vec![key.into()]
}

fn kind(os: &OperatingSystemResource) -> &'static str {
    match os.os_type {
        OsType::Unspecified => "",
        OsType::Mutable => "mutable",
        OsType::Immutable => "immutable",
    }
}
