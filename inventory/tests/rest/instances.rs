//! Instances: their relations, which fields can be changed until when, and invalidation.

mod field_changes;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, os_body};

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

fn id(answer: &Value) -> &str {
    answer["resourceId"].as_str().expect("an id")
}

impl TestServer {
    /// Creates an account and two configurations, and returns their ids.
    async fn create_account_and_configs(&self) -> (String, Vec<String>) {
        let ann = json!({"username": "ann", "sshKey": SSH_KEY});
        let ann = self.expect_ok("POST localAccounts", Some(ann)).await;
        let mut configs = Vec::new();
        for name in ["ntp", "proxy"] {
            let body = json!({"name": name, "description": "of all", "config": "#cloud-config"});
            let created = self.expect_ok("POST customConfigs", Some(body)).await;
            configs.push(id(&created).to_owned());
        }
        configs.sort();
        (id(&ann).to_owned(), configs)
    }

    /// Creates a host without an instance.
    async fn create_bare_host(&self) -> String {
        let body = json!({"name": "bare", "serialNumber": "BARE12345"});
        let created = self.expect_ok("POST compute/hosts/register", Some(body)).await;
        id(&created).to_owned()
    }

    /// Creates an operating system with this name.
    async fn create_os(&self, name: &str) -> String {
        id(&self.expect_ok("POST compute/os", Some(os_body(name))).await).to_owned()
    }
}

#[tokio::test]
async fn an_instance_shows_its_provisioning_and_the_list_shows_less() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let (ann, configs) = server.create_account_and_configs().await;
    let (first, second) = (&configs[0], &configs[1]);
    let body = json!({
        "hostID": server.create_bare_host().await, "osID": resources.os, "kind": "INSTANCE_KIND_METAL",
        "localAccountID": ann, "customConfigID": [second, first, second], "osUpdatePolicyID": "",
    });
    let created = server.expect_ok("POST compute/instances", Some(body)).await;
    assert_eq!(created["customConfigID"], json!(configs));
    let path = format!("compute/instances/{}", id(&created));
    let fetched = server.expect_ok(&format!("GET {path}"), None).await;
    assert_eq!(fetched, created);
    assert_eq!(fetched["localAccountID"], ann.as_str());
    assert_eq!(fetched["localaccount"]["username"], "ann");
    let config_ids: Vec<_> =
        fetched["customConfig"].as_array().expect("a list").iter().map(id).collect();
    assert_eq!(config_ids, [first, second]);
    assert_eq!(fetched["host"]["name"], "bare");
    assert_eq!(fetched["host"]["instance"], Value::Null);

    let list = server.expect_ok("GET compute/instances", None).await;
    let listed = list["instances"].as_array().expect("a list");
    let listed = listed.iter().find(|item| item["resourceId"] == created["resourceId"]);
    let listed = listed.expect("it is there");
    assert_eq!(listed["customConfig"], json!([]));
    assert_eq!(listed["customConfigID"], json!(configs));
    assert_eq!(listed["localaccount"], fetched["localaccount"]);
    assert_eq!(listed["os"], fetched["os"]);

    for used in [format!("DELETE localAccounts/{ann}"), format!("DELETE customConfigs/{first}")] {
        let (status, problem) = server.request_as_writer(&used, None).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("FailedPrecondition")),
            "{used}"
        );
    }
    server.expect_ok(&format!("DELETE {path}"), None).await;
    server.expect_ok(&format!("DELETE localAccounts/{ann}"), None).await;
}

#[tokio::test]
async fn absent_parts_of_an_instance_are_null_or_empty() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let body = json!({"hostID": server.create_bare_host().await, "osID": resources.os});
    let created = server.expect_ok("POST compute/instances", Some(body)).await;
    for null in ["localaccount", "updatePolicy", "effectiveUpdatePolicy"] {
        assert_eq!(created[null], Value::Null, "{null}");
    }
    for empty in ["customConfig", "customConfigID", "workloadMembers"] {
        assert_eq!(created[empty], json!([]), "{empty}");
    }
    for text in [
        "localAccountID",
        "osUpdatePolicyID",
        "existingCves",
        "runtimePackages",
        "osUpdateAvailable",
    ] {
        assert_eq!(created[text], "", "{text}");
    }
    assert_eq!(created["instanceID"], created["resourceId"]);
    assert_eq!(created["kind"], "INSTANCE_KIND_UNSPECIFIED");
    assert_eq!(created["provisioningStatus"], "Not Provisioned");
}

#[tokio::test]
async fn an_instance_needs_existing_resources_and_a_free_host() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let bare = server.create_bare_host().await;
    let with = |field: &str, value: Value| {
        let mut body = json!({"hostID": bare, "osID": resources.os});
        body[field] = value;
        Some(body)
    };
    for (body, code, field) in [
        (with("hostID", json!("")), "InvalidArgument", "hostID"),
        (with("osID", json!("")), "InvalidArgument", "osID"),
        (with("localAccountID", json!("ann")), "InvalidArgument", "localAccountID"),
        (with("customConfigID", json!(["ntp"])), "InvalidArgument", "customConfigID"),
        (with("kind", json!("METAL")), "InvalidArgument", "kind"),
        (with("hostID", json!(resources.host)), "FailedPrecondition", "hostID"),
        (with("hostID", json!("host-00000000")), "FailedPrecondition", "hostID"),
        (with("osID", json!("os-00000000")), "FailedPrecondition", "osID"),
        (
            with("localAccountID", json!("localaccount-00000000")),
            "FailedPrecondition",
            "localAccountID",
        ),
        (
            with("customConfigID", json!(["customconfig-00000000"])),
            "FailedPrecondition",
            "customConfigID",
        ),
        (
            with("osUpdatePolicyID", json!("osupdatepolicy-00000000")),
            "FailedPrecondition",
            "osUpdatePolicyID",
        ),
    ] {
        let (status, problem) = server.request_as_writer("POST compute/instances", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{field}: {problem}");
        assert_eq!(problem["code"], code, "{field}: {problem}");
        assert_eq!(problem["field"], field, "{problem}");
    }
    let list = server.expect_ok("GET compute/instances", None).await;
    assert_eq!(list["totalElements"], 1, "something was written");
}

#[tokio::test]
async fn a_policy_must_fit_the_operating_system_of_its_instance() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = server.expect_ok("POST compute/os", Some(image)).await;
    let policy = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"]});
    let policy = server.expect_ok("POST os-update-policies", Some(policy)).await;
    assert_eq!(policy["targetOs"]["name"], "Edge 3");
    assert_eq!(policy["targetOsId"], "");

    let patch = format!("PATCH compute/instances/{}", resources.instance);
    let body = Some(json!({"osUpdatePolicyID": policy["resourceId"]}));
    let (status, problem) = server.request_as_writer(&patch, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["field"], "osUpdatePolicyID");
    insta::assert_snapshot!(
        problem["message"].as_str().expect("a text"),
        @"osUpdatePolicyID: policy image does not fit: it installs an image, and the instance is updated by packages"
    );
    // Nor may the operating system be changed to one that the assigned policy does not fit.
    let body = Some(json!({"osID": image["resourceId"]}));
    let (status, problem) = server.request_as_writer(&patch, body).await;
    assert_eq!((status, &problem["field"]), (StatusCode::BAD_REQUEST, &json!("osID")), "{problem}");
    let both = json!({"osID": image["resourceId"], "osUpdatePolicyID": policy["resourceId"]});
    let changed = server.expect_ok(&patch, Some(both)).await;
    assert_eq!(changed["os"]["name"], "Edge 3");
    assert_eq!(changed["updatePolicy"]["name"], "image");
}

#[tokio::test]
async fn an_invalidated_instance_is_untrusted_immediately_and_permanently() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    server.mark_node_connected(&resources).await;
    let path = format!("compute/instances/{}", resources.instance);
    for _ in 0..2 {
        let done = server.expect_ok(&format!("PUT {path}/invalidate"), None).await;
        assert_eq!(done, json!({}));
    }
    server.mark_node_connected(&resources).await;
    let fetched = server.expect_ok(&format!("GET {path}"), None).await;
    assert_eq!(fetched["desiredState"], "INSTANCE_STATE_UNTRUSTED");
    assert_eq!(fetched["currentState"], "INSTANCE_STATE_UNTRUSTED");
    assert_eq!(fetched["instanceStatus"], "Invalidated");
    let decision = server.expect_ok(&format!("GET {path}/decision"), None).await;
    assert_eq!(decision["reason"]["code"], "not_trusted");

    let missing = "PUT compute/instances/inst-00000000/invalidate";
    let (status, _) = server.request_as_writer(missing, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let what = format!("PUT /v1/projects/ours/{path}/invalidate");
    let (status, _) = server.request_as(Caller::Reader, &what, None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(server.expect_ok(&format!("DELETE {path}"), None).await, json!({}));
}

#[tokio::test]
async fn instances_are_filtered_and_ordered() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let body =
        json!({"hostID": server.create_bare_host().await, "osID": resources.os, "name": "another"});
    server.expect_ok("POST compute/instances", Some(body)).await;
    let names = async |query: &str| {
        let list = server.expect_ok(&format!("GET compute/instances?{query}"), None).await;
        let of = |one: &Value| one["name"].as_str().expect("a name").to_owned();
        let names: Vec<_> = list["instances"].as_array().expect("a list").iter().map(of).collect();
        (names.join(" "), list["totalElements"].clone())
    };
    let by_host = format!("filter=host.resourceId%3D%22{}%22&pageSize=10", resources.host);
    assert_eq!(names(&by_host).await, ("on-edge-01".to_owned(), json!(1)));
    let ordered = names("orderBy=name%20desc").await;
    assert_eq!(ordered, ("on-edge-01 another".to_owned(), json!(2)));
    let page = names("orderBy=name&pageSize=1").await;
    assert_eq!(page, ("another".to_owned(), json!(2)));
    let unassigned = names("filter=NOT%20has(updatePolicy)").await;
    assert_eq!(unassigned, ("another".to_owned(), json!(1)));
}
