//! Random attempts to reach another project.

use evenkeel_domain::filter::Resource;
use serde_json::{Value, json};

use super::attack_context::AttackContext;
use super::bodies;
use super::filters::{random_filter, random_pattern};
use super::rng::Rng;
use crate::lists::percent_encode;
use crate::statuses::{request_body, required_query};
use crate::test_server::{ResourceIds, has_id_placeholder, legacy_path};

/// A request of one project that tries to reach the other one.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Method and path.
    pub request: String,
    pub body: Option<Value>,
    /// UUID of the project in the header `ActiveProjectID`.
    pub project: Option<String>,
    /// The query before it was encoded.
    pub query_text: String,
    pub expected: Expectation,
}

/// The expected response. It never contains anything of the other project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    Status(u16),
    /// A status from 400 to 499.
    ClientError,
    /// A success whose body contains this text.
    Contains(String),
    /// A success, or a status from 400 to 499.
    NoServerError,
}

impl Attempt {
    pub fn new(request: String, expected: Expectation) -> Self {
        Self { request, body: None, project: None, query_text: String::new(), expected }
    }

    pub fn with_body(self, body: Option<Value>) -> Self {
        Self { body, ..self }
    }

    fn with_project(self, project: String) -> Self {
        let project = Some(project);
        Self { project, ..self }
    }

    fn with_query_text(self, query_text: String) -> Self {
        Self { query_text, ..self }
    }

    /// Whether the request is about projects themselves rather than resources in a project.
    pub fn is_about_projects(&self) -> bool {
        let path = self.request.split_once(' ').map_or("", |(_, path)| path);
        let path = path.split('?').next().unwrap_or_default();
        let below = path.strip_prefix("/v1/projects");
        below.is_some_and(|below| !below.trim_start_matches('/').contains('/'))
    }

    /// Everything that the request contains.
    pub fn input_text(&self) -> String {
        let Self { request, body, project, query_text, .. } = self;
        format!("{request} {body:?} {project:?} {query_text}")
    }
}

/// The lists that can be filtered, with their resources.
pub const LISTS: [(&str, Resource); 12] = [
    ("compute/hosts", Resource::Host),
    ("compute/instances", Resource::Instance),
    ("compute/os", Resource::Os),
    ("os-update-policies", Resource::Policy),
    ("os-update-runs", Resource::Run),
    ("schedules/single", Resource::SingleSchedule),
    ("schedules/repeated", Resource::RepeatedSchedule),
    ("regions", Resource::Region),
    ("sites", Resource::Site),
    ("providers", Resource::Provider),
    ("customConfigs", Resource::CustomConfig),
    ("localAccounts", Resource::LocalAccount),
];

const EMPTY_LIST: &str = "\"totalElements\":0,";

/// A random attempt of any kind.
pub fn random_attempt(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    match rng.below(100) {
        0..28 => attempt_by_path(rng, context),
        28..50 => attempt_by_body(rng, context),
        50..57 => attempt_with_mask(rng, context),
        57..77 => attempt_by_filter(rng, context),
        77..82 => attempt_by_order(rng, context),
        82..87 => attempt_by_page_token(rng, context),
        87..93 => attempt_by_schedule_target(rng, context),
        93..95 => attempt_by_location_name(rng, context),
        95..98 => attempt_by_id_digits(rng, context),
        _ => attempt_by_odd_project_name(rng, context),
    }
}

/// The paths of resources of the other project, or of the other project itself.
fn attempt_by_path(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (method, path, operation) = rng.pick(&context.operations);
    let (own, other) = (context.pick_own(rng), context.pick_other(rng));
    let mut query = required_query(operation);
    if method == "DELETE" && path.ends_with("{projectName}") && rng.once_in(2) {
        query = "?force=true";
    }
    let build = |project: &str, resources: &ResourceIds, expected| {
        let path = resources.fill(path, project);
        Attempt::new(format!("{method} {path}{query}"), expected)
    };
    let (here, there) = (context.attacker, context.victim);
    let (forbidden, missing) = (Expectation::Status(403), Expectation::Status(404));
    let is_within = path.contains("{projectName}/");
    let attempt = match rng.below(6) {
        0 | 1 if has_id_placeholder(path) => build(here.name, other, missing),
        2 if has_id_placeholder(path) => {
            build(here.name, other, missing).with_project(there.tenant.to_string())
        }
        3 if has_id_placeholder(path) => {
            into_legacy_form(build(here.name, other, missing), here.tenant.to_string())
        }
        4 if is_within => {
            into_legacy_form(build(there.name, other, forbidden), there.tenant.to_string())
        }
        5 => build(there.name, own, forbidden).with_project(here.tenant.to_string()),
        _ => build(there.name, other, forbidden),
    };
    let body_ids = if rng.once_in(3) { own } else { other };
    attempt.with_body(request_body(operation, body_ids, context.server))
}

/// The same attempt in the legacy form, for the project with this UUID.
fn into_legacy_form(attempt: Attempt, project: String) -> Attempt {
    let (method, path) = attempt.request.split_once(' ').expect("a method and a path");
    let request = format!("{method} {}", legacy_path(path));
    Attempt { request, ..attempt }.with_project(project)
}

/// An id of the other project in a body.
fn attempt_by_body(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (own, other) = (context.pick_own(rng), context.pick_other(rng));
    let references = bodies::references(own, other);
    let (what, field, id) = rng.pick(&references);
    let mut body = bodies::base_body(what, own, context);
    body[*field] = match *field {
        "customConfigID" => json!([id]),
        _ => json!(id),
    };
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let what = format!("{method} /v1/projects/{}/{path}", context.attacker.name);
    let attempt = Attempt::new(what, Expectation::ClientError).with_body(Some(body));
    if rng.once_in(4) {
        return into_legacy_form(attempt, context.attacker.tenant.to_string());
    }
    attempt
}

/// Ids of the other project in a body, in fields that a mask or the field's nature may exclude.
fn attempt_with_mask(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (own, other) = (context.pick_own(rng), context.pick_other(rng));
    let cases = bodies::masked_changes(own, other, context);
    let (what, body, is_ignored) = rng.pick(&cases);
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let what = format!("{method} /v1/projects/{}/{path}", context.attacker.name);
    let expected = if *is_ignored { Expectation::Status(200) } else { Expectation::ClientError };
    Attempt::new(what, expected).with_body(Some(body.clone()))
}

/// Filters that match only resources of the other project, or all resources but those.
fn attempt_by_filter(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (list, resource) = *rng.pick(&LISTS);
    let (text, is_met_by_all) = random_filter(rng, resource, &context.secrets);
    let own = context.attacker;
    let total = |list| {
        if is_met_by_all { context.total(list) } else { 0 }
    };
    let base = format!("GET /v1/projects/{}", own.name);
    let filter = percent_encode(&text);
    if resource == Resource::Host && rng.once_in(3) {
        let what = format!("{base}/compute/hosts/summary?filter={filter}");
        let expected = Expectation::Contains(format!("\"total\":{},", total(list)));
        return Attempt::new(what, expected).with_query_text(text);
    }
    let more = rng.pick(&[
        "",
        "&pageSize=5",
        "&pageSize=1&offset=1",
        "&offset=2",
        "&pageSize=100&orderBy=resourceId%20desc",
    ]);
    let what = format!("{base}/{list}?filter={filter}{more}");
    let expected = Expectation::Contains(format!("\"totalElements\":{},", total(list)));
    let attempt = Attempt::new(what, expected).with_query_text(text);
    if rng.once_in(4) {
        return into_legacy_form(attempt, own.tenant.to_string());
    }
    attempt
}

/// Lists in any order and from any offset; the total is always that of the own project. In the
/// legacy form, the query names the other project as well.
fn attempt_by_order(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (list, resource) = *rng.pick(&LISTS);
    let own = context.attacker;
    let field = rng.pick(resource.fields()).name;
    let direction = rng.pick(&["", "%20desc", "%20asc"]);
    let size = rng.below(100) + 1;
    let offset = rng.below(6);
    let mut what = format!(
        "GET /v1/projects/{}/{list}?orderBy={field}{direction}&pageSize={size}&offset={offset}",
        own.name
    );
    let is_legacy = rng.once_in(3);
    if is_legacy {
        what = format!("{what}&projectName={}", context.victim.name);
    }
    let expected = format!("\"totalElements\":{},", context.total(list));
    let attempt = Attempt::new(what, Expectation::Contains(expected));
    if is_legacy {
        return into_legacy_form(attempt, own.tenant.to_string());
    }
    attempt
}

/// Page tokens of the other project.
fn attempt_by_page_token(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (list, token, is_numbered) = rng.pick(&context.tokens);
    let name = context.attacker.name;
    let what = format!("GET /v1/projects/{name}/{list}&pageToken={token}");
    // A token that holds only a number is also valid for the own list.
    let expected = if *is_numbered { Expectation::NoServerError } else { Expectation::ClientError };
    Attempt::new(what, expected)
}

/// Schedules with a target in the other project.
fn attempt_by_schedule_target(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let other = context.pick_other(rng);
    let list = rng.pick(&["compute/schedules", "schedules/single", "schedules/repeated"]);
    let (name, id) =
        *rng.pick(&[("hostId", &other.host), ("siteId", &other.site), ("regionId", &other.region)]);
    let more = match rng.below(4) {
        0 => String::new(),
        1 => "&pageSize=10".to_owned(),
        _ => format!("&unixEpoch={}", context.server.seconds(4_000)),
    };
    let own = context.attacker;
    let what = format!("GET /v1/projects/{}/{list}?{name}={id}{more}", own.name);
    let attempt = Attempt::new(what, Expectation::Contains(EMPTY_LIST.to_owned()));
    if rng.once_in(4) {
        return into_legacy_form(attempt, own.tenant.to_string());
    }
    attempt
}

/// Regions and sites of the other project by a part of their names.
fn attempt_by_location_name(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let name = random_pattern(rng, context.secrets.mark);
    let what = format!(
        "GET /v1/projects/{}/locations?name={}&showSites=true&showRegions=true",
        context.attacker.name,
        percent_encode(&name)
    );
    Attempt::new(what, Expectation::Contains(EMPTY_LIST.to_owned())).with_query_text(name)
}

/// The digits of an id of the other project, with the prefix of another kind.
fn attempt_by_id_digits(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let ids: Vec<&String> = context.secrets.ids().collect();
    let (_, digits) = rng.pick(&ids).rsplit_once('-').expect("an id");
    let (list, prefix) = *rng.pick(&[
        ("compute/hosts", "host"),
        ("compute/instances", "inst"),
        ("compute/os", "os"),
        ("os-update-policies", "osupdatepolicy"),
        ("os-update-runs", "osupdaterun"),
        ("schedules/single", "singlesche"),
        ("regions", "region"),
        ("sites", "site"),
        ("providers", "provider"),
    ]);
    let method = rng.pick(&["GET", "DELETE"]);
    let name = context.attacker.name;
    let what = format!("{method} /v1/projects/{name}/{list}/{prefix}-{digits}");
    Attempt::new(what, Expectation::Status(404))
}

/// Paths that a careless server could mistake for those of the other project, and the list of all
/// projects.
fn attempt_by_odd_project_name(rng: &mut Rng, context: &AttackContext<'_>) -> Attempt {
    let (here, there) = (context.attacker.name, context.victim.name);
    let list = rng.pick(&LISTS).0;
    let odd = match rng.below(7) {
        0 => format!("{here}%2F..%2F{there}"),
        1 => format!("{there}%00"),
        2 => there.to_uppercase(),
        3 => context.victim.tenant.to_string(),
        4 => format!("{here}/../{there}"),
        5 => format!("{here},{there}"),
        _ => return Attempt::new("GET /v1/projects".to_owned(), Expectation::Status(200)),
    };
    let what = format!("GET /v1/projects/{odd}/{list}");
    Attempt::new(what, Expectation::ClientError)
}
