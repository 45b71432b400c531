//! The files that can be served: exactly those that profiles name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_registry::Digest;
use evenkeel_store::os_details::{self, Offer};
use evenkeel_store::{Store, StoreError};
use tokio::sync::Mutex;
use url::Url;

use super::access::VisibleProjects;

/// How long a snapshot is used.
const SNAPSHOT_TTL: TimeDelta = TimeDelta::seconds(30);

/// Minimum time before a missing file is looked up again.
const MIN_ABSENCE_TTL: TimeDelta = TimeDelta::seconds(1);

/// A missing file is looked up again after this many times the duration of the last lookup, to protect the database.
const ABSENCE_TTL_FACTOR: i32 = 10;

/// The name by which a request asks for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileName {
    Digest(Digest),
    /// Path of its address in a profile, normalised by [`normalize_path`].
    Path(String),
}

/// A file that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfferedFile {
    pub digest: Digest,
    /// Equivalent sources.
    pub sources: Vec<FileSource>,
}

/// Where a file can be downloaded from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileSource {
    /// Name of the registry that named it.
    pub registry: String,
    /// `blob:<repository>@sha256:<hex>` or `web:<url>`.
    pub location: String,
    /// Size in bytes, if known.
    pub size: Option<u64>,
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OfferLookup {
    File(Arc<OfferedFile>),
    /// Profiles name different files with this path.
    Ambiguous,
    /// Nothing that the caller may have.
    NotFound,
}

/// The files that can be served in all projects, from a snapshot of the database.
#[derive(Debug)]
pub(super) struct Offers {
    store: Store,
    clock: Arc<dyn Clock>,
    snapshot: Mutex<Option<OfferSnapshot>>,
}

/// A snapshot of the database.
#[derive(Clone, Debug)]
struct OfferSnapshot {
    taken_at: Time,
    /// How long a file that was missing is not looked up again.
    absence_ttl: TimeDelta,
    index: Arc<OfferIndex>,
}

/// The files that can be served, by digest and by path.
#[derive(Debug, Default)]
struct OfferIndex {
    files: HashMap<Digest, FileEntry>,
    paths: HashMap<String, BTreeMap<Digest, HashSet<TenantId>>>,
}

/// A file, and the projects with a profile that names it.
#[derive(Debug)]
struct FileEntry {
    file: Arc<OfferedFile>,
    tenants: HashSet<TenantId>,
}

impl Offers {
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, snapshot: Mutex::default() }
    }

    /// Looks up a file for a caller. A file that was just added is found at once; a removed file is found for up to 30
    /// seconds more.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn find(
        &self,
        name: &FileName,
        visible: &VisibleProjects,
    ) -> Result<OfferLookup, StoreError> {
        let snapshot = self.load_snapshot(|_| SNAPSHOT_TTL).await?;
        let lookup = snapshot.index.find(name, visible);
        if lookup != OfferLookup::NotFound {
            return Ok(lookup);
        }
        let fresh = self.load_snapshot(|snapshot| snapshot.absence_ttl).await?;
        Ok(fresh.index.find(name, visible))
    }

    /// The last snapshot, or a new one if the last one is too old.
    async fn load_snapshot(
        &self,
        age: impl Fn(&OfferSnapshot) -> TimeDelta,
    ) -> Result<OfferSnapshot, StoreError> {
        let mut snapshot = self.snapshot.lock().await;
        let now = self.clock.now();
        if let Some(snapshot) = &*snapshot {
            // If the clock was set back, the snapshot counts as too old.
            let since = now.signed_duration_since(snapshot.taken_at);
            if since >= TimeDelta::zero() && since < age(snapshot) {
                return Ok(snapshot.clone());
            }
        }
        let tx = self.store.fleet().await?;
        let index = Arc::new(OfferIndex::from_offers(os_details::list_offers(&tx).await?));
        let took = self.clock.now().signed_duration_since(now);
        let new_snapshot = OfferSnapshot {
            taken_at: now,
            absence_ttl: MIN_ABSENCE_TTL.max(took * ABSENCE_TTL_FACTOR).min(SNAPSHOT_TTL),
            index,
        };
        *snapshot = Some(new_snapshot.clone());
        Ok(new_snapshot)
    }
}

impl OfferIndex {
    fn from_offers(offers: Vec<Offer>) -> Self {
        let mut index = Self::default();
        let mut sources: HashMap<Digest, BTreeMap<FileSource, HashSet<TenantId>>> = HashMap::new();
        for offer in offers {
            let Some((digest, source)) = file_source(&offer) else {
                continue;
            };
            let of_path = index.paths.entry(normalize_path(&offer.file.path)).or_default();
            of_path.entry(digest).or_default().insert(offer.tenant);
            let of_file = sources.entry(digest).or_default();
            of_file.entry(source).or_default().insert(offer.tenant);
        }
        for (digest, sources) in sources {
            let tenants = sources.values().flatten().copied().collect();
            let sources = sources.into_keys().collect();
            let file = Arc::new(OfferedFile { digest, sources });
            index.files.insert(digest, FileEntry { file, tenants });
        }
        index
    }

    fn find(&self, name: &FileName, visible: &VisibleProjects) -> OfferLookup {
        let is_seen =
            |tenants: &HashSet<TenantId>| tenants.iter().any(|one| visible.contains(*one));
        let digest = match name {
            FileName::Digest(digest) => *digest,
            FileName::Path(path) => {
                let digests = self.paths.get(path).into_iter().flatten();
                let mut theirs = digests.filter(|(_, tenants)| is_seen(tenants));
                match (theirs.next(), theirs.next()) {
                    (None, _) => return OfferLookup::NotFound,
                    (Some(_), Some(_)) => return OfferLookup::Ambiguous,
                    (Some((digest, _)), None) => *digest,
                }
            }
        };
        match self.files.get(&digest) {
            Some(entry) if is_seen(&entry.tenants) => OfferLookup::File(Arc::clone(&entry.file)),
            _ => OfferLookup::NotFound,
        }
    }
}

/// The digest and the source of an offer; `None` without a digest, because such a file cannot be verified.
pub(super) fn file_source(offer: &Offer) -> Option<(Digest, FileSource)> {
    let digest = Digest::from_hex(offer.file.sha256.as_ref()?.as_str()).ok()?;
    let source = FileSource {
        registry: offer.registry.clone(),
        location: offer.file.source.clone(),
        size: offer.file.size,
    };
    Some((digest, source))
}

/// Normalises a path: the same for all ways of escaping it, and without a leading slash.
pub(super) fn normalize_path(path: &str) -> String {
    let path = path.trim_start_matches('/');
    match Url::parse(&format!("http://files/{path}")) {
        Ok(url) => url.path().trim_start_matches('/').to_owned(),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::os::Sha256;
    use evenkeel_domain::os::catalogue::{CatalogFile, FileRole};
    use uuid::Uuid;

    use super::*;

    const FIRST_PROJECT: TenantId = TenantId::new(Uuid::from_u128(1));
    const SECOND_PROJECT: TenantId = TenantId::new(Uuid::from_u128(2));

    fn offer(tenant: TenantId, path: &str, content: &str, registry: &str) -> Offer {
        let hex = Digest::compute(content.as_bytes()).hex();
        Offer {
            tenant,
            registry: registry.to_owned(),
            file: CatalogFile {
                role: FileRole::Image,
                path: path.to_owned(),
                source: format!("web:https://{registry}.example/{path}"),
                sha256: Some(Sha256::parse("sha256", &hex).expect("a digest")),
                size: None,
            },
        }
    }

    fn only_project(tenant: TenantId) -> VisibleProjects {
        VisibleProjects::Only(vec![tenant])
    }

    fn found_digest(lookup: &OfferLookup) -> Option<Digest> {
        match lookup {
            OfferLookup::File(file) => Some(file.digest),
            OfferLookup::Ambiguous | OfferLookup::NotFound => None,
        }
    }

    #[test]
    fn a_file_is_found_by_digest_and_by_path_in_projects_that_name_it() {
        let index = OfferIndex::from_offers(vec![
            offer(FIRST_PROJECT, "images/edge.raw", "edge", "release"),
            offer(SECOND_PROJECT, "images/edge.raw", "other", "release"),
        ]);
        let edge = Digest::compute(b"edge");
        for name in [
            FileName::Digest(edge),
            FileName::Path(normalize_path("/images/edge.raw")),
            FileName::Path(normalize_path("//images/a/../edge.raw")),
        ] {
            assert_eq!(found_digest(&index.find(&name, &only_project(FIRST_PROJECT))), Some(edge));
        }
        let by_digest = FileName::Digest(edge);
        assert_eq!(index.find(&by_digest, &only_project(SECOND_PROJECT)), OfferLookup::NotFound);
        let by_path = FileName::Path("images/edge.raw".to_owned());
        assert_eq!(
            found_digest(&index.find(&by_path, &only_project(SECOND_PROJECT))),
            Some(Digest::compute(b"other"))
        );
        assert_eq!(index.find(&by_path, &VisibleProjects::All), OfferLookup::Ambiguous);
        let unknown = FileName::Path("images".to_owned());
        assert_eq!(index.find(&unknown, &VisibleProjects::All), OfferLookup::NotFound);
    }

    #[test]
    fn a_file_can_be_fetched_from_every_source_that_a_profile_names() {
        let index = OfferIndex::from_offers(vec![
            offer(FIRST_PROJECT, "edge.raw", "edge", "release"),
            offer(SECOND_PROJECT, "edge.raw", "edge", "mirror"),
            offer(SECOND_PROJECT, "edge.raw", "edge", "mirror"),
        ]);
        let name = FileName::Digest(Digest::compute(b"edge"));
        let OfferLookup::File(file) = index.find(&name, &only_project(FIRST_PROJECT)) else {
            panic!("the file is not found");
        };
        let registries = file.sources.iter().map(|source| source.registry.as_str());
        assert_eq!(registries.collect::<Vec<_>>(), ["mirror", "release"]);
    }

    #[test]
    fn a_file_without_a_digest_is_not_served() {
        let mut document = offer(FIRST_PROJECT, "cves.json", "[]", "release");
        document.file.sha256 = None;
        let index = OfferIndex::from_offers(vec![document]);
        let name = FileName::Path("cves.json".to_owned());
        assert_eq!(index.find(&name, &VisibleProjects::All), OfferLookup::NotFound);
    }

    #[test]
    fn escaping_does_not_change_a_path() {
        assert_eq!(normalize_path("/a b/c.raw"), normalize_path("a%20b/c.raw"));
        assert_eq!(normalize_path("a/../../etc/passwd"), "etc/passwd");
    }
}
