//! The times of last contact, collected in memory and written in batches.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::clock::Clock;
use evenkeel_store::contacts::{self, Contact};
use evenkeel_store::{Store, StoreError};
use tokio::time::MissedTickBehavior;

use crate::outage::Outage;

/// The number of nodes that one statement writes.
const BATCH_SIZE: usize = 1_000;

/// The number of shards. Calls wait for each other only within a shard.
const SHARDS: usize = 16;

/// The nodes that made contact since the last batch. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Contacts(Arc<ContactShards>);

#[derive(Debug, Default)]
struct ContactShards {
    shards: [Mutex<ContactShard>; SHARDS],
    hasher: RandomState,
}

/// For each node the time of the last contact, and until when it is not silent.
type ContactShard = HashMap<(TenantId, InstanceId), (Time, Option<Time>)>;

impl Contacts {
    /// Records a contact, by the clock of the process. A node that was asked to wait is not silent
    /// before `due`.
    pub fn record(&self, tenant: TenantId, instance: InstanceId, at: Time, due: Option<Time>) {
        self.insert(Contact { tenant, instance, at, due });
    }

    /// Records a contact, unless a newer one is recorded.
    fn insert(&self, contact: Contact) {
        let who = (contact.tenant, contact.instance);
        let when = (contact.at, contact.due);
        let mut shard = lock(self.0.shard(who));
        let pending = shard.entry(who).or_insert(when);
        *pending = when.max(*pending);
    }

    /// Takes all recorded contacts.
    fn drain(&self) -> Vec<Contact> {
        let mut all = Vec::new();
        for shard in &self.0.shards {
            let pending = std::mem::take(&mut *lock(shard));
            let pending = pending.into_iter();
            all.extend(pending.map(|((tenant, instance), (at, due))| Contact {
                tenant,
                instance,
                at,
                due,
            }));
        }
        all
    }

    /// Writes the recorded contacts at an interval, and once more at the stop.
    pub async fn run(
        self,
        (store, clock): (Store, Arc<dyn Clock>),
        interval: Duration,
        outage: &Outage,
        stopping: impl Future<Output = ()>,
    ) {
        let mut stopping = pin!(stopping);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                () = &mut stopping => true,
                _ = ticks.tick() => false,
            };
            let written = self.write(&store, &*clock).await;
            // A pass without contacts has not used the database.
            if !matches!(written, Ok(0)) {
                outage.note_pass("contacts", &written);
            }
            if last {
                return;
            }
        }
    }

    /// Writes the recorded contacts. On failure they are recorded again, because the next contact
    /// of a node with a long poll may be minutes away.
    async fn write(&self, store: &Store, clock: &dyn Clock) -> Result<usize, StoreError> {
        let all = self.drain();
        if all.is_empty() {
            return Ok(0);
        }
        let mut written = 0;
        if let Err(error) = write_batches((store, clock), &all, &mut written).await {
            for contact in all.iter().skip(written) {
                self.insert(*contact);
            }
            return Err(error);
        }
        Ok(written)
    }
}

/// Writes contacts in batches with the time of the database, and counts those that are written.
async fn write_batches(
    (store, clock): (&Store, &dyn Clock),
    all: &[Contact],
    written: &mut usize,
) -> Result<(), StoreError> {
    let clocks = store.read_clocks(clock).await?;
    let (now, offset) = (clocks.database, clocks.offset());
    for batch in all.chunks(BATCH_SIZE) {
        let shifted = batch.iter().map(|contact| Contact {
            at: contact.at.checked_sub_signed(offset).unwrap_or(now),
            due: contact.due.and_then(|due| due.checked_sub_signed(offset)),
            ..*contact
        });
        write(store, shifted.collect(), now).await?;
        *written += batch.len();
    }
    Ok(())
}

async fn write(store: &Store, batch: Vec<Contact>, now: Time) -> Result<(), StoreError> {
    let size = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    let tx = store.fleet().await?;
    contacts::record_contacts(&tx, batch, now).await?;
    tx.commit().await?;
    metrics::histogram!("evenkeel_contacts_batch").record(size);
    metrics::counter!("evenkeel_contacts_written_total").increment(size.into());
    Ok(())
}

impl ContactShards {
    fn shard(&self, who: (TenantId, InstanceId)) -> &Mutex<ContactShard> {
        let hash = self.hasher.hash_one(who).to_le_bytes();
        &self.shards[usize::from(hash[0]) % SHARDS]
    }
}

fn lock(shard: &Mutex<ContactShard>) -> MutexGuard<'_, ContactShard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
    use evenkeel_kit::clock::SystemClock;
    use evenkeel_store::testing::fresh_store;
    use uuid::Uuid;

    use super::*;

    const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

    fn contact(n: u32, minutes: i64, due: Option<i64>) -> Contact {
        let at = |minutes| NOON + TimeDelta::minutes(minutes);
        Contact {
            tenant: TenantId::new(Uuid::from_u128(u128::from(n % 3))),
            instance: InstanceId::nth(n),
            at: at(minutes),
            due: due.map(at),
        }
    }

    fn drain_sorted(contacts: &Contacts) -> Vec<Contact> {
        let mut drained = contacts.drain();
        drained.sort_unstable();
        drained
    }

    #[test]
    fn the_newest_contact_wins_and_of_two_at_once_the_later_deadline() {
        let contacts = Contacts::default();
        for (minutes, due) in [(1, Some(30)), (2, None), (2, Some(12)), (2, None), (0, None)] {
            contacts.insert(contact(7, minutes, due));
        }
        let expected = [contact(7, 2, Some(12))];
        assert_eq!(drain_sorted(&contacts), expected);
        assert_eq!(drain_sorted(&contacts), []);
    }

    #[test]
    fn every_node_is_drained_once_from_any_shard() {
        let contacts = Contacts::default();
        let mut expected: Vec<_> = (1..=500).map(|n| contact(n, 0, None)).collect();
        for one in &expected {
            let Contact { tenant, instance, at, due } = *one;
            contacts.record(tenant, instance, at, due);
        }
        expected.sort_unstable();
        assert_eq!(drain_sorted(&contacts), expected);
    }

    /// Recording contacts again does not overwrite newer ones.
    #[tokio::test]
    async fn contacts_that_cannot_be_written_are_not_lost() {
        let (store, away) = (fresh_store().await, fresh_store().await);
        away.close().await;
        let contacts = Contacts::default();
        let many = u32::try_from(BATCH_SIZE + 10).expect("a number");
        let mut expected: Vec<_> = (1..=many).map(|n| contact(n, 1, Some(9))).collect();
        for one in &expected {
            contacts.insert(*one);
        }
        contacts.write(&away, &SystemClock).await.expect_err("it is closed");
        contacts.insert(contact(5, 3, None));
        expected[4] = contact(5, 3, None);
        expected.sort_unstable();
        assert_eq!(drain_sorted(&contacts), expected);
        for one in &expected {
            contacts.insert(*one);
        }
        let written = contacts.write(&store, &SystemClock).await.expect("written");
        assert_eq!(written, expected.len());
        assert_eq!(drain_sorted(&contacts), []);
    }
}
