//! The documents beside profiles: lists of packages and of vulnerabilities, fetched once for all profiles that name
//! them, and kept as they are shown. What was good last stays when a later one is not, or cannot be had.

mod wanted;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_domain::os::catalogue::{CycleStep, File, SideKind};
use evenkeel_registry::copy::finding_of;
use evenkeel_registry::{
    Blob, Digest, Fetched, Finding, FindingKind, Got, Limits, RegistryError, cves, packages,
};
use evenkeel_store::contents;
use evenkeel_store::os_catalogue::{self, Side, SideKey};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use tokio::time::timeout;

use self::wanted::{Form, Wanted, cves_of, packages_of};
use crate::cycle::{Cycle, Stop};
use crate::fetch::{counted, is_of_the_whole, kept};
use crate::sources::{Place, Source};

/// How long one document may take in all: what drips must not hold up the others.
const WITHIN: Duration = Duration::from_mins(10);

/// The hosts beside the registry that do not answer, with what was found. They are not asked again in the same cycle.
type GivenUp = Mutex<HashMap<String, Finding>>;

/// What a document is now.
#[derive(Debug, PartialEq)]
enum Now {
    /// It cannot be another one than is kept.
    Kept,
    /// The one that is known, as its server says.
    Same,
    /// Another one, perhaps.
    New { bytes: Bytes, etag: Option<String> },
    /// It cannot be had.
    Missing(Finding),
}

/// What became of a document.
#[derive(Debug, Default)]
struct Shown {
    /// What is shown in its forms now.
    forms: Vec<(SideKey, contents::Digest)>,
    is_missing: bool,
}

impl Cycle<'_> {
    /// Fetches the documents among these files. Says how many could not be had, or not be used.
    ///
    /// # Errors
    /// The registry as a whole cannot be asked, the cycle is another's by now, or the database cannot be reached.
    pub(crate) async fn sides(&self, files: &[Vec<File>]) -> Result<u32, Stop> {
        let tx = self.engine.store.fleet().await?;
        let known = os_catalogue::sides(&tx, &self.claim.registry).await?;
        drop(tx);
        let known: HashMap<SideKey, Side> = known
            .into_iter()
            .map(|side| (side.key.clone(), side))
            .collect();
        let mut places: HashSet<(&str, SideKind)> = HashSet::new();
        places.extend(files.iter().flatten().filter_map(wanted::document));
        self.begin(CycleStep::Sides, places.len());
        let given_up = GivenUp::default();
        let lists = packages_of(files, &known);
        let (shown, missing) = self.documents(lists, &given_up).await?;
        let shown = shown.into_iter().map(|(key, digest)| (key.place, digest));
        let about = cves_of(files, &shown.collect(), &known);
        let (_, more) = self.documents(about, &given_up).await?;
        Ok(missing.saturating_add(more))
    }

    async fn documents(
        &self,
        all: Vec<Wanted>,
        given_up: &GivenUp,
    ) -> Result<(Vec<(SideKey, contents::Digest)>, u32), Stop> {
        stream::iter(all)
            .map(|wanted| self.document(wanted, given_up))
            .buffer_unordered(self.engine.settings.parallel)
            .try_fold((Vec::new(), 0), |(mut forms, missing), shown| async move {
                self.one_more();
                forms.extend(shown.forms);
                Ok((forms, missing + u32::from(shown.is_missing)))
            })
            .await
    }

    /// Fetches one document, and keeps it in all forms in which it is shown.
    async fn document(&self, wanted: Wanted, given_up: &GivenUp) -> Result<Shown, Stop> {
        let mut shown = Shown::default();
        let now = now(&self.source, &wanted, given_up).await?;
        for form in &wanted.forms {
            let (digest, finding) = match &now {
                Now::Kept => (form.digest(), None),
                Now::Same => (self.keep_same(form).await?, None),
                Now::Missing(finding) => (form.digest(), Some(finding.clone())),
                Now::New { etag, .. } if form.is_of(etag.as_deref()) => {
                    (self.keep_same(form).await?, None)
                }
                Now::New { bytes, etag } => {
                    match self.read(wanted.kind, form, bytes.clone()).await? {
                        Ok((body, remarks)) => {
                            let digest = *Digest::of(body.as_bytes()).bytes();
                            let side = Side {
                                key: form.key.clone(),
                                digest: Some(digest),
                                etag: etag.clone(),
                                findings: remarks.iter().map(kept).collect(),
                                fetched_at: self.engine.clock.now(),
                            };
                            self.keep_side(&side, Some(&body)).await?;
                            (Some(digest), None)
                        }
                        Err(finding) => (form.digest(), Some(finding)),
                    }
                }
            };
            if let Some(finding) = finding {
                shown.is_missing = true;
                let side = form.without(&finding, self.engine.clock.now());
                self.keep_side(&side, None).await?;
            }
            shown
                .forms
                .extend(digest.map(|digest| (form.key.clone(), digest)));
        }
        Ok(shown)
    }

    /// Notes that a form is as it was.
    async fn keep_same(&self, form: &Form) -> Result<Option<contents::Digest>, Stop> {
        let side = form.again(self.engine.clock.now());
        self.keep_side(&side, None).await?;
        Ok(form.digest())
    }

    /// Reads a document into one of its forms.
    async fn read(
        &self,
        kind: SideKind,
        form: &Form,
        bytes: Bytes,
    ) -> Result<Result<(String, Vec<Finding>), Finding>, Stop> {
        let list = match &form.packages {
            Some(key) => {
                let tx = self.engine.store.fleet().await?;
                os_catalogue::side_body(&tx, &self.claim.registry, key).await?
            }
            None => None,
        };
        let read = tokio::task::spawn_blocking(move || read(kind, &bytes, list.as_deref()));
        let broken = |error: tokio::task::JoinError| {
            Err(Finding::new(finding_kind(kind), error.to_string()))
        };
        Ok(read.await.unwrap_or_else(broken))
    }

    async fn keep_side(&self, side: &Side, body: Option<&str>) -> Result<(), Stop> {
        let tx = self.engine.store.fleet().await?;
        if !os_catalogue::keep_side(&tx, &self.claim, side, body).await? {
            return Err(Stop::Lost);
        }
        tx.commit().await?;
        Ok(())
    }
}

/// Asks for a document, if it may have changed.
///
/// # Errors
/// The registry as a whole cannot be asked.
async fn now(source: &Source, wanted: &Wanted, given_up: &GivenUp) -> Got<Now> {
    let Some(place) = Place::read(&wanted.place) else {
        let why = format!("nothing can be fetched from {:?}", wanted.place);
        return Ok(Now::Missing(Finding::new(FindingKind::NotThere, why)));
    };
    let is_blob = matches!(place, Place::Blob(..));
    if is_blob && wanted.forms.iter().all(|form| form.digest().is_some()) {
        return Ok(Now::Kept);
    }
    let origin = match &place {
        Place::Web(url) => url.origin().ascii_serialization(),
        Place::Blob(..) => String::new(),
    };
    if let Some(finding) = lock(given_up).get(&origin) {
        return Ok(Now::Missing(finding.clone()));
    }
    let Ok(asked) = timeout(WITHIN, ask(source, wanted, place)).await else {
        let minutes = WITHIN.as_secs() / 60;
        let why = format!("it was not there after {minutes} minutes");
        return Ok(Now::Missing(Finding::new(FindingKind::Unreachable, why)));
    };
    let error = match counted(asked) {
        Ok(Fetched::Same) => return Ok(Now::Same),
        Ok(Fetched::New { bytes, etag }) => return Ok(Now::New { bytes, etag }),
        Err(error) => error,
    };
    if is_blob && is_of_the_whole(&error) {
        return Err(error);
    }
    let finding = finding_about(wanted.kind, &error);
    if is_of_the_whole(&error) {
        lock(given_up).insert(origin, finding.clone());
    }
    Ok(Now::Missing(finding))
}

async fn ask(source: &Source, wanted: &Wanted, place: Place) -> Got<Fetched> {
    let limits = Limits::default();
    let limit = match wanted.kind {
        SideKind::Packages => limits.packages,
        SideKind::Cves => limits.cves,
    };
    match place {
        Place::Blob(repository, digest) => {
            let size = wanted.size.unwrap_or_default();
            let blob = Blob { digest, size };
            let bytes = source.registry.small(&repository, &blob, limit).await?;
            Ok(Fetched::New { bytes, etag: None })
        }
        Place::Web(url) => source.web.fetch(&url, wanted.etag(), limit).await,
    }
}

fn lock(given_up: &GivenUp) -> std::sync::MutexGuard<'_, HashMap<String, Finding>> {
    given_up.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A document as it is shown, and what is odd about it.
fn read(
    kind: SideKind,
    bytes: &[u8],
    list: Option<&str>,
) -> Result<(String, Vec<Finding>), Finding> {
    let mut remarks = Vec::new();
    let text = match kind {
        SideKind::Packages => packages(bytes)?,
        SideKind::Cves => {
            let read = cves(bytes, list.and_then(names).as_ref())?;
            if read.cut {
                let why = "there are more vulnerabilities than have room, or than could be read";
                remarks.push(Finding::new(FindingKind::CvesCut, why));
            }
            read.json
        }
    };
    if text.contains('\0') {
        return Err(Finding::new(finding_kind(kind), "it has a zero byte in it"));
    }
    Ok((text, remarks))
}

/// The names on a list of packages that is kept.
fn names(list: &str) -> Option<HashSet<String>> {
    #[derive(Deserialize)]
    struct List {
        repo: Vec<Package>,
    }

    #[derive(Deserialize)]
    struct Package {
        name: String,
    }

    let list: List = serde_json::from_str(list).ok()?;
    Some(list.repo.into_iter().map(|package| package.name).collect())
}

/// What is found if a document of a kind cannot be used.
const fn finding_kind(kind: SideKind) -> FindingKind {
    match kind {
        SideKind::Packages => FindingKind::Packages,
        SideKind::Cves => FindingKind::Cves,
    }
}

/// An error with a document as a finding of it.
fn finding_about(kind: SideKind, error: &RegistryError) -> Finding {
    let finding = finding_of(error);
    match error {
        RegistryError::Malformed { .. } => Finding {
            kind: finding_kind(kind),
            ..finding
        },
        _ => finding,
    }
}

#[cfg(test)]
mod tests;
