//! How nodes get the files of operating systems.

mod downloading;
mod eviction;
mod serving;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, RETRY_AFTER};
use axum::http::{HeaderName, Method, Request, StatusCode};
use axum::response::Response;
use chrono::TimeDelta;
use evenkeel_auth::{KeyFingerprint, NODE_CERTIFICATE_LIFETIME, NodeCertificate, Role};
use evenkeel_domain::id::{HostId, OsId};
use evenkeel_domain::os::catalogue::{CatalogFile, FileRole};
use evenkeel_domain::os::{OsKind, OsRelease, OsSpec, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_os_resource_manager::{Admission, FileServer, FileSettings, Prefetch, Sources};
use evenkeel_registry::testing::TestRegistry;
use evenkeel_registry::{Blob, Digest};
use evenkeel_store::os_details::{self, ImportOutcome, ImportedOs, OsDetails};
use evenkeel_store::testing::fill;
use tempfile::TempDir;
use tower::ServiceExt as _;

use crate::test_server::{REGISTRY_NAME, TestServer};

/// The repository with the files of the test profile.
const FILES_REPOSITORY: &str = "os-profile/edge/files";

/// Longer than one read or write.
const CONTENT_BYTES: usize = 300_000;

/// A test server with nodes, and the settings of a file service.
struct FileFixture {
    server: TestServer,
    settings: FileSettings,
    nodes: Vec<HostId>,
    _folder: TempDir,
}

/// A content without repetitions.
fn content(seed: usize) -> Vec<u8> {
    (0..CONTENT_BYTES)
        .map(|n| u8::try_from((n * n / 7 + n * seed + seed) % 251).expect("a byte"))
        .collect()
}

fn digest_path(content: &[u8]) -> String {
    format!("/files/sha256/{}", Digest::compute(content).hex())
}

impl FileFixture {
    async fn new() -> Self {
        Self::with_server(TestServer::with_registry(TestRegistry::start(), |_| {}).await).await
    }

    async fn with_server(server: TestServer) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let size = fill::ProjectSize { hosts: 3, sites: 1 };
        let filled = fill::seed_nodes(&server.store, server.tenant, size, server.clock.now()).await;
        Self {
            settings: FileSettings {
                dir: folder.path().join("files"),
                bearer_credentials: true,
                min_free_bytes: 0,
                max_bytes: 10 * CONTENT_BYTES as u64,
                prefetch: Prefetch::Off,
                max_transfers_per_node: 0,
                wait_timeout: Duration::from_mins(1),
                ..FileSettings::default()
            },
            nodes: filled.expect("nodes").hosts,
            server,
            _folder: folder,
        }
    }

    /// Starts the file service.
    fn open(&self) -> FileServer {
        let sources = Sources::open(&self.server.settings.registries);
        FileServer::open(
            self.server.store.clone(),
            Arc::clone(&self.server.authority),
            self.server.shared_clock(),
            self.settings.clone(),
            Arc::new(sources),
        )
        .expect("a folder of files")
    }

    /// Puts a content into the registry, and names it in a profile of a project.
    async fn offer_blob(&self, tenant: TenantId, version: &str, content: &[u8]) -> OsId {
        let blob = self.server.registry.put_blob(FILES_REPOSITORY, content.to_vec());
        self.offer_image(
            tenant,
            version,
            &Digest::compute(content),
            (&blob_location(&blob), Some(blob.size)),
        )
        .await
    }

    /// Names an image in a profile of a project.
    async fn offer_image(
        &self,
        tenant: TenantId,
        version: &str,
        digest: &Digest,
        (location, size): (&str, Option<u64>),
    ) -> OsId {
        let imported = imported_os(version, digest, location, size);
        let tx = self.server.store.tenant(tenant).await.expect("a transaction");
        let outcome = os_details::import(&tx, &imported, self.server.clock.now()).await;
        tx.commit().await.expect("committed");
        // Lets the snapshot of the offered files expire.
        self.server.clock.advance(TimeDelta::seconds(2));
        match outcome.expect("imported") {
            ImportOutcome::Created { os, .. }
            | ImportOutcome::Updated(os)
            | ImportOutcome::Unchanged(os) => os,
            ImportOutcome::OtherImage(os) => panic!("{os} has another image"),
        }
    }

    /// The credential of a node.
    fn node_token(&self, which: usize) -> String {
        let (project, host) = (self.server.tenant.uuid(), self.nodes[which].to_string());
        let (hour, now) = (TimeDelta::hours(1), self.server.clock.now());
        let key = KeyFingerprint::from_public_key(&fill::PUBLIC_KEY);
        let issued = self.server.authority.issue_credential((project, &host), &key, hour, now);
        issued.expect("a credential").token.reveal().to_owned()
    }

    /// The client certificate of a node.
    fn node_certificate(&self, which: usize) -> NodeCertificate {
        let now = self.server.clock.now();
        NodeCertificate {
            project: self.server.tenant.uuid(),
            host: self.nodes[which].to_string(),
            key: KeyFingerprint::from_public_key(&fill::PUBLIC_KEY),
            issued_at: now,
            expires_at: now + NODE_CERTIFICATE_LIFETIME,
        }
    }

    /// Requests a path as the first node.
    async fn get(
        &self,
        files: &FileServer,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> FileResponse {
        let token = self.node_token(0);
        read_response(send_request(&files.router(), Method::GET, path, Some(&token), headers).await)
            .await
    }

    /// The files in a folder of the cache, with their lengths.
    fn cached_files(&self, folder: &str) -> Vec<(String, u64)> {
        let mut files = Vec::new();
        let mut folders = vec![self.settings.dir.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let length = path.metadata().expect("a file").len();
                files.push((file_name(&path), length));
            }
        }
        files.sort();
        files
    }
}

fn file_name(path: &std::path::Path) -> String {
    let name = path.file_name().expect("a name");
    name.to_string_lossy().into_owned()
}

/// The location of a blob in the registry, in its stored form.
fn blob_location(blob: &Blob) -> String {
    format!("blob:{FILES_REPOSITORY}@{}", blob.digest)
}

/// An OS profile whose image has this digest and location.
fn imported_os(version: &str, digest: &Digest, location: &str, size: Option<u64>) -> ImportedOs {
    let release =
        OsRelease { id: "edge".to_owned(), version_id: version.to_owned(), ..OsRelease::default() };
    let spec = OsSpec::from_release(&release, "amd64").expect("an operating system");
    let sha256 = Sha256::parse("sha256", &digest.hex()).expect("a digest");
    let path = format!("images/edge-{version}.raw");
    let image = CatalogFile {
        role: FileRole::Image,
        path: path.clone(),
        source: location.to_owned(),
        sha256: Some(sha256.clone()),
        size,
    };
    ImportedOs {
        spec: OsSpec {
            name: format!("Edge {version}"),
            kind: OsKind::Immutable,
            profile_name: "edge".to_owned(),
            image_url: path,
            sha256,
            ..spec
        },
        details: OsDetails {
            registry: REGISTRY_NAME.to_owned(),
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

/// Sends a request. The body of the response is not read yet.
async fn send_request(
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
    let response = router.clone().oneshot(request).await;
    response.expect("an answer")
}

/// A response with its body.
#[derive(Debug)]
struct FileResponse {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: Vec<u8>,
}

async fn read_response(response: Response) -> FileResponse {
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    FileResponse { status: head.status, headers: head.headers, body: body.to_vec() }
}

impl FileResponse {
    fn header(&self, name: HeaderName) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str());
        value.transpose().expect("a text").unwrap_or_default()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the client is asked to try again later.
    fn is_retryable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && !self.header(RETRY_AFTER).is_empty()
    }
}

/// Path of a part in the cache.
fn part_path(fixture: &FileFixture, content: &[u8]) -> PathBuf {
    let name = Digest::compute(content).hex();
    fixture.settings.dir.join("partial").join(name)
}
