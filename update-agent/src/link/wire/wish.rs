//! From a wish as it is told to the agent's own.

use evenkeel_proto::agent as pb;

use crate::model::{
    ImageRules, ImageWish, KnownVersion, PackageMode, PackageRules, PackageWish, RebootRule,
    ServiceRule, WantedPackage, Wish,
};

/// Reads a wish for an image. One whose digest is none is not known: nobody could tell that file from another. The
/// numbers are kept as they were told, so that the same word is the same wish.
pub(super) fn image(image: pb::Image) -> Wish {
    let Ok(sha256) = image.sha256.parse() else {
        return Wish::Unknown;
    };
    let rules = image.rules.map(|rules| ImageRules {
        download_bytes_per_second: rules.download_bytes_per_second,
        max_bytes: rules.max_bytes,
        attempts: rules.attempts,
    });
    Wish::Image(ImageWish {
        os_id: image.os_id,
        name: image.name,
        profile_name: image.profile_name,
        image_id: image.image_id,
        architecture: image.architecture,
        url: image.url,
        sha256,
        signatures: image.signatures,
        rules: rules.unwrap_or_default(),
        again: image.again,
    })
}

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
    use crate::model::Sha256;

    fn latest() -> pb::Packages {
        pb::Packages {
            mode: Some(pb::packages::Mode::Latest(pb::Latest {})),
            ..pb::Packages::default()
        }
    }

    fn edge() -> pb::Image {
        pb::Image {
            os_id: "os-2".into(),
            name: "Edge 1.1".into(),
            image_id: "1.1".into(),
            url: "edge-1.1.raw.zst".into(),
            sha256: Sha256::of(b"1.1").to_string(),
            profile_name: "edge".into(),
            ..pb::Image::default()
        }
    }

    #[test]
    fn everything_that_is_told_of_an_image_arrives() {
        let told = pb::Image {
            architecture: "x86_64".into(),
            signatures: vec!["k:s".into(), "l:t".into()],
            rules: Some(pb::ImageRules {
                download_bytes_per_second: 1_000,
                max_bytes: 2_000,
                attempts: 3,
            }),
            again: true,
            ..edge()
        };
        let expected = ImageWish {
            os_id: "os-2".into(),
            name: "Edge 1.1".into(),
            profile_name: "edge".into(),
            image_id: "1.1".into(),
            architecture: "x86_64".into(),
            url: "edge-1.1.raw.zst".into(),
            sha256: Sha256::of(b"1.1"),
            signatures: vec!["k:s".into(), "l:t".into()],
            rules: ImageRules {
                download_bytes_per_second: 1_000,
                max_bytes: 2_000,
                attempts: 3,
            },
            again: true,
        };
        assert_eq!(image(told), Wish::Image(expected));
    }

    #[test]
    fn a_server_that_says_less_of_an_image_leaves_the_rest_as_is_usual() {
        let Wish::Image(wish) = image(edge()) else {
            panic!("a wish for an image")
        };
        assert_eq!(wish.rules, ImageRules::default());
        assert_eq!(wish.architecture, "");
        assert!(wish.signatures.is_empty() && !wish.again);
    }

    #[test]
    fn a_wish_for_an_image_without_a_digest_is_not_known() {
        let upper = edge().sha256.to_uppercase();
        for sha256 in [String::new(), "1.1".into(), upper] {
            assert_eq!(image(pb::Image { sha256, ..edge() }), Wish::Unknown);
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
