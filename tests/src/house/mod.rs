//! The rules of the house: what no compiler checks about the repository itself.
//!
//! A rule is a pure function from text to findings, so that each can be shown a bad sample. `tests/house.rs` holds
//! them against the real tree.

pub mod arrows;
pub mod code;
pub mod documents;
pub mod doors;
pub mod shape;
pub mod tree;
