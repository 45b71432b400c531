//! The ancestor's agents: what their samples prove and what they are answered.
//!
//! Such an agent does not tell what happened; it shows the state of a file at each tick, misses steps and repeats
//! itself (southbound sections 3.3 and 3.9). It starts by itself when its window opens.

mod delivery;
mod detail;
mod evidence;
#[cfg(test)]
mod tests;

pub use delivery::{Answer, Delivered, answer};
pub use detail::Detail;
pub use evidence::{Sample, SampleKind, Seen, evidence};
