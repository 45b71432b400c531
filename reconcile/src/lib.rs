//! Checks a machine against its configuration and corrects it.
//!
//! A configuration is a [`Document`](evenkeel_configuration::Document). The crate compares each of
//! its entries with the machine, plans the corrections, and makes them. It has no journal, no
//! limits and no server: the agent has them. All functions block.
//!
//! | Module | Contents |
//! | --- | --- |
//! | [`machine`] | the machine: its root folder, and how programs run on it |
//! | [`report`] | the result of a check |

pub mod machine;
pub mod report;
