//! The OpenAPI document.

use std::path::Path;

use evenkeel_inventory::document;

#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
fn the_committed_document_is_current() {
    let fresh = document().to_pretty_json().expect("JSON") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &fresh).expect("written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        fresh == committed,
        "run `UPDATE_GENERATED=1 cargo test -p evenkeel-inventory` and commit inventory/openapi.json"
    );
}

#[test]
fn the_document_lists_every_operation_once() {
    let document = serde_json::to_value(document()).expect("JSON");
    let mut lines = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let id = operation["operationId"].as_str().expect("an id");
            lines.push(format!("{:<6} {path} {id}", method.to_uppercase()));
        }
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn responses_require_every_field_and_requests_only_the_mandatory_fields() {
    let document = serde_json::to_value(document()).expect("JSON");
    let schemas = &document["components"]["schemas"];
    let required = |name: &str| schemas[name]["required"].as_array().map_or(0, Vec::len);
    let properties =
        |name: &str| schemas[name]["properties"].as_object().map_or(0, serde_json::Map::len);
    for answer in
        ["HostResource", "InstanceResource", "OSUpdateRun", "SingleScheduleResource", "Decision"]
    {
        assert!(properties(answer) > 5, "{answer}");
        assert_eq!(required(answer), properties(answer), "{answer}");
    }
    assert_eq!(schemas["OperatingSystemInput"]["required"], serde_json::json!(["sha256"]));
    assert_eq!(schemas["OperatingSystemInput"]["additionalProperties"], false);
    assert_eq!(schemas["HostRegister"].get("required"), None);
}

#[test]
fn nested_inputs_and_changes_require_only_the_mandatory_fields() {
    let document = serde_json::to_value(document()).expect("JSON");
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["PackageRulesInput"].get("required"), None);
    assert_eq!(schemas["AssignmentInput"]["required"], serde_json::json!(["osUpdatePolicyId"]));
    let change = &document["paths"]["/v1/projects/{projectName}/assignments/{target}"]["patch"];
    assert_eq!(
        change["requestBody"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/AssignmentChange"
    );
    assert_eq!(schemas["AssignmentChange"].get("required"), None);
    assert!(schemas["AssignmentChange"]["properties"].is_object());
}
