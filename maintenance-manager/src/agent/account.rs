//! How an attempt went, from the wire's words into ours.

use evenkeel_domain::run::{Account, PhaseSpan};
use evenkeel_proto::agent as wire;

/// What a node tells of how an attempt went, as much of it as is kept.
pub fn account(said: wire::Account) -> Account {
    let phase = |span: wire::PhaseSpan| PhaseSpan {
        phase: span.phase,
        millis: span.millis,
        bytes: span.bytes,
    };
    let account = Account {
        phases: said.phases.into_iter().map(phase).collect(),
        remarks: said.remarks,
        kept_conffiles: said.kept_conffiles,
        restarted_services: said.restarted_services,
        reboot_required: said.reboot_required,
    };
    account.bounded()
}
