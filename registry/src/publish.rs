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

use crate::copy::origin::OnDisk;
use crate::copy::{FILE_TYPE, FILES_TYPE, MoveError, Named, Role, Tell};
use crate::copy::{files_of, image_digest, named};
use crate::error::Got;
use crate::finding::{Finding, FindingKind};
use crate::limits::Limits;
use crate::profile::{Profile, profile};
use crate::source::{At, Blob, EMPTY_CONFIG, Layer, Manifest, Registry, Repository, Tag};
use crate::trust::SigningKey;
use local::{hash, read_whole};

/// The kind of the artefact that holds a profile.
pub const PROFILE_TYPE: &str = "application/vnd.intel.orch.en";

/// The form of a profile, as the ancestor's tools expect it.
const YAML_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// How many profiles a folder may have.
const MOST_PROFILES: usize = 1_000;

/// Stands for a digest while the rest of a profile is read to find its image.
const ANY_DIGEST: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

/// One revision of some profiles, checked and ready to be published.
#[derive(Clone, Debug)]
pub struct Release {
    revision: Tag,
    profiles: Vec<Ready>,
    remarks: Vec<Finding>,
    moves: bool,
}

/// A profile that is ready.
#[derive(Clone, Debug)]
struct Ready {
    name: String,
    yaml: Bytes,
    files: Vec<ReadyFile>,
}

/// A file that is ready.
#[derive(Clone, Debug)]
struct ReadyFile {
    title: String,
    path: PathBuf,
    blob: Blob,
}

impl Release {
    /// Reads a folder: each `*.yaml` is a profile; the files that it names lie beside it, called as the last part of
    /// their addresses. A file at an address with a host may be missing: then it stays where it is.
    ///
    /// # Errors
    /// Everything that is wrong with the folder.
    pub fn of_folder(dir: &Path, revision: &str) -> Result<Self, Vec<Finding>> {
        let said: Got<Tag> = revision.parse();
        let (Ok(said), Some(_)) = (said, revision::order(revision, revision)) else {
            let why = format!("{revision:?} is no revision as 1.2.3");
            let finding = Finding::about(FindingKind::BadField, "revision", why);
            return Err(vec![finding]);
        };
        let mut reading = Reading {
            dir,
            revision,
            hashed: BTreeMap::new(),
            findings: Vec::new(),
        };
        let names = match profile_files(dir) {
            Ok(names) => names,
            Err(finding) => return Err(vec![finding]),
        };
        let mut profiles = Vec::new();
        let mut remarks = Vec::new();
        for name in names {
            match reading.profile(&name) {
                Ok((ready, of_it)) => {
                    profiles.push(ready);
                    remarks.extend(of_it.into_iter().map(|remark| in_file(&name, &remark)));
                }
                Err(finding) => reading.findings.push(in_file(&name, &finding)),
            }
        }
        if !reading.findings.is_empty() {
            return Err(reading.findings);
        }
        Ok(Self {
            revision: said,
            profiles,
            remarks,
            moves: false,
        })
    }

    /// The same, but a revision that is there already gets the new contents.
    #[must_use]
    pub fn moving(self, moves: bool) -> Self {
        Self { moves, ..self }
    }

    /// What is odd about it and does no harm.
    pub fn remarks(&self) -> &[Finding] {
        &self.remarks
    }

    /// The names of its profiles.
    pub fn profiles(&self) -> impl Iterator<Item = &str> {
        self.profiles.iter().map(|ready| ready.name.as_str())
    }

    /// Its files: of which profile, called how, and what.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str, Blob)> {
        self.profiles.iter().flat_map(|ready| {
            let files = ready.files.iter();
            files.map(|file| (ready.name.as_str(), file.title.as_str(), file.blob))
        })
    }

    /// Publishes it under its revision and other tags, such as a branch. The tags come last, so nobody sees half of it.
    ///
    /// # Errors
    /// The revision is there already and is something else, or the registry does not take it.
    #[expect(
        clippy::too_many_arguments,
        reason = "a release goes somewhere, under names, signed by somebody, and is watched"
    )]
    pub async fn publish(
        &self,
        registry: &dyn Registry,
        prefix: &str,
        tags: &[Tag],
        key: Option<&SigningKey>,
        tell: &mut dyn Tell,
    ) -> Result<(), MoveError> {
        let is_other = |tag: &&Tag| {
            **tag != self.revision && revision::order(tag.as_str(), tag.as_str()).is_some()
        };
        if let Some(tag) = tags.iter().find(is_other) {
            return Err(MoveError::OtherRevision {
                revision: self.revision.clone(),
                tag: tag.clone(),
            });
        }
        let artefacts = self.artefacts(prefix)?;
        if !self.moves {
            for artefact in &artefacts {
                self.refuse_taken(registry, artefact).await?;
            }
        }
        let of = artefacts.len() as u64;
        for (done, artefact) in (0..).zip(&artefacts) {
            tell.step(artefact.repository.as_str(), done, of);
            self.push(registry, artefact, key).await?;
        }
        tell.step("tags", of, of);
        for artefact in &artefacts {
            let more = tags
                .iter()
                .filter(|tag| artefact.is_profile && **tag != self.revision);
            for tag in std::iter::once(&self.revision).chain(more) {
                registry
                    .push_manifest(&artefact.repository, Some(tag), &artefact.manifest)
                    .await
                    .map_err(MoveError::about(format!("{}:{tag}", artefact.repository)))?;
            }
        }
        Ok(())
    }

    /// What is pushed, in order: the files of a profile before the profile.
    fn artefacts(&self, prefix: &str) -> Result<Vec<Artefact<'_>>, MoveError> {
        let mut artefacts = Vec::new();
        for ready in &self.profiles {
            let name = format!("{prefix}{}", ready.name);
            let repository: Got<Repository> = name.parse();
            let repository = repository.map_err(MoveError::about(&name))?;
            if !ready.files.is_empty() {
                let layer = |file: &ReadyFile| Layer::file(file.blob, FILE_TYPE, &file.title);
                let layers = ready.files.iter().map(layer).collect();
                artefacts.push(Artefact {
                    repository: files_of(&repository).map_err(MoveError::about(&name))?,
                    manifest: Manifest::artifact(FILES_TYPE, layers),
                    ready,
                    is_profile: false,
                });
            }
            let title = format!("{}.yaml", ready.name);
            let layer = Layer::file(Blob::of(&ready.yaml), YAML_TYPE, &title);
            artefacts.push(Artefact {
                repository,
                manifest: Manifest::artifact(PROFILE_TYPE, vec![layer]),
                ready,
                is_profile: true,
            });
        }
        Ok(artefacts)
    }

    async fn refuse_taken(
        &self,
        registry: &dyn Registry,
        artefact: &Artefact<'_>,
    ) -> Result<(), MoveError> {
        let (repository, tag) = (&artefact.repository, &self.revision);
        let there = registry.manifest(repository, &At::Tag(tag.clone())).await;
        let there = there.map_err(MoveError::about(format!("{repository}:{tag}")))?;
        match there {
            Some(there) if there.digest != artefact.manifest.digest => Err(MoveError::Taken {
                repository: repository.clone(),
                tag: tag.clone(),
                found: there.digest,
            }),
            _ => Ok(()),
        }
    }

    async fn push(
        &self,
        registry: &dyn Registry,
        artefact: &Artefact<'_>,
        key: Option<&SigningKey>,
    ) -> Result<(), MoveError> {
        let (repository, manifest) = (&artefact.repository, &artefact.manifest);
        let about = || MoveError::about(repository);
        let empty = Bytes::from_static(EMPTY_CONFIG);
        push_new(registry, repository, &Blob::of(&empty), &empty)
            .await
            .map_err(about())?;
        if artefact.is_profile {
            let yaml = &artefact.ready.yaml;
            push_new(registry, repository, &Blob::of(yaml), yaml)
                .await
                .map_err(about())?;
        } else {
            for file in &artefact.ready.files {
                let from = OnDisk(file.path.clone());
                push_new(registry, repository, &file.blob, &from)
                    .await
                    .map_err(MoveError::about(format!("{} in {repository}", file.title)))?;
            }
        }
        registry
            .push_manifest(repository, None, manifest)
            .await
            .map_err(about())?;
        if let Some(key) = key {
            key.sign(
                registry,
                repository,
                &manifest.digest,
                self.revision.as_str(),
            )
            .await
            .map_err(MoveError::about(format!("the signature of {repository}")))?;
        }
        Ok(())
    }
}

/// One thing that is pushed.
#[derive(Debug)]
struct Artefact<'a> {
    repository: Repository,
    manifest: Manifest,
    ready: &'a Ready,
    is_profile: bool,
}

async fn push_new(
    registry: &dyn Registry,
    repository: &Repository,
    blob: &Blob,
    from: &dyn crate::source::Origin,
) -> Got<()> {
    if registry.has(repository, &blob.digest).await? {
        return Ok(());
    }
    registry.push_blob(repository, blob, from).await
}

/// The names of the profiles in a folder, in order.
fn profile_files(dir: &Path) -> Result<Vec<String>, Finding> {
    let place = dir.display();
    let failed = |error: io::Error| {
        Finding::new(
            FindingKind::NotThere,
            format!("cannot read {place}: {error}"),
        )
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
            let message = format!("there is no profile (*.yaml) in {place}");
            Err(Finding::new(FindingKind::NotThere, message))
        }
        1..=MOST_PROFILES => Ok(names),
        count => {
            let message = format!("{count} profiles are more than {MOST_PROFILES}");
            Err(Finding::new(FindingKind::TooLarge, message))
        }
    }
}

/// A folder that is being read.
#[derive(Debug)]
struct Reading<'a> {
    dir: &'a Path,
    revision: &'a str,
    hashed: BTreeMap<PathBuf, Blob>,
    findings: Vec<Finding>,
}

impl Reading<'_> {
    fn profile(&mut self, file: &str) -> Result<(Ready, Vec<Finding>), Finding> {
        let limit = Limits::default().profile;
        let yaml = read_whole(&self.dir.join(file), limit)?;
        let yaml = String::from_utf8(yaml).map_err(|error| {
            Finding::new(FindingKind::Yaml, format!("it is not UTF-8: {error}"))
        })?;
        let yaml = self.with_release(yaml.trim_start_matches('\u{feff}'))?;
        let yaml = self.with_digest(file, yaml)?;
        let profile = profile(file, yaml.as_bytes())?;
        if profile.release != self.revision {
            let why = format!("it cannot be set to {}", self.revision);
            let kind = FindingKind::RevisionMismatch;
            return Err(Finding::about(kind, "metadata.release", why));
        }
        let files = self.files(file, &profile);
        let ready = Ready {
            name: profile.spec.profile_name.clone(),
            yaml: yaml.into(),
            files,
        };
        Ok((ready, profile.remarks))
    }

    fn with_release(&self, yaml: &str) -> Result<String, Finding> {
        let release = format!("\"{}\"", self.revision);
        edit::set(yaml, "metadata", "release", &release).ok_or_else(|| {
            let why = "it cannot be set; write metadata one key a line, or not at all";
            Finding::about(FindingKind::RevisionMismatch, "metadata.release", why)
        })
    }

    /// Fills in the digest of the image, if there is none and the image is here.
    fn with_digest(&mut self, file: &str, yaml: String) -> Result<String, Finding> {
        if !edit::is_absent(&yaml, "spec", "osImageSha256") {
            return Ok(yaml);
        }
        let Some(probe) = edit::set(&yaml, "spec", "osImageSha256", ANY_DIGEST) else {
            return Ok(yaml);
        };
        let probe = profile(file, probe.as_bytes())?;
        let (all, _) = named(&probe);
        let image = all.into_iter().find(|n| n.role == Role::Image);
        let Some(path) = image.and_then(|image| self.path_of(&image)) else {
            return Ok(yaml);
        };
        let digest = format!("\"{}\"", self.hash(&path)?.digest.hex());
        Ok(edit::set(&yaml, "spec", "osImageSha256", &digest).unwrap_or(yaml))
    }

    /// The files of a profile that are here. What is wrong with them is found.
    fn files(&mut self, file: &str, profile: &Profile) -> Vec<ReadyFile> {
        let mut ready: Vec<ReadyFile> = Vec::new();
        let (all, doubles) = named(profile);
        // What is not here stays where it is, and there the host tells which is which.
        let doubles = doubles
            .iter()
            .filter(|double| self.path_of(double).is_some());
        let doubles: Vec<Finding> = doubles.map(|d| in_file(file, &d.ambiguous())).collect();
        self.findings.extend(doubles);
        for named in all {
            match self.file(&named, profile) {
                Ok(Some(one)) if ready.iter().any(|other| other.path == one.path) => {
                    let why = format!("two files are called {}", last_part(&named.title));
                    let finding = Finding::new(FindingKind::Ambiguous, why);
                    self.findings.push(in_file(file, &finding));
                }
                Ok(Some(one)) => ready.push(one),
                Ok(None) => {}
                Err(finding) => self.findings.push(in_file(file, &finding)),
            }
        }
        ready
    }

    fn file(&mut self, named: &Named, profile: &Profile) -> Result<Option<ReadyFile>, Finding> {
        let Some(path) = self.path_of(named) else {
            if named.url.contains("://") {
                return Ok(None);
            }
            let why = format!("{} is not in the folder", last_part(&named.title));
            return Err(Finding::new(FindingKind::NotThere, why));
        };
        let blob = self.hash(&path)?;
        let limit = named.role.limit(&Limits::default());
        if blob.size > limit {
            let why = format!("{} is larger than {limit} bytes", path.display());
            return Err(Finding::new(FindingKind::TooLarge, why));
        }
        match (named.role, image_digest(&profile.spec.sha256)) {
            (Role::Image, Some(said)) if said != blob.digest => {
                let why = format!("the image here has {}", blob.digest.hex());
                let kind = FindingKind::WrongDigest;
                return Err(Finding::about(kind, "spec.osImageSha256", why));
            }
            (Role::Image, _) => {}
            (role, _) => role
                .check(&read_whole(&path, limit)?)
                .map_err(|finding| in_file(last_part(&named.title), &finding))?,
        }
        let title = named.title.clone();
        Ok(Some(ReadyFile { title, path, blob }))
    }

    /// Where a file is, if it is here.
    fn path_of(&self, named: &Named) -> Option<PathBuf> {
        let name = last_part(&named.title);
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
        let blob = hash(path)?;
        self.hashed.insert(path.to_owned(), blob);
        Ok(blob)
    }
}

fn last_part(title: &str) -> &str {
    title.rsplit('/').next().unwrap_or_default()
}

/// The same finding, with the file that it is about.
fn in_file(file: &str, finding: &Finding) -> Finding {
    Finding {
        field: finding.field.clone(),
        ..Finding::new(finding.kind, format!("{file}: {}", finding.message))
    }
}
