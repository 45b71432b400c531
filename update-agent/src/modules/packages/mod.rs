//! Packages of a Debian system, changed with apt and dpkg.
//!
//! The whole plan is fetched into a folder of the agent, checked and flushed before anything changes, and installed from
//! there without any source. The files stay until the new state is verified: they are the way forward when the power
//! goes in the middle. An exit status proves nothing here; what counts is the state of each package and dpkg's audit.

mod apt;
mod dpkg_lock;
mod files;
mod names;
mod parse;
mod plan;
mod repair;
mod sources;

use std::collections::BTreeMap;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};

use self::apt::{failure, storage};
use self::dpkg_lock::{DpkgLock, DpkgLockError};
use self::files::Archives;
use self::parse::Known;
use crate::model::{Failure, FailureKind, PackageMode, PackageResult, PackageWish, Wish};
use crate::modules::{Draft, Module, Ready, Try, Undone, Verdict};
use crate::place::Place;

pub use self::apt::{Limits, Tools};
pub use self::files::{Deb, Digest, hex};
pub use self::parse::{Install, Kept, Known as KnownPackage, Simulation};
pub use self::plan::{Item, Observed, Step};

/// Bring packages to a state.
#[derive(Debug)]
pub struct Packages {
    tools: Tools,
    place: Place,
    archives: Archives,
}

impl Packages {
    /// The packages of a place.
    pub fn new(tools: Tools, place: Place) -> Self {
        let archives = Archives::of(&place);
        Self {
            tools,
            place,
            archives,
        }
    }

    /// The part of a wish that speaks of packages.
    pub fn wanted(wish: &Wish) -> Option<&PackageWish> {
        match wish {
            Wish::Packages(packages) => Some(packages),
            Wish::Unknown => None,
        }
    }

    /// Looks at the packages of a plan, and at dpkg's audit.
    async fn look(&self, steps: &[Step]) -> Result<Verdict, Failure> {
        let installed = self.installed().await?;
        let audit = self.tools.audit().await?;
        let items: Vec<_> = steps.iter().flat_map(Step::items).collect();
        let results = items.iter().map(|item| result(item, &installed)).collect();
        let wrong = items.iter().filter_map(|item| wrong(item, &installed));
        let wrong: Vec<_> = wrong.collect();
        let reason = match (wrong.is_empty(), audit.is_empty()) {
            (true, true) => None,
            (false, _) => Some(plan::enumerate(wrong)),
            (true, false) => Some("dpkg finds packages in a mess".to_owned()),
        };
        Ok(Verdict {
            results,
            problem: reason.map(|reason| Failure::with_log(FailureKind::Verify, reason, &audit)),
        })
    }

    /// The packages that are there, by their name as apt says it.
    async fn installed(&self) -> Result<BTreeMap<String, Known>, Failure> {
        let native = self.tools.architecture().await?;
        let known = self.tools.list().await?.into_iter();
        Ok(known.map(|known| (known.package(&native), known)).collect())
    }

    async fn lock(&self, wait: Duration) -> Result<DpkgLock, Failure> {
        DpkgLock::take(&self.place, wait)
            .await
            .map_err(|error| match error {
                DpkgLockError::File(error) => storage(error),
                held @ DpkgLockError::Held(_) => Failure::new(FailureKind::Apply, held.to_string()),
            })
    }

    async fn install(&self, step: &Step, debs: &[Deb], trying: Try) -> Result<(), Failure> {
        if trying == Try::Again {
            return self.repair(step, debs).await;
        }
        let output = self.tools.install_files(debs).await?;
        if output.succeeded() {
            return Ok(());
        }
        // One package's failure leaves others unpacked that could be finished.
        let mut failed = failure(FailureKind::Apply, "apt-get install", &output);
        if let Ok(after) = self.finish_what_can_be().await {
            let log = format!("{}\n{}", failed.log, parse::words(&after));
            failed = Failure::with_log(failed.kind, failed.reason, &log);
        }
        Err(failed)
    }

    async fn configure(&self) -> Result<(), Failure> {
        let _lock = self.lock(self.tools.limits().lock).await?;
        let output = self.tools.configure().await?;
        if output.succeeded() {
            return Ok(());
        }
        Err(failure(FailureKind::Apply, "dpkg --configure", &output))
    }

    async fn finish_what_can_be(&self) -> Result<String, Failure> {
        let _lock = self.lock(self.tools.limits().lock).await?;
        Ok(self.tools.configure().await?.words())
    }

    /// Whether the node is as it was when the plan was made, or further on the way.
    async fn check_unchanged(&self, steps: &[Step]) -> Result<(), Failure> {
        let installed = self.installed().await?;
        let version = |item: &Item| {
            let known = installed
                .get(&item.package)
                .filter(|known| known.is_present());
            known.map(|known| known.version.clone())
        };
        let moved = steps.iter().flat_map(Step::items).filter(|item| {
            let version = version(item);
            version != item.change.before && version != item.change.after
        });
        let moved: Vec<_> = moved.map(|item| item.package.clone()).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "these packages were changed by someone else since the plan was made: {}",
            plan::enumerate(moved)
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }

    /// Whether apt would do what was planned, and nothing else.
    async fn check_simulation(&self, items: &[Item], debs: &[Deb]) -> Result<(), Failure> {
        let simulation = self.tools.simulate_files(debs).await?;
        let planned = |install: &&Install| {
            let item = items.iter().find(|item| item.package == install.package);
            item.is_none_or(|item| item.change.after.as_ref() != Some(&install.after))
        };
        let more = simulation.installs.iter().filter(planned);
        let more = more.map(|install| format!("install {} {}", install.package, install.after));
        let removed = simulation.removals.iter();
        let surprises: Vec<_> = removed
            .map(|package| format!("remove {package}"))
            .chain(more)
            .collect();
        if surprises.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the plan no longer fits the node, apt would also {}",
            plan::enumerate(surprises)
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }
}

/// A package of the plan as it is now.
fn result(item: &Item, installed: &BTreeMap<String, Known>) -> PackageResult {
    let known = installed.get(&item.package);
    let architecture = known.map_or(&item.change.architecture, |known| &known.architecture);
    PackageResult {
        name: item.change.name.clone(),
        architecture: architecture.clone(),
        version: known
            .filter(|known| known.is_present())
            .map_or_else(String::new, |known| known.version.clone()),
        state: known.map_or_else(String::new, |known| known.state.clone()),
    }
}

/// What is wrong with a package of the plan, in words.
fn wrong(item: &Item, installed: &BTreeMap<String, Known>) -> Option<String> {
    let wanted = item.change.after.as_deref().unwrap_or("removed");
    match installed.get(&item.package) {
        Some(known) if known.version == wanted && known.state == "installed" => None,
        Some(known) if known.is_present() => Some(format!(
            "{} is {} and {} instead of {wanted} and installed",
            item.package, known.version, known.state
        )),
        _ => Some(format!("{} is not there instead of {wanted}", item.package)),
    }
}

/// A failure that may pass by itself within seconds: a network that hiccups, lists that another apt has locked.
fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_secs(1))
        .with_max_delay(Duration::from_secs(10))
        .with_jitter()
        .with_max_times(2)
}

fn may_pass(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refresh | FailureKind::Download)
}

impl Module for Packages {
    const NAME: &'static str = "packages";
    const STEPS: &'static [&'static str] = Step::NAMES;
    type Wanted = PackageWish;
    type Observed = Observed;
    type Step = Step;

    async fn refresh(&self, wanted: Option<&PackageWish>) -> Result<(), Failure> {
        let own = wanted.is_some_and(|wanted| !wanted.sources.is_empty());
        if let Some(wanted) = wanted {
            names::validate(wanted)?;
        }
        if let Some(wanted) = wanted.filter(|_| own) {
            sources::write(&self.place, &wanted.sources).map_err(storage)?;
        }
        (|| self.tools.update(own))
            .retry(backoff())
            .sleep(tokio::time::sleep)
            .when(may_pass)
            .await
    }

    async fn observe(&self, wanted: &PackageWish) -> Result<Observed, Failure> {
        names::validate(wanted)?;
        self.archives.clean().map_err(storage)?;
        self.archives.prepare().map_err(storage)?;
        let simulation = self.tools.simulate(wanted).await?;
        let orders: Vec<_> = if simulation.removals.is_empty() {
            simulation.installs.iter().map(order).collect()
        } else {
            Vec::new()
        };
        Ok(Observed {
            native: self.tools.architecture().await?,
            known: self.tools.list().await?,
            debs: self
                .tools
                .files(&orders, !wanted.sources.is_empty())
                .await?,
            automatic: self.tools.automatic().await?,
            simulation,
        })
    }

    fn plan(wanted: &PackageWish, observed: &Observed) -> Result<Draft<Step>, Failure> {
        plan::plan(wanted, observed)
    }

    fn step_name(step: &Step) -> &'static str {
        step.name()
    }

    async fn fetch(&self, step: &Step) -> Result<(), Failure> {
        let Step::Install {
            debs, own_sources, ..
        } = step
        else {
            return Ok(());
        };
        self.archives.prepare().map_err(storage)?;
        let missing = || self.archives.missing(debs).map_err(storage);
        let fetch = || async {
            let wanted = missing()?;
            if wanted.is_empty() {
                return Ok(());
            }
            self.tools.download(&wanted, *own_sources).await?;
            let broken = missing()?;
            if broken.is_empty() {
                return Ok(());
            }
            let names = plan::enumerate(broken.iter().map(|deb| deb.name.clone()));
            let reason = format!("these files are not what the index says: {names}");
            Err(Failure::new(FailureKind::Signature, reason))
        };
        fetch
            .retry(backoff())
            .sleep(tokio::time::sleep)
            .when(may_pass)
            .await?;
        self.archives.flush(debs).map_err(storage)
    }

    async fn check(&self, steps: &[Step]) -> Result<Ready, Failure> {
        match DpkgLock::take(&self.place, self.tools.limits().lock).await {
            Ok(_) => {}
            Err(held @ DpkgLockError::Held(_)) => return Ok(Ready::NotYet(held.to_string())),
            Err(DpkgLockError::File(error)) => return Err(storage(error)),
        }
        self.check_unchanged(steps).await?;
        for step in steps {
            if let Step::Install { items, debs, .. } = step {
                self.check_simulation(items, debs).await?;
            }
        }
        Ok(Ready::Yes)
    }

    async fn at_work(&self, trying: Try) -> Result<Option<String>, Failure> {
        let held = match trying {
            Try::First => DpkgLock::is_held(&self.place).map_err(storage)?,
            Try::Again => match DpkgLock::take(&self.place, self.tools.limits().lock).await {
                Ok(_) => false,
                Err(DpkgLockError::Held(_)) => true,
                Err(DpkgLockError::File(error)) => return Err(storage(error)),
            },
        };
        Ok(held.then(|| "another program holds dpkg's lock".to_owned()))
    }

    async fn apply(&self, step: &Step, trying: Try) -> Result<(), Failure> {
        match step {
            Step::Install { debs, .. } => self.install(step, debs, trying).await,
            Step::Configure { .. } => self.configure().await,
            Step::Mark { automatic } => self.tools.mark_automatic(automatic).await,
        }
    }

    async fn verify(&self, steps: &[Step]) -> Result<Verdict, Failure> {
        self.look(steps).await
    }

    async fn is_untouched(&self, steps: &[Step]) -> Result<bool, Failure> {
        if DpkgLock::is_held(&self.place).map_err(storage)? || !self.tools.audit().await?.is_empty()
        {
            return Ok(false);
        }
        let installed = self.installed().await?;
        let as_before = |item: &Item| {
            let known = installed
                .get(&item.package)
                .filter(|known| known.is_present());
            let state = known.is_none_or(|known| known.state == "installed");
            state && known.map(|known| &known.version) == item.change.before.as_ref()
        };
        Ok(steps.iter().flat_map(Step::items).all(as_before))
    }

    async fn undo(&self, _steps: &[Step]) -> Result<Undone, Failure> {
        // Older versions are rarely in the sources any more, and maintainer scripts do not know the way back.
        Ok(Undone::Impossible)
    }

    fn clean(&self) -> Result<(), Failure> {
        // A dpkg that outlived its attempt may still need the files: they go the next time.
        if self.archives.is_used() && DpkgLock::is_held(&self.place).map_err(storage)? {
            let reason = "the kept files stay, because dpkg is still at work";
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        self.archives.clean().map_err(storage)?;
        sources::clean(&self.place).map_err(storage)
    }
}

/// Everything to the newest version, as apt itself would do it: what the node's facts are made of.
pub fn latest() -> PackageWish {
    PackageWish {
        mode: PackageMode::Latest,
        sources: Vec::new(),
    }
}

fn order(install: &Install) -> String {
    format!("{}={}", install.package, install.after)
}
