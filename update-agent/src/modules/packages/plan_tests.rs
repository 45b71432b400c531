use proptest::prelude::*;

use super::*;
use crate::model::{HeldBackCause, PackageRequirement, PackageRules};
use crate::modules::Module;
use crate::modules::packages::independent_groups::parse_records;
use crate::modules::packages::{Digest, PackagesModule};

#[path = "plan_tests/marks_and_names.rs"]
mod marks_and_names;

/// A simple model of apt: packages have no dependencies, and the sources offer one version of each.
#[derive(Clone, Debug)]
struct AptModel {
    installed: BTreeMap<String, (String, &'static str)>,
    offered: BTreeMap<String, String>,
    automatic: BTreeSet<String>,
}

impl AptModel {
    fn simulation(&self, spec: &PackageSpec) -> Simulation {
        let mut installs = Vec::new();
        for (name, offered) in &self.offered {
            let before = self.installed.get(name).map(|(version, _)| version.clone());
            let after = match &spec.mode {
                PackageMode::Latest => before.as_ref().map(|_| offered.clone()),
                PackageMode::Exactly(packages) => packages
                    .iter()
                    .find(|package| package.name == *name)
                    .map(|package| package.version.clone().unwrap_or_else(|| offered.clone())),
            };
            if let Some(after) = after.filter(|after| before.as_ref() != Some(after)) {
                installs.push(PlannedInstall {
                    package: name.clone(),
                    before,
                    after,
                    architecture: "all".into(),
                    origins: Vec::new(),
                });
            }
        }
        Simulation { installs, ..Simulation::default() }
    }

    fn observe(&self, spec: &PackageSpec) -> PackageObservation {
        let simulation = self.simulation(spec);
        let packages = self.installed.iter().map(|(name, (version, state))| DpkgPackage {
            name: name.clone(),
            architecture: "all".into(),
            version: version.clone(),
            want: "install".into(),
            state: (*state).to_owned(),
            flag: "ok".into(),
            size: 4,
        });
        let debs = simulation.installs.iter().map(|install| Deb {
            name: format!("{}.deb", install.package),
            size: 10,
            digest: Digest::Sha256(String::new()),
            apt_argument: install.apt_argument(),
            uri: String::new(),
        });
        PackageObservation {
            native_architecture: "amd64".into(),
            packages: packages.collect(),
            debs: debs.collect(),
            simulation,
            automatic: self.automatic.clone(),
            ..PackageObservation::default()
        }
    }

    fn apply(&mut self, step: &PackageStep) {
        match step {
            PackageStep::Install { .. } | PackageStep::Configure { .. } => {
                for item in step.items() {
                    let after = item.change.after.clone().expect("nothing is removed");
                    self.installed.insert(item.package.clone(), (after, "installed"));
                    self.automatic.remove(&item.package);
                }
            }
            PackageStep::Mark { automatic, manual } => {
                self.automatic.extend(automatic.iter().cloned());
                self.automatic.retain(|package| !manual.contains(package));
            }
            PackageStep::Remove { .. } => unreachable!("the model has no unused packages"),
        }
    }
}

fn apt_model() -> impl Strategy<Value = AptModel> {
    let state = prop::sample::select(vec!["installed", "unpacked", "half-configured"]);
    let installed = prop::collection::btree_map("p[a-d]", ("[1-3]", state), 0..4);
    let offered = prop::collection::btree_map("p[a-d]", "[1-3]", 4);
    (installed, offered).prop_map(|(installed, offered)| AptModel {
        automatic: installed.keys().take(1).cloned().collect(),
        installed,
        offered,
    })
}

fn package_spec() -> impl Strategy<Value = PackageSpec> {
    let package = ("p[a-d]", prop::option::of("[1-3]"));
    let exactly = prop::collection::btree_map("p[a-d]", package, 1..4).prop_map(|packages| {
        let packages =
            packages.into_iter().map(|(name, (_, version))| PackageRequirement { name, version });
        PackageMode::Exactly(packages.collect())
    });
    let mode = prop_oneof![Just(PackageMode::Latest), exactly];
    mode.prop_map(PackageSpec::new)
}

proptest! {
    /// After the steps there is nothing left to do.
    #[test]
    fn planning_is_idempotent(mut model in apt_model(), spec in package_spec()) {
        let Ok(draft) = plan(&spec, &model.observe(&spec)) else {
            return Ok(());
        };
        for step in &draft.steps {
            model.apply(step);
        }
        prop_assert_eq!(plan(&spec, &model.observe(&spec)), Ok(Draft::default()));
    }

    /// Automatically installed packages are still marked as such after the update.
    #[test]
    fn automatic_packages_stay_automatic(mut model in apt_model()) {
        let spec = PackageSpec::new(PackageMode::Latest);
        let before = model.automatic.clone();
        let finished: Vec<_> = model.installed.values_mut().map(|(_, state)| *state = "installed").collect();
        let _ = finished;
        for step in plan(&spec, &model.observe(&spec)).expect("a plan").steps {
            model.apply(&step);
        }
        prop_assert_eq!(model.automatic, before);
    }

    /// The plan lists exactly the changes of the steps.
    #[test]
    fn the_plan_names_each_package_that_a_step_changes(model in apt_model(), spec in package_spec()) {
        let Ok(draft) = plan(&spec, &model.observe(&spec)) else {
            return Ok(());
        };
        let mut of_steps: Vec<_> = draft.steps.iter().flat_map(PackageStep::items).map(|item| item.change.clone()).collect();
        of_steps.sort();
        prop_assert_eq!(draft.report.changes, of_steps);
    }
}

fn exactly(name: &str, version: Option<&str>) -> PackageSpec {
    PackageSpec::new(PackageMode::Exactly(vec![PackageRequirement {
        name: name.into(),
        version: version.map(str::to_owned),
    }]))
}

fn small_model() -> AptModel {
    AptModel {
        installed: [("pa".to_owned(), ("1".to_owned(), "installed"))].into(),
        offered: [("pa".to_owned(), "2".to_owned())].into(),
        automatic: BTreeSet::new(),
    }
}

fn refusal(spec: &PackageSpec, observed: &PackageObservation) -> String {
    let failure = plan(spec, observed).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Plan);
    failure.reason
}

#[test]
fn a_plan_with_an_unexpected_removal_is_refused() {
    let spec = exactly("pa", None);
    let mut observed = small_model().observe(&spec);
    observed.simulation.removals = (0..12).map(|number| format!("p{number}")).collect();
    assert_eq!(
        refusal(&spec, &observed),
        "it would remove p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 and 2 more"
    );
}

#[test]
fn a_package_or_version_that_apt_would_not_install_is_refused() {
    let spec = exactly("pb", None);
    let observed = small_model().observe(&spec);
    assert_eq!(refusal(&spec, &observed), "no source has the package pb");
    let spec = exactly("pa", Some("3"));
    let observed = small_model().observe(&exactly("pa", Some("2")));
    assert_eq!(refusal(&spec, &observed), "pa would be 2 and not 3");
}

#[test]
fn a_half_installed_package_needs_a_person() {
    let spec = exactly("pa", Some("1"));
    let mut model = small_model();
    model.installed.insert("pb".into(), ("1".into(), "half-installed"));
    let reason = refusal(&spec, &model.observe(&spec));
    assert!(reason.ends_with("by hand: pb"), "{reason}");
}

#[test]
fn dependencies_are_marked_automatic_and_requested_packages_are_not() {
    let spec = exactly("pa:amd64", None);
    let observed = PackageObservation {
        native_architecture: "amd64".into(),
        simulation: Simulation {
            installs: ["pa", "pb"]
                .map(|package| PlannedInstall {
                    package: package.into(),
                    before: None,
                    after: "1".into(),
                    architecture: "amd64".into(),
                    origins: Vec::new(),
                })
                .into(),
            ..Simulation::default()
        },
        ..PackageObservation::default()
    };
    let draft = plan(&spec, &observed).unwrap();
    let automatic = vec!["pb".to_owned()];
    let manual = Vec::new();
    assert_eq!(draft.steps.last(), Some(&PackageStep::Mark { automatic, manual }));
}

#[test]
fn the_plan_contains_suites_and_sizes() {
    let spec = PackageSpec::new(PackageMode::Latest);
    let mut observed = small_model().observe(&spec);
    observed.packages[0].size = 100 << 10;
    observed.simulation.installs[0].origins = vec!["Debian:12/stable".into()];
    observed.targets =
        index_targets::parse_targets("http://x/\tbookworm\tstable\tbookworm\tDebian\t12\n")
            .unwrap();
    let draft = plan(&spec, &observed).unwrap();
    assert_eq!(draft.report.changes[0].suite, "bookworm");
    assert_eq!(draft.report.changes[0].suites, ["bookworm", "stable"]);
    assert_eq!(draft.report.changes[0].origins, ["Debian"]);
    assert_eq!((draft.report.changes[0].download_bytes, draft.plan.download_bytes), (10, 10));
    // The version declares no size: the size of its file counts, minus the size of the replaced version.
    assert_eq!(draft.plan.disk_bytes, 10 - (100 << 10));

    let exact = ("pa".to_owned(), "2".to_owned(), "all".to_owned());
    observed.sizes = [(exact, 130 << 10)].into();
    let draft = plan(&spec, &observed).unwrap();
    assert_eq!(draft.plan.disk_bytes, 30 << 10);

    observed.cached_files = ["pa.deb".to_owned()].into();
    let draft = plan(&spec, &observed).unwrap();
    assert_eq!((draft.report.changes[0].download_bytes, draft.plan.download_bytes), (0, 0));
}

type RuleChange = fn(&mut PackageSpec, &mut PackageObservation);

#[test]
fn a_version_that_only_the_rules_or_the_machine_exclude_is_held_back_with_this_cause() {
    let cases: [(RuleChange, HeldBackCause); 7] = [
        (|_, observed| observed.owner_limits.suites = vec!["other".into()], HeldBackCause::Limits),
        (|spec, _| spec.rules.exclude = vec!["p*".into()], HeldBackCause::Excluded),
        (|spec, _| spec.rules.suites = vec!["bookworm-security".into()], HeldBackCause::Suite),
        (|spec, _| spec.rules.min_age_days = 7, HeldBackCause::TooYoung),
        (|_, _| {}, HeldBackCause::Policy),
        (
            |_, observed| observed.with_more_space.clone_from(&observed.unrestricted),
            HeldBackCause::Space,
        ),
        (
            |_, observed| observed.with_boot_loader.clone_from(&observed.unrestricted),
            HeldBackCause::BootLoader,
        ),
    ];
    for (change, expected) in cases {
        let mut spec = PackageSpec::new(PackageMode::Latest);
        let mut observed = small_model().observe(&spec);
        observed.simulation.installs[0].origins = vec!["Debian:12/stable".into()];
        observed.targets =
            index_targets::parse_targets("http://x/\tbookworm\tstable\tbookworm\tDebian\t12\n")
                .unwrap();
        observed.unrestricted = Some(std::mem::take(&mut observed.simulation));
        observed.debs.clear();
        change(&mut spec, &mut observed);
        let draft = plan(&spec, &observed).unwrap();
        assert!(draft.steps.is_empty());
        let [held_back] = &draft.report.held_back[..] else { panic!("{:?}", draft.report) };
        assert_eq!((held_back.name.as_str(), held_back.cause), ("pa", expected));
    }
}

/// apt reads a size that is too large as the largest number.
#[test]
fn an_update_without_the_versions_of_a_broken_source_has_a_remark() {
    let spec = PackageSpec::new(PackageMode::Latest);
    let mut observed = small_model().observe(&spec);
    let remarks = |observed: &PackageObservation| {
        <PackagesModule as Module>::plan(&spec, observed).unwrap().remarks
    };
    assert_eq!(remarks(&observed), [""; 0]);
    observed.broken_sources = Some(Failure::new(FailureKind::Refresh, "the repository is expired"));
    assert_eq!(
        remarks(&observed),
        [
            "some package sources could not be used, so the update has nothing from them: the repository is expired"
        ]
    );
}

#[test]
fn sizes_that_a_repository_invents_do_not_overflow() {
    let spec = PackageSpec::new(PackageMode::Latest);
    let mut observed = small_model().observe(&spec);
    let deb = Deb { size: u64::MAX, ..observed.debs[0].clone() };
    observed.debs = vec![deb.clone(), deb];
    let draft = plan(&spec, &observed).unwrap();
    assert_eq!(draft.plan.download_bytes, u64::MAX);
    assert_eq!(draft.plan.disk_bytes, i64::MAX - 4);
}

#[test]
fn removals_are_planned_and_free_disk_space() {
    let mut spec = exactly("pa", Some("2"));
    spec.rules.allow_removals = true;
    let mut model = small_model();
    model.installed.insert("pb".into(), ("1".into(), "half-configured"));
    let mut observed = model.observe(&spec);
    observed.simulation.removals = vec!["pb".into()];
    let draft = plan(&spec, &observed).unwrap();
    assert_eq!(draft.plan.disk_bytes, 10 - 4 - 4);
    let [PackageStep::Install { removals, .. }] = &draft.steps[..] else {
        panic!("{:?}", draft.steps);
    };
    assert_eq!(removals.len(), 1);
    assert_eq!(removals[0].change.before.as_deref(), Some("1"));
    assert_eq!(removals[0].change.after, None);
    assert!(draft.report.changes.contains(&removals[0].change));
}

#[test]
fn packages_that_run_from_boot_expect_a_reboot() {
    let expects = |name: &str, before: Option<&str>, rebooters: &[&str]| {
        let observed = PackageObservation {
            native_architecture: "amd64".into(),
            simulation: Simulation {
                installs: vec![PlannedInstall {
                    package: name.into(),
                    before: before.map(str::to_owned),
                    after: "2".into(),
                    architecture: "amd64".into(),
                    origins: Vec::new(),
                }],
                ..Simulation::default()
            },
            reboot_requesters: rebooters.iter().map(|&name| name.to_owned()).collect(),
            ..PackageObservation::default()
        };
        let spec = PackageSpec::new(PackageMode::Latest);
        plan(&spec, &observed).unwrap().plan.reboot_expected
    };
    assert!(expects("linux-image-6.1.0-41-amd64", None, &[]));
    assert!(expects("libc6:i386", Some("1"), &[]));
    assert!(!expects("libc6-dev", Some("1"), &[]));
    assert!(!expects("demo", Some("1"), &[]));
    assert!(expects("demo", Some("1"), &["demo"]));
}

#[test]
fn the_step_carries_the_rules() {
    let spec = PackageSpec {
        rules: PackageRules {
            services: ServiceRule::Restart,
            download_bytes_per_second: 5,
            suites: vec!["bookworm-security".into()],
            ..PackageRules::default()
        },
        ..PackageSpec::new(PackageMode::Latest)
    };
    let observed = PackageObservation { own_sources: true, ..small_model().observe(&spec) };
    let draft = plan(&spec, &observed).unwrap();
    let Some(PackageStep::Install {
        own_sources,
        services,
        bytes_per_second: pace,
        downgrades,
        ..
    }) = draft.steps.first()
    else {
        panic!("{:?}", draft.steps);
    };
    assert_eq!((*own_sources, *services), (true, ServiceRule::Restart));
    assert_eq!((*pace, *downgrades), (5, false));
}

#[test]
fn with_minimal_steps_independent_packages_are_separate_transactions() {
    let mut model = small_model();
    model.installed.insert("pb".into(), ("1".into(), "installed"));
    model.offered.insert("pb".into(), "2".into());
    let transactions = |minimal_steps, depends: &str, removal: bool| {
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.rules =
            PackageRules { minimal_steps, allow_removals: true, ..PackageRules::default() };
        let mut observed = model.observe(&spec);
        observed.records = parse_records(&format!(
            "Package: pa\nVersion: 1\n\nPackage: pa\nVersion: 2\n{depends}\n\n\
             Package: pb\nVersion: 1\n\nPackage: pb\nVersion: 2\n"
        ));
        if removal {
            observed
                .packages
                .push(DpkgPackage { name: "old".into(), ..observed.packages[0].clone() });
            observed.simulation.removals.push("old".into());
        }
        let draft = plan(&spec, &observed).unwrap();
        let parts = draft.steps[0].transactions().into_iter().map(|part| {
            assert_eq!(part.transactions().len(), 1);
            let files = part.debs().iter().map(|deb| deb.name.clone());
            files.collect::<Vec<_>>().join(" ")
        });
        parts.collect::<Vec<_>>()
    };
    assert_eq!(transactions(false, "", false), ["pa.deb pb.deb"]);
    assert_eq!(transactions(true, "", false), ["pa.deb", "pb.deb"]);
    assert_eq!(transactions(true, "Depends: pb (>= 2)", false), ["pa.deb pb.deb"]);
    assert_eq!(transactions(true, "", true), ["pa.deb pb.deb"], "apt must order a removal");
}

/// A large update has hundreds of parts and automatic packages.
#[test]
fn the_parts_of_a_step_have_no_copies_of_its_marks_and_groups() {
    let written = r#"{"do":"install","items":[],"debs":[],"own_sources":true,"automatic":["a","b"],"groups":[["a"],["b"]]}"#;
    let step: PackageStep = serde_json::from_str(written).unwrap();
    let written = r#"{"do":"install","items":[],"debs":[],"own_sources":true}"#;
    let part: PackageStep = serde_json::from_str(written).unwrap();
    assert_eq!(step.transactions(), [part.clone(), part]);
}

#[test]
fn a_step_of_an_older_agent_is_read() {
    let written = r#"{"do":"install","items":[],"debs":[{"name":"a.deb","size":1,"digest":{"sha256":"00"},"apt_argument":"a=1"}],"own_sources":true}"#;
    let step: PackageStep = serde_json::from_str(written).unwrap();
    let PackageStep::Install { removals, debs, bytes_per_second: pace, .. } = step else {
        panic!("another step");
    };
    assert!(removals.is_empty() && debs[0].uri.is_empty() && pace == 0);
}

#[test]
fn a_plan_needs_space_for_its_files_and_on_the_boot_file_systems() {
    let spec = PackageSpec::new(PackageMode::Latest);
    let boot = SpaceNeed { path: "/boot".into(), bytes: 5, max_free: Some(1) };
    let observed =
        PackageObservation { boot_space: vec![boot.clone()], ..small_model().observe(&spec) };
    let space = plan(&spec, &observed).unwrap().plan.space;
    let paths: Vec<_> = space.iter().map(|need| need.path.as_str()).collect();
    assert_eq!(paths, ["/usr", "/var", "/", "/boot"]);
    assert_eq!(space.last(), Some(&boot));
    assert_eq!(needed_space(7)[0].bytes, 7);
    assert_eq!(needed_space(i64::MIN)[0].bytes, 0);
}
