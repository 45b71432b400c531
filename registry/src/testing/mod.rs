//! A small registry in memory, for tests. It counts what it is asked, and fails where and how a test wants it to.

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
use tokio::sync::oneshot;

use crate::address::{Access, Address, Credentials, Proxy};
use crate::digest::Digest;
use crate::limits::Limits;
use crate::source::{Blob, Layer, Manifest};

pub use faults::{Fault, Way};
pub use tokens::Entry;

/// The kind of the ancestor's artefacts.
pub const PROFILE_KIND: &str = "application/vnd.intel.orch.en";

/// The form of the ancestor's layers, although they are bare texts.
pub const PROFILE_FORM: &str = "application/vnd.oci.image.layer.v1.tar";

/// How a small registry behaves when nothing goes wrong.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Whom it lets in.
    pub entry: Entry,
    /// The most tags on a page.
    pub page: usize,
    /// Whether it says where the next page is.
    pub links: bool,
    /// Whether it takes notice of how many tags are asked for, and behind which.
    pub knows_paging: bool,
    /// Whether it takes notice of ranges.
    pub ranges: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            entry: Entry::Open,
            page: 1_000,
            links: true,
            knows_paging: true,
            ranges: true,
        }
    }
}

/// A small registry in memory. It ends when it is dropped.
#[derive(Debug)]
pub struct SmallRegistry {
    at: SocketAddr,
    held: Arc<Held>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a small registry has.
#[derive(Debug)]
struct Held {
    at: SocketAddr,
    manners: Manners,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    repositories: BTreeMap<String, Kept>,
    /// Files by their path.
    files: BTreeMap<String, Bytes>,
    faults: Vec<Fault>,
    requests: Vec<String>,
    /// What each token gives the right to.
    tokens: Vec<String>,
    uploads: u64,
    /// What every page of tags says of the next one, whatever is true.
    link: Option<String>,
    /// How many requests came with credentials.
    with_credentials: usize,
}

/// What a repository has.
#[derive(Debug, Default)]
struct Kept {
    blobs: BTreeMap<Digest, Bytes>,
    /// Manifests with their forms.
    manifests: BTreeMap<Digest, (Bytes, String)>,
    tags: BTreeMap<String, Digest>,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SmallRegistry {
    /// Starts one that is open to all.
    pub fn start() -> Self {
        Self::with(Manners::default())
    }

    /// Starts one.
    pub fn with(manners: Manners) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let at = listener.local_addr().expect("a bound socket");
        let held = Arc::new(Held {
            at,
            manners,
            inside: Mutex::default(),
        });
        let router = Router::new()
            .fallback(handlers::answer)
            .with_state(Arc::clone(&held));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || serve(listener, router, stopped));
        Self {
            at,
            held,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Its host and its port.
    pub fn host(&self) -> String {
        self.at.to_string()
    }

    /// The way into it as nobody, with short patience.
    pub fn access(&self) -> Access {
        self.access_as(Credentials::None)
    }

    /// The way into it as somebody, with short patience.
    pub fn access_as(&self, credentials: Credentials) -> Access {
        let address = format!("http://{}/", self.at);
        Access {
            address: address.parse::<Address>().expect("an address"),
            plain_http: true,
            credentials,
            ca_pem: None,
            proxy: Proxy::None,
            limits: hasty(),
        }
    }

    /// The address of a file that it has.
    pub fn file_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.at)
    }

    /// Puts a file in, at a path that begins with `/`.
    pub fn put_file(&self, path: &str, content: impl Into<Bytes>) {
        self.lock().files.insert(path.to_owned(), content.into());
    }

    /// Puts a blob in.
    pub fn put_blob(&self, repository: &str, content: impl Into<Bytes>) -> Blob {
        let content = content.into();
        let blob = Blob::of(&content);
        self.put_as(repository, &blob.digest, content);
        blob
    }

    /// Puts a content in under the digest of another.
    pub fn put_as(&self, repository: &str, digest: &Digest, content: impl Into<Bytes>) {
        let mut inside = self.lock();
        let kept = inside
            .repositories
            .entry(repository.to_owned())
            .or_default();
        kept.blobs.insert(*digest, content.into());
    }

    /// Puts a manifest in and gives it a tag.
    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: &Manifest) {
        self.put_text(
            repository,
            tag,
            manifest.bytes.clone(),
            &manifest.media_type,
        );
    }

    /// Puts any text in as a manifest and gives it a tag.
    pub fn put_text(
        &self,
        repository: &str,
        tag: &str,
        text: impl Into<Bytes>,
        form: &str,
    ) -> Digest {
        let text = text.into();
        let digest = Digest::of(&text);
        let mut inside = self.lock();
        let kept = inside
            .repositories
            .entry(repository.to_owned())
            .or_default();
        kept.manifests.insert(digest, (text, form.to_owned()));
        kept.tags.insert(tag.to_owned(), digest);
        digest
    }

    /// Publishes a text as the ancestor publishes a profile: one layer with the name of its file.
    pub fn put_profile(&self, repository: &str, tag: &str, file: &str, yaml: &str) -> Manifest {
        let blob = self.put_blob(repository, yaml.to_owned());
        let layer = Layer::file(blob, PROFILE_FORM, file);
        let manifest = Manifest::artifact(PROFILE_KIND, vec![layer]);
        self.put_blob(repository, crate::source::EMPTY_CONFIG);
        self.put_manifest(repository, tag, &manifest);
        manifest
    }

    /// Takes a tag away.
    pub fn remove_tag(&self, repository: &str, tag: &str) {
        if let Some(kept) = self.lock().repositories.get_mut(repository) {
            kept.tags.remove(tag);
        }
    }

    /// Lets something go wrong.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Nothing goes wrong any more.
    pub fn mend(&self) {
        self.lock().faults.clear();
    }

    /// Lets every page of tags say this of the next one.
    pub fn link_tags(&self, link: &str) {
        self.lock().link = Some(link.to_owned());
    }

    /// No token is good any more.
    pub fn revoke_tokens(&self) {
        self.lock().tokens.clear();
    }

    /// All that it was asked: the method and the path of each request.
    pub fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// How often it was asked something that begins so.
    pub fn count(&self, beginning: &str) -> usize {
        let inside = self.lock();
        let requests = inside.requests.iter();
        requests.filter(|one| one.starts_with(beginning)).count()
    }

    /// How many requests came with credentials.
    pub fn with_credentials(&self) -> usize {
        self.lock().with_credentials
    }

    /// Forgets what it was asked.
    pub fn forget_requests(&self) {
        self.lock().requests.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.held.lock()
    }
}

impl Drop for SmallRegistry {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that it has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The usual limits with short patience, so that what hangs is noticed soon.
pub fn hasty() -> Limits {
    Limits {
        connect: Duration::from_millis(500),
        stalled: Duration::from_millis(300),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        ..Limits::default()
    }
}

/// Serves until it is stopped. What hangs on purpose is let go then.
fn serve(listener: TcpListener, router: Router, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
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
