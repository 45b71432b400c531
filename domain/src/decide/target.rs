//! Targets: desired updates in the form that nodes apply.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::reason::KERNEL_MODULE;
use super::{AgentProtocol, NodeFacts, Reason, UpdateIntent};
use crate::assignment::AssignedPolicy;
use crate::id::{OsId, PolicyId};
use crate::os::{Image, OsKind, compare_versions};
use crate::package::PackageRequirement;
use crate::policy::{DesiredUpdate, ImageRules, PackageRules, UpdatePolicy};

/// Desired update in the form that a node applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The policy that it comes from.
    pub policy: PolicyId,
    /// What to install.
    pub kind: TargetKind,
    /// How an image may be fetched; the default for targets without an image.
    #[serde(default, skip_serializing_if = "ImageRules::is_default")]
    pub image_rules: ImageRules,
}

/// What a node installs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Debian packages.
    Packages {
        /// These packages; `None` to upgrade all installed packages to their newest versions.
        exactly: Option<Vec<PackageRequirement>>,
        /// Additional package sources, one DEB822 stanza each.
        sources: Vec<String>,
        /// Kernel command line; empty to leave it unchanged.
        kernel_command: String,
        #[serde(default, skip_serializing_if = "PackageRules::is_default")]
        rules: PackageRules,
        /// Whether an older version may replace a newer one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        allow_downgrades: bool,
    },
    /// An operating system image.
    Image(Image),
    /// Kernel command line of a system that is updated by images. Excludes an image.
    Kernel { command: String },
}

impl Target {
    /// Identifies the target: equal targets have equal digests. Policies are immutable, so the id of the policy stands
    /// for its content. The newest image changes over time, so the id of the image is added.
    #[must_use]
    pub fn digest(&self) -> String {
        match &self.kind {
            TargetKind::Image(image) => format!("{}/{}", self.policy, image.os),
            TargetKind::Packages { .. } | TargetKind::Kernel { .. } => self.policy.to_string(),
        }
    }

    /// Parses a digest into the id of the policy and the id of the image, if it has one.
    #[must_use]
    pub fn parse_digest(digest: &str) -> Option<(PolicyId, Option<OsId>)> {
        match digest.split_once('/') {
            None => Some((digest.parse().ok()?, None)),
            Some((policy, os)) => Some((policy.parse().ok()?, Some(os.parse().ok()?))),
        }
    }

    /// Whether both describe the same update. Policies are immutable, so for packages and command lines the policy
    /// decides (targets stored by older releases have fewer fields). The catalogue entry behind an image id may change:
    /// the update is another one if the file has another digest or URL. Signatures, name and architecture do not matter.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let has_same_content = match (&self.kind, &other.kind) {
            (TargetKind::Packages { .. }, TargetKind::Packages { .. })
            | (TargetKind::Kernel { .. }, TargetKind::Kernel { .. }) => true,
            (TargetKind::Image(mine), TargetKind::Image(its)) => {
                (mine.os, &mine.sha256, &mine.url) == (its.os, &its.sha256, &its.url)
            }
            _ => false,
        };
        has_same_content && self.policy == other.policy
    }

    /// Minimum age of a version in days since it was first seen; 0 if the age does not matter.
    #[must_use]
    pub const fn min_age_days(&self) -> u32 {
        match &self.kind {
            TargetKind::Packages { rules, .. } => rules.min_age_days,
            TargetKind::Image(_) | TargetKind::Kernel { .. } => 0,
        }
    }

    /// Name of the agent module that applies this target.
    #[must_use]
    pub const fn module(&self) -> &'static str {
        match &self.kind {
            TargetKind::Packages { kernel_command, .. } if kernel_command.is_empty() => "packages",
            TargetKind::Packages { .. } | TargetKind::Kernel { .. } => KERNEL_MODULE,
            TargetKind::Image(_) => "image",
        }
    }

    /// The kernel command line that a policy sets on an instance that is updated by images.
    #[must_use]
    pub fn for_kernel(policy: &UpdatePolicy) -> Option<Self> {
        match &policy.spec.desired {
            DesiredUpdate::Target(target) if !target.kernel_command.is_empty() => Some(Self {
                policy: policy.id,
                kind: TargetKind::Kernel { command: target.kernel_command.clone() },
                image_rules: ImageRules::default(),
            }),
            _ => None,
        }
    }

    /// An image for an instance that is updated by images.
    #[must_use]
    pub fn for_image(policy: &UpdatePolicy, image: Image) -> Self {
        Self {
            policy: policy.id,
            kind: TargetKind::Image(image),
            image_rules: policy.spec.image_rules,
        }
    }

    /// The target of a policy for an instance that is updated by packages.
    #[must_use]
    pub fn for_packages(policy: &UpdatePolicy) -> Self {
        let (exactly, sources, kernel_command) = match &policy.spec.desired {
            DesiredUpdate::Latest => (None, Vec::new(), String::new()),
            DesiredUpdate::Target(target) => (
                Some(target.packages.clone()),
                target.sources.clone(),
                target.kernel_command.clone(),
            ),
        };
        Self {
            policy: policy.id,
            kind: TargetKind::Packages {
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

/// Resolves the effective policy of a node into its target.
///
/// # Errors
/// The reason why the node has no target.
pub fn resolve_target(facts: &NodeFacts, intent: &UpdateIntent) -> Result<Target, Reason> {
    if let Some(reason) = intent.unreadable_reason() {
        return Err(reason);
    }
    let Some(assigned) = intent.effective_policy(facts) else {
        let Some(first) = intent.policies.first() else {
            return Err(Reason::NoPolicy);
        };
        return Err(Reason::PolicyDoesNotFit {
            policy: first.policy.id,
            level: first.scope.level(),
            why: first.mismatch(facts).unwrap_or_default(),
        });
    };
    let target = match facts.os_kind {
        OsKind::Mutable => Target::for_packages(&assigned.policy),
        OsKind::Immutable => match Target::for_kernel(&assigned.policy) {
            Some(kernel) => kernel,
            None => resolve_image_target(facts, intent, assigned)?,
        },
    };
    let AgentProtocol::Own { modules } = &facts.protocol else {
        return Ok(target);
    };
    let module = target.module();
    if modules.iter().any(|name| name == module) {
        Ok(target)
    } else {
        Err(Reason::AgentLacks { module })
    }
}

/// The image that a policy sets for a node: the named one, or the newest of the profile for the node's architecture.
/// Never older than the running image, unless the policy allows downgrades. The newest image is chosen even if it
/// failed on this node before: an older one would be an update that was not requested.
fn resolve_image_target(
    facts: &NodeFacts,
    intent: &UpdateIntent,
    assigned: &AssignedPolicy,
) -> Result<Target, Reason> {
    let running = &facts.running;
    let is_explicit = matches!(assigned.policy.spec.desired, DesiredUpdate::Target(_));
    let image = if is_explicit {
        assigned.image.as_ref()
    } else {
        let fits = |image: &&Image| image.fits(&running.architecture);
        Image::newest(intent.images.iter().filter(fits))
    };
    let image = image.ok_or_else(|| Reason::NoImage { profile: running.profile_name.clone() })?;
    if image.os == running.os {
        return Err(Reason::RunsAlready { image_id: image.image_id.clone() });
    }
    let is_newer = compare_versions(&image.image_id, &running.image_id) == Some(Ordering::Greater);
    let may = is_newer || (is_explicit && assigned.policy.spec.allow_downgrade);
    if !may {
        return Err(Reason::NotNewer {
            image_id: image.image_id.clone(),
            running: running.image_id.clone(),
        });
    }
    Ok(Target::for_image(&assigned.policy, image.clone()))
}
