//! Instances: their relations, which fields can be changed until when, and invalidation.

mod field_changes;

use evenkeel_test_support::redact;
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
        let ann = self.post("localAccounts", ann).await;
        let mut configs = Vec::new();
        for name in ["ntp", "proxy"] {
            let body = json!({"name": name, "description": "of all", "config": "#cloud-config"});
            let created = self.post("customConfigs", body).await;
            configs.push(id(&created).to_owned());
        }
        configs.sort();
        (id(&ann).to_owned(), configs)
    }

    /// Creates a host without an instance.
    async fn create_bare_host(&self) -> String {
        let body = json!({"name": "bare", "serialNumber": "BARE12345"});
        let created = self.post("compute/hosts/register", body).await;
        id(&created).to_owned()
    }

    /// Creates an operating system with this name.
    async fn create_os(&self, name: &str) -> String {
        id(&self.post("compute/os", os_body(name)).await).to_owned()
    }
}

#[tokio::test]
async fn an_instance_shows_its_provisioning_and_the_list_shows_less() {
    let (server, resources) = TestServer::with_resources().await;
    let (ann, configs) = server.create_account_and_configs().await;
    let (first, second) = (&configs[0], &configs[1]);
    let body = json!({
        "hostID": server.create_bare_host().await, "osID": resources.os, "kind": "INSTANCE_KIND_METAL",
        "localAccountID": ann, "customConfigID": [second, first, second], "osUpdatePolicyID": "",
    });
    let created = server.post("compute/instances", body).await;
    assert_eq!(created["customConfigID"], json!(configs));
    let path = format!("compute/instances/{}", id(&created));
    let fetched = server.get(&path).await;
    assert_eq!(fetched, created);
    assert_eq!(fetched["localAccountID"], ann.as_str());
    assert_eq!(fetched["localaccount"]["username"], "ann");
    let config_ids: Vec<_> =
        fetched["customConfig"].as_array().expect("a list").iter().map(id).collect();
    assert_eq!(config_ids, [first, second]);
    assert_eq!(fetched["host"]["name"], "bare");
    assert_eq!(fetched["host"]["instance"], Value::Null);

    let list = server.get("compute/instances").await;
    let listed = list["instances"].as_array().expect("a list");
    let listed = listed.iter().find(|item| item["resourceId"] == created["resourceId"]);
    let listed = listed.expect("it is there");
    assert_eq!(listed["customConfig"], json!([]));
    assert_eq!(listed["customConfigID"], json!(configs));
    assert_eq!(listed["localaccount"], fetched["localaccount"]);
    assert_eq!(listed["os"], fetched["os"]);

    for used in [format!("DELETE localAccounts/{ann}"), format!("DELETE customConfigs/{first}")] {
        server.expect_problem(&used, None, 400, json!({"code": "FailedPrecondition"})).await;
    }
    server.delete(&path).await;
    server.delete(&format!("localAccounts/{ann}")).await;
}

#[tokio::test]
async fn absent_parts_of_an_instance_are_null_or_empty() {
    let (server, resources) = TestServer::with_resources().await;
    let body = json!({"hostID": server.create_bare_host().await, "osID": resources.os});
    let created = server.post("compute/instances", body).await;
    insta::assert_json_snapshot!(redact(&created));
}

#[tokio::test]
async fn an_instance_needs_existing_resources_and_a_free_host() {
    let (server, resources) = TestServer::with_resources().await;
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
        let expected = json!({"code": code, "field": field});
        server.expect_problem("POST compute/instances", body, 400, expected).await;
    }
    let list = server.get("compute/instances").await;
    assert_eq!(list["totalElements"], 1, "something was written");
}

#[tokio::test]
async fn a_policy_must_fit_the_operating_system_of_its_instance() {
    let (server, resources) = TestServer::with_resources().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = server.post("compute/os", image).await;
    let policy = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"]});
    let policy = server.post("os-update-policies", policy).await;
    assert_eq!(policy["targetOs"]["name"], "Edge 3");
    assert_eq!(policy["targetOsId"], "");

    let patch = format!("PATCH compute/instances/{}", resources.instance);
    let body = Some(json!({"osUpdatePolicyID": policy["resourceId"]}));
    let problem =
        server.expect_problem(&patch, body, 400, json!({"field": "osUpdatePolicyID"})).await;
    insta::assert_snapshot!(
        problem["message"].as_str().expect("a text"),
        @"osUpdatePolicyID: policy image does not fit: it installs an image, and the instance is updated by packages"
    );
    // Nor may the operating system be changed to one that the assigned policy does not fit.
    let body = Some(json!({"osID": image["resourceId"]}));
    server.expect_problem(&patch, body, 400, json!({"field": "osID"})).await;
    let both = json!({"osID": image["resourceId"], "osUpdatePolicyID": policy["resourceId"]});
    let changed = server.expect_ok(&patch, Some(both)).await;
    assert_eq!(changed["os"]["name"], "Edge 3");
    assert_eq!(changed["updatePolicy"]["name"], "image");
}

#[tokio::test]
async fn an_invalidated_instance_is_untrusted_immediately_and_permanently() {
    let (server, resources) = TestServer::with_resources().await;
    server.mark_node_connected(&resources).await;
    let path = format!("compute/instances/{}", resources.instance);
    for _ in 0..2 {
        let done = server.expect_ok(&format!("PUT {path}/invalidate"), None).await;
        assert_eq!(done, json!({}));
    }
    server.mark_node_connected(&resources).await;
    let fetched = server.get(&path).await;
    assert_eq!(fetched["desiredState"], "INSTANCE_STATE_UNTRUSTED");
    assert_eq!(fetched["currentState"], "INSTANCE_STATE_UNTRUSTED");
    assert_eq!(fetched["instanceStatus"], "Invalidated");
    let decision = server.get(&format!("{path}/decision")).await;
    assert_eq!(decision["reason"]["code"], "not_trusted");

    let missing = "PUT compute/instances/inst-00000000/invalidate";
    server.expect_problem(missing, None, 404, json!({})).await;
    let what = format!("PUT /v1/projects/ours/{path}/invalidate");
    server.client_of(Caller::Reader).expect_problem(&what, None, 403, json!({})).await;
    server.delete(&path).await;
}

#[tokio::test]
async fn instances_are_filtered_and_ordered() {
    let (server, resources) = TestServer::with_resources().await;
    let body =
        json!({"hostID": server.create_bare_host().await, "osID": resources.os, "name": "another"});
    server.post("compute/instances", body).await;
    let names = async |query: &str| {
        let list = server.get(&format!("compute/instances?{query}")).await;
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
