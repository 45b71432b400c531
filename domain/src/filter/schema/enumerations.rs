//! The enumerations of the API and their values.

use super::Enumeration;

const fn values(prefix: &'static str, names: &'static [&'static str]) -> Enumeration {
    Enumeration { prefix, names }
}

pub(super) const HOST_STATE: Enumeration =
    values("HOST_STATE_", &["unspecified", "deleted", "onboarded", "untrusted", "registered"]);

pub(super) const INSTANCE_STATE: Enumeration =
    values("INSTANCE_STATE_", &["unspecified", "running", "deleted", "untrusted"]);

pub(super) const INSTANCE_KIND: Enumeration = values("INSTANCE_KIND_", &["unspecified", "metal"]);

pub(super) const INDICATION: Enumeration =
    values("STATUS_INDICATION_", &["unspecified", "error", "in_progress", "idle"]);

pub(super) const OS_TYPE: Enumeration =
    values("OS_TYPE_", &["unspecified", "mutable", "immutable"]);

pub(super) const OS_PROVIDER: Enumeration =
    values("OS_PROVIDER_KIND_", &["unspecified", "infra", "lenovo"]);

pub(super) const SECURITY_FEATURE: Enumeration =
    values("SECURITY_FEATURE_", &["unspecified", "none", "secure_boot_and_full_disk_encryption"]);

pub(super) const UPDATE_POLICY: Enumeration =
    values("UPDATE_POLICY_", &["unspecified", "latest", "target"]);

/// Evenkeel's own: the wire has the bare names of the states of a run.
pub(super) const RUN_STATE: Enumeration = values(
    "",
    &[
        "downloading",
        "staged",
        "applying",
        "rebooting",
        "verifying",
        "reverting",
        "succeeded",
        "failed",
        "reverted",
        "cancelled",
        "abandoned",
    ],
);

pub(super) const SCHEDULE_STATUS: Enumeration = values(
    "SCHEDULE_STATUS_",
    &["unspecified", "maintenance", "os_update", "shipping", "firmware_update", "cluster_update"],
);

pub(super) const POWER_STATE: Enumeration = values(
    "POWER_STATE_",
    &["unspecified", "on", "off", "sleep", "hibernate", "reset", "power_cycle", "reset_repeat"],
);

pub(super) const POWER_COMMAND_POLICY: Enumeration =
    values("POWER_COMMAND_POLICY_", &["unspecified", "immediate", "ordered"]);

pub(super) const BMC_KIND: Enumeration =
    values("BAREMETAL_CONTROLLER_KIND_", &["unspecified", "none", "ipmi", "vpro", "pdu"]);

pub(super) const AMT_SKU: Enumeration = values("AMT_SKU_", &["unspecified", "amt", "ism"]);

pub(super) const AMT_STATE: Enumeration =
    values("AMT_STATE_", &["unspecified", "provisioned", "unprovisioned", "disconnected"]);

pub(super) const AMT_CONTROL_MODE: Enumeration =
    values("AMT_CONTROL_MODE_", &["unspecified", "acm", "ccm"]);

pub(super) const KVM_STATE: Enumeration = values(
    "KVM_STATE_",
    &[
        "unspecified",
        "start",
        "stop",
        "awaiting_consent",
        "error",
        "consent_received",
        "redirection_received",
    ],
);

pub(super) const KVM_STATUS: Enumeration =
    values("KVM_STATUS_", &["unspecified", "activated", "deactivated"]);

pub(super) const SOL_STATE: Enumeration = values(
    "SOL_STATE_",
    &[
        "unspecified",
        "start",
        "stop",
        "awaiting_consent",
        "error",
        "consent_received",
        "redirection_received",
    ],
);

pub(super) const SOL_STATUS: Enumeration =
    values("SOL_STATUS_", &["unspecified", "activated", "deactivated"]);

pub(super) const PROVIDER_KIND: Enumeration =
    values("PROVIDER_KIND_", &["unspecified", "baremetal"]);

pub(super) const PROVIDER_VENDOR: Enumeration =
    values("PROVIDER_VENDOR_", &["unspecified", "lenovo_lxca", "lenovo_loca"]);

pub(super) const LINK_STATE: Enumeration =
    values("NETWORK_INTERFACE_LINK_STATE_", &["unspecified", "up", "down"]);

pub(super) const IP_ADDRESS_STATUS: Enumeration = values(
    "IP_ADDRESS_STATUS_",
    &[
        "unspecified",
        "assignment_error",
        "assigned",
        "configuration_error",
        "configured",
        "released",
        "error",
    ],
);

pub(super) const IP_ADDRESS_CONFIG_METHOD: Enumeration =
    values("IP_ADDRESS_CONFIG_METHOD_", &["unspecified", "static", "dynamic"]);
