//! When nodes were last heard: collected, and written in batches.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::contacts::{self, Contact};
use evenkeel_store::{Store, StoreError};
use tokio::time::MissedTickBehavior;

use crate::outage::Outage;

/// How many nodes one statement writes.
const BATCH: usize = 1_000;

/// Calls do not wait for each other unless their nodes are in the same part.
const PARTS: usize = 16;

/// The nodes that were heard since the last batch. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Contacts(Arc<Noted>);

#[derive(Debug, Default)]
struct Noted {
    parts: [Mutex<Part>; PARTS],
    hasher: RandomState,
}

/// When nodes were heard, and until when they are not silent.
type Part = HashMap<(TenantId, InstanceId), (Time, Option<Time>)>;

impl Contacts {
    /// Notes that a node was heard. One that was told to wait is not silent before it is due.
    pub fn heard(&self, tenant: TenantId, instance: InstanceId, at: Time, due: Option<Time>) {
        self.note(Contact {
            tenant,
            instance,
            at,
            due,
        });
    }

    /// Notes a word of a node, unless a newer one was noted.
    fn note(&self, contact: Contact) {
        let who = (contact.tenant, contact.instance);
        let when = (contact.at, contact.due);
        let mut part = lock(self.0.part(who));
        let noted = part.entry(who).or_insert(when);
        *noted = when.max(*noted);
    }

    /// Takes what was noted.
    fn take(&self) -> Vec<Contact> {
        let mut all = Vec::new();
        for part in &self.0.parts {
            let noted = std::mem::take(&mut *lock(part));
            let noted = noted.into_iter();
            all.extend(noted.map(|((tenant, instance), (at, due))| Contact {
                tenant,
                instance,
                at,
                due,
            }));
        }
        all
    }

    /// Writes what was noted every now and then, and once more at the end.
    pub async fn run(
        self,
        store: Store,
        every: Duration,
        outage: &Outage,
        stopping: impl Future<Output = ()>,
    ) {
        let mut stopping = pin!(stopping);
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                () = &mut stopping => true,
                _ = ticks.tick() => false,
            };
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

    /// Writes what was noted. What cannot be written is noted again: a node whose call is held is not heard for minutes.
    async fn write(&self, store: &Store) -> Result<usize, StoreError> {
        let all = self.take();
        let mut written = 0;
        for batch in all.chunks(BATCH) {
            if let Err(error) = write(store, batch).await {
                for contact in all.iter().skip(written) {
                    self.note(*contact);
                }
                return Err(error);
            }
            written += batch.len();
        }
        Ok(written)
    }
}

async fn write(store: &Store, batch: &[Contact]) -> Result<(), StoreError> {
    let tx = store.fleet().await?;
    contacts::heard(&tx, batch.to_vec()).await?;
    tx.commit().await?;
    let size = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    metrics::histogram!("evenkeel_contacts_batch").record(size);
    metrics::counter!("evenkeel_contacts_written_total").increment(size.into());
    Ok(())
}

impl Noted {
    fn part(&self, who: (TenantId, InstanceId)) -> &Mutex<Part> {
        let hash = self.hasher.hash_one(who).to_le_bytes();
        &self.parts[usize::from(hash[0]) % PARTS]
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
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

    fn taken(contacts: &Contacts) -> Vec<Contact> {
        let mut taken = contacts.take();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn of_each_node_the_newest_word_is_kept_and_of_two_at_once_the_one_that_lasts_longer() {
        let contacts = Contacts::default();
        for (minutes, due) in [
            (1, Some(30)),
            (2, None),
            (2, Some(12)),
            (2, None),
            (0, None),
        ] {
            contacts.note(contact(7, minutes, due));
        }
        let expected = [contact(7, 2, Some(12))];
        assert_eq!(taken(&contacts), expected);
        assert_eq!(taken(&contacts), []);
    }

    #[test]
    fn every_node_is_taken_once_whatever_part_it_is_in() {
        let contacts = Contacts::default();
        let mut expected: Vec<_> = (1..=500).map(|n| contact(n, 0, None)).collect();
        for one in &expected {
            let Contact {
                tenant,
                instance,
                at,
                due,
            } = *one;
            contacts.heard(tenant, instance, at, due);
        }
        expected.sort_unstable();
        assert_eq!(taken(&contacts), expected);
    }

    /// What was heard meanwhile is not undone by what is noted again.
    #[tokio::test]
    async fn what_cannot_be_written_is_not_lost() {
        let (store, away) = (fresh_store().await, fresh_store().await);
        away.close().await;
        let contacts = Contacts::default();
        let many = u32::try_from(BATCH + 10).expect("a number");
        let mut expected: Vec<_> = (1..=many).map(|n| contact(n, 1, Some(9))).collect();
        for one in &expected {
            contacts.note(*one);
        }
        contacts.write(&away).await.expect_err("it is closed");
        contacts.note(contact(5, 3, None));
        expected[4] = contact(5, 3, None);
        expected.sort_unstable();
        assert_eq!(taken(&contacts), expected);
        for one in &expected {
            contacts.note(*one);
        }
        let written = contacts.write(&store).await.expect("written");
        assert_eq!(written, expected.len());
        assert_eq!(taken(&contacts), []);
    }
}
