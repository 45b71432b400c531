//! Plans what a project takes from a registry: which revisions become which OS profiles, and the findings about the
//! others. Pure: no database, no clock, and the result does not depend on the order of the input.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{
    AttachmentKind, FileRole, ResolvedSelection, SignatureStatus,
};
use evenkeel_domain::os::{OsSpec, revision};
use evenkeel_registry::{Finding, FindingKind, Profile, SignaturePolicy, read_profile};
use evenkeel_store::contents::ContentDigest;
use evenkeel_store::os_catalogue::{Artifact, Attachment, AttachmentKey};
use evenkeel_store::os_details::{ImportedOs, OsDetails};
use serde::Deserialize as _;
use serde_json::Value;

use crate::fetch::profile_field;

/// Stands for the tag list of a repository in place of a tag: findings about the list are stored under it. It is not a
/// valid tag.
pub(crate) const LISTING_TAG: &str = "(tags)";

/// The content of a registry, as it was last fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegistryContent<'a> {
    /// Prefix of a profile name that makes its repository name.
    pub prefix: &'a str,
    /// What to do with artifacts without a valid signature.
    pub trust: SignaturePolicy,
    /// The artifacts of its tags.
    pub artifacts: &'a [Artifact],
    /// The attachments of its profiles.
    pub attachments: &'a [Attachment],
}

/// What a project takes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The OS profiles, sorted by profile name and image version; each once.
    pub profiles: Vec<ImportedOs>,
    /// The documents that these refer to, and their keys in the catalogue.
    pub documents: BTreeMap<ContentDigest, AttachmentKey>,
    /// Revisions that existed before but are gone.
    pub gone: Vec<GoneRevision>,
    /// Findings, sorted by repository and tag.
    pub findings: Vec<RevisionFinding>,
    /// Number of selected revisions that exist but are not taken.
    pub refused: u32,
}

/// A revision that is gone, and the image that it had.
#[derive(Debug)]
pub(crate) struct GoneRevision {
    pub repository: String,
    pub tag: String,
    pub profile_name: String,
    pub image_id: String,
}

/// A finding about a revision, or about a repository if the tag is empty.
#[derive(Debug)]
pub(crate) struct RevisionFinding {
    pub repository: String,
    pub tag: String,
    pub finding: Finding,
}

/// Plans what a project takes. `now` is stored with each OS profile.
pub(crate) fn plan(
    selection: &ResolvedSelection,
    content: &RegistryContent<'_>,
    now: Time,
) -> Plan {
    let mut by_repository: HashMap<&str, Vec<&Artifact>> = HashMap::new();
    for artifact in content.artifacts {
        let artifacts = by_repository.entry(&artifact.repository).or_default();
        artifacts.push(artifact);
    }
    let attachment = |attachment| (attachment_id(attachment), attachment);
    let mut planner = Planner {
        selection,
        content,
        now,
        attachments: content.attachments.iter().map(attachment).collect(),
        plan: Plan::default(),
        reported: HashSet::new(),
    };
    for name in &selection.enabled {
        let repository = format!("{}{name}", content.prefix);
        let artifacts = by_repository.remove(repository.as_str()).unwrap_or_default();
        planner.plan_profile(&repository, name, artifacts);
    }
    planner.finish()
}

/// Identifies an attachment: its location, its kind, and the package list that filters it.
type AttachmentId<'a> = (&'a str, AttachmentKind, Option<ContentDigest>);

fn attachment_id(attachment: &Attachment) -> AttachmentId<'_> {
    (&attachment.key.location, attachment.key.kind, attachment.key.filtered_by)
}

/// A plan that is being built.
#[derive(Debug)]
struct Planner<'a> {
    selection: &'a ResolvedSelection,
    content: &'a RegistryContent<'a>,
    now: Time,
    attachments: HashMap<AttachmentId<'a>, &'a Attachment>,
    plan: Plan,
    /// Findings so far. Fetching and planning may find the same problem.
    reported: HashSet<(String, String, FindingKind, Option<String>)>,
}

impl<'a> Planner<'a> {
    /// Plans the selected revisions of one profile.
    fn plan_profile(&mut self, repository: &str, name: &str, artifacts: Vec<&'a Artifact>) {
        let is_listed = self.report_listing(repository, &artifacts);
        let selector = &self.selection.revision;
        let matching = artifacts.into_iter().filter(|one| selector.admits(&one.tag));
        let (gone, mut present): (Vec<_>, Vec<_>) = matching.partition(|one| one.gone_at.is_some());
        if present.is_empty() && is_listed {
            let why = format!("no revision matches {selector}");
            let finding = Finding::new(FindingKind::NotThere, why);
            self.report(repository, "", finding);
        }
        present.sort_by(|one, other| compare_newest_first(&one.tag, &other.tag));
        let mut selected: BTreeMap<String, (&Artifact, Profile)> = BTreeMap::new();
        let is_same = |one: &&Artifact, other: &&Artifact| {
            revision::compare_revisions(&one.tag, &other.tag) == Some(Ordering::Equal)
        };
        for candidates in present.chunk_by(is_same) {
            let Some((artifact, profile)) = self.select_artifact(name, candidates) else {
                continue;
            };
            match selected.get(&profile.spec.image_id) {
                None => {
                    let image = profile.spec.image_id.clone();
                    selected.insert(image, (artifact, profile));
                }
                Some((newer, its)) if has_other_image(&its.spec, &profile.spec) => {
                    let why = format!(
                        "it has the version {} of the image, as {} has, but another digest, kind or address",
                        profile.spec.image_id, newer.tag
                    );
                    let kind = FindingKind::SameImageOtherDigest;
                    self.refuse(artifact, Finding::new(kind, why));
                }
                // Of several revisions with one image, the newest one describes it.
                Some(_) => {}
            }
        }
        let gone = gone.into_iter().filter_map(to_gone_revision);
        let is_elsewhere = |gone: &GoneRevision| selected.contains_key(&gone.image_id);
        let gone = gone.filter(|gone| !is_elsewhere(gone));
        self.plan.gone.extend(gone);
        for (artifact, profile) in selected.into_values() {
            let details = self.os_details(artifact, &profile);
            let spec = profile.spec;
            self.plan.profiles.push(ImportedOs { spec, details });
        }
    }

    /// Reports why the tags of a repository could not be listed. Returns true if they could.
    fn report_listing(&mut self, repository: &str, artifacts: &[&Artifact]) -> bool {
        let is_it = |one: &&&Artifact| one.tag == LISTING_TAG && one.gone_at.is_none();
        let Some(listing) = artifacts.iter().find(is_it) else {
            return true;
        };
        for finding in parse_findings(&listing.findings) {
            self.report(repository, "", finding);
        }
        false
    }

    /// The artifact to take of several tags that mean the same revision. `None` if the tags have different content, or if
    /// the artifact cannot be taken.
    fn select_artifact(
        &mut self,
        name: &str,
        candidates: &[&'a Artifact],
    ) -> Option<(&'a Artifact, Profile)> {
        let first = *candidates.first()?;
        if candidates.iter().all(|one| one.digest == first.digest) {
            return Some((first, self.read_artifact(name, first)?));
        }
        let tags: Vec<&str> = candidates.iter().map(|one| one.tag.as_str()).collect();
        let why = format!(
            "{} mean the same revision but have different content, so none of them is taken",
            tags.join(" and ")
        );
        for one in candidates {
            self.refuse(one, Finding::new(FindingKind::Ambiguous, &why));
        }
        None
    }

    /// The profile of an artifact, if it can be taken. Reports its findings.
    fn read_artifact(&mut self, name: &str, artifact: &Artifact) -> Option<Profile> {
        for finding in parse_findings(&artifact.findings) {
            self.report(&artifact.repository, &artifact.tag, finding);
        }
        self.report_moved_tag(artifact);
        let is_trusted = self.check_trust(artifact);
        match artifact_profile(name, artifact) {
            Ok(profile) if is_trusted => Some(profile),
            // The missing trust is already reported.
            Ok(_) => {
                self.plan.refused += 1;
                None
            }
            Err(finding) => {
                self.refuse(artifact, finding);
                None
            }
        }
    }

    /// Reports a tag that moved. A branch is expected to move; a revision is not.
    fn report_moved_tag(&mut self, artifact: &Artifact) {
        // Zeros stand for an artifact that could not be read.
        let Some(before) = artifact.moved_from.filter(|before| *before != [0; 32]) else {
            return;
        };
        if revision::compare_revisions(&artifact.tag, &artifact.tag).is_some() {
            let [before, now] = [before, artifact.digest].map(evenkeel_registry::Digest::from);
            let why = format!("it moved from {before} to {now}");
            let finding = Finding::new(FindingKind::TagMoved, why);
            self.report(&artifact.repository, &artifact.tag, finding);
        }
    }

    fn check_trust(&mut self, artifact: &Artifact) -> bool {
        let (kind, why) = match (self.content.trust, artifact.trust) {
            (SignaturePolicy::Off, _)
            | (_, SignatureStatus::Good)
            | (SignaturePolicy::Warn, SignatureStatus::Unchecked) => return true,
            (_, SignatureStatus::Bad) => (
                FindingKind::BadSignature,
                "its signatures are not from a trusted key, or not for this artefact",
            ),
            (_, SignatureStatus::Unsigned | SignatureStatus::Unchecked) => {
                (FindingKind::Unsigned, "it has no signature")
            }
        };
        self.report(&artifact.repository, &artifact.tag, Finding::new(kind, why));
        self.content.trust == SignaturePolicy::Warn
    }

    /// The details of an OS profile: its origin and its attachments.
    fn os_details(&mut self, artifact: &Artifact, profile: &Profile) -> OsDetails {
        let packages = self.find_attachment(artifact, FileRole::Packages, None);
        OsDetails {
            registry: self.selection.registry.clone(),
            repository: artifact.repository.clone(),
            revision: artifact.tag.clone(),
            artifact: artifact.digest,
            platform_bundle: profile.platform_bundle.clone(),
            signature: artifact.signature.clone(),
            files: artifact.files.clone(),
            packages,
            existing_cves: self.find_attachment(artifact, FileRole::ExistingCves, packages),
            fixed_cves: self.find_attachment(artifact, FileRole::FixedCves, packages),
            refreshed_at: self.now,
        }
    }

    /// Digest of an attachment; `None` if there is none. A CVE list that is filtered by these packages is preferred.
    fn find_attachment(
        &mut self,
        artifact: &Artifact,
        role: FileRole,
        packages: Option<ContentDigest>,
    ) -> Option<ContentDigest> {
        let kind = match role {
            FileRole::Packages => AttachmentKind::Packages,
            _ => AttachmentKind::Cves,
        };
        let file = artifact.files.iter().find(|file| file.role == role)?;
        let filtered = (file.source.as_str(), kind, packages);
        let unfiltered = (file.source.as_str(), kind, None);
        let attachment = *self.attachments.get(&filtered).or(self.attachments.get(&unfiltered))?;
        for finding in parse_findings(&attachment.findings) {
            let role_field = || Some(profile_field(role).to_owned());
            let field = finding.field.clone().or_else(role_field);
            let finding = Finding { field, ..finding };
            self.report(&artifact.repository, &artifact.tag, finding);
        }
        let digest = attachment.digest?;
        let key = AttachmentKey {
            location: attachment.key.location.clone(),
            kind,
            filtered_by: attachment.key.filtered_by,
        };
        self.plan.documents.insert(digest, key);
        Some(digest)
    }

    fn refuse(&mut self, artifact: &Artifact, finding: Finding) {
        self.plan.refused += 1;
        self.report(&artifact.repository, &artifact.tag, finding);
    }

    fn report(&mut self, repository: &str, tag: &str, finding: Finding) {
        let key = (repository.to_owned(), tag.to_owned(), finding.kind, finding.field.clone());
        if self.reported.insert(key) {
            self.plan.findings.push(RevisionFinding {
                repository: repository.to_owned(),
                tag: tag.to_owned(),
                finding,
            });
        }
    }

    fn finish(self) -> Plan {
        let mut plan = self.plan;
        plan.profiles.sort_by(|one, other| profile_key(one).cmp(&profile_key(other)));
        plan.findings.sort_by(|one, other| finding_order(one).cmp(&finding_order(other)));
        let at = |gone: &GoneRevision| (gone.repository.clone(), gone.tag.clone());
        plan.gone.sort_by_key(at);
        plan
    }
}

/// Identity of an OS profile: profile name and image version.
fn profile_key(profile: &ImportedOs) -> (&str, &str) {
    (&profile.spec.profile_name, &profile.spec.image_id)
}

/// Sort key of a finding.
fn finding_order(entry: &RevisionFinding) -> (&str, &str, FindingKind, Option<&str>) {
    let field = entry.finding.field.as_deref();
    (&entry.repository, &entry.tag, entry.finding.kind, field)
}

/// The profile of an artifact, if it belongs to this repository and tag.
fn artifact_profile(name: &str, artifact: &Artifact) -> Result<Profile, Finding> {
    let Some(document) = &artifact.document else {
        let why = "it could not be fetched, or contains no profile";
        // Used only if fetching left no finding about it.
        let mut errors = parse_findings(&artifact.findings).filter(|one| !is_remark(one.kind));
        let unknown = || Finding::new(FindingKind::NotAProfile, why);
        return Err(errors.next().unwrap_or_else(unknown));
    };
    let profile = read_profile(profile_title(artifact), document.as_bytes())?;
    let profile_name = &profile.spec.profile_name;
    if profile_name != name {
        let why = format!("it is the profile {profile_name:?} in the repository of {name:?}");
        let kind = FindingKind::OtherProfile;
        return Err(Finding::about(kind, "spec.profileName", why));
    }
    match revision::compare_revisions(&profile.release, &artifact.tag) {
        None | Some(Ordering::Equal) => Ok(profile),
        Some(_) => {
            let why =
                format!("it was published as {} and is tagged {}", profile.release, artifact.tag);
            let kind = FindingKind::RevisionMismatch;
            Err(Finding::about(kind, "metadata.release", why))
        }
    }
}

/// File name of the profile.
fn profile_title(artifact: &Artifact) -> &str {
    artifact.title.as_deref().unwrap_or_default()
}

/// The image that a gone revision had, if its profile can be read.
fn to_gone_revision(artifact: &Artifact) -> Option<GoneRevision> {
    let document = artifact.document.as_ref()?;
    let spec = read_profile(profile_title(artifact), document.as_bytes()).ok()?.spec;
    Some(GoneRevision {
        repository: artifact.repository.clone(),
        tag: artifact.tag.clone(),
        profile_name: spec.profile_name,
        image_id: spec.image_id,
    })
}

fn parse_findings(stored: &[Value]) -> impl Iterator<Item = Finding> {
    // Only this crate writes them, so none is skipped.
    stored.iter().filter_map(|one| Finding::deserialize(one).ok())
}

fn has_other_image(one: &OsSpec, other: &OsSpec) -> bool {
    (&one.sha256, one.kind, &one.image_url) != (&other.sha256, other.kind, &other.image_url)
}

/// Order of tags: the newest revision first. Tags of the same revision are ordered by their text.
fn compare_newest_first(one: &str, other: &str) -> Ordering {
    let order = revision::compare_revisions(other, one).unwrap_or(Ordering::Equal);
    order.then_with(|| one.cmp(other))
}

/// Whether a finding of this kind is only a remark: nothing is missing because of it.
pub(crate) const fn is_remark(kind: FindingKind) -> bool {
    matches!(
        kind,
        FindingKind::UnknownKey
            | FindingKind::SeveralLayers
            | FindingKind::Unsigned
            | FindingKind::BadSignature
            | FindingKind::NameTaken
            | FindingKind::TagMoved
            | FindingKind::Gone
            | FindingKind::CvesCut
    )
}

#[cfg(test)]
mod tests;
