//! Copies operating systems from one registry to another.
//!
//! Blobs that exist in the target are not copied again, so an interrupted copy can be continued. A
//! tag appears in the target only after everything it refers to.

mod files;
pub(crate) mod origin;
mod transfer;

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_domain::os::revision::RevisionSelector;
use evenkeel_fetch::Digest;
use url::Url;

use crate::error::{ErrorClass, RegistryError, RegistryResult};
use crate::finding::{Finding, FindingKind};
use crate::layout::Layout;
use crate::oci::web::WebClient;
use crate::source::{Manifest, ManifestRef, Registry, Repository, Tag, TagAssignment};
use crate::trust::SigningKey;
use files::FilesResult;
use transfer::Transfer;

pub(crate) use files::{FILE_TYPE, ProfileFile, Role, collect_profile_files};
pub use files::{FILES_TYPE, file_title, files_repository, image_digest};

/// Receives the progress of a long operation.
pub trait ProgressReporter: Send {
    /// Reports the current item and its number among all items.
    fn report(&mut self, what: &str, done: u64, total: u64);
}

/// Discards all progress reports.
impl ProgressReporter for () {
    fn report(&mut self, _: &str, _: u64, _: u64) {}
}

/// Source of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// Registry that has the profiles.
    pub registry: &'a dyn Registry,
    /// Client for files outside of the registry. Without it such files are not copied.
    pub web: Option<&'a WebClient>,
    /// Prefix of the repositories of profiles. It is the same in the target.
    pub prefix: &'a str,
    /// Base URL of files whose address in a profile has no host.
    pub files_url: Option<&'a Url>,
}

/// What to copy and how.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Names of the profiles.
    pub profiles: Vec<String>,
    /// Revisions of these profiles.
    pub revision_filter: RevisionSelector,
    /// Whether images are copied too, not only the documents that describe them.
    pub with_images: bool,
    /// Folder for partial downloads.
    pub work_dir: PathBuf,
    /// Key to sign everything that is copied. Existing signatures are copied in any case.
    pub key: Option<SigningKey>,
}

/// Result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopySummary {
    /// Number of profile revisions whose tags are set now.
    pub revisions: u64,
    /// Number of blobs that were copied.
    pub blobs: u64,
    /// Total size of the copied blobs in bytes.
    pub bytes: u64,
    /// Number of blobs that existed in the target already.
    pub present: u64,
    /// What was left out and why, with the repository and tag it concerns.
    pub findings: Vec<(String, Finding)>,
}

/// Error of copying, publishing or bundling.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A request to a registry failed.
    #[error("{what}")]
    Registry {
        /// The item that was requested.
        what: String,
        /// Cause of the failure.
        #[source]
        error: RegistryError,
    },
    /// A file could not be read or written.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// The operation that failed, as a verb.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        error: io::Error,
    },
    /// A bundle is incomplete or contains something that is not part of a layout.
    #[error("the bundle cannot be used: {0}")]
    Bundle(String),
    /// The revision exists in the target with other contents.
    #[error(
        "{repository}:{tag} already exists with other contents ({existing}); a revision can be published only once"
    )]
    Exists {
        /// Repository of the revision.
        repository: Repository,
        /// Tag of the revision.
        tag: Tag,
        /// Digest of the existing manifest.
        existing: Digest,
    },
    /// One revision was to be published under the name of another.
    #[error(
        "{tag} is the name of another revision than {revision}; additional tags must be names such as main"
    )]
    OtherRevision {
        /// Revision to publish.
        revision: Tag,
        /// The conflicting additional tag.
        tag: Tag,
    },
    /// No revision matches, so there is nothing to copy.
    #[error("none of these profiles has a matching revision: {0}")]
    NoRevisions(String),
}

impl CopyError {
    /// Adds the item that was requested to an error of a registry.
    pub(crate) fn about(what: impl std::fmt::Display) -> impl FnOnce(RegistryError) -> Self {
        let what = what.to_string();
        move |error| Self::Registry { what, error }
    }

    /// Adds the operation and the path to an error of the file system.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { doing, path, error }
    }
}

/// A revision of a profile that is being copied.
#[derive(Clone, Debug)]
struct Revision {
    repository: Repository,
    tag: Tag,
    manifest: Manifest,
}

impl Revision {
    /// Name of the revision in findings.
    fn name(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }
}

/// Copies profiles with their signatures and files.
///
/// # Errors
/// A registry cannot be reached or a file cannot be written. What was copied stays, and the same
/// call continues from there. Unusable content in the source is not an error but a finding, and so
/// is a file outside of the registry that cannot be fetched. If such a file is an image and the
/// failure is transient, the revision is not changed in the target.
pub async fn copy(
    from: &Upstream<'_>,
    to: &dyn Registry,
    what: &CopyOptions,
    progress: &mut dyn ProgressReporter,
) -> Result<CopySummary, CopyError> {
    let make = std::fs::create_dir_all(&what.work_dir);
    make.map_err(CopyError::file("make the folder", &what.work_dir))?;
    let mut copied = CopySummary::default();
    let planned = plan_revisions(from, what, &mut copied).await?;
    let mut transfer = Transfer {
        work_dir: Some(&what.work_dir),
        key: what.key.as_ref(),
        report: copied,
        ..Transfer::new(from.registry, to)
    };
    let (mut tags, mut is_some_later) = (Vec::new(), false);
    let total = planned.len() as u64;
    for (done, (repository, tag)) in (0..).zip(planned) {
        progress.report(&format!("{repository}:{tag}"), done, total);
        let at = ManifestRef::Tag(tag.clone());
        let fetched = from.registry.manifest(&repository, &at).await;
        let fetched = or_finding(fetched, &repository, Some(&tag), &mut transfer.report)?;
        let Some(Some(manifest)) = fetched else {
            continue;
        };
        let rev = Revision { repository, tag, manifest };
        match transfer.copy_files(from, what.with_images, &rev).await? {
            FilesResult::Copied(files) => tags.extend(files),
            FilesResult::Deferred => {
                is_some_later = true;
                continue;
            }
        }
        let tagged = transfer.copy_artifact(&rev.repository, &rev.tag, &rev.manifest);
        tags.push(tagged.await?);
        transfer.report.revisions += 1;
    }
    if tags.is_empty() && !is_some_later {
        return Err(CopyError::NoRevisions(what.profiles.join(", ")));
    }
    progress.report("tags", total, total);
    push_tags(to, &tags).await?;
    transfer.remove_size_files().await;
    Ok(transfer.report)
}

/// Sets tags on manifests that were pushed by digest.
async fn push_tags(to: &dyn Registry, tags: &[TagAssignment]) -> Result<(), CopyError> {
    to.push_tags(tags).await.map_err(|(number, error)| {
        let assignment = number.and_then(|number| tags.get(number));
        let what = assignment.map_or_else(
            || "the tags".to_owned(),
            |assignment| format!("{}:{}", assignment.repository, assignment.tag),
        );
        CopyError::about(what)(error)
    })
}

/// Copies the whole content of a layout, byte for byte.
///
/// # Errors
/// As [`copy`].
pub async fn copy_layout(
    from: &Layout,
    to: &dyn Registry,
    progress: &mut dyn ProgressReporter,
) -> Result<CopySummary, CopyError> {
    let tags = from.all_tags().await.map_err(CopyError::about("the layout"))?;
    let mut transfer = Transfer::new(from, to);
    let total = tags.len() as u64;
    let mut signatures = Vec::new();
    let mut others = Vec::new();
    for (done, (repository, tag)) in (0..).zip(tags) {
        let name = format!("{repository}:{tag}");
        progress.report(&name, done, total);
        let manifest = from.manifest(&repository, &ManifestRef::Tag(tag.clone())).await;
        let manifest = manifest.map_err(CopyError::about(&name))?;
        let manifest = manifest.ok_or(CopyError::NoRevisions(name))?;
        transfer.copy_blobs(&repository, &manifest).await?;
        if let Some(digest) = signed_digest(&tag) {
            signatures.push((repository, digest));
            continue;
        }
        let push = to.push_manifest(&repository, None, &manifest).await;
        let name = format!("{repository}@{}", manifest.digest);
        push.map_err(CopyError::about(name))?;
        others.push(TagAssignment { repository, tag, digest: manifest.digest });
    }
    progress.report("tags", total, total);
    let mut first = Vec::new();
    for (repository, digest) in &signatures {
        first.extend(transfer.copy_signatures(repository, digest).await?);
    }
    push_tags(to, &first).await?;
    push_tags(to, &others).await?;
    let is_profile =
        |assignment: &&TagAssignment| !assignment.repository.as_str().ends_with("/files");
    transfer.report.revisions = others.iter().filter(is_profile).count() as u64;
    Ok(transfer.report)
}

/// Digest of the artifact that a signature tag belongs to; `None` for any other tag.
fn signed_digest(tag: &Tag) -> Option<Digest> {
    let hex = tag.as_str().strip_prefix("sha256-")?.strip_suffix(".sig")?;
    Digest::from_hex(hex).ok()
}

/// Selects the revisions to copy. A problem of one profile does not block the others.
async fn plan_revisions(
    from: &Upstream<'_>,
    what: &CopyOptions,
    copied: &mut CopySummary,
) -> Result<Vec<(Repository, Tag)>, CopyError> {
    let mut planned = Vec::new();
    for name in &what.profiles {
        let repository = format!("{}{name}", from.prefix);
        let about = CopyError::about(&repository);
        let repository: Repository = repository.parse().map_err(about)?;
        let tags = from.registry.tags(&repository).await;
        let Some(tags) = or_finding(tags, &repository, None, copied)? else {
            continue;
        };
        let before = planned.len();
        let matching = tags.into_iter().filter(|tag| what.revision_filter.admits(tag.as_str()));
        planned.extend(matching.map(|tag| (repository.clone(), tag)));
        if planned.len() == before {
            let message = format!("no revision matches {}", what.revision_filter);
            let finding = Finding::new(FindingKind::NotThere, message);
            copied.findings.push((repository.to_string(), finding));
        }
    }
    Ok(planned)
}

/// Turns a permanent error into a finding and `None`; returns other errors.
fn or_finding<T>(
    got: RegistryResult<T>,
    repository: &Repository,
    tag: Option<&Tag>,
    copied: &mut CopySummary,
) -> Result<Option<T>, CopyError> {
    let name = tag.map_or_else(|| repository.to_string(), |tag| format!("{repository}:{tag}"));
    match got {
        Ok(got) => Ok(Some(got)),
        Err(error) if error.class() == ErrorClass::Permanent => {
            copied.findings.push((name, to_finding(&error)));
            Ok(None)
        }
        Err(error) => Err(CopyError::about(name)(error)),
    }
}

/// Converts an error of a registry into a finding for users.
pub fn to_finding(error: &RegistryError) -> Finding {
    let kind = match error {
        RegistryError::Unreachable(_)
        | RegistryError::Stalled
        | RegistryError::Changed(_)
        | RegistryError::Io(_) => FindingKind::Unreachable,
        RegistryError::Busy { .. } => FindingKind::Busy,
        RegistryError::Denied => FindingKind::Denied,
        RegistryError::NotFound | RegistryError::Status(_) => FindingKind::NotThere,
        RegistryError::TooLarge { .. } => FindingKind::TooLarge,
        RegistryError::WrongDigest { .. } => FindingKind::WrongDigest,
        RegistryError::Malformed { .. } => FindingKind::NotAProfile,
        RegistryError::ForbiddenAddress(_) => FindingKind::AddressNotAllowed,
    };
    Finding::new(kind, error.to_string())
}
