//! Checks a machine against its configuration, and changes its files.
//!
//! A configuration is a [`Document`](evenkeel_configuration::Document). The crate compares each of
//! its entries with the machine. It plans and makes the changes of files, in a way that can be killed
//! at any point. It has no journal, no limits and no server: the agent has them. All functions
//! block.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`check`] | compares a machine with a document |
//! | [`files`] | files: check, plan, write, remove and restore |
//! | [`finding`] | the result of the check of one entry |
//! | [`machine`] | the machine: its root folder, and how programs run on it |
//! | [`names`] | paths and names on which checks and changes agree |
//! | [`report`] | the result of a check |
//! | [`scope`] | what of a document a check or a run covers |

pub mod check;
pub mod files;
pub mod finding;
pub mod machine;
pub mod names;
pub mod report;
pub mod scope;
mod text;
