//! Providers, configuration of first starts, accounts; and the lists of what is not there.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use crate::house::{House, UUID, Who, os_body, read};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1L ann@edge";

fn provider() -> Value {
    json!({
        "providerKind": "PROVIDER_KIND_BAREMETAL", "providerVendor": "PROVIDER_VENDOR_LENOVO_LOCA", "name": "LOCA 1",
        "apiEndpoint": "https://loca/api", "apiCredentials": ["user", "pass|word"], "config": "{\"autoProvision\":true}",
    })
}

fn config() -> Value {
    json!({"name": "ntp", "description": "of all", "config": "#cloud-config\nntp: {}\n"})
}

fn account() -> Value {
    json!({"username": "ann", "sshKey": KEY})
}

/// Of each kind: its list, what is made, its other id if it has one, and what it is called.
fn kinds() -> [(&'static str, Value, Option<&'static str>, &'static str); 3] {
    [
        (
            "providers",
            provider(),
            Some("providerID"),
            "provider_resource",
        ),
        ("customConfigs", config(), None, "custom_config_resource"),
        (
            "localAccounts",
            account(),
            Some("localAccountID"),
            "local_account_resource",
        ),
    ]
}

#[tokio::test]
async fn each_is_made_read_listed_and_deleted_and_never_changed() {
    let house = House::new().await;
    for (list, body, alias, what) in kinds() {
        let made = house.ok(&format!("POST {list}"), Some(body.clone())).await;
        let id = made["resourceId"].as_str().expect("an id").to_owned();
        let mut wanted = body.clone();
        wanted["resourceId"] = json!(id);
        let noon = "2026-03-01T12:00:00Z";
        wanted["timestamps"] = json!({"createdAt": noon, "updatedAt": noon});
        if let Some(alias) = alias {
            wanted[alias] = json!(id);
        }
        assert_eq!(made, wanted);
        let one = format!("{list}/{id}");
        assert_eq!(house.ok(&format!("GET {one}"), None).await, made);
        let all = json!({list: [made], "totalElements": 1, "hasNext": false, "nextPageToken": ""});
        assert_eq!(house.ok(&format!("GET {list}"), None).await, all);
        let page = house.ok(&format!("GET {list}?pageSize=5"), None).await;
        assert_eq!(page, all);

        for method in ["PUT", "PATCH"] {
            let (status, _) = house
                .ours(&format!("{method} {one}"), Some(json!({})))
                .await;
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {one}");
        }
        let (status, problem) = house.ours(&format!("POST {list}"), Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{list}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{list}: {problem}");

        let delete = format!("DELETE {one}");
        assert_eq!(house.ok(&delete, None).await, json!({}));
        for gone in [delete, format!("GET {one}")] {
            let (status, problem) = house.ours(&gone, None).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{gone}");
            assert_eq!(problem["message"], format!("{what} not found"), "{gone}");
        }
    }
}

#[tokio::test]
async fn a_client_may_send_back_what_it_was_given() {
    let house = House::new().await;
    for (list, body, _, _) in kinds() {
        let made = house.ok(&format!("POST {list}"), Some(body)).await;
        let id = made["resourceId"].as_str().expect("an id");
        house.ok(&format!("DELETE {list}/{id}"), None).await;
        let again = house.ok(&format!("POST {list}"), Some(made.clone())).await;
        assert_ne!(again["resourceId"], made["resourceId"], "{list}");
    }
}

#[tokio::test]
async fn the_legacy_form_reaches_them() {
    let house = House::new().await;
    let token = house.token(Who::Reader).expect("a token");
    for (list, body, _, _) in kinds() {
        let made = house.ok(&format!("POST {list}"), Some(body)).await;
        let request = Request::get(format!("/edge-infra.orchestrator.apis/v2/{list}"))
            .header("authorization", format!("Bearer {token}"))
            .header("ActiveProjectID", house.ours.to_string());
        let request = request.body(Body::empty()).expect("a request");
        let (status, answer) = read(house.send(request).await).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer[list], json!([made]));
    }
}

#[tokio::test]
async fn what_is_wrong_is_said_of_its_field() {
    let house = House::new().await;
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let long = "a".repeat(41);
    for (list, body, field) in [
        (0, with(provider(), "name", json!("")), "name"),
        (0, with(provider(), "name", json!(long)), "name"),
        (
            0,
            with(provider(), "providerKind", json!("X")),
            "providerKind",
        ),
        (
            0,
            with(provider(), "providerKind", Value::Null),
            "providerKind",
        ),
        (
            0,
            with(provider(), "apiEndpoint", json!("\u{0}")),
            "apiEndpoint",
        ),
        (0, with(provider(), "config", json!("\u{0}")), "config"),
        (
            0,
            with(provider(), "apiCredentials", json!(vec![""; 101])),
            "apiCredentials",
        ),
        (0, with(provider(), "colour", json!("red")), "colour"),
        (1, with(config(), "name", json!("NTP")), "name"),
        (1, with(config(), "config", json!("")), "config"),
        (1, with(config(), "config", json!("\u{0}")), "config"),
        (
            1,
            with(config(), "description", json!("a".repeat(257))),
            "description",
        ),
        (2, with(account(), "username", json!("1ann")), "username"),
        (
            2,
            with(account(), "sshKey", json!("ssh-rsa AAAA")),
            "sshKey",
        ),
        (
            2,
            with(account(), "sshKey", json!(format!("{KEY}\n{KEY}"))),
            "sshKey",
        ),
        (2, json!({"username": "ann"}), "sshKey"),
    ] {
        let list = kinds()[list].0;
        let shown = body.to_string();
        let (status, problem) = house.ours(&format!("POST {list}"), Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{shown}: {problem}");
        assert_eq!(problem["code"], "InvalidArgument", "{shown}: {problem}");
        assert_eq!(problem["field"], field, "{shown}: {problem}");
    }
    for (list, ..) in kinds() {
        let answer = house.ok(&format!("GET {list}"), None).await;
        assert_eq!(answer["totalElements"], 0, "something was written");
    }
}

#[tokio::test]
async fn they_are_filtered_and_ordered() {
    let house = House::new().await;
    for name in ["ann", "bob", "bobby"] {
        let body = json!({"username": name, "sshKey": KEY});
        house.ok("POST localAccounts", Some(body)).await;
    }
    let found = house
        .ok(
            "GET localAccounts?filter=username=%22BOB%22&orderBy=username%20desc",
            None,
        )
        .await;
    let names: Vec<_> = found["localAccounts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|account| &account["username"])
        .collect();
    assert_eq!(names, ["bobby", "bob"]);
    let (status, problem) = house.ours("GET providers?filter=colour=red", None).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("filter"))
    );
}

#[tokio::test]
async fn what_an_instance_was_made_with_stays_with_it() {
    let house = House::new().await;
    let id = |answer: &Value| answer["resourceId"].as_str().expect("an id").to_owned();
    let config = id(&house.ok("POST customConfigs", Some(config())).await);
    let account = id(&house.ok("POST localAccounts", Some(account())).await);
    let host = json!({"name": "edge-01", "uuid": UUID, "autoOnboard": true});
    let host = id(&house.ok("POST compute/hosts/register", Some(host)).await);
    let os = id(&house
        .ok("POST compute/os", Some(os_body("Debian 12")))
        .await);
    let instance = json!({
        "hostID": host, "osID": os, "localAccountID": account, "customConfigID": [config],
    });
    let instance = id(&house.ok("POST compute/instances", Some(instance)).await);
    let in_use = [
        format!("DELETE customConfigs/{config}"),
        format!("DELETE localAccounts/{account}"),
    ];
    for delete in &in_use {
        let (status, problem) = house.ours(delete, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{delete}: {problem}");
        assert_eq!(problem["code"], "FailedPrecondition", "{delete}: {problem}");
    }
    let delete = format!("DELETE compute/instances/{instance}");
    house.ok(&delete, None).await;
    for delete in &in_use {
        house.ok(delete, None).await;
    }
}

#[tokio::test]
async fn what_is_not_there_is_an_empty_list() {
    let house = House::new().await;
    for (path, key) in [
        ("compute/workloads", "workloads"),
        ("workloads", "workloads"),
        ("workload_members", "workloadMembers"),
        ("telemetry/groups/logs", "telemetryLogsGroups"),
        ("telemetry/loggroups", "telemetryLogsGroups"),
        ("telemetry/groups/metrics", "telemetryMetricsGroups"),
        ("telemetry/metricgroups", "telemetryMetricsGroups"),
        ("telemetry/profiles/logs", "telemetryLogsProfiles"),
        ("telemetry/profiles/metrics", "telemetryMetricsProfiles"),
    ] {
        for query in [
            "",
            "?pageSize=20&offset=0&filter=kind=WORKLOAD_KIND_CLUSTER",
        ] {
            let answer = house.ok(&format!("GET {path}{query}"), None).await;
            let nothing =
                json!({key: [], "totalElements": 0, "hasNext": false, "nextPageToken": ""});
            assert_eq!(answer, nothing, "{path}{query}");
        }
        let what = format!("GET /v1/projects/ours/{path}");
        for (who, wanted) in [
            (Who::Nobody, StatusCode::UNAUTHORIZED),
            (Who::Foreigner, StatusCode::FORBIDDEN),
            (Who::Reader, StatusCode::OK),
        ] {
            let (status, answer) = house.ask(who, &what, None).await;
            assert_eq!(status, wanted, "{what} as {who:?}: {answer}");
        }
        let (status, problem) = house.ours(&format!("GET {path}?pageSize=0"), None).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::BAD_REQUEST, &json!("pageSize"))
        );
    }
}
