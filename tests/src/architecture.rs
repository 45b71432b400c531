//! Architecture rules: properties of the repository that no compiler checks.
//!
//! A rule is a pure function from text to findings, so that it can be tested with a bad sample.
//! `tests/architecture.rs` applies the rules to the repository.

pub mod agent_modules;
pub mod arrows;
pub mod code;
pub mod cycles;
pub mod documents;
pub mod markdown;
pub mod migration_steps;
pub mod naming;
pub mod restricted_names;
pub mod shape;
pub mod tree;
