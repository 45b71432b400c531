//! Examples of fields, parameters and types.

use serde_json::{Map, Value};

/// Examples by the name of a field, parameter or type. If a name has several meanings, the key has in
/// front of it the type of the field, the operation of the query parameter, or the part of the path
/// before the path parameter.
const EXAMPLES: &str = include_str!("examples.json");

/// Adds the examples to the schemas and parameters of a document.
pub fn add_examples(document: &mut Value) {
    let examples: Map<String, Value> =
        serde_json::from_str(EXAMPLES).expect("the examples are a JSON object");
    let add = |item: &mut Value, owner: &str, name: &str| {
        let own = examples.get(&format!("{owner}.{name}"));
        if let Some(example) = own.or_else(|| examples.get(name)) {
            item["example"] = example.clone();
        }
    };
    for (type_name, schema) in members(document.pointer_mut("/components/schemas")) {
        let first_value = schema.pointer("/enum/0").cloned();
        if let Some(example) = examples.get(type_name).cloned().or(first_value) {
            schema["example"] = example;
        }
        for (name, field) in members(schema.get_mut("properties")) {
            if !refers_to_schema(field) {
                add(field, type_name, name);
            }
        }
    }
    for (path, operations) in members(document.get_mut("paths")) {
        for (_, operation) in members(Some(operations)) {
            let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap_or_default().to_owned();
                let is_in_path = parameter["in"] == "path";
                let owner = if is_in_path { segment_before(path, &name) } else { id.as_str() };
                add(parameter, owner, &name);
            }
        }
    }
}

/// Whether a field has the example of another schema.
fn refers_to_schema(field: &Value) -> bool {
    field.get("$ref").is_some()
        || field.get("oneOf").is_some()
        || field.pointer("/items/$ref").is_some()
}

/// The part of a path before a parameter.
fn segment_before<'a>(path: &'a str, parameter: &str) -> &'a str {
    let before = path.split(&format!("/{{{parameter}}}")).next().unwrap_or_default();
    before.rsplit('/').next().unwrap_or_default()
}

/// The members of a JSON object, if it is one.
fn members(value: Option<&mut Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    value.and_then(Value::as_object_mut).into_iter().flatten()
}
