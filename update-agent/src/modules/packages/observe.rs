//! Looking: what is there, and what apt would do, with what policy and owner leave out kept from it.

use std::collections::BTreeSet;

use super::plan::{Observed, enumerate};
use super::rules::{self, Suites};
use super::sources::{self, Preferences, Shown, View};
use super::targets::Target;
use super::{Packages, Simulation, storage};
use crate::model::{Failure, FailureKind, PackageMode, PackageRules, PackageWish};
use crate::os::{self, OsRelease};
use crate::owner::OwnerLimits;

/// Versions that may not be taken are pinned away one after the other, at most so often.
const MOST_ROUNDS: usize = 20;

impl Packages {
    /// What the machine's owner allows. If that cannot be told, nothing is.
    pub(super) fn limits(&self) -> Result<OwnerLimits, Failure> {
        let limits = self.owner.limits();
        limits.map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))
    }

    /// Makes the lists of packages current, as far as they are allowed, and the sources that apt is shown for a wish.
    pub(super) async fn renew_lists(
        &self,
        wanted: &PackageWish,
        limits: &OwnerLimits,
    ) -> Result<(), Failure> {
        let pace = wanted.rules.download_bytes_per_second;
        let suites = Suites::of(&wanted.rules, limits);
        if shown(wanted, &suites) == Shown::System {
            return self.tools.update(View::default(), pace).await;
        }
        let all = sources::all(&self.place, &wanted.sources).map_err(storage)?;
        sources::write(&self.place, Shown::Whole, &all).map_err(storage)?;
        let allowed = View::of(Shown::Allowed);
        if !suites.are_limited() {
            sources::write(&self.place, Shown::Allowed, &all).map_err(storage)?;
            return self.tools.update(allowed, pace).await;
        }
        // A suite of which nothing is known yet may have another name: its list tells.
        let whole = View::of(Shown::Whole);
        for is_lenient in [true, false] {
            let targets = self.tools.targets(whole).await?;
            let lets = |names: &BTreeSet<String>, is_known: bool| {
                suites.let_through(names) || (is_lenient && !is_known)
            };
            let left = sources::only(&all, &targets, &lets);
            if left.is_empty() {
                return Err(suites.missing());
            }
            sources::write(&self.place, Shown::Allowed, &left).map_err(storage)?;
            if is_lenient {
                self.tools.update(allowed, pace).await?;
            }
        }
        Ok(())
    }

    /// What is there, and what apt would do.
    pub(super) async fn look_ahead(
        &self,
        wanted: &PackageWish,
        limits: OwnerLimits,
    ) -> Result<Observed, Failure> {
        let known = self.tools.list().await?;
        self.make_room(known.iter().any(super::KnownPackage::is_torn))?;
        let native = self.tools.architecture().await?;
        let suites = Suites::of(&wanted.rules, &limits);
        let view = View::of(shown(wanted, &suites));
        let (simulation, is_pinned) = self.choose(wanted, &limits, view, &native).await?;
        let (free, unpinned) = self.compare(wanted, &limits, &suites, is_pinned).await?;
        let installs = &simulation.installs;
        let debs = self.tools.files(installs, view).await?;
        let sizes = self.tools.sizes(installs, view).await?;
        let targets = self.targets(wanted, &suites).await?;
        let reboot = os::reboot_required(&self.place).unwrap_or_default();
        Ok(Observed {
            native,
            known,
            free,
            unpinned,
            debs,
            sizes,
            automatic: self.tools.automatic().await?,
            targets,
            codename: OsRelease::of(&self.place).version_codename,
            rebooters: reboot.1,
            limits,
            simulation,
        })
    }

    /// What was fetched for other plans goes, unless a person needs it to mend a torn package.
    fn make_room(&self, is_torn: bool) -> Result<(), Failure> {
        if !(is_torn && self.archives.is_kept()) {
            self.archives.clean().map_err(storage)?;
        }
        self.archives.prepare().map_err(storage)
    }

    /// What apt would do by the rules, and whether it had to be kept from something.
    async fn choose(
        &self,
        wanted: &PackageWish,
        limits: &OwnerLimits,
        mut view: View,
        native: &str,
    ) -> Result<(Simulation, bool), Failure> {
        let removals = wanted.rules.allow_removals && limits.removals;
        let mut pinned = BTreeSet::new();
        if !wanted.rules.exclude.is_empty() {
            self.pin(&wanted.rules, &pinned)?;
            view = view.with(Preferences::Wish);
        }
        for _ in 0..MOST_ROUNDS {
            let simulation = self.tools.simulate(wanted, removals, view).await?;
            let offenders = rules::offenders(wanted, &simulation, native);
            if offenders.is_empty() {
                return Ok((simulation, view.preferences == Preferences::Wish));
            }
            tracing::debug!(
                packages = enumerate(offenders.iter().map(|(package, _)| package.clone())),
                "these versions may not be taken"
            );
            pinned.extend(offenders);
            self.pin(&wanted.rules, &pinned)?;
            view = view.with(Preferences::Wish);
        }
        let names = pinned.into_iter().map(|(package, _)| package);
        let reason = format!(
            "apt finds no way without versions that are excluded or too young, such as those of {}",
            enumerate(names.collect::<BTreeSet<_>>())
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }

    fn pin(
        &self,
        rules: &PackageRules,
        offenders: &BTreeSet<rules::Version>,
    ) -> Result<(), Failure> {
        let text = rules::pins(rules, offenders);
        sources::write_preferences(&self.place, &text).map_err(storage)
    }

    /// What apt would do without what policy and owner leave out, and then without the node's own preferences: so it can be
    /// told what they withhold. That it cannot be told stops nothing.
    async fn compare(
        &self,
        wanted: &PackageWish,
        limits: &OwnerLimits,
        suites: &Suites,
        is_pinned: bool,
    ) -> Result<(Option<Simulation>, Option<Simulation>), Failure> {
        if wanted.mode != PackageMode::Latest {
            return Ok((None, None));
        }
        let removals = wanted.rules.allow_removals && limits.removals;
        let all = View::of(everything(wanted, suites));
        let simulate = |view: View| async move {
            match self.tools.simulate(wanted, removals, view).await {
                Ok(simulation) => Some(simulation),
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot tell what is withheld");
                    None
                }
            }
        };
        let free = if is_pinned || suites.are_limited() {
            simulate(all).await
        } else {
            None
        };
        let unpinned = if sources::has_preferences(&self.place).map_err(storage)? {
            simulate(all.with(Preferences::Nothing)).await
        } else {
            None
        };
        Ok((free, unpinned))
    }

    /// The indexes of everything that is compared.
    async fn targets(&self, wanted: &PackageWish, suites: &Suites) -> Result<Vec<Target>, Failure> {
        let all = View::of(everything(wanted, suites));
        self.tools.targets(all).await
    }
}

/// Which sources apt is shown for a wish.
fn shown(wanted: &PackageWish, suites: &Suites) -> Shown {
    if wanted.sources.is_empty() && !suites.are_limited() {
        Shown::System
    } else {
        Shown::Allowed
    }
}

/// Which sources apt is shown to learn what is left out.
fn everything(wanted: &PackageWish, suites: &Suites) -> Shown {
    match shown(wanted, suites) {
        Shown::System => Shown::System,
        Shown::Whole | Shown::Allowed => Shown::Whole,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use chrono::DateTime;
    use evenkeel_kit::TestClock;

    use super::*;
    use crate::model::{KnownVersion, WithheldCause};
    use crate::modules::Module;
    use crate::modules::packages::{Limits, Tools};
    use crate::owner::Owner;
    use crate::place::Place;
    use crate::runner::{Command, Output, RunError, Runner};

    const ALLOWED: &str = "/var/lib/evenkeel-agent/sources";
    const PINS: &str = "/var/lib/evenkeel-agent/preferences/00-evenkeel";

    /// A system with `demo` 1, for which the sources have 3 and 2, that heeds preferences.
    struct Apt {
        place: Place,
        /// What the folder of allowed sources had when lists were made current, one text a time.
        updates: Mutex<Vec<String>>,
        /// What else apt was asked.
        commands: Mutex<Vec<String>>,
    }

    impl Apt {
        fn allowed(&self) -> String {
            fs::read_to_string(self.place.inside(ALLOWED).join("x.sources")).unwrap_or_default()
        }

        fn newest(&self, line: &str) -> &'static str {
            let heeds = line.contains("PreferencesParts=/var/lib/evenkeel-agent/preferences");
            let pins = fs::read_to_string(self.place.inside(PINS)).unwrap_or_default();
            if heeds && pins.contains("Package: demo\nPin: version 3\n") {
                "2"
            } else {
                "3"
            }
        }

        fn apt_get(&self, line: &str) -> String {
            if line.contains(" update ") {
                self.updates.lock().unwrap().push(self.allowed());
                return String::new();
            }
            if line.contains(" indextargets ") {
                let suites = [
                    ("stable", "bookworm", true),
                    ("stable-security", "bookworm-security", true),
                    ("other", "other", !self.updates.lock().unwrap().is_empty()),
                ];
                let known = suites.iter().filter(|(_, _, is_known)| *is_known);
                let lines = known.map(|(release, codename, _)| {
                    format!("http://x/\t{release}\t{release}\t{codename}\tDebian\t12\n")
                });
                return lines.collect();
            }
            self.commands.lock().unwrap().push(line.to_owned());
            if line.contains(" --print-uris ") {
                let version = line.rsplit('=').next().unwrap();
                let digest = "ab".repeat(32);
                return format!(
                    "'http://x/demo_{version}_all.deb' demo_{version}_all.deb 7 SHA256:{digest}\n"
                );
            }
            let version = self.newest(line);
            format!("Inst demo [1] ({version} Debian:12/stable-security [all])\n")
        }
    }

    #[async_trait::async_trait]
    impl Runner for Apt {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            let line = command.to_string();
            let stdout = match command.program.as_str() {
                "apt-get" => self.apt_get(&line),
                "dpkg-query" => "demo\tall\t1\tinstall\tinstalled\tok\t8\n".to_owned(),
                "dpkg" => "amd64\n".to_owned(),
                "apt-cache" => {
                    "Package: demo\nVersion: 2\nArchitecture: all\nInstalled-Size: 9\n".to_owned()
                }
                _ => String::new(),
            };
            Ok(Output {
                status: Some(0),
                stdout,
                stderr: String::new(),
            })
        }
    }

    fn system(root: &tempfile::TempDir) -> (Arc<Apt>, Packages) {
        let place = Place::new(root.path(), None);
        std::fs::create_dir_all(place.inside("/var/lib/dpkg")).unwrap();
        let apt = Arc::new(Apt {
            place: place.clone(),
            updates: Mutex::default(),
            commands: Mutex::default(),
        });
        let minute = Duration::from_mins(1);
        let limits = Limits {
            look: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        let owner = Arc::new(Owner::new(place.clone(), clock));
        let tools = Tools::new(apt.clone(), limits);
        (apt, Packages::new(tools, place, owner, false))
    }

    #[tokio::test]
    async fn a_version_that_is_too_young_gives_way_to_the_newest_that_is_not() {
        let root = tempfile::tempdir().unwrap();
        let (_, packages) = system(&root);
        let mut wish = PackageWish::new(PackageMode::Latest);
        wish.rules.min_age_days = 7;
        wish.settled = vec![KnownVersion {
            name: "demo".into(),
            architecture: "all".into(),
            version: "2".into(),
        }];
        packages.refresh(Some(&wish)).await.unwrap();
        let observed = packages.observe(&wish).await.unwrap();
        let draft = Packages::plan(&wish, &observed).unwrap();
        assert_eq!(draft.changes[0].after.as_deref(), Some("2"));
        assert_eq!(draft.changes[0].suite, "bookworm-security");
        assert_eq!(draft.disk_bytes, 1 << 10);
        let withheld = &draft.withheld[0];
        assert_eq!(
            (withheld.available.as_str(), withheld.cause),
            ("3", WithheldCause::Policy)
        );

        wish.settled.clear();
        let failure = packages.observe(&wish).await.unwrap_err();
        assert!(
            failure.reason.ends_with("such as those of demo"),
            "{}",
            failure.reason
        );
        packages.clean().unwrap();
        assert!(!place_of(&root).inside(PINS).exists());
    }

    fn place_of(root: &tempfile::TempDir) -> Place {
        Place::new(root.path(), None)
    }

    #[tokio::test]
    async fn a_suite_is_known_by_every_name_and_one_that_is_not_known_yet_is_looked_at_first() {
        let root = tempfile::tempdir().unwrap();
        let (apt, packages) = system(&root);
        let folder = root.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&folder).unwrap();
        let text = "Types: deb\nURIs: http://x\nSuites: stable stable-security other\n";
        fs::write(folder.join("x.sources"), text).unwrap();
        let mut wish = PackageWish::new(PackageMode::Latest);
        wish.rules.suites = vec!["bookworm-security".into()];
        packages.refresh(Some(&wish)).await.unwrap();
        let updates = apt.updates.lock().unwrap().concat();
        assert!(
            updates.contains("Suites: stable-security other\n"),
            "{updates}"
        );
        assert!(apt.allowed().contains("Suites: stable-security\n"));

        let observed = packages.observe(&wish).await.unwrap();
        assert!(observed.free.is_some());
        let commands = apt.commands.lock().unwrap().join("\n");
        assert!(
            commands.contains("SourceParts=/var/lib/evenkeel-agent/sources "),
            "{commands}"
        );

        wish.rules.suites = vec!["nowhere".into()];
        let failure = packages.refresh(Some(&wish)).await.unwrap_err();
        assert_eq!(
            failure.reason,
            "no source has the suites that the policy names: nowhere"
        );
    }
}
