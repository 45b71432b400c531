//! EIM's update agents: what their samples prove and how the server answers them.
//!
//! An EIM agent does not report events. At each tick it sends the content of its state file, so it skips steps and
//! repeats itself. It starts an update by itself when its window opens.

mod available;
mod delivery;
mod detail;
mod echo;
mod evidence;
mod repeated;
mod steady;
#[cfg(test)]
mod tests;
mod turn_order;

pub use available::{MAX_AVAILABLE_BYTES, available_update, mark_cut_list, newer_image_name};
pub use delivery::{Answer, AnswerInput, DeliveryState, Slot, render_answer};
pub use detail::{Detail, MAX_DETAIL_BYTES, SampleDetail};
pub use evidence::{
    LastSample, PriorState, Proof, Sample, SampleKind, UnconfirmedFailure, evaluate_sample,
};
pub use repeated::WireRepeatedSchedule;
pub use steady::{VisibleState, is_unchanged_sample, may_begin_from, start_obstacle, steady_until};
