//! Conversions between protobuf messages and the domain.

pub mod agent;
pub mod eim;
