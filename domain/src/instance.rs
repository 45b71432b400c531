//! Instances: the operating systems on hosts.

use chrono::{SecondsFormat, TimeDelta};
use serde::{Deserialize, Serialize};

use crate::Time;
use crate::condition::{Condition, ConditionKind};
use crate::id::{CustomConfigId, HostId, InstanceId, LocalAccountId, OsId, PolicyId};
use crate::invalid::Invalid;
use crate::os::SecurityFeature;
use crate::package::find_security;
use crate::status::Status;
use crate::text::Name;

/// Package lists that were not refreshed for longer than this are outdated.
pub const MAX_LISTS_AGE: TimeDelta = TimeDelta::days(3);

named! {
    /// Desired or current state of an instance.
    InstanceState {
        /// No state was set yet.
        Unspecified = "unspecified",
        Running = "running",
        /// Reports of the node are rejected.
        Untrusted = "untrusted",
        /// To be removed.
        Deleted = "deleted",
    }
}

named! {
    /// What an instance runs on.
    InstanceKind {
        /// Not set.
        Unspecified = "unspecified",
        /// On bare metal.
        Metal = "metal",
    }
}

/// The operating system on a host. A host has at most one instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    pub id: InstanceId,
    pub host: HostId,
    /// May be empty.
    pub name: Name,
    pub kind: InstanceKind,
    pub desired: InstanceState,
    pub current: InstanceState,
    pub security_feature: SecurityFeature,
    /// The policy that is assigned to the instance itself.
    pub policy: Option<PolicyId>,
    /// The account that may log in.
    pub local_account: Option<LocalAccountId>,
    /// Cloud-init configurations for the first boot, by id, each once.
    pub custom_configs: Vec<CustomConfigId>,
    /// Summary of the latest report of its node.
    pub summary: Summary,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Instance {
    /// Whether reports of this instance are accepted.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let distrusted = |state| matches!(state, InstanceState::Untrusted | InstanceState::Deleted);
        !distrusted(self.desired) && !distrusted(self.current)
    }

    /// Checks whether a user may set this operating system. Once the node has reported, only the node sets it.
    ///
    /// # Errors
    /// The node has reported another operating system.
    pub fn check_os(&self, os: OsId) -> Result<(), Invalid> {
        if !self.summary.provisioned || os == self.summary.os {
            return Ok(());
        }
        let runs = self.summary.os;
        let why = format!(
            "the instance is provisioned with {runs}; only its node can change the operating system"
        );
        Err(Invalid::new("osID", why))
    }
}

/// Summary of what a node reported: the part of `node_states` that users see.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub os: OsId,
    /// Whether the node has reported since its instance was created.
    pub provisioned: bool,
    pub status: Status,
    pub update_status: Status,
    /// Available updates: a JSON array of packages for a mutable system, the name of the newest operating system for an
    /// immutable one; empty if there are none, or if they are unknown.
    pub os_update_available: String,
    pub conditions: Vec<Condition>,
    /// Version of its agent; empty if unknown.
    pub agent_version: String,
    pub facts: FactsSummary,
    /// SHA-256 of its list of installed packages; `None` if the node sent no list.
    pub packages: Option<[u8; 32]>,
}

/// Summary of the facts of a node, for lists and filters. `None` means unknown: the node has not reported it, or its
/// agent does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactsSummary {
    /// Version of the rules that made the summary: [`Self::VERSION`], or less if a server of an older release made it.
    pub version: i16,
    /// Release of the running kernel.
    pub kernel_release: Option<String>,
    pub reboot_required: Option<bool>,
    /// Packages that require the reboot, at most [`Self::MAX_REBOOT_PACKAGES`] entries. If there are more packages, the last
    /// entry is the number of the others.
    pub reboot_required_by: Option<Vec<String>>,
    /// When the kernel started, by the node's clock.
    pub boot_time: Option<Time>,
    /// When its agent last refreshed all package lists.
    pub package_lists_refreshed_at: Option<Time>,
    /// Why its package lists are not current; empty if the last refresh succeeded.
    pub package_lists_error: Option<String>,
    /// Number of security updates that are not installed, including those that are held back.
    pub security_updates: Option<u32>,
    /// Number of updates that are held back.
    pub held_back_updates: Option<u32>,
    /// Number of services that still run replaced files.
    pub stale_services: Option<u32>,
}

impl FactsSummary {
    /// The current version. It increases with each new field, and with each change of how a field follows from the facts:
    /// nodes whose summary is older are asked for their facts again.
    pub const VERSION: i16 = 2;

    /// Maximum number of packages that require a reboot. Lists of hosts contain them.
    pub const MAX_REBOOT_PACKAGES: usize = 20;

    /// The condition that the package lists are outdated. Its text does not change while their state stays the same.
    #[must_use]
    pub fn lists_condition(&self, now: Time) -> Option<(ConditionKind, String)> {
        let refreshed_at = self.package_lists_refreshed_at;
        let last = refreshed_at.map(|at| at.to_rfc3339_opts(SecondsFormat::Secs, true));
        let error = self.package_lists_error.as_deref()?;
        let text = match (last, error) {
            (None, "") => return None,
            (None, error) => {
                format!("the available updates are unknown: {error}")
            }
            (Some(last), "") => {
                refreshed_at.filter(|at| *at + MAX_LISTS_AGE < now)?;
                format!(
                    "the available updates may be outdated: the package lists were last fetched at {last}"
                )
            }
            (Some(last), error) => format!(
                "the available updates are not completely known: the package lists were last fetched at {last}: {error}"
            ),
        };
        Some((ConditionKind::PackageListsOutdated, text))
    }
}

/// An update that a node holds back, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldBackUpdate {
    /// Name of the package.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    pub installed_version: String,
    pub available_version: String,
    /// Why the version is not installed, such as `hold` or `pinned`.
    pub cause: String,
    /// Details of the cause, for users; may be empty.
    pub detail: String,
    /// Suites and codenames that have the version; empty if unknown.
    pub suites: Vec<String>,
    /// Labels of the repositories that have the version; empty if unknown.
    pub origins: Vec<String>,
}

impl HeldBackUpdate {
    /// Whether it is a security update; `None` if its suites are unknown.
    #[must_use]
    pub fn is_security(&self) -> Option<bool> {
        find_security(&self.suites, &self.origins)
    }
}

/// A service that still runs replaced files, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StaleService {
    /// Name of the systemd unit.
    pub name: String,
    /// The replaced files.
    pub files: Vec<String>,
}

/// A change of packages that the agent did not make, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForeignChange {
    /// By the node's clock; `None` if unknown.
    pub changed_at: Option<Time>,
    /// Number of changed packages.
    pub count: u32,
    /// The first of them, each with its versions, for users.
    pub packages: Vec<String>,
}

/// An image slot of a node, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageSlot {
    /// Name such as `root-a`.
    pub name: String,
    /// State as the agent names it.
    pub state: String,
    /// Version of the image in the slot; empty if the slot has no image.
    pub image_id: String,
}

/// An image that failed on a node, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedImage {
    /// Digest of the image file.
    pub sha256: String,
    pub image_id: String,
    /// Why it failed, for users.
    pub reason: String,
}

/// Input for creating an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInstance {
    pub host: HostId,
    pub os: OsId,
    /// May be empty.
    pub name: Name,
    pub kind: InstanceKind,
    pub security_feature: SecurityFeature,
    /// The policy to assign.
    pub policy: Option<PolicyId>,
    /// The account that may log in.
    pub local_account: Option<LocalAccountId>,
    /// Cloud-init configurations for the first boot; duplicates are ignored.
    pub custom_configs: Vec<CustomConfigId>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Indication;

    fn instance() -> Instance {
        let status = Status::new("Not Installed", Indication::Unspecified, Time::UNIX_EPOCH);
        Instance {
            id: InstanceId::nth(1),
            host: HostId::nth(1),
            name: Name::default(),
            kind: InstanceKind::Metal,
            desired: InstanceState::Running,
            current: InstanceState::Unspecified,
            security_feature: SecurityFeature::None,
            policy: None,
            local_account: None,
            custom_configs: Vec::new(),
            summary: Summary {
                os: OsId::nth(1),
                provisioned: false,
                status: status.clone(),
                update_status: status,
                os_update_available: String::new(),
                conditions: Vec::new(),
                agent_version: String::new(),
                facts: FactsSummary::default(),
                packages: None,
            },
            created_at: Time::UNIX_EPOCH,
            updated_at: Time::UNIX_EPOCH,
        }
    }

    #[test]
    fn only_the_node_sets_its_os_once_it_has_reported() {
        let mut instance = instance();
        assert_eq!(instance.check_os(OsId::nth(2)), Ok(()));
        instance.summary.provisioned = true;
        assert_eq!(instance.check_os(OsId::nth(1)), Ok(()));
        let refused = instance.check_os(OsId::nth(2)).expect_err("another one");
        assert_eq!(refused.field, "osID");
    }

    #[test]
    fn reported_images_are_stored_in_the_form_of_the_api() {
        let slot = ImageSlot {
            name: "root-a".to_owned(),
            state: "good".to_owned(),
            image_id: "1.0".to_owned(),
        };
        let stored = serde_json::to_value(&slot).expect("JSON");
        let rendered = serde_json::json!({"name": "root-a", "state": "good", "imageId": "1.0"});
        assert_eq!(stored, rendered);
        let read: ImageSlot = serde_json::from_value(stored).expect("a slot");
        assert_eq!(read, slot);
        let failed = serde_json::json!({"sha256": "0a", "imageId": "1.1"});
        let read: FailedImage = serde_json::from_value(failed).expect("an image");
        let expected = FailedImage {
            sha256: "0a".to_owned(),
            image_id: "1.1".to_owned(),
            reason: String::new(),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn outdated_lists_are_a_condition_with_a_stable_text() {
        let refreshed = Time::UNIX_EPOCH;
        let later = |days| refreshed + TimeDelta::days(days);
        let text = |at: Option<Time>, error: Option<&str>, now| {
            let facts = FactsSummary {
                package_lists_refreshed_at: at,
                package_lists_error: error.map(str::to_owned),
                ..FactsSummary::default()
            };
            facts.lists_condition(now).map(|(_, text)| text)
        };
        assert_eq!(text(None, None, later(9)), None, "an older agent");
        assert_eq!(text(Some(refreshed), Some(""), later(3)), None);
        let old = text(Some(refreshed), Some(""), later(4)).expect("a condition");
        assert_eq!(Some(old), text(Some(refreshed), Some(""), later(5)));
        let failed = text(Some(refreshed), Some("no route to host"), later(0));
        let failed = failed.expect("a condition");
        assert!(failed.ends_with("1970-01-01T00:00:00Z: no route to host"), "{failed}");
        let never = text(None, Some("not fetched yet"), later(0)).expect("a condition");
        assert!(never.starts_with("the available updates are unknown: "), "{never}");
    }

    #[test]
    fn an_invalidated_instance_is_not_trusted() {
        let trusted = instance();
        assert!(trusted.is_trusted());
        for state in [InstanceState::Untrusted, InstanceState::Deleted] {
            let desired = Instance { desired: state, ..trusted.clone() };
            let current = Instance { current: state, ..trusted.clone() };
            assert!(!desired.is_trusted() && !current.is_trusted(), "{state:?}");
        }
    }
}
