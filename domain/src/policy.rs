//! Update policies: what nodes should run. A policy is immutable.

mod images;
mod rules;

pub use images::ImageRules;
pub use rules::{PackageRules, RebootRule, ServiceRule, UnusedPackagesRule};

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::{OsId, PolicyId};
use crate::invalid::Invalid;
use crate::os::OsKind;
use crate::package::PackageRequirement;
use crate::package_source;
use crate::text::{self, Name};

/// What the nodes that it is assigned to should run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatePolicy {
    pub id: PolicyId,
    pub spec: PolicySpec,
    pub created_at: Time,
}

/// Content of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySpec {
    /// For users; not unique.
    pub name: Name,
    /// For users.
    pub description: String,
    pub desired: DesiredUpdate,
    /// Whether a node may be downgraded to an older version.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// How many days an offline grant lasts; 0 for no offline grants.
    #[serde(default = "PolicySpec::default_offline_days")]
    pub offline_days: u32,
    /// How packages may be installed.
    #[serde(default, skip_serializing_if = "PackageRules::is_default")]
    pub rules: PackageRules,
    /// How an image may be fetched.
    #[serde(default, skip_serializing_if = "ImageRules::is_default")]
    pub image_rules: ImageRules,
}

impl PolicySpec {
    /// Default number of days that an offline grant lasts.
    #[must_use]
    pub const fn default_offline_days() -> u32 {
        7
    }

    /// Sets how many days an offline grant lasts.
    ///
    /// # Errors
    /// It is longer than a year.
    pub fn with_offline_days(mut self, offline_days: u32) -> Result<Self, Invalid> {
        if offline_days > 365 {
            return Err(Invalid::new("offlineDays", "more than 365 days"));
        }
        self.offline_days = offline_days;
        Ok(self)
    }

    /// Sets the rules for packages.
    ///
    /// # Errors
    /// The rules are invalid, or the desired update is an image.
    pub fn with_package_rules(mut self, rules: PackageRules) -> Result<Self, Invalid> {
        rules.check()?;
        let is_image =
            matches!(&self.desired, DesiredUpdate::Target(target) if target.os.is_some());
        if is_image && !rules.is_default() {
            return Err(Invalid::new(
                "packageRules",
                "rules for packages cannot be combined with an operating system",
            ));
        }
        // Only available versions that nodes report have an age. A version that a user names would never be old enough.
        if rules.min_age_days > 0 && self.desired != DesiredUpdate::Latest {
            return Err(Invalid::new(
                "packageRules.minAgeDays",
                "a minimum age needs UPDATE_POLICY_LATEST",
            ));
        }
        self.rules = rules;
        Ok(self)
    }

    /// Sets the rules for images.
    ///
    /// # Errors
    /// The rules are invalid, or the desired update can never be an image.
    pub fn with_image_rules(mut self, rules: ImageRules) -> Result<Self, Invalid> {
        rules.check()?;
        let excludes =
            matches!(&self.desired, DesiredUpdate::Target(target) if target.os.is_none());
        if excludes && !rules.is_default() {
            return Err(Invalid::new(
                "imageRules",
                "rules for images need an operating system, or UPDATE_POLICY_LATEST",
            ));
        }
        self.image_rules = rules;
        Ok(self)
    }

    /// Parses a policy.
    ///
    /// # Errors
    /// The name is empty or invalid, or the description has characters that are not allowed.
    pub fn parse(name: &str, description: &str, desired: DesiredUpdate) -> Result<Self, Invalid> {
        text::check("description", description, 200, text::TEXT_PUNCTUATION)?;
        Ok(Self {
            name: Name::parse_given("name", name)?,
            description: description.to_owned(),
            desired,
            allow_downgrade: false,
            offline_days: Self::default_offline_days(),
            rules: PackageRules::default(),
            image_rules: ImageRules::default(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DesiredUpdate {
    /// The newest: of every package, or of the images of the profile.
    Latest,
    /// Exactly this.
    Target(TargetUpdate),
}

/// Exact content of a desired update. At least one part is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetUpdate {
    /// The operating system whose image to install.
    pub os: Option<OsId>,
    /// Packages to install.
    pub packages: Vec<PackageRequirement>,
    /// Additional package sources, one DEB822 stanza each (deb822(5), sources.list(5)).
    pub sources: Vec<String>,
    /// Kernel command line; empty to leave it unchanged.
    pub kernel_command: String,
}

impl DesiredUpdate {
    /// Parses an exact update.
    ///
    /// # Errors
    /// Nothing is set; an image is combined with packages or sources; a package, source or kernel command line is
    /// invalid.
    pub fn parse_target(
        os: Option<OsId>,
        packages: &str,
        sources: &[String],
        kernel_command: &str,
    ) -> Result<Self, Invalid> {
        const SOURCE_PUNCTUATION: &str = "-_./:;=?@!#,<>*+()[]\" \n";
        if packages.len() > 500_000 {
            return Err(Invalid::new("updatePackages", "longer than 500000 bytes"));
        }
        let packages = PackageRequirement::parse_list("updatePackages", packages)?;
        if sources.len() > 100 {
            return Err(Invalid::new("updateSources", "more than 100 sources"));
        }
        for (index, source) in sources.iter().enumerate() {
            text::check(
                "updateSources",
                source,
                package_source::MAX_SOURCE_BYTES,
                SOURCE_PUNCTUATION,
            )?;
            package_source::check(source).map_err(|why| {
                Invalid::new("updateSources", format!("source {}: {why}", index + 1))
            })?;
        }
        // EIM's agents ignore the whole update if the command line has any other character.
        text::check("updateKernelCommand", kernel_command, 500, "-_=., /")?;
        if os.is_some() && (!packages.is_empty() || !sources.is_empty()) {
            return Err(Invalid::new(
                "targetOsId",
                "an operating system excludes updatePackages and updateSources",
            ));
        }
        if os.is_none() && packages.is_empty() && sources.is_empty() && kernel_command.is_empty() {
            return Err(Invalid::new(
                "updatePolicy",
                "UPDATE_POLICY_TARGET needs targetOsId, updatePackages, updateSources or updateKernelCommand",
            ));
        }
        Ok(Self::Target(TargetUpdate {
            os,
            packages,
            sources: sources.to_vec(),
            kernel_command: kernel_command.to_owned(),
        }))
    }

    /// Why the update does not fit an operating system of this kind; `None` if it fits.
    #[must_use]
    pub fn mismatch(&self, kind: OsKind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Target(target), OsKind::Mutable) if target.os.is_some() => {
                Some("it installs an image, and the instance is updated by packages")
            }
            (Self::Target(target), OsKind::Immutable)
                if !target.packages.is_empty() || !target.sources.is_empty() =>
            {
                Some("it installs packages, and the instance is updated by images")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(os: bool, packages: &str, kernel: &str) -> Result<DesiredUpdate, Invalid> {
        DesiredUpdate::parse_target(os.then(|| OsId::nth(1)), packages, &[], kernel)
    }

    #[test]
    fn a_target_names_something_and_not_too_much() {
        assert_eq!(target(false, "", "").expect_err("nothing").field, "updatePolicy");
        assert_eq!(target(true, "jq", "").expect_err("both").field, "targetOsId");
        assert_eq!(target(false, "jq;id", "").expect_err("a shell").field, "updatePackages");
        assert_eq!(target(false, "", "a`b").expect_err("a shell").field, "updateKernelCommand");
        assert!(target(true, "", "quiet").is_ok());
    }

    #[test]
    fn a_command_line_has_only_characters_that_every_agent_accepts() {
        for kernel in
            ["console=ttyS0,115200n8 quiet", "root=/dev/sda1 mitigations=auto", "a-b_c.d=1"]
        {
            assert!(target(true, "", kernel).is_ok(), "{kernel}");
        }
        for kernel in ["a;b", "a:b", "a\"b", "a(b)", "a@b", "a\nb", "ä"] {
            assert_eq!(target(true, "", kernel).expect_err(kernel).field, "updateKernelCommand");
        }
    }

    #[test]
    fn a_source_that_a_node_would_refuse_is_refused_by_its_number() {
        let source = |text: &str| {
            vec![
                "# ours\nTypes: deb\nURIs: https://deb.example\nSuites: ./\nSigned-By: /k\n"
                    .to_owned(),
                text.to_owned(),
            ]
        };
        let parse = |text| DesiredUpdate::parse_target(None, "", &source(text), "");
        assert!(
            parse("Types: deb\nURIs: file:/srv\nSuites: a\nComponents: b\nSigned-By: /k").is_ok()
        );
        for bad in [
            "",
            "deb http://deb.example stable main",
            "Types: deb\nURIs: https://deb.example\nSuites: ./",
        ] {
            let refused = parse(bad).expect_err(bad);
            assert_eq!(refused.field, "updateSources");
            assert!(refused.why.starts_with("source 2: "), "{refused}");
        }
    }

    #[test]
    fn a_desired_update_fits_its_kind_of_system() {
        let packages = target(false, "jq", "").expect("packages");
        let image = target(true, "", "").expect("an image");
        assert!(packages.mismatch(OsKind::Mutable).is_none());
        assert!(packages.mismatch(OsKind::Immutable).is_some());
        assert!(image.mismatch(OsKind::Mutable).is_some());
        assert!(image.mismatch(OsKind::Immutable).is_none());
        assert!(DesiredUpdate::Latest.mismatch(OsKind::Mutable).is_none());
    }

    #[test]
    fn rules_are_for_packages() {
        let careful = || PackageRules { min_age_days: 7, ..PackageRules::default() };
        let of = |desired| PolicySpec::parse("policy", "", desired).expect("a policy");
        let image = || of(target(true, "", "").expect("an image"));
        let refused = image().with_package_rules(careful()).expect_err("an image");
        assert_eq!(refused.field, "packageRules");
        assert!(image().with_package_rules(PackageRules::default()).is_ok());
        let exact = || of(target(false, "jq", "").expect("packages"));
        let refused = exact().with_package_rules(careful()).expect_err("an age");
        assert_eq!(refused.field, "packageRules.minAgeDays");
        assert!(exact().with_package_rules(PackageRules::default()).is_ok());
        let ruled = of(DesiredUpdate::Latest).with_package_rules(careful()).expect("rules");
        assert_eq!(ruled.rules, careful());
    }

    #[test]
    fn image_rules_need_an_update_that_can_be_an_image() {
        let slow = ImageRules { download_bytes_per_second: 1 << 20, ..ImageRules::default() };
        let of = |desired| PolicySpec::parse("policy", "", desired).expect("a policy");
        let image = || of(target(true, "", "").expect("an image"));
        let kernel_of_image = || of(target(true, "", "quiet").expect("both"));
        for spec in [of(DesiredUpdate::Latest), image(), kernel_of_image()] {
            assert_eq!(spec.clone().with_image_rules(slow).expect("rules").image_rules, slow);
            assert!(spec.with_image_rules(ImageRules::default()).is_ok());
        }
        for desired in [target(false, "jq", ""), target(false, "", "quiet")] {
            let spec = of(desired.expect("a desired update"));
            let refused = spec.clone().with_image_rules(slow).expect_err("no image");
            assert_eq!(refused.field, "imageRules");
            assert!(spec.with_image_rules(ImageRules::default()).is_ok());
        }
        let bad = ImageRules { attempts: 101, ..slow };
        let refused = image().with_image_rules(bad).expect_err("too many");
        assert_eq!(refused.field, "imageRules.attempts");
        // The newest is a set of packages on one node and an image on another.
        let careful = PackageRules { min_age_days: 7, ..PackageRules::default() };
        let both = of(DesiredUpdate::Latest).with_package_rules(careful.clone()).expect("rules");
        let both = both.with_image_rules(slow).expect("both kinds of rules");
        assert_eq!((both.rules, both.image_rules), (careful, slow));
    }

    proptest! {
        #[test]
        fn image_rules_are_stored_unchanged_or_rejected_by_field(
            os: bool,
            is_latest: bool,
            rate in prop::sample::select(vec![0, 1, 1_024, u64::MAX]),
            attempts in 0u32..200,
        ) {
            let desired = target(os, "", "quiet").expect("a desired update");
            let desired = if is_latest { DesiredUpdate::Latest } else { desired };
            let spec = PolicySpec::parse("policy", "", desired).expect("a policy");
            let rules = ImageRules { download_bytes_per_second: rate, max_bytes: 0, attempts };
            let can_be = rules.check().is_ok();
            match spec.clone().with_image_rules(rules) {
                Ok(imaged) => {
                    prop_assert!(can_be && (rules.is_default() || os || is_latest));
                    prop_assert_eq!(imaged, PolicySpec { image_rules: rules, ..spec });
                }
                Err(refused) => {
                    prop_assert!(refused.field.starts_with("imageRules"));
                    prop_assert!(!can_be || !(rules.is_default() || os || is_latest));
                }
            }
        }
    }

    #[test]
    fn a_policy_of_an_older_release_has_the_default_rules() {
        let old = serde_json::json!({"name": "all", "description": "", "desired": "latest"});
        let read: PolicySpec = serde_json::from_value(old).expect("a policy");
        assert!(read.rules.is_default() && read.image_rules.is_default());
        let stored = serde_json::to_value(&read).expect("JSON");
        assert_eq!((stored.get("rules"), stored.get("image_rules")), (None, None));
    }
}
