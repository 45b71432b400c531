//! Converts specs from protocol messages, and reports to them.

use evenkeel_proto::agent as pb;

use super::report::{MAX_ITEMS, PackageReport, count_causes};
use crate::model::{
    HeldBackCause, HeldBackPackage, PackageChange, PackageMode, PackageRequirement, PackageResult,
    PackageRules, PackageSpec, PackageVersion, RebootRule, ServiceRule, UnusedPackagesRule,
};

/// Parses the spec of packages. If the mode or a rule is not supported by this agent, there is no
/// spec: a spec without that part would mean something else.
pub(super) fn parse_packages(packages: pb::Packages) -> Option<PackageSpec> {
    let aged_versions = packages.aged_versions.into_iter().map(|version| PackageVersion {
        name: version.name,
        architecture: version.architecture,
        version: version.version,
    });
    Some(PackageSpec {
        mode: parse_mode(packages.mode?),
        sources: packages.sources,
        rules: parse_rules(packages.rules.unwrap_or_default())?,
        aged_versions: aged_versions.collect(),
    })
}

fn parse_mode(mode: pb::packages::Mode) -> PackageMode {
    match mode {
        pb::packages::Mode::Latest(_) => PackageMode::Latest,
        pb::packages::Mode::Exactly(exactly) => {
            let requirements = exactly.packages.into_iter().map(|package| PackageRequirement {
                name: package.name,
                version: Some(package.version).filter(|version| !version.is_empty()),
            });
            PackageMode::Exactly(requirements.collect())
        }
    }
}

fn parse_rules(rules: pb::PackageRules) -> Option<PackageRules> {
    let reboot = match pb::RebootRule::try_from(rules.reboot).ok()? {
        pb::RebootRule::Unspecified | pb::RebootRule::IfRequired => RebootRule::IfRequired,
        pb::RebootRule::Never => RebootRule::Never,
    };
    let services = match pb::ServiceRule::try_from(rules.services).ok()? {
        pb::ServiceRule::Unspecified | pb::ServiceRule::KeepRunning => ServiceRule::KeepRunning,
        pb::ServiceRule::Restart => ServiceRule::Restart,
    };
    let unused_packages = match pb::UnusedPackagesRule::try_from(rules.unused_packages).ok()? {
        pb::UnusedPackagesRule::Unspecified | pb::UnusedPackagesRule::Keep => {
            UnusedPackagesRule::Keep
        }
        pb::UnusedPackagesRule::RemoveKernels => UnusedPackagesRule::RemoveKernels,
        pb::UnusedPackagesRule::RemoveAll => UnusedPackagesRule::RemoveAll,
    };
    Some(PackageRules {
        suites: rules.suites,
        exclude: rules.exclude,
        allow_removals: rules.allow_removals,
        allow_downgrades: rules.allow_downgrades,
        reboot,
        services,
        download_bytes_per_second: rules.download_bytes_per_second,
        min_age_days: rules.min_age_days,
        unused_packages,
        minimal_steps: rules.minimal_steps,
    })
}

/// Writes the report into an event.
pub(super) fn write_event(report: &PackageReport, event: &mut pb::Event) {
    match &mut event.kind {
        Some(pb::event::Kind::Downloading(downloading)) => {
            let plan = downloading.plan.get_or_insert_default();
            plan.changes = report.changes.iter().map(change_message).collect();
            plan.held_back = report.held_back.iter().map(held_back_message).collect();
        }
        Some(pb::event::Kind::Finished(end)) => end.results = results_message(&report.results),
        Some(pb::event::Kind::Failed(end)) => end.results = results_message(&report.results),
        _ => {}
    }
    if let Some(message) = &mut event.report {
        message.preserved_conffiles.clone_from(&report.retained_conffiles);
        message.restarted_services.clone_from(&report.restarted_services);
        let listed = report.held_back.iter().take(MAX_ITEMS);
        message.held_back = listed.map(held_back_message).collect();
        message.held_back_counts = held_back_counts(&report.held_back);
    }
}

fn change_message(change: &PackageChange) -> pb::PackageChange {
    pb::PackageChange {
        name: change.name.clone(),
        architecture: change.architecture.clone(),
        before: change.before.clone().unwrap_or_default(),
        after: change.after.clone().unwrap_or_default(),
        suite: change.suite.clone(),
        download_bytes: change.download_bytes,
        suites: change.suites.clone(),
        origins: change.origins.clone(),
    }
}

/// Also used for the facts of the node.
pub(crate) fn held_back_message(package: &HeldBackPackage) -> pb::HeldBackPackage {
    pb::HeldBackPackage {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        installed_version: package.installed.clone(),
        available_version: package.available.clone(),
        cause: cause_message(package.cause).into(),
        ..pb::HeldBackPackage::default()
    }
}

fn cause_message(cause: HeldBackCause) -> pb::HeldBackCause {
    match cause {
        HeldBackCause::Hold => pb::HeldBackCause::Hold,
        HeldBackCause::Dependencies => pb::HeldBackCause::Dependencies,
        HeldBackCause::Phased => pb::HeldBackCause::Phased,
        HeldBackCause::Pinned => pb::HeldBackCause::Pinned,
        HeldBackCause::Limits => pb::HeldBackCause::Limits,
        HeldBackCause::Excluded => pb::HeldBackCause::Excluded,
        HeldBackCause::Suite => pb::HeldBackCause::Suite,
        HeldBackCause::TooYoung => pb::HeldBackCause::TooYoung,
        HeldBackCause::Policy => pb::HeldBackCause::Policy,
        HeldBackCause::Space => pb::HeldBackCause::Space,
        HeldBackCause::BootLoader => pb::HeldBackCause::BootLoader,
    }
}

fn held_back_counts(held_back: &[HeldBackPackage]) -> Vec<pb::HeldBackCount> {
    let counts = count_causes(held_back).into_iter();
    let message = |(cause, packages)| pb::HeldBackCount {
        cause: cause_message(cause).into(),
        packages: u32::try_from(packages).unwrap_or(u32::MAX),
    };
    counts.map(message).collect()
}

fn results_message(results: &[PackageResult]) -> Vec<pb::PackageResult> {
    let results = results.iter().map(|result| pb::PackageResult {
        name: result.name.clone(),
        architecture: result.architecture.clone(),
        version: result.version.clone(),
        state: result.state.clone(),
    });
    results.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latest() -> pb::Packages {
        pb::Packages {
            mode: Some(pb::packages::Mode::Latest(pb::Latest {})),
            ..pb::Packages::default()
        }
    }

    #[test]
    fn packages_without_rules_have_default_rules() {
        assert_eq!(parse_packages(latest()), Some(PackageSpec::new(PackageMode::Latest)));
    }

    #[test]
    fn every_rule_is_read() {
        let message = pb::Packages {
            rules: Some(pb::PackageRules {
                suites: vec!["stable-security".into()],
                exclude: vec!["linux-*".into()],
                allow_removals: true,
                allow_downgrades: true,
                reboot: pb::RebootRule::Never.into(),
                services: pb::ServiceRule::Restart.into(),
                download_bytes_per_second: 1_000,
                min_age_days: 7,
                unused_packages: pb::UnusedPackagesRule::RemoveAll.into(),
                minimal_steps: true,
            }),
            aged_versions: vec![pb::PackageVersion {
                name: "a".into(),
                architecture: "all".into(),
                version: "1".into(),
            }],
            ..latest()
        };
        let spec = parse_packages(message).unwrap();
        assert_eq!(
            spec.rules,
            PackageRules {
                suites: vec!["stable-security".into()],
                exclude: vec!["linux-*".into()],
                allow_removals: true,
                allow_downgrades: true,
                reboot: RebootRule::Never,
                services: ServiceRule::Restart,
                download_bytes_per_second: 1_000,
                min_age_days: 7,
                unused_packages: UnusedPackagesRule::RemoveAll,
                minimal_steps: true,
            }
        );
        assert_eq!(spec.aged_versions[0].version, "1");
    }

    #[test]
    fn the_last_event_lists_held_back_packages_and_counts_all_of_them() {
        let package = |number: usize, cause| HeldBackPackage {
            name: format!("p{number}"),
            architecture: "all".into(),
            installed: "1".into(),
            available: "2".into(),
            cause,
        };
        let mut held_back: Vec<_> =
            (0..600).map(|number| package(number, HeldBackCause::TooYoung)).collect();
        held_back.push(package(600, HeldBackCause::Hold));
        let report = PackageReport { held_back, ..PackageReport::default() };
        let mut event = pb::Event {
            kind: Some(pb::event::Kind::NothingToDo(pb::NothingToDo {})),
            report: Some(pb::RunReport::default()),
            ..pb::Event::default()
        };
        write_event(&report, &mut event);
        let sent = event.report.unwrap();
        assert_eq!(sent.held_back.len(), MAX_ITEMS);
        assert_eq!(sent.held_back[0].cause(), pb::HeldBackCause::TooYoung);
        let counts = sent.held_back_counts.iter().map(|count| (count.cause(), count.packages));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [(pb::HeldBackCause::Hold, 1), (pb::HeldBackCause::TooYoung, 600)]
        );
    }

    #[test]
    fn an_unknown_rule_makes_the_spec_unknown() {
        let message = |rules| pb::Packages { rules: Some(rules), ..latest() };
        let reboot = pb::PackageRules { reboot: 99, ..pb::PackageRules::default() };
        let services = pb::PackageRules { services: 99, ..pb::PackageRules::default() };
        let unused = pb::PackageRules { unused_packages: 99, ..pb::PackageRules::default() };
        for rules in [reboot, services, unused] {
            assert_eq!(parse_packages(message(rules)), None);
        }
        assert_eq!(parse_packages(pb::Packages::default()), None);
    }
}
