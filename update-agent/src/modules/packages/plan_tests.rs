use proptest::prelude::*;

use super::*;
use crate::model::{FailureKind, PackageRules, WantedPackage};
use crate::modules::packages::Digest;

/// A world in which apt is simple: every package stands alone, and the sources offer one version of each.
#[derive(Clone, Debug)]
struct World {
    installed: BTreeMap<String, (String, &'static str)>,
    offered: BTreeMap<String, String>,
    automatic: BTreeSet<String>,
}

impl World {
    fn simulation(&self, wanted: &PackageWish) -> Simulation {
        let mut installs = Vec::new();
        for (name, offered) in &self.offered {
            let before = self.installed.get(name).map(|(version, _)| version.clone());
            let after = match &wanted.mode {
                PackageMode::Latest => before.as_ref().map(|_| offered.clone()),
                PackageMode::Exactly(packages) => packages
                    .iter()
                    .find(|package| package.name == *name)
                    .map(|package| package.version.clone().unwrap_or_else(|| offered.clone())),
            };
            if let Some(after) = after.filter(|after| before.as_ref() != Some(after)) {
                installs.push(Install {
                    package: name.clone(),
                    before,
                    after,
                    architecture: "all".into(),
                    origins: Vec::new(),
                });
            }
        }
        Simulation {
            installs,
            ..Simulation::default()
        }
    }

    fn observed(&self, wanted: &PackageWish) -> Observed {
        let simulation = self.simulation(wanted);
        let known = self.installed.iter().map(|(name, (version, state))| Known {
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
            order: install.order(),
            uri: String::new(),
        });
        Observed {
            native: "amd64".into(),
            known: known.collect(),
            debs: debs.collect(),
            simulation,
            automatic: self.automatic.clone(),
            ..Observed::default()
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Install { .. } | Step::Configure { .. } => {
                for item in step.items() {
                    let after = item.change.after.clone().expect("nothing is removed");
                    self.installed
                        .insert(item.package.clone(), (after, "installed"));
                    self.automatic.remove(&item.package);
                }
            }
            Step::Mark { automatic } => self.automatic.extend(automatic.iter().cloned()),
        }
    }
}

fn world() -> impl Strategy<Value = World> {
    let state = prop::sample::select(vec!["installed", "unpacked", "half-configured"]);
    let installed = prop::collection::btree_map("p[a-d]", ("[1-3]", state), 0..4);
    let offered = prop::collection::btree_map("p[a-d]", "[1-3]", 4);
    (installed, offered).prop_map(|(installed, offered)| World {
        automatic: installed.keys().take(1).cloned().collect(),
        installed,
        offered,
    })
}

fn wish() -> impl Strategy<Value = PackageWish> {
    let package = ("p[a-d]", prop::option::of("[1-3]"));
    let exactly = prop::collection::btree_map("p[a-d]", package, 1..4).prop_map(|packages| {
        let packages = packages
            .into_iter()
            .map(|(name, (_, version))| WantedPackage { name, version });
        PackageMode::Exactly(packages.collect())
    });
    let mode = prop_oneof![Just(PackageMode::Latest), exactly];
    mode.prop_map(PackageWish::new)
}

proptest! {
    /// Once the steps have been taken, there is nothing left to do.
    #[test]
    fn planning_twice_is_planning_once(mut world in world(), wish in wish()) {
        let Ok(draft) = plan(&wish, &world.observed(&wish)) else {
            return Ok(());
        };
        for step in &draft.steps {
            world.take(step);
        }
        prop_assert_eq!(plan(&wish, &world.observed(&wish)), Ok(Draft::default()));
    }

    /// What was there because others need it is still so afterwards.
    #[test]
    fn what_was_automatic_stays_automatic(mut world in world()) {
        let wish = PackageWish::new(PackageMode::Latest);
        let before = world.automatic.clone();
        let finished: Vec<_> = world.installed.values_mut().map(|(_, state)| *state = "installed").collect();
        let _ = finished;
        for step in plan(&wish, &world.observed(&wish)).expect("a plan").steps {
            world.take(&step);
        }
        prop_assert_eq!(world.automatic, before);
    }

    /// The plan says what the steps do.
    #[test]
    fn the_plan_names_each_package_that_a_step_changes(world in world(), wish in wish()) {
        let Ok(draft) = plan(&wish, &world.observed(&wish)) else {
            return Ok(());
        };
        let mut of_steps: Vec<_> = draft.steps.iter().flat_map(Step::items).map(|item| item.change.clone()).collect();
        of_steps.sort();
        prop_assert_eq!(draft.changes, of_steps);
    }
}

fn exactly(name: &str, version: Option<&str>) -> PackageWish {
    PackageWish::new(PackageMode::Exactly(vec![WantedPackage {
        name: name.into(),
        version: version.map(str::to_owned),
    }]))
}

fn small_world() -> World {
    World {
        installed: [("pa".to_owned(), ("1".to_owned(), "installed"))].into(),
        offered: [("pa".to_owned(), "2".to_owned())].into(),
        automatic: BTreeSet::new(),
    }
}

fn refusal(wish: &PackageWish, observed: &Observed) -> String {
    let failure = plan(wish, observed).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Plan);
    failure.reason
}

#[test]
fn a_plan_that_would_remove_something_is_refused() {
    let wish = exactly("pa", None);
    let mut observed = small_world().observed(&wish);
    observed.simulation.removals = (0..12).map(|number| format!("p{number}")).collect();
    assert_eq!(
        refusal(&wish, &observed),
        "it would remove p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 and 2 more"
    );
}

#[test]
fn a_package_or_version_that_apt_would_not_install_is_refused() {
    let wish = exactly("pb", None);
    let observed = small_world().observed(&wish);
    assert_eq!(refusal(&wish, &observed), "no source has the package pb");
    let wish = exactly("pa", Some("3"));
    let observed = small_world().observed(&exactly("pa", Some("2")));
    assert_eq!(refusal(&wish, &observed), "pa would be 2 and not 3");
}

#[test]
fn a_package_that_is_half_installed_is_left_to_a_person() {
    let wish = exactly("pa", Some("1"));
    let mut world = small_world();
    world
        .installed
        .insert("pb".into(), ("1".into(), "half-installed"));
    let reason = refusal(&wish, &world.observed(&wish));
    assert!(reason.ends_with("by hand: pb"), "{reason}");
}

#[test]
fn what_comes_along_is_marked_as_automatic_and_what_was_asked_for_is_not() {
    let wish = exactly("pa:amd64", None);
    let observed = Observed {
        native: "amd64".into(),
        simulation: Simulation {
            installs: ["pa", "pb"]
                .map(|package| Install {
                    package: package.into(),
                    before: None,
                    after: "1".into(),
                    architecture: "amd64".into(),
                    origins: Vec::new(),
                })
                .into(),
            ..Simulation::default()
        },
        ..Observed::default()
    };
    let draft = plan(&wish, &observed).unwrap();
    let automatic = vec!["pb".to_owned()];
    assert_eq!(draft.steps.last(), Some(&Step::Mark { automatic }));
}

#[test]
fn the_plan_says_what_is_fetched_from_where_and_what_it_takes_on_the_disk() {
    let wish = PackageWish::new(PackageMode::Latest);
    let mut observed = small_world().observed(&wish);
    observed.known[0].size = 100 << 10;
    observed.simulation.installs[0].origins = vec!["Debian:12/stable".into()];
    observed.targets =
        targets::read("http://x/\tbookworm\tstable\tbookworm\tDebian\t12\n").unwrap();
    let draft = plan(&wish, &observed).unwrap();
    assert_eq!(draft.changes[0].suite, "bookworm");
    assert_eq!(
        (draft.changes[0].download_bytes, draft.download_bytes),
        (10, 10)
    );
    // Its own word is missing: it takes what its file does, and what was there goes.
    assert_eq!(draft.disk_bytes, 10 - (100 << 10));

    let exact = ("pa".to_owned(), "2".to_owned(), "all".to_owned());
    observed.sizes = [(exact, 130 << 10)].into();
    let draft = plan(&wish, &observed).unwrap();
    assert_eq!(draft.disk_bytes, 30 << 10);
}

#[test]
fn what_is_removed_is_a_part_of_the_plan_and_frees_its_room() {
    let mut wish = exactly("pa", Some("2"));
    wish.rules.allow_removals = true;
    let mut world = small_world();
    world
        .installed
        .insert("pb".into(), ("1".into(), "half-configured"));
    let mut observed = world.observed(&wish);
    observed.simulation.removals = vec!["pb".into()];
    let draft = plan(&wish, &observed).unwrap();
    assert_eq!(draft.disk_bytes, 10 - 4 - 4);
    let [Step::Install { removals, .. }] = &draft.steps[..] else {
        panic!("{:?}", draft.steps);
    };
    assert_eq!(removals.len(), 1);
    assert_eq!(removals[0].change.before.as_deref(), Some("1"));
    assert_eq!(removals[0].change.after, None);
    assert!(draft.changes.contains(&removals[0].change));
}

#[test]
fn a_reboot_is_expected_of_packages_that_run_from_the_boot_on() {
    let expects = |name: &str, before: Option<&str>, rebooters: &[&str]| {
        let observed = Observed {
            native: "amd64".into(),
            simulation: Simulation {
                installs: vec![Install {
                    package: name.into(),
                    before: before.map(str::to_owned),
                    after: "2".into(),
                    architecture: "amd64".into(),
                    origins: Vec::new(),
                }],
                ..Simulation::default()
            },
            rebooters: rebooters.iter().map(|&name| name.to_owned()).collect(),
            ..Observed::default()
        };
        let wish = PackageWish::new(PackageMode::Latest);
        plan(&wish, &observed).unwrap().reboot_expected
    };
    assert!(expects("linux-image-6.1.0-41-amd64", None, &[]));
    assert!(expects("libc6:i386", Some("1"), &[]));
    assert!(!expects("libc6-dev", Some("1"), &[]));
    assert!(!expects("demo", Some("1"), &[]));
    assert!(expects("demo", Some("1"), &["demo"]));
}

#[test]
fn the_step_carries_what_the_rules_say_of_how_it_is_taken() {
    let wish = PackageWish {
        rules: PackageRules {
            services: ServiceRule::Restart,
            download_bytes_per_second: 5,
            suites: vec!["bookworm-security".into()],
            ..PackageRules::default()
        },
        ..PackageWish::new(PackageMode::Latest)
    };
    let draft = plan(&wish, &small_world().observed(&wish)).unwrap();
    let Some(Step::Install {
        own_sources,
        services,
        pace,
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
fn a_step_that_an_older_agent_wrote_down_is_still_understood() {
    let written = r#"{"do":"install","items":[],"debs":[{"name":"a.deb","size":1,"digest":{"sha256":"00"},"order":"a=1"}],"own_sources":true}"#;
    let step: Step = serde_json::from_str(written).unwrap();
    let Step::Install {
        removals,
        debs,
        pace,
        ..
    } = step
    else {
        panic!("another step");
    };
    assert!(removals.is_empty() && debs[0].uri.is_empty() && pace == 0);
}
