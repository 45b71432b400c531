//! Null and empty values. Clients of EIM read some fields without checking that they exist, and
//! compare others with null.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::StatusCode;
use evenkeel_domain::run::{Origin, RunEvent, RunEventRecord, RunTimeouts};
use evenkeel_kit::Clock;
use evenkeel_store::runs::{self, RunOpening, Subject};
use serde_json::{Value, json};

use crate::statuses::{operations, required_query};
use crate::test_server::{Caller, SSH_KEY, TestServer, has_id_placeholder, resource_id};

/// The kind of a value, as far as clients distinguish it.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(boolean) => boolean.to_string(),
        Value::Number(number) if number.as_i64() == Some(0) => "0".to_owned(),
        Value::Number(_) => "number".to_owned(),
        // Unspecified enumeration values, and 64-bit numbers as text.
        Value::String(text) if text.ends_with("_UNSPECIFIED") || text == "0" => {
            format!("{text:?}")
        }
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(_) => "list".to_owned(),
        Value::Object(members) if members.get("resourceId") == Some(&json!("")) => {
            "object without content".to_owned()
        }
        Value::Object(_) => "object".to_owned(),
    }
}

/// The kinds of all members of a value, one a line.
fn kinds(value: &Value) -> String {
    let mut lines = String::new();
    describe(value, 1, &mut lines);
    lines
}

fn describe(value: &Value, depth: usize, lines: &mut String) {
    let members: Vec<(&str, &Value)> = match value {
        Value::Object(members) => {
            members.iter().map(|(name, member)| (name.as_str(), member)).collect()
        }
        Value::Array(items) => items.iter().map(|item| ("-", item)).take(1).collect(),
        _ => Vec::new(),
    };
    for (name, member) in members {
        let indent = "  ".repeat(depth);
        writeln!(lines, "{indent}{name}: {}", kind(member)).expect("a string");
        describe(member, depth + 1, lines);
    }
}

/// Creates a resource and returns it as its path shows it. The list must show the same kinds.
async fn create(server: &TestServer, (list, key): (&str, &str), body: Value) -> Value {
    let path = match list {
        "compute/hosts" => "compute/hosts/register",
        list => list,
    };
    let id = resource_id(&server.post(path, body).await);
    let fetched = server.get(&format!("{list}/{id}")).await;
    let all = server.get(list).await;
    let mut all = all[key].as_array().expect("a list").iter();
    let listed = all.find(|item| item["resourceId"] == id.as_str());
    assert_eq!(kinds(listed.expect("it is listed")), kinds(&fetched), "{list}");
    fetched
}

/// Creates each resource with only the required fields.
async fn create_minimal(server: &TestServer) -> BTreeMap<&'static str, Value> {
    let mut minimal = BTreeMap::new();
    let status = "SCHEDULE_STATUS_MAINTENANCE";
    let none = "0".repeat(64);
    for (name, list, body) in [
        ("region", ("regions", "regions"), json!({})),
        ("site", ("sites", "sites"), json!({})),
        ("host", ("compute/hosts", "hosts"), json!({"serialNumber": "FIRST"})),
        (
            "operating system",
            ("compute/os", "OperatingSystemResources"),
            json!({"sha256": none, "osType": "OS_TYPE_MUTABLE"}),
        ),
        (
            "update policy",
            ("os-update-policies", "osUpdatePolicies"),
            json!({"name": "all", "updatePolicy": "UPDATE_POLICY_LATEST"}),
        ),
        (
            "single schedule",
            ("schedules/single", "singleSchedules"),
            json!({"scheduleStatus": status, "startSeconds": server.seconds(60)}),
        ),
        (
            "repeated schedule",
            ("schedules/repeated", "repeatedSchedules"),
            json!({
                "scheduleStatus": status, "durationSeconds": 60, "cronMinutes": "0", "cronHours": "*",
                "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "*",
            }),
        ),
        (
            "provider",
            ("providers", "providers"),
            json!({"providerKind": "PROVIDER_KIND_BAREMETAL", "name": "a", "apiEndpoint": "x"}),
        ),
        ("custom config", ("customConfigs", "customConfigs"), json!({"name": "a", "config": "#"})),
        (
            "local account",
            ("localAccounts", "localAccounts"),
            json!({"username": "a", "sshKey": SSH_KEY}),
        ),
        ("join token", ("join-tokens", "joinTokens"), json!({})),
    ] {
        minimal.insert(name, create(server, list, body).await);
    }
    add_running_instance(server, &mut minimal).await;
    minimal
}

/// Adds an instance on its own host, a run of it without a policy, and then an assignment, a pause
/// and an order.
async fn add_running_instance(server: &TestServer, minimal: &mut BTreeMap<&'static str, Value>) {
    let hosts = ("compute/hosts", "hosts");
    let host = resource_id(&create(server, hosts, json!({"serialNumber": "SECOND"})).await);
    let instance = json!({"hostID": host, "osID": minimal["operating system"]["resourceId"]});
    let instances = ("compute/instances", "instances");
    let instance = create(server, instances, instance).await;
    let id = resource_id(&instance);
    let get = async |path: &str| server.get(path).await;
    let put = async |path: &str, body| server.put(path, body).await;
    let run = open_run(server, &id).await;

    minimal.insert("instance", instance);
    minimal.insert("used host", get(&format!("compute/hosts/{host}")).await);
    minimal.insert("update run", get(&format!("os-update-runs/{run}")).await);
    let order = format!("compute/instances/{id}/order");
    let decision = format!("compute/instances/{id}/decision");
    minimal.insert("decision", get(&decision).await);
    minimal.insert("settings", get("settings").await);
    for (name, path) in [
        ("catalogue settings", "os-catalogue/settings"),
        ("catalogue sync", "os-catalogue/sync"),
        ("catalogue report", "os-catalogue/report"),
    ] {
        minimal.insert(name, get(path).await);
    }
    minimal.insert("host summary", get("compute/hosts/summary").await);
    let policy = json!({"osUpdatePolicyId": minimal["update policy"]["resourceId"]});
    minimal.insert("assignment", put("assignments/project", policy).await);
    minimal.insert("pause", put("pauses/project", json!({})).await);
    minimal.insert("order", put(&order, json!({"kind": "cancel"})).await);
    for (name, path) in [("project", "/v1/projects/ours"), ("orchestrator", "/v1/orchestrator")] {
        let answer = server.client_of(Caller::Reader).get(path).await;
        minimal.insert(name, answer);
    }
}

/// Opens a run of an EIM agent that started without a grant, and returns its id.
pub async fn open_run(server: &TestServer, instance: &str) -> String {
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let opening = RunOpening {
        instance: instance.parse().expect("an id"),
        name: "update".to_owned(),
        description: String::new(),
        attempt: None,
        origin: Origin { target: None, policy: None, order: None },
        follows: None,
        assignment: None,
    };
    let (new, began) =
        (Subject::New(Box::new(opening)), RunEventRecord::from_event(RunEvent::Began));
    let now = server.clock.now();
    let run = runs::advance(&tx, new, &began, &RunTimeouts::default(), now).await;
    let run = run.expect("it opens").id.to_string();
    tx.commit().await.expect("committed");
    run
}

#[tokio::test]
async fn minimal_resources_have_every_field() {
    let server = TestServer::new().await;
    let mut table = String::new();
    for (name, fetched) in create_minimal(&server).await {
        writeln!(table, "{name}\n{}", kinds(&fetched)).expect("a string");
    }
    insta::assert_snapshot!(table.trim_end());
}

const NO_CONTENT: &str = "object without content";

/// Resource, JSON pointer and kind of the value that a resource with the minimal input shows.
const ABSENT_VALUES: &[(&str, &str, &str)] = &[
    ("host", "/site", "null"),
    ("host", "/provider", "null"),
    ("host", "/instance", "null"),
    ("host", "/siteId", "\"\""),
    ("host", "/memoryBytes", "\"0\""),
    ("host", "/hostNics", "[]"),
    ("used host", "/instance", "object"),
    ("used host", "/instance/host", "null"),
    ("used host", "/instance/workloadMembers", "[]"),
    ("instance", "/host", "object"),
    ("instance", "/host/instance", "null"),
    ("instance", "/os", "object"),
    ("instance", "/localaccount", "null"),
    ("instance", "/updatePolicy", "null"),
    ("instance", "/customConfig", "[]"),
    ("instance", "/customConfigID", "[]"),
    ("instance", "/workloadMembers", "[]"),
    ("instance", "/slots", "[]"),
    ("instance", "/badImages", "[]"),
    ("instance", "/localAccountID", "\"\""),
    ("instance", "/osUpdatePolicyID", "\"\""),
    ("update policy", "/targetOs", "null"),
    ("update policy", "/targetOsId", "\"\""),
    ("region", "/parentRegion", NO_CONTENT),
    ("region", "/parentRegion/parentRegion", "null"),
    ("region", "/parentRegion/timestamps", "null"),
    ("region", "/parentId", "\"\""),
    ("site", "/region", NO_CONTENT),
    ("site", "/region/parentRegion", "null"),
    ("site", "/region/timestamps", "null"),
    ("site", "/regionId", "\"\""),
    ("site", "/provider", "null"),
    ("update run", "/appliedPolicy", NO_CONTENT),
    ("update run", "/appliedPolicy/targetOs", "null"),
    ("update run", "/appliedPolicy/timestamps", "null"),
    ("update run", "/instance", "object"),
    ("update run", "/instance/host", "null"),
    ("update run", "/instance/os", "null"),
    ("update run", "/instance/workloadMembers", "[]"),
    ("update run", "/image", "null"),
    ("update run", "/endTime", "0"),
    ("update run", "/startTime", "number"),
    ("single schedule", "/endSeconds", "0"),
    ("operating system", "/name", "\"\""),
    ("operating system", "/signature", "null"),
    ("operating system", "/imageSignatures", "[]"),
];

#[tokio::test]
async fn absent_values_are_null_or_empty_as_clients_expect() {
    let server = TestServer::new().await;
    let minimal = create_minimal(&server).await;
    for (resource, pointer, expected) in ABSENT_VALUES {
        let value = minimal[*resource].pointer(pointer);
        let value = value.unwrap_or_else(|| panic!("{resource} has no {pointer}"));
        assert_eq!(kind(value), *expected, "{resource}{pointer}");
    }
    for schedule in ["single schedule", "repeated schedule"] {
        for target in ["Host", "Site", "Region"] {
            let fetched = &minimal[schedule];
            assert_eq!(fetched[format!("target{target}")], Value::Null, "{schedule}");
            assert_eq!(fetched[format!("target{target}Id")], "", "{schedule}");
        }
    }
    for (name, fetched) in minimal.iter().filter(|(_, it)| it.get("timestamps").is_some()) {
        for member in ["createdAt", "updatedAt"] {
            assert_eq!(kind(&fetched["timestamps"][member]), "text", "{name}");
        }
    }
}

#[tokio::test]
async fn related_resources_are_nested_as_deep_as_clients_expect() {
    let (server, resources) = TestServer::with_resources().await;
    let image = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": resources.os});
    let image = resource_id(&server.post("os-update-policies", image).await);
    let inner = json!({"parentId": resources.region});
    let inner = resource_id(&server.post("regions", inner).await);
    let site = format!("sites/{}", resources.site);
    let region = format!("regions/{inner}");
    let policy = format!("os-update-policies/{image}");
    let host = format!("compute/hosts/{}", resources.host);
    let instance = format!("compute/instances/{}", resources.instance);
    let run = format!("os-update-runs/{}", resources.run);
    let single = format!("schedules/single/{}", resources.schedule);
    let repeated = format!("schedules/repeated/{}", resources.repeated);
    for (path, pointer, expected) in [
        (&site, "/region", "object"),
        (&site, "/region/parentRegion", "object without content"),
        (&region, "/parentRegion", "object"),
        (&region, "/parentRegion/parentRegion", "null"),
        (&policy, "/targetOs", "object"),
        (&policy, "/targetOsId", "\"\""),
        (&host, "/site", "object"),
        (&host, "/site/region", "object"),
        (&host, "/instance/host", "null"),
        (&host, "/instance/os", "object"),
        (&instance, "/updatePolicy", "object"),
        (&instance, "/updatePolicy/targetOs", "null"),
        (&instance, "/osUpdatePolicyID", "\"\""),
        (&instance, "/hostID", "text"),
        (&instance, "/host/site/region", "object"),
        (&run, "/appliedPolicy", "object"),
        (&run, "/instance/host", "null"),
        (&single, "/targetHost", "object"),
        (&single, "/targetHost/instance", "null"),
        (&single, "/targetSite", "null"),
        (&repeated, "/targetSite", "object"),
    ] {
        let value = server.get(path).await;
        let value = value.pointer(pointer).map(kind);
        assert_eq!(value.as_deref(), Some(expected), "{path}{pointer}");
    }
}

#[tokio::test]
async fn every_response_is_json_and_every_list_has_its_total() {
    let (server, resources) = TestServer::with_resources().await;
    server.seed_update_controls(&resources).await;
    let mut lists = 0;
    for (method, path, operation) in operations() {
        // The change that `resources` has belongs to a project.
        if method != "GET" || path == "/v1/changes/{changeId}" {
            continue;
        }
        let is_for_administrators = ["/v1/operator-tokens", "/v1/users", "/v1/changes"]
            .iter()
            .any(|prefix| path.starts_with(prefix));
        let caller = if is_for_administrators { Caller::Administrator } else { Caller::Reader };
        let client = server.client_of(caller);
        let what = format!("GET {}{}", resources.fill(&path, "ours"), required_query(&operation));
        let answer = client.call(&what, None).await;
        assert_eq!(answer.headers["content-type"], "application/json", "{what}");
        let (status, answer) = answer.json();
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        let is_list = answer.get("totalElements").is_some() && answer.get("nodes").is_none();
        if has_id_placeholder(&path) || !is_list {
            continue;
        }
        lists += 1;
        assert!(answer["totalElements"].is_u64(), "{what}: {answer}");
        assert!(answer["hasNext"].is_boolean(), "{what}: {answer}");
        let members = answer.as_object().expect("an object");
        assert!(members.values().any(Value::is_array), "{what}: {answer}");
        assert!(!members.values().any(Value::is_null), "{what}: {answer}");
    }
    assert!(lists > 20, "only {lists} lists");
}
