//! Projects without a sync report: they are new, or their selection changed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};

use evenkeel_domain::os::catalogue::{CatalogSelection, ResolvedSelection};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{StoreError, os_catalogue, os_reports, os_settings};

use super::{Applier, SelectionState, skip_failed_project};

/// How many projects without a report one pass applies content to.
const MAX_PROJECTS_PER_PASS: usize = 50;

/// How many projects without a report one pass looks at. It is large, because projects that wait for the first cycle of
/// their registry must not block the others.
const MAX_CANDIDATES_PER_PASS: u32 = 10_000;

impl Applier {
    /// Applies the known content to projects without a report, and requests a cycle of their registries. Returns the
    /// number of projects that it applied content to.
    ///
    /// # Errors
    /// The database is unreachable.
    pub(crate) async fn apply_to_unsynced(&self) -> Result<u64, StoreError> {
        let tx = self.store.fleet().await?;
        let tenants = os_reports::list_missing(&tx, MAX_CANDIDATES_PER_PASS).await?;
        let selections =
            if tenants.is_empty() { Vec::new() } else { os_settings::all(&tx).await? };
        drop(tx);
        let mut selections: HashMap<TenantId, Option<CatalogSelection>> =
            selections.into_iter().collect();
        let projects = tenants.into_iter().map(|tenant| {
            let selection = selections.remove(&tenant).flatten().unwrap_or_default();
            (tenant, self.resolve_selection(&selection.or_defaults(&self.defaults)))
        });
        let projects: Vec<(TenantId, SelectionState)> = projects.collect();
        // The requests come first: if the process stops here, the next pass finds the same projects again.
        let synced = self.request_cycles(&projects).await?;
        let is_ready = |state: &SelectionState| match state {
            SelectionState::Complete(resolved) => synced.contains(resolved.registry.as_str()),
            SelectionState::Empty | SelectionState::Invalid(_) => true,
        };
        let mut done = 0;
        let ready = projects.iter().filter(|(_, state)| is_ready(state));
        for (tenant, state) in ready.take(MAX_PROJECTS_PER_PASS) {
            match self.apply_to_project(*tenant, state).await {
                Ok(is_done) => done += u64::from(is_done),
                Err(error) => skip_failed_project(*tenant, error)?,
            }
        }
        Ok(done)
    }

    /// Requests cycles for projects without a report. Returns the registries that have completed a cycle before.
    async fn request_cycles<'a>(
        &self,
        projects: &'a [(TenantId, SelectionState)],
    ) -> Result<HashSet<&'a str>, StoreError> {
        let mut by_registry: BTreeMap<&str, Vec<(TenantId, &ResolvedSelection)>> = BTreeMap::new();
        for (tenant, selection_state) in projects {
            if let SelectionState::Complete(resolved) = selection_state {
                let members = by_registry.entry(&resolved.registry).or_default();
                members.push((*tenant, resolved));
            }
        }
        let project_ids: HashSet<TenantId> = projects.iter().map(|(tenant, _)| *tenant).collect();
        self.requested().retain(|tenant, _| project_ids.contains(tenant));
        let mut synced = HashSet::new();
        for (registry, members) in by_registry {
            let tx = self.store.fleet().await?;
            let state = os_catalogue::state(&tx, registry).await?;
            let has_ended = state.as_ref().is_some_and(|state| state.ended_at.is_some());
            if has_ended {
                synced.insert(registry);
            }
            // The first cycle serves all projects that it knows. The others are still without a report when it ends.
            let is_first = !has_ended && state.is_some_and(|state| state.claimed.is_some());
            if is_first || !self.needs_request(&members) {
                continue;
            }
            os_catalogue::request(&tx, registry).await?;
            tx.commit().await?;
            let entries = members.into_iter().map(|(tenant, it)| (tenant, it.clone()));
            self.requested().extend(entries);
        }
        Ok(synced)
    }

    /// Whether the cycle for one of these selections has not been requested yet.
    fn needs_request(&self, projects: &[(TenantId, &ResolvedSelection)]) -> bool {
        let requested = self.requested();
        let mut projects = projects.iter();
        projects.any(|(tenant, resolved)| requested.get(tenant) != Some(*resolved))
    }

    fn requested(&self) -> MutexGuard<'_, HashMap<TenantId, ResolvedSelection>> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
