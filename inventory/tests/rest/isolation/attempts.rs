//! Ways to get at another project.

use evenkeel_domain::filter::Resource;
use serde_json::{Value, json};

use super::bodies;
use super::dice::Dice;
use super::filters::{filter, piece};
use super::world::World;
use crate::house::{Things, legacy, names_a_thing};
use crate::lists::encoded;
use crate::statuses::{body, query};

/// Something that somebody of one project asks for to get at the other one.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Method and path.
    pub what: String,
    pub body: Option<Value>,
    /// The UUID of a project in the head.
    pub project: Option<String>,
    /// What is behind the question mark, before it was encoded.
    pub said: String,
    pub wanted: Wanted,
}

/// What must be answered. Nothing of the other project, in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// This status.
    Status(u16),
    /// A status from 400 to 499.
    Refused,
    /// A success with this text in it.
    Saying(String),
    /// A success, or a status from 400 to 499.
    Anything,
}

impl Attempt {
    pub fn new(what: String, wanted: Wanted) -> Self {
        Self {
            what,
            body: None,
            project: None,
            said: String::new(),
            wanted,
        }
    }

    pub fn with(self, body: Option<Value>) -> Self {
        Self { body, ..self }
    }

    fn of_project(self, project: String) -> Self {
        let project = Some(project);
        Self { project, ..self }
    }

    fn saying(self, said: String) -> Self {
        Self { said, ..self }
    }

    /// Whether it is about projects themselves and not about what is in one.
    pub fn is_about_projects(&self) -> bool {
        let path = self.what.split_once(' ').map_or("", |(_, path)| path);
        let path = path.split('?').next().unwrap_or_default();
        let below = path.strip_prefix("/v1/projects");
        below.is_some_and(|below| !below.trim_start_matches('/').contains('/'))
    }

    /// All that was said with it.
    pub fn said(&self) -> String {
        let Self {
            what,
            body,
            project,
            said,
            ..
        } = self;
        format!("{what} {body:?} {project:?} {said}")
    }
}

/// The lists that can be filtered.
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

const NOTHING: &str = "\"totalElements\":0,";

/// One of all ways.
pub fn attempt(dice: &mut Dice, world: &World<'_>) -> Attempt {
    match dice.below(100) {
        0..28 => through_a_path(dice, world),
        28..50 => in_a_body(dice, world),
        50..57 => beside_a_mask(dice, world),
        57..77 => in_a_filter(dice, world),
        77..82 => in_an_order(dice, world),
        82..87 => by_a_token(dice, world),
        87..93 => by_the_target_of_schedules(dice, world),
        93..95 => by_the_name_of_a_place(dice, world),
        95..98 => by_digits(dice, world),
        _ => by_an_odd_name(dice, world),
    }
}

/// The things of the other project by their paths, or its own path.
fn through_a_path(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (method, path, operation) = dice.pick(&world.operations);
    let (own, other) = (world.own(dice), world.other(dice));
    let mut query = query(operation);
    if method == "DELETE" && path.ends_with("{projectName}") && dice.once_in(2) {
        query = "?force=true";
    }
    let ask = |project: &str, things: &Things, wanted| {
        let path = things.fill(path, project);
        Attempt::new(format!("{method} {path}{query}"), wanted)
    };
    let (here, there) = (world.attacker, world.victim);
    let (forbidden, missing) = (Wanted::Status(403), Wanted::Status(404));
    let is_within = path.contains("{projectName}/");
    let attempt = match dice.below(6) {
        0 | 1 if names_a_thing(path) => ask(here.name, other, missing),
        2 if names_a_thing(path) => {
            ask(here.name, other, missing).of_project(there.tenant.to_string())
        }
        3 if names_a_thing(path) => {
            in_legacy_form(ask(here.name, other, missing), here.tenant.to_string())
        }
        4 if is_within => {
            in_legacy_form(ask(there.name, other, forbidden), there.tenant.to_string())
        }
        5 => ask(there.name, own, forbidden).of_project(here.tenant.to_string()),
        _ => ask(there.name, other, forbidden),
    };
    let named = if dice.once_in(3) { own } else { other };
    attempt.with(body(operation, named, world.house))
}

/// The same in the legacy form, for the project with this UUID.
fn in_legacy_form(attempt: Attempt, project: String) -> Attempt {
    let (method, path) = attempt.what.split_once(' ').expect("a method and a path");
    let what = format!("{method} {}", legacy(path));
    Attempt { what, ..attempt }.of_project(project)
}

/// An id of the other project in a body.
fn in_a_body(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (own, other) = (world.own(dice), world.other(dice));
    let references = bodies::references(own, other);
    let (what, field, id) = dice.pick(&references);
    let mut body = bodies::before(what, own, world);
    body[*field] = match *field {
        "customConfigID" => json!([id]),
        _ => json!(id),
    };
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let what = format!("{method} /v1/projects/{}/{path}", world.attacker.name);
    let attempt = Attempt::new(what, Wanted::Refused).with(Some(body));
    if dice.once_in(4) {
        return in_legacy_form(attempt, world.attacker.tenant.to_string());
    }
    attempt
}

/// Ids of the other project in a body, where a mask or the nature of the field passes them over, or does not.
fn beside_a_mask(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (own, other) = (world.own(dice), world.other(dice));
    let cases = bodies::masked(own, other, world);
    let (what, body, is_passed_over) = dice.pick(&cases);
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let what = format!("{method} /v1/projects/{}/{path}", world.attacker.name);
    let wanted = if *is_passed_over {
        Wanted::Status(200)
    } else {
        Wanted::Refused
    };
    Attempt::new(what, wanted).with(Some(body.clone()))
}

/// Filters that only things of the other project meet, or all others.
fn in_a_filter(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (list, resource) = *dice.pick(&LISTS);
    let (text, is_met_by_all) = filter(dice, resource, &world.secrets);
    let own = world.attacker;
    let total = |list| if is_met_by_all { world.total(list) } else { 0 };
    let base = format!("GET /v1/projects/{}", own.name);
    let filter = encoded(&text);
    if resource == Resource::Host && dice.once_in(3) {
        let what = format!("{base}/compute/hosts/summary?filter={filter}");
        let wanted = Wanted::Saying(format!("\"total\":{},", total(list)));
        return Attempt::new(what, wanted).saying(text);
    }
    let more = dice.pick(&[
        "",
        "&pageSize=5",
        "&pageSize=1&offset=1",
        "&offset=2",
        "&pageSize=100&orderBy=resourceId%20desc",
    ]);
    let what = format!("{base}/{list}?filter={filter}{more}");
    let wanted = Wanted::Saying(format!("\"totalElements\":{},", total(list)));
    let attempt = Attempt::new(what, wanted).saying(text);
    if dice.once_in(4) {
        return in_legacy_form(attempt, own.tenant.to_string());
    }
    attempt
}

/// Lists in any order, from any place: there is never more than what is one's own. In the legacy form the other project
/// is named behind the question mark as well.
fn in_an_order(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (list, resource) = *dice.pick(&LISTS);
    let own = world.attacker;
    let field = dice.pick(resource.fields()).name;
    let direction = dice.pick(&["", "%20desc", "%20asc"]);
    let size = dice.below(100) + 1;
    let offset = dice.below(6);
    let mut what = format!(
        "GET /v1/projects/{}/{list}?orderBy={field}{direction}&pageSize={size}&offset={offset}",
        own.name
    );
    let is_legacy = dice.once_in(3);
    if is_legacy {
        what = format!("{what}&projectName={}", world.victim.name);
    }
    let wanted = format!("\"totalElements\":{},", world.total(list));
    let attempt = Attempt::new(what, Wanted::Saying(wanted));
    if is_legacy {
        return in_legacy_form(attempt, own.tenant.to_string());
    }
    attempt
}

/// Where a page of the other project ended.
fn by_a_token(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (list, token, is_numbered) = dice.pick(&world.tokens);
    let name = world.attacker.name;
    let what = format!("GET /v1/projects/{name}/{list}&pageToken={token}");
    // A token that only counts is as good for one's own list.
    let wanted = if *is_numbered {
        Wanted::Anything
    } else {
        Wanted::Refused
    };
    Attempt::new(what, wanted)
}

/// What is scheduled for something of the other project.
fn by_the_target_of_schedules(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let other = world.other(dice);
    let list = dice.pick(&[
        "compute/schedules",
        "schedules/single",
        "schedules/repeated",
    ]);
    let (name, id) = *dice.pick(&[
        ("hostId", &other.host),
        ("siteId", &other.site),
        ("regionId", &other.region),
    ]);
    let more = match dice.below(4) {
        0 => String::new(),
        1 => "&pageSize=10".to_owned(),
        _ => format!("&unixEpoch={}", world.house.seconds(4_000)),
    };
    let own = world.attacker;
    let what = format!("GET /v1/projects/{}/{list}?{name}={id}{more}", own.name);
    let attempt = Attempt::new(what, Wanted::Saying(NOTHING.to_owned()));
    if dice.once_in(4) {
        return in_legacy_form(attempt, own.tenant.to_string());
    }
    attempt
}

/// Regions and sites of the other project by a part of their names.
fn by_the_name_of_a_place(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let name = piece(dice, world.secrets.mark);
    let what = format!(
        "GET /v1/projects/{}/locations?name={}&showSites=true&showRegions=true",
        world.attacker.name,
        encoded(&name)
    );
    Attempt::new(what, Wanted::Saying(NOTHING.to_owned())).saying(name)
}

/// The digits of an id of the other project, said of another kind.
fn by_digits(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let ids: Vec<&String> = world.secrets.ids().collect();
    let (_, digits) = dice.pick(&ids).rsplit_once('-').expect("an id");
    let (list, prefix) = *dice.pick(&[
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
    let method = dice.pick(&["GET", "DELETE"]);
    let name = world.attacker.name;
    let what = format!("{method} /v1/projects/{name}/{list}/{prefix}-{digits}");
    Attempt::new(what, Wanted::Status(404))
}

/// Paths that only a careless server takes for those of the other project; and the list of all projects.
fn by_an_odd_name(dice: &mut Dice, world: &World<'_>) -> Attempt {
    let (here, there) = (world.attacker.name, world.victim.name);
    let list = dice.pick(&LISTS).0;
    let odd = match dice.below(7) {
        0 => format!("{here}%2F..%2F{there}"),
        1 => format!("{there}%00"),
        2 => there.to_uppercase(),
        3 => world.victim.tenant.to_string(),
        4 => format!("{here}/../{there}"),
        5 => format!("{here},{there}"),
        _ => return Attempt::new("GET /v1/projects".to_owned(), Wanted::Status(200)),
    };
    let what = format!("GET /v1/projects/{odd}/{list}");
    Attempt::new(what, Wanted::Refused)
}
