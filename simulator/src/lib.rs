//! Simulated nodes of both protocols, over real gRPC and TLS.
//!
//! [`own::OwnNode`] behaves as our own agent does, [`eim::EimNode`] as the ancestor's real one: it samples a state file
//! at ticks, repeats itself, misses steps and starts by itself. A node takes one turn at a time and says how long it
//! wants to wait for the next, so that one task can drive one node or thousands.
//!
//! Everything that can go wrong does, as often as [`line::Faults`] and the habits of a node say, drawn from a
//! [`chance::Chance`] with a seed. Each node has a clock of its own ([`clock::NodeClock`]), and writes down what it
//! really did ([`truth`]), so that the records of a server can be held against it.

pub mod chance;
pub mod clock;
pub mod eim;
pub mod line;
pub mod own;
pub mod truth;
