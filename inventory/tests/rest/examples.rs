//! Summaries, descriptions and examples in the OpenAPI document.

use axum::http::StatusCode;
use chrono::DateTime;
use evenkeel_inventory::document;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::lists::percent_encode;
use crate::statuses::operations;
use crate::test_server::{Caller, TestServer, with_registries};

/// Schemas by name.
struct Schemas(Value);

impl Schemas {
    fn new() -> Self {
        let document = serde_json::to_value(document()).expect("JSON");
        Self(document["components"]["schemas"].clone())
    }

    /// The schema that a reference leads to.
    fn referenced(&self, schema: &Value) -> Option<&Value> {
        let name = schema["$ref"].as_str()?.rsplit('/').next()?;
        self.0.get(name)
    }

    /// The example of a schema, composed of those of its fields if it has none itself.
    fn example(&self, schema: &Value) -> Value {
        if let Some(example) = schema.get("example") {
            return example.clone();
        }
        if let Some(of) = self.referenced(schema).or_else(|| schema.pointer("/oneOf/0")) {
            return self.example(of);
        }
        if let Some(items) = schema.get("items") {
            return json!([self.example(items)]);
        }
        let fields = schema["properties"].as_object().expect("an object has fields");
        fields.iter().map(|(name, field)| (name.clone(), self.example(field))).collect()
    }

    /// Fails if a value does not match a schema.
    fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        if let Some(referenced) = self.referenced(schema) {
            return self.check(referenced, value);
        }
        if let Some(variants) = schema["oneOf"].as_array() {
            let is_one = variants.iter().any(|variant| self.check(variant, value).is_ok());
            return if is_one { Ok(()) } else { Err(format!("no variant allows {value}")) };
        }
        let type_name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let type_name = json!(type_name);
        let types = schema["type"].as_array();
        let is_of_type = types.map_or(schema["type"] == type_name, |t| t.contains(&type_name));
        let fits = match value {
            Value::Number(number) => {
                let bound = |name: &str, default| schema[name].as_i64().unwrap_or(default);
                let number = number.as_i64().ok_or("not a 64-bit integer")?;
                (bound("minimum", i64::MIN)..=bound("maximum", i64::MAX)).contains(&number)
            }
            Value::String(text) => text_fits(schema, text),
            Value::Array(items) => {
                items.iter().try_for_each(|item| self.check(&schema["items"], item))?;
                is_at_most(items.len(), &schema["maxItems"])
            }
            Value::Object(members) => {
                self.check_members(schema, members)?;
                true
            }
            Value::Null | Value::Bool(_) => true,
        };
        if fits && is_of_type {
            return Ok(());
        }
        Err(format!("{value} does not match {schema}"))
    }

    /// Checks the members of an object. An object without known fields may have any members.
    fn check_members(&self, schema: &Value, members: &Map<String, Value>) -> Result<(), String> {
        let Some(fields) = schema["properties"].as_object() else { return Ok(()) };
        for (name, value) in members {
            let field = fields.get(name).ok_or_else(|| format!("no field {name}"))?;
            self.check(field, value).map_err(|why| format!("{name}: {why}"))?;
        }
        let required = schema["required"].as_array().into_iter().flatten();
        let missing = required.filter_map(Value::as_str).find(|name| !members.contains_key(*name));
        missing.map_or(Ok(()), |name| Err(format!("{name} is missing")))
    }
}

/// Whether a field has an example, or refers to a schema, which has one.
fn has_example(field: &Value) -> bool {
    ["/example", "/$ref", "/oneOf/0/$ref", "/items/$ref"]
        .iter()
        .any(|pointer| field.pointer(pointer).is_some())
}

/// Whether a text matches the pattern, the length, the format and the values of a schema.
fn text_fits(schema: &Value, text: &str) -> bool {
    let length = text.chars().count();
    let pattern = schema["pattern"].as_str().map(|one| Regex::new(one).expect("a pattern"));
    let is_time = schema["format"] == "date-time";
    pattern.is_none_or(|pattern| pattern.is_match(text))
        && (length > 0 || schema.get("minLength").is_none())
        && is_at_most(length, &schema["maxLength"])
        && (!is_time || DateTime::parse_from_rfc3339(text).is_ok())
        && schema["enum"].as_array().is_none_or(|values| values.contains(&json!(text)))
}

/// Whether a length is within a limit, if there is one.
fn is_at_most(length: usize, limit: &Value) -> bool {
    limit.as_u64().is_none_or(|limit| u64::try_from(length).is_ok_and(|length| length <= limit))
}

fn is_described(item: &Value) -> bool {
    item["description"].as_str().is_some_and(|text| !text.is_empty())
}

#[test]
fn every_operation_and_parameter_is_described() {
    let schemas = Schemas::new();
    for (method, path, operation) in operations() {
        let summary = operation["summary"].as_str().unwrap_or_default();
        assert!((1..=60).contains(&summary.len()), "{method} {path}: summary {summary:?}");
        assert!(is_described(&operation), "{method} {path} has no description");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let what = format!("{method} {path}: {}", parameter["name"]);
            assert!(is_described(parameter), "{what} has no description");
            let example = parameter.get("example").unwrap_or(&Value::Null);
            let checked = schemas.check(&parameter["schema"], example);
            checked.unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }
}

#[test]
fn every_field_has_a_description_and_a_valid_example() {
    let schemas = Schemas::new();
    for (name, schema) in schemas.0.as_object().expect("schemas") {
        assert!(is_described(schema), "{name} has no description");
        let fields = schema["properties"].as_object().into_iter().flatten();
        for (field, schema) in fields {
            let what = format!("{name}.{field}");
            assert!(is_described(schema), "{what} has no description");
            assert!(has_example(schema), "{what} has no example: add one to examples.json");
            let Some(example) = schema.get("example") else { continue };
            schemas.check(schema, example).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
        if let Some(example) = schema.get("example") {
            schemas.check(schema, example).unwrap_or_else(|why| panic!("{name}: {why}"));
        } else {
            assert!(schema["properties"].is_object(), "{name} has no example");
        }
    }
}

#[test]
fn an_invalid_example_is_found() {
    let schemas = Schemas::new();
    for (name, bad) in [
        ("HostState", json!("HOST_STATE_SOLD")),
        ("U64", json!(1)),
        ("U64", json!("-1")),
        ("Timestamps", json!({"createdAt": "yesterday", "updatedAt": "2026-03-01T12:00:00Z"})),
        ("Timestamps", json!({"createdAt": "2026-03-01T12:00:00Z"})),
        ("SiteInput", json!({"siteLat": 900_000_001})),
        ("SiteInput", json!({"city": "ulm"})),
        ("SiteInput", json!({"metadata": [{"key": "", "value": ""}]})),
        ("OsSettings", json!({"registry": 1})),
    ] {
        assert!(schemas.check(&schemas.0[name], &bad).is_err(), "{name}: {bad}");
    }
}

/// The examples refer to resources that do not exist, so most of the requests are not successful.
#[tokio::test]
async fn no_example_is_an_invalid_argument() {
    let server = TestServer::with_settings(with_registries()).await;
    let schemas = Schemas::new();
    let mut accepted = 0;
    for (method, path, operation) in operations().into_iter().filter(|(m, ..)| m != "DELETE") {
        let mut path = path.replace("{projectName}", "ours");
        let mut query = Vec::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().expect("a name");
            let text = parameter["example"].to_string();
            let text = parameter["example"].as_str().unwrap_or(&text);
            path = path.replace(&format!("{{{name}}}"), text);
            // These exclude other parameters.
            let is_alone = ["pageToken", "siteId", "regionId", "cursor"].contains(&name);
            if parameter["in"] == "query" && !is_alone {
                query.push(format!("{name}={}", percent_encode(text)));
            }
        }
        let schema = operation.pointer("/requestBody/content/application~1json/schema");
        let mut body = schema.map(|schema| schemas.example(schema));
        if let Some(members) = body.as_mut().and_then(Value::as_object_mut) {
            // It excludes `url`.
            members.remove("emailAddresses");
        }
        let what = format!("{method} {path}?{}", query.join("&"));
        let administrator = server.client_of(Caller::Administrator);
        let (status, answer) = administrator.request(&what, body.clone()).await;
        assert_ne!(answer["code"], "InvalidArgument", "{what} {body:?}: {answer}");
        assert!(!status.is_server_error(), "{what}: {answer}");
        accepted += usize::from(status == StatusCode::OK);
    }
    assert!(accepted > 35, "only {accepted} requests were accepted");
}
