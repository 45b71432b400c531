//! Copies operating systems from one registry to another.
//!
//! What is there already is not copied again, so a copy that was killed is carried on. In the new place a tag appears only
//! when everything that it leads to is there.

mod files;
pub(crate) mod origin;
mod transfer;

use std::io;
use std::path::{Path, PathBuf};

use evenkeel_domain::os::revision::Wanted;
use url::Url;

use crate::digest::Digest;
use crate::error::{Class, Got, RegistryError};
use crate::finding::{Finding, FindingKind};
use crate::layout::Layout;
use crate::oci::web::Web;
use crate::source::{At, Manifest, Registry, Repository, Tag, Tagged};
use crate::trust::SigningKey;
use files::Files;
use transfer::Transfer;

pub(crate) use files::{FILE_TYPE, Named, Role, named};
pub use files::{FILES_TYPE, files_of, image_digest, title_of};

/// Is told how far something is.
pub trait Tell: Send {
    /// What is done now, and how much of it.
    fn step(&mut self, what: &str, done: u64, of: u64);
}

/// Nobody is told.
impl Tell for () {
    fn step(&mut self, _: &str, _: u64, _: u64) {}
}

/// Where operating systems are copied from.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// Where the profiles lie.
    pub registry: &'a dyn Registry,
    /// For files that lie beside the registry; without, such files are left out.
    pub web: Option<&'a Web>,
    /// What stands before the name of a profile to make its repository. It is the same in the new place.
    pub prefix: &'a str,
    /// Where files lie that a profile names without a host.
    pub files_url: Option<&'a Url>,
}

/// What is copied.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The names of the profiles.
    pub profiles: Vec<String>,
    /// Which of their revisions.
    pub wanted: Wanted,
    /// Whether images are copied too, and not only what describes them.
    pub images: bool,
    /// A folder for what was begun.
    pub work: PathBuf,
    /// Signs all that is copied. Signatures that are there are copied in any case.
    pub key: Option<SigningKey>,
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// How many revisions of profiles have their tags now.
    pub revisions: u64,
    /// How many contents were carried over.
    pub blobs: u64,
    /// How long these were together.
    pub bytes: u64,
    /// How many contents were there already.
    pub present: u64,
    /// What was left out and why, each with the repository and the tag that it is about.
    pub findings: Vec<(String, Finding)>,
}

/// Why something could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A registry did not do what was asked of it.
    #[error("{what}")]
    Registry {
        /// What it was about.
        what: String,
        /// Why.
        #[source]
        error: RegistryError,
    },
    /// A file could not be read or written.
    #[error("cannot {doing} {}", .path.display())]
    File {
        /// What was to be done with it.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        error: io::Error,
    },
    /// A bundle is not whole, or holds what no bundle may hold.
    #[error("the bundle cannot be used: {0}")]
    Bundle(String),
    /// A revision is there already and is something else.
    #[error(
        "{repository}:{tag} is there already with other contents ({found}); a revision is published once"
    )]
    Taken {
        /// Where.
        repository: Repository,
        /// Under which tag.
        tag: Tag,
        /// What is there.
        found: Digest,
    },
    /// One revision was to be published under the name of another.
    #[error("{tag} is another revision than {revision}; other tags are names as main")]
    OtherRevision {
        /// What is published.
        revision: Tag,
        /// What else it was to be called.
        tag: Tag,
    },
    /// There is nothing to move.
    #[error("there is no revision that fits of any of these profiles: {0}")]
    Nothing(String),
}

impl MoveError {
    /// Says what a registry was asked about when it failed.
    pub(crate) fn about(what: impl std::fmt::Display) -> impl FnOnce(RegistryError) -> Self {
        let what = what.to_string();
        move |error| Self::Registry { what, error }
    }

    /// Says what was done with a file when that failed.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { doing, path, error }
    }
}

/// One revision of a profile that is copied.
#[derive(Clone, Debug)]
struct Revision {
    repository: Repository,
    tag: Tag,
    manifest: Manifest,
}

impl Revision {
    /// How it is called where people are told something about it.
    fn name(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }
}

/// Copies profiles with their signatures and files.
///
/// # Errors
/// A registry could not be asked or a file not be written: what was carried over stays, and the same call carries on.
/// What lies in the old place and cannot be used is no error but a finding. So is a file beside the registry that
/// cannot be had. If that is an image and may be had another time, its revision is left as it is in the new place.
pub async fn copy(
    from: &Upstream<'_>,
    to: &dyn Registry,
    what: &Selection,
    tell: &mut dyn Tell,
) -> Result<Copied, MoveError> {
    let make = std::fs::create_dir_all(&what.work);
    make.map_err(MoveError::file("make the folder", &what.work))?;
    let mut copied = Copied::default();
    let planned = plan(from, what, &mut copied).await?;
    let mut transfer = Transfer {
        work: Some(&what.work),
        key: what.key.as_ref(),
        copied,
        ..Transfer::between(from.registry, to)
    };
    let (mut tags, mut is_some_later) = (Vec::new(), false);
    let of = planned.len() as u64;
    for (done, (repository, tag)) in (0..).zip(planned) {
        tell.step(&format!("{repository}:{tag}"), done, of);
        let at = At::Tag(tag.clone());
        let found = from.registry.manifest(&repository, &at).await;
        let found = usable(found, &repository, Some(&tag), &mut transfer.copied)?;
        let Some(Some(manifest)) = found else {
            continue;
        };
        let one = Revision {
            repository,
            tag,
            manifest,
        };
        match transfer.files(from, what.images, &one).await? {
            Files::There(files) => tags.extend(files),
            Files::Later => {
                is_some_later = true;
                continue;
            }
        }
        let tagged = transfer.artefact(&one.repository, &one.tag, &one.manifest);
        tags.push(tagged.await?);
        transfer.copied.revisions += 1;
    }
    if tags.is_empty() && !is_some_later {
        return Err(MoveError::Nothing(what.profiles.join(", ")));
    }
    tell.step("tags", of, of);
    give(to, &tags).await?;
    transfer.forget_notes().await;
    Ok(transfer.copied)
}

/// Gives tags to what came by its digest.
async fn give(to: &dyn Registry, tags: &[Tagged]) -> Result<(), MoveError> {
    to.give(tags).await.map_err(|(number, error)| {
        let one = number.and_then(|number| tags.get(number));
        let what = one.map_or_else(
            || "the tags".to_owned(),
            |one| format!("{}:{}", one.repository, one.tag),
        );
        MoveError::about(what)(error)
    })
}

/// Copies all that lies in a layout, byte for byte.
///
/// # Errors
/// As [`copy`].
pub async fn everything(
    from: &Layout,
    to: &dyn Registry,
    tell: &mut dyn Tell,
) -> Result<Copied, MoveError> {
    let tags = from
        .all_tags()
        .await
        .map_err(MoveError::about("the layout"))?;
    let mut transfer = Transfer::between(from, to);
    let of = tags.len() as u64;
    let mut signatures = Vec::new();
    let mut others = Vec::new();
    for (done, (repository, tag)) in (0..).zip(tags) {
        let name = format!("{repository}:{tag}");
        tell.step(&name, done, of);
        let manifest = from.manifest(&repository, &At::Tag(tag.clone())).await;
        let manifest = manifest.map_err(MoveError::about(&name))?;
        let manifest = manifest.ok_or(MoveError::Nothing(name))?;
        transfer.contents(&repository, &manifest).await?;
        if let Some(digest) = signed_by(&tag) {
            signatures.push((repository, digest));
            continue;
        }
        let push = to.push_manifest(&repository, None, &manifest).await;
        let name = format!("{repository}@{}", manifest.digest);
        push.map_err(MoveError::about(name))?;
        others.push(Tagged {
            repository,
            tag,
            digest: manifest.digest,
        });
    }
    tell.step("tags", of, of);
    let mut first = Vec::new();
    for (repository, digest) in &signatures {
        first.extend(transfer.signatures(repository, digest).await?);
    }
    give(to, &first).await?;
    give(to, &others).await?;
    let is_profile = |one: &&Tagged| !one.repository.as_str().ends_with("/files");
    transfer.copied.revisions = others.iter().filter(is_profile).count() as u64;
    Ok(transfer.copied)
}

/// Which artefact the signatures under a tag are of; none if it is no tag of signatures.
fn signed_by(tag: &Tag) -> Option<Digest> {
    let hex = tag.as_str().strip_prefix("sha256-")?.strip_suffix(".sig")?;
    Digest::from_hex(hex).ok()
}

/// Asks which revisions there are. What is wrong with one profile does not keep the others from being copied.
async fn plan(
    from: &Upstream<'_>,
    what: &Selection,
    copied: &mut Copied,
) -> Result<Vec<(Repository, Tag)>, MoveError> {
    let mut planned = Vec::new();
    for name in &what.profiles {
        let repository = format!("{}{name}", from.prefix);
        let about = MoveError::about(&repository);
        let repository: Repository = repository.parse().map_err(about)?;
        let tags = from.registry.tags(&repository).await;
        let Some(tags) = usable(tags, &repository, None, copied)? else {
            continue;
        };
        let before = planned.len();
        let wanted = tags
            .into_iter()
            .filter(|tag| what.wanted.admits(tag.as_str()));
        planned.extend(wanted.map(|tag| (repository.clone(), tag)));
        if planned.len() == before {
            let message = format!("no revision fits {}", what.wanted);
            let finding = Finding::new(FindingKind::NotThere, message);
            copied.findings.push((repository.to_string(), finding));
        }
    }
    Ok(planned)
}

/// What was got; none and a finding where something is wrong with the thing itself.
fn usable<T>(
    got: Got<T>,
    repository: &Repository,
    tag: Option<&Tag>,
    copied: &mut Copied,
) -> Result<Option<T>, MoveError> {
    let name = tag.map_or_else(
        || repository.to_string(),
        |tag| format!("{repository}:{tag}"),
    );
    match got {
        Ok(got) => Ok(Some(got)),
        Err(error) if error.class() == Class::Lasting => {
            copied.findings.push((name, finding_of(&error)));
            Ok(None)
        }
        Err(error) => Err(MoveError::about(name)(error)),
    }
}

/// An error of a registry as it is told to people.
pub fn finding_of(error: &RegistryError) -> Finding {
    let kind = match error {
        RegistryError::Unreachable(_) | RegistryError::Stalled | RegistryError::Io(_) => {
            FindingKind::Unreachable
        }
        RegistryError::Busy { .. } => FindingKind::Busy,
        RegistryError::Denied => FindingKind::Denied,
        RegistryError::NotThere | RegistryError::Status(_) => FindingKind::NotThere,
        RegistryError::TooLarge { .. } => FindingKind::TooLarge,
        RegistryError::WrongDigest { .. } => FindingKind::WrongDigest,
        RegistryError::Malformed { .. } => FindingKind::NotAProfile,
        RegistryError::Elsewhere(_) => FindingKind::AddressNotAllowed,
    };
    Finding::new(kind, error.to_string())
}
