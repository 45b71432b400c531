//! Plans that are not carried out, and why. Pure.

use super::parse::{Known, Simulation};
use super::plan::{Installed, Observed, enumerate, named};
use super::rules::is_excluded;
use super::targets;
use crate::model::{Failure, FailureKind, PackageMode, PackageWish};

/// The package that says which release a system is.
const RELEASE: &str = "base-files";

/// Refuses what must not be done, the plainest reason first.
pub fn refuse(
    wanted: &PackageWish,
    observed: &Observed,
    installed: &Installed<'_>,
) -> Result<(), Failure> {
    refuse_another_release(observed)?;
    refuse_removals(wanted, observed)?;
    refuse_broken(installed, &observed.simulation)?;
    refuse_downgrades(wanted, observed)?;
    refuse_held(observed, installed)?;
    if let PackageMode::Exactly(_) = &wanted.mode {
        refuse_what_is_missing(wanted, observed, installed)?;
    }
    Ok(())
}

/// An update never takes a system to another release: that is a work of its own, with its own notes to read.
fn refuse_another_release(observed: &Observed) -> Result<(), Failure> {
    let simulation = &observed.simulation;
    if simulation.removals.iter().any(|package| package == RELEASE) {
        return Err(no_way(format!("it would remove {RELEASE}")));
    }
    let Some(install) = simulation.install(RELEASE) else {
        return Ok(());
    };
    let own = observed.codename.as_str();
    let others = targets::codenames(&install.origins, &observed.targets);
    // `bookworm-security` and `bookworm-updates` belong to bookworm.
    let is_own = |name: &&str| {
        !own.is_empty()
            && name
                .strip_prefix(own)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    if others.iter().any(is_own) {
        return Ok(());
    }
    let shown = |name: &str| {
        if name.is_empty() {
            "an unknown release".to_owned()
        } else {
            name.to_owned()
        }
    };
    let other = shown(&others.into_iter().collect::<Vec<_>>().join(", "));
    Err(no_way(format!(
        "it would take the system from {} to {other}: {RELEASE} {} is not of the release that is installed",
        shown(own),
        install.after
    )))
}

fn refuse_removals(wanted: &PackageWish, observed: &Observed) -> Result<(), Failure> {
    let removals = &observed.simulation.removals;
    if removals.is_empty() {
        return Ok(());
    }
    let names = enumerate(removals.iter().cloned());
    if !wanted.rules.allow_removals {
        return Err(no_way(format!("it would remove {names}")));
    }
    if !observed.limits.removals {
        return Err(not_allowed(format!("it would remove {names}")));
    }
    let excluded = removals
        .iter()
        .filter(|package| is_excluded(&wanted.rules, package));
    let excluded: Vec<_> = excluded.cloned().collect();
    if excluded.is_empty() {
        return Ok(());
    }
    Err(no_way(format!(
        "it would remove {}, which the policy leaves as they are",
        enumerate(excluded)
    )))
}

/// A half-installed package must be unpacked again; if apt does not mean to, only a person knows where from.
fn refuse_broken(installed: &Installed<'_>, simulation: &Simulation) -> Result<(), Failure> {
    let broken =
        |package: &String, known: &Known| known.is_torn() && simulation.install(package).is_none();
    let names: Vec<_> = installed
        .iter()
        .filter(|(package, known)| broken(package, known))
        .map(|(package, _)| package.clone())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(no_way(format!(
        "these packages are half-installed and must be installed anew by hand: {}",
        enumerate(names)
    )))
}

fn refuse_downgrades(wanted: &PackageWish, observed: &Observed) -> Result<(), Failure> {
    let downgrades = &observed.simulation.downgrades;
    if downgrades.is_empty() {
        return Ok(());
    }
    let names = enumerate(downgrades.iter().cloned());
    let what = format!("it would bring {names} to an older version");
    if !wanted.rules.allow_downgrades {
        return Err(no_way(format!("{what}, which the policy does not allow")));
    }
    if !observed.limits.downgrades {
        return Err(not_allowed(what));
    }
    Ok(())
}

/// A mark that a person set is taken away by a person.
fn refuse_held(observed: &Observed, installed: &Installed<'_>) -> Result<(), Failure> {
    let simulation = &observed.simulation;
    let installs = simulation.installs.iter().map(|install| &install.package);
    let held = installs.chain(&simulation.removals).filter(|package| {
        let known = installed.get(*package);
        known.is_some_and(|known| known.want == "hold")
    });
    let held: Vec<_> = held.cloned().collect();
    if held.is_empty() {
        return Ok(());
    }
    Err(no_way(format!(
        "it would change packages that somebody put on hold: {}",
        enumerate(held)
    )))
}

fn refuse_what_is_missing(
    wanted: &PackageWish,
    observed: &Observed,
    installed: &Installed<'_>,
) -> Result<(), Failure> {
    let PackageMode::Exactly(packages) = &wanted.mode else {
        return Ok(());
    };
    for package in packages {
        let name = named(&package.name, &observed.native);
        let version = match observed.simulation.install(name) {
            Some(install) => Some(install.after.as_str()),
            None => installed.get(name).map(|known| known.version.as_str()),
        };
        match (version, package.version.as_deref()) {
            (Some(_), None) => {}
            (Some(version), Some(wished)) if version == wished => {}
            (Some(version), Some(wished)) => {
                return Err(no_way(format!(
                    "{name} would be {version} and not {wished}"
                )));
            }
            (None, _) => return Err(no_way(format!("no source has the package {name}"))),
        }
    }
    Ok(())
}

fn no_way(reason: String) -> Failure {
    Failure::new(FailureKind::Plan, reason)
}

fn not_allowed(what: String) -> Failure {
    let reason = format!("{what}, which the machine's owner does not allow");
    Failure::new(FailureKind::Limits, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PackageRules, WantedPackage};
    use crate::modules::packages::parse::Install;
    use crate::modules::packages::plan::{by_package, plan};
    use crate::modules::packages::targets::Target;
    use crate::owner::OwnerLimits;

    const TARGETS: &str = "\
http://deb.example/debian/\tbookworm\tstable\tbookworm\tDebian\t12
http://deb.example/debian/\tbookworm-updates\tstable-updates\tbookworm-updates\tDebian\t12-updates
http://deb.example/debian/\ttrixie\ttesting\ttrixie\tDebian\t13
https://own.example/\t./\t$(SUITE)\t$(CODENAME)\tOwn\t$(VERSION)
";

    fn targets() -> Vec<Target> {
        targets::read(TARGETS).unwrap()
    }

    fn install(package: &str, origin: &str) -> Install {
        Install {
            package: package.into(),
            before: Some("12".into()),
            after: "12.1".into(),
            architecture: "amd64".into(),
            origins: vec![origin.into()],
        }
    }

    fn latest(rules: PackageRules) -> PackageWish {
        PackageWish {
            rules,
            ..PackageWish::new(PackageMode::Latest)
        }
    }

    #[test]
    fn an_update_never_takes_the_system_to_another_release() {
        for (codename, origin, refused) in [
            ("bookworm", "Debian:12/stable", None),
            ("bookworm", "Debian:12-updates/stable-updates", None),
            (
                "bookworm",
                "Debian:13/testing",
                Some("from bookworm to trixie:"),
            ),
            (
                "trixie",
                "Debian:12/stable",
                Some("from trixie to bookworm:"),
            ),
            ("book", "Debian:12/stable", Some("from book to bookworm:")),
            (
                "bookworm",
                "Own:",
                Some("from bookworm to an unknown release:"),
            ),
            ("bookworm", "Debian:14/sid", Some("to an unknown release:")),
            (
                "",
                "Debian:12/stable",
                Some("from an unknown release to bookworm:"),
            ),
        ] {
            let observed = Observed {
                simulation: Simulation {
                    installs: vec![install("base-files", origin), install("bash", origin)],
                    ..Simulation::default()
                },
                targets: targets(),
                codename: codename.into(),
                ..Observed::default()
            };
            let answer = plan(&latest(PackageRules::default()), &observed);
            match (answer, refused) {
                (Ok(_), None) => {}
                (Err(failure), Some(words)) => {
                    assert_eq!(failure.kind, FailureKind::Plan);
                    assert!(failure.reason.contains(words), "{}", failure.reason);
                }
                (answer, _) => panic!("{codename}, {origin}: {answer:?}"),
            }
        }
    }

    #[test]
    fn any_other_package_may_come_from_any_release() {
        let observed = Observed {
            simulation: Simulation {
                installs: vec![install("bash", "Debian:13/testing")],
                ..Simulation::default()
            },
            targets: targets(),
            codename: "bookworm".into(),
            ..Observed::default()
        };
        let draft = plan(&latest(PackageRules::default()), &observed).unwrap();
        assert_eq!(draft.changes[0].suite, "trixie");
    }

    #[test]
    fn the_package_that_says_which_release_it_is_is_never_removed() {
        let observed = Observed {
            simulation: Simulation {
                removals: vec!["base-files".into()],
                ..Simulation::default()
            },
            ..Observed::default()
        };
        let rules = PackageRules {
            allow_removals: true,
            ..PackageRules::default()
        };
        assert!(plan(&latest(rules), &observed).is_err());
    }

    /// What the policy and the owner say to a plan that removes `gone` and brings `older` to an older version.
    #[test]
    fn removals_and_older_versions_need_leave_of_the_policy_and_of_the_owner() {
        let removal = Simulation {
            removals: vec!["gone".into()],
            ..Simulation::default()
        };
        let downgrade = Simulation {
            installs: vec![install("older", "Debian:12/stable")],
            downgrades: vec!["older".into()],
            ..Simulation::default()
        };
        for (simulation, policy, owner, refused) in [
            (
                &removal,
                false,
                true,
                Some((FailureKind::Plan, "it would remove gone")),
            ),
            (
                &removal,
                true,
                false,
                Some((
                    FailureKind::Limits,
                    "it would remove gone, which the machine's owner does not allow",
                )),
            ),
            (&removal, true, true, None),
            (
                &downgrade,
                false,
                true,
                Some((
                    FailureKind::Plan,
                    "it would bring older to an older version, which the policy does not allow",
                )),
            ),
            (
                &downgrade,
                true,
                false,
                Some((
                    FailureKind::Limits,
                    "it would bring older to an older version, which the machine's owner does not allow",
                )),
            ),
            (&downgrade, true, true, None),
        ] {
            let observed = Observed {
                simulation: simulation.clone(),
                limits: OwnerLimits {
                    removals: owner,
                    downgrades: owner,
                    ..OwnerLimits::default()
                },
                ..Observed::default()
            };
            let wish = latest(PackageRules {
                allow_removals: policy,
                allow_downgrades: policy,
                ..PackageRules::default()
            });
            let answer = refuse(&wish, &observed, &Installed::new());
            let said = answer.err().map(|failure| (failure.kind, failure.reason));
            let expected = refused.map(|(kind, reason)| (kind, reason.to_owned()));
            assert_eq!(said, expected);
        }
    }

    #[test]
    fn what_the_policy_leaves_as_it_is_is_not_removed_either() {
        let observed = Observed {
            simulation: Simulation {
                removals: vec!["linux-image-old:i386".into(), "gone".into()],
                ..Simulation::default()
            },
            ..Observed::default()
        };
        let wish = latest(PackageRules {
            allow_removals: true,
            exclude: vec!["linux-*".into()],
            ..PackageRules::default()
        });
        let failure = refuse(&wish, &observed, &Installed::new()).unwrap_err();
        assert_eq!(
            failure.reason,
            "it would remove linux-image-old:i386, which the policy leaves as they are"
        );
    }

    #[test]
    fn a_package_on_hold_is_not_changed_by_a_wish_that_names_it() {
        let held = Known {
            name: "demo".into(),
            architecture: "all".into(),
            version: "12".into(),
            want: "hold".into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        };
        let known = [held];
        let observed = Observed {
            simulation: Simulation {
                installs: vec![install("demo", "Debian:12/stable")],
                ..Simulation::default()
            },
            ..Observed::default()
        };
        let wish = PackageWish::new(PackageMode::Exactly(vec![WantedPackage {
            name: "demo".into(),
            version: Some("12.1".into()),
        }]));
        let failure = refuse(&wish, &observed, &by_package(&known, "amd64")).unwrap_err();
        assert_eq!(
            failure.reason,
            "it would change packages that somebody put on hold: demo"
        );
    }
}
