//! Rules that follow from the method and the path of an operation, for its description.

use std::fmt::Write;

use evenkeel_domain::filter::{Edge, FilterField, Resource};

const PROJECT_PATH: &str = "/v1/projects/{projectName}";

/// Ends of the paths of lists with filters, and what they list.
const FILTERED_LISTS: [(&str, Resource); 13] = [
    ("/hosts", Resource::Host),
    ("/hosts/summary", Resource::Host),
    ("/instances", Resource::Instance),
    ("/os", Resource::Os),
    ("/os-update-policies", Resource::Policy),
    ("/os-update-runs", Resource::Run),
    ("/regions", Resource::Region),
    ("/sites", Resource::Site),
    ("/single", Resource::SingleSchedule),
    ("/repeated", Resource::RepeatedSchedule),
    ("/providers", Resource::Provider),
    ("/customConfigs", Resource::CustomConfig),
    ("/localAccounts", Resource::LocalAccount),
];

/// Adds to the description of an operation the fields for filters and the required role.
pub fn add_rules(path: &str, method: &str, description: &mut String) {
    if !path.starts_with(PROJECT_PATH) {
        return;
    }
    let list = FILTERED_LISTS.iter().find(|(end, _)| method == "get" && path.ends_with(end));
    if let Some((_, resource)) = list {
        let fields = resource.fields().iter().map(FilterField::wire_name);
        add_names(description, "Fields for `filter` and `orderBy`", fields);
        let related = resource.edges().iter().map(Edge::wire_name);
        add_names(description, "Related resources for `filter`", related);
    }
    let roles = match method {
        _ if path.ends_with("/operator-tokens") => {
            "`<project UUID>_administrator` or `evenkeel-admin`"
        }
        "get" => {
            "any role of people in the project, such as `<project UUID>_im-r`, or `evenkeel-admin`"
        }
        _ if path == PROJECT_PATH => "`evenkeel-admin`",
        _ => "`<project UUID>_im-rw`, `<project UUID>_administrator` or `evenkeel-admin`",
    };
    write!(description, "\n\nRole: {roles}.").ok();
}

/// Adds a paragraph with names, if there are any.
fn add_names(description: &mut String, title: &str, names: impl Iterator<Item = String>) {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if !names.is_empty() {
        write!(description, "\n\n{title}: {}.", names.join(", ")).ok();
    }
}
