//! Rejects plans that must not be carried out. Pure.

use std::collections::BTreeSet;

use super::index_targets::{self, IndexTarget};
use super::parse::{DpkgPackage, Simulation};
use super::plan::{InstalledPackages, PackageObservation, join_names, strip_native_architecture};
use super::protected::removal_refusal;
use super::providers::resolve_requirement;
use super::rules::is_excluded;
use crate::model::{Failure, FailureKind, PackageMode, PackageSpec};

/// The package that determines the release of the system.
pub(super) const RELEASE_PACKAGE: &str = "base-files";

/// Rejects a plan that must not be carried out. The simplest reason comes first.
pub fn check_plan(
    spec: &PackageSpec,
    observed: &PackageObservation,
    installed: &InstalledPackages<'_>,
) -> Result<(), Failure> {
    refuse_another_release(observed)?;
    refuse_removals(spec, observed)?;
    refuse_new_packages(observed)?;
    refuse_broken(installed, &observed.simulation)?;
    refuse_downgrades(spec, observed)?;
    refuse_on_hold(observed, installed)?;
    if let PackageMode::Exactly(_) = &spec.mode {
        refuse_missing(spec, observed, installed)?;
    }
    Ok(())
}

/// An update never moves the system to another release: a release upgrade has its own procedure.
fn refuse_another_release(observed: &PackageObservation) -> Result<(), Failure> {
    let simulation = &observed.simulation;
    if simulation.removals.iter().any(|package| package == RELEASE_PACKAGE) {
        return Err(plan_failure(format!("it would remove {RELEASE_PACKAGE}")));
    }
    let Some(install) = simulation.install(RELEASE_PACKAGE) else {
        return Ok(());
    };
    let own = observed.codename.as_str();
    let order = install.apt_argument();
    let file = observed.debs.iter().find(|deb| deb.apt_argument == order);
    let uri = file.map_or("", |deb| deb.uri.as_str());
    let sources = index_targets::find_sources(&install.origins, uri, &observed.targets);
    // A Release file may claim any codename. So if the sources of the node name its release, and not only `stable`, one of
    // these sources must have the version. The server chooses the name of a suite that its policy adds.
    let is_own = |source: &IndexTarget| {
        let own_suites = observed.own_suites.as_ref();
        own_suites.is_none_or(|all| all.iter().any(|(uri, suite)| source.belongs_to(uri, suite)))
    };
    let is_own_release = |source: &IndexTarget| is_own(source) && source.is_named_as(own);
    let is_named = observed.targets.iter().any(is_own_release);
    let mut claiming = sources.iter().filter(|source| source.claims_release(own)).peekable();
    if let Some(&&source) = claiming.peek() {
        if !is_named || claiming.any(|source| is_own_release(source)) {
            return Ok(());
        }
        return Err(plan_failure(format!(
            "it would take {RELEASE_PACKAGE} {} from {} {}, which is not a source of the installed release {own}",
            install.after, source.uri, source.release
        )));
    }
    let codenames = sources.iter().map(|source| source.codename.as_str());
    let others: BTreeSet<_> = codenames.filter(|name| !name.is_empty()).collect();
    let display_name = |name: &str| {
        if name.is_empty() { "an unknown release".to_owned() } else { name.to_owned() }
    };
    let other = display_name(&others.into_iter().collect::<Vec<_>>().join(", "));
    Err(plan_failure(format!(
        "it would move the system from {} to {other}: {RELEASE_PACKAGE} {} is not of the installed release",
        display_name(own),
        install.after
    )))
}

fn refuse_removals(spec: &PackageSpec, observed: &PackageObservation) -> Result<(), Failure> {
    let removals = &observed.simulation.removals;
    if removals.is_empty() {
        return Ok(());
    }
    let names = join_names(removals.iter().cloned());
    if !spec.rules.allow_removals {
        return Err(plan_failure(format!("it would remove {names}")));
    }
    if !observed.owner_limits.removals {
        return Err(owner_failure(format!("it would remove {names}")));
    }
    // If apt does not see the new version of a package, it may remove the package to change another one.
    if observed.broken_sources.is_some() {
        let reason = format!("it would remove {names} while a package source cannot be used");
        return Err(plan_failure(reason));
    }
    let mut refusals = removals.iter().filter_map(|package| {
        removal_refusal(package, &observed.owner_limits, &observed.protected)
    });
    if let Some(why) = refusals.next() {
        return Err(Failure::new(FailureKind::Limits, format!("it would remove {why}")));
    }
    let excluded = removals.iter().filter(|package| is_excluded(&spec.rules, package));
    let excluded: Vec<_> = excluded.cloned().collect();
    if excluded.is_empty() {
        return Ok(());
    }
    Err(plan_failure(format!(
        "it would remove {}, which the policy excludes from changes",
        join_names(excluded)
    )))
}

fn refuse_new_packages(observed: &PackageObservation) -> Result<(), Failure> {
    let installs = observed.simulation.installs.iter();
    let new = installs.filter(|install| install.before.is_none());
    let names: Vec<_> = new.map(|install| install.package.clone()).collect();
    if observed.owner_limits.new_packages || names.is_empty() {
        return Ok(());
    }
    Err(owner_failure(format!("it would install {}", join_names(names))))
}

/// A half-installed package must be unpacked again; if apt does not plan that, a person must find its file.
fn refuse_broken(
    installed: &InstalledPackages<'_>,
    simulation: &Simulation,
) -> Result<(), Failure> {
    let broken = |package: &String, dpkg_package: &DpkgPackage| {
        dpkg_package.needs_reinstall()
            && !dpkg_package.is_half_removed()
            && simulation.install(package).is_none()
    };
    let names: Vec<_> = installed
        .iter()
        .filter(|(package, dpkg_package)| broken(package, dpkg_package))
        .map(|(package, _)| package.clone())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(plan_failure(format!(
        "these packages are half-installed and must be installed again by hand: {}",
        join_names(names)
    )))
}

fn refuse_downgrades(spec: &PackageSpec, observed: &PackageObservation) -> Result<(), Failure> {
    let downgrades = &observed.simulation.downgrades;
    if downgrades.is_empty() {
        return Ok(());
    }
    let names = join_names(downgrades.iter().cloned());
    let what = format!("it would bring {names} to an older version");
    if !spec.rules.allow_downgrades {
        return Err(plan_failure(format!("{what}, which the policy does not allow")));
    }
    if !observed.owner_limits.downgrades {
        return Err(owner_failure(what));
    }
    Ok(())
}

/// Packages on hold are not changed: a person put them on hold.
fn refuse_on_hold(
    observed: &PackageObservation,
    installed: &InstalledPackages<'_>,
) -> Result<(), Failure> {
    let simulation = &observed.simulation;
    let installs = simulation.installs.iter().map(|install| &install.package);
    let on_hold = installs.chain(&simulation.removals).filter(|package| {
        let dpkg_package = installed.get(*package);
        dpkg_package.is_some_and(|dpkg_package| dpkg_package.want == "hold")
    });
    let on_hold: Vec<_> = on_hold.cloned().collect();
    if on_hold.is_empty() {
        return Ok(());
    }
    Err(plan_failure(format!("it would change packages that are on hold: {}", join_names(on_hold))))
}

fn refuse_missing(
    spec: &PackageSpec,
    observed: &PackageObservation,
    installed: &InstalledPackages<'_>,
) -> Result<(), Failure> {
    let PackageMode::Exactly(packages) = &spec.mode else {
        return Ok(());
    };
    for package in packages {
        let name = strip_native_architecture(&package.name, &observed.native_architecture);
        let version = match observed.simulation.install(name) {
            Some(install) => Some(install.after.as_str()),
            None => installed.get(name).map(|dpkg_package| dpkg_package.version.as_str()),
        };
        match (version, package.version.as_deref()) {
            (Some(_), None) => {}
            (Some(version), Some(required)) if version == required => {}
            (Some(version), Some(required)) => {
                return Err(plan_failure(format!("{name} would be {version} and not {required}")));
            }
            // A virtual package has no version of its own.
            (None, None) if !resolve_requirement(name, observed, installed).is_empty() => {}
            (None, _) => return Err(plan_failure(format!("no source has the package {name}"))),
        }
    }
    Ok(())
}

fn plan_failure(reason: String) -> Failure {
    Failure::new(FailureKind::Plan, reason)
}

fn owner_failure(what: String) -> Failure {
    let reason = format!("{what}, which the machine's owner does not allow");
    Failure::new(FailureKind::Limits, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PackageRequirement, PackageRules};
    use crate::modules::packages::index_targets::IndexTarget;
    use crate::modules::packages::parse::PlannedInstall;
    use crate::modules::packages::plan::{index_by_apt_name, plan};
    use crate::modules::packages::protected::ProtectedPackage;
    use crate::modules::packages::{Deb, Digest};
    use crate::owner::OwnerLimits;

    const TARGETS: &str = "\
http://deb.example/debian/\tbookworm\tstable\tbookworm\tDebian\t12
http://deb.example/debian/\tbookworm-updates\tstable-updates\tbookworm-updates\tDebian\t12-updates
http://deb.example/debian/\ttrixie\ttesting\ttrixie\tDebian\t13
https://own.example/\t./\t$(SUITE)\t$(CODENAME)\tOwn\t$(VERSION)
";

    fn targets() -> Vec<IndexTarget> {
        index_targets::parse_targets(TARGETS).unwrap()
    }

    fn install(package: &str, origin: &str) -> PlannedInstall {
        PlannedInstall {
            package: package.into(),
            before: Some("12".into()),
            after: "12.1".into(),
            architecture: "amd64".into(),
            origins: vec![origin.into()],
        }
    }

    fn latest(rules: PackageRules) -> PackageSpec {
        PackageSpec { rules, ..PackageSpec::new(PackageMode::Latest) }
    }

    #[test]
    fn an_update_never_takes_the_system_to_another_release() {
        for (codename, origin, refused) in [
            ("bookworm", "Debian:12/stable", None),
            ("bookworm", "Debian:12-updates/stable-updates", None),
            ("bookworm", "Debian:13/testing", Some("from bookworm to trixie:")),
            ("trixie", "Debian:12/stable", Some("from trixie to bookworm:")),
            ("book", "Debian:12/stable", Some("from book to bookworm:")),
            ("bookworm", "Own:", Some("from bookworm to an unknown release:")),
            ("bookworm", "Debian:14/sid", Some("to an unknown release:")),
            ("", "Debian:12/stable", Some("from an unknown release to bookworm:")),
        ] {
            let observed = PackageObservation {
                simulation: Simulation {
                    installs: vec![install("base-files", origin), install("bash", origin)],
                    ..Simulation::default()
                },
                targets: targets(),
                codename: codename.into(),
                ..PackageObservation::default()
            };
            let answer = plan(&latest(PackageRules::default()), &observed);
            match (answer, refused) {
                (Ok(_), None) => {}
                (Err(failure), Some(message)) => {
                    assert_eq!(failure.kind, FailureKind::Plan);
                    assert!(failure.reason.contains(message), "{}", failure.reason);
                }
                (answer, _) => panic!("{codename}, {origin}: {answer:?}"),
            }
        }
    }

    /// Release package of a source that claims to be of bookworm, on a node with this other source.
    fn refusal_of_claim(own_suite: &str, claiming: &str, file_uri: &str) -> Option<String> {
        refusal_with_own_suites(own_suite, claiming, file_uri, None)
    }

    /// [`refusal_of_claim`] with the suites of the node's own sources, if the policy adds others.
    fn refusal_with_own_suites(
        own_suite: &str,
        claiming: &str,
        file_uri: &str,
        own_suites: Option<&[(&str, &str)]>,
    ) -> Option<String> {
        let own_suites: Option<Vec<_>> = own_suites.map(|suites| {
            suites.iter().map(|&(uri, suite)| (uri.to_owned(), suite.to_owned())).collect()
        });
        let targets = format!(
            "http://deb.example/debian/\t{own_suite}\tstable\tbookworm\tDebian\t12\n\
             https://other.example/\t{claiming}\tstable\tbookworm-updates\tDebian\t12\n"
        );
        let base_files = install("base-files", "Debian:12/stable");
        let observed = PackageObservation {
            debs: vec![Deb {
                name: "base-files.deb".into(),
                size: 1,
                digest: Digest::Sha256(String::new()),
                apt_argument: base_files.apt_argument(),
                uri: file_uri.into(),
            }],
            simulation: Simulation { installs: vec![base_files], ..Simulation::default() },
            targets: index_targets::parse_targets(&targets).unwrap(),
            own_suites,
            codename: "bookworm".into(),
            ..PackageObservation::default()
        };
        let answer = plan(&latest(PackageRules::default()), &observed);
        answer.err().map(|failure| failure.reason)
    }

    #[test]
    fn a_codename_does_not_make_another_source_one_of_the_installed_release() {
        let [own, other] = ["http://deb.example/debian/b.deb", "https://other.example/b.deb"];
        for (own_suite, claiming, uri, is_allowed) in [
            ("bookworm", "thirdparty", own, true),
            ("bookworm", "thirdparty", other, false),
            ("bookworm", "trixie", other, false),
            ("bookworm", "./", other, false),
            ("bookworm-security", "thirdparty", other, false),
            ("bookworm", "bookworm-updates", other, true),
            // Without a source that names the release, the codename decides.
            ("stable", "stable-updates", other, true),
            ("stable", "mirror", other, true),
        ] {
            let refusal = refusal_of_claim(own_suite, claiming, uri);
            assert_eq!(refusal.is_none(), is_allowed, "{own_suite} {claiming}: {refusal:?}");
        }
        assert_eq!(
            refusal_of_claim("bookworm", "thirdparty", other).unwrap(),
            "it would take base-files 12.1 from https://other.example/ thirdparty, which is not a source of the installed release bookworm"
        );
    }

    #[test]
    fn a_source_of_the_policy_is_none_of_the_installed_release_whatever_its_name_is() {
        let [own, other] = ["http://deb.example/debian/b.deb", "https://other.example/b.deb"];
        let debian = ("http://deb.example/debian", "bookworm");
        let stable = ("http://deb.example/debian", "stable");
        let mirror = ("https://other.example/", "bookworm");
        for (own_suite, uri, own_suites, is_allowed) in [
            ("bookworm", own, vec![debian], true),
            ("bookworm", other, vec![debian], false),
            ("bookworm", other, vec![debian, mirror], true),
            // Without an own source that names the release, the codename decides.
            ("stable", other, vec![stable], true),
            ("bookworm", other, vec![], true),
        ] {
            let refusal =
                refusal_with_own_suites(own_suite, "bookworm", uri, Some(own_suites.as_slice()));
            assert_eq!(refusal.is_none(), is_allowed, "{own_suites:?} {uri}: {refusal:?}");
        }
    }

    #[test]
    fn any_other_package_may_come_from_any_release() {
        let observed = PackageObservation {
            simulation: Simulation {
                installs: vec![install("bash", "Debian:13/testing")],
                ..Simulation::default()
            },
            targets: targets(),
            codename: "bookworm".into(),
            ..PackageObservation::default()
        };
        let draft = plan(&latest(PackageRules::default()), &observed).unwrap();
        assert_eq!(draft.report.changes[0].suite, "trixie");
    }

    #[test]
    fn the_release_package_is_never_removed() {
        let observed = PackageObservation {
            simulation: Simulation { removals: vec!["base-files".into()], ..Simulation::default() },
            ..PackageObservation::default()
        };
        let rules = PackageRules { allow_removals: true, ..PackageRules::default() };
        assert!(plan(&latest(rules), &observed).is_err());
    }

    /// Verdict of policy and owner on a plan that removes `gone` and downgrades `older`.
    #[test]
    fn removals_and_downgrades_must_be_allowed_by_policy_and_owner() {
        let removal = Simulation { removals: vec!["gone".into()], ..Simulation::default() };
        let downgrade = Simulation {
            installs: vec![install("older", "Debian:12/stable")],
            downgrades: vec!["older".into()],
            ..Simulation::default()
        };
        for (simulation, policy, owner, refused) in [
            (&removal, false, true, Some((FailureKind::Plan, "it would remove gone"))),
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
            let observed = PackageObservation {
                simulation: simulation.clone(),
                owner_limits: OwnerLimits {
                    removals: owner,
                    downgrades: owner,
                    ..OwnerLimits::default()
                },
                ..PackageObservation::default()
            };
            let spec = latest(PackageRules {
                allow_removals: policy,
                allow_downgrades: policy,
                ..PackageRules::default()
            });
            let answer = check_plan(&spec, &observed, &InstalledPackages::new());
            let refusal = answer.err().map(|failure| (failure.kind, failure.reason));
            let expected = refused.map(|(kind, reason)| (kind, reason.to_owned()));
            assert_eq!(refusal, expected);
        }
    }

    #[test]
    fn no_package_is_removed_while_a_source_is_left_out() {
        let spec = latest(PackageRules { allow_removals: true, ..PackageRules::default() });
        let observed = PackageObservation {
            simulation: Simulation { removals: vec!["gone".into()], ..Simulation::default() },
            ..PackageObservation::default()
        };
        check_plan(&spec, &observed, &InstalledPackages::new()).unwrap();
        let broken_sources = Some(Failure::new(FailureKind::Refresh, "the repository is expired"));
        let observed = PackageObservation { broken_sources, ..observed };
        let failure = check_plan(&spec, &observed, &InstalledPackages::new()).unwrap_err();
        assert_eq!(failure.reason, "it would remove gone while a package source cannot be used");
    }

    #[test]
    fn a_protected_package_is_not_removed() {
        let observed = PackageObservation {
            simulation: Simulation {
                removals: vec!["gone".into(), "evenkeel-agent".into()],
                ..Simulation::default()
            },
            protected: vec![ProtectedPackage { name: "evenkeel-agent".into(), what: "this agent" }],
            ..PackageObservation::default()
        };
        let spec = latest(PackageRules { allow_removals: true, ..PackageRules::default() });
        let failure = check_plan(&spec, &observed, &InstalledPackages::new()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Limits);
        assert_eq!(
            failure.reason,
            "it would remove evenkeel-agent (this agent); `removable_packages` in the limits can allow it"
        );
        let limits = OwnerLimits {
            removable_packages: vec!["evenkeel-agent".into()],
            ..OwnerLimits::default()
        };
        let allowed = PackageObservation { owner_limits: limits, ..observed };
        check_plan(&spec, &allowed, &InstalledPackages::new()).unwrap();
    }

    #[test]
    fn a_new_package_must_be_allowed_by_the_owner() {
        let fresh = PlannedInstall { before: None, ..install("fresh", "Debian:12/stable") };
        let mut observed = PackageObservation {
            simulation: Simulation { installs: vec![fresh], ..Simulation::default() },
            ..PackageObservation::default()
        };
        let spec = latest(PackageRules::default());
        check_plan(&spec, &observed, &InstalledPackages::new()).unwrap();
        observed.owner_limits.new_packages = false;
        let failure = check_plan(&spec, &observed, &InstalledPackages::new()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Limits);
        assert_eq!(
            failure.reason,
            "it would install fresh, which the machine's owner does not allow"
        );
    }

    #[test]
    fn an_excluded_package_is_not_removed() {
        let observed = PackageObservation {
            simulation: Simulation {
                removals: vec!["linux-image-old:i386".into(), "gone".into()],
                ..Simulation::default()
            },
            ..PackageObservation::default()
        };
        let spec = latest(PackageRules {
            allow_removals: true,
            exclude: vec!["linux-*".into()],
            ..PackageRules::default()
        });
        let failure = check_plan(&spec, &observed, &InstalledPackages::new()).unwrap_err();
        assert_eq!(
            failure.reason,
            "it would remove linux-image-old:i386, which the policy excludes from changes"
        );
    }

    #[test]
    fn a_package_on_hold_is_not_changed_by_a_spec_that_names_it() {
        let on_hold = DpkgPackage {
            name: "demo".into(),
            architecture: "all".into(),
            version: "12".into(),
            want: "hold".into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        };
        let packages = [on_hold];
        let observed = PackageObservation {
            simulation: Simulation {
                installs: vec![install("demo", "Debian:12/stable")],
                ..Simulation::default()
            },
            ..PackageObservation::default()
        };
        let spec = PackageSpec::new(PackageMode::Exactly(vec![PackageRequirement {
            name: "demo".into(),
            version: Some("12.1".into()),
        }]));
        let failure =
            check_plan(&spec, &observed, &index_by_apt_name(&packages, "amd64")).unwrap_err();
        assert_eq!(failure.reason, "it would change packages that are on hold: demo");
    }
}
