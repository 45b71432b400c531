//! Packages of a Debian system, changed with apt and dpkg.
//!
//! The whole plan is fetched into a folder of the agent, checked and flushed before anything changes, and installed from
//! there without any source. The files stay until the new state is verified: they are the way forward when the power
//! goes in the middle. An exit status proves nothing here; what counts is the state of each package and dpkg's audit.

mod advice;
mod apt;
mod aptlog;
mod audit;
mod dpkg;
mod dpkg_lock;
mod fetch;
mod files;
mod names;
mod note;
mod observe;
mod parse;
mod plan;
mod refusals;
mod repair;
mod rules;
mod services;
mod sources;
mod space;
mod targets;
mod verify;
mod withheld;

use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};

use self::apt::{Transaction, failure, storage};
use self::dpkg_lock::{DpkgLock, DpkgLockError};
use self::files::Archives;
use crate::model::{Failure, FailureKind, PackageMode, PackageWish, Wish};
use crate::modules::{After, Draft, Fetched, Module, Ready, Try, Undone, Verdict};
use crate::owner::{Owner, OwnerLimits};
use crate::place::Place;
use crate::runner::Output;

pub use self::apt::{Limits, Tools};
pub use self::files::{Deb, Digest, hex};
pub use self::note::{Asked, Baseline};
pub use self::parse::{Exact, Install, Kept, Known as KnownPackage, Simulation};
pub use self::plan::{Installed, Item, Observed, Step, by_package};
pub use self::rules::are_among;
pub use self::sources::{Preferences, Shown, View, has_preferences};
pub use self::targets::{Target, suites};
pub use self::withheld::{Seen, withheld};

/// Bring packages to a state.
#[derive(Debug)]
pub struct Packages {
    tools: Tools,
    place: Place,
    archives: Archives,
    owner: Arc<Owner>,
    services: bool,
}

impl Packages {
    /// The packages of a place. `services` says whether the services of the running system are those of the place.
    pub fn new(tools: Tools, place: Place, owner: Arc<Owner>, services: bool) -> Self {
        let archives = Archives::of(&place);
        Self {
            tools,
            place,
            archives,
            owner,
            services,
        }
    }

    /// The part of a wish that speaks of packages.
    pub fn wanted(wish: &Wish) -> Option<&PackageWish> {
        match wish {
            Wish::Packages(packages) => Some(packages),
            Wish::Image(_) | Wish::Unknown => None,
        }
    }

    async fn lock(&self, wait: Duration) -> Result<DpkgLock, Failure> {
        DpkgLock::take(&self.place, wait)
            .await
            .map_err(|error| match error {
                DpkgLockError::File(error) => storage(error),
                held @ DpkgLockError::Held(_) => Failure::new(FailureKind::Apply, held.to_string()),
            })
    }

    async fn install(&self, step: &Step, trying: Try) -> Result<(), Failure> {
        if trying == Try::Again {
            return self.repair(step).await;
        }
        let start = aptlog::length(&self.place);
        self.enter_notes().await?;
        let output = self.run_transaction(step).await?;
        if output.succeeded() {
            return Ok(());
        }
        // One package's failure leaves others unpacked that could be finished.
        let mut failed = failure(FailureKind::Apply, "apt-get install", &output);
        if let Ok(after) = self.finish_what_can_be().await {
            let log = format!("{}\n{}", failed.log, parse::words(&after));
            failed = Failure::with_log(failed.kind, failed.reason, &log);
        }
        Err(aptlog::with_log(failed, &aptlog::since(&self.place, start)))
    }

    /// Lets apt do what a step says, in one transaction.
    async fn run_transaction(&self, step: &Step) -> Result<Output, Failure> {
        let left = self.left_to_remove(step).await?;
        self.tools.install_files(&transaction(step, &left)).await
    }

    /// What a step removes and is still there: apt does not know every package that is not.
    async fn left_to_remove(&self, step: &Step) -> Result<Vec<String>, Failure> {
        let mut removals: Vec<_> = step
            .items()
            .filter(|item| item.change.after.is_none())
            .map(|item| item.package.clone())
            .collect();
        if !removals.is_empty() {
            let installed = self.installed().await?;
            let is_there = |package: &String| {
                let known = installed.get(package);
                known.is_some_and(KnownPackage::is_present)
            };
            removals.retain(is_there);
        }
        Ok(removals)
    }

    async fn configure(&self) -> Result<(), Failure> {
        let start = aptlog::length(&self.place);
        let _lock = self.lock(self.tools.limits().lock).await?;
        let output = self.tools.configure().await?;
        if output.succeeded() {
            return Ok(());
        }
        let failed = failure(FailureKind::Apply, "dpkg --configure", &output);
        Err(aptlog::with_log(failed, &aptlog::since(&self.place, start)))
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

    /// Whether the machine's owner, who may have thought otherwise when the plan was made, allows its downgrades.
    fn downgrades_are_allowed(&self, steps: &[Step]) -> Result<(), String> {
        let limits = self.owner.limits().map_err(|error| error.to_string())?;
        let has_some = |step: &Step| {
            matches!(
                step,
                Step::Install {
                    downgrades: true,
                    ..
                }
            )
        };
        if limits.downgrades || !steps.iter().any(has_some) {
            return Ok(());
        }
        Err("the machine's owner allows no downgrades, and the change has some".to_owned())
    }

    /// Whether apt would do what was planned, and nothing else.
    async fn check_simulation(&self, step: &Step) -> Result<(), Failure> {
        let left = self.left_to_remove(step).await?;
        let simulation = self.tools.simulate_files(&transaction(step, &left)).await?;
        let is_planned = |install: &Install| {
            step.items().any(|item| {
                item.package == install.package
                    && item.change.after.as_ref() == Some(&install.after)
            })
        };
        let more = simulation
            .installs
            .iter()
            .filter(|install| !is_planned(install));
        let more = more.map(|install| format!("install {} {}", install.package, install.after));
        let removed = simulation
            .removals
            .iter()
            .filter(|package| !left.contains(package));
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

    /// Fetches what is not there yet of the files of a plan.
    async fn fetch_missing(&self, debs: &[Deb], view: View, pace: u64) -> Result<(), Failure> {
        let missing = || self.archives.missing(debs).map_err(storage);
        let wanted = missing()?;
        if wanted.is_empty() {
            return Ok(());
        }
        space::check(
            self.archives.folder(),
            wanted.iter().map(|deb| deb.size).sum(),
        )?;
        let was_begun = self.archives.has_begun(&wanted);
        let mut fetched = self.tools.download(&wanted, view, pace).await;
        let is_broken = |failure: &Failure| failure.kind == FailureKind::Signature;
        if was_begun && fetched.as_ref().is_err_and(is_broken) {
            // What was begun before a power cut may be what is broken.
            self.archives.drop_broken(&wanted).map_err(storage)?;
            fetched = self.tools.download(&missing()?, view, pace).await;
        }
        self.archives.drop_broken(&wanted).map_err(storage)?;
        fetched?;
        let broken = missing()?;
        if broken.is_empty() {
            return Ok(());
        }
        let names = plan::enumerate(broken.iter().map(|deb| deb.name.clone()));
        let reason = format!("these files are not what the index says: {names}");
        Err(Failure::new(FailureKind::Signature, reason))
    }
}

/// What apt is to do for a step, of whose removals these are left.
fn transaction<'a>(step: &'a Step, left: &'a [String]) -> Transaction<'a> {
    Transaction {
        debs: step.debs(),
        removals: left.iter().map(String::as_str).collect(),
        downgrades: matches!(step, Step::Install { downgrades, .. } if *downgrades),
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
    type Baseline = Baseline;

    async fn refresh(&self, wanted: Option<&PackageWish>) -> Result<(), Failure> {
        let (wanted, limits) = match wanted {
            Some(wanted) => {
                names::validate(wanted)?;
                (wanted.clone(), self.limits()?)
            }
            None => (latest(), OwnerLimits::default()),
        };
        (|| self.renew_lists(&wanted, &limits))
            .retry(backoff())
            .sleep(tokio::time::sleep)
            .when(may_pass)
            .await
    }

    async fn observe(&self, wanted: &PackageWish) -> Result<Observed, Failure> {
        names::validate(wanted)?;
        let limits = self.limits()?;
        self.look_ahead(wanted, limits).await
    }

    fn plan(wanted: &PackageWish, observed: &Observed) -> Result<Draft<Step>, Failure> {
        plan::plan(wanted, observed)
    }

    fn step_name(step: &Step) -> &'static str {
        step.name()
    }

    async fn fetch(&self, step: &Step) -> Result<Fetched, Failure> {
        let Step::Install {
            debs,
            own_sources,
            pace,
            ..
        } = step
        else {
            return Ok(Fetched::All);
        };
        let view = View::of(if *own_sources {
            Shown::Allowed
        } else {
            Shown::System
        });
        self.archives.prepare().map_err(storage)?;
        (|| self.fetch_missing(debs, view, *pace))
            .retry(backoff())
            .sleep(tokio::time::sleep)
            .when(may_pass)
            .await?;
        self.archives.flush(debs).map_err(storage)?;
        Ok(Fetched::All)
    }

    async fn check(&self, steps: &[Step]) -> Result<Ready, Failure> {
        match DpkgLock::take(&self.place, self.tools.limits().lock).await {
            Ok(_) => {}
            Err(held @ DpkgLockError::Held(_)) => return Ok(Ready::NotYet(held.to_string())),
            Err(DpkgLockError::File(error)) => return Err(storage(error)),
        }
        if let Err(why) = self.downgrades_are_allowed(steps) {
            return Ok(Ready::NotYet(why));
        }
        self.check_unchanged(steps).await?;
        for step in steps {
            if matches!(step, Step::Install { .. }) {
                self.check_simulation(step).await?;
            }
        }
        Ok(Ready::Yes)
    }

    async fn note(&self, steps: &[Step]) -> Result<Baseline, Failure> {
        self.baseline(steps).await
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
            Step::Install { .. } => self.install(step, trying).await,
            Step::Configure { .. } => self.configure().await,
            Step::Mark { automatic } => self.tools.mark_automatic(automatic).await,
        }
    }

    async fn verify(&self, steps: &[Step], baseline: &Baseline) -> Result<Verdict, Failure> {
        self.look(steps, baseline).await
    }

    async fn after(&self, steps: &[Step], baseline: &Baseline) -> Result<After, Failure> {
        Ok(self.follow_up(steps, baseline).await)
    }

    async fn is_untouched(&self, steps: &[Step]) -> Result<bool, Failure> {
        if DpkgLock::is_held(&self.place).map_err(storage)?
            || repair::notes_are_left(&self.place)?
            || !self.is_sound(steps).await?
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

    async fn undo(&self, steps: &[Step]) -> Result<Undone, Failure> {
        // Older versions are rarely in the sources any more, and maintainer scripts do not know the way back. But where a
        // script refused before anything was unpacked, there is nothing to go back from.
        if self.is_untouched(steps).await? {
            return Ok(Undone::Entirely);
        }
        Ok(Undone::Impossible)
    }

    fn clean(&self) -> Result<(), Failure> {
        // A dpkg that outlived its attempt may still need the files: they go the next time.
        if self.archives.is_used() && DpkgLock::is_held(&self.place).map_err(storage)? {
            let reason = "the kept files stay, because dpkg is still at work";
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        if !self.archives.is_kept() {
            self.archives.clean().map_err(storage)?;
        }
        sources::clean(&self.place).map_err(storage)
    }
}

/// Everything to the newest version, as apt itself would do it: what the node's facts are made of.
pub fn latest() -> PackageWish {
    PackageWish::new(PackageMode::Latest)
}
