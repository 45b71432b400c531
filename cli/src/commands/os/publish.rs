//! `evenkeel os publish`: a folder of profiles becomes a revision in a registry.

use std::path::PathBuf;

use clap::Args;
use evenkeel_registry::{
    Address, At, Digest, Finding, MoveError, Registry, Release, Repository, SigningKey, Tag,
};
use serde::Serialize;

use super::entry::{Entry, Prefix, signing_key, unusable};
use super::steps::{size, watched};
use crate::Failure;
use crate::view::{Cell, Printer};

/// Publish the operating systems of a folder as one revision.
///
/// Everything is checked before anything is published, and nobody sees half of it: the tags come last.
#[derive(Debug, Args)]
pub struct Publish {
    /// The folder. Each `*.yaml` in it is a profile; the files that it names lie beside it, called as the last part of their
    /// addresses.
    dir: PathBuf,
    /// Where to: `https://HOST`, `http://HOST`, or `oci:FOLDER` for a folder in OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    to: Address,
    /// The revision, such as `0.3.1`.
    #[arg(long)]
    revision: String,
    /// Publish it under this name as well, such as `main`; may be given more than once.
    #[arg(long = "branch", value_name = "NAME")]
    branches: Vec<Tag>,
    /// Sign what is published with this key. `evenkeel os key` makes one.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Sign the images for nodes with this key.
    #[arg(long, value_name = "FILE")]
    image_key: Option<PathBuf>,
    /// Put it in the place of a revision of this name that is there already. Servers report that its tag moved.
    #[arg(long = "move")]
    moves: bool,
    /// Check everything, look what the registry has, and publish nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: Prefix,
    #[command(flatten)]
    entry: Entry,
}

/// What was or would be published, as programs read it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Published<'a> {
    revision: &'a str,
    registry: String,
    dry_run: bool,
    is_signed: bool,
    profiles: Vec<PublishedProfile<'a>>,
    remarks: &'a [Finding],
}

/// One profile of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PublishedProfile<'a> {
    name: &'a str,
    repository: String,
    /// What lies in the registry under the revision now; none before it is published.
    digest: Option<Digest>,
    files: Vec<PublishedFile<'a>>,
}

/// One file of a profile.
#[derive(Debug, Serialize)]
struct PublishedFile<'a> {
    name: &'a str,
    digest: Digest,
    size: u64,
}

impl Publish {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let key = signing_key(self.key.as_deref())?;
        let image_key = signing_key(self.image_key.as_deref())?;
        let release = self.release(image_key.as_ref())?;
        let registry = self.entry.open(&self.to)?;
        for remark in release.remarks() {
            printer.note(&remark.to_string())?;
        }
        if !self.dry_run {
            let prefix = &self.place.prefix;
            let done = watched(printer, async |tell| {
                release
                    .publish(&*registry, prefix, &self.branches, key.as_ref(), tell)
                    .await
            });
            done.await?.map_err(|source| self.failed(source))?;
        }
        let published = self.published(&release, &*registry).await?;
        self.show(&published, printer)
    }

    /// What lies in the folder, checked.
    fn release(&self, image_key: Option<&SigningKey>) -> Result<Release, Failure> {
        let release = Release::of_folder(&self.dir, &self.revision);
        let release = release.and_then(|release| match image_key {
            Some(key) => release.signing_images(key),
            None => Ok(release),
        });
        let release = release.map_err(|findings| Failure::Findings {
            what: format!("{} cannot be published", self.dir.display()),
            findings: findings.iter().map(Finding::to_string).collect(),
        })?;
        Ok(release.moving(self.moves))
    }

    fn failed(&self, source: MoveError) -> Failure {
        Failure::Moving {
            doing: format!("publish to {}", self.to),
            source: Box::new(source),
        }
    }

    /// What there is to say of the release, with what the registry has under its revision now.
    async fn published<'a>(
        &'a self,
        release: &'a Release,
        registry: &dyn Registry,
    ) -> Result<Published<'a>, Failure> {
        let tag: Tag = self.revision.parse().map_err(unusable(&self.to))?;
        let mut profiles = Vec::new();
        for name in release.profiles() {
            let repository = format!("{}{name}", self.place.prefix);
            let repository: Repository = repository.parse().map_err(unusable(&self.to))?;
            let at = At::Tag(tag.clone());
            let there = registry.manifest(&repository, &at).await;
            let own = release.files().filter(|(profile, ..)| *profile == name);
            profiles.push(PublishedProfile {
                name,
                repository: repository.to_string(),
                digest: there.map_err(unusable(&self.to))?.map(|found| found.digest),
                files: own
                    .map(|(_, name, blob)| PublishedFile {
                        name,
                        digest: blob.digest,
                        size: blob.size,
                    })
                    .collect(),
            });
        }
        Ok(Published {
            revision: &self.revision,
            registry: self.to.to_string(),
            dry_run: self.dry_run,
            is_signed: self.key.is_some(),
            profiles,
            remarks: release.remarks(),
        })
    }

    fn show(&self, published: &Published<'_>, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let row = |profile: &PublishedProfile<'_>| -> Vec<Cell> {
            let bytes = profile.files.iter().map(|file| file.size).sum();
            let there = match profile.digest {
                Some(digest) => digest.to_string(),
                None => "not there yet".to_owned(),
            };
            vec![
                profile.name.into(),
                profile.files.len().to_string().into(),
                size(bytes).into(),
                there.into(),
            ]
        };
        let names: Vec<&str> = published.profiles.iter().map(|one| one.name).collect();
        let rows = published.profiles.iter().map(row).collect();
        let header = &["PROFILE", "FILES", "SIZE", "IN THE REGISTRY"];
        printer.rows(published, &names, header, rows)?;
        let (revision, to) = (&self.revision, &self.to);
        let signed = if self.key.is_some() { ", signed" } else { "" };
        printer.line(&if self.dry_run {
            format!("{revision} can be published to {to}; nothing was published")
        } else {
            format!("{revision} is published to {to}{signed}")
        })
    }
}
