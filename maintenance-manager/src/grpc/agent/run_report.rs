//! Converts the report of an attempt from the protocol into the domain type.

use evenkeel_domain::run::{HeldBackCount, HeldBackPackage, Interruption, PhaseSpan, RunReport};
use evenkeel_proto::agent as wire;

use crate::wire::agent::{held_back_cause, parse_instant};

/// Converts a run report. Oversized parts are cut to the limits of the domain type.
pub fn from_wire(message: wire::RunReport) -> RunReport {
    let phase = |span: wire::PhaseSpan| PhaseSpan {
        phase: span.phase,
        millis: span.millis,
        bytes: span.bytes,
    };
    let held_back = |package: wire::HeldBackPackage| HeldBackPackage {
        cause: held_back_cause(package.cause()).to_owned(),
        name: package.name,
        architecture: package.architecture,
        installed: package.installed_version,
        available: package.available_version,
    };
    let count = |count: wire::HeldBackCount| HeldBackCount {
        cause: held_back_cause(count.cause()).to_owned(),
        packages: count.packages,
    };
    let interruption = |interruption: wire::Interruption| Interruption {
        cause: interruption_cause(interruption.cause()).to_owned(),
        phase: interruption.phase,
        resumed_at: interruption.resumed_at.and_then(parse_instant),
        boot_id: interruption.boot_id,
    };
    let report = RunReport {
        phases: message.phases.into_iter().map(phase).collect(),
        remarks: message.remarks,
        preserved_conffiles: message.preserved_conffiles,
        restarted_services: message.restarted_services,
        reboot_required: message.reboot_required,
        reboot_reasons: message.reboot_reasons,
        kernel_before: message.kernel_before,
        kernel_after: message.kernel_after,
        held_back: message.held_back.into_iter().map(held_back).collect(),
        held_back_counts: message.held_back_counts.into_iter().map(count).collect(),
        interruptions: message.interruptions.into_iter().map(interruption).collect(),
    };
    report.truncated()
}

/// The name of a cause, as it is stored and as the REST API shows it.
const fn interruption_cause(cause: wire::InterruptionCause) -> &'static str {
    match cause {
        wire::InterruptionCause::Unspecified => "unspecified",
        wire::InterruptionCause::AgentStopped => "agent_stopped",
        wire::InterruptionCause::MachineRestarted => "machine_restarted",
    }
}
