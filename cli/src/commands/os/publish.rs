//! `evenkeel os publish`: publishes a folder of profiles as a revision in a registry.

use std::path::PathBuf;

use clap::Args;
use evenkeel_registry::{
    Address, CopyError, Digest, Finding, ManifestRef, Registry, Release, Repository, SigningKey,
    Tag,
};
use serde::Serialize;

use super::progress::{format_size, with_progress};
use super::registry_options::{PrefixOption, RegistryOptions, read_signing_key, registry_failure};
use crate::Failure;
use crate::output::Printer;
use crate::page::{Cell, cells};

/// Publish a folder of OS profiles as one revision.
///
/// Everything is checked before anything is published. Tags are written last, so clients never see
/// a partial revision.
#[derive(Debug, Args)]
pub struct Publish {
    /// Folder to publish. Each `*.yaml` file is a profile. The files that profiles refer to are in the
    /// same folder, named like the last part of their URLs.
    dir: PathBuf,
    /// Target: `https://HOST`, `http://HOST`, or `oci:FOLDER` for an OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    to: Address,
    /// Revision, such as `0.3.1`.
    #[arg(long)]
    revision: String,
    /// Additional tag for the revision, such as `main`. Can be repeated.
    #[arg(long = "branch", value_name = "NAME")]
    branches: Vec<Tag>,
    /// Sign the revision with this private key; `evenkeel os key` generates one.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Sign the images for nodes with this private key.
    #[arg(long, value_name = "FILE")]
    image_key: Option<PathBuf>,
    /// Replace an existing revision of this name. Servers report that its tag moved.
    #[arg(long = "move")]
    moves: bool,
    /// Check everything and show the state of the registry, without publishing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    prefix_option: PrefixOption,
    #[command(flatten)]
    registry_options: RegistryOptions,
}

/// JSON form of a published revision, or of one that would be published.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PublishReport<'a> {
    revision: &'a str,
    registry: String,
    dry_run: bool,
    is_signed: bool,
    profiles: Vec<PublishedProfile<'a>>,
    remarks: &'a [Finding],
}

/// JSON form of a published profile.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PublishedProfile<'a> {
    name: &'a str,
    repository: String,
    /// Digest of the revision in the registry; missing before it is published.
    digest: Option<Digest>,
    files: Vec<PublishedFile<'a>>,
}

/// JSON form of a file of a profile.
#[derive(Debug, Serialize)]
struct PublishedFile<'a> {
    name: &'a str,
    digest: Digest,
    size: u64,
}

impl Publish {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let key = read_signing_key(self.key.as_deref())?;
        let image_key = read_signing_key(self.image_key.as_deref())?;
        let release = self.load_release(image_key.as_ref())?;
        let registry = self.registry_options.open(&self.to)?;
        for remark in release.remarks() {
            printer.print_note(&remark.to_string())?;
        }
        if !self.dry_run {
            let prefix = &self.prefix_option.prefix;
            let done = with_progress(printer, async |progress| {
                release.publish(&*registry, prefix, &self.branches, key.as_ref(), progress).await
            });
            done.await?.map_err(|source| self.transfer_error(source))?;
        }
        let published = self.build_report(&release, &*registry).await?;
        self.print_report(&published, printer)
    }

    /// Reads and checks the folder.
    fn load_release(&self, image_key: Option<&SigningKey>) -> Result<Release, Failure> {
        let release = Release::from_folder(&self.dir, &self.revision);
        let release = release.and_then(|release| match image_key {
            Some(key) => release.sign_images(key),
            None => Ok(release),
        });
        let release = release.map_err(|findings| Failure::Findings {
            what: format!("{} cannot be published", self.dir.display()),
            findings: findings.iter().map(Finding::to_string).collect(),
        })?;
        Ok(release.with_allow_move(self.moves))
    }

    fn transfer_error(&self, source: CopyError) -> Failure {
        Failure::Transfer { action: format!("publish to {}", self.to), source: Box::new(source) }
    }

    /// Describes the release, with the current digests in the registry.
    async fn build_report<'a>(
        &'a self,
        release: &'a Release,
        registry: &dyn Registry,
    ) -> Result<PublishReport<'a>, Failure> {
        let tag: Tag = self.revision.parse().map_err(registry_failure(&self.to))?;
        let mut profiles = Vec::new();
        for name in release.profiles() {
            let repository = format!("{}{name}", self.prefix_option.prefix);
            let repository: Repository = repository.parse().map_err(registry_failure(&self.to))?;
            let at = ManifestRef::Tag(tag.clone());
            let manifest = registry.manifest(&repository, &at).await;
            let own = release.files().filter(|(profile, ..)| *profile == name);
            profiles.push(PublishedProfile {
                name,
                repository: repository.to_string(),
                digest: manifest
                    .map_err(registry_failure(&self.to))?
                    .map(|manifest| manifest.digest),
                files: own
                    .map(|(_, name, blob)| PublishedFile {
                        name,
                        digest: blob.digest,
                        size: blob.size,
                    })
                    .collect(),
            });
        }
        Ok(PublishReport {
            revision: &self.revision,
            registry: self.to.to_string(),
            dry_run: self.dry_run,
            is_signed: self.key.is_some(),
            profiles,
            remarks: release.remarks(),
        })
    }

    fn print_report(
        &self,
        published: &PublishReport<'_>,
        printer: &mut Printer<'_>,
    ) -> Result<(), Failure> {
        let row = |profile: &PublishedProfile<'_>| -> Vec<Cell> {
            let bytes = profile.files.iter().map(|file| file.size).sum();
            let digest = match profile.digest {
                Some(digest) => digest.to_string(),
                None => "not published".to_owned(),
            };
            cells![profile.name, profile.files.len().to_string(), format_size(bytes), digest]
        };
        let names: Vec<&str> = published.profiles.iter().map(|one| one.name).collect();
        let rows = published.profiles.iter().map(row);
        let header = &["PROFILE", "FILES", "SIZE", "DIGEST"];
        printer.print_rows(published, &names, header, rows)?;
        let (revision, to) = (&self.revision, &self.to);
        let signed = if self.key.is_some() { " (signed)" } else { "" };
        printer.print_line(&if self.dry_run {
            format!("{revision} can be published to {to}; nothing was published")
        } else {
            format!("published {revision} to {to}{signed}")
        })
    }
}
