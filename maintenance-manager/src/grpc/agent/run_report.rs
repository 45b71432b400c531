//! Converts the report of an attempt from the protocol into the domain type.

use evenkeel_domain::run::{PhaseSpan, RunReport};
use evenkeel_proto::agent as wire;

/// Converts a run report. Oversized parts are cut to the limits of the domain type.
pub fn from_wire(message: wire::RunReport) -> RunReport {
    let phase = |span: wire::PhaseSpan| PhaseSpan {
        phase: span.phase,
        millis: span.millis,
        bytes: span.bytes,
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
    };
    report.truncated()
}
