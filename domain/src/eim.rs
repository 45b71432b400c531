//! The ancestor's agents: what their samples prove and what they are answered.
//!
//! Such an agent does not tell what happened; it shows the state of a file at each tick, misses steps and repeats
//! itself (southbound sections 3.3 and 3.9). It starts by itself when its window opens.

mod available;
mod delivery;
mod detail;
mod echo;
mod evidence;
mod repeated;
mod steady;
#[cfg(test)]
mod tests;
mod way;

pub use available::{MAX_AVAILABLE, available, available_for};
pub use delivery::{Answer, Asked, Delivered, Slot, answer};
pub use detail::{Detail, MAX_DETAIL};
pub use evidence::{Before, Doubt, Proof, Sample, SampleKind, Seen, evidence};
pub use repeated::RepeatedOnWire;
pub use steady::{Shows, is_settled, may_begin_from, steady_until};
