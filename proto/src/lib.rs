//! What is said southbound: the protocols between the server and the nodes.
//!
//! The code under `generated/` is made from `proto/*.proto` by the test `generated_code_is_current`; run it with
//! `UPDATE_GENERATED=1` to make it anew.

/// What our own agent and the server say to each other (`evenkeel.agent.v1`).
pub mod agent {
    #![expect(
        clippy::pedantic,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        missing_docs,
        reason = "generated"
    )]
    include!("generated/evenkeel.agent.v1.rs");
}

/// What the ancestor's node agents say of their machine (`hostmgr_southbound_proto`).
pub mod hostmgr {
    #![expect(
        clippy::pedantic,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        missing_docs,
        reason = "generated"
    )]
    include!("generated/hostmgr_southbound_proto.rs");
}

/// What the ancestor's agents and the server say to each other (`maintmgr.v1`).
pub mod maintmgr {
    #![expect(
        clippy::pedantic,
        clippy::allow_attributes,
        clippy::allow_attributes_without_reason,
        missing_docs,
        reason = "generated"
    )]
    include!("generated/maintmgr.v1.rs");
}
