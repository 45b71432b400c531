//! The language of filters as people and the ancestor's clients write it.

mod bad;
mod corpus;
mod language;
mod orders;
mod properties;
mod schema;

use super::*;

/// A filter for a list of hosts, as it is shown.
fn hosts(text: &str) -> String {
    shown(Resource::Host, text)
}

fn shown(resource: Resource, text: &str) -> String {
    match parse(resource, text) {
        Ok(filter) => filter.to_string(),
        Err(bad) => panic!("{text}: {bad}"),
    }
}

/// What is said about a filter for a list of hosts.
fn refused(text: &str) -> BadFilter {
    parse(Resource::Host, text).expect_err("a bad filter")
}
