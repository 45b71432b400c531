//! What is said northbound: the JSON types of the REST API, one file per resource.
//!
//! The paths, names and texts are those of the ancestor's API. Three habits hold everywhere:
//!
//! * **Answers carry every field.** A zero value is `""`, `0`, `false`, `[]`; what is not there is `null`, except the few
//!   objects that clients read without asking (see [`region`] and [`update_run`]).
//! * **Questions have types of their own.** They know only what may be written. A key that an answer has and a question
//!   has not is ignored ([`input::Input::READ_ONLY`]); any other unknown key is an error.
//! * **Lists have an envelope** with a key of their own, `totalElements`, `hasNext` and `nextPageToken`.

#[macro_use]
mod wire_enum;

pub mod absent;
pub mod assignment;
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
pub mod number;
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

pub use empty::Empty;
pub use input::Input;
pub use problem::Problem;
pub use timestamps::Timestamps;
