//! Update runs: attempts to update an instance, and their results.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamps;
use crate::instance::InstanceResource;
use crate::order::OrderResource;
use crate::policy::{ImageRules, OsUpdatePolicy, PackageRules};
use crate::status::StatusIndication;

/// Attempt to bring one instance to its desired update.
///
/// The fields up to `timestamps` are those that EIM clients read; the others are our own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = OSUpdateRun)]
pub struct OsUpdateRun {
    /// Resource ID.
    pub resource_id: String,
    /// Name of the host and start time of the run.
    pub name: String,
    /// Description, as free text.
    pub description: String,
    /// Policy in its current form; an empty object if there was none or it was deleted, never null.
    pub applied_policy: OsUpdatePolicy,
    /// Instance, without its host and operating system; never null.
    pub instance: InstanceResource,
    /// Status, as text.
    pub status: String,
    /// Indication of `status`.
    pub status_indicator: StatusIndication,
    /// Time at which `status` was set, in Unix seconds.
    pub status_timestamp: u32,
    /// Details: JSON as text with the top-level key `update_log`. Empty until the run has ended.
    pub status_details: String,
    /// Start of the run, in Unix seconds.
    pub start_time: u32,
    /// End of the run, in Unix seconds; 0 while the run is open.
    pub end_time: u32,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,

    /// State: `downloading`, `staged`, `applying`, `rebooting`, `verifying`, `reverting`,
    /// `succeeded`, `failed`, `reverted`, `cancelled` or `abandoned`. Later releases may add states.
    /// A server shows a state that only a newer server knows by its name, also as `status`.
    pub state: String,
    /// Reason of the result; empty if there is none.
    pub reason: String,
    /// ID of the host.
    pub host_id: String,
    /// Name of the host at the time of the response.
    pub host_name: String,
    /// ID of the attempt, created by the agent; empty for agents of EIM.
    pub attempt: String,
    /// Policy at the time when the run was opened; null if there was none.
    pub policy: Option<FrozenPolicy>,
    /// Target of the run, fixed when the run was opened; null if there is none.
    pub target: Option<RunTarget>,
    /// Order that caused the run; null if there was none.
    pub order: Option<OrderResource>,
    /// Planned package changes and their results.
    pub packages: Vec<RunPackage>,
    /// Image change and its result; null for a run without one.
    pub image: Option<RunImage>,
    /// Measurements and remarks of the node; empty until the run has ended.
    pub report: OsUpdateRunReport,
    /// Log excerpt from the node: the last output of the tool that failed, or the detail text of an
    /// agent of EIM.
    pub log: String,
    /// Events of the run, oldest first. Omitted in lists.
    pub events: Vec<RunEvent>,
}

impl OsUpdateRun {
    /// States of ended runs.
    pub const TERMINAL_STATES: &[&str] =
        &["succeeded", "failed", "reverted", "cancelled", "abandoned"];

    /// Returns whether the run has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // A newer server may have other states.
        self.end_time != 0 || Self::TERMINAL_STATES.contains(&self.state.as_str())
    }
}

/// Policy at the time when a run was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FrozenPolicy {
    /// ID of the policy. The policy may have been deleted since.
    pub resource_id: String,
    /// Name of the policy.
    pub name: String,
    /// Description, as free text.
    pub description: String,
    /// Kind of the policy: `UPDATE_POLICY_LATEST` or `UPDATE_POLICY_TARGET`.
    pub update_policy: String,
    /// Packages, one per line.
    pub update_packages: String,
    /// Additional package sources.
    pub update_sources: Vec<String>,
    /// Kernel command line.
    pub update_kernel_command: String,
    /// ID of the operating system whose image should run.
    pub target_os_id: String,
    /// Whether an older version could replace a newer one.
    pub allow_downgrade: bool,
}

/// Target of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunTarget {
    /// Kind: `packages`, `image` or `kernel`.
    pub kind: String,
    /// For packages: `latest` or `exactly`.
    pub mode: String,
    /// For packages: the listed packages, as `name` or `name=version`.
    pub packages: Vec<String>,
    /// For packages: additional package sources.
    pub sources: Vec<String>,
    /// Rules for package updates, for packages and for the latest versions; else null.
    pub package_rules: Option<PackageRules>,
    /// Kernel command line; empty if it does not change.
    pub kernel_command: String,
    /// For an image: ID of the operating system.
    pub os_id: String,
    /// For an image: version of the image.
    pub image_id: String,
    /// For an image: URL of the image.
    pub image_url: String,
    /// For an image: SHA-256 of the image file, as hexadecimal digits.
    pub sha256: String,
    /// For an image: name of the OS profile.
    pub profile_name: String,
    /// Rules for image updates, for an image and for the latest versions; else null.
    pub image_rules: Option<ImageRules>,
}

/// Image change of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunImage {
    /// Name of the OS profile.
    pub profile_name: String,
    /// Version that ran before the run.
    pub before: String,
    /// Version that should run after the run.
    pub desired: String,
    /// Version that ran at the end of the run; empty if it is unknown or the run is open.
    pub booted: String,
}

/// Package change of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPackage {
    /// Package name.
    pub name: String,
    /// Debian architecture, for example `amd64`.
    pub architecture: String,
    /// Planned change: `install`, `upgrade`, `downgrade`, `reinstall` or `remove`.
    pub action: String,
    /// Desired version; empty for a removal.
    pub version: String,
    /// Version before the run; empty if the package was not installed.
    pub before: String,
    /// Version after the run; empty if the package is not installed or not checked yet.
    pub after: String,
    /// Status: `planned` until the node has checked the result, then `done` or `failed`.
    pub status: String,
    /// State of the package in dpkg after the run, for example `installed` or `half-configured`.
    pub state: String,
    /// Suites and codenames that contained the desired version when the run was planned; empty if
    /// they are unknown or the package is removed.
    pub suites: Vec<String>,
    /// Labels of the repositories that contained the desired version; empty if they are unknown or
    /// the package is removed.
    pub origins: Vec<String>,
    /// Whether the desired version was a security update; null if its suites are unknown or the
    /// package is removed. Which vulnerabilities it fixes is not recorded.
    pub security: Option<bool>,
}

/// Measurements and remarks of the node about a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OsUpdateRunReport {
    /// Duration of the phases, in the order in which they were executed.
    pub phases: Vec<RunPhase>,
    /// Problems that did not change the result.
    pub remarks: Vec<String>,
    /// Configuration files that were changed locally and therefore kept. The version of the package
    /// is stored next to each file.
    pub preserved_conffiles: Vec<String>,
    /// systemd units that were restarted because they used replaced files.
    pub restarted_services: Vec<String>,
    /// Whether the node still required a reboot at the end of the run.
    pub reboot_required: bool,
    /// Why the change required a reboot, as text, for example which packages request it; empty if
    /// it did not.
    pub reboot_reasons: Vec<String>,
    /// Release of the running kernel before the change; empty if it is unknown.
    pub kernel_before: String,
    /// Release of the running kernel at the end of the run; empty if it is unknown.
    pub kernel_after: String,
    /// Packages with a newer version that the run did not install; at most 500. Filled only in
    /// responses for a single run.
    pub held_back: Vec<RunHeldBackPackage>,
    /// Number of all these packages per cause.
    pub held_back_counts: Vec<RunHeldBackCount>,
    /// Interruptions of the run while it was changing the node, in order.
    pub interruptions: Vec<RunInterruption>,
}

/// Interruption of a run while it was changing the node. The agent resumed the run afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunInterruption {
    /// Cause: `agent_stopped` or `machine_restarted`. Later releases may add causes.
    pub cause: String,
    /// Interrupted phase: `apply` or `verify`.
    pub phase: String,
    /// Time at which the agent resumed the run, by the node's clock; null if it is invalid.
    pub resumed_at: Option<DateTime<Utc>>,
    /// Boot ID of the node when the agent resumed the run.
    pub boot_id: String,
}

/// Package with a newer version that a run did not install.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunHeldBackPackage {
    /// Package name.
    pub name: String,
    /// Debian architecture, for example `amd64`.
    pub architecture: String,
    /// Installed version.
    pub version: String,
    /// Newest version that the sources of the node offer.
    pub available_version: String,
    /// Cause: `hold`, `dependencies`, `phased` or `pinned`; `limits` of the owner of the machine;
    /// `space`: too little space in `/boot`, or it is read-only; `boot_loader`: the disk to which
    /// GRUB is written does not exist; or rules of the policy: `excluded` by name, `suite`,
    /// `too_young` or `policy` for other rules. Later releases may add causes.
    pub cause: String,
}

/// Number of packages that a run did not update for one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunHeldBackCount {
    /// Cause, as in `heldBack`.
    pub cause: String,
    /// Number of packages.
    pub packages: u32,
}

/// Duration and downloaded bytes of one phase of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPhase {
    /// Phase: `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// Duration in milliseconds, by the node's clock. It includes times at which the agent or the
    /// machine was down.
    pub millis: u64,
    /// Number of downloaded bytes.
    pub bytes: u64,
}

/// Event of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunEvent {
    /// Name of the event, for example `began`.
    pub event: String,
    /// State of the run after the event.
    pub state: String,
    /// Time at which the server received the event.
    pub time: DateTime<Utc>,
    /// Time of the event by the node's clock; null if the node did not report it.
    pub node_time: Option<DateTime<Utc>>,
    /// Sequence number of the event in its attempt; null if the event has none.
    pub sequence: Option<u32>,
    /// Boot ID of the node at the time of the event.
    pub boot_id: String,
    /// Details from the node, as text.
    pub detail: String,
}

/// A page of update runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OSUpdateRunList)]
pub struct OsUpdateRunList {
    /// Runs on this page.
    pub os_update_runs: Vec<OsUpdateRun>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}
