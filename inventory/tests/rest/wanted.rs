//! What people want of instances: assignments, pauses, orders and settings, and how a decision tells it.

use axum::http::StatusCode;
use chrono::TimeDelta;
use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::Protocol;
use evenkeel_kit::Clock;
use evenkeel_store::nodes::NodeState;
use evenkeel_store::{contents, nodes};
use serde_json::{Value, json};

use crate::house::{House, Things, nightly, os_body};

impl House {
    /// Changes what is known of the node of a host.
    pub async fn known(&self, host: &str, change: impl FnOnce(&mut NodeState)) {
        let tx = self.store.tenant(self.ours).await.expect("a transaction");
        let host = host.parse().expect("an id");
        let mut node = nodes::lock(&tx, host).await.expect("a node");
        change(&mut node);
        nodes::save(&tx, &node).await.expect("saved");
        tx.commit().await.expect("committed");
    }

    /// Lets the node of the host have spoken as our agent does.
    pub async fn speaks(&self, things: &Things) {
        let modules = vec!["packages".to_owned()];
        let own = Protocol::Own { modules };
        self.known(&things.host, |node| {
            node.provisioned = true;
            node.protocol = own;
        })
        .await;
    }

    async fn decision(&self, things: &Things) -> Value {
        let path = format!("GET compute/instances/{}/decision", things.instance);
        self.ok(&path, None).await
    }

    async fn policy(&self, name: &str) -> String {
        let body = json!({"name": name, "updatePolicy": "UPDATE_POLICY_LATEST"});
        let made = self.ok("POST os-update-policies", Some(body)).await;
        made["resourceId"].as_str().expect("an id").to_owned()
    }

    async fn assign(&self, target: &str, policy: &str) -> Value {
        let body = json!({"osUpdatePolicyId": policy});
        self.ok(&format!("PUT assignments/{target}"), Some(body))
            .await
    }
}

/// The code of the reason, and whether a begin would be granted.
fn told(decision: &Value) -> (&str, bool) {
    (
        decision["reason"]["code"].as_str().expect("a code"),
        decision["mayStart"].as_bool().expect("a truth"),
    )
}

#[tokio::test]
async fn the_nearest_policy_that_fits_applies() {
    let house = House::new().await;
    let things = house.furnish().await;
    let instance = format!("compute/instances/{}", things.instance);
    let targets = [
        ("project", "project"),
        ("region", things.region.as_str()),
        ("site", &things.site),
        ("host", &things.host),
        ("instance", &things.instance),
    ];
    house
        .ok(&format!("DELETE assignments/{}", things.instance), None)
        .await;
    for (level, target) in targets {
        let policy = house.policy(level).await;
        let made = house.assign(target, &policy).await;
        assert_eq!(
            (&made["target"], &made["targetKind"]),
            (&json!(target), &json!(level))
        );
        let shown = house.ok(&format!("GET {instance}"), None).await;
        let effective = &shown["effectiveUpdatePolicy"];
        assert_eq!(effective["resourceId"], policy.as_str());
        assert_eq!(effective["level"], level);
        assert_eq!(effective["assignedTo"], target);
        assert_eq!(house.decision(&things).await["policy"], *effective);
    }
    let listed = house.ok("GET assignments?pageSize=4", None).await;
    assert_eq!(
        (&listed["totalElements"], &listed["hasNext"]),
        (&json!(5), &json!(true))
    );
    assert_eq!(listed["assignments"][0]["targetKind"], "site");
    for (level, target) in targets.iter().rev() {
        let shown = house.ok(&format!("GET {instance}"), None).await;
        assert_eq!(shown["effectiveUpdatePolicy"]["level"], *level);
        house
            .ok(&format!("DELETE assignments/{target}"), None)
            .await;
        let (status, _) = house
            .ours(&format!("DELETE assignments/{target}"), None)
            .await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
    let shown = house.ok(&format!("GET {instance}"), None).await;
    assert_eq!(shown["effectiveUpdatePolicy"], Value::Null);
}

#[tokio::test]
async fn a_policy_that_does_not_fit_is_skipped_and_named() {
    let house = House::new().await;
    let things = house.furnish().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = house.ok("POST compute/os", Some(image)).await;
    let policy = json!({
        "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"],
        "allowDowngrade": true, "offlineDays": 0,
    });
    let policy = house.ok("POST os-update-policies", Some(policy)).await;
    assert_eq!(
        (&policy["allowDowngrade"], &policy["offlineDays"]),
        (&json!(true), &json!(0))
    );
    let policy = policy["resourceId"].as_str().expect("an id");
    let latest = house.policy("latest").await;
    house.assign(&things.site, policy).await;
    house.assign("project", &latest).await;

    let (status, problem) = house
        .ours(
            &format!("PUT assignments/{}", things.instance),
            Some(json!({"osUpdatePolicyId": policy})),
        )
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["field"], "osUpdatePolicyId");

    house
        .ok(&format!("DELETE assignments/{}", things.instance), None)
        .await;
    let decision = house.decision(&things).await;
    assert_eq!(decision["policy"]["resourceId"], latest.as_str());
    assert_eq!(decision["policy"]["level"], "project");
    let skipped = &decision["skippedPolicies"][0];
    assert_eq!(skipped["resourceId"], policy);
    assert_eq!(skipped["assignedTo"], things.site.as_str());
    assert_eq!(
        skipped["why"],
        "it wishes for an image, and the instance is updated by packages"
    );
}

#[tokio::test]
async fn a_policy_tells_how_packages_may_be_brought_to_it() {
    let house = House::new().await;
    let things = house.furnish().await;
    let latest = |rules: Value| json!({"name": "careful", "updatePolicy": "UPDATE_POLICY_LATEST", "packageRules": rules});
    let usual = house
        .ok("POST os-update-policies", Some(latest(Value::Null)))
        .await;
    let none = json!({
        "suites": [], "exclude": [], "minAgeDays": 0, "allowRemovals": false, "reboot": "IF_REQUIRED",
        "services": "LEAVE", "downloadBytesPerSecond": 0,
    });
    assert_eq!(usual["packageRules"], none);

    let rules = json!({
        "suites": ["bookworm-security"], "exclude": ["linux-*"], "minAgeDays": 7, "allowRemovals": true,
        "reboot": "NEVER", "services": "RESTART", "downloadBytesPerSecond": 1_048_576,
    });
    let body = latest(rules.clone());
    let made = house.ok("POST os-update-policies", Some(body)).await;
    assert_eq!(made["packageRules"], rules);
    let id = made["resourceId"].as_str().expect("an id");
    house.assign(&things.instance, id).await;
    let decision = house.decision(&things).await;
    assert_eq!(decision["policy"]["target"]["packageRules"], rules);

    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = house.ok("POST compute/os", Some(image)).await;
    let body = |rules: &Value| {
        json!({
            "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"],
            "packageRules": rules,
        })
    };
    let refused = house
        .ours("POST os-update-policies", Some(body(&rules)))
        .await;
    assert_eq!(refused.0, StatusCode::BAD_REQUEST);
    assert_eq!(refused.1["field"], "packageRules");
    house.ok("POST os-update-policies", Some(body(&none))).await;
}

#[tokio::test]
async fn an_assignment_with_limits_tells_how_far_they_are_used_up() {
    let house = House::new().await;
    let things = house.furnish().await;
    house
        .ok(&format!("DELETE assignments/{}", things.instance), None)
        .await;
    let put = format!("PUT assignments/{}", things.region);
    let body =
        json!({"osUpdatePolicyId": things.policy, "maxConcurrent": 3, "stopAfterFailures": 1});
    let made = house.ok(&put, Some(body.clone())).await;
    assert_eq!(made["since"], "2026-03-01T12:00:00Z");
    assert_eq!(
        (&made["slotsInUse"], &made["failures"]),
        (&json!(0), &json!(0))
    );
    house.clock.advance(TimeDelta::seconds(9));
    // What was read is written back.
    let again = house.ok(&put, Some(made)).await;
    assert_eq!(again["since"], "2026-03-01T12:00:09Z");
    assert_eq!(again["maxConcurrent"], 3);

    let slots = house.decision(&things).await["slots"].clone();
    assert_eq!(slots["assignedTo"], things.region.as_str());
    assert_eq!(slots["maxConcurrent"], 3);
    assert_eq!((&slots["held"], &slots["mine"]), (&json!(0), &json!(false)));

    let unlimited = house.assign(&things.region, &things.policy).await;
    assert_eq!(unlimited["maxConcurrent"], Value::Null);
    assert_eq!(house.decision(&things).await["slots"], Value::Null);
}

#[tokio::test]
async fn a_decision_tells_pauses_orders_and_leave_ahead() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.speaks(&things).await;
    let order = format!("compute/instances/{}/order", things.instance);

    let decision = house.decision(&things).await;
    assert_eq!(told(&decision), ("window_closed", false));
    assert_eq!(decision["act"], "fetch");
    assert_eq!(decision["grant"]["expires"], "2026-03-08T12:00:00Z");
    assert_eq!(
        decision["grant"]["windows"][0]["start"],
        "2026-03-01T13:00:00Z"
    );
    let nights = decision["windows"].as_array().expect("windows");
    assert_eq!(nights[0]["openedBy"], "single_schedule");
    assert_eq!(nights[1]["openedBy"], "repeated_schedule");
    assert_eq!(nights[1]["scheduleId"], things.repeated.as_str());
    // Two o'clock in Berlin in winter.
    assert_eq!(nights[1]["start"], "2026-03-02T01:00:00Z");

    let now = json!({"kind": "now", "seconds": 600, "reason": "a hole"});
    let given = house.ok(&format!("PUT {order}"), Some(now)).await;
    assert_eq!(
        (&given["by"], &given["reason"]),
        (&json!("writer"), &json!("a hole"))
    );
    assert_eq!(given["until"], "2026-03-01T12:10:00Z");
    let decision = house.decision(&things).await;
    assert_eq!(told(&decision), ("window_open", true));
    assert_eq!(
        (&decision["act"], &decision["before"]),
        (&json!("apply"), &given["until"])
    );
    assert_eq!(decision["order"], given);
    assert_eq!(decision["windows"][0]["openedBy"], "order");

    for scope in ["project", &things.site, &things.policy] {
        let pause = format!("pauses/{scope}");
        let made = house
            .ok(&format!("PUT {pause}"), Some(json!({"reason": "a storm"})))
            .await;
        assert_eq!(
            (&made["scope"], &made["by"]),
            (&json!(scope), &json!("writer"))
        );
        let decision = house.decision(&things).await;
        assert_eq!(told(&decision), ("paused", false), "{scope}");
        assert_eq!(decision["pauses"], json!([made]));
        assert_eq!(house.ok("GET pauses", None).await["pauses"], json!([made]));
        house.ok(&format!("DELETE {pause}"), None).await;
        assert!(told(&house.decision(&things).await).1, "{scope}");
    }

    let cancel = json!({"kind": "cancel", "reason": "not now"});
    house.ok(&format!("PUT {order}"), Some(cancel)).await;
    let decision = house.decision(&things).await;
    assert_eq!(told(&decision), ("window_closed", false));
    assert_eq!(decision["order"]["kind"], "cancel");
    assert_eq!(house.ok(&format!("DELETE {order}"), None).await, json!({}));
    for method in ["GET", "DELETE"] {
        let (status, problem) = house.ours(&format!("{method} {order}"), None).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(problem["message"], "order not found");
    }
    assert_eq!(house.decision(&things).await["order"], Value::Null);
}

#[tokio::test]
async fn a_project_says_which_schedules_open_windows_and_for_how_long_runs_are_kept() {
    let house = House::new().await;
    let things = house.furnish().await;
    let usual = json!({"retentionDays": null, "anyScheduleStatus": false});
    assert_eq!(house.ok("GET settings", None).await, usual);
    let mut maintenance = nightly(&things.site);
    maintenance["scheduleStatus"] = json!("SCHEDULE_STATUS_MAINTENANCE");
    let path = format!("schedules/repeated/{}", things.repeated);
    house.ok(&format!("PUT {path}"), Some(maintenance)).await;

    let opens = |decision: &Value| {
        let windows = decision["windows"].as_array().expect("windows").iter();
        windows
            .filter(|w| w["openedBy"] == "repeated_schedule")
            .count()
    };
    assert_eq!(opens(&house.decision(&things).await), 0);
    let other = json!({"retentionDays": 0, "anyScheduleStatus": true});
    assert_eq!(house.ok("PUT settings", Some(other.clone())).await, other);
    assert_eq!(house.ok("GET settings", None).await, other);
    assert!(opens(&house.decision(&things).await) > 0);
    assert_eq!(house.ok("PUT settings", Some(json!({}))).await, usual);
}

#[tokio::test]
async fn an_instance_tells_its_conditions_and_what_is_installed() {
    let house = House::new().await;
    let things = house.furnish().await;
    let now = house.clock.now();
    let installed = r#"[{"name":"curl","version":"8.5","architecture":"amd64"}]"#;
    let digest = [7; 32];
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    contents::put(&tx, &digest, installed, now)
        .await
        .expect("kept");
    tx.commit().await.expect("committed");
    house
        .known(&things.host, |node| {
            node.packages_digest = Some(digest);
            node.conditions = vec![Condition {
                kind: ConditionKind::NotNewer,
                text: "the image is not newer".to_owned(),
                since: now,
            }];
        })
        .await;
    let path = format!("GET compute/instances/{}", things.instance);
    let shown = house.ok(&path, None).await;
    assert_eq!(shown["runtimePackages"], installed);
    let condition = json!({
        "type": "not_newer", "message": "the image is not newer", "since": "2026-03-01T12:00:00Z",
    });
    assert_eq!(shown["conditions"], json!([condition]));
    let listed = house.ok("GET compute/instances", None).await["instances"][0].clone();
    assert_eq!(listed["conditions"], json!([condition]));
    assert_eq!(listed["runtimePackages"], "");
}

#[tokio::test]
async fn a_schedule_is_changed_in_part_or_as_a_whole() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("schedules/repeated/{}", things.repeated);
    let changed = house
        .ok(
            &format!("PATCH {path}"),
            Some(json!({"cronHours": "3", "timeZone": null})),
        )
        .await;
    assert_eq!(
        (&changed["cronHours"], &changed["timeZone"]),
        (&json!("3"), &json!("UTC"))
    );
    assert_eq!(changed["targetSiteId"], things.site.as_str());
    let moved = json!({"targetSiteId": "", "targetRegionId": things.region});
    let moved = house.ok(&format!("PATCH {path}"), Some(moved)).await;
    assert_eq!(moved["targetSite"], Value::Null);
    assert_eq!(moved["targetRegion"]["name"], "south");
    let (status, problem) = house
        .ours(&format!("PATCH {path}"), Some(json!({"cronHours": null})))
        .await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("cronHours"))
    );
    let both = Some(json!({"targetHostId": things.host}));
    let (status, problem) = house.ours(&format!("PATCH {path}"), both).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("targetRegionId"))
    );

    // A window that is open can be prolonged, but not made to have begun at another time of the past.
    let path = format!("schedules/single/{}", things.schedule);
    house.clock.advance(TimeDelta::seconds(5_000));
    let later = house.seconds(9_000);
    let longer = house
        .ok(&format!("PATCH {path}"), Some(json!({"endSeconds": later})))
        .await;
    assert_eq!(longer["endSeconds"], later);
    let open_ended = house
        .ok(
            &format!("PATCH {path}?fieldMask=endSeconds"),
            Some(json!({})),
        )
        .await;
    assert_eq!(open_ended["endSeconds"], 0);
    let mut whole = open_ended.clone();
    whole["name"] = json!("tonight, and longer");
    whole["endSeconds"] = json!(later);
    let (status, problem) = house
        .ours(&format!("PUT {path}"), Some(whole.clone()))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "a comma: {problem}");
    whole["name"] = json!("tonight and longer");
    let put = house.ok(&format!("PUT {path}"), Some(whole)).await;
    assert_eq!(put["startSeconds"], open_ended["startSeconds"]);
    let past = Some(json!({"startSeconds": house.seconds(-10)}));
    let (status, problem) = house.ours(&format!("PATCH {path}"), past).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("startSeconds"))
    );
}

#[tokio::test]
async fn a_node_that_holds_back_what_it_could_begin_says_why() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.speaks(&things).await;
    house
        .known(&things.host, |node| {
            node.waiting = "alice is logged in".to_owned();
            node.facts = json!({"limits": "hours 22:00-04:00"});
        })
        .await;
    let decision = house.decision(&things).await;
    assert_eq!(decision["waiting"], "alice is logged in");
    assert_eq!(decision["ownerLimits"], "hours 22:00-04:00");
    let text = |decision: &Value| decision["reason"]["text"].as_str().map(str::to_owned);
    let reason = text(&decision).expect("a reason");
    assert!(
        !reason.contains("the node waits"),
        "it could not begin anyway: {reason}"
    );

    let order = format!("PUT compute/instances/{}/order", things.instance);
    let now = json!({"kind": "now", "seconds": 600, "reason": "a hole"});
    house.ok(&order, Some(now)).await;
    let decision = house.decision(&things).await;
    assert_eq!(told(&decision), ("window_open", true));
    let reason = text(&decision).expect("a reason");
    assert!(
        reason.ends_with("; the node waits: alice is logged in"),
        "{reason}"
    );
}

/// EIM's agents know no rules.
#[tokio::test]
async fn what_the_rules_leave_out_is_told_of_nodes_that_know_rules() {
    let house = House::new().await;
    let things = house.furnish().await;
    let body = json!({
        "name": "careful", "updatePolicy": "UPDATE_POLICY_LATEST", "packageRules": {"exclude": ["ba*"]},
    });
    let made = house.ok("POST os-update-policies", Some(body)).await;
    let id = made["resourceId"].as_str().expect("an id");
    house.assign(&things.instance, id).await;
    let available =
        r#"[{"name":"bash","architecture":"amd64"},{"name":"curl","architecture":"amd64"}]"#;
    let left_out = async || {
        let decision = house.decision(&things).await;
        let updates = decision["availableUpdates"].as_array().expect("a list");
        updates
            .iter()
            .map(|one| one["leftOut"] == true)
            .collect::<Vec<_>>()
    };
    house.speaks(&things).await;
    house
        .known(&things.host, |node| {
            node.os_update_available = available.to_owned();
        })
        .await;
    assert_eq!(left_out().await, [true, false]);
    house
        .known(&things.host, |node| node.protocol = Protocol::Eim)
        .await;
    assert_eq!(left_out().await, [false, false]);
}
