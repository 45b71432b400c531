//! Observes the installed packages and what apt would do under the rules of policy and owner.

use std::collections::BTreeSet;

use super::boot_loader::find_blocked_grub;
use super::boot_space::{
    BootWriter, boot_space_needs, find_blocked_writers, find_boot_writers, find_removal_rebuilds,
    measure_boot_file_systems, needs_size,
};
use super::broken_sources::explain_failure;
use super::independent_groups::PackageRecords;
use super::plan::{PackageObservation, index_by_apt_name, join_names};
use super::protected::{self, ProtectedPackage};
use super::rules::{self, AllowedSuites};
use super::sources::{self, AptView, PreferenceScope, SourceFile, SourceScope};
use super::{AllowedChanges, DpkgPackage, PackagesModule, Simulation, storage_failure};
use crate::model::{Failure, FailureKind, PackageMode, PackageRules, PackageSpec, SpaceNeed};
use crate::os::{self, OsRelease};
use crate::owner::{OwnerLimits, SourceSuite};

/// What apt would do under the rules, with the space that the boot file systems have.
struct FittingUpdate {
    simulation: Simulation,
    allowed: AllowedChanges,
    /// Whether versions had to be pinned.
    is_pinned: bool,
    /// What apt would do with more space there, and without read-only file systems; `None` if
    /// everything fits.
    with_more_space: Option<Simulation>,
    /// What apt would do if GRUB could be updated; `None` if it can, or if there is no update of it.
    with_boot_loader: Option<Simulation>,
}

/// How often versions that must not be installed are pinned before the plan fails.
const MAX_PINNING_ROUNDS: usize = 20;

impl PackagesModule {
    /// The limits of the machine's owner. Fails if they cannot be read.
    pub(super) fn owner_limits(&self) -> Result<OwnerLimits, Failure> {
        let limits = self.owner.limits();
        limits.map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))
    }

    /// Refreshes the package lists of the allowed suites, and writes the sources that apt sees for a spec. `is_fresh`: the
    /// lists of the machine's own sources were refreshed just now.
    pub(super) async fn refresh_lists(
        &self,
        spec: &PackageSpec,
        limits: &OwnerLimits,
        is_fresh: bool,
    ) -> Result<(), Failure> {
        let pace = spec.rules.download_bytes_per_second;
        let suites = AllowedSuites::new(&spec.rules, limits);
        if source_scope(spec, &suites) == SourceScope::System {
            if is_fresh {
                return Ok(());
            }
            return self.update_lists(AptView::default(), pace).await;
        }
        let stanzas = self.owner.resolve_sources(spec)?;
        let all = sources::collect_sources(&self.paths, &stanzas).map_err(storage_failure)?;
        sources::write_sources(&self.paths, SourceScope::All, &all).map_err(storage_failure)?;
        let allowed = AptView::from_sources(SourceScope::Allowed);
        if !suites.is_limited() {
            sources::write_sources(&self.paths, SourceScope::Allowed, &all)
                .map_err(storage_failure)?;
            return self.update_lists(allowed, pace).await;
        }
        if is_fresh && spec.sources.is_empty() {
            return self.write_allowed_sources(&all, &suites, false).await;
        }
        // The names of an unknown suite are in its list, so that list is fetched first.
        self.write_allowed_sources(&all, &suites, true).await?;
        self.update_lists(allowed, pace).await?;
        self.write_allowed_sources(&all, &suites, false).await
    }

    /// Writes the sources with the allowed suites. `is_lenient` also allows suites without a list.
    pub(super) async fn write_allowed_sources(
        &self,
        all: &[SourceFile],
        suites: &AllowedSuites,
        is_lenient: bool,
    ) -> Result<(), Failure> {
        let all_sources = AptView::from_sources(SourceScope::All);
        let targets = self.tools.list_index_targets(all_sources).await?;
        let lets = |suite: SourceSuite<'_>, names: &BTreeSet<String>, is_known: bool| {
            suites.owner_allows(suite) && (suites.policy_allows(names) || (is_lenient && !is_known))
        };
        let left = sources::filter_sources(all, &targets, &lets);
        if left.is_empty() {
            return Err(suites.missing_failure());
        }
        sources::write_sources(&self.paths, SourceScope::Allowed, &left).map_err(storage_failure)
    }

    /// Observes the installed packages and what apt would do.
    pub(super) async fn observe_update(
        &self,
        spec: &PackageSpec,
        limits: OwnerLimits,
        broken_sources: Option<Failure>,
    ) -> Result<PackageObservation, Failure> {
        let packages = self.tools.list_packages().await?;
        self.clear_archives(packages.iter().any(DpkgPackage::needs_reinstall))?;
        let native = self.tools.architecture().await?;
        let suites = AllowedSuites::new(&spec.rules, &limits);
        let own_sources =
            broken_sources.is_some() || source_scope(spec, &suites) != SourceScope::System;
        let (view, all) = if own_sources {
            (AptView::from_sources(SourceScope::Allowed), AptView::from_sources(SourceScope::All))
        } else {
            (AptView::default(), AptView::default())
        };
        let protected = protected::find_protected(&self.paths, &packages);
        let fitting = self
            .simulate_fitting(
                spec,
                (&limits, allowed_changes(spec, &limits, broken_sources.as_ref())),
                view,
                (native.as_str(), packages.as_slice(), protected.as_slice()),
            )
            .await
            .map_err(|failure| explain_failure(failure, broken_sources.as_ref()))?;
        let FittingUpdate { simulation, allowed, is_pinned, with_more_space, with_boot_loader } =
            fitting;
        let (free, unpinned) = self
            .simulate_without_rules(spec, allowed, all, is_pinned || suites.is_limited())
            .await?;
        let boot_space =
            self.find_boot_space(&simulation, view, (native.as_str(), packages.as_slice())).await?;
        let installs = &simulation.installs;
        let debs = self.tools.resolve_files(installs, view).await?;
        let sizes = self.tools.installed_sizes(installs, view).await?;
        let records = if spec.rules.minimal_steps {
            self.tools.package_records(installs, view).await?
        } else {
            PackageRecords::new()
        };
        let targets = self.tools.list_index_targets(all).await?;
        let reboot = os::reboot_required(&self.paths).unwrap_or_default();
        let mut observed = PackageObservation {
            native_architecture: native,
            packages,
            unrestricted: free,
            unpinned,
            records,
            cached_files: self.archives.find_cached(&debs),
            debs,
            sizes,
            automatic: self.tools.list_automatic().await?,
            targets,
            own_suites: self.find_own_suites(spec)?,
            codename: OsRelease::read(&self.paths).version_codename,
            reboot_requesters: reboot.1,
            owner_limits: limits,
            own_sources,
            broken_sources,
            protected,
            simulation,
            with_more_space,
            with_boot_loader,
            boot_space,
            ..PackageObservation::default()
        };
        let pinned_view =
            if is_pinned { view.with_preferences(PreferenceScope::Spec) } else { view };
        observed.unused = self.find_unused(spec, allowed, pinned_view, &observed).await;
        let installed = index_by_apt_name(&observed.packages, &observed.native_architecture);
        observed.providers = self.find_providers(spec, &observed, &installed, view).await?;
        Ok(observed)
    }

    /// Addresses and suites of the node's own sources; `None` if the policy adds no source to them.
    fn find_own_suites(
        &self,
        spec: &PackageSpec,
    ) -> Result<Option<Vec<(String, String)>>, Failure> {
        if spec.sources.is_empty() {
            return Ok(None);
        }
        let all = sources::collect_sources(&self.paths, &spec.sources).map_err(storage_failure)?;
        Ok(Some(sources::own_suites(&all)))
    }

    /// Removes the files of other plans, unless a person needs them to repair a half-installed package.
    fn clear_archives(&self, is_torn: bool) -> Result<(), Failure> {
        if !(is_torn && self.archives.is_retained()) {
            self.archives.remove_all().map_err(storage_failure)?;
        }
        self.archives.create().map_err(storage_failure)
    }

    /// Simulates the update under the rules, without removals of protected packages and without removals
    /// that rebuild an initial RAM disk for which there is no space. In an update of
    /// everything, the versions that the boot file systems cannot take are held back, and GRUB without
    /// its disk.
    async fn simulate_fitting(
        &self,
        spec: &PackageSpec,
        (limits, mut allowed): (&OwnerLimits, AllowedChanges),
        view: AptView,
        (native, packages, protected): (&str, &[DpkgPackage], &[ProtectedPackage]),
    ) -> Result<FittingUpdate, Failure> {
        let mut blocked = BTreeSet::new();
        let is_latest = spec.mode == PackageMode::Latest;
        let installed = index_by_apt_name(packages, native);
        let (mut with_more_space, mut with_boot_loader) = (None, None);
        let file_systems = measure_boot_file_systems(&self.paths);
        // Without the newest version, apt may choose an older one that writes there as well, or another
        // solution that removes a protected package.
        let mut rounds = 0;
        loop {
            let (simulation, is_pinned) =
                self.simulate_with_pins(spec, allowed, view, (native, &blocked)).await?;
            let is_refused =
                |package: &String| protected::removal_refusal(package, limits, protected).is_some();
            let rebuilds = find_removal_rebuilds(&self.paths, &simulation, &installed);
            let refuses_removals = simulation.removals.iter().any(is_refused)
                || !find_blocked_writers(&file_systems, &rebuilds).is_empty();
            if is_latest && allowed.removals && refuses_removals {
                // Then the packages that conflict with the removed ones are held back.
                let removals = join_names(simulation.removals);
                tracing::warn!(
                    removals,
                    "planning without removals: a package is protected, or its removal needs space in /boot"
                );
                allowed.removals = false;
                continue;
            }
            let grub = find_blocked_grub(&self.paths, packages, &simulation);
            if let Some(grub) = grub.filter(|_| is_latest && rounds < MAX_PINNING_ROUNDS) {
                tracing::warn!(
                    "grub-pc is held back, because a disk of its settings does not exist"
                );
                blocked.insert(grub);
                with_boot_loader.get_or_insert(simulation);
                rounds += 1;
                continue;
            }
            let writers = self.find_boot_writers(&simulation, view).await?;
            let more = find_blocked_writers(&file_systems, &writers);
            if !is_latest || more.is_empty() || rounds == MAX_PINNING_ROUNDS {
                return Ok(FittingUpdate {
                    simulation,
                    allowed,
                    is_pinned,
                    with_more_space,
                    with_boot_loader,
                });
            }
            let names = join_names(more.iter().map(|(package, _)| package.clone()));
            tracing::warn!(
                names,
                "held back, because the boot file systems have too little space or are read-only"
            );
            blocked.extend(more);
            with_more_space.get_or_insert(simulation);
            rounds += 1;
        }
    }

    /// The space that an update needs on the boot file systems.
    async fn find_boot_space(
        &self,
        simulation: &Simulation,
        view: AptView,
        (native, packages): (&str, &[DpkgPackage]),
    ) -> Result<Vec<SpaceNeed>, Failure> {
        let installed = index_by_apt_name(packages, native);
        let mut writers = self.find_boot_writers(simulation, view).await?;
        writers.extend(find_removal_rebuilds(&self.paths, simulation, &installed));
        Ok(boot_space_needs(&measure_boot_file_systems(&self.paths), &writers))
    }

    /// The planned versions that write to the boot file systems.
    async fn find_boot_writers(
        &self,
        simulation: &Simulation,
        view: AptView,
    ) -> Result<Vec<BootWriter>, Failure> {
        let unclear: Vec<_> =
            simulation.installs.iter().filter(|install| needs_size(install)).cloned().collect();
        let sizes = self.tools.installed_sizes(&unclear, view).await?;
        Ok(find_boot_writers(&self.paths, simulation, &sizes, &os::kernel_release()))
    }

    /// Simulates the update under the rules and without the given versions. Returns the simulation and whether versions had
    /// to be pinned.
    async fn simulate_with_pins(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        mut view: AptView,
        (native, excluded): (&str, &BTreeSet<rules::AptVersion>),
    ) -> Result<(Simulation, bool), Failure> {
        let mut pinned = excluded.clone();
        if !spec.rules.exclude.is_empty() || !pinned.is_empty() {
            self.write_pins(&spec.rules, &pinned)?;
            view = view.with_preferences(PreferenceScope::Spec);
        }
        for _ in 0..MAX_PINNING_ROUNDS {
            let simulation = self.tools.simulate(spec, allowed, view).await?;
            let offenders = rules::find_offenders(spec, &simulation, native);
            if offenders.is_empty() {
                return Ok((simulation, view.preferences == PreferenceScope::Spec));
            }
            tracing::debug!(
                packages = join_names(offenders.iter().map(|(package, _)| package.clone())),
                "these versions may not be taken"
            );
            pinned.extend(offenders);
            self.write_pins(&spec.rules, &pinned)?;
            view = view.with_preferences(PreferenceScope::Spec);
        }
        let names = pinned.into_iter().map(|(package, _)| package);
        let reason = format!(
            "apt finds no solution without versions that are excluded or too young, such as those of {}",
            join_names(names.collect::<BTreeSet<_>>())
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }

    fn write_pins(
        &self,
        rules: &PackageRules,
        offenders: &BTreeSet<rules::AptVersion>,
    ) -> Result<(), Failure> {
        let text = rules::pin_preferences(rules, offenders);
        sources::write_preferences(&self.paths, &text).map_err(storage_failure)
    }

    /// Simulates the update without the rules of policy and owner, and then without the node's own preferences, to find out
    /// which packages they hold back. A failure is only logged.
    async fn simulate_without_rules(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        all: AptView,
        is_restricted: bool,
    ) -> Result<(Option<Simulation>, Option<Simulation>), Failure> {
        if spec.mode != PackageMode::Latest {
            return Ok((None, None));
        }
        let simulate = |view: AptView| async move {
            match self.tools.simulate(spec, allowed, view).await {
                Ok(simulation) => Some(simulation),
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot find out which packages are held back");
                    None
                }
            }
        };
        let free = if is_restricted { simulate(all).await } else { None };
        let unpinned = if sources::has_preferences(&self.paths).map_err(storage_failure)? {
            simulate(all.with_preferences(PreferenceScope::Disabled)).await
        } else {
            None
        };
        Ok((free, unpinned))
    }
}

/// What an update of all packages may do in addition to upgrades. It removes nothing while a source is
/// left out: if apt does not see the new version of a package, it may remove the package to upgrade
/// another one.
fn allowed_changes(
    spec: &PackageSpec,
    limits: &OwnerLimits,
    broken_sources: Option<&Failure>,
) -> AllowedChanges {
    AllowedChanges {
        removals: spec.rules.allow_removals && limits.removals && broken_sources.is_none(),
        new_packages: limits.new_packages,
    }
}

/// The sources that apt sees for a spec.
fn source_scope(spec: &PackageSpec, suites: &AllowedSuites) -> SourceScope {
    if spec.sources.is_empty() && !suites.is_limited() {
        SourceScope::System
    } else {
        SourceScope::Allowed
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
    use crate::model::{HeldBackCause, PackageVersion};
    use crate::modules::Module;
    use crate::modules::packages::{PackageToolTimeouts, PackageTools};
    use crate::owner::Owner;
    use crate::paths::AgentPaths;
    use crate::runner::{Command, Output, RunError, Runner};

    const ALLOWED: &str = "/var/lib/evenkeel-agent/sources";
    const PINS: &str = "/var/lib/evenkeel-agent/preferences/00-evenkeel";

    /// A fake apt with `demo` 1 installed and 3 and 2 available. It respects pins.
    struct FakeApt {
        paths: AgentPaths,
        /// Content of the folder of allowed sources at each refresh of the lists.
        updates: Mutex<Vec<String>>,
        /// Other apt-get commands.
        commands: Mutex<Vec<String>>,
        /// Whether it changes nothing if 2 is pinned, too.
        keeps_installed: Mutex<bool>,
        /// Whether 2 conflicts with `openssh-server`.
        has_conflict: Mutex<bool>,
    }

    impl FakeApt {
        fn allowed(&self) -> String {
            fs::read_to_string(self.paths.inside(ALLOWED).join("x.sources")).unwrap_or_default()
        }

        fn newest(&self, line: &str) -> &'static str {
            let heeds = line.contains("PreferencesParts=/var/lib/evenkeel-agent/preferences");
            let pins = fs::read_to_string(self.paths.inside(PINS)).unwrap_or_default();
            if heeds && pins.contains("Package: demo\nPin: version 3\n") { "2" } else { "3" }
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
                let known_suites = suites.iter().filter(|(_, _, is_known)| *is_known);
                let lines = known_suites.map(|(release, codename, _)| {
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
            let pins = fs::read_to_string(self.paths.inside(PINS)).unwrap_or_default();
            if version == "2"
                && *self.keeps_installed.lock().unwrap()
                && pins.contains("version 2\n")
            {
                return String::new();
            }
            if version == "2" && *self.has_conflict.lock().unwrap() {
                let solution =
                    "Remv openssh-server [1]\nInst demo [1] (2 Debian:12/stable [all])\n";
                return if line.contains("dist-upgrade") { solution.into() } else { String::new() };
            }
            format!("Inst demo [1] ({version} Debian:12/stable-security [all])\n")
        }
    }

    #[async_trait::async_trait]
    impl Runner for FakeApt {
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
            Ok(Output { status: Some(0), stdout, stderr: String::new() })
        }
    }

    fn system(root: &tempfile::TempDir) -> (Arc<FakeApt>, PackagesModule) {
        let paths = AgentPaths::new(root.path(), None);
        std::fs::create_dir_all(paths.inside("/var/lib/dpkg")).unwrap();
        let apt = Arc::new(FakeApt {
            paths: paths.clone(),
            updates: Mutex::default(),
            commands: Mutex::default(),
            keeps_installed: Mutex::default(),
            has_conflict: Mutex::default(),
        });
        let minute = Duration::from_mins(1);
        let limits = PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        let owner = Arc::new(Owner::new(paths.clone(), clock));
        let tools = PackageTools::new(apt.clone(), limits);
        (apt, PackagesModule::new(tools, paths, owner, false))
    }

    #[tokio::test]
    async fn a_version_that_is_too_young_is_replaced_by_the_newest_settled_one() {
        let root = tempfile::tempdir().unwrap();
        let (_, packages) = system(&root);
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.rules.min_age_days = 7;
        spec.aged_versions = vec![PackageVersion {
            name: "demo".into(),
            architecture: "all".into(),
            version: "2".into(),
        }];
        refresh(&packages, &spec).await.unwrap();
        let observed = packages.observe(&spec).await.unwrap();
        let draft = PackagesModule::plan(&spec, &observed).unwrap();
        assert_eq!(draft.report.changes[0].after.as_deref(), Some("2"));
        assert_eq!(draft.report.changes[0].suite, "bookworm-security");
        assert_eq!(draft.plan.disk_bytes, 1 << 10);
        let held_back = &draft.report.held_back[0];
        assert_eq!((held_back.available.as_str(), held_back.cause), ("3", HeldBackCause::TooYoung));

        spec.aged_versions.clear();
        let failure = packages.observe(&spec).await.unwrap_err();
        assert!(failure.reason.ends_with("such as those of demo"), "{}", failure.reason);
        packages.remove_files().unwrap();
        assert!(!paths_of(&root).inside(PINS).exists());
    }

    #[tokio::test]
    async fn an_older_version_that_does_not_fit_into_boot_is_held_back_as_well() {
        let root = tempfile::tempdir().unwrap();
        let (apt, packages) = system(&root);
        *apt.keeps_installed.lock().unwrap() = true;
        fill_boot(&paths_of(&root));
        let spec = PackageSpec::new(PackageMode::Latest);
        let observed = packages.observe(&spec).await.unwrap();
        assert!(observed.simulation.installs.is_empty(), "{:?}", observed.simulation);
        assert!(observed.boot_space.is_empty(), "nothing waits for space");
        let draft = PackagesModule::plan(&spec, &observed).unwrap();
        let held_back = &draft.report.held_back[0];
        assert_eq!((held_back.available.as_str(), held_back.cause), ("3", HeldBackCause::Space));
    }

    #[tokio::test]
    async fn protected_packages_stay_if_the_version_that_fits_into_boot_conflicts_with_them() {
        let root = tempfile::tempdir().unwrap();
        let (apt, packages) = system(&root);
        *apt.has_conflict.lock().unwrap() = true;
        fill_boot(&paths_of(&root));
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.rules.allow_removals = true;
        let observed = packages.observe(&spec).await.unwrap();
        assert_eq!(observed.simulation, Simulation::default());
        let draft = PackagesModule::plan(&spec, &observed).unwrap();
        assert_eq!(draft.report.held_back[0].cause, HeldBackCause::Space);
    }

    #[tokio::test]
    async fn an_update_of_everything_removes_nothing_while_a_source_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let (apt, packages) = system(&root);
        *apt.has_conflict.lock().unwrap() = true;
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.rules.allow_removals = true;
        // Then version 2 is chosen, which conflicts.
        spec.rules.min_age_days = 7;
        spec.aged_versions = vec![PackageVersion {
            name: "demo".into(),
            architecture: "all".into(),
            version: "2".into(),
        }];
        let limits = OwnerLimits {
            removable_packages: vec!["openssh-server".into()],
            ..OwnerLimits::default()
        };
        let broken = Failure::new(FailureKind::Refresh, "the repository is expired");
        for (broken, expected) in [(None, vec!["openssh-server"]), (Some(broken), vec![])] {
            let observed = packages.observe_update(&spec, limits.clone(), broken).await.unwrap();
            assert_eq!(observed.simulation.removals, expected);
        }
    }

    /// Adds an initial RAM disk for whose rebuild by `demo` there is no space.
    fn fill_boot(paths: &AgentPaths) {
        let info = paths.inside("/var/lib/dpkg/info");
        fs::create_dir_all(&info).unwrap();
        fs::write(info.join("demo.postinst"), "update-initramfs -u\n").unwrap();
        fs::create_dir(paths.inside("/boot")).unwrap();
        let initramfs = fs::File::create(paths.inside("/boot/initrd.img-6.1")).unwrap();
        initramfs.set_len(8 << 40).unwrap();
    }

    async fn refresh(packages: &PackagesModule, spec: &PackageSpec) -> Result<(), Failure> {
        packages.refresh_for(spec, &packages.owner_limits()?, false).await
    }

    fn paths_of(root: &tempfile::TempDir) -> AgentPaths {
        AgentPaths::new(root.path(), None)
    }

    #[tokio::test]
    async fn a_suite_matches_by_every_name_and_an_unknown_suite_is_fetched_first() {
        let root = tempfile::tempdir().unwrap();
        let (apt, packages) = system(&root);
        let folder = root.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&folder).unwrap();
        let text = "Types: deb\nURIs: http://x\nSuites: stable stable-security other\n";
        fs::write(folder.join("x.sources"), text).unwrap();
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.rules.suites = vec!["bookworm-security".into()];
        refresh(&packages, &spec).await.unwrap();
        let updates = apt.updates.lock().unwrap().concat();
        assert!(updates.contains("Suites: stable-security other\n"), "{updates}");
        assert!(apt.allowed().contains("Suites: stable-security\n"));

        let observed = packages.observe(&spec).await.unwrap();
        assert!(observed.unrestricted.is_some());
        let commands = apt.commands.lock().unwrap().join("\n");
        assert!(commands.contains("SourceParts=/var/lib/evenkeel-agent/sources "), "{commands}");

        spec.rules.suites = vec!["nowhere".into()];
        let failure = refresh(&packages, &spec).await.unwrap_err();
        assert_eq!(failure.reason, "no source has the suites that the policy names: nowhere");
    }
}
