//! Checks a machine against its configuration, and changes it.
//!
//! A configuration is a [`Document`](evenkeel_configuration::Document). The crate compares each of
//! its entries with the machine, plans the changes, and makes them in a way that can be killed at any
//! point and continued. It has no journal, no limits and no server: the agent has them. All functions
//! block.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`change`] | changes of units, packages, accounts and kernel settings, and actions |
//! | [`check`] | compares a machine with a document |
//! | [`files`] | files: check, plan, write, remove and restore |
//! | [`finding`] | the result of the check of one entry |
//! | [`machine`] | the machine: its root folder, and how programs run on it |
//! | [`names`] | paths and names on which checks and changes agree |
//! | [`report`] | the result of a check |
//! | [`run`] | plans and runs all changes of a document |
//! | [`scope`] | what of a document a check or a run covers |

pub mod change;
pub mod check;
pub mod files;
pub mod finding;
pub mod machine;
pub mod names;
mod protection;
pub mod report;
pub mod run;
pub mod scope;
mod text;
