//! Projects that have no report: they are new, or want something else than before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use evenkeel_domain::os::catalogue::{Catalogue, Wish};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{StoreError, os_catalogue, os_reports, os_settings};

use super::{Applier, Taken, alone};

/// Into how many projects without a report something is brought in one pass.
const NEWCOMERS: usize = 50;

/// How many projects without a report are looked at in one pass: those that have to wait for the first cycle of their
/// registry must not keep the others from their turn.
const LOOKED_AT: u32 = 10_000;

impl Applier {
    /// Brings what is known by now into projects that have no report: they are new, or want something else than before.
    /// Their registries are to be asked anew. Says into how many.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(crate) async fn missing(&self) -> Result<u64, StoreError> {
        let tx = self.store.fleet().await?;
        let tenants = os_reports::missing(&tx, LOOKED_AT).await?;
        let wishes = if tenants.is_empty() {
            Vec::new()
        } else {
            os_settings::all(&tx).await?
        };
        drop(tx);
        let mut wishes: HashMap<TenantId, Option<Wish>> = wishes.into_iter().collect();
        let newcomers = tenants.into_iter().map(|tenant| {
            let wish = wishes.remove(&tenant).flatten().unwrap_or_default();
            (tenant, self.taken(&wish.or(&self.server)))
        });
        let newcomers: Vec<(TenantId, Taken)> = newcomers.collect();
        // First: whoever is stopped between the two finds the projects again.
        let known = self.ask_for(&newcomers).await?;
        let has_something = |taken: &Taken| match taken {
            Taken::This(catalogue) => known.contains(catalogue.registry.as_str()),
            Taken::Nothing | Taken::Impossible(_) => true,
        };
        let mut done = 0;
        let ready = newcomers.iter().filter(|(_, taken)| has_something(taken));
        for (tenant, taken) in ready.take(NEWCOMERS) {
            match self.project(*tenant, taken).await {
                Ok(is_done) => done += u64::from(is_done),
                Err(error) => alone(*tenant, error)?,
            }
        }
        Ok(done)
    }

    /// Wishes that registries be asked for projects without a report. Gives those that were asked to the end before.
    async fn ask_for<'a>(
        &self,
        newcomers: &'a [(TenantId, Taken)],
    ) -> Result<HashSet<&'a str>, StoreError> {
        let mut takers: BTreeMap<&str, Vec<(TenantId, &Catalogue)>> = BTreeMap::new();
        for (tenant, taken) in newcomers {
            if let Taken::This(catalogue) = taken {
                let of_it = takers.entry(&catalogue.registry).or_default();
                of_it.push((*tenant, catalogue));
            }
        }
        let there: HashSet<TenantId> = newcomers.iter().map(|(tenant, _)| *tenant).collect();
        self.asked().retain(|tenant, _| there.contains(tenant));
        let mut known = HashSet::new();
        for (registry, of_it) in takers {
            let tx = self.store.fleet().await?;
            let state = os_catalogue::state(&tx, registry).await?;
            let has_ended = state.as_ref().is_some_and(|state| state.ended_at.is_some());
            if has_ended {
                known.insert(registry);
            }
            // The first cycle brings something to all that it knows of; the others are still here when it has ended.
            let is_first = !has_ended && state.is_some_and(|state| state.claimed.is_some());
            if is_first || !self.is_news(&of_it) {
                continue;
            }
            os_catalogue::request(&tx, registry).await?;
            tx.commit().await?;
            let noted = of_it.into_iter().map(|(tenant, it)| (tenant, it.clone()));
            self.asked().extend(noted);
        }
        Ok(known)
    }

    /// Whether a registry is still to be asked for one of these.
    fn is_news(&self, newcomers: &[(TenantId, &Catalogue)]) -> bool {
        let asked = self.asked();
        let mut newcomers = newcomers.iter();
        newcomers.any(|(tenant, catalogue)| asked.get(tenant) != Some(*catalogue))
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<TenantId, Catalogue>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
