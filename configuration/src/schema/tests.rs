use super::*;
use crate::native::parse;
use crate::states::read_desired;
use crate::validation::ErrorList;

/// Follows the reference of a schema, if it has one.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(path) => {
            let name = path.strip_prefix(DEFINITIONS).unwrap_or_else(|| panic!("{path}"));
            &root["$defs"][name]
        }
        None => schema,
    }
}

/// The first place in which a value does not fit a schema. Checks the keywords that schemas of
/// documents use.
fn mismatch(root: &Value, schema: &Value, value: &Value, path: &str) -> Option<String> {
    let schema = resolve(root, schema);
    if let Some(alternatives) = schema["oneOf"].as_array() {
        let results = alternatives.iter().map(|schema| mismatch(root, schema, value, path));
        let count = results.filter(Option::is_none).count();
        return (count != 1).then(|| format!("{path}: {count} alternatives fit"));
    }
    let is_type = |name: &str| match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(_) => name == "integer",
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    };
    let types = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(name) => vec![name.as_str()],
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.into_iter().any(is_type) {
        return Some(format!("{path}: {} expected", schema["type"]));
    }
    let is_other = schema.get("const").is_some_and(|constant| constant != value);
    if is_other || schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Some(format!("{path}: {value} is not accepted"));
    }
    match value {
        Value::Array(items) => {
            let check = |(index, item): (usize, &Value)| {
                mismatch(root, &schema["items"], item, &format!("{path}[{index}]"))
            };
            items.iter().enumerate().find_map(check)
        }
        Value::Object(fields) => object_mismatch(root, schema, fields, path),
        _ => None,
    }
}

fn object_mismatch(
    root: &Value,
    schema: &Value,
    fields: &Map<String, Value>,
    path: &str,
) -> Option<String> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required {
        if !fields.contains_key(name) {
            return Some(format!("{path}: {name} is missing"));
        }
    }
    fields.iter().find_map(|(name, field)| {
        let path = format!("{path}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(property), _) => mismatch(root, property, field, &path),
            (None, values @ Value::Object(_)) => mismatch(root, values, field, &path),
            (None, _) => Some(format!("{path}: unknown")),
        }
    })
}

const SAMPLE: &str = include_str!("../native/tests/samples/document.json");

#[test]
fn the_schema_accepts_documents() {
    let schema = json_schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let sample: Value = serde_json::from_str(SAMPLE).unwrap();
    assert_eq!(mismatch(&schema, &schema, &sample, ""), None);
    let written = serde_json::to_value(parse(SAMPLE).unwrap()).unwrap();
    assert_eq!(mismatch(&schema, &schema, &written, ""), None);
}

#[test]
fn the_schema_refuses_fields_of_other_components() {
    let schema = json_schema();
    let refused = |entry: Value| {
        let document = json!({"bundles": [{"name": "b", "entries": [entry]}]});
        mismatch(&schema, &schema, &document, "").is_some()
    };
    let entry = |component: &str, desired: Value| {
        let fields = [("component", component.into()), ("name", "n".into()), ("desired", desired)];
        Value::from_iter(fields)
    };
    assert!(!refused(entry("Sysctl", json!({"value": "1"}))));
    assert!(!refused(entry("Package", json!({}))));
    assert!(!refused(json!({"component": "File", "name": "/a"})));
    assert!(!refused(entry("File", json!({"mode": "0644"}))));
    assert!(!refused(entry("File", json!({"mode": 420}))));
    assert!(refused(entry("Package", json!({"value": "1"}))));
    assert!(refused(entry("Files", json!({}))));
    assert!(refused(json!({"component": "Sysctl", "name": "vm.a"})));
    assert!(refused(entry("File", json!({"type": "link"}))));
    assert!(refused(entry("File", json!({"content": {"inlin": "a"}}))));
}

#[test]
fn the_schema_has_all_components_with_the_fields_that_are_read() {
    let schema = json_schema();
    let entries = schema["$defs"]["Entry"]["oneOf"].as_array().unwrap();
    for (component, entry) in Component::ALL.into_iter().zip(entries) {
        assert_eq!(entry["properties"]["component"]["const"], component.name());
        assert_eq!(entry["additionalProperties"], false);
        let state = resolve(&schema, &entry["properties"]["desired"]);
        let properties = state["properties"].as_object().unwrap();
        let expected: Vec<String> = properties.keys().cloned().collect();
        assert_eq!(read_fields(component), expected, "{component}");
        let required = state["required"].as_array().is_some_and(|names| !names.is_empty());
        assert_eq!(required, has_required_fields(component), "{component}");
    }
    assert_eq!(entries.len(), Component::ALL.len());
}

/// The fields of a component in alphabetical order, from the message for an unknown field.
fn read_fields(component: Component) -> Vec<String> {
    let mut errors = ErrorList::default();
    let fields = json!({"unknown field": 1}).into();
    read_desired(component, String::new(), Some(fields), &mut errors);
    let errors = errors.into_errors();
    let message = &errors.last().unwrap().message;
    let (_, names) = message.split_once("Accepted: ").unwrap();
    let mut names: Vec<String> =
        names.trim_end_matches('.').split(", ").map(str::to_owned).collect();
    names.sort_unstable();
    names
}

#[test]
fn every_object_of_the_schema_is_described_and_closed() {
    for (name, definition) in json_schema()["$defs"].as_object().unwrap() {
        let is_described = definition["description"].is_string();
        assert!(is_described || name == "FileMode", "{name} has no description");
        if definition["type"] == "object" {
            assert_eq!(definition["additionalProperties"], false, "{name}");
        }
    }
    let text = json_schema().to_string();
    assert!(!text.contains("#/components/") && !text.contains("int32"), "{text}");
}
