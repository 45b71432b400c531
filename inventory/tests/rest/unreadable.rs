//! Rows that this release cannot read, because a newer one wrote them: they never hide a list.

use evenkeel_store::testing::drop_check_constraints;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer};

impl TestServer {
    async fn write_rows(&self, sql: &str) {
        let statement = format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
        self.store.execute_unprepared(&statement).await.expect("written");
    }
}

#[tokio::test]
async fn a_condition_of_an_unknown_kind_and_an_odd_name_are_shown() {
    let (server, resources) = TestServer::with_resources().await;
    let conditions =
        r#"[{"kind": "from_a_newer_release", "text": "look", "since": "2026-03-01T12:00:00Z"}]"#;
    server
        .write_rows(&format!(
            "UPDATE node_states SET conditions = '{conditions}'; UPDATE hosts SET name = E'edge\\x01-7'"
        ))
        .await;
    let hosts = server.get("compute/hosts").await;
    assert_eq!(hosts["hosts"][0]["name"], "edge--7");
    assert_eq!(hosts.get("unreadableElements"), None);
    let shown = json!([{
        "type": "from_a_newer_release", "message": "look", "since": "2026-03-01T12:00:00Z",
    }]);
    assert_eq!(hosts["hosts"][0]["instance"]["conditions"], shown);
    let instance = server.get(&format!("compute/instances/{}", resources.instance)).await;
    assert_eq!(instance["conditions"], shown);
    server.get(&format!("compute/instances/{}/decision", resources.instance)).await;
}

/// Each row: a statement of a newer release, a list, its key, a field, and the value that is shown.
const UNKNOWN_KINDS: &[(&str, &str, &str, &str, &str)] = &[
    ("UPDATE update_runs SET state = 'held'", "os-update-runs", "osUpdateRuns", "state", "held"),
    ("SELECT 1", "os-update-runs", "osUpdateRuns", "status", "held"),
    (
        "SELECT 1",
        "os-update-runs",
        "osUpdateRuns",
        "statusIndicator",
        "STATUS_INDICATION_UNSPECIFIED",
    ),
    (
        "UPDATE update_runs SET state = 'cancelled', cause = 'moved'",
        "os-update-runs",
        "osUpdateRuns",
        "reason",
        "moved",
    ),
    ("SELECT 1", "os-update-runs", "osUpdateRuns", "status", "Update cancelled"),
    (
        "UPDATE hosts SET desired_state = 'parked'",
        "compute/hosts",
        "hosts",
        "desiredState",
        "HOST_STATE_UNSPECIFIED",
    ),
    (
        "UPDATE instances SET current_state = 'parked'",
        "compute/instances",
        "instances",
        "currentState",
        "INSTANCE_STATE_UNSPECIFIED",
    ),
    (
        "UPDATE instances SET kind = 'virtual'",
        "compute/instances",
        "instances",
        "kind",
        "INSTANCE_KIND_UNSPECIFIED",
    ),
    (
        "UPDATE instances SET security_feature = 'tdx'",
        "compute/instances",
        "instances",
        "securityFeature",
        "SECURITY_FEATURE_UNSPECIFIED",
    ),
    (
        "UPDATE os_profiles SET kind = 'atomic'",
        "compute/os",
        "OperatingSystemResources",
        "osType",
        "OS_TYPE_UNSPECIFIED",
    ),
    (
        "UPDATE os_profiles SET provider = 'acme'",
        "compute/os",
        "OperatingSystemResources",
        "osProvider",
        "OS_PROVIDER_KIND_UNSPECIFIED",
    ),
    (
        "UPDATE providers SET kind = 'cloud'",
        "providers",
        "providers",
        "providerKind",
        "PROVIDER_KIND_UNSPECIFIED",
    ),
];

#[tokio::test]
async fn a_row_of_an_unknown_kind_is_shown_in_its_list_and_alone() {
    let (server, _) = TestServer::with_resources().await;
    drop_check_constraints(&server.store).await;
    for (sql, list, key, field, expected) in UNKNOWN_KINDS {
        server.write_rows(sql).await;
        let listed = server.get(list).await;
        let row = &listed[*key][0];
        assert_eq!(
            (&row[*field], listed.get("unreadableElements")),
            (&json!(expected), None),
            "{sql}"
        );
        let id = row["resourceId"].as_str().expect("an id");
        assert_eq!(server.get(&format!("{list}/{id}")).await[*field], json!(expected), "{sql}");
    }
    // The filter finds what the list shows.
    for (filter, count) in [("reason=moved", 1), ("status=Updating", 0)] {
        let listed = server.get(&format!("os-update-runs?filter={filter}")).await;
        assert_eq!(listed["totalElements"], json!(count), "{filter}");
    }
}

/// The node waits until the server is upgraded, and the reason names the run.
#[tokio::test]
async fn an_explanation_names_the_open_run_that_cannot_be_read() {
    let (server, resources) = TestServer::with_resources().await;
    drop_check_constraints(&server.store).await;
    server
        .write_rows(
            "UPDATE update_runs SET state = 'held', ended_at = NULL; \
             UPDATE node_states SET provisioned = true",
        )
        .await;
    let decision = server.get(&format!("compute/instances/{}/decision", resources.instance)).await;
    assert_eq!((&decision["act"], &decision["mayStart"]), (&json!("idle"), &json!(false)));
    assert_eq!(decision["reason"]["code"], "unreadable");
    assert_eq!(decision["reason"]["data"], json!({"kind": "run", "id": resources.run}));
    assert_eq!(decision["run"]["state"], "held");
}

/// Each row: a list, its key, and a statement that makes the only resource in it unreadable. No
/// list depends on one before it.
const UNREADABLE: &[(&str, &str, &str)] = &[
    ("os-update-runs", "osUpdateRuns", "UPDATE update_runs SET origin = '{\"target\": 5}'"),
    (
        "providers",
        "providers",
        "ALTER TABLE providers ALTER config DROP NOT NULL; UPDATE providers SET config = NULL",
    ),
    (
        "schedules/repeated",
        "repeatedSchedules",
        "UPDATE repeated_schedules SET cron_hours = 'noon'",
    ),
    ("schedules/single", "singleSchedules", "UPDATE single_schedules SET status = 'frozen'"),
    ("os-update-policies", "osUpdatePolicies", "UPDATE update_policies SET mode = 'pinned'"),
    ("compute/os", "OperatingSystemResources", "UPDATE os_profiles SET sha256 = '5'"),
    (
        "compute/instances",
        "instances",
        "ALTER TABLE instances ALTER kind DROP NOT NULL; UPDATE instances SET kind = NULL",
    ),
    (
        "localAccounts",
        "localAccounts",
        "ALTER TABLE local_accounts ALTER ssh_key DROP NOT NULL; UPDATE local_accounts SET ssh_key = NULL",
    ),
    (
        "customConfigs",
        "customConfigs",
        "ALTER TABLE custom_configs ALTER config DROP NOT NULL; UPDATE custom_configs SET config = NULL",
    ),
    ("sites", "sites", "UPDATE sites SET metadata = '[5]'"),
    ("regions", "regions", "UPDATE regions SET metadata = '[5]'"),
];

#[tokio::test]
async fn a_row_that_cannot_be_read_is_left_out_and_counted() {
    let (server, _) = TestServer::with_resources().await;
    drop_check_constraints(&server.store).await;
    for (list, key, sql) in UNREADABLE {
        let all = server.get(list).await;
        assert_eq!(all[*key].as_array().map(Vec::len), Some(1), "{list}");
        server.write_rows(sql).await;
        for path in [(*list).to_owned(), format!("{list}?pageSize=10")] {
            let listed = server.get(&path).await;
            let shown = [&listed[*key], &listed["totalElements"], &listed["unreadableElements"]];
            assert_eq!(shown, [&json!([]), &json!(1), &json!(1)], "{path}");
        }
    }
}

/// The node waits until the server is upgraded, and the reason names the policy.
#[tokio::test]
async fn an_explanation_names_the_policy_that_cannot_be_read() {
    let (server, resources) = TestServer::with_resources().await;
    drop_check_constraints(&server.store).await;
    server
        .write_rows(
            "UPDATE update_policies SET mode = 'pinned'; UPDATE node_states SET provisioned = true",
        )
        .await;
    let path = format!("compute/instances/{}/decision", resources.instance);
    let decision = server.get(&path).await;
    assert_eq!((&decision["act"], &decision["mayStart"]), (&json!("idle"), &json!(false)));
    let expected = json!({
        "code": "unreadable",
        "data": {"kind": "policy", "id": resources.policy},
        "text": format!(
            "a newer release wrote the policy {}, and this server cannot read it; upgrade the server",
            resources.policy,
        ),
    });
    assert_eq!(decision["reason"], expected);
    let listed = server.get("compute/instances?showEffectivePolicy=true").await;
    assert_eq!(listed["instances"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["instances"][0]["effectiveUpdatePolicy"], Value::Null);
}

/// Lists that are always short have no count of what they leave out.
#[tokio::test]
async fn a_short_list_leaves_out_a_row_that_cannot_be_read() {
    let (server, resources) = TestServer::with_resources().await;
    server.seed_update_controls(&resources).await;
    let administrator = server.client_of(Caller::Administrator);
    let assignment = json!({"osUpdatePolicyId": resources.policy});
    server.expect_ok("PUT assignments/project", Some(assignment)).await;
    server.expect_ok("PUT pauses/project", Some(json!({"reason": "moving"}))).await;
    drop_check_constraints(&server.store).await;
    for (list, key, sql) in [
        (
            "assignments",
            "assignments",
            "UPDATE assignments SET target_kind = 'rack' WHERE target_kind = 'project'",
        ),
        ("pauses", "pauses", "UPDATE pauses SET scope_kind = 'rack' WHERE scope_kind = 'project'"),
    ] {
        let before = server.get(list).await[key].as_array().map_or(0, Vec::len);
        server.write_rows(sql).await;
        let listed = server.get(list).await;
        assert_eq!(listed[key].as_array().map(Vec::len), Some(before - 1), "{list}");
    }
    let sql =
        "ALTER TABLE join_tokens ALTER name DROP NOT NULL; UPDATE join_tokens SET name = NULL";
    server.write_rows(sql).await;
    assert_eq!(server.get("join-tokens").await["joinTokens"], json!([]));
    let sql = "ALTER TABLE projects ALTER description DROP NOT NULL; \
               UPDATE projects SET description = NULL WHERE name = 'theirs'";
    server.write_rows(sql).await;
    let projects = administrator.expect_ok("GET /v1/projects", None).await;
    assert_eq!(projects.as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn one_row_that_cannot_be_read_does_not_hide_the_others() {
    let (server, _) = TestServer::with_resources().await;
    let body = json!({"name": "edge-02", "serialNumber": "DEF12345"});
    server.post("compute/hosts/register", body).await;
    server.write_rows("UPDATE hosts SET metadata = '[5]' WHERE name = 'edge-01'").await;
    let listed = server.get("compute/hosts").await;
    let shown = listed["hosts"].as_array().into_iter().flatten();
    let names: Vec<&Value> = shown.map(|host| &host["name"]).collect();
    assert_eq!(names, ["edge-02"]);
    assert_eq!((&listed["totalElements"], &listed["unreadableElements"]), (&json!(2), &json!(1)));
}
