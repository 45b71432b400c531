//! Update runs: what happened.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamps;
use crate::instance::InstanceResource;
use crate::order::OrderResource;
use crate::policy::{ImageRules, OsUpdatePolicy, PackageRules};
use crate::status::StatusIndication;

/// One attempt to bring one instance to one wanted state.
///
/// Everything up to `timestamps` is what the ancestor's clients read; the rest is ours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = OSUpdateRun)]
pub struct OsUpdateRun {
    /// Its id.
    pub resource_id: String,
    /// The host's name and when it began.
    pub name: String,
    /// For people.
    pub description: String,
    /// The policy as it is now; an object without content if there was none or it was deleted, never null.
    pub applied_policy: OsUpdatePolicy,
    /// What was updated, without its host and operating system; never null.
    pub instance: InstanceResource,
    /// In words: where it stands.
    pub status: String,
    /// How to take `status`.
    pub status_indicator: StatusIndication,
    /// Since when `status` holds, in Unix seconds.
    pub status_timestamp: u32,
    /// JSON as text; its top key is `update_log`.
    pub status_details: String,
    /// When it began, in Unix seconds.
    pub start_time: u32,
    /// When it ended, in Unix seconds; 0 while it goes on.
    pub end_time: u32,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,

    /// Its state: `downloading`, `staged`, `applying`, `rebooting`, `verifying`, `reverting`, `succeeded`, `failed`,
    /// `reverted`, `cancelled` or `abandoned`.
    pub state: String,
    /// Why it ended as it did; empty if there is nothing to say.
    pub reason: String,
    /// The host.
    pub host_id: String,
    /// What the host was called when it was read.
    pub host_name: String,
    /// The agent's own id of this attempt; empty if an agent of the ancestor made it.
    pub attempt: String,
    /// The policy as it was when the run was opened; null if there was none.
    pub policy: Option<FrozenPolicy>,
    /// What was to be reached, frozen when the run was opened.
    pub target: Option<RunTarget>,
    /// Who ordered it and why, if it was made outside the plan; else null.
    pub order: Option<OrderResource>,
    /// What was to change and how it was found afterwards.
    pub packages: Vec<RunPackage>,
    /// Which image was to be replaced by which, and which one ran at the end; null if none was to be.
    pub image: Option<RunImage>,
    /// How it went, as the node measured and noted it; empty while it goes on.
    pub account: RunAccount,
    /// The node's own last words: those of the tool that failed, or the detail that an agent of the ancestor sent.
    pub log: String,
    /// Everything that happened, oldest first. Lists leave it out.
    pub events: Vec<RunEvent>,
}

impl OsUpdateRun {
    /// The states in which a run has ended.
    pub const TERMINAL: &[&str] = &["succeeded", "failed", "reverted", "cancelled", "abandoned"];

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        Self::TERMINAL.contains(&self.state.as_str())
    }
}

/// A policy as it was when a run was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FrozenPolicy {
    /// Its id, also if it is gone now.
    pub resource_id: String,
    /// Its name.
    pub name: String,
    /// For people.
    pub description: String,
    /// `UPDATE_POLICY_LATEST` or `UPDATE_POLICY_TARGET`.
    pub update_policy: String,
    /// Packages, one a line.
    pub update_packages: String,
    /// Further sources of packages.
    pub update_sources: Vec<String>,
    /// The command line of the kernel.
    pub update_kernel_command: String,
    /// The operating system whose image should run.
    pub target_os_id: String,
    /// Whether it could replace what is newer.
    pub allow_downgrade: bool,
}

/// What a run is to reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunTarget {
    /// `packages`, `image` or `kernel`.
    pub kind: String,
    /// For packages: `latest` or `exactly`.
    pub mode: String,
    /// For packages: those that were named, `name` or `name=version`.
    pub packages: Vec<String>,
    /// For packages: further sources.
    pub sources: Vec<String>,
    /// For packages, and for whatever is newest: how packages may be brought to it; else null.
    pub package_rules: Option<PackageRules>,
    /// The command line of the kernel; empty if it is not to change.
    pub kernel_command: String,
    /// For an image: the operating system.
    pub os_id: String,
    /// For an image: its version.
    pub image_id: String,
    /// For an image: where it lies.
    pub image_url: String,
    /// For an image: its digest.
    pub sha256: String,
    /// For an image: the profile that it belongs to.
    pub profile_name: String,
    /// For an image, and for whatever is newest: how an image may be brought to the node; else null.
    pub image_rules: Option<ImageRules>,
}

/// A change of images in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunImage {
    /// The profile that they belong to.
    pub profile_name: String,
    /// The version that ran before.
    pub before: String,
    /// The version that was to run.
    pub wanted: String,
    /// The version that ran when the run ended; empty if it is not known, or not over.
    pub booted: String,
}

/// A package in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPackage {
    /// Which.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// What was to be done: `install`, `upgrade`, `downgrade` or `remove`.
    pub action: String,
    /// The version that was to be reached; empty if it was to be removed.
    pub version: String,
    /// The version before; empty if it was not installed.
    pub before: String,
    /// The version that was found afterwards; empty if it is not installed or nobody has looked yet.
    pub after: String,
    /// `planned` until the node has looked, then `done` or `failed`.
    pub status: String,
    /// dpkg's state of the package afterwards, such as `installed` or `half-configured`.
    pub state: String,
}

/// How a run went, as its node measured and noted it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunAccount {
    /// How long it took, in the order in which the phases were passed.
    pub phases: Vec<RunPhase>,
    /// What went wrong on the way and did not change the end.
    pub remarks: Vec<String>,
    /// Configuration files that a person had changed and that stayed; the package's own lies beside each.
    pub kept_conffiles: Vec<String>,
    /// Units that were restarted because they ran what was replaced.
    pub restarted_services: Vec<String>,
    /// Whether the node still waited for a reboot at the end.
    pub reboot_required: bool,
}

/// How long a part of a run took, and what it fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPhase {
    /// `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// Milliseconds by the node's clock.
    pub millis: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
}

/// Something that happened to a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunEvent {
    /// What happened, such as `began`.
    pub event: String,
    /// The state that it led to.
    pub state: String,
    /// When the server heard of it.
    pub time: DateTime<Utc>,
    /// When it happened by the node's own clock.
    pub node_time: Option<DateTime<Utc>>,
    /// The agent's own number of it.
    pub sequence: Option<u32>,
    /// The boot in which it happened, as the node names its boots.
    pub boot_id: String,
    /// In words, as the node said it.
    pub detail: String,
}

/// A page of update runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OSUpdateRunList)]
pub struct OsUpdateRunList {
    /// The runs of this page.
    pub os_update_runs: Vec<OsUpdateRun>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}
