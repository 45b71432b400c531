//! Publishes operating systems from a folder.

mod edit;
mod image;
mod local;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use evenkeel_domain::os::revision;

use crate::copy::origin::FileOrigin;
use crate::copy::{CopyError, FILE_TYPE, FILES_TYPE, ProfileFile, ProgressReporter, Role};
use crate::copy::{collect_profile_files, files_repository, image_digest};
use crate::error::RegistryResult;
use crate::finding::{Finding, FindingKind};
use crate::limits::Limits;
use crate::profile::{Profile, read_profile};
use crate::source::{Blob, EMPTY_CONFIG, Layer, Manifest, ManifestRef, Registry, Repository, Tag};
use crate::trust::SigningKey;
use local::{hash_file, read_bounded};

/// Artifact type of a profile.
pub const PROFILE_TYPE: &str = "application/vnd.intel.orch.en";

/// Media type of a profile, as EIM's tools expect it.
const YAML_MEDIA_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// Maximum number of profiles in a folder.
const MAX_PROFILES: usize = 1_000;

/// Placeholder digest, used to parse a profile before the digest of its image is known.
const PLACEHOLDER_DIGEST: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

/// One revision of some profiles, checked and ready to be published.
#[derive(Clone, Debug)]
pub struct Release {
    revision: Tag,
    profiles: Vec<PreparedProfile>,
    remarks: Vec<Finding>,
    allow_move: bool,
}

/// A profile that is ready to be published.
#[derive(Clone, Debug)]
struct PreparedProfile {
    name: String,
    yaml: Bytes,
    files: Vec<PreparedFile>,
}

/// A file that is ready to be published.
#[derive(Clone, Debug)]
struct PreparedFile {
    title: String,
    path: PathBuf,
    blob: Blob,
}

impl Release {
    /// Reads a folder. Each `*.yaml` is a profile. The files that it names are next to it, under
    /// the last part of their paths. A file with a host in its URL may be missing; it is not
    /// published then.
    ///
    /// # Errors
    /// All problems of the folder.
    pub fn from_folder(dir: &Path, revision: &str) -> Result<Self, Vec<Finding>> {
        let parsed: RegistryResult<Tag> = revision.parse();
        let (Ok(tag), Some(_)) = (parsed, revision::compare_revisions(revision, revision)) else {
            let why = format!("{revision:?} is not a revision such as 1.2.3");
            let finding = Finding::about(FindingKind::BadField, "revision", why);
            return Err(vec![finding]);
        };
        let mut reading =
            FolderReader { dir, revision, hashed: BTreeMap::new(), findings: Vec::new() };
        let names = match list_yaml_files(dir) {
            Ok(names) => names,
            Err(finding) => return Err(vec![finding]),
        };
        let mut profiles = Vec::new();
        let mut remarks = Vec::new();
        for name in names {
            match reading.prepare_profile(&name) {
                Ok((ready, of_it)) => {
                    profiles.push(ready);
                    remarks.extend(of_it.into_iter().map(|remark| with_file_name(&name, &remark)));
                }
                Err(finding) => reading.findings.push(with_file_name(&name, &finding)),
            }
        }
        if !reading.findings.is_empty() {
            return Err(reading.findings);
        }
        Ok(Self { revision: tag, profiles, remarks, allow_move: false })
    }

    /// Sets whether a revision that exists with other contents is replaced.
    #[must_use]
    pub fn with_allow_move(self, moves: bool) -> Self {
        Self { allow_move: moves, ..self }
    }

    /// Harmless problems of the profiles.
    pub fn remarks(&self) -> &[Finding] {
        &self.remarks
    }

    /// Names of the profiles.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.profiles.iter().map(|ready| ready.name.as_str())
    }

    /// The files, each as name of the profile, title and blob.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str, Blob)> {
        self.profiles.iter().flat_map(|ready| {
            let files = ready.files.iter();
            files.map(|file| (ready.name.as_str(), file.title.as_str(), file.blob))
        })
    }

    /// Publishes the revision and sets its tag and additional ones, such as a branch. The tags are
    /// set last, so no reader sees an incomplete release.
    ///
    /// # Errors
    /// The revision exists with other contents, or the registry refuses the release.
    #[expect(
        clippy::too_many_arguments,
        reason = "a release needs a target, names, a key and a progress reporter"
    )]
    pub async fn publish(
        &self,
        registry: &dyn Registry,
        prefix: &str,
        tags: &[Tag],
        key: Option<&SigningKey>,
        progress: &mut dyn ProgressReporter,
    ) -> Result<(), CopyError> {
        let is_other = |tag: &&Tag| {
            **tag != self.revision
                && revision::compare_revisions(tag.as_str(), tag.as_str()).is_some()
        };
        if let Some(tag) = tags.iter().find(is_other) {
            return Err(CopyError::OtherRevision {
                revision: self.revision.clone(),
                tag: tag.clone(),
            });
        }
        let artifacts = self.artifacts(prefix)?;
        if !self.allow_move {
            for artifact in &artifacts {
                self.check_not_published(registry, artifact).await?;
            }
        }
        let total = artifacts.len() as u64;
        for (done, artifact) in (0..).zip(&artifacts) {
            progress.report(artifact.repository.as_str(), done, total);
            self.push_artifact(registry, artifact, key).await?;
        }
        progress.report("tags", total, total);
        for artifact in &artifacts {
            let more = tags.iter().filter(|tag| artifact.is_profile && **tag != self.revision);
            for tag in std::iter::once(&self.revision).chain(more) {
                registry
                    .push_manifest(&artifact.repository, Some(tag), &artifact.manifest)
                    .await
                    .map_err(CopyError::about(format!("{}:{tag}", artifact.repository)))?;
            }
        }
        Ok(())
    }

    /// The artifacts to push: the files of each profile before the profile itself.
    fn artifacts(&self, prefix: &str) -> Result<Vec<Artifact<'_>>, CopyError> {
        let mut artifacts = Vec::new();
        for ready in &self.profiles {
            let name = format!("{prefix}{}", ready.name);
            let repository: RegistryResult<Repository> = name.parse();
            let repository = repository.map_err(CopyError::about(&name))?;
            if !ready.files.is_empty() {
                let layer = |file: &PreparedFile| Layer::file(file.blob, FILE_TYPE, &file.title);
                let layers = ready.files.iter().map(layer).collect();
                artifacts.push(Artifact {
                    repository: files_repository(&repository).map_err(CopyError::about(&name))?,
                    manifest: Manifest::artifact(FILES_TYPE, layers),
                    prepared: ready,
                    is_profile: false,
                });
            }
            let title = format!("{}.yaml", ready.name);
            let layer = Layer::file(Blob::new(&ready.yaml), YAML_MEDIA_TYPE, &title);
            artifacts.push(Artifact {
                repository,
                manifest: Manifest::artifact(PROFILE_TYPE, vec![layer]),
                prepared: ready,
                is_profile: true,
            });
        }
        Ok(artifacts)
    }

    async fn check_not_published(
        &self,
        registry: &dyn Registry,
        artifact: &Artifact<'_>,
    ) -> Result<(), CopyError> {
        let (repository, tag) = (&artifact.repository, &self.revision);
        let existing = registry.manifest(repository, &ManifestRef::Tag(tag.clone())).await;
        let existing = existing.map_err(CopyError::about(format!("{repository}:{tag}")))?;
        match existing {
            Some(existing) if existing.digest != artifact.manifest.digest => {
                Err(CopyError::Exists {
                    repository: repository.clone(),
                    tag: tag.clone(),
                    existing: existing.digest,
                })
            }
            _ => Ok(()),
        }
    }

    async fn push_artifact(
        &self,
        registry: &dyn Registry,
        artifact: &Artifact<'_>,
        key: Option<&SigningKey>,
    ) -> Result<(), CopyError> {
        let (repository, manifest) = (&artifact.repository, &artifact.manifest);
        let about = || CopyError::about(repository);
        let empty = Bytes::from_static(EMPTY_CONFIG);
        push_missing_blob(registry, repository, &Blob::new(&empty), &empty)
            .await
            .map_err(about())?;
        if artifact.is_profile {
            let yaml = &artifact.prepared.yaml;
            push_missing_blob(registry, repository, &Blob::new(yaml), yaml)
                .await
                .map_err(about())?;
        } else {
            for file in &artifact.prepared.files {
                let from = FileOrigin(file.path.clone());
                push_missing_blob(registry, repository, &file.blob, &from)
                    .await
                    .map_err(CopyError::about(format!("{} in {repository}", file.title)))?;
            }
        }
        registry.push_manifest(repository, None, manifest).await.map_err(about())?;
        if let Some(key) = key {
            key.sign(registry, repository, &manifest.digest, self.revision.as_str())
                .await
                .map_err(CopyError::about(format!("the signature of {repository}")))?;
        }
        Ok(())
    }
}

/// An artifact to push.
#[derive(Debug)]
struct Artifact<'a> {
    repository: Repository,
    manifest: Manifest,
    prepared: &'a PreparedProfile,
    is_profile: bool,
}

async fn push_missing_blob(
    registry: &dyn Registry,
    repository: &Repository,
    blob: &Blob,
    from: &dyn crate::source::Origin,
) -> RegistryResult<()> {
    if registry.has_blob(repository, &blob.digest).await? {
        return Ok(());
    }
    registry.push_blob(repository, blob, from).await
}

/// File names of the profiles in a folder, sorted.
fn list_yaml_files(dir: &Path) -> Result<Vec<String>, Finding> {
    let folder = dir.display();
    let failed = |error: io::Error| {
        Finding::new(FindingKind::NotThere, format!("cannot read {folder}: {error}"))
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy().into_owned();
        let is_profile = Path::new(&name).extension() == Some(OsStr::new("yaml"));
        if is_profile && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    match names.len() {
        0 => {
            let message = format!("there is no profile (*.yaml) in {folder}");
            Err(Finding::new(FindingKind::NotThere, message))
        }
        1..=MAX_PROFILES => Ok(names),
        count => {
            let message = format!("{count} profiles are more than the maximum of {MAX_PROFILES}");
            Err(Finding::new(FindingKind::TooLarge, message))
        }
    }
}

/// State of reading a folder.
#[derive(Debug)]
struct FolderReader<'a> {
    dir: &'a Path,
    revision: &'a str,
    hashed: BTreeMap<PathBuf, Blob>,
    findings: Vec<Finding>,
}

impl FolderReader<'_> {
    fn prepare_profile(&mut self, file: &str) -> Result<(PreparedProfile, Vec<Finding>), Finding> {
        let limit = Limits::default().profile_bytes;
        let yaml = read_bounded(&self.dir.join(file), limit)?;
        let yaml = String::from_utf8(yaml).map_err(|error| {
            Finding::new(FindingKind::Yaml, format!("it is not UTF-8: {error}"))
        })?;
        let yaml = self.with_release(yaml.trim_start_matches('\u{feff}'))?;
        let yaml = self.with_digest(file, yaml)?;
        let profile = read_profile(file, yaml.as_bytes())?;
        if profile.release != self.revision {
            let why = format!("it cannot be set to {}", self.revision);
            let kind = FindingKind::RevisionMismatch;
            return Err(Finding::about(kind, "metadata.release", why));
        }
        let files = self.prepare_files(file, &profile);
        let ready =
            PreparedProfile { name: profile.spec.profile_name.clone(), yaml: yaml.into(), files };
        Ok((ready, profile.remarks))
    }

    fn with_release(&self, yaml: &str) -> Result<String, Finding> {
        let release = format!("\"{}\"", self.revision);
        edit::set_value(yaml, "metadata", "release", &release).ok_or_else(|| {
            let why = "it cannot be set; write metadata with one key per line, or remove it";
            Finding::about(FindingKind::RevisionMismatch, "metadata.release", why)
        })
    }

    /// Sets the digest of the image if it is missing and the image is in the folder.
    fn with_digest(&mut self, file: &str, yaml: String) -> Result<String, Finding> {
        if !edit::is_absent(&yaml, "spec", "osImageSha256") {
            return Ok(yaml);
        }
        let Some(probe) = edit::set_value(&yaml, "spec", "osImageSha256", PLACEHOLDER_DIGEST)
        else {
            return Ok(yaml);
        };
        let probe = read_profile(file, probe.as_bytes())?;
        let (all, _) = collect_profile_files(&probe);
        let image = all.into_iter().find(|n| n.role == Role::Image);
        let Some(path) = image.and_then(|image| self.local_path(&image)) else {
            return Ok(yaml);
        };
        let digest = format!("\"{}\"", self.hash(&path)?.digest.hex());
        Ok(edit::set_value(&yaml, "spec", "osImageSha256", &digest).unwrap_or(yaml))
    }

    /// Prepares the files of a profile that are in the folder. Records problems as findings.
    fn prepare_files(&mut self, file: &str, profile: &Profile) -> Vec<PreparedFile> {
        let mut ready: Vec<PreparedFile> = Vec::new();
        let (all, doubles) = collect_profile_files(profile);
        // Files that are not in the folder are not published, so equal titles do not matter.
        let doubles = doubles.iter().filter(|double| self.local_path(double).is_some());
        let doubles: Vec<Finding> =
            doubles.map(|d| with_file_name(file, &d.ambiguous_finding())).collect();
        self.findings.extend(doubles);
        for profile_file in all {
            match self.prepare_file(&profile_file, profile) {
                Ok(Some(one)) if ready.iter().any(|other| other.path == one.path) => {
                    let why = format!("two files have the name {}", file_name(&profile_file.title));
                    let finding = Finding::new(FindingKind::Ambiguous, why);
                    self.findings.push(with_file_name(file, &finding));
                }
                Ok(Some(one)) => ready.push(one),
                Ok(None) => {}
                Err(finding) => self.findings.push(with_file_name(file, &finding)),
            }
        }
        ready
    }

    fn prepare_file(
        &mut self,
        profile_file: &ProfileFile,
        profile: &Profile,
    ) -> Result<Option<PreparedFile>, Finding> {
        let Some(path) = self.local_path(profile_file) else {
            if profile_file.url.contains("://") {
                return Ok(None);
            }
            let why = format!("{} is not in the folder", file_name(&profile_file.title));
            return Err(Finding::new(FindingKind::NotThere, why));
        };
        let blob = self.hash(&path)?;
        let limit = profile_file.role.max_bytes(&Limits::default());
        if blob.size > limit {
            let why = format!("{} is larger than {limit} bytes", path.display());
            return Err(Finding::new(FindingKind::TooLarge, why));
        }
        match (profile_file.role, image_digest(&profile.spec.sha256)) {
            (Role::Image, Some(expected)) if expected != blob.digest => {
                let why = format!("the image here has {}", blob.digest.hex());
                let kind = FindingKind::WrongDigest;
                return Err(Finding::about(kind, "spec.osImageSha256", why));
            }
            (Role::Image, _) => {}
            (role, _) => role
                .check_content(&read_bounded(&path, limit)?)
                .map_err(|finding| with_file_name(file_name(&profile_file.title), &finding))?,
        }
        let title = profile_file.title.clone();
        Ok(Some(PreparedFile { title, path, blob }))
    }

    /// Path of a file, if it is in the folder.
    fn local_path(&self, profile_file: &ProfileFile) -> Option<PathBuf> {
        let name = file_name(&profile_file.title);
        if matches!(name, "" | "." | "..") {
            return None;
        }
        let path = self.dir.join(name);
        path.is_file().then_some(path)
    }

    fn hash(&mut self, path: &Path) -> Result<Blob, Finding> {
        if let Some(blob) = self.hashed.get(path) {
            return Ok(*blob);
        }
        let blob = hash_file(path)?;
        self.hashed.insert(path.to_owned(), blob);
        Ok(blob)
    }
}

fn file_name(title: &str) -> &str {
    title.rsplit('/').next().unwrap_or_default()
}

/// Adds the file name to the message of a finding.
fn with_file_name(file: &str, finding: &Finding) -> Finding {
    Finding {
        field: finding.field.clone(),
        ..Finding::new(finding.kind, format!("{file}: {}", finding.message))
    }
}
