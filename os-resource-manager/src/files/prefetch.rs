//! Fetches what nodes will ask for before they do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::os::Image;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::chain;
use evenkeel_registry::Digest;
use evenkeel_store::os_inside::{self, Offer};
use evenkeel_store::{Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::flights::Flights;
use super::offers::{Wanted, place_of};

/// How often it is looked for newer images.
const EVERY: Duration = Duration::from_mins(1);

/// Of each line of images that a node runs, the newest one is fetched. None makes another one of them go: if there is not
/// enough room for all, those that came first stay.
#[derive(Clone, Debug)]
pub(super) struct Prefetcher {
    pub store: Store,
    pub flights: Flights,
}

impl Prefetcher {
    /// Makes passes until it is asked to stop.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let passed = tokio::select! {
                () = stopping.cancelled() => return,
                passed = self.pass() => passed,
            };
            if let Err(error) = passed {
                tracing::warn!(error = %chain(&error), "cannot look which images nodes will ask for");
            }
        }
    }

    /// One pass: fetches what is not there, one after the other. Says how many of those that should be there are.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        let tx = self.store.fleet().await?;
        let used = os_inside::in_use(&tx).await?;
        drop(tx);
        let wanted = newest(&used);
        let spared: HashSet<Digest> = wanted.iter().map(|wanted| wanted.digest).collect();
        let spared = Arc::new(spared);
        let mut there = 0;
        for wanted in wanted {
            let mut flight = self.flights.join(&wanted, &spared);
            // One that does not come is told by the flight, and tried again with the next pass.
            let landed = flight.wait_for(Option::is_some).await;
            if landed.is_ok_and(|landed| matches!(*landed, Some(Ok(())))) {
                there += 1;
            }
        }
        Ok(there)
    }
}

/// The newest image of each line of each project, each file once.
fn newest(used: &[(Image, Offer)]) -> Vec<Arc<Wanted>> {
    let mut lines: HashMap<(TenantId, &str), Vec<&Image>> = HashMap::new();
    for (image, offer) in used {
        let line = lines.entry((offer.tenant, &image.profile_name));
        line.or_default().push(image);
    }
    let newest: HashSet<_> = lines
        .into_iter()
        .filter_map(|((tenant, _), images)| Some((tenant, Image::newest(images)?.os)))
        .collect();
    let mut all: Vec<Wanted> = Vec::new();
    for (image, offer) in used {
        let Some((digest, place)) = place_of(offer) else {
            continue;
        };
        if !newest.contains(&(offer.tenant, image.os)) {
            continue;
        }
        match all.iter_mut().find(|wanted| wanted.digest == digest) {
            Some(known) if known.places.contains(&place) => {}
            Some(known) => known.places.push(place),
            None => all.push(Wanted {
                digest,
                places: vec![place],
            }),
        }
    }
    all.into_iter().map(Arc::new).collect()
}
