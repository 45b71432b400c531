//! What is null and what is empty. Clients of the ancestor read fields without asking whether they are there, and ask
//! of others whether they are null (northbound sections 1.3 and 5.3).

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::http::StatusCode;
use evenkeel_domain::run::{Happening, Origin, Patience, RunEvent};
use evenkeel_kit::Clock;
use evenkeel_store::runs::{self, Opening, Subject};
use serde_json::{Value, json};

use crate::house::{House, KEY, Who, id_of, names_a_thing, read};
use crate::statuses::{operations, query};

/// What kind of value it is: what clients tell apart.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) if number.as_i64() == Some(0) => "0".to_owned(),
        Value::Number(_) => "number".to_owned(),
        // Enumerations that say nothing, and 64 bits as text.
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

/// The kinds of all that is in a value, one a line.
fn kinds(value: &Value) -> String {
    let mut lines = String::new();
    describe(value, 1, &mut lines);
    lines
}

fn describe(value: &Value, depth: usize, lines: &mut String) {
    let members: Vec<(&str, &Value)> = match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.as_str(), member))
            .collect(),
        Value::Array(items) => items.iter().map(|item| ("-", item)).take(1).collect(),
        _ => Vec::new(),
    };
    for (name, member) in members {
        let indent = "  ".repeat(depth);
        writeln!(lines, "{indent}{name}: {}", kind(member)).expect("a string");
        describe(member, depth + 1, lines);
    }
}

/// What is made with this body, as it is shown. The list shows it no other way.
async fn made(house: &House, (list, key): (&str, &str), body: Value) -> Value {
    let path = match list {
        "compute/hosts" => "compute/hosts/register",
        list => list,
    };
    let id = id_of(&house.ok(&format!("POST {path}"), Some(body)).await);
    let shown = house.ok(&format!("GET {list}/{id}"), None).await;
    let all = house.ok(&format!("GET {list}"), None).await;
    let mut all = all[key].as_array().expect("a list").iter();
    let listed = all.find(|one| one["resourceId"] == id.as_str());
    assert_eq!(
        kinds(listed.expect("it is listed")),
        kinds(&shown),
        "{list}"
    );
    shown
}

/// Everything that can be made, with the least that is required.
async fn least(house: &House) -> BTreeMap<&'static str, Value> {
    let mut least = BTreeMap::new();
    let status = "SCHEDULE_STATUS_MAINTENANCE";
    let none = "0".repeat(64);
    for (name, list, body) in [
        ("region", ("regions", "regions"), json!({})),
        ("site", ("sites", "sites"), json!({})),
        (
            "host",
            ("compute/hosts", "hosts"),
            json!({"serialNumber": "FIRST"}),
        ),
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
            json!({"scheduleStatus": status, "startSeconds": house.seconds(60)}),
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
            json!({"providerKind": "PROVIDER_KIND_BAREMETAL", "name": "a", "apiEndpoint": ""}),
        ),
        (
            "custom config",
            ("customConfigs", "customConfigs"),
            json!({"name": "a", "config": "#"}),
        ),
        (
            "local account",
            ("localAccounts", "localAccounts"),
            json!({"username": "a", "sshKey": KEY}),
        ),
        ("join token", ("join-tokens", "joinTokens"), json!({})),
    ] {
        least.insert(name, made(house, list, body).await);
    }
    running(house, &mut least).await;
    least
}

/// An instance on a host of its own, a run of it that no policy asked for, and then what can be wanted of it.
async fn running(house: &House, least: &mut BTreeMap<&'static str, Value>) {
    let hosts = ("compute/hosts", "hosts");
    let host = id_of(&made(house, hosts, json!({"serialNumber": "SECOND"})).await);
    let instance = json!({"hostID": host, "osID": least["operating system"]["resourceId"]});
    let instances = ("compute/instances", "instances");
    let instance = made(house, instances, instance).await;
    let id = id_of(&instance);
    let get = async |path: &str| house.ok(&format!("GET {path}"), None).await;
    let put = async |path: &str, body| house.ok(&format!("PUT {path}"), Some(body)).await;
    let run = open(house, &id).await;

    least.insert("instance", instance);
    least.insert("used host", get(&format!("compute/hosts/{host}")).await);
    least.insert("update run", get(&format!("os-update-runs/{run}")).await);
    let order = format!("compute/instances/{id}/order");
    let decision = format!("compute/instances/{id}/decision");
    least.insert("decision", get(&decision).await);
    least.insert("settings", get("settings").await);
    for (name, path) in [
        ("catalogue settings", "os-catalogue/settings"),
        ("catalogue sync", "os-catalogue/sync"),
        ("catalogue report", "os-catalogue/report"),
    ] {
        least.insert(name, get(path).await);
    }
    least.insert("host summary", get("compute/hosts/summary").await);
    let policy = json!({"osUpdatePolicyId": least["update policy"]["resourceId"]});
    least.insert("assignment", put("assignments/project", policy).await);
    least.insert("pause", put("pauses/project", json!({})).await);
    least.insert("order", put(&order, json!({"kind": "cancel"})).await);
    for (name, path) in [
        ("project", "/v1/projects/ours"),
        ("orchestrator", "/v1/orchestrator"),
    ] {
        let (status, shown) = house.ask(Who::Reader, &format!("GET {path}"), None).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        least.insert(name, shown);
    }
}

/// A run that has just begun, of an agent of the ancestor that nobody told to begin: its id.
async fn open(house: &House, instance: &str) -> String {
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    let opening = Opening {
        instance: instance.parse().expect("an id"),
        name: "update".to_owned(),
        description: String::new(),
        attempt: None,
        origin: Origin {
            target: None,
            policy: None,
            order: None,
        },
        follows: None,
    };
    let (new, began) = (
        Subject::New(Box::new(opening)),
        Happening::of(RunEvent::Began),
    );
    let now = house.clock.now();
    let run = runs::advance(&tx, new, &began, &Patience::default(), now).await;
    let run = run.expect("it opens").id.to_string();
    tx.commit().await.expect("committed");
    run
}

#[tokio::test]
async fn what_is_made_with_the_least_shows_every_field() {
    let house = House::new().await;
    let mut table = String::new();
    for (name, shown) in least(&house).await {
        writeln!(table, "{name}\n{}", kinds(&shown)).expect("a string");
    }
    insta::assert_snapshot!(table.trim_end());
}

#[tokio::test]
async fn what_is_not_there_is_null_or_empty_as_clients_expect() {
    let house = House::new().await;
    let least = least(&house).await;
    let nowhere = "object without content";
    for (resource, place, wanted) in [
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
        ("region", "/parentRegion", nowhere),
        ("region", "/parentRegion/parentRegion", "null"),
        ("region", "/parentRegion/timestamps", "null"),
        ("region", "/parentId", "\"\""),
        ("site", "/region", nowhere),
        ("site", "/region/parentRegion", "null"),
        ("site", "/region/timestamps", "null"),
        ("site", "/regionId", "\"\""),
        ("site", "/provider", "null"),
        ("update run", "/appliedPolicy", nowhere),
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
    ] {
        let shown = least[resource].pointer(place);
        let shown = shown.unwrap_or_else(|| panic!("{resource} has no {place}"));
        assert_eq!(kind(shown), wanted, "{resource}{place}");
    }
    for schedule in ["single schedule", "repeated schedule"] {
        for target in ["Host", "Site", "Region"] {
            let shown = &least[schedule];
            assert_eq!(shown[format!("target{target}")], Value::Null, "{schedule}");
            assert_eq!(shown[format!("target{target}Id")], "", "{schedule}");
        }
    }
    for (name, shown) in least
        .iter()
        .filter(|(_, it)| it.get("timestamps").is_some())
    {
        for member in ["createdAt", "updatedAt"] {
            assert_eq!(kind(&shown["timestamps"][member]), "text", "{name}");
        }
    }
}

#[tokio::test]
async fn what_is_there_is_shown_as_deep_as_clients_expect() {
    let house = House::new().await;
    let things = house.furnish().await;
    let image =
        json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": things.os});
    let image = id_of(&house.ok("POST os-update-policies", Some(image)).await);
    let inner = json!({"parentId": things.region});
    let inner = id_of(&house.ok("POST regions", Some(inner)).await);
    let site = format!("sites/{}", things.site);
    let region = format!("regions/{inner}");
    let policy = format!("os-update-policies/{image}");
    let host = format!("compute/hosts/{}", things.host);
    let instance = format!("compute/instances/{}", things.instance);
    let run = format!("os-update-runs/{}", things.run);
    let single = format!("schedules/single/{}", things.schedule);
    let repeated = format!("schedules/repeated/{}", things.repeated);
    for (path, place, wanted) in [
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
        let shown = house.ok(&format!("GET {path}"), None).await;
        let shown = shown.pointer(place).map(kind);
        assert_eq!(shown.as_deref(), Some(wanted), "{path}{place}");
    }
}

#[tokio::test]
async fn every_answer_is_json_and_every_list_says_how_much_there_is() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.want(&things).await;
    let token = house.token(Who::Reader);
    let mut lists = 0;
    for (method, path, operation) in operations() {
        if method != "GET" {
            continue;
        }
        let what = format!("GET {}{}", things.fill(&path, "ours"), query(&operation));
        let answer = house.ask_with(token.as_deref(), None, &what, None).await;
        assert_eq!(
            answer.headers()["content-type"],
            "application/json",
            "{what}"
        );
        let (status, answer) = read(answer).await;
        assert_eq!(status, StatusCode::OK, "{what}: {answer}");
        let is_list = answer.get("totalElements").is_some() && answer.get("nodes").is_none();
        if names_a_thing(&path) || !is_list {
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
