//! Update policies: what should run. A policy is immutable once it was created.

mod images;
mod rules;

pub use images::ImageRules;
pub use rules::{PackageRules, RebootRule, ServiceRule};

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::{OsId, PolicyId};
use crate::invalid::Invalid;
use crate::os::OsKind;
use crate::package::WantedPackage;
use crate::text::{self, Name};

/// What should run on the nodes that it is assigned to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatePolicy {
    /// Its id.
    pub id: PolicyId,
    /// What it says.
    pub spec: PolicySpec,
    /// When it was made.
    pub created_at: Time,
}

/// What a policy says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySpec {
    /// For people; not unique.
    pub name: Name,
    /// For people.
    pub description: String,
    /// The wish itself.
    pub wish: Wish,
    /// Whether a node may be brought to an older version than it has.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// How many days a node that cannot ask may go by what it was told, 0 for never.
    #[serde(default = "PolicySpec::default_offline_days")]
    pub offline_days: u32,
    /// How packages may be brought to it.
    #[serde(default, skip_serializing_if = "PackageRules::is_usual")]
    pub rules: PackageRules,
    /// How an image may be brought to it.
    #[serde(default, skip_serializing_if = "ImageRules::is_usual")]
    pub image_rules: ImageRules,
}

impl PolicySpec {
    /// How many days a grant lasts unless the policy says otherwise (engine section 3).
    #[must_use]
    pub const fn default_offline_days() -> u32 {
        7
    }

    /// The same with another time that a grant lasts.
    ///
    /// # Errors
    /// It is longer than a year.
    pub fn lasting(mut self, offline_days: u32) -> Result<Self, Invalid> {
        if offline_days > 365 {
            return Err(Invalid::new("offlineDays", "more than 365 days"));
        }
        self.offline_days = offline_days;
        Ok(self)
    }

    /// The same with other rules for packages.
    ///
    /// # Errors
    /// They are none, or an image is wished for.
    pub fn ruled(mut self, rules: PackageRules) -> Result<Self, Invalid> {
        rules.check()?;
        let is_image = matches!(&self.wish, Wish::Target(target) if target.os.is_some());
        if is_image && !rules.is_usual() {
            return Err(Invalid::new(
                "packageRules",
                "an operating system excludes rules for packages",
            ));
        }
        // Only what nodes say is available gets an age: a version that somebody names would never be old enough.
        if rules.min_age_days > 0 && self.wish != Wish::Latest {
            return Err(Invalid::new(
                "packageRules.minAgeDays",
                "only a policy UPDATE_POLICY_LATEST waits for an age",
            ));
        }
        self.rules = rules;
        Ok(self)
    }

    /// The same with other rules for images.
    ///
    /// # Errors
    /// They are none, or only packages or a command line of the kernel are wished for.
    pub fn imaged(mut self, rules: ImageRules) -> Result<Self, Invalid> {
        rules.check()?;
        let excludes = matches!(&self.wish, Wish::Target(target) if target.os.is_none());
        if excludes && !rules.is_usual() {
            return Err(Invalid::new(
                "imageRules",
                "rules for images need an operating system, or UPDATE_POLICY_LATEST",
            ));
        }
        self.image_rules = rules;
        Ok(self)
    }

    /// Reads a policy.
    ///
    /// # Errors
    /// The name is empty or not a name, or the description has characters that are not allowed.
    pub fn parse(name: &str, description: &str, wish: Wish) -> Result<Self, Invalid> {
        text::check("description", description, 200, text::TEXT)?;
        Ok(Self {
            name: Name::parse_given("name", name)?,
            description: description.to_owned(),
            wish,
            allow_downgrade: false,
            offline_days: Self::default_offline_days(),
            rules: PackageRules::default(),
            image_rules: ImageRules::default(),
        })
    }
}

/// What a policy wishes for (E21).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// Whatever is newest: every package, or the newest image of the profile.
    Latest,
    /// Exactly this.
    Target(TargetWish),
}

/// What exactly is wished for. At least one part is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetWish {
    /// This operating system's image.
    pub os: Option<OsId>,
    /// These packages.
    pub packages: Vec<WantedPackage>,
    /// Further sources of packages, one DEB822 stanza each (deb822(5), sources.list(5)).
    pub sources: Vec<String>,
    /// This command line of the kernel; empty if it is not wished for.
    pub kernel_command: String,
}

impl Wish {
    /// Reads what should be exact.
    ///
    /// # Errors
    /// Nothing is given; an image is given together with packages or sources; a package, source or kernel command line
    /// is not one.
    pub fn target(
        os: Option<OsId>,
        packages: &str,
        sources: &[String],
        kernel_command: &str,
    ) -> Result<Self, Invalid> {
        const SOURCE: &str = "-_./:;=?@!#,<>*+()[]\" \n";
        if packages.len() > 500_000 {
            return Err(Invalid::new("updatePackages", "longer than 500000 bytes"));
        }
        let packages = WantedPackage::parse_list("updatePackages", packages)?;
        if sources.len() > 100 {
            return Err(Invalid::new("updateSources", "more than 100 sources"));
        }
        for source in sources {
            text::check("updateSources", source, 100_000, SOURCE)?;
        }
        text::check(
            "updateKernelCommand",
            kernel_command,
            500,
            text::TEXT_WITH_QUOTE,
        )?;
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
        Ok(Self::Target(TargetWish {
            os,
            packages,
            sources: sources.to_vec(),
            kernel_command: kernel_command.to_owned(),
        }))
    }

    /// Whether the wish can be meant for an operating system of this kind, and why not.
    #[must_use]
    pub fn misfit(&self, kind: OsKind) -> Option<&'static str> {
        match (self, kind) {
            (Self::Target(target), OsKind::Mutable) if target.os.is_some() => {
                Some("it wishes for an image, and the instance is updated by packages")
            }
            (Self::Target(target), OsKind::Immutable)
                if !target.packages.is_empty() || !target.sources.is_empty() =>
            {
                Some("it wishes for packages, and the instance is updated by images")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(os: bool, packages: &str, kernel: &str) -> Result<Wish, Invalid> {
        Wish::target(os.then(|| OsId::nth(1)), packages, &[], kernel)
    }

    #[test]
    fn a_target_names_something_and_not_too_much() {
        assert_eq!(
            target(false, "", "").expect_err("nothing").field,
            "updatePolicy"
        );
        assert_eq!(
            target(true, "jq", "").expect_err("both").field,
            "targetOsId"
        );
        assert_eq!(
            target(false, "jq;id", "").expect_err("a shell").field,
            "updatePackages"
        );
        assert_eq!(
            target(false, "", "a`b").expect_err("a shell").field,
            "updateKernelCommand"
        );
        assert!(target(true, "", "quiet").is_ok());
    }

    #[test]
    fn a_wish_fits_its_kind_of_system() {
        let packages = target(false, "jq", "").expect("packages");
        let image = target(true, "", "").expect("an image");
        assert!(packages.misfit(OsKind::Mutable).is_none());
        assert!(packages.misfit(OsKind::Immutable).is_some());
        assert!(image.misfit(OsKind::Mutable).is_some());
        assert!(image.misfit(OsKind::Immutable).is_none());
        assert!(Wish::Latest.misfit(OsKind::Mutable).is_none());
    }

    #[test]
    fn rules_are_for_packages() {
        let careful = || PackageRules {
            min_age_days: 7,
            ..PackageRules::default()
        };
        let of = |wish| PolicySpec::parse("policy", "", wish).expect("a policy");
        let image = || of(target(true, "", "").expect("an image"));
        let refused = image().ruled(careful()).expect_err("an image");
        assert_eq!(refused.field, "packageRules");
        assert!(image().ruled(PackageRules::default()).is_ok());
        let exact = || of(target(false, "jq", "").expect("packages"));
        let refused = exact().ruled(careful()).expect_err("an age");
        assert_eq!(refused.field, "packageRules.minAgeDays");
        assert!(exact().ruled(PackageRules::default()).is_ok());
        let ruled = of(Wish::Latest).ruled(careful()).expect("rules");
        assert_eq!(ruled.rules, careful());
    }

    #[test]
    fn rules_for_images_need_a_wish_that_can_be_an_image() {
        let slow = ImageRules {
            download_bytes_per_second: 1 << 20,
            ..ImageRules::default()
        };
        let of = |wish| PolicySpec::parse("policy", "", wish).expect("a policy");
        let image = || of(target(true, "", "").expect("an image"));
        let kernel_of_image = || of(target(true, "", "quiet").expect("both"));
        for spec in [of(Wish::Latest), image(), kernel_of_image()] {
            assert_eq!(spec.clone().imaged(slow).expect("rules").image_rules, slow);
            assert!(spec.imaged(ImageRules::default()).is_ok());
        }
        for wish in [target(false, "jq", ""), target(false, "", "quiet")] {
            let spec = of(wish.expect("a wish"));
            let refused = spec.clone().imaged(slow).expect_err("no image");
            assert_eq!(refused.field, "imageRules");
            assert!(spec.imaged(ImageRules::default()).is_ok());
        }
        let bad = ImageRules {
            attempts: 101,
            ..slow
        };
        let refused = image().imaged(bad).expect_err("too many");
        assert_eq!(refused.field, "imageRules.attempts");
        // What is newest is of packages on one node and an image on another.
        let careful = PackageRules {
            min_age_days: 7,
            ..PackageRules::default()
        };
        let both = of(Wish::Latest).ruled(careful.clone()).expect("rules");
        let both = both.imaged(slow).expect("rules beside them");
        assert_eq!((both.rules, both.image_rules), (careful, slow));
    }

    proptest! {
        #[test]
        fn rules_for_images_are_taken_as_they_are_or_refused_by_name(
            os: bool,
            is_latest: bool,
            rate in prop::sample::select(vec![0, 1, 1_024, u64::MAX]),
            attempts in 0u32..200,
        ) {
            let wish = target(os, "", "quiet").expect("a wish");
            let wish = if is_latest { Wish::Latest } else { wish };
            let spec = PolicySpec::parse("policy", "", wish).expect("a policy");
            let rules = ImageRules { download_bytes_per_second: rate, max_bytes: 0, attempts };
            let can_be = rules.check().is_ok();
            match spec.clone().imaged(rules) {
                Ok(imaged) => {
                    prop_assert!(can_be && (rules.is_usual() || os || is_latest));
                    prop_assert_eq!(imaged, PolicySpec { image_rules: rules, ..spec });
                }
                Err(refused) => {
                    prop_assert!(refused.field.starts_with("imageRules"));
                    prop_assert!(!can_be || !(rules.is_usual() || os || is_latest));
                }
            }
        }
    }

    #[test]
    fn a_policy_of_an_older_release_has_the_usual_rules() {
        let old = serde_json::json!({"name": "all", "description": "", "wish": "latest"});
        let read: PolicySpec = serde_json::from_value(old).expect("a policy");
        assert!(read.rules.is_usual() && read.image_rules.is_usual());
        let kept = serde_json::to_value(&read).expect("JSON");
        assert_eq!((kept.get("rules"), kept.get("image_rules")), (None, None));
    }
}
