//! When nodes were last heard: collected, and written in batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{Store, StoreError, contacts};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;

/// How many nodes one statement writes.
const BATCH: usize = 1_000;

/// The nodes that were heard since the last batch. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Contacts(Arc<Mutex<HashMap<(TenantId, InstanceId), Time>>>);

impl Contacts {
    /// Notes that a node was heard.
    pub fn heard(&self, tenant: TenantId, instance: InstanceId, at: Time) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.insert((tenant, instance), at);
    }

    /// Writes what was noted every now and then, and once more at the end.
    pub async fn run(
        self,
        store: Store,
        every: Duration,
        outage: &Outage,
        stopping: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                () = stopping.cancelled() => true,
                _ = ticks.tick() => false,
            };
            // What could not be written is noted again by the next poll.
            let written = self.write(&store).await;
            // Who had nothing to write has not tried.
            if !matches!(written, Ok(0)) {
                outage.note_pass("contacts", &written);
            }
            if last {
                return;
            }
        }
    }

    async fn write(&self, store: &Store) -> Result<usize, StoreError> {
        let heard = {
            let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *noted)
        };
        let all: Vec<_> = heard
            .into_iter()
            .map(|((tenant, id), at)| (tenant, id, at))
            .collect();
        for batch in all.chunks(BATCH) {
            let tx = store.fleet().await?;
            contacts::heard(&tx, batch.to_vec()).await?;
            tx.commit().await?;
        }
        metrics::counter!("evenkeel_contacts_written_total").increment(all.len() as u64);
        Ok(all.len())
    }
}
