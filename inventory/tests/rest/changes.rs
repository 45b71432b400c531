//! A partial change keeps all other fields, and each operation does one thing.

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::Target;
use evenkeel_domain::package::PackageChange;
use evenkeel_domain::run::{
    AttemptId, CancelCause, Failure, FailureKind, Origin, RunEvent, RunEventRecord, RunTimeouts,
};
use evenkeel_kit::Clock;
use evenkeel_store::nodes::NodeState;
use evenkeel_store::runs::{self, RunOpening, Subject};
use evenkeel_store::{contents, policies};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{ResourceIds, TestServer, nightly};

fn new_attempt(resources: &ResourceIds) -> Subject {
    Subject::New(Box::new(RunOpening {
        instance: resources.instance.parse().expect("an id"),
        name: "edge-01 update".to_owned(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::now_v7())),
        origin: Origin { target: None, policy: None, order: None },
        follows: None,
        assignment: None,
    }))
}

impl TestServer {
    /// Lets a run of the instance fail after it was granted under the assignment of the project.
    async fn fail_run(&self, resources: &ResourceIds, scope: Scope) {
        let tx = self.store.tenant(self.ours).await.expect("a transaction");
        let (now, timeouts) = (self.clock.now(), RunTimeouts::default());
        let new = new_attempt(resources);
        let fetched = RunEventRecord::from_event(RunEvent::Downloaded);
        let run = runs::advance(&tx, new, &fetched, &timeouts, now).await;
        let run = run.expect("it opens");
        runs::grant(&tx, &run, Some(scope), now).await.expect("granted");
        let failed = RunEventRecord::from_event(RunEvent::Failed(Failure {
            kind: FailureKind::Apply,
            reason: "a script failed".to_owned(),
        }));
        runs::advance(&tx, Subject::Run(run.id), &failed, &timeouts, now).await.expect("it ends");
        tx.commit().await.expect("committed");
    }

    /// Assigns the policy to the project with `stopAfterFailures: 1`, and lets a run fail.
    async fn stop_assignment(&self, resources: &ResourceIds) -> Value {
        self.stop_assignment_of("project", resources).await
    }

    async fn stop_assignment_of(&self, target: &str, resources: &ResourceIds) -> Value {
        self.delete(&format!("assignments/{}", resources.instance)).await;
        let body = json!({"osUpdatePolicyId": resources.policy, "stopAfterFailures": 1});
        let path = format!("assignments/{target}");
        self.put(&path, body).await;
        self.fail_run(resources, target.parse().expect("a scope")).await;
        let assignment = self.get(&path).await;
        assert_eq!(assignment["failures"], 1);
        self.clock.advance(TimeDelta::minutes(1));
        assignment
    }
}

#[tokio::test]
async fn removing_a_pause_keeps_an_assignment_that_stopped_after_failures() {
    let (server, resources) = TestServer::with_resources().await;
    let stopped = server.stop_assignment(&resources).await;
    for scope in ["project", &resources.site, &resources.policy] {
        let pause = format!("pauses/{scope}");
        let reason = Some(json!({"reason": "a storm"}));
        let created = server.expect_ok(&format!("PUT {pause}"), reason).await;
        assert_eq!(server.get(&pause).await, created);
        server.delete(&pause).await;
        assert_eq!(server.get("assignments/project").await, stopped);
    }
}

#[tokio::test]
async fn a_missing_pause_is_not_found() {
    let (server, resources) = TestServer::with_resources().await;
    let stopped = server.stop_assignment(&resources).await;
    for scope in ["project", &resources.site, &resources.policy, "site-00000000"] {
        for method in ["GET", "DELETE"] {
            let what = format!("{method} pauses/{scope}");
            server.expect_problem(&what, None, 404, json!({"message": "pause not found"})).await;
        }
    }
    assert_eq!(server.get("assignments/project").await, stopped);
}

#[tokio::test]
async fn pauses_are_listed_page_by_page() {
    let (server, resources) = TestServer::with_resources().await;
    for scope in ["project", &resources.site, &resources.policy] {
        server.put(&format!("pauses/{scope}"), json!({})).await;
        server.clock.advance(TimeDelta::seconds(1));
    }
    let page = server.get("pauses?pageSize=1&offset=1").await;
    assert_eq!(page["pauses"][0]["scope"], resources.site.as_str());
    assert_eq!((&page["totalElements"], &page["hasNext"]), (&json!(3), &json!(true)));
    let last = server.get("pauses?pageSize=1&offset=2").await;
    assert_eq!(last["hasNext"], false);
}

#[tokio::test]
async fn a_stopped_assignment_continues_when_it_is_resumed_with_a_reason() {
    let (server, resources) = TestServer::with_resources().await;
    server.stop_assignment(&resources).await;
    let path = format!("GET compute/instances/{}/decision", resources.instance);
    let decision = server.expect_ok(&path, None).await;
    assert_eq!(decision["slots"]["failures"], 1);

    let resume = "PUT assignments/project/resume";
    let reason = Some(json!({"reason": "the mirror is fixed"}));
    let resumed = server.expect_ok(resume, reason.clone()).await;
    assert_eq!(
        (&resumed["failures"], &resumed["since"]),
        (&json!(0), &json!("2026-03-01T12:01:00Z"))
    );
    let resumption = json!({
        "at": "2026-03-01T12:01:00Z", "by": "writer", "reason": "the mirror is fixed",
    });
    assert_eq!(resumed["resumption"], resumption);
    // A retry, because the client lost the response.
    server.clock.advance(TimeDelta::minutes(1));
    assert_eq!(server.expect_ok(resume, reason).await, resumed);
    assert_eq!(server.get("assignments/project").await, resumed);
    // Writing the same values back starts the count again.
    let replaced = server.put("assignments/project", resumed).await;
    assert_eq!(replaced["resumption"], Value::Null);

    let missing = format!("PUT assignments/{}/resume", resources.site);
    server
        .expect_problem(&missing, Some(json!({})), 404, json!({"message": "assignment not found"}))
        .await;
}

impl TestServer {
    /// Lets a run for the policy of the instance plan an upgrade of curl and end before it begins.
    async fn cancel_planned_run(&self, resources: &ResourceIds) {
        let tx = self.store.tenant(self.ours).await.expect("a transaction");
        let policy = resources.policy.parse().expect("an id");
        let policy = policies::find(&tx, policy).await.expect("a policy");
        let mut planned = RunEventRecord::from_event(RunEvent::Downloading);
        planned.evidence.plan = Some(vec![PackageChange {
            name: "curl".into(),
            architecture: "amd64".into(),
            before: Some("8.4".into()),
            desired: Some("8.5".into()),
            ..PackageChange::default()
        }]);
        let mut new = new_attempt(resources);
        if let Subject::New(opening) = &mut new {
            let target = Some(Target::for_packages(&policy));
            opening.origin = Origin { target, policy: Some(policy), order: None };
        }
        let (now, timeouts) = (self.clock.now(), RunTimeouts::default());
        let run = runs::advance(&tx, new, &planned, &timeouts, now).await.expect("it opens");
        let missed = RunEvent::Cancelled(CancelCause::WindowMissed);
        let missed = RunEventRecord::from_event(missed);
        let ended = runs::advance(&tx, Subject::Run(run.id), &missed, &timeouts, now).await;
        tx.commit().await.expect("committed");
        let ended = ended.expect("it ends");
        self.edit_node(&resources.host, |node| node.reflect(&ended, now)).await;
    }
}

#[tokio::test]
async fn a_decision_shows_the_plan_of_the_last_run_while_nothing_has_changed() {
    let (server, resources) = TestServer::with_resources().await;
    server.mark_node_connected(&resources).await;
    let (before, after) = ([7; 32], [8; 32]);
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    for digest in [&before, &after] {
        let stored = contents::insert_if_missing(&tx, digest, "[]", server.clock.now()).await;
        stored.expect("stored");
    }
    tx.commit().await.expect("committed");
    let report = async |packages: [u8; 32], available: &str| {
        let update = json!([{
            "name": "curl", "architecture": "amd64", "installed_version": "8.4", "available_version": available,
        }]);
        let change = |node: &mut NodeState| {
            node.packages_digest = Some(packages);
            node.os_update_available = update.to_string();
        };
        server.edit_node(&resources.host, change).await;
    };
    let planned = async || {
        let path = format!("compute/instances/{}/decision", resources.instance);
        let decision = server.get(&path).await;
        decision["lastPlan"][0]["version"].clone()
    };
    report(before, "8.5").await;
    assert_eq!(planned().await, Value::Null, "there was no run");
    server.cancel_planned_run(&resources).await;
    assert_eq!(planned().await, "8.5");
    report(before, "8.6").await;
    assert_eq!(planned().await, Value::Null, "there is a newer version");
    report(after, "8.5").await;
    assert_eq!(planned().await, Value::Null, "other packages are installed");
    report(before, "8.5").await;
    assert_eq!(planned().await, "8.5");
    server.delete(&format!("assignments/{}", resources.instance)).await;
    assert_eq!(planned().await, Value::Null, "no policy applies");
}

#[tokio::test]
async fn a_decision_shows_the_planned_packages_of_the_open_run() {
    let (server, resources) = TestServer::with_resources().await;
    let mut planned = RunEventRecord::from_event(RunEvent::Downloading);
    planned.evidence.plan = Some(vec![PackageChange {
        name: "curl".into(),
        architecture: "amd64".into(),
        before: None,
        desired: Some("8.5".into()),
        ..PackageChange::default()
    }]);
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let (new, timeouts) = (new_attempt(&resources), RunTimeouts::default());
    runs::advance(&tx, new, &planned, &timeouts, server.clock.now()).await.expect("it opens");
    tx.commit().await.expect("committed");
    let decision = server.get(&format!("compute/instances/{}/decision", resources.instance)).await;
    assert_eq!(decision["run"]["packages"][0]["name"], "curl");
}

#[tokio::test]
async fn a_decision_explains_how_to_resume_a_stopped_assignment() {
    let project = TestServer::with_resources().await;
    let region = TestServer::with_resources().await;
    let id = region.1.region.clone();
    for ((server, resources), target, named) in
        [(project, "project", "project".to_owned()), (region, id.as_str(), format!("south ({id})"))]
    {
        server.stop_assignment_of(target, &resources).await;
        server.mark_node_connected(&resources).await;
        let path = format!("compute/instances/{}", resources.instance);
        let now = Some(json!({"kind": "now"}));
        server.expect_ok(&format!("PUT {path}/order"), now).await;
        let decision = server.get(&format!("{path}/decision")).await;
        assert_eq!(decision["reason"]["code"], "stopped");
        let text = format!(
            "1 update of {named} failed; no more start until `evenkeel assignment resume {target}`"
        );
        assert_eq!(decision["reason"]["text"], text);
    }
}

#[tokio::test]
async fn limits_stay_unless_they_are_named() {
    let (server, resources) = TestServer::with_resources().await;
    server.stop_assignment(&resources).await;
    let patch_limits = async |body: Value| {
        let assignment = server.patch("assignments/project", body).await;
        (
            assignment["maxConcurrent"].clone(),
            assignment["stopAfterFailures"].clone(),
            assignment["failures"].clone(),
        )
    };
    let same = json!({"osUpdatePolicyId": resources.policy, "maxConcurrent": 5});
    assert_eq!(patch_limits(same).await, (json!(5), json!(1), json!(1)));
    let raised = json!({"stopAfterFailures": 2});
    assert_eq!(patch_limits(raised).await, (json!(5), json!(2), json!(1)));
    let latest = json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST"});
    let latest = server.post("os-update-policies", latest).await;
    let other = json!({"osUpdatePolicyId": latest["resourceId"]});
    assert_eq!(patch_limits(other).await, (json!(5), json!(2), json!(0)));
    let none = json!({"maxConcurrent": null, "stopAfterFailures": null});
    assert_eq!(patch_limits(none).await, (Value::Null, Value::Null, json!(0)));

    // A target without an assignment needs a policy first.
    let site = format!("PATCH assignments/{}", resources.site);
    server.expect_problem(&site, Some(json!({"maxConcurrent": 1})), 404, json!({})).await;
    let limited = json!({"osUpdatePolicyId": resources.policy, "maxConcurrent": 1});
    let created = server.expect_ok(&site, Some(limited)).await;
    assert_eq!(created["maxConcurrent"], 1);
    for (body, field) in [
        (json!({"osUpdatePolicyId": null}), "osUpdatePolicyId"),
        (json!({"maxConcurrent": 0}), "maxConcurrent"),
        (json!({"colour": 1}), "colour"),
    ] {
        server.expect_problem(&site, Some(body), 400, json!({"field": field})).await;
    }
}

/// A client of EIM assigns through the instance and does not know limits.
#[tokio::test]
async fn a_policy_that_is_assigned_by_the_instance_keeps_the_limits() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("assignments/{}", resources.instance);
    let limited = json!({"stopAfterFailures": 3});
    server.patch(&path, limited).await;
    let latest = json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST"});
    let latest = server.post("os-update-policies", latest).await;
    let instance = format!("PATCH compute/instances/{}", resources.instance);
    let other = json!({"osUpdatePolicyID": latest["resourceId"]});
    server.expect_ok(&instance, Some(other)).await;
    let assignment = server.get(&path).await;
    assert_eq!(assignment["osUpdatePolicyId"], latest["resourceId"]);
    assert_eq!(assignment["stopAfterFailures"], 3);
}

#[tokio::test]
async fn a_setting_is_changed_and_the_others_stay() {
    let server = TestServer::new().await;
    let change = async |body: Value| server.patch("settings", body).await;
    let days = change(json!({"retentionDays": 90})).await;
    assert_eq!(days, json!({"retentionDays": 90, "anyScheduleStatus": false}));
    let both = change(json!({"anyScheduleStatus": true})).await;
    assert_eq!(both, json!({"retentionDays": 90, "anyScheduleStatus": true}));
    let cleared = change(json!({"retentionDays": null})).await;
    assert_eq!(cleared, json!({"retentionDays": null, "anyScheduleStatus": true}));
    assert_eq!(server.get("settings").await, cleared);
    for (body, field) in [
        (json!({"retentionDays": 36_501}), "retentionDays"),
        (json!({"anyScheduleStatus": 1}), "anyScheduleStatus"),
        (json!({"colour": 1}), "colour"),
    ] {
        server.expect_problem("PATCH settings", Some(body), 400, json!({"field": field})).await;
    }
}

/// Two requests change two settings at the same time.
#[tokio::test]
async fn no_change_of_settings_is_lost() {
    let server = TestServer::new().await;
    for days in 1..=10 {
        let one = json!({"retentionDays": days});
        let other = json!({"anyScheduleStatus": days % 2 == 0});
        tokio::join!(
            server.patch("settings", one.clone()),
            server.patch("settings", other.clone()),
        );
        let settings = server.get("settings").await;
        assert_eq!(settings["retentionDays"], one["retentionDays"]);
        assert_eq!(settings["anyScheduleStatus"], other["anyScheduleStatus"]);
    }
}

/// A client of EIM reads a schedule, changes it and writes back the fields that it knows.
#[tokio::test]
async fn replacing_a_schedule_keeps_its_time_zone_unless_the_request_names_one() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("PUT schedules/repeated/{}", resources.repeated);
    let put = async |zone: Option<Value>| {
        let mut body = nightly(&resources.site);
        body["name"] = json!("replaced");
        match zone {
            Some(zone) => body["timeZone"] = zone,
            None => drop(body.as_object_mut().expect("members").remove("timeZone")),
        }
        server.expect_ok(&path, Some(body)).await["timeZone"].clone()
    };
    assert_eq!(put(None).await, "Europe/Berlin");
    assert_eq!(put(Some(json!("Asia/Tokyo"))).await, "Asia/Tokyo");
    assert_eq!(put(None).await, "Asia/Tokyo");
    assert_eq!(put(Some(Value::Null)).await, "UTC");
    assert_eq!(put(None).await, "UTC");
    let mut new = nightly(&resources.site);
    new["timeZone"] = Value::Null;
    let created = server.post("schedules/repeated", new).await;
    assert_eq!(created["timeZone"], "UTC");
}

#[tokio::test]
async fn unsupported_host_fields_are_rejected_and_read_only_fields_are_ignored() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("compute/hosts/{}", resources.host);
    for (field, value) in [
        ("desiredPowerState", "POWER_STATE_ON"),
        ("powerCommandPolicy", "POWER_COMMAND_POLICY_IMMEDIATE"),
        ("desiredAmtState", "AMT_STATE_PROVISIONED"),
        ("amtControlMode", "AMT_CONTROL_MODE_ACM"),
        ("amtDnsSuffix", "example.org"),
        ("desiredKvmState", "KVM_STATE_START"),
        ("desiredSolState", "SOL_STATE_START"),
    ] {
        for method in ["PUT", "PATCH"] {
            let body = Some(json!({"name": "other", field: value}));
            server
                .expect_problem(&format!("{method} {path}"), body, 400, json!({"field": field}))
                .await;
        }
        let bad = Some(json!({field: "nonsense?"}));
        server.expect_problem(&format!("PATCH {path}"), bad, 400, json!({"field": field})).await;
    }
    // A client may write back what it read, read-only fields included.
    let mut replacement = server.get(&path).await;
    replacement["currentPowerState"] = json!("POWER_STATE_ON");
    replacement["desiredPowerState"] = Value::Null;
    replacement["name"] = json!("edge-02");
    let put = server.put(&path, replacement).await;
    assert_eq!(put["name"], "edge-02");
    assert_eq!(put["currentPowerState"], "POWER_STATE_UNSPECIFIED");
}
