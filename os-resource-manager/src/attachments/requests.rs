//! Which attachments to fetch, and in which variants to store them.

use std::collections::{BTreeMap, HashMap};

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{AttachmentKind, CatalogFile, FileRole};
use evenkeel_registry::{Finding, FindingKind};
use evenkeel_store::contents;
use evenkeel_store::os_catalogue::{Attachment, AttachmentKey};
use serde::Deserialize as _;

use crate::fetch::finding_json;

/// Digest and location of a list of packages; `None` if there is none.
type PackageListRef<'a> = Option<(contents::ContentDigest, &'a str)>;

/// An attachment to fetch.
#[derive(Debug)]
pub(super) struct AttachmentRequest {
    pub location: String,
    pub kind: AttachmentKind,
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// The variants to store.
    pub variants: Vec<AttachmentVariant>,
}

/// A variant of an attachment. CVE lists are stored once per list of packages that filters them.
#[derive(Debug)]
pub(super) struct AttachmentVariant {
    pub key: AttachmentKey,
    /// The list of packages that filters it; `None` for the unfiltered variant.
    pub packages: Option<AttachmentKey>,
    /// Its stored state; `None` if it is new.
    pub before: Option<Attachment>,
}

impl AttachmentRequest {
    /// `ETag` of the stored version; `None` unless all variants are of the same version.
    pub fn etag(&self) -> Option<&str> {
        let etag = self.variants.first()?.etag()?;
        let is_it = |variant: &AttachmentVariant| variant.etag() == Some(etag);
        self.variants.iter().all(is_it).then_some(etag)
    }

    /// When it was last fetched; `None` if a variant is new. The oldest one comes first, so that attachments that always
    /// stall do not block the others.
    fn last_fetched_at(&self) -> Option<Time> {
        let fetch_times = self.variants.iter().map(|variant| {
            let before = variant.before.as_ref()?;
            Some(before.fetched_at)
        });
        fetch_times.min().flatten()
    }
}

impl AttachmentVariant {
    /// Digest of the stored content.
    pub fn digest(&self) -> Option<contents::ContentDigest> {
        self.before.as_ref()?.digest
    }

    fn etag(&self) -> Option<&str> {
        let before = self.before.as_ref()?;
        before.digest?;
        before.etag.as_deref()
    }

    /// Whether it was made from this version of the document.
    pub fn is_of_version(&self, etag: Option<&str>) -> bool {
        etag.is_some() && self.etag() == etag
    }

    /// Its state if the document is unchanged. Remarks about the content stay.
    pub fn refreshed(&self, now: Time) -> Attachment {
        let before = self.before.as_ref();
        let is_of_content = |finding: &&serde_json::Value| {
            Finding::deserialize(*finding).is_ok_and(|finding| finding.kind == FindingKind::CvesCut)
        };
        let findings = before.into_iter().flat_map(|before| &before.findings);
        Attachment {
            key: self.key.clone(),
            digest: self.digest(),
            etag: self.etag().map(str::to_owned),
            findings: findings.filter(is_of_content).cloned().collect(),
            fetched_at: now,
        }
    }

    /// Its state if the document cannot be fetched or used: the last good content, with the finding.
    pub fn with_failure(&self, finding: &Finding, now: Time) -> Attachment {
        let mut attachment = self.refreshed(now);
        attachment.findings.push(finding_json(finding));
        attachment
    }
}

/// Location and kind of a document; `None` if the file is an image.
pub(super) fn attachment_source(file: &CatalogFile) -> Option<(&str, AttachmentKind)> {
    let kind = match file.role {
        FileRole::Image => return None,
        FileRole::Packages => AttachmentKind::Packages,
        FileRole::ExistingCves | FileRole::FixedCves => AttachmentKind::Cves,
    };
    Some((&file.source, kind))
}

/// The lists of packages among the files of profiles, each once.
pub(super) fn package_list_requests(
    files: &[Vec<CatalogFile>],
    stored: &HashMap<AttachmentKey, Attachment>,
) -> Vec<AttachmentRequest> {
    let mut all: BTreeMap<&str, AttachmentRequest> = BTreeMap::new();
    for file in files.iter().flatten() {
        if let Some((location, AttachmentKind::Packages)) = attachment_source(file) {
            all.entry(location)
                .or_insert_with(|| build_request(file, AttachmentKind::Packages, [None], stored));
        }
    }
    oldest_first(all)
}

/// The CVE lists among the files of profiles, each once, with one variant for each list of packages of the profiles that
/// name it. `list_digests` has the current digests of these lists, by location.
pub(super) fn cve_list_requests(
    files: &[Vec<CatalogFile>],
    list_digests: &HashMap<String, contents::ContentDigest>,
    stored: &HashMap<AttachmentKey, Attachment>,
) -> Vec<AttachmentRequest> {
    let mut variants: BTreeMap<&str, (&CatalogFile, BTreeMap<_, PackageListRef<'_>>)> =
        BTreeMap::new();
    for profile_files in files {
        let is_list = |file: &&CatalogFile| file.role == FileRole::Packages;
        let list = profile_files.iter().find(is_list);
        let list =
            list.and_then(|list| Some((*list_digests.get(&list.source)?, list.source.as_str())));
        for file in profile_files {
            if let Some((location, AttachmentKind::Cves)) = attachment_source(file) {
                let (_, variants) = variants.entry(location).or_insert((file, BTreeMap::new()));
                // Equal lists may have several locations.
                variants.entry(list.map(|(digest, _)| digest)).or_insert(list);
            }
        }
    }
    let all = variants.into_iter().map(|(location, (file, lists))| {
        (location, build_request(file, AttachmentKind::Cves, lists.into_values(), stored))
    });
    oldest_first(all.collect())
}

fn build_request<'a>(
    file: &CatalogFile,
    kind: AttachmentKind,
    lists: impl IntoIterator<Item = PackageListRef<'a>>,
    stored: &HashMap<AttachmentKey, Attachment>,
) -> AttachmentRequest {
    let variant = |list: PackageListRef<'_>| {
        let key = AttachmentKey {
            location: file.source.clone(),
            kind,
            filtered_by: list.map(|(digest, _)| digest),
        };
        let packages = list.map(|(_, location)| AttachmentKey {
            location: location.to_owned(),
            kind: AttachmentKind::Packages,
            filtered_by: None,
        });
        AttachmentVariant { before: stored.get(&key).cloned(), key, packages }
    };
    AttachmentRequest {
        location: file.source.clone(),
        kind,
        size: file.size,
        variants: lists.into_iter().map(variant).collect(),
    }
}

fn oldest_first(all: BTreeMap<&str, AttachmentRequest>) -> Vec<AttachmentRequest> {
    let mut all: Vec<AttachmentRequest> = all.into_values().collect();
    all.sort_by_key(AttachmentRequest::last_fetched_at);
    all
}
