//! Simulated nodes of both protocols, over real gRPC and TLS.
//!
//! [`own::OwnNode`] behaves like our own agent, [`eim::EimNode`] like EIM's: it samples a state
//! file at ticks, repeats itself, misses steps and starts by itself. A node takes one turn at a
//! time and returns the delay until the next one, so that one task can drive one node or thousands.
//!
//! [`polling::PollingNode`] only polls, as cheaply as possible: it is driven by calls and answers.
//!
//! Faults happen with the probabilities in [`connection::Faults`] and in the habits of a node,
//! drawn from a seeded [`rng::Rng`]. Each node has its own clock ([`clock::NodeClock`]) and records
//! what it really did ([`ground_truth`]), so that a test can compare the records of a server with
//! it.

pub mod clock;
pub mod connection;
pub mod eim;
pub mod ground_truth;
pub mod own;
pub mod polling;
pub mod rng;
