//! Values of EIM's out-of-band management. Evenkeel does not implement it, but EIM clients expect
//! the fields.

wire_enum! {
    /// Desired or current power state.
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
    /// How the power state is changed.
    PowerCommandPolicy {
        Unspecified = "POWER_COMMAND_POLICY_UNSPECIFIED",
        Immediate = "POWER_COMMAND_POLICY_IMMEDIATE",
        Ordered = "POWER_COMMAND_POLICY_ORDERED",
    }
}

wire_enum! {
    /// Kind of the baseboard management controller.
    BaremetalControllerKind {
        Unspecified = "BAREMETAL_CONTROLLER_KIND_UNSPECIFIED",
        None = "BAREMETAL_CONTROLLER_KIND_NONE",
        Ipmi = "BAREMETAL_CONTROLLER_KIND_IPMI",
        Vpro = "BAREMETAL_CONTROLLER_KIND_VPRO",
        Pdu = "BAREMETAL_CONTROLLER_KIND_PDU",
    }
}

wire_enum! {
    /// Intel AMT variant of a machine.
    AmtSku {
        Unspecified = "AMT_SKU_UNSPECIFIED",
        Amt = "AMT_SKU_AMT",
        Ism = "AMT_SKU_ISM",
    }
}

wire_enum! {
    /// State of Intel AMT.
    AmtState {
        Unspecified = "AMT_STATE_UNSPECIFIED",
        Provisioned = "AMT_STATE_PROVISIONED",
        Unprovisioned = "AMT_STATE_UNPROVISIONED",
        Disconnected = "AMT_STATE_DISCONNECTED",
    }
}

wire_enum! {
    /// Control mode of Intel AMT.
    AmtControlMode {
        Unspecified = "AMT_CONTROL_MODE_UNSPECIFIED",
        Acm = "AMT_CONTROL_MODE_ACM",
        Ccm = "AMT_CONTROL_MODE_CCM",
    }
}

wire_enum! {
    /// State of remote KVM (keyboard, video, mouse).
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
    /// Whether remote KVM is active.
    KvmStatus {
        Unspecified = "KVM_STATUS_UNSPECIFIED",
        Activated = "KVM_STATUS_ACTIVATED",
        Deactivated = "KVM_STATUS_DEACTIVATED",
    }
}

wire_enum! {
    /// State of serial over LAN.
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
    /// Whether serial over LAN is active.
    SolStatus {
        Unspecified = "SOL_STATUS_UNSPECIFIED",
        Activated = "SOL_STATUS_ACTIVATED",
        Deactivated = "SOL_STATUS_DEACTIVATED",
    }
}
