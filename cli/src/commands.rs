//! The commands, one module per noun.

pub mod account;
pub mod assignment;
pub mod audit;
pub mod completion;
pub mod configuration;
pub mod context;
pub mod custom_config;
pub mod explain;
pub mod group;
pub mod host;
pub mod instance;
pub mod join_token;
pub mod location;
pub mod login;
pub mod logout;
mod names;
pub mod notification;
pub mod notification_target;
pub mod os;
pub mod passwd;
pub mod pause;
pub mod policy;
pub mod project;
pub mod provider;
pub mod region;
pub mod run;
pub mod schedule;
pub mod settings;
pub mod site;
pub mod token;
pub mod update;
pub mod user;
pub mod whoami;

use std::path::Path;

use evenkeel_api::Input;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Failure;

/// Reads a text file.
fn read_file(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

/// Reads a YAML file.
fn read_yaml<T: DeserializeOwned>(path: &Path, expected: &'static str) -> Result<T, Failure> {
    serde_saphyr::from_str(&read_file(path)?).map_err(|error| Failure::Content {
        path: path.to_owned(),
        expected,
        source: Box::new(error),
    })
}

/// Reads a new resource from a file with a resource as `get` prints it in YAML or JSON. Ignores the
/// fields that only the server sets.
fn read_input<I: Input>(path: &Path, expected: &'static str) -> Result<I, Failure> {
    parse_input(read_yaml(path, expected)?, path, expected)
}

fn parse_input<I: Input>(
    resource: Value,
    path: &Path,
    expected: &'static str,
) -> Result<I, Failure> {
    serde_json::from_value(I::without_read_only(resource)).map_err(|error| Failure::Content {
        path: path.to_owned(),
        expected,
        source: Box::new(error),
    })
}
