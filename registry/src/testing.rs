//! A registry in memory, for tests. It records its requests and fails as a test demands.

mod faults;
mod handlers;
mod tokens;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use evenkeel_fetch::Digest;
use tokio::sync::oneshot;

use crate::address::{Access, Address, Credentials, Proxy};
use crate::limits::Limits;
use crate::source::{Blob, Layer, Manifest};

pub use faults::{Fault, FaultKind};
pub use tokens::AccessRule;

/// Artifact type of EIM's profiles.
pub const PROFILE_ARTIFACT_TYPE: &str = "application/vnd.intel.orch.en";

/// Media type of the layers of EIM's profiles, although they are plain text.
pub const PROFILE_LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// Behaviour of a test registry without faults.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Who has access.
    pub access: AccessRule,
    /// Maximum number of tags per page.
    pub page_size: usize,
    /// Whether pages have a link to the next one.
    pub sends_links: bool,
    /// Scheme and host in the links; empty for links without them.
    pub link_origin: String,
    /// Whether the parameters `n` and `last` of tag lists are supported.
    pub supports_paging: bool,
    /// Whether range requests are supported.
    pub supports_ranges: bool,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            access: AccessRule::Open,
            page_size: 1_000,
            sends_links: true,
            link_origin: String::new(),
            supports_paging: true,
            supports_ranges: true,
        }
    }
}

/// A registry in memory, for tests. It stops when it is dropped.
#[derive(Debug)]
pub struct TestRegistry {
    address: SocketAddr,
    state: Arc<TestRegistryState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// State of a test registry.
#[derive(Debug)]
struct TestRegistryState {
    address: SocketAddr,
    options: RegistryOptions,
    data: Mutex<TestRegistryData>,
}

#[derive(Debug, Default)]
struct TestRegistryData {
    repositories: BTreeMap<String, StoredRepository>,
    /// Files by their paths.
    files: BTreeMap<String, Bytes>,
    faults: Vec<Fault>,
    requests: Vec<String>,
    /// Scope of each issued token.
    tokens: Vec<String>,
    uploads: u64,
    /// Link header of all tag lists, instead of the right one.
    link_header: Option<String>,
    /// Number of requests with credentials.
    with_credentials: usize,
}

/// Content of a repository.
#[derive(Debug, Default)]
struct StoredRepository {
    blobs: BTreeMap<Digest, Bytes>,
    /// Manifests with their media types.
    manifests: BTreeMap<Digest, (Bytes, String)>,
    tags: BTreeMap<String, Digest>,
}

impl TestRegistryState {
    fn lock(&self) -> MutexGuard<'_, TestRegistryData> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TestRegistry {
    /// Starts a registry with anonymous access.
    pub fn start() -> Self {
        Self::with_options(RegistryOptions::default())
    }

    /// Starts a registry with these options.
    pub fn with_options(options: RegistryOptions) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let at = listener.local_addr().expect("a bound socket");
        let state = Arc::new(TestRegistryState { address: at, options, data: Mutex::default() });
        let router = Router::new().fallback(handlers::handle).with_state(Arc::clone(&state));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || serve(listener, router, stopped));
        Self { address: at, state, stop: Some(stop), thread: Some(thread) }
    }

    /// Host and port of the registry.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Anonymous access to the registry, with short timeouts.
    pub fn access(&self) -> Access {
        self.access_with(Credentials::None)
    }

    /// Access to the registry with credentials and short timeouts.
    pub fn access_with(&self, credentials: Credentials) -> Access {
        let address = format!("http://{}/", self.address);
        Access {
            address: address.parse::<Address>().expect("an address"),
            plain_http: true,
            credentials,
            ca_pem: None,
            proxy: Proxy::None,
            limits: short_limits(),
        }
    }

    /// URL of a file.
    pub fn file_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Stores a file at a path that starts with `/`.
    pub fn put_file(&self, path: &str, content: impl Into<Bytes>) {
        self.lock().files.insert(path.to_owned(), content.into());
    }

    /// Stores a blob.
    pub fn put_blob(&self, repository: &str, content: impl Into<Bytes>) -> Blob {
        let content = content.into();
        let blob = Blob::new(&content);
        self.put_blob_as(repository, &blob.digest, content);
        blob
    }

    /// Stores content under the digest of other content.
    pub fn put_blob_as(&self, repository: &str, digest: &Digest, content: impl Into<Bytes>) {
        let mut data = self.lock();
        let stored = data.repositories.entry(repository.to_owned()).or_default();
        stored.blobs.insert(*digest, content.into());
    }

    /// Stores a manifest and sets a tag.
    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: &Manifest) {
        self.put_raw_manifest(repository, tag, manifest.bytes.clone(), &manifest.media_type);
    }

    /// Stores any text as a manifest and sets a tag.
    pub fn put_raw_manifest(
        &self,
        repository: &str,
        tag: &str,
        text: impl Into<Bytes>,
        media_type: &str,
    ) -> Digest {
        let text = text.into();
        let digest = Digest::compute(&text);
        let mut data = self.lock();
        let stored = data.repositories.entry(repository.to_owned()).or_default();
        stored.manifests.insert(digest, (text, media_type.to_owned()));
        stored.tags.insert(tag.to_owned(), digest);
        digest
    }

    /// Stores a profile as EIM publishes it: one layer with the name of its file.
    pub fn put_profile(&self, repository: &str, tag: &str, file: &str, yaml: &str) -> Manifest {
        let blob = self.put_blob(repository, yaml.to_owned());
        let layer = Layer::file(blob, PROFILE_LAYER_TYPE, file);
        let manifest = Manifest::artifact(PROFILE_ARTIFACT_TYPE, vec![layer]);
        self.put_blob(repository, crate::source::EMPTY_CONFIG);
        self.put_manifest(repository, tag, &manifest);
        manifest
    }

    /// Removes a tag.
    pub fn remove_tag(&self, repository: &str, tag: &str) {
        if let Some(stored) = self.lock().repositories.get_mut(repository) {
            stored.tags.remove(tag);
        }
    }

    /// Adds a fault.
    pub fn add_fault(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Sets the link header of all tag lists.
    pub fn set_link_header(&self, link: &str) {
        self.lock().link_header = Some(link.to_owned());
    }

    /// Invalidates all tokens.
    pub fn revoke_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// Method and path of each request so far.
    pub fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// Number of requests whose method and path start with `beginning`.
    pub fn count_requests(&self, beginning: &str) -> usize {
        let data = self.lock();
        let requests = data.requests.iter();
        requests.filter(|one| one.starts_with(beginning)).count()
    }

    /// Number of requests with credentials.
    pub fn with_credentials(&self) -> usize {
        self.lock().with_credentials
    }

    /// Clears the recorded requests.
    pub fn forget_requests(&self) {
        self.lock().requests.clear();
    }

    fn lock(&self) -> MutexGuard<'_, TestRegistryData> {
        self.state.lock()
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that the thread has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Default limits with short timeouts, so hanging requests fail soon.
pub fn short_limits() -> Limits {
    Limits {
        connect_timeout: Duration::from_millis(500),
        stall_timeout: Duration::from_millis(300),
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        ..Limits::default()
    }
}

/// Serves until it is stopped. Requests that hang on purpose are aborted then.
fn serve(listener: TcpListener, router: Router, stopped: oneshot::Receiver<()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
        tokio::select! {
            served = axum::serve(listener, router).into_future() => {
                served.expect("serving does not fail");
            }
            // An error means that the registry was dropped.
            _ = stopped => {}
        }
    });
}
