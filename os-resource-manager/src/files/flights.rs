//! Files that are under way from where they lie: each once, however many ask for it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_kit::{Clock, Lifecycle};
use evenkeel_registry::Digest;
use tokio::sync::{Semaphore, watch};

use super::cache::{Cache, There, blocking};
use super::offers::{Place, Wanted};
use super::part::{Manner, Part, Trouble};
use super::upstream;
use crate::Sources;

/// How many files are under way at once; others wait for their turn.
const AT_ONCE: usize = 8;

/// How many files that another process left are looked at at once.
const LOOKS: usize = 2;

/// How a flight ended; none while it goes on.
pub(super) type Landed = Option<Result<(), Trouble>>;

/// The files that are under way. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Flights(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    cache: Cache,
    sources: Arc<Sources>,
    clock: Arc<dyn Clock>,
    /// How long is waited before something is taken up again.
    pause: Duration,
    /// How long what is wrong is left alone.
    rest: TimeDelta,
    under_way: Mutex<HashMap<Digest, watch::Receiver<Landed>>>,
    /// What was wrong, and until when it is left alone.
    resting: Mutex<HashMap<Digest, (Time, Trouble)>>,
    turns: Semaphore,
    looks: Semaphore,
}

/// Takes a flight off the list, however it ends.
struct Listed {
    flights: Flights,
    digest: Digest,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let under_way = self.flights.0.under_way.lock();
        let mut under_way = under_way.unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&self.digest);
    }
}

impl Flights {
    pub fn new(
        cache: Cache,
        sources: Arc<Sources>,
        clock: Arc<dyn Clock>,
        pause: Duration,
        rest: Duration,
    ) -> Self {
        Self(Arc::new(Inside {
            cache,
            sources,
            clock,
            pause,
            rest: TimeDelta::from_std(rest).unwrap_or(TimeDelta::MAX),
            under_way: Mutex::default(),
            resting: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            looks: Semaphore::new(LOOKS),
        }))
    }

    /// Takes part in the flight of a file, which begins if there is none. It goes on when nobody waits for it any more.
    /// What is `spared` is not removed to make room for it.
    pub fn join(
        &self,
        wanted: &Arc<Wanted>,
        spared: &Arc<HashSet<Digest>>,
    ) -> watch::Receiver<Landed> {
        let under_way = self.0.under_way.lock();
        let mut under_way = under_way.unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = under_way.get(&wanted.digest) {
            return flight.clone();
        }
        let (tell, told) = watch::channel(None);
        under_way.insert(wanted.digest, told.clone());
        drop(under_way);
        let listed = Listed {
            flights: self.clone(),
            digest: wanted.digest,
        };
        let (own, wanted, spared) = (self.clone(), Arc::clone(wanted), Arc::clone(spared));
        Lifecycle::detach(async move {
            let landed = own.fly(&wanted, &spared).await;
            // Who asks from now on begins anew.
            drop(listed);
            tell.send(Some(landed)).ok();
        });
        told
    }

    async fn fly(&self, wanted: &Wanted, spared: &HashSet<Digest>) -> Result<(), Trouble> {
        let digest = wanted.digest;
        match self.0.cache.has(&digest) {
            There::Verified => return Ok(()),
            There::Unverified => {
                let cache = self.0.cache.clone();
                // The looks are never closed. What only has to be looked at does not wait for what is fetched.
                let _look = self.0.looks.acquire().await;
                let verified = blocking(move || cache.verify(&digest)).await;
                let verified = verified.and_then(|verified| verified);
                if verified.map_err(|error| Trouble::disk(&error))? {
                    return Ok(());
                }
            }
            There::No => {}
        }
        if let Some(trouble) = self.resting(&digest) {
            return Err(trouble);
        }
        // The turns are never closed.
        let _turn = self.0.turns.acquire().await;
        let landed = self.fetch(wanted, spared).await;
        match &landed {
            Ok(()) => count("good"),
            Err(trouble) => {
                count(outcome(trouble));
                tracing::warn!(%digest, %trouble, "a file for nodes cannot be had");
                self.note(digest, trouble);
            }
        }
        landed
    }

    /// Fetches a file from the first place that gives it.
    async fn fetch(&self, wanted: &Wanted, spared: &HashSet<Digest>) -> Result<(), Trouble> {
        let mut trouble = Trouble::Away("no registry that is configured has it".to_owned());
        for place in &wanted.places {
            match self.fetch_from(place, wanted.digest, spared).await {
                Ok(()) => return Ok(()),
                // It is the same wherever it comes from. How large it is, is only what a place says.
                Err(own @ (Trouble::NoRoom | Trouble::Disk(_))) => return Err(own),
                Err(other) => trouble = other,
            }
        }
        Err(trouble)
    }

    async fn fetch_from(
        &self,
        place: &Place,
        digest: Digest,
        spared: &HashSet<Digest>,
    ) -> Result<(), Trouble> {
        let origin = upstream::origin(&self.0.sources, place);
        let origin = origin.map_err(|error| Trouble::Away(error.to_string()))?;
        let Some(origin) = origin else {
            let why = format!("the registry {} is not configured", place.registry);
            return Err(Trouble::Away(why));
        };
        let failed = |error: std::io::Error| Trouble::disk(&error);
        let mut part = Part::take(&self.0.cache, digest).await.map_err(failed)?;
        let manner = Manner {
            size: place.size,
            spared,
            pause: self.0.pause,
        };
        match part.fill(&origin, manner).await {
            Ok(()) => part.keep().await.map_err(failed),
            Err(trouble) => {
                // What is wrong is worth nothing, and a full disk needs the room.
                if matches!(
                    trouble,
                    Trouble::Wrong(_) | Trouble::NoRoom | Trouble::TooLarge
                ) {
                    part.discard().await.map_err(failed)?;
                }
                Err(trouble)
            }
        }
    }

    /// Why a file is not asked for at the moment, if it is not.
    fn resting(&self, digest: &Digest) -> Option<Trouble> {
        let now = self.0.clock.now();
        let mut resting = self
            .0
            .resting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        resting.retain(|_, (until, _)| now < *until);
        resting.get(digest).map(|(_, trouble)| trouble.clone())
    }

    /// Leaves a file alone for a while if it is not what it should be: that will not have changed in a moment.
    fn note(&self, digest: Digest, trouble: &Trouble) {
        if !matches!(trouble, Trouble::Wrong(_)) {
            return;
        }
        let until = self.0.clock.now().checked_add_signed(self.0.rest);
        let until = until.unwrap_or(Time::MAX_UTC);
        let resting = self.0.resting.lock();
        let mut resting = resting.unwrap_or_else(PoisonError::into_inner);
        resting.insert(digest, (until, trouble.clone()));
    }
}

fn outcome(trouble: &Trouble) -> &'static str {
    match trouble {
        Trouble::TooLarge => "too_large",
        Trouble::NoRoom => "no_room",
        Trouble::Wrong(_) => "wrong",
        Trouble::Away(_) => "away",
        Trouble::Disk(_) => "disk",
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("evenkeel_files_fetched_total", "outcome" => outcome).increment(1);
}
