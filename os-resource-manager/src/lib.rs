//! The OS resource manager: syncs the catalogue of every registry, checks it, and serves the files to nodes.
//!
//! A registry is fetched once for all projects, under a claim in the database, so that any number of processes make one
//! fetch and one set of rows. The result is stored for the whole fleet. What a project takes of it depends on that alone
//! and needs no network. No transaction is open during a network request.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `settings`, `sources` | the configured registries and their credentials |
//! | `manager` | when a registry is synced: at the start, by schedule, on request |
//! | `cycle` | one sync cycle, from its claim to its end |
//! | `fetch`, `attachments` | fetches, checks and stores profiles and their attachments |
//! | `plan`, `apply` | what a project takes, and its sync report |
//! | `files` | serves the files of operating systems to nodes |

mod apply;
mod attachments;
mod cycle;
mod fetch;
mod files;
mod manager;
mod plan;
mod settings;
mod sources;

pub use files::{Admission, FileServer, FileSettings, Prefetch};
pub use manager::{OsResourceManager, PassResult};
pub use settings::{DefaultProfile, InvalidSettings, RegistrySettings, Settings};
pub use sources::{Source, Sources};
