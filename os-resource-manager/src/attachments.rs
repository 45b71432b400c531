//! The attachments of profiles: lists of packages and vulnerabilities. Each is fetched once for all profiles that name
//! it, and stored in the form that users see. The last good content stays if a later one is bad or cannot be fetched.

mod requests;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_domain::os::catalogue::{AttachmentKind, CatalogFile, CycleStep};
use evenkeel_registry::copy::to_finding;
use evenkeel_registry::{
    Blob, Digest, FetchResult, Finding, FindingKind, InstalledPackages, Limits, RegistryError,
    RegistryResult, read_cves, read_packages,
};
use evenkeel_store::contents;
use evenkeel_store::os_catalogue::{self, Attachment, AttachmentKey};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::time::timeout;

use self::requests::{
    AttachmentRequest, AttachmentVariant, cve_list_requests, package_list_requests,
};
use crate::cycle::{Cycle, CycleStop};
use crate::fetch::{count_outcome, finding_json, is_registry_wide};
use crate::sources::{FileLocation, Source};

/// Limit for one document, so that a slow one does not block the others.
const DOCUMENT_TIMEOUT: Duration = Duration::from_mins(10);

/// Web servers that did not answer, with the finding. They are not contacted again in the same cycle.
type UnreachableHosts = Mutex<HashMap<String, Finding>>;

/// Result of fetching a document.
#[derive(Debug, PartialEq)]
enum FetchState {
    /// It is stored, and its content cannot change.
    Immutable,
    /// The server says that it is not modified.
    NotModified,
    /// The server sent it; it may have changed.
    New { bytes: Bytes, etag: Option<String> },
    /// It cannot be fetched.
    Missing(Finding),
}

/// The stored variants of a document.
#[derive(Debug, Default)]
struct StoredVariants {
    variants: Vec<(AttachmentKey, contents::ContentDigest)>,
    is_missing: bool,
}

impl Cycle<'_> {
    /// Fetches the attachments among these files. Returns how many could not be fetched or used.
    ///
    /// # Errors
    /// The registry as a whole is unavailable, the claim is lost, or the database is unreachable.
    pub(crate) async fn fetch_attachments(
        &self,
        files: &[Vec<CatalogFile>],
    ) -> Result<u32, CycleStop> {
        let tx = self.engine.store.fleet().await?;
        let stored = os_catalogue::list_attachments(&tx, &self.claim.registry).await?;
        drop(tx);
        let stored: HashMap<AttachmentKey, Attachment> =
            stored.into_iter().map(|attachment| (attachment.key.clone(), attachment)).collect();
        let mut sources: HashSet<(&str, AttachmentKind)> = HashSet::new();
        sources.extend(files.iter().flatten().filter_map(requests::attachment_source));
        self.begin_step(CycleStep::Attachments, sources.len());
        let unreachable = UnreachableHosts::default();
        let lists = package_list_requests(files, &stored);
        let (list_digests, missing) = self.fetch_all(lists, &unreachable).await?;
        let list_digests = list_digests.into_iter().map(|(key, digest)| (key.location, digest));
        let cve_lists = cve_list_requests(files, &list_digests.collect(), &stored);
        let (_, more) = self.fetch_all(cve_lists, &unreachable).await?;
        Ok(missing.saturating_add(more))
    }

    async fn fetch_all(
        &self,
        all: Vec<AttachmentRequest>,
        unreachable: &UnreachableHosts,
    ) -> Result<(Vec<(AttachmentKey, contents::ContentDigest)>, u32), CycleStop> {
        stream::iter(all)
            .map(|request| self.fetch_attachment(request, unreachable))
            .buffer_unordered(self.engine.settings.parallel)
            .try_fold((Vec::new(), 0), |(mut variants, missing), stored_variants| async move {
                self.count_finished();
                variants.extend(stored_variants.variants);
                Ok((variants, missing + u32::from(stored_variants.is_missing)))
            })
            .await
    }

    /// Fetches one document and stores all its variants.
    async fn fetch_attachment(
        &self,
        request: AttachmentRequest,
        unreachable: &UnreachableHosts,
    ) -> Result<StoredVariants, CycleStop> {
        let mut stored_variants = StoredVariants::default();
        let fetched = fetch_if_changed(&self.source, &request, unreachable).await?;
        for variant in &request.variants {
            let (digest, finding) = match &fetched {
                FetchState::Immutable => (variant.digest(), None),
                FetchState::NotModified => (self.store_unchanged(variant).await?, None),
                FetchState::Missing(finding) => (variant.digest(), Some(finding.clone())),
                FetchState::New { etag, .. } if variant.is_of_version(etag.as_deref()) => {
                    (self.store_unchanged(variant).await?, None)
                }
                FetchState::New { bytes, etag } => {
                    let list = self.load_package_list(variant).await?;
                    match render_in_background(request.kind, bytes.clone(), list).await {
                        Ok((body, remarks)) => {
                            let digest = *Digest::compute(body.as_bytes()).bytes();
                            let attachment = Attachment {
                                key: variant.key.clone(),
                                digest: Some(digest),
                                etag: etag.clone(),
                                findings: remarks.iter().map(finding_json).collect(),
                                fetched_at: self.engine.store.database_time().await?,
                            };
                            self.store_attachment(&attachment, Some(&body)).await?;
                            (Some(digest), None)
                        }
                        Err(finding) => (variant.digest(), Some(finding)),
                    }
                }
            };
            if let Some(finding) = finding {
                stored_variants.is_missing = true;
                let now = self.engine.store.database_time().await?;
                let attachment = variant.with_failure(&finding, now);
                self.store_attachment(&attachment, None).await?;
            }
            stored_variants.variants.extend(digest.map(|digest| (variant.key.clone(), digest)));
        }
        Ok(stored_variants)
    }

    /// Stores that a variant is unchanged.
    async fn store_unchanged(
        &self,
        variant: &AttachmentVariant,
    ) -> Result<Option<contents::ContentDigest>, CycleStop> {
        let attachment = variant.refreshed(self.engine.store.database_time().await?);
        self.store_attachment(&attachment, None).await?;
        Ok(variant.digest())
    }

    /// The package list that a variant is rendered for; `None` if there is none.
    async fn load_package_list(
        &self,
        variant: &AttachmentVariant,
    ) -> Result<Option<String>, CycleStop> {
        let Some(key) = &variant.packages else {
            return Ok(None);
        };
        let tx = self.engine.store.fleet().await?;
        Ok(os_catalogue::attachment_body(&tx, &self.claim.registry, key).await?)
    }

    async fn store_attachment(
        &self,
        attachment: &Attachment,
        body: Option<&str>,
    ) -> Result<(), CycleStop> {
        let tx = self.engine.store.fleet().await?;
        if !os_catalogue::store_attachment(&tx, &self.claim, attachment, body).await? {
            return Err(CycleStop::ClaimLost);
        }
        tx.commit().await?;
        Ok(())
    }
}

/// Fetches a document, if it may have changed.
///
/// # Errors
/// The registry as a whole is unavailable.
async fn fetch_if_changed(
    source: &Source,
    request: &AttachmentRequest,
    unreachable: &UnreachableHosts,
) -> RegistryResult<FetchState> {
    let Some(location) = FileLocation::parse(&request.location) else {
        let why = format!("cannot fetch anything from {:?}", request.location);
        return Ok(FetchState::Missing(Finding::new(FindingKind::NotThere, why)));
    };
    let is_blob = matches!(location, FileLocation::Blob(..));
    if is_blob && request.variants.iter().all(|variant| variant.digest().is_some()) {
        return Ok(FetchState::Immutable);
    }
    let origin = match &location {
        FileLocation::Web(url) => url.origin().ascii_serialization(),
        FileLocation::Blob(..) => String::new(),
    };
    if let Some(finding) = lock_hosts(unreachable).get(&origin) {
        return Ok(FetchState::Missing(finding.clone()));
    }
    let Ok(response) = timeout(DOCUMENT_TIMEOUT, request_document(source, request, location)).await
    else {
        let minutes = DOCUMENT_TIMEOUT.as_secs() / 60;
        let why = format!("it did not arrive within {minutes} minutes");
        return Ok(FetchState::Missing(Finding::new(FindingKind::Unreachable, why)));
    };
    let error = match count_outcome(response) {
        Ok(FetchResult::Unchanged) => return Ok(FetchState::NotModified),
        Ok(FetchResult::New { bytes, etag }) => return Ok(FetchState::New { bytes, etag }),
        Err(error) => error,
    };
    if is_blob && is_registry_wide(&error) {
        return Err(error);
    }
    let finding = document_finding(request.kind, &error);
    if is_registry_wide(&error) {
        lock_hosts(unreachable).insert(origin, finding.clone());
    }
    Ok(FetchState::Missing(finding))
}

async fn request_document(
    source: &Source,
    request: &AttachmentRequest,
    location: FileLocation,
) -> RegistryResult<FetchResult> {
    let limits = Limits::default();
    let limit = match request.kind {
        AttachmentKind::Packages => limits.packages_bytes,
        AttachmentKind::Cves => limits.cves_bytes,
    };
    match location {
        FileLocation::Blob(repository, digest) => {
            let size = request.size.unwrap_or_default();
            let blob = Blob { digest, size };
            let bytes = source.registry.blob(&repository, &blob, limit).await?;
            Ok(FetchResult::New { bytes, etag: None })
        }
        FileLocation::Web(url) => source.web.fetch(&url, request.etag(), limit).await,
    }
}

fn lock_hosts(
    unreachable: &UnreachableHosts,
) -> std::sync::MutexGuard<'_, HashMap<String, Finding>> {
    unreachable.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Renders a document without blocking an async worker.
async fn render_in_background(
    kind: AttachmentKind,
    bytes: Bytes,
    list: Option<String>,
) -> Result<(String, Vec<Finding>), Finding> {
    let rendering =
        tokio::task::spawn_blocking(move || render_document(kind, &bytes, list.as_deref()));
    let broken =
        |error: tokio::task::JoinError| Err(Finding::new(finding_kind(kind), error.to_string()));
    rendering.await.unwrap_or_else(broken)
}

/// The stored form of a document, and remarks about it.
fn render_document(
    kind: AttachmentKind,
    bytes: &[u8],
    list: Option<&str>,
) -> Result<(String, Vec<Finding>), Finding> {
    let mut remarks = Vec::new();
    let text = match kind {
        AttachmentKind::Packages => read_packages(bytes)?,
        AttachmentKind::Cves => {
            let installed = list.and_then(InstalledPackages::from_list);
            let read = read_cves(bytes, installed.as_ref())?;
            if read.is_truncated {
                let why =
                    "vulnerabilities were left out: there are too many, or some cannot be read";
                remarks.push(Finding::new(FindingKind::CvesCut, why));
            }
            read.json
        }
    };
    if text.contains('\0') {
        return Err(Finding::new(finding_kind(kind), "it contains a zero byte"));
    }
    Ok((text, remarks))
}

/// The finding for an unusable document.
const fn finding_kind(kind: AttachmentKind) -> FindingKind {
    match kind {
        AttachmentKind::Packages => FindingKind::Packages,
        AttachmentKind::Cves => FindingKind::Cves,
    }
}

/// Turns an error of a document into a finding.
fn document_finding(kind: AttachmentKind, error: &RegistryError) -> Finding {
    let finding = to_finding(error);
    match error {
        RegistryError::Malformed { .. } => Finding { kind: finding_kind(kind), ..finding },
        _ => finding,
    }
}

#[cfg(test)]
mod tests;
