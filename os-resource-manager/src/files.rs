//! Serves the files of operating systems to nodes, so that a site needs only one connection to the outside.
//!
//! A file is requested by its digest (`/files/sha256/<digest>`, optionally followed by any name) or by the path of its
//! address in the profile. Only files that a profile of the caller's project names are served. The source of a file does
//! not matter: it is stored once under its digest, and no byte is served before the complete file has that digest. So a
//! caller that knows a digest and may name it in a profile can get the file.
//!
//! | file | what it does |
//! | --- | --- |
//! | `settings` | settings of the service |
//! | `access` | authenticates callers and finds their projects |
//! | `offers` | which files can be served, and their sources |
//! | `downloads`, `partial_download`, `upstream` | downloads a file once for all requests, and resumes it |
//! | `cache` | stores the files |
//! | `prefetch` | downloads files before they are requested |
//! | `range`, `transfers`, `response` | the requested range, the number of transfers, and the response |

mod access;
mod cache;
mod downloads;
mod offers;
mod partial_download;
mod prefetch;
mod range;
mod response;
mod settings;
mod transfers;
mod upstream;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::response::Response;
use evenkeel_auth::Authority;
use evenkeel_fetch::run_blocking;
use evenkeel_kit::{Clock, Lifecycle};
use evenkeel_registry::Digest;
use evenkeel_store::Store;

use crate::Sources;
use access::AccessError;
use cache::{CacheLimits, FileCache, OpenFile};
use downloads::Downloads;
use offers::{FileName, OfferLookup, OfferedFile, Offers, normalize_path};
use partial_download::DownloadError;
use prefetch::Prefetcher;
use response::FileError;
pub use settings::{Admission, FileSettings, Prefetch};
use transfers::TransferLimiter;

/// Path prefix of a file that is requested by its digest.
const DIGEST_PATH_PREFIX: &str = "files/sha256/";

/// Serves the files of operating systems to nodes. Clones share the same state.
#[derive(Clone, Debug)]
pub struct FileServer(Arc<FileServerInner>);

#[derive(Debug)]
struct FileServerInner {
    store: Store,
    authority: Arc<Authority>,
    clock: Arc<dyn Clock>,
    settings: FileSettings,
    offers: Offers,
    cache: FileCache,
    downloads: Downloads,
    limiter: TransferLimiter,
}

impl FileServer {
    /// Opens the folder of files and locks it for this process.
    ///
    /// # Errors
    /// The folder cannot be created or read, or another process uses it.
    pub fn open(
        store: Store,
        authority: Arc<Authority>,
        clock: Arc<dyn Clock>,
        settings: FileSettings,
        sources: Arc<Sources>,
    ) -> io::Result<Self> {
        let limits =
            CacheLimits { max_bytes: settings.max_bytes, min_free_bytes: settings.min_free_bytes };
        let cache = FileCache::open(&settings.dir, limits)?;
        let downloads = Downloads::new(
            cache.clone(),
            sources,
            Arc::clone(&clock),
            settings.bad_file_retry_interval,
        );
        Ok(Self(Arc::new(FileServerInner {
            offers: Offers::new(store.clone(), Arc::clone(&clock)),
            limiter: TransferLimiter::new(settings.max_transfers, settings.max_transfers_per_node),
            store,
            authority,
            clock,
            settings,
            cache,
            downloads,
        })))
    }

    /// The HTTP routes.
    pub fn router(&self) -> Router {
        Router::new().fallback(handle_request).with_state(self.clone())
    }

    /// Prefetches files until the process stops, if the settings want that.
    pub fn start_loops(&self, life: &Lifecycle) {
        if self.0.settings.prefetch == Prefetch::Off {
            return;
        }
        let (prefetcher, stopping) = (self.prefetcher(), life.stopping());
        life.spawn("file prefetch", async move {
            prefetcher.run(stopping).await;
            Ok(())
        });
    }

    /// Runs one prefetch pass. Returns how many of the files to prefetch are in the cache now.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn prefetch(&self) -> Result<usize, evenkeel_store::StoreError> {
        self.prefetcher().run_pass().await
    }

    fn prefetcher(&self) -> Prefetcher {
        Prefetcher { store: self.0.store.clone(), downloads: self.0.downloads.clone() }
    }

    async fn respond(&self, request: &Parts) -> Result<Response, FileError> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Err(FileError::MethodNotAllowed);
        }
        let now = self.0.clock.now();
        let settings = &self.0.settings;
        let caller =
            access::authenticate(settings, &self.0.authority, &self.0.store, request, now).await;
        let caller = caller.map_err(FileError::Refused)?;
        let name = parse_file_name(request.uri.path()).ok_or(FileError::NotFound)?;
        // One request at a time queries the database. If that is slow, the others stop waiting after `lookup_timeout`.
        let lookup = self.0.offers.find(&name, &caller.visible);
        let lookup = tokio::time::timeout(self.0.settings.lookup_timeout, lookup).await;
        let lookup = lookup.map_err(|_| FileError::LookupTimeout)?;
        let file = match lookup.map_err(|error| FileError::Refused(AccessError::Store(error)))? {
            OfferLookup::File(file) => file,
            OfferLookup::Ambiguous => return Err(FileError::Ambiguous),
            OfferLookup::NotFound => return Err(FileError::NotFound),
        };
        if let Some(response) = response::not_modified(&request.headers, &file.digest) {
            return Ok(response);
        }
        let transfer = self.0.limiter.acquire(caller);
        let transfer = transfer.map_err(FileError::TooManyTransfers)?;
        let open = self.wait_for_file(&file).await?;
        response::file_response(request, &file.digest, open, transfer).await
    }

    /// Opens the file; waits for its download up to `wait_timeout`.
    async fn wait_for_file(&self, file: &Arc<OfferedFile>) -> Result<OpenFile, FileError> {
        if let Some(open) = self.open_cached(file.digest).await? {
            return Ok(open);
        }
        let mut download = self.0.downloads.join(file, &Arc::new(HashSet::new()));
        let result = download.wait_for(Option::is_some);
        let result = tokio::time::timeout(self.0.settings.wait_timeout, result).await;
        let result = result.map_err(|_| FileError::Pending)?;
        // A download that ends without a result has panicked.
        let result = result.ok().and_then(|result| result.clone());
        result.ok_or(FileError::Pending)?.map_err(FileError::Download)?;
        // The file may already have been evicted.
        let open = self.open_cached(file.digest).await?;
        open.ok_or(FileError::Download(DownloadError::NoSpace))
    }

    async fn open_cached(&self, digest: Digest) -> Result<Option<OpenFile>, FileError> {
        let (cache, now) = (self.0.cache.clone(), self.0.clock.now());
        let open = run_blocking(move || cache.open_file(&digest, now)).await;
        open.map_err(|error| FileError::Download(error.into()))
    }
}

async fn handle_request(State(files): State<FileServer>, request: Request) -> Response {
    let (request, _) = request.into_parts();
    match files.respond(&request).await {
        Ok(response) => response,
        Err(error) => error.to_response(),
    }
}

/// The requested file; `None` if no file can have such a name.
fn parse_file_name(path: &str) -> Option<FileName> {
    let path = normalize_path(path);
    let Some(rest) = path.strip_prefix(DIGEST_PATH_PREFIX) else {
        return (!path.is_empty()).then_some(FileName::Path(path));
    };
    let digits = rest.split('/').next().unwrap_or_default();
    Digest::from_hex(digits).ok().map(FileName::Digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_its_digest_or_by_its_path() {
        let digest = Digest::compute(b"edge");
        for path in [
            format!("/files/sha256/{}", digest.hex()),
            format!("/files/sha256/{}/edge.raw.gz", digest.hex()),
        ] {
            assert_eq!(parse_file_name(&path), Some(FileName::Digest(digest)), "{path}");
        }
        let by_path = FileName::Path("files-edge-orch/repository/edge.raw.gz".to_owned());
        assert_eq!(parse_file_name("/files-edge-orch/repository/edge.raw.gz"), Some(by_path));
        for path in ["", "/", "/files/sha256/", "/files/sha256/ab", "/.."] {
            assert_eq!(parse_file_name(path), None, "{path}");
        }
    }
}
