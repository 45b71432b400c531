//! The files of operating systems, for nodes: a site needs one way out.
//!
//! A file is asked for by its digest (`/files/sha256/<digest>`, with any name behind it) or by the path of its address in
//! the profile. Only what a profile of the caller's project names may be had. Where a file comes from is of no account:
//! it is kept once under its digest, and nobody sees a byte of it before all of it has that digest. So whoever knows a
//! digest and may name it in a profile may have the file.
//!
//! | file | what it answers |
//! | --- | --- |
//! | `settings` | what can be said |
//! | `callers` | who asks, and of which projects it gets files |
//! | `offers` | which files may be had, and where they lie |
//! | `flights`, `part`, `upstream` | how a file comes: once, however many ask, and carried on after a break |
//! | `cache` | where it is kept |
//! | `prefetch` | which come before anybody asks |
//! | `range`, `transfers`, `answer` | which part is asked for, by how many at once, and what is said |

mod answer;
mod cache;
mod callers;
mod flights;
mod offers;
mod part;
mod prefetch;
mod range;
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
use evenkeel_kit::{Clock, Lifecycle};
use evenkeel_registry::Digest;
use evenkeel_store::Store;

use crate::Sources;
use answer::No;
use cache::{Bounds, Cache, Open, blocking};
use callers::Refused;
use flights::Flights;
use offers::{Found, Name, Offers, Wanted, plain};
use part::Trouble;
use prefetch::Prefetcher;
pub use settings::{Admission, FileSettings, Prefetch};
use transfers::Transfers;

/// What stands before a digest in the address of a file.
const BY_DIGEST: &str = "files/sha256/";

/// Serves the files of operating systems to nodes. Clones are the same.
#[derive(Clone, Debug)]
pub struct Files(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    store: Store,
    authority: Arc<Authority>,
    clock: Arc<dyn Clock>,
    settings: FileSettings,
    offers: Offers,
    cache: Cache,
    flights: Flights,
    transfers: Transfers,
}

impl Files {
    /// Takes the folder of files for this process.
    ///
    /// # Errors
    /// The folder cannot be made or read, or another process has it.
    pub fn open(
        store: Store,
        authority: Arc<Authority>,
        clock: Arc<dyn Clock>,
        settings: FileSettings,
        sources: Arc<Sources>,
    ) -> io::Result<Self> {
        let bounds = Bounds {
            most: settings.max_bytes,
            keep_free: settings.keep_free,
        };
        let cache = Cache::open(&settings.dir, bounds)?;
        let flights = Flights::new(
            cache.clone(),
            sources,
            Arc::clone(&clock),
            settings.pause,
            settings.rest,
        );
        Ok(Self(Arc::new(Inside {
            offers: Offers::new(store.clone(), Arc::clone(&clock)),
            transfers: Transfers::new(settings.transfers, settings.transfers_per_node),
            store,
            authority,
            clock,
            settings,
            cache,
            flights,
        })))
    }

    /// Answers requests for files.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.clone())
    }

    /// Fetches what nodes will ask for, if that is wanted, until the process stops.
    pub fn start_loops(&self, life: &Lifecycle) {
        if self.0.settings.prefetch == Prefetch::Off {
            return;
        }
        let (prefetcher, stopping) = (self.prefetcher(), life.stopping());
        life.spawn("files for nodes", async move {
            prefetcher.run(stopping).await;
            Ok(())
        });
    }

    /// Fetches once what nodes will ask for. Says how many of these files are there now.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn prefetch(&self) -> Result<usize, evenkeel_store::StoreError> {
        self.prefetcher().pass().await
    }

    fn prefetcher(&self) -> Prefetcher {
        Prefetcher {
            store: self.0.store.clone(),
            flights: self.0.flights.clone(),
        }
    }

    async fn answer(&self, request: &Parts) -> Result<Response, No> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Err(No::OnlyReading);
        }
        let now = self.0.clock.now();
        let admission = self.0.settings.admission;
        let asker = callers::asker(admission, &self.0.authority, &self.0.store, request, now).await;
        let asker = asker.map_err(No::Refused)?;
        let name = name_in(request.uri.path()).ok_or(No::NotThere)?;
        // One asks the database at a time; while that is slow the others do not wait for ever.
        let found = self.0.offers.find(&name, &asker.sees);
        let found = tokio::time::timeout(self.0.settings.look, found).await;
        let found = found.map_err(|_| No::Unknown)?;
        let wanted = match found.map_err(|error| No::Refused(Refused::Store(error)))? {
            Found::One(wanted) => wanted,
            Found::Several => return Err(No::Ambiguous),
            Found::Nothing => return Err(No::NotThere),
        };
        if let Some(known) = answer::known(&request.headers, &wanted.digest) {
            return Ok(known);
        }
        let transfer = self.0.transfers.take(asker.holder);
        let transfer = transfer.map_err(No::Room)?;
        let open = self.there(&wanted).await?;
        answer::file(request, &wanted.digest, open, transfer).await
    }

    /// The file, once it is there; waits for it as long as may be.
    async fn there(&self, wanted: &Arc<Wanted>) -> Result<Open, No> {
        if let Some(open) = self.read(wanted.digest).await? {
            return Ok(open);
        }
        let mut flight = self.0.flights.join(wanted, &Arc::new(HashSet::new()));
        let landed = flight.wait_for(Option::is_some);
        let landed = tokio::time::timeout(self.0.settings.wait, landed).await;
        let landed = landed.map_err(|_| No::NotYet)?;
        // A flight that ends without a word is one that failed in a way that nobody thought of.
        let landed = landed.ok().and_then(|landed| landed.clone());
        landed.ok_or(No::NotYet)?.map_err(No::Trouble)?;
        // It may have made room for others already.
        let open = self.read(wanted.digest).await?;
        open.ok_or(No::Trouble(Trouble::NoRoom))
    }

    async fn read(&self, digest: Digest) -> Result<Option<Open>, No> {
        let (cache, now) = (self.0.cache.clone(), self.0.clock.now());
        let open = blocking(move || cache.read(&digest, now)).await;
        let open = open.and_then(|open| open);
        open.map_err(|error| No::Trouble(Trouble::disk(&error)))
    }
}

async fn answer(State(files): State<Files>, request: Request) -> Response {
    let (request, _) = request.into_parts();
    match files.answer(&request).await {
        Ok(answer) => answer,
        Err(no) => no.answer(),
    }
}

/// What is asked for; none if no file can be called so.
fn name_in(path: &str) -> Option<Name> {
    let path = plain(path);
    let Some(rest) = path.strip_prefix(BY_DIGEST) else {
        return (!path.is_empty()).then_some(Name::Path(path));
    };
    let digits = rest.split('/').next().unwrap_or_default();
    Digest::from_hex(digits).ok().map(Name::Digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_by_its_digest_or_by_its_path() {
        let digest = Digest::of(b"edge");
        for path in [
            format!("/files/sha256/{}", digest.hex()),
            format!("/files/sha256/{}/edge.raw.gz", digest.hex()),
        ] {
            assert_eq!(name_in(&path), Some(Name::Digest(digest)), "{path}");
        }
        let by_path = Name::Path("files-edge-orch/repository/edge.raw.gz".to_owned());
        assert_eq!(
            name_in("/files-edge-orch/repository/edge.raw.gz"),
            Some(by_path)
        );
        for path in ["", "/", "/files/sha256/", "/files/sha256/ab", "/.."] {
            assert_eq!(name_in(path), None, "{path}");
        }
    }
}
