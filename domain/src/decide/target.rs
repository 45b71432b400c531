//! Wishes as nodes can obey them.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{NodeFacts, Protocol, Reason, Wanted};
use crate::assignment::Assigned;
use crate::id::{OsId, PolicyId};
use crate::os::{Image, OsKind, compare_versions};
use crate::package::WantedPackage;
use crate::policy::{ImageRules, PackageRules, UpdatePolicy, Wish};

/// A wish as a node can obey it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The policy that it comes from.
    pub policy: PolicyId,
    /// What to bring to which state.
    pub wish: TargetKind,
    /// How an image may be fetched; the usual way for all that is no image.
    #[serde(default, skip_serializing_if = "ImageRules::is_usual")]
    pub image_rules: ImageRules,
}

/// What to bring to which state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Packages.
    Packages {
        /// These; every installed one to its newest version if none is named.
        exactly: Option<Vec<WantedPackage>>,
        /// Further sources of packages, one DEB822 stanza each.
        sources: Vec<String>,
        /// The kernel's command line; empty if it is not wished for.
        kernel_command: String,
        /// How it may be done.
        #[serde(default, skip_serializing_if = "PackageRules::is_usual")]
        rules: PackageRules,
        /// Whether an older version may replace a newer one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        allow_downgrades: bool,
    },
    /// A whole image.
    Image(Image),
    /// The kernel's command line of a system that is updated by images. It excludes an image (southbound section 1.4).
    Kernel {
        /// The command line.
        command: String,
    },
}

impl Target {
    /// Identifies the wish: equal for equal wishes. Policies never change, so the policy's id stands for what it says;
    /// which image is the newest one changes, so the image's id follows.
    #[must_use]
    pub fn digest(&self) -> String {
        match &self.wish {
            TargetKind::Image(image) => format!("{}/{}", self.policy, image.os),
            TargetKind::Packages { .. } | TargetKind::Kernel { .. } => self.policy.to_string(),
        }
    }

    /// The policy, and the image if there is one, that a digest names.
    #[must_use]
    pub fn named_by(digest: &str) -> Option<(PolicyId, Option<OsId>)> {
        match digest.split_once('/') {
            None => Some((digest.parse().ok()?, None)),
            Some((policy, os)) => Some((policy.parse().ok()?, Some(os.parse().ok()?))),
        }
    }

    /// Whether it is the same wish. Policies never change, so for packages and command lines the policy says so: an older
    /// release wrote down less of them. What stands behind the id of an image may change: it is another wish if the file is
    /// another one or lies elsewhere. Who vouches for it, what it is called and what it is made for are no part of that.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same_wish = match (&self.wish, &other.wish) {
            (TargetKind::Packages { .. }, TargetKind::Packages { .. })
            | (TargetKind::Kernel { .. }, TargetKind::Kernel { .. }) => true,
            (TargetKind::Image(mine), TargetKind::Image(its)) => {
                (mine.os, &mine.sha256, &mine.url) == (its.os, &its.sha256, &its.url)
            }
            _ => false,
        };
        is_same_wish && self.policy == other.policy
    }

    /// How many days ago a version must have been seen first to be installed; 0 if its age does not matter.
    #[must_use]
    pub const fn min_age_days(&self) -> u32 {
        match &self.wish {
            TargetKind::Packages { rules, .. } => rules.min_age_days,
            TargetKind::Image(_) | TargetKind::Kernel { .. } => 0,
        }
    }

    /// The module of an agent that can do it.
    #[must_use]
    pub const fn module(&self) -> &'static str {
        match &self.wish {
            TargetKind::Packages { kernel_command, .. } if kernel_command.is_empty() => "packages",
            TargetKind::Packages { .. } | TargetKind::Kernel { .. } => "kernel",
            TargetKind::Image(_) => "image",
        }
    }

    /// The command line of the kernel that a policy wishes for an instance that is updated by images.
    #[must_use]
    pub fn of_kernel(policy: &UpdatePolicy) -> Option<Self> {
        match &policy.spec.wish {
            Wish::Target(target) if !target.kernel_command.is_empty() => Some(Self {
                policy: policy.id,
                wish: TargetKind::Kernel {
                    command: target.kernel_command.clone(),
                },
                image_rules: ImageRules::default(),
            }),
            _ => None,
        }
    }

    /// An image that a policy means for an instance that is updated by images.
    #[must_use]
    pub fn of_image(policy: &UpdatePolicy, image: Image) -> Self {
        Self {
            policy: policy.id,
            wish: TargetKind::Image(image),
            image_rules: policy.spec.image_rules,
        }
    }

    /// What a policy means for an instance that is updated by packages.
    #[must_use]
    pub fn of_packages(policy: &UpdatePolicy) -> Self {
        let (exactly, sources, kernel_command) = match &policy.spec.wish {
            Wish::Latest => (None, Vec::new(), String::new()),
            Wish::Target(target) => (
                Some(target.packages.clone()),
                target.sources.clone(),
                target.kernel_command.clone(),
            ),
        };
        Self {
            policy: policy.id,
            wish: TargetKind::Packages {
                exactly,
                sources,
                kernel_command,
                rules: policy.spec.rules.clone(),
                allow_downgrades: policy.spec.allow_downgrade,
            },
            image_rules: ImageRules::default(),
        }
    }
}

/// The wish that applies.
///
/// # Errors
/// Says why there is none.
pub fn target(known: &NodeFacts, wanted: &Wanted) -> Result<Target, Reason> {
    let Some(assigned) = wanted.nearest(known) else {
        let Some(first) = wanted.policies.first() else {
            return Err(Reason::NoPolicy);
        };
        return Err(Reason::PolicyDoesNotFit {
            policy: first.policy.id,
            level: first.scope.level(),
            why: first.misfit(known).unwrap_or_default(),
        });
    };
    let target = match known.os_kind {
        OsKind::Mutable => Target::of_packages(&assigned.policy),
        OsKind::Immutable => match Target::of_kernel(&assigned.policy) {
            Some(kernel) => kernel,
            None => image_target(known, wanted, assigned)?,
        },
    };
    let Protocol::Own { modules } = &known.speaks else {
        return Ok(target);
    };
    let module = target.module();
    if modules.iter().any(|name| name == module) {
        Ok(target)
    } else {
        Err(Reason::AgentLacks { module })
    }
}

/// The image that a policy means for a node: the one that it names, or the newest of the profile for its architecture.
/// Never an older one than runs, unless the policy says so (M9, M24). The newest is meant also where it failed before: an
/// older one instead would be a wish of nobody's.
fn image_target(known: &NodeFacts, wanted: &Wanted, assigned: &Assigned) -> Result<Target, Reason> {
    let running = &known.running;
    let named = matches!(assigned.policy.spec.wish, Wish::Target(_));
    let image = if named {
        assigned.image.as_ref()
    } else {
        let fits = |image: &&Image| image.fits(&running.architecture);
        Image::newest(wanted.images.iter().filter(fits))
    };
    let image = image.ok_or_else(|| Reason::NoImage {
        profile: running.profile_name.clone(),
    })?;
    if image.os == running.os {
        return Err(Reason::RunsAlready {
            image_id: image.image_id.clone(),
        });
    }
    let is_newer = compare_versions(&image.image_id, &running.image_id) == Some(Ordering::Greater);
    let may = is_newer || (named && assigned.policy.spec.allow_downgrade);
    if !may {
        return Err(Reason::NotNewer {
            image_id: image.image_id.clone(),
            running: running.image_id.clone(),
        });
    }
    Ok(Target::of_image(&assigned.policy, image.clone()))
}
