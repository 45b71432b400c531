//! Control of updates: assignments, pauses, orders and settings, and how a decision shows them.

mod node_reports;

use std::collections::HashMap;

use chrono::TimeDelta;
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_store::nodes;
use evenkeel_store::nodes::NodeState;
use evenkeel_test_support::redact;
use serde_json::{Value, json};

use crate::test_server::{ResourceIds, TestServer, nightly, os_body};

impl TestServer {
    /// Changes the stored state of the node of a host.
    pub async fn edit_node(&self, host: &str, change: impl FnOnce(&mut NodeState)) {
        let tx = self.store.tenant(self.ours).await.expect("a transaction");
        let host = host.parse().expect("an id");
        let mut node = nodes::lock(&tx, host).await.expect("a node");
        change(&mut node);
        nodes::save(&tx, &node).await.expect("saved");
        tx.commit().await.expect("committed");
    }

    /// Sets the node of the host to the state after a contact of our agent.
    pub async fn mark_node_connected(&self, resources: &ResourceIds) {
        let modules = vec!["packages".to_owned()];
        let own = AgentProtocol::Own { modules };
        self.edit_node(&resources.host, |node| {
            node.provisioned = true;
            node.protocol = own;
        })
        .await;
    }

    async fn get_decision(&self, resources: &ResourceIds) -> Value {
        let path = format!("GET compute/instances/{}/decision", resources.instance);
        self.expect_ok(&path, None).await
    }

    async fn create_policy(&self, name: &str) -> String {
        let body = json!({"name": name, "updatePolicy": "UPDATE_POLICY_LATEST"});
        let created = self.post("os-update-policies", body).await;
        created["resourceId"].as_str().expect("an id").to_owned()
    }

    async fn assign(&self, target: &str, policy: &str) -> Value {
        let body = json!({"osUpdatePolicyId": policy});
        self.put(&format!("assignments/{target}"), body).await
    }
}

/// The reason code, and whether the server would grant a start.
fn reason_and_may_start(decision: &Value) -> (&str, bool) {
    (
        decision["reason"]["code"].as_str().expect("a code"),
        decision["mayStart"].as_bool().expect("a boolean"),
    )
}

#[tokio::test]
async fn the_nearest_policy_that_fits_applies() {
    let (server, resources) = TestServer::with_resources().await;
    let instance = format!("compute/instances/{}", resources.instance);
    let targets = [
        ("project", "project"),
        ("region", resources.region.as_str()),
        ("site", &resources.site),
        ("host", &resources.host),
        ("instance", &resources.instance),
    ];
    server.delete(&format!("assignments/{}", resources.instance)).await;
    for (level, target) in targets {
        let policy = server.create_policy(level).await;
        let created = server.assign(target, &policy).await;
        assert_eq!((&created["target"], &created["targetKind"]), (&json!(target), &json!(level)));
        let fetched = server.get(&instance).await;
        let effective = &fetched["effectiveUpdatePolicy"];
        assert_eq!(effective["resourceId"], policy.as_str());
        assert_eq!(effective["level"], level);
        assert_eq!(effective["assignedTo"], target);
        let name = HashMap::from([("site", "ulm"), ("region", "south")]);
        assert_eq!(effective["assignedToName"], *name.get(level).unwrap_or(&""));
        for (list, pointer) in [
            ("compute/instances", "/instances/0/effectiveUpdatePolicy"),
            ("compute/hosts", "/hosts/0/instance/effectiveUpdatePolicy"),
        ] {
            assert_eq!(server.get(list).await.pointer(pointer), Some(&Value::Null), "{list}");
            let shown = server.get(&format!("{list}?showEffectivePolicy=true")).await;
            assert_eq!(shown.pointer(pointer), Some(effective), "{list}");
        }
        assert_eq!(server.get_decision(&resources).await["policy"], *effective);
    }
    let listed = server.get("assignments?pageSize=4").await;
    assert_eq!((&listed["totalElements"], &listed["hasNext"]), (&json!(5), &json!(true)));
    assert_eq!(listed["assignments"][0]["targetKind"], "site");
    for (level, target) in targets.iter().rev() {
        let fetched = server.get(&instance).await;
        assert_eq!(fetched["effectiveUpdatePolicy"]["level"], *level);
        server.delete(&format!("assignments/{target}")).await;
        server.expect_problem(&format!("DELETE assignments/{target}"), None, 404, json!({})).await;
    }
    let fetched = server.get(&instance).await;
    assert_eq!(fetched["effectiveUpdatePolicy"], Value::Null);
}

#[tokio::test]
async fn a_policy_that_does_not_fit_is_skipped_and_named() {
    let (server, resources) = TestServer::with_resources().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = server.post("compute/os", image).await;
    let policy = json!({
        "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"],
        "allowDowngrade": true, "offlineDays": 0,
    });
    let policy = server.post("os-update-policies", policy).await;
    assert_eq!((&policy["allowDowngrade"], &policy["offlineDays"]), (&json!(true), &json!(0)));
    let policy = policy["resourceId"].as_str().expect("an id");
    let latest = server.create_policy("latest").await;
    server.assign(&resources.site, policy).await;
    server.assign("project", &latest).await;

    let what = format!("PUT assignments/{}", resources.instance);
    let expected = json!({"field": "osUpdatePolicyId"});
    server.expect_problem(&what, Some(json!({"osUpdatePolicyId": policy})), 400, expected).await;

    server.delete(&format!("assignments/{}", resources.instance)).await;
    let decision = server.get_decision(&resources).await;
    insta::assert_json_snapshot!(redact(&decision));
}

#[tokio::test]
async fn a_policy_has_rules_for_packages() {
    let (server, resources) = TestServer::with_resources().await;
    let latest = |rules: Value| json!({"name": "careful", "updatePolicy": "UPDATE_POLICY_LATEST", "packageRules": rules});
    let defaults = server.post("os-update-policies", latest(Value::Null)).await;
    let none = json!({
        "suites": [], "exclude": [], "minAgeDays": 0, "allowRemovals": false, "reboot": "IF_REQUIRED",
        "services": "KEEP_RUNNING", "downloadBytesPerSecond": 0, "unusedPackages": "REMOVE_KERNELS",
        "minimalSteps": false,
    });
    assert_eq!(defaults["packageRules"], none);

    let rules = json!({
        "suites": ["bookworm-security"], "exclude": ["linux-*"], "minAgeDays": 7, "allowRemovals": true,
        "reboot": "NEVER", "services": "RESTART", "downloadBytesPerSecond": 1_048_576,
        "unusedPackages": "REMOVE_ALL", "minimalSteps": true,
    });
    let body = latest(rules.clone());
    let created = server.post("os-update-policies", body).await;
    assert_eq!(created["packageRules"], rules);
    let id = created["resourceId"].as_str().expect("an id");
    server.assign(&resources.instance, id).await;
    let decision = server.get_decision(&resources).await;
    assert_eq!(decision["policy"]["target"]["packageRules"], rules);

    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = server.post("compute/os", image).await;
    let body = |rules: &Value| {
        json!({
            "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"],
            "packageRules": rules,
        })
    };
    let expected = json!({"field": "packageRules"});
    server.expect_problem("POST os-update-policies", Some(body(&rules)), 400, expected).await;
    server.post("os-update-policies", body(&none)).await;
}

#[tokio::test]
async fn an_assignment_with_limits_shows_their_usage() {
    let (server, resources) = TestServer::with_resources().await;
    server.delete(&format!("assignments/{}", resources.instance)).await;
    let put = format!("PUT assignments/{}", resources.region);
    let body =
        json!({"osUpdatePolicyId": resources.policy, "maxConcurrent": 3, "stopAfterFailures": 1});
    let created = server.expect_ok(&put, Some(body.clone())).await;
    assert_eq!(created["since"], "2026-03-01T12:00:00Z");
    assert_eq!((&created["slotsInUse"], &created["failures"]), (&json!(0), &json!(0)));
    server.clock.advance(TimeDelta::seconds(9));
    // A client may write back what it read.
    let again = server.expect_ok(&put, Some(created)).await;
    assert_eq!(again["since"], "2026-03-01T12:00:09Z");
    assert_eq!(again["maxConcurrent"], 3);

    let slots = server.get_decision(&resources).await["slots"].clone();
    assert_eq!(slots["assignedTo"], resources.region.as_str());
    assert_eq!(slots["maxConcurrent"], 3);
    assert_eq!((&slots["heldByOthers"], &slots["holdsSlot"]), (&json!(0), &json!(false)));

    let unlimited = server.assign(&resources.region, &resources.policy).await;
    assert_eq!(unlimited["maxConcurrent"], Value::Null);
    assert_eq!(server.get_decision(&resources).await["slots"], Value::Null);
}

/// A pause of each scope blocks the update of the instance until it is removed.
async fn check_pauses(server: &TestServer, resources: &ResourceIds) {
    for (scope, named) in [
        ("project", "project".to_owned()),
        (resources.site.as_str(), format!("ulm ({})", resources.site)),
        (&resources.policy, format!("security ({})", resources.policy)),
    ] {
        let pause = format!("pauses/{scope}");
        let created = server.put(&pause, json!({"reason": "a storm"})).await;
        assert_eq!((&created["scope"], &created["by"]), (&json!(scope), &json!("writer")));
        let decision = server.get_decision(resources).await;
        assert_eq!(reason_and_may_start(&decision), ("paused", false), "{scope}");
        let text = format!("writer paused updates of {named}: a storm");
        assert_eq!(decision["reason"]["text"], text);
        assert_eq!(decision["pauses"], json!([created]));
        assert_eq!(server.get("pauses").await["pauses"], json!([created]));
        server.delete(&pause).await;
        assert!(reason_and_may_start(&server.get_decision(resources).await).1, "{scope}");
    }
}

#[tokio::test]
async fn a_decision_shows_pauses_orders_and_offline_grants() {
    let (server, resources) = TestServer::with_resources().await;
    server.mark_node_connected(&resources).await;
    let order = format!("compute/instances/{}/order", resources.instance);

    // The repeated schedule opens at 02:00 in Berlin, in winter.
    let waiting = server.get_decision(&resources).await;
    let now = json!({"kind": "now", "seconds": 600, "reason": "a hole"});
    let created_order = server.put(&order, now).await;
    let ordered = server.get_decision(&resources).await;
    assert_eq!(ordered["order"], created_order);

    check_pauses(&server, &resources).await;

    let shorter = json!({"kind": "now", "seconds": 60, "reason": "again"});
    let repeated = server.put(&order, shorter).await;
    assert_eq!(
        (&repeated["until"], &repeated["reason"]),
        (&created_order["until"], &json!("again"))
    );

    let cancel = json!({"kind": "cancel", "reason": "not now"});
    server.put(&order, cancel).await;
    let cancelled = server.get_decision(&resources).await;
    insta::assert_json_snapshot!(redact(&json!([waiting, ordered, cancelled])));
    server.delete(&order).await;
    for method in ["GET", "DELETE"] {
        let expected = json!({"message": "order not found"});
        server.expect_problem(&format!("{method} {order}"), None, 404, expected).await;
    }
    assert_eq!(server.get_decision(&resources).await["order"], Value::Null);
}

#[tokio::test]
async fn project_settings_choose_the_schedules_that_open_windows_and_the_retention_of_runs() {
    let (server, resources) = TestServer::with_resources().await;
    let defaults = json!({"retentionDays": null, "anyScheduleStatus": false});
    assert_eq!(server.get("settings").await, defaults);
    let mut maintenance = nightly(&resources.site);
    maintenance["scheduleStatus"] = json!("SCHEDULE_STATUS_MAINTENANCE");
    let path = format!("schedules/repeated/{}", resources.repeated);
    server.put(&path, maintenance).await;

    let opens = |decision: &Value| {
        let windows = decision["windows"].as_array().expect("windows").iter();
        windows.filter(|w| w["openedBy"] == "repeated_schedule").count()
    };
    assert_eq!(opens(&server.get_decision(&resources).await), 0);
    let other = json!({"retentionDays": 0, "anyScheduleStatus": true});
    assert_eq!(server.put("settings", other.clone()).await, other);
    assert_eq!(server.get("settings").await, other);
    assert!(opens(&server.get_decision(&resources).await) > 0);
    assert_eq!(server.put("settings", json!({})).await, defaults);
}

#[tokio::test]
async fn a_schedule_is_patched_and_replaced() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("schedules/repeated/{}", resources.repeated);
    let changed = server.patch(&path, json!({"cronHours": "3", "timeZone": null})).await;
    assert_eq!((&changed["cronHours"], &changed["timeZone"]), (&json!("3"), &json!("UTC")));
    assert_eq!(changed["targetSiteId"], resources.site.as_str());
    let moved = json!({"targetSiteId": "", "targetRegionId": resources.region});
    let moved = server.patch(&path, moved).await;
    assert_eq!(moved["targetSite"], Value::Null);
    assert_eq!(moved["targetRegion"]["name"], "south");
    let (what, expected) = (format!("PATCH {path}"), json!({"field": "cronHours"}));
    server.expect_problem(&what, Some(json!({"cronHours": null})), 400, expected).await;
    let both = Some(json!({"targetHostId": resources.host}));
    server
        .expect_problem(&format!("PATCH {path}"), both, 400, json!({"field": "targetRegionId"}))
        .await;

    // An open window can be extended, but its start cannot be moved to another time in the past.
    let path = format!("schedules/single/{}", resources.schedule);
    server.clock.advance(TimeDelta::seconds(5_000));
    let later = server.seconds(9_000);
    let longer = server.patch(&path, json!({"endSeconds": later})).await;
    assert_eq!(longer["endSeconds"], later);
    let open_ended = server.patch(&format!("{path}?fieldMask=endSeconds"), json!({})).await;
    assert_eq!(open_ended["endSeconds"], 0);
    let mut replacement = open_ended.clone();
    replacement["name"] = json!("tonight, and longer");
    replacement["endSeconds"] = json!(later);
    server.expect_problem(&format!("PUT {path}"), Some(replacement.clone()), 400, json!({})).await;
    replacement["name"] = json!("tonight and longer");
    let put = server.put(&path, replacement).await;
    assert_eq!(put["startSeconds"], open_ended["startSeconds"]);
    let past = Some(json!({"startSeconds": server.seconds(-10)}));
    server
        .expect_problem(&format!("PATCH {path}"), past, 400, json!({"field": "startSeconds"}))
        .await;
}
