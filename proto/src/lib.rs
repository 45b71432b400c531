//! Protocols between the server and the nodes.
//!
//! The test `generated_code_is_current` generates the code below `generated/` from `proto/*.proto`.
//! Run `make generate` to update it.

#![warn(missing_docs)]

mod codec;

pub use codec::{OffloadCodec, OffloadDecoder};

/// Protocol of the Evenkeel agent (`evenkeel.agent.v1`).
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

/// Protocol of EIM agents that report hardware and status of a machine
/// (`hostmgr_southbound_proto`).
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

/// Protocol of EIM agents that update a machine (`maintmgr.v1`).
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
