//! Downloads images before nodes request them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::os::Image;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::chain;
use evenkeel_registry::Digest;
use evenkeel_store::os_details::{self, Offer};
use evenkeel_store::{Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::downloads::Downloads;
use super::offers::{OfferedFile, file_source};

/// How often newer images are looked for.
const PREFETCH_INTERVAL: Duration = Duration::from_mins(1);

/// Downloads the newest image of each series that a node runs. Prefetched images do not evict each other: if there is not
/// enough space for all, the earlier ones stay.
#[derive(Clone, Debug)]
pub(super) struct Prefetcher {
    pub store: Store,
    pub downloads: Downloads,
}

impl Prefetcher {
    /// Runs passes until it is stopped.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(PREFETCH_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let result = tokio::select! {
                () = stopping.cancelled() => return,
                result = self.run_pass() => result,
            };
            if let Err(error) = result {
                tracing::warn!(error = %chain(&error), "cannot load the images to prefetch");
            }
        }
    }

    /// One pass: downloads the missing images, one after the other. Returns how many of the images to prefetch are in
    /// the cache.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn run_pass(&self) -> Result<usize, StoreError> {
        let tx = self.store.fleet().await?;
        let in_use = os_details::list_images_in_use(&tx).await?;
        drop(tx);
        let files = newest_files(&in_use);
        let spared: HashSet<Digest> = files.iter().map(|file| file.digest).collect();
        let spared = Arc::new(spared);
        let mut present = 0;
        for file in files {
            let mut download = self.downloads.join(&file, &spared);
            // The download logs its failure, and the next pass tries again.
            let result = download.wait_for(Option::is_some).await;
            if result.is_ok_and(|result| matches!(*result, Some(Ok(())))) {
                present += 1;
            }
        }
        Ok(present)
    }
}

/// The newest image of each series of each project, each file once.
fn newest_files(in_use: &[(Image, Offer)]) -> Vec<Arc<OfferedFile>> {
    let mut series: HashMap<(TenantId, &str), Vec<&Image>> = HashMap::new();
    for (image, offer) in in_use {
        let entry = series.entry((offer.tenant, &image.profile_name));
        entry.or_default().push(image);
    }
    let newest: HashSet<_> = series
        .into_iter()
        .filter_map(|((tenant, _), images)| Some((tenant, Image::newest(images)?.os)))
        .collect();
    let mut all: Vec<OfferedFile> = Vec::new();
    let mut positions = HashMap::new();
    let mut sources = HashSet::new();
    for (image, offer) in in_use {
        let Some((digest, source)) = file_source(offer) else {
            continue;
        };
        if !newest.contains(&(offer.tenant, image.os)) {
            continue;
        }
        let position = *positions.entry(digest).or_insert(all.len());
        if !sources.insert((digest, source.clone())) {
            continue;
        }
        match all.get_mut(position) {
            Some(existing) => existing.sources.push(source),
            None => all.push(OfferedFile { digest, sources: vec![source] }),
        }
    }
    all.into_iter().map(Arc::new).collect()
}
