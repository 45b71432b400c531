use proptest::prelude::*;

use super::*;
use crate::model::WantedPackage;
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
        });
        let debs = simulation.installs.iter().map(|install| Deb {
            name: format!("{}.deb", install.package),
            size: 10,
            digest: Digest::Sha256(String::new()),
            order: format!("{}={}", install.package, install.after),
        });
        Observed {
            native: "amd64".into(),
            known: known.collect(),
            debs: debs.collect(),
            simulation,
            automatic: self.automatic.clone(),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Install { items, .. } | Step::Configure { items } => {
                for item in items {
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
    mode.prop_map(|mode| PackageWish {
        mode,
        sources: Vec::new(),
    })
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
        let wish = PackageWish { mode: PackageMode::Latest, sources: Vec::new() };
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
    PackageWish {
        mode: PackageMode::Exactly(vec![WantedPackage {
            name: name.into(),
            version: version.map(str::to_owned),
        }]),
        sources: Vec::new(),
    }
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
