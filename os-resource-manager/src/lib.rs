//! Which operating systems are there: the catalogue of every registry, synced, checked, and served to nodes.
//!
//! A registry is asked once for all projects, under a claim in the database, so that any number of processes make one
//! set of rows and one fetch. What was found is kept for the fleet; what a project takes of it follows from that alone
//! and needs no network. No transaction is open while the network is asked.
//!
//! | module | what it is about |
//! | --- | --- |
//! | `settings`, `sources` | which registries there are, and how they are entered |
//! | `manager` | when a registry is asked: at the start, by the calendar, when somebody wishes it |
//! | `cycle` | one time that a registry is asked, from its claim to its end |
//! | `fetch`, `side` | profiles and what lies beside them, checked and kept |
//! | `plan`, `apply` | what a project takes of it, and the report of that |
//! | `files` | the files of operating systems, for nodes |

mod apply;
mod cycle;
mod fetch;
mod files;
mod manager;
mod plan;
mod settings;
mod side;
mod sources;

pub use files::{Admission, FileSettings, Files, Prefetch};
pub use manager::{OsResourceManager, Passed};
pub use settings::{BadSettings, DefaultWish, RegistrySettings, Settings};
pub use sources::{Source, Sources};
