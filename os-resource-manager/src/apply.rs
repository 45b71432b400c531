//! Brings what a registry has into the projects that want it, and tells each how that went.
//!
//! Nothing here asks a registry: what the last cycle found lies in the database. Several replicas may bring the same
//! into the same project at once, which makes one set of rows.

mod account;
mod newcomers;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use evenkeel_domain::Time;
use evenkeel_domain::os::catalogue::{Catalogue, CycleOutcome, Wish};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_registry::FindingKind;
use evenkeel_store::contents::{self, Digest};
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::os_inside::{self, Made};
use evenkeel_store::os_reports::{self, Report};
use evenkeel_store::{Store, StoreError, os_profiles, os_settings};

use self::account::Account;
use crate::plan::{Gone, Plan, Stock, plan};
use crate::sources::{Source, Sources};

/// How many operating systems one transaction makes: each that is new wakes the nodes that hold their polls.
const AT_ONCE: usize = 20;

/// How many texts one transaction looks for.
const LOOKED_FOR: usize = 100;

/// Brings operating systems into projects. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Applier {
    store: Store,
    clock: Arc<dyn Clock>,
    /// What holds where a project says nothing.
    server: Wish,
    sources: Arc<Sources>,
    /// What the projects without a report take for which a registry was asked already. If nothing can be brought into one,
    /// that is tried again and again, and the registry is not asked each time.
    asked: Arc<Mutex<HashMap<TenantId, Catalogue>>>,
}

/// What becomes of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Taken {
    /// Nothing is wanted.
    Nothing,
    /// It cannot be had; why not.
    Impossible(String),
    /// This.
    This(Catalogue),
}

/// What is known of a registry, and what it comes to for whoever takes the same of it.
#[derive(Debug)]
struct Offer {
    plan: Plan,
    cycle: i64,
    /// When the registry was asked, if it ever was.
    asked_at: Option<Time>,
    /// Why it could not be asked the last time.
    failed: Option<String>,
}

impl Applier {
    /// One on a store.
    pub(crate) fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        server: Wish,
        sources: Arc<Sources>,
    ) -> Self {
        Self {
            store,
            clock,
            server,
            sources,
            asked: Arc::default(),
        }
    }

    /// What projects take of a registry, each once.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(crate) async fn wanted(&self, registry: &str) -> Result<Vec<Catalogue>, StoreError> {
        let takers = self.takers(registry).await?.into_iter();
        Ok(takers.map(|(catalogue, _)| catalogue).collect())
    }

    /// Brings what a registry has into all projects that take it. Says in how many.
    ///
    /// It is called in a cycle when everything was fetched that was `gathered`, and after one that failed: then reports say
    /// why. Who took to something else meanwhile gets nothing, and no report: what it takes was not asked for, so nobody
    /// knows whether it is there. It is found [`missing`](Self::missing).
    ///
    /// # Errors
    /// The database cannot be reached. What is wrong with one project does not keep the others from theirs.
    pub(crate) async fn all(
        &self,
        registry: &str,
        gathered: Option<&[Catalogue]>,
    ) -> Result<u64, StoreError> {
        let Some(source) = self.sources.find(registry) else {
            return Ok(0);
        };
        let mut done = 0;
        let mut found = BTreeMap::new();
        let takers = self.takers(registry).await?.into_iter();
        let is_known =
            |catalogue: &Catalogue| gathered.is_none_or(|gathered| gathered.contains(catalogue));
        for (catalogue, tenants) in takers.filter(|(catalogue, _)| is_known(catalogue)) {
            let in_cycle = gathered.is_some();
            let Some(offer) = self.offer(&catalogue, &source, in_cycle).await? else {
                return Ok(0);
            };
            for tenant in tenants {
                match self.apply(tenant, &catalogue, &offer).await {
                    Ok(Some(report)) => {
                        done += 1;
                        count(&mut found, &report);
                    }
                    Ok(None) => {}
                    Err(error) => alone(tenant, error)?,
                }
            }
        }
        note(registry, &found);
        Ok(done)
    }

    /// Brings what is known by now into one project. False if nothing is known yet of what it takes, or if it wants
    /// something else by now than it did when its registry was asked for it.
    ///
    /// # Errors
    /// The database cannot be reached, or the project is being removed.
    async fn project(&self, tenant: TenantId, taken: &Taken) -> Result<bool, StoreError> {
        let wish = self.wish(tenant).await?;
        if self.taken(&wish) != *taken {
            return Ok(false);
        }
        let Taken::This(catalogue) = taken else {
            return self.tell_nothing(tenant, &wish, taken).await;
        };
        // It was found a moment ago.
        let Some(source) = self.sources.find(&catalogue.registry) else {
            return Ok(false);
        };
        let Some(offer) = self.offer(catalogue, &source, false).await? else {
            return Ok(false);
        };
        Ok(self.apply(tenant, catalogue, &offer).await?.is_some())
    }

    async fn wish(&self, tenant: TenantId) -> Result<Wish, StoreError> {
        let tx = self.store.tenant(tenant).await?;
        let wish = os_settings::find(&tx).await?;
        Ok(wish.unwrap_or_default().or(&self.server))
    }

    fn taken(&self, wish: &Wish) -> Taken {
        match wish.whole() {
            Ok(None) => Taken::Nothing,
            Err(invalid) => Taken::Impossible(invalid.to_string()),
            Ok(Some(catalogue)) if self.sources.find(&catalogue.registry).is_none() => {
                let registry = catalogue.registry;
                Taken::Impossible(format!("the server knows no registry called {registry}"))
            }
            Ok(Some(catalogue)) => Taken::This(catalogue),
        }
    }

    /// Who takes something of a registry: the projects that take the same are together.
    async fn takers(&self, registry: &str) -> Result<Vec<(Catalogue, Vec<TenantId>)>, StoreError> {
        let tx = self.store.fleet().await?;
        let wishes = os_settings::all(&tx).await?;
        drop(tx);
        let mut takers: Vec<(Catalogue, Vec<TenantId>)> = Vec::new();
        for (tenant, wish) in wishes {
            let wish = wish.unwrap_or_default().or(&self.server);
            // What is wrong with a wish was told when it was noticed.
            let Ok(Some(catalogue)) = wish.whole() else {
                continue;
            };
            if catalogue.registry != registry {
                continue;
            }
            match takers.iter_mut().find(|(taken, _)| *taken == catalogue) {
                Some((_, tenants)) => tenants.push(tenant),
                None => takers.push((catalogue, vec![tenant])),
            }
        }
        Ok(takers)
    }

    /// What is known of a registry, and what it comes to for whoever takes this of it. None if it was never asked to the
    /// end.
    async fn offer(
        &self,
        catalogue: &Catalogue,
        source: &Source,
        in_cycle: bool,
    ) -> Result<Option<Offer>, StoreError> {
        let name = |profile: &String| format!("{}{profile}", source.prefix);
        let repositories: Vec<String> = catalogue.enabled.iter().map(name).collect();
        let tx = self.store.fleet().await?;
        let Some(state) = os_catalogue::state(&tx, &catalogue.registry).await? else {
            return Ok(None);
        };
        let holds = in_cycle && state.claimed.is_some();
        if !holds && state.ended_at.is_none() {
            return Ok(None);
        }
        let artifacts = os_catalogue::artifacts(&tx, &catalogue.registry, &repositories).await?;
        let sides = os_catalogue::sides(&tx, &catalogue.registry).await?;
        drop(tx);
        let stock = Stock {
            prefix: &source.prefix,
            trust: source.trust,
            artifacts: &artifacts,
            sides: &sides,
        };
        Ok(Some(Offer {
            plan: plan(catalogue, &stock, self.clock.now()),
            cycle: if holds { state.claimed } else { None }.unwrap_or(state.done),
            asked_at: state.started_at,
            failed: why_failed(state, holds),
        }))
    }

    /// Brings a plan into a project. None if the project wants something else by now, or if what is brought was
    /// replaced meanwhile: then a cycle goes on, and brings it itself.
    async fn apply(
        &self,
        tenant: TenantId,
        catalogue: &Catalogue,
        offer: &Offer,
    ) -> Result<Option<Report>, StoreError> {
        let begun = self.clock.now();
        let plan = &offer.plan;
        if !self.bring(tenant, &catalogue.registry, plan).await? {
            return Ok(None);
        }
        let mut account = Account::of(plan);
        for made in plan.made.chunks(AT_ONCE) {
            self.keep(tenant, made, &mut account).await?;
        }
        for gone in plan.gone.chunks(LOOKED_FOR) {
            self.look_for(tenant, gone, &mut account).await?;
        }
        let outcome = match offer.failed {
            Some(_) => CycleOutcome::Failed,
            None => account.outcome(),
        };
        let started = offer.asked_at.unwrap_or(begun);
        // The one is by the clock of the database, the other by this machine's.
        let ended = self.clock.now().max(started);
        let report = Report {
            registry: catalogue.registry.clone(),
            revision: catalogue.wanted.to_string(),
            outcome,
            message: offer.failed.clone().unwrap_or_default(),
            cycle: offer.cycle,
            started_at: started,
            ended_at: ended,
            made: account.made,
            refreshed: account.refreshed,
            same: account.same,
            refused: account.refused,
            findings: account.rows(ended),
        };
        let taken = Taken::This(catalogue.clone());
        let is_told = self.tell(tenant, &taken, &report).await?;
        Ok(is_told.then_some(report))
    }

    /// Brings the texts of a plan into a project, each in a transaction of its own: they are long. False if one was
    /// replaced meanwhile.
    async fn bring(
        &self,
        tenant: TenantId,
        registry: &str,
        plan: &Plan,
    ) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let mut there: HashSet<Digest> = HashSet::new();
        let digests: Vec<&Digest> = plan.bodies.keys().collect();
        for some in digests.chunks(LOOKED_FOR) {
            let tx = self.store.tenant(tenant).await?;
            for digest in some {
                if contents::touch(&tx, digest, now).await? {
                    there.insert(**digest);
                }
            }
            tx.commit().await?;
        }
        for (digest, key) in &plan.bodies {
            if there.contains(digest) {
                continue;
            }
            let tx = self.store.fleet().await?;
            let body = os_catalogue::side_body(&tx, registry, key).await?;
            drop(tx);
            let Some(body) = body.filter(|body| is_of(body, digest)) else {
                return Ok(false);
            };
            let tx = self.store.tenant(tenant).await?;
            contents::put(&tx, digest, &body, now).await?;
            tx.commit().await?;
        }
        Ok(true)
    }

    /// Keeps some operating systems in a project.
    async fn keep<'a>(
        &self,
        tenant: TenantId,
        some: &'a [Made],
        account: &mut Account<'a>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let tx = self.store.tenant(tenant).await?;
        let mut kept = Vec::with_capacity(some.len());
        for made in some {
            match os_inside::keep(&tx, made, now).await {
                Ok(one) => kept.push(Ok(one)),
                // It was found before anything was written, so the others go on.
                Err(StoreError::Conflict(conflict)) => kept.push(Err(conflict)),
                Err(error) => return Err(error),
            }
        }
        tx.commit().await?;
        for (made, kept) in some.iter().zip(kept) {
            match kept {
                Ok(kept) => account.note(made, kept),
                Err(conflict) => account.refuse(made, &conflict),
            }
        }
        Ok(())
    }

    /// Looks which operating systems there are of revisions that are gone.
    async fn look_for(
        &self,
        tenant: TenantId,
        some: &[Gone],
        account: &mut Account<'_>,
    ) -> Result<(), StoreError> {
        let tx = self.store.tenant(tenant).await?;
        for gone in some {
            let os = os_profiles::find_image(&tx, &gone.profile_name, &gone.image_id).await?;
            if let Some(os) = os {
                account.note_gone(gone, os.id);
            }
        }
        Ok(())
    }

    /// Says of a project that takes nothing why that is so.
    async fn tell_nothing(
        &self,
        tenant: TenantId,
        wish: &Wish,
        taken: &Taken,
    ) -> Result<bool, StoreError> {
        let (outcome, message) = match taken {
            Taken::Impossible(why) => (CycleOutcome::Failed, why.clone()),
            _ => (CycleOutcome::Good, String::new()),
        };
        let now = self.clock.now();
        let report = Report {
            registry: wish.registry.clone().unwrap_or_default(),
            revision: wish.revision.clone().unwrap_or_default(),
            outcome,
            message,
            cycle: 0,
            started_at: now,
            ended_at: now,
            made: 0,
            refreshed: 0,
            same: 0,
            refused: 0,
            findings: Vec::new(),
        };
        self.tell(tenant, taken, &report).await
    }

    /// Writes the report of a project. False if it wants something else by now, or was told of a later cycle.
    async fn tell(
        &self,
        tenant: TenantId,
        taken: &Taken,
        report: &Report,
    ) -> Result<bool, StoreError> {
        let tx = self.store.tenant(tenant).await?;
        // Whoever changes the wish waits, and removes this report.
        tx.write_wanted().await?;
        let wish = os_settings::find(&tx).await?.unwrap_or_default();
        if self.taken(&wish.or(&self.server)) != *taken {
            return Ok(false);
        }
        let before = os_reports::find(&tx).await?;
        let is_later =
            |before: Report| before.registry == report.registry && before.cycle > report.cycle;
        if before.is_some_and(is_later) {
            return Ok(false);
        }
        os_reports::replace(&tx, report).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Why a registry could not be asked the last time, if it could not. Who is in a cycle could ask it.
fn why_failed(state: CycleState, holds: bool) -> Option<String> {
    (!holds && state.outcome == Some(CycleOutcome::Failed)).then_some(state.message)
}

fn is_of(body: &str, digest: &Digest) -> bool {
    evenkeel_registry::Digest::of(body.as_bytes()).bytes() == digest
}

/// What is wrong with one project is nothing to the others, unless it is the database.
fn alone(tenant: TenantId, error: StoreError) -> Result<(), StoreError> {
    if matches!(error, StoreError::Unreachable(_)) {
        return Err(error);
    }
    // It is being removed, or somebody holds it for long: the next cycle comes by.
    tracing::warn!(%tenant, error = %chain(&error), "operating systems could not be brought into a project");
    Ok(())
}

/// Counts what was found, by its kind.
fn count(found: &mut BTreeMap<String, u32>, report: &Report) {
    for row in &report.findings {
        *found.entry(row.kind.clone()).or_default() += 1;
    }
}

/// Notes how much was found in a registry, over all projects.
fn note(registry: &str, found: &BTreeMap<String, u32>) {
    for kind in FindingKind::ALL {
        let labels = [
            ("registry", registry.to_owned()),
            ("kind", kind.name().to_owned()),
        ];
        let count = found.get(kind.name()).copied().unwrap_or_default();
        metrics::gauge!("evenkeel_os_findings", &labels).set(count);
    }
}
