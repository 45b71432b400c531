//! Converts update specs from protocol messages.

use evenkeel_proto::agent as pb;

use crate::model::{
    ImageRules, ImageSpec, PackageMode, PackageRequirement, PackageRules, PackageSpec,
    PackageVersion, RebootRule, ServiceRule, UpdateSpec,
};

/// Parses the spec of an image. A spec with an invalid digest is unknown: the image file could not be identified. The
/// numbers are not changed, so that the same message gives the same spec.
pub(super) fn parse_image(image: pb::Image) -> UpdateSpec {
    let Ok(sha256) = image.sha256.parse() else {
        return UpdateSpec::Unknown;
    };
    let rules = image.rules.map(|rules| ImageRules {
        download_bytes_per_second: rules.download_bytes_per_second,
        max_bytes: rules.max_bytes,
        attempts: rules.attempts,
    });
    UpdateSpec::Image(ImageSpec {
        os_id: image.os_id,
        name: image.name,
        profile_name: image.profile_name,
        image_id: image.image_id,
        architecture: image.architecture,
        url: image.url,
        sha256,
        signatures: image.signatures,
        rules: rules.unwrap_or_default(),
        allow_retry: image.is_retry,
    })
}

/// Parses the spec of packages. If the mode or a rule is not supported by this agent, the whole spec is unknown: a spec
/// without that part would mean something else.
pub(super) fn parse_packages(packages: pb::Packages) -> UpdateSpec {
    let (Some(mode), Some(rules)) =
        (packages.mode.map(parse_mode), parse_rules(packages.rules.unwrap_or_default()))
    else {
        return UpdateSpec::Unknown;
    };
    let settled = packages.aged_versions.into_iter().map(|version| PackageVersion {
        name: version.name,
        architecture: version.architecture,
        version: version.version,
    });
    UpdateSpec::Packages(PackageSpec {
        mode,
        sources: packages.sources,
        rules,
        settled: settled.collect(),
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
            sha256: Sha256::hash(b"1.1").to_string(),
            profile_name: "edge".into(),
            ..pb::Image::default()
        }
    }

    #[test]
    fn every_image_field_is_read() {
        let message = pb::Image {
            architecture: "x86_64".into(),
            signatures: vec!["k:s".into(), "l:t".into()],
            rules: Some(pb::ImageRules {
                download_bytes_per_second: 1_000,
                max_bytes: 2_000,
                attempts: 3,
            }),
            is_retry: true,
            ..edge()
        };
        let expected = ImageSpec {
            os_id: "os-2".into(),
            name: "Edge 1.1".into(),
            profile_name: "edge".into(),
            image_id: "1.1".into(),
            architecture: "x86_64".into(),
            url: "edge-1.1.raw.zst".into(),
            sha256: Sha256::hash(b"1.1"),
            signatures: vec!["k:s".into(), "l:t".into()],
            rules: ImageRules { download_bytes_per_second: 1_000, max_bytes: 2_000, attempts: 3 },
            allow_retry: true,
        };
        assert_eq!(parse_image(message), UpdateSpec::Image(expected));
    }

    #[test]
    fn missing_image_fields_have_defaults() {
        let UpdateSpec::Image(spec) = parse_image(edge()) else { panic!("a spec of an image") };
        assert_eq!(spec.rules, ImageRules::default());
        assert_eq!(spec.architecture, "");
        assert!(spec.signatures.is_empty() && !spec.allow_retry);
    }

    #[test]
    fn an_image_without_a_valid_digest_is_an_unknown_spec() {
        let upper = edge().sha256.to_uppercase();
        for sha256 in [String::new(), "1.1".into(), upper] {
            assert_eq!(parse_image(pb::Image { sha256, ..edge() }), UpdateSpec::Unknown);
        }
    }

    #[test]
    fn packages_without_rules_have_default_rules() {
        assert_eq!(
            parse_packages(latest()),
            UpdateSpec::Packages(PackageSpec::new(PackageMode::Latest))
        );
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
            }),
            aged_versions: vec![pb::PackageVersion {
                name: "a".into(),
                architecture: "all".into(),
                version: "1".into(),
            }],
            ..latest()
        };
        let UpdateSpec::Packages(spec) = parse_packages(message) else {
            panic!("a spec of packages")
        };
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
            }
        );
        assert_eq!(spec.settled[0].version, "1");
    }

    #[test]
    fn an_unknown_rule_makes_the_spec_unknown() {
        let message = |rules| pb::Packages { rules: Some(rules), ..latest() };
        let reboot = pb::PackageRules { reboot: 99, ..pb::PackageRules::default() };
        let services = pb::PackageRules { services: 99, ..pb::PackageRules::default() };
        for rules in [reboot, services] {
            assert_eq!(parse_packages(message(rules)), UpdateSpec::Unknown);
        }
        assert_eq!(parse_packages(pb::Packages::default()), UpdateSpec::Unknown);
    }
}
