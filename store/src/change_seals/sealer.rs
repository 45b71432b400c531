//! Seals the changes of all projects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::change_seal::{RecordedChange, Seal};
use evenkeel_domain::tenant::TenantId;

use super::rows::{insert_seals, read_changes, read_heads};
use crate::error::StoreError;
use crate::log::{list_writers, read_numbers};
use crate::pool::Store;
use crate::tx::{FleetTx, execute, query_one};

/// The maximum number of changes that one transaction seals. It also bounds the changes that a seal covers.
const MAX_CHANGES_PER_BATCH: usize = 1_000;

/// The maximum number of transactions of a pass.
const MAX_BATCHES_PER_PASS: usize = 20;

/// Seals changes in the order of their numbers. A pass needs no input but the writers that it waits for: they make sure
/// that no change appears later among sealed ones.
#[derive(Debug)]
pub struct ChangeSealer {
    store: Store,
    waiting: Option<OpenWriters>,
    /// Complete numbers that the last pass has not sealed entirely.
    rest: Option<CompleteNumbers>,
}

/// Changes with numbers up to `up_to` are complete when these transactions have ended.
#[derive(Debug)]
struct OpenWriters {
    numbers: CompleteNumbers,
    writers: BTreeSet<String>,
}

/// Changes with numbers up to `up_to` are complete, in the database of one server.
#[derive(Clone, Copy, Debug)]
struct CompleteNumbers {
    up_to: i64,
    /// When the server was started.
    server: Time,
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealingPass {
    /// Number of changes that were sealed.
    pub changes: u64,
    /// Number of seals that were written.
    pub seals: u64,
    /// The age of the oldest change that is not sealed; zero if there is none.
    pub oldest_unsealed: Duration,
    /// Whether the pass ended at its maximum number of transactions.
    pub has_more: bool,
}

/// The result of a transaction.
struct SealedBatch {
    changes: u64,
    seals: u64,
    /// Changes with numbers up to this are sealed.
    sealed_to: i64,
}

impl ChangeSealer {
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store, waiting: None, rest: None }
    }

    /// Seals changes that are complete, at most 20,000. If nothing was written since the last pass, a pass is one short
    /// statement. Several replicas may run passes at the same time: each change is sealed by one of them.
    ///
    /// # Errors
    /// The database cannot be reached. Batches that were committed are kept.
    pub async fn pass(&mut self) -> Result<SealingPass, StoreError> {
        let result = self.seal_complete().await;
        if result.is_err() {
            // After a crash, the database may assign the last numbers and the ids of transactions again.
            self.waiting = None;
            self.rest = None;
        }
        result
    }

    async fn seal_complete(&mut self) -> Result<SealingPass, StoreError> {
        let mut pass = SealingPass::default();
        let numbers = read_numbers(&self.store).await?;
        if numbers.last <= numbers.sealed_to {
            self.waiting = None;
            return Ok(pass);
        }
        let last = CompleteNumbers { up_to: numbers.last, server: numbers.server };
        let complete = match self.rest.take() {
            Some(rest) => Some(rest),
            None => self.find_complete(last).await?,
        };
        let mut sealed_to = numbers.sealed_to;
        if let Some(complete) = complete {
            sealed_to = self.seal_batches(complete, &mut pass).await?.unwrap_or(sealed_to);
        }
        // If all changes up to the last one are sealed, the others are younger than the pass.
        if sealed_to < last.up_to {
            pass.oldest_unsealed = self.read_oldest_unsealed().await?;
        }
        Ok(pass)
    }

    /// Seals changes of complete numbers, until all are sealed or for a limited number of batches.
    /// Returns the last number that was sealed; none if another process has sealed them, or if they
    /// are those of another server.
    async fn seal_batches(
        &mut self,
        complete: CompleteNumbers,
        pass: &mut SealingPass,
    ) -> Result<Option<i64>, StoreError> {
        let mut sealed_to = None;
        for _ in 0..MAX_BATCHES_PER_PASS {
            let Some(batch) = self.seal_batch(complete).await? else {
                return Ok(sealed_to);
            };
            pass.changes += batch.changes;
            pass.seals += batch.seals;
            sealed_to = Some(batch.sealed_to);
            if batch.sealed_to >= complete.up_to {
                return Ok(sealed_to);
            }
        }
        pass.has_more = true;
        self.rest = Some(complete);
        Ok(sealed_to)
    }

    /// The numbers of which all changes are complete; none if the pass must wait for writers. `last` was read before.
    async fn find_complete(
        &mut self,
        last: CompleteNumbers,
    ) -> Result<Option<CompleteNumbers>, StoreError> {
        let (writers, server) = list_writers(&self.store).await?;
        if server != last.server {
            // The writers of another server, such as a standby, prove nothing.
            self.waiting = None;
            return Ok(None);
        }
        if writers.is_empty() {
            self.waiting = None;
            return Ok(Some(last));
        }
        // After a failover or the restore of a backup, later numbers are assigned again, by other writers.
        let is_same_log =
            |numbers: CompleteNumbers| numbers.server == last.server && numbers.up_to <= last.up_to;
        self.waiting = self.waiting.take().filter(|waiting| is_same_log(waiting.numbers));
        if let Some(waiting) = &mut self.waiting {
            waiting.writers.retain(|writer| writers.contains(writer));
            if !waiting.writers.is_empty() {
                return Ok(None);
            }
        }
        let next = OpenWriters { numbers: last, writers };
        Ok(self.waiting.replace(next).map(|ended| ended.numbers))
    }

    /// Seals the next changes of complete numbers in one transaction; none if they are sealed.
    async fn seal_batch(
        &self,
        complete: CompleteNumbers,
    ) -> Result<Option<SealedBatch>, StoreError> {
        let tx = self.store.fleet().await?;
        match seal_next(&tx, complete).await {
            Ok(Some(batch)) => {
                tx.commit().await?;
                Ok(Some(batch))
            }
            // A dropped transaction would keep its lock, and other replicas would wait.
            Ok(None) => {
                tx.rollback().await?;
                Ok(None)
            }
            Err(error) => {
                tx.rollback().await?;
                Err(error)
            }
        }
    }

    async fn read_oldest_unsealed(&self) -> Result<Duration, StoreError> {
        let tx = self.store.fleet().await?;
        let sql = "SELECT extract(epoch FROM clock_timestamp() - c.at)::double precision FROM change_log c \
                   WHERE c.seq > (SELECT s.sealed_to FROM change_seal_state s) ORDER BY c.seq LIMIT 1";
        let seconds: f64 = match query_one(tx.conn(), sql, []).await? {
            Some(row) => row.try_get_by_index(0)?,
            None => 0.0,
        };
        Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

/// Seals the next changes. The lock of the state lets one transaction at a time seal. Seals nothing on another server than
/// the one on which the numbers are complete, or if that server was set back.
async fn seal_next(
    tx: &FleetTx,
    complete: CompleteNumbers,
) -> Result<Option<SealedBatch>, StoreError> {
    let sql = "SELECT s.sealed_to, pg_postmaster_start_time(), (SELECT n.last_value FROM change_log_seq_seq n) \
               FROM change_seal_state s FOR UPDATE";
    let Some(row) = query_one(tx.conn(), sql, []).await? else {
        return Ok(None);
    };
    let sealed_to: i64 = row.try_get_by_index(0)?;
    let (server, last): (Time, i64) = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
    let CompleteNumbers { up_to, server: expected } = complete;
    if sealed_to >= up_to || server != expected || last < up_to {
        return Ok(None);
    }
    let changes = read_changes(tx, None, (sealed_to, up_to), MAX_CHANGES_PER_BATCH).await?;
    let count = changes.len();
    let last = changes.last().map(|(_, change)| change.number);
    let sealed_to = last.filter(|_| count == MAX_CHANGES_PER_BATCH).unwrap_or(up_to);
    let seals = create_seals(tx, changes, sealed_to).await?;
    if !seals.is_empty() {
        insert_seals(tx, &seals).await?;
    }
    let sql = "UPDATE change_seal_state SET sealed_to = $1";
    execute(tx.conn(), sql, [sealed_to.into()]).await?;
    let changes = seals.iter().map(Seal::count).sum();
    let seals = u64::try_from(seals.len()).unwrap_or(u64::MAX);
    Ok(Some(SealedBatch { changes, seals, sealed_to }))
}

/// A seal for each project that has changes.
async fn create_seals(
    tx: &FleetTx,
    changes: Vec<(TenantId, RecordedChange)>,
    up_to: i64,
) -> Result<Vec<Seal>, StoreError> {
    let mut by_project = BTreeMap::<TenantId, Vec<RecordedChange>>::new();
    for (project, change) in changes {
        by_project.entry(project).or_default().push(change);
    }
    let projects: Vec<TenantId> = by_project.keys().copied().collect();
    let heads: BTreeMap<_, _> = read_heads(tx, &projects).await?.into_iter().collect();
    let sealed_at: Time = tx.database_time();
    let seals = by_project.iter().filter_map(|(project, changes)| {
        Seal::create((*project, heads.get(project).copied()), changes, up_to, sealed_at)
    });
    Ok(seals.collect())
}
