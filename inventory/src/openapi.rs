//! The OpenAPI document, generated from the code.

mod examples;
mod rules;

use std::collections::BTreeSet;

use serde_json::Value;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, openapi};

/// Prefix of a reference to a schema.
const SCHEMA_PREFIX: &str = "#/components/schemas/";

/// JSON pointer from a path item to the schema of its PATCH body.
const PATCH_SCHEMA_POINTER: &str = "/patch/requestBody/content/application~1json/schema/$ref";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Evenkeel",
        version = "v1",
        description = include_str!("openapi/description.md"),
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(name = "Evenkeel"),
    ),
    components(schemas(evenkeel_api::Problem)),
    modifiers(&Common),
    security(("bearer" = [])),
    tags(
        (name = "hosts", description = "The machines of the fleet."),
        (name = "instances", description = "The operating systems that run on hosts, and their updates."),
        (name = "operating systems", description = "The catalogue of operating systems."),
        (name = "update policies", description = "Desired updates and their rules."),
        (name = "assignments", description = "Policies assigned to instances, hosts, sites, regions or the project, with rollout limits."),
        (name = "schedules", description = "Maintenance windows in which nodes may be updated."),
        (name = "pauses", description = "Scopes in which no new updates start."),
        (name = "regions", description = "Regions, which contain sites and other regions."),
        (name = "sites", description = "Sites of hosts."),
        (name = "update runs", description = "Past and current updates."),
        (name = "changes", description = "Who changed what, as a list and as a stream."),
        (name = "join tokens", description = "Tokens with which machines join a project."),
        (name = "notifications", description = "Webhooks that receive the events of a project."),
        (name = "projects", description = "Isolated tenants."),
        (name = "operator tokens", description = "Tokens for this API."),
        (name = "users", description = "People who log in with a password."),
        (name = "day zero", description = "Resources for the provisioning of machines."),
        (name = "absent", description = "EIM features that Evenkeel does not have: always empty lists."),
    )
)]
struct BaseDocument;

struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
        components.responses = crate::problem::documented_responses();
    }
}

/// The document without routes.
pub fn base_document() -> openapi::OpenApi {
    BaseDocument::openapi()
}

/// Completes the document of all routes: which fields are required.
///
/// # Panics
/// Never: the document is always valid JSON.
pub fn complete(document: openapi::OpenApi) -> openapi::OpenApi {
    let mut json = serde_json::to_value(document).expect("a document is JSON");
    require_response_fields(&mut json);
    complete_descriptions(&mut json);
    examples::add_examples(&mut json);
    make_patch_fields_optional(&mut json);
    serde_json::from_value(json).expect("it is still a document")
}

/// Adds the general rules to the descriptions of operations, and moves the description of a field
/// that may be null from its type to the field.
fn complete_descriptions(document: &mut Value) {
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            if let Some(Value::String(description)) = operation.get_mut("description") {
                rules::add_rules(path, method, description);
            }
        }
    }
    let schemas = document["components"]["schemas"].as_object_mut();
    for schema in schemas.into_iter().flat_map(|schemas| schemas.values_mut()) {
        let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
        for field in fields.into_iter().flat_map(|fields| fields.values_mut()) {
            let inner = field.pointer_mut("/oneOf/0").and_then(Value::as_object_mut);
            if let Some(description) = inner.and_then(|inner| inner.remove("description")) {
                field["description"] = description;
            }
        }
    }
}

/// The only field of a response that may be absent.
const OPTIONAL_RESPONSE_FIELD: &str = "unreadableElements";

/// Marks all fields of responses as required, because responses always contain every other field.
/// Schemas that are used in request bodies, and the problem document, keep their optional fields.
fn require_response_fields(document: &mut Value) {
    let mut request_schemas = BTreeSet::from(["Problem".to_owned()]);
    if let Some(paths) = document["paths"].as_object() {
        for operation in paths.values().filter_map(Value::as_object).flat_map(|path| path.values())
        {
            collect_schema_names(&operation["requestBody"], &mut request_schemas);
        }
    }
    let mut open: Vec<String> = request_schemas.iter().cloned().collect();
    while let Some(name) = open.pop() {
        let mut inside = BTreeSet::new();
        collect_schema_names(&document["components"]["schemas"][name.as_str()], &mut inside);
        open.extend(inside.into_iter().filter(|name| request_schemas.insert(name.clone())));
    }
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else {
        return;
    };
    for (_, schema) in schemas.iter_mut().filter(|(name, _)| !request_schemas.contains(*name)) {
        let Some(properties) = schema["properties"].as_object() else {
            continue;
        };
        let names = properties.keys().filter(|name| *name != OPTIONAL_RESPONSE_FIELD);
        let names: Vec<Value> = names.cloned().map(Value::from).collect();
        if !names.is_empty() {
            schema["required"] = Value::from(names);
        }
    }
}

/// Makes all fields of PATCH bodies optional. If the same body also creates a resource, PATCH gets
/// a schema of its own.
fn make_patch_fields_optional(document: &mut Value) {
    let schemas = document["components"]["schemas"].clone();
    let mut changes = Vec::new();
    let paths = document["paths"].as_object_mut();
    for path in paths.into_iter().flat_map(|paths| paths.values_mut()) {
        let Some(reference) = path.pointer_mut(PATCH_SCHEMA_POINTER) else {
            continue;
        };
        let name = reference.as_str().and_then(|text| text.strip_prefix(SCHEMA_PREFIX));
        let Some(name) = name.map(str::to_owned) else {
            continue;
        };
        let mut schema = schemas[name.as_str()].clone();
        let members = schema.as_object_mut();
        if members.is_some_and(|members| members.remove("required").is_some()) {
            let name = name.replace("Input", "Change");
            *reference = Value::from(format!("{SCHEMA_PREFIX}{name}"));
            changes.push((name, schema));
        }
    }
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.extend(changes);
    }
}

/// Collects the names of the referenced schemas.
fn collect_schema_names(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match member.as_str().and_then(|text| text.rsplit('/').next()) {
                    Some(name) if key == "$ref" => {
                        names.insert(name.to_owned());
                    }
                    _ => collect_schema_names(member, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_schema_names(item, names)),
        _ => {}
    }
}
