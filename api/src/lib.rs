//! JSON types of the REST API, one file per resource.
//!
//! The paths, names and texts are those of the REST API of EIM. Three conventions apply everywhere:
//! * **Responses contain every field.** The default is `""`, `0`, `false` or `[]`. A missing object is
//!   `null`, except for the few objects that clients read unconditionally (see [`region`] and
//!   [`update_run`]).
//! * **Requests have types of their own.** They contain only writable fields. A key that a response
//!   has and the request type lacks is ignored ([`input::Input::READ_ONLY`]); any other unknown key
//!   is an error.
//! * **Lists have an envelope** with a key of their own, `totalElements`, `hasNext` and
//!   `nextPageToken`.

#![warn(missing_docs)]

#[macro_use]
mod wire_enum;

pub mod absent;
pub mod assignment;
pub mod change;
pub mod custom_config;
pub mod decision;
pub mod empty;
pub mod hardware;
pub mod host;
pub mod host_summary;
pub mod input;
pub mod instance;
pub mod join_token;
pub mod local_account;
pub mod location;
pub mod notification;
pub mod number;
pub mod operator_token;
pub mod orchestrator;
pub mod order;
pub mod os;
pub mod os_sync;
pub mod out_of_band;
pub mod pause;
pub mod policy;
pub mod problem;
pub mod project;
pub mod provider;
pub mod region;
pub mod schedule;
pub mod settings;
pub mod site;
pub mod status;
pub mod timestamps;
pub mod update_run;
pub mod user;
pub mod whoami;

pub use empty::Empty;
pub use input::Input;
pub use problem::Problem;
pub use timestamps::Timestamps;
