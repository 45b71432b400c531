//! The OpenAPI document, made from the code.

use std::collections::BTreeSet;

use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, openapi};

use crate::routes;

/// What stands before the name of a schema that is referred to.
const SCHEMAS: &str = "#/components/schemas/";

/// Where an item of the paths names the schema of what a change may say.
const BODY_OF_CHANGE: &str = "/patch/requestBody/content/application~1json/schema/$ref";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Evenkeel",
        version = "v1",
        description = "Keeps a fleet of edge nodes up to date.\n\nEvery path below `/v1/projects/{projectName}/` can also be \
            reached in the ancestor's legacy form, `/edge-infra.orchestrator.apis/v2/…` with the project's UUID in the \
            header `ActiveProjectID`. Every success has status 200.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(name = "Evenkeel"),
    ),
    components(schemas(evenkeel_api::Problem)),
    modifiers(&Common),
    security(("bearer" = [])),
    tags(
        (name = "hosts", description = "The machines of the fleet."),
        (name = "instances", description = "What runs on hosts, and what should happen to it."),
        (name = "operating systems", description = "The catalogue of what nodes run or may run."),
        (name = "update policies", description = "What should run."),
        (name = "assignments", description = "What gets which policy, and how fast."),
        (name = "schedules", description = "When nodes may be changed."),
        (name = "pauses", description = "Where nothing new starts."),
        (name = "regions", description = "The parts of the world that sites lie in."),
        (name = "sites", description = "The places where hosts stand."),
        (name = "update runs", description = "What happened."),
        (name = "join tokens", description = "Leave for machines to join a project."),
        (name = "projects", description = "What belongs together and is seen by nobody else."),
        (name = "day zero", description = "What the first start of a machine takes."),
        (name = "absent", description = "What other programs do: lists without anything in them."),
    )
)]
struct Frame;

struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
        components.responses = crate::problem::documented();
    }
}

/// What the document says before any route is added.
pub fn frame() -> openapi::OpenApi {
    Frame::openapi()
}

/// The document of the whole API.
///
/// # Panics
/// Never: what the document is made of is JSON.
#[must_use]
pub fn document() -> openapi::OpenApi {
    let (_, document) = routes().split_for_parts();
    let mut json = serde_json::to_value(document).expect("a document is JSON");
    require_what_answers_carry(&mut json);
    require_nothing_of_changes(&mut json);
    serde_json::from_value(json).expect("it is still a document")
}

/// Answers carry every field, so each is required of them. Only the body of a request may leave fields out, with all that
/// stands in it, and a problem its last members.
fn require_what_answers_carry(document: &mut Value) {
    let mut asked = BTreeSet::from(["Problem".to_owned()]);
    if let Some(paths) = document["paths"].as_object() {
        for operation in paths
            .values()
            .filter_map(Value::as_object)
            .flat_map(|path| path.values())
        {
            names_in(&operation["requestBody"], &mut asked);
        }
    }
    let mut open: Vec<String> = asked.iter().cloned().collect();
    while let Some(name) = open.pop() {
        let mut inside = BTreeSet::new();
        names_in(
            &document["components"]["schemas"][name.as_str()],
            &mut inside,
        );
        open.extend(inside.into_iter().filter(|name| asked.insert(name.clone())));
    }
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else {
        return;
    };
    for (_, schema) in schemas
        .iter_mut()
        .filter(|(name, _)| !asked.contains(*name))
    {
        let Some(properties) = schema["properties"].as_object() else {
            continue;
        };
        let names: Vec<Value> = properties.keys().cloned().map(Value::from).collect();
        if !names.is_empty() {
            schema["required"] = Value::from(names);
        }
    }
}

/// A change may leave out whatever stays as it is. Where the same body makes something new, it has a schema of its own.
fn require_nothing_of_changes(document: &mut Value) {
    let schemas = document["components"]["schemas"].clone();
    let mut changes = Vec::new();
    let paths = document["paths"].as_object_mut();
    for path in paths.into_iter().flat_map(|paths| paths.values_mut()) {
        let Some(place) = path.pointer_mut(BODY_OF_CHANGE) else {
            continue;
        };
        let name = place.as_str().and_then(|text| text.strip_prefix(SCHEMAS));
        let Some(name) = name.map(str::to_owned) else {
            continue;
        };
        let mut schema = schemas[name.as_str()].clone();
        let members = schema.as_object_mut();
        if members.is_some_and(|members| members.remove("required").is_some()) {
            let name = name.replace("Input", "Change");
            *place = Value::from(format!("{SCHEMAS}{name}"));
            changes.push((name, schema));
        }
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.extend(changes);
    }
}

/// The names of the schemas that are referred to.
fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member.as_str().and_then(|text| text.rsplit('/').next()) {
                    Some(name) if key == "$ref" => {
                        names.insert(name.to_owned());
                    }
                    _ => names_in(member, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names_in(item, names)),
        _ => {}
    }
}
