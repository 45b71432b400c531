//! Values of the ancestor's out-of-band management. Evenkeel does none of it; its clients expect the fields.

wire_enum! {
    /// Power, wanted or current.
    PowerState {
        Unspecified = "POWER_STATE_UNSPECIFIED",
        On = "POWER_STATE_ON",
        Off = "POWER_STATE_OFF",
        Sleep = "POWER_STATE_SLEEP",
        Hibernate = "POWER_STATE_HIBERNATE",
        Reset = "POWER_STATE_RESET",
        PowerCycle = "POWER_STATE_POWER_CYCLE",
        ResetRepeat = "POWER_STATE_RESET_REPEAT",
    }
}

wire_enum! {
    /// How a change of power is made.
    PowerCommandPolicy {
        Unspecified = "POWER_COMMAND_POLICY_UNSPECIFIED",
        Immediate = "POWER_COMMAND_POLICY_IMMEDIATE",
        Ordered = "POWER_COMMAND_POLICY_ORDERED",
    }
}

wire_enum! {
    /// The management controller of a machine.
    BaremetalControllerKind {
        Unspecified = "BAREMETAL_CONTROLLER_KIND_UNSPECIFIED",
        None = "BAREMETAL_CONTROLLER_KIND_NONE",
        Ipmi = "BAREMETAL_CONTROLLER_KIND_IPMI",
        Vpro = "BAREMETAL_CONTROLLER_KIND_VPRO",
        Pdu = "BAREMETAL_CONTROLLER_KIND_PDU",
    }
}

wire_enum! {
    /// Which active management a machine has.
    AmtSku {
        Unspecified = "AMT_SKU_UNSPECIFIED",
        Amt = "AMT_SKU_AMT",
        Ism = "AMT_SKU_ISM",
    }
}

wire_enum! {
    /// Where active management stands.
    AmtState {
        Unspecified = "AMT_STATE_UNSPECIFIED",
        Provisioned = "AMT_STATE_PROVISIONED",
        Unprovisioned = "AMT_STATE_UNPROVISIONED",
        Disconnected = "AMT_STATE_DISCONNECTED",
    }
}

wire_enum! {
    /// How active management is controlled.
    AmtControlMode {
        Unspecified = "AMT_CONTROL_MODE_UNSPECIFIED",
        Acm = "AMT_CONTROL_MODE_ACM",
        Ccm = "AMT_CONTROL_MODE_CCM",
    }
}

wire_enum! {
    /// Where remote screen and keyboard stand.
    KvmState {
        Unspecified = "KVM_STATE_UNSPECIFIED",
        Start = "KVM_STATE_START",
        Stop = "KVM_STATE_STOP",
        AwaitingConsent = "KVM_STATE_AWAITING_CONSENT",
        Error = "KVM_STATE_ERROR",
        ConsentReceived = "KVM_CONSENT_RECEIVED",
        RedirectionReceived = "KVM_REDIRECTION_RECEIVED",
    }
}

wire_enum! {
    /// Whether remote screen and keyboard are on.
    KvmStatus {
        Unspecified = "KVM_STATUS_UNSPECIFIED",
        Activated = "KVM_STATUS_ACTIVATED",
        Deactivated = "KVM_STATUS_DEACTIVATED",
    }
}

wire_enum! {
    /// Where the serial console stands.
    SolState {
        Unspecified = "SOL_STATE_UNSPECIFIED",
        Start = "SOL_STATE_START",
        Stop = "SOL_STATE_STOP",
        AwaitingConsent = "SOL_STATE_AWAITING_CONSENT",
        Error = "SOL_STATE_ERROR",
        ConsentReceived = "SOL_STATE_CONSENT_RECEIVED",
        RedirectionReceived = "SOL_STATE_REDIRECTION_RECEIVED",
    }
}

wire_enum! {
    /// Whether the serial console is on.
    SolStatus {
        Unspecified = "SOL_STATUS_UNSPECIFIED",
        Activated = "SOL_STATUS_ACTIVATED",
        Deactivated = "SOL_STATUS_DEACTIVATED",
    }
}
