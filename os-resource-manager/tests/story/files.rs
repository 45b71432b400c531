//! How nodes get the files of operating systems.

mod coming;
mod kept;
mod served;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderName, Method, Request, StatusCode};
use axum::response::Response;
use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, Role};
use evenkeel_domain::id::{HostId, OsId};
use evenkeel_domain::os::catalogue::{File, FileRole};
use evenkeel_domain::os::{OsKind, OsRelease, OsSpec, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_os_resource_manager::{Admission, FileSettings, Files, Prefetch, Sources};
use evenkeel_registry::testing::SmallRegistry;
use evenkeel_registry::{Blob, Digest};
use evenkeel_store::os_inside::{self, Inside, Kept, Made};
use evenkeel_store::testing::fill;
use tempfile::TempDir;
use tower::ServiceExt as _;

use crate::house::{House, NAME};

/// Where the registry has the files of the story's profile.
const FILES: &str = "os-profile/edge/files";

/// Longer than what is read or written at once.
const LENGTH: usize = 300_000;

/// A house with nodes, and the settings of a server of files.
struct Site {
    house: House,
    settings: FileSettings,
    authority: Arc<Authority>,
    nodes: Vec<HostId>,
    _folder: TempDir,
}

/// A content that is nowhere the same as elsewhere.
fn content(seed: usize) -> Vec<u8> {
    (0..LENGTH)
        .map(|n| u8::try_from((n * n / 7 + n * seed + seed) % 251).expect("a byte"))
        .collect()
}

/// The address of a content by its digest.
fn by_digest(content: &[u8]) -> String {
    format!("/files/sha256/{}", Digest::of(content).hex())
}

impl Site {
    async fn new() -> Self {
        Self::beside(House::beside(SmallRegistry::start(), |_| {}).await).await
    }

    async fn beside(house: House) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = Keys::open(&folder.path().join("keys")).expect("keys");
        let authority = Authority::new(keys, evenkeel_auth::Settings::default());
        let size = fill::Size { hosts: 3, sites: 1 };
        let filled = fill::nodes(&house.store, house.tenant, size, house.clock.now()).await;
        Self {
            settings: FileSettings {
                dir: folder.path().join("files"),
                keep_free: 0,
                max_bytes: 10 * LENGTH as u64,
                prefetch: Prefetch::Off,
                transfers_per_node: 0,
                pause: Duration::from_millis(1),
                wait: Duration::from_mins(1),
                ..FileSettings::default()
            },
            authority: Arc::new(authority),
            nodes: filled.expect("nodes").hosts,
            house,
            _folder: folder,
        }
    }

    /// Starts the server of files.
    fn open(&self) -> Files {
        let sources = Sources::open(&self.house.settings.registries).expect("registries");
        Files::open(
            self.house.store.clone(),
            Arc::clone(&self.authority),
            Arc::clone(&self.house.clock) as Arc<dyn Clock>,
            self.settings.clone(),
            Arc::new(sources),
        )
        .expect("a folder of files")
    }

    /// A profile of a project names a content that lies in the registry.
    async fn offer(&self, tenant: TenantId, version: &str, content: &[u8]) -> OsId {
        let blob = self.house.small.put_blob(FILES, content.to_vec());
        self.name(
            tenant,
            version,
            &Digest::of(content),
            (&place_of(&blob), Some(blob.size)),
        )
        .await
    }

    /// A profile of a project names an image, wherever that lies.
    async fn name(
        &self,
        tenant: TenantId,
        version: &str,
        digest: &Digest,
        (place, size): (&str, Option<u64>),
    ) -> OsId {
        let made = made(version, digest, place, size);
        let tx = self
            .house
            .store
            .tenant(tenant)
            .await
            .expect("a transaction");
        let kept = os_inside::keep(&tx, &made, self.house.clock.now()).await;
        tx.commit().await.expect("committed");
        // So that it is looked for anew.
        self.house.clock.advance(TimeDelta::seconds(2));
        match kept.expect("kept") {
            Kept::Made { os, .. } | Kept::Refreshed(os) | Kept::Same(os) => os,
            Kept::OtherImage(os) => panic!("{os} has another image"),
        }
    }

    /// The token of a node of the house.
    fn node(&self, which: usize) -> String {
        let host = self.nodes[which].to_string();
        let (now, hour) = (self.house.clock.now(), TimeDelta::hours(1));
        let project = self.house.tenant.uuid();
        let issued = self.authority.issue_node(project, &host, hour, now);
        issued.expect("a token").token.reveal().to_owned()
    }

    /// The token of somebody with roles.
    fn somebody(&self, roles: &[Role]) -> String {
        let (now, hour) = (self.house.clock.now(), TimeDelta::hours(1));
        let issued = self.authority.issue_operator("somebody", roles, hour, now);
        issued.expect("a token").token.reveal().to_owned()
    }

    /// Asks as the first node.
    async fn ask(&self, files: &Files, path: &str, headers: &[(HeaderName, &str)]) -> Said {
        let token = self.node(0);
        said(ask(&files.router(), Method::GET, path, Some(&token), headers).await).await
    }

    /// What lies in a folder of the cache, with its length.
    fn lies_in(&self, folder: &str) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let mut folders = vec![self.settings.dir.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let length = path.metadata().expect("a file").len();
                found.push((name_of(&path), length));
            }
        }
        found.sort();
        found
    }
}

fn name_of(path: &std::path::Path) -> String {
    let name = path.file_name().expect("a name");
    name.to_string_lossy().into_owned()
}

/// Where a blob of the registry lies, as the catalogue writes it.
fn place_of(blob: &Blob) -> String {
    format!("blob:{FILES}@{}", blob.digest)
}

/// An operating system whose image has a digest and lies somewhere.
fn made(version: &str, digest: &Digest, place: &str, size: Option<u64>) -> Made {
    let release = OsRelease {
        id: "edge".to_owned(),
        version_id: version.to_owned(),
        ..OsRelease::default()
    };
    let spec = OsSpec::of_release(&release, "amd64").expect("an operating system");
    let sha256 = Sha256::parse("sha256", &digest.hex()).expect("a digest");
    let path = format!("images/edge-{version}.raw");
    let image = File {
        role: FileRole::Image,
        path: path.clone(),
        place: place.to_owned(),
        sha256: Some(sha256.clone()),
        size,
    };
    Made {
        spec: OsSpec {
            name: format!("Edge {version}"),
            kind: OsKind::Immutable,
            profile_name: "edge".to_owned(),
            image_url: path,
            sha256,
            ..spec
        },
        inside: Inside {
            registry: NAME.to_owned(),
            repository: "os-profile/edge".to_owned(),
            revision: version.to_owned(),
            artifact: [1; 32],
            platform_bundle: String::new(),
            signature: None,
            files: vec![image],
            packages: None,
            existing_cves: None,
            fixed_cves: None,
            refreshed_at: chrono::DateTime::UNIX_EPOCH,
        },
    }
}

/// Sends a request. The body of the answer is yet to be read.
async fn ask(
    router: &Router,
    method: Method,
    path: &str,
    token: Option<&str>,
    headers: &[(HeaderName, &str)],
) -> Response {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let answer = router.clone().oneshot(request).await;
    answer.expect("an answer")
}

/// An answer that was read.
#[derive(Debug)]
struct Said {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Vec<u8>,
}

async fn said(answer: Response) -> Said {
    let (head, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    Said {
        status: head.status,
        headers: head.headers,
        body: body.to_vec(),
    }
}

impl Said {
    fn header(&self, name: HeaderName) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str());
        value.transpose().expect("a text").unwrap_or_default()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether it says that it may be better later.
    fn is_for_later(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && !self.header(RETRY_AFTER).is_empty()
    }
}

/// The file of a part in the cache.
fn part_of(site: &Site, content: &[u8]) -> PathBuf {
    let name = Digest::of(content).hex();
    site.settings.dir.join("partial").join(name)
}
