//! The filter language as users and EIM's clients write it.

mod corpus;
mod cost;
mod errors;
mod language;
mod orders;
mod properties;
mod schema;

use super::*;

/// The canonical form of a filter for a list of hosts.
fn hosts(text: &str) -> String {
    render(Resource::Host, text)
}

fn render(resource: Resource, text: &str) -> String {
    match parse_filter(resource, text) {
        Ok(filter) => filter.to_string(),
        Err(bad) => panic!("{text}: {bad}"),
    }
}

/// The error of a filter for a list of hosts.
fn refused(text: &str) -> BadFilter {
    parse_filter(Resource::Host, text).expect_err("a bad filter")
}
