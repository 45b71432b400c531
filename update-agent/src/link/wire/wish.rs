//! From a wish as it is told to the agent's own.

use evenkeel_proto::agent as pb;

use crate::model::{
    KnownVersion, PackageMode, PackageRules, PackageWish, RebootRule, ServiceRule, WantedPackage,
    Wish,
};

/// Reads a wish for packages. One with a mode or a rule that this agent does not know is not known as a whole: half of a
/// wish is another wish.
pub(super) fn packages(packages: pb::Packages) -> Wish {
    let (Some(mode), Some(rules)) = (
        packages.mode.map(mode),
        rules(packages.rules.unwrap_or_default()),
    ) else {
        return Wish::Unknown;
    };
    let settled = packages.settled.into_iter().map(|known| KnownVersion {
        name: known.name,
        architecture: known.architecture,
        version: known.version,
    });
    Wish::Packages(PackageWish {
        mode,
        sources: packages.sources,
        rules,
        settled: settled.collect(),
    })
}

fn mode(mode: pb::packages::Mode) -> PackageMode {
    match mode {
        pb::packages::Mode::Latest(_) => PackageMode::Latest,
        pb::packages::Mode::Exactly(exactly) => {
            let wanted = exactly.packages.into_iter().map(|package| WantedPackage {
                name: package.name,
                version: Some(package.version).filter(|version| !version.is_empty()),
            });
            PackageMode::Exactly(wanted.collect())
        }
    }
}

fn rules(rules: pb::PackageRules) -> Option<PackageRules> {
    let reboot = match pb::RebootRule::try_from(rules.reboot).ok()? {
        pb::RebootRule::Unspecified | pb::RebootRule::IfRequired => RebootRule::IfRequired,
        pb::RebootRule::Never => RebootRule::Never,
    };
    let services = match pb::ServiceRule::try_from(rules.services).ok()? {
        pb::ServiceRule::Unspecified | pb::ServiceRule::Leave => ServiceRule::Leave,
        pb::ServiceRule::Restart => ServiceRule::Restart,
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
    })
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
    fn a_wish_without_rules_has_the_usual_ones() {
        assert_eq!(
            packages(latest()),
            Wish::Packages(PackageWish::new(PackageMode::Latest))
        );
    }

    #[test]
    fn every_rule_arrives() {
        let told = pb::Packages {
            rules: Some(pb::PackageRules {
                suites: vec!["stable-security".into()],
                exclude: vec!["linux-*".into()],
                allow_removals: true,
                allow_downgrades: true,
                reboot: pb::RebootRule::Never.into(),
                services: pb::ServiceRule::Restart.into(),
                download_bytes_per_second: 1_000,
                min_age_days: 7,
            }),
            settled: vec![pb::KnownVersion {
                name: "a".into(),
                architecture: "all".into(),
                version: "1".into(),
            }],
            ..latest()
        };
        let Wish::Packages(wish) = packages(told) else {
            panic!("a wish for packages")
        };
        assert_eq!(
            wish.rules,
            PackageRules {
                suites: vec!["stable-security".into()],
                exclude: vec!["linux-*".into()],
                allow_removals: true,
                allow_downgrades: true,
                reboot: RebootRule::Never,
                services: ServiceRule::Restart,
                download_bytes_per_second: 1_000,
                min_age_days: 7,
            }
        );
        assert_eq!(wish.settled[0].version, "1");
    }

    #[test]
    fn a_rule_that_is_not_known_makes_the_wish_one_that_is_not() {
        let told = |rules| pb::Packages {
            rules: Some(rules),
            ..latest()
        };
        let reboot = pb::PackageRules {
            reboot: 99,
            ..pb::PackageRules::default()
        };
        let services = pb::PackageRules {
            services: 99,
            ..pb::PackageRules::default()
        };
        for rules in [reboot, services] {
            assert_eq!(packages(told(rules)), Wish::Unknown);
        }
        assert_eq!(packages(pb::Packages::default()), Wish::Unknown);
    }
}
