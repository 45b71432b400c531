//! `evenkeel os mirror`: copies operating systems from one registry to another.

use std::path::PathBuf;

use clap::Args;
use evenkeel_registry::{Address, At, Copied, Registry, Repository, Selection, Tag, Wanted, copy};
use serde::Serialize;

use super::entry::{Beside, Choice, Entry, TargetEntry, profiles, signing_key, unusable, wanted};
use super::steps::{size, watched};
use crate::view::{Cell, Page, Printer};
use crate::{Ending, Failure};

/// Where parts of large files are kept if nobody says otherwise.
const WORK: &str = ".evenkeel-work";

/// Copy operating systems from one registry to another: profiles, images, lists of packages, vulnerabilities, signatures.
///
/// What is there already is not copied again, so the same line carries on with a mirror that was interrupted. Exits with 3
/// if something had to be left out.
#[derive(Debug, Args)]
pub struct Mirror {
    /// Where from: `https://HOST`, `http://HOST`, or `oci:FOLDER` for a folder in OCI image layout.
    #[arg(long, value_name = "REGISTRY")]
    from: Address,
    /// Where to.
    #[arg(long, value_name = "REGISTRY")]
    to: Address,
    /// Which revisions: one such as `0.3.1`, or `~0.3.1` for it and all later patches of 0.3.
    #[arg(long, value_parser = wanted)]
    revision: Wanted,
    /// Sign what is copied with this key. Signatures that are there are copied in any case.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// A folder for parts of large files. An interrupted mirror is carried on with the same one.
    #[arg(long, value_name = "FOLDER", default_value = WORK)]
    work: PathBuf,
    /// Say what would be copied, and copy nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    beside: Beside,
    #[command(flatten)]
    entry: Entry,
    #[command(flatten)]
    target: TargetEntry,
}

impl Mirror {
    pub async fn run(self, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let access = self.entry.access(&self.from)?;
        let from = self.entry.open(&self.from)?;
        let to = Entry::from(self.target.clone()).open(&self.to)?;
        let profiles = profiles(&self.choice, &self.from).await?;
        if self.dry_run {
            let tags = self.tags(&profiles, &*from).await?;
            let between = Between {
                from: (&*from, &self.from),
                to: (&*to, &self.to),
            };
            return between.compare(tags, printer).await;
        }
        let web = self.beside.web(&access)?;
        let upstream = self.beside.upstream(&*from, &web, &self.choice);
        let selection = Selection {
            profiles,
            wanted: self.revision.clone(),
            images: !self.choice.no_images,
            work: self.work.clone(),
            key: signing_key(self.key.as_deref())?,
        };
        let copied = watched(printer, async |tell| {
            copy(&upstream, &*to, &selection, tell).await
        });
        let copied = copied.await?.map_err(|source| Failure::Moving {
            doing: format!("copy {} to {}", self.from, self.to),
            source: Box::new(source),
        })?;
        // It is empty now, unless it is not ours alone; then it stays.
        let _ = std::fs::remove_dir(&self.work);
        show(&copied, &self.to, printer)
    }

    /// The tags that would be copied.
    async fn tags(
        &self,
        profiles: &[String],
        from: &dyn Registry,
    ) -> Result<Vec<(Repository, Tag)>, Failure> {
        let mut all = Vec::new();
        for name in profiles {
            let repository = format!("{}{name}", self.choice.place.prefix);
            let repository: Repository = repository.parse().map_err(unusable(&self.from))?;
            let tags = from.tags(&repository).await.map_err(unusable(&self.from))?;
            let tags = tags.into_iter();
            let tags = tags.filter(|tag| self.revision.admits(tag.as_str()));
            all.extend(tags.map(|tag| (repository.clone(), tag)));
        }
        Ok(all)
    }
}

/// Two registries that are compared.
pub struct Between<'a> {
    /// What would be copied.
    pub from: (&'a dyn Registry, &'a Address),
    /// What it would be copied to.
    pub to: (&'a dyn Registry, &'a Address),
}

/// What would become of a tag, as programs read it.
#[derive(Debug, Serialize)]
struct Planned {
    repository: String,
    tag: String,
    state: &'static str,
}

impl Between<'_> {
    /// Says what would become of these tags, and changes nothing.
    pub async fn compare(
        &self,
        tags: Vec<(Repository, Tag)>,
        printer: &mut Printer<'_>,
    ) -> Result<Ending, Failure> {
        let mut planned = Vec::new();
        let is_signature = |tag: &Tag| tag.as_str().starts_with("sha256-");
        for (repository, tag) in tags.into_iter().filter(|(_, tag)| !is_signature(tag)) {
            let at = At::Tag(tag.clone());
            let (from, to) = (self.from, self.to);
            let wanted = from.0.manifest(&repository, &at).await;
            let wanted = wanted.map_err(unusable(from.1))?;
            let there = to.0.manifest(&repository, &at).await;
            let there = there.map_err(unusable(to.1))?;
            let digests = (wanted.map(|m| m.digest), there.map(|m| m.digest));
            planned.push(Planned {
                repository: repository.to_string(),
                tag: tag.to_string(),
                state: match digests {
                    (_, None) => "new",
                    (wanted, there) if wanted == there => "there already",
                    _ => "there with other contents; it would be replaced",
                },
            });
        }
        let row = |one: &Planned| -> Vec<Cell> {
            vec![
                one.repository.clone().into(),
                one.tag.clone().into(),
                one.state.into(),
            ]
        };
        let names: Vec<&str> = planned.iter().map(|one| one.repository.as_str()).collect();
        let rows = planned.iter().map(row).collect();
        printer.rows(&planned, &names, &["REPOSITORY", "TAG", "STATE"], rows)?;
        printer.line("nothing was copied")?;
        Ok(Ending::Done)
    }
}

/// What was copied, as programs read it.
#[derive(Debug, Serialize)]
struct Told<'a> {
    registry: String,
    revisions: u64,
    blobs: u64,
    bytes: u64,
    present: u64,
    findings: Vec<ToldFinding<'a>>,
}

/// What was left out.
#[derive(Debug, Serialize)]
struct ToldFinding<'a> {
    artefact: &'a str,
    kind: &'static str,
    field: Option<&'a str>,
    message: &'a str,
}

/// Shows what was copied to a registry.
///
/// # Errors
/// It cannot be shown.
pub fn show(copied: &Copied, to: &Address, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
    let findings = copied.findings.iter();
    let findings = findings.map(|(artefact, finding)| ToldFinding {
        artefact,
        kind: finding.kind.name(),
        field: finding.field.as_deref(),
        message: &finding.message,
    });
    let told = Told {
        registry: to.to_string(),
        revisions: copied.revisions,
        blobs: copied.blobs,
        bytes: copied.bytes,
        present: copied.present,
        findings: findings.collect(),
    };
    let row = |(artefact, finding): &(String, evenkeel_registry::Finding)| -> Vec<Cell> {
        vec![
            artefact.clone().into(),
            finding.kind.name().into(),
            finding.to_string().into(),
        ]
    };
    let carried = format!("{} contents, {}", copied.blobs, size(copied.bytes));
    let mut page = Page::default();
    page.field("registry", told.registry.clone())
        .field("revisions", copied.revisions.to_string())
        .field("carried over", carried)
        .field("there already", format!("{} contents", copied.present))
        .table(
            "Left out or odd:",
            &["ARTEFACT", "FINDING", "MESSAGE"],
            copied.findings.iter().map(row).collect(),
        );
    printer.page(&told, &copied.revisions.to_string(), &page)?;
    Ok(Ending::of(copied.findings.is_empty()))
}
