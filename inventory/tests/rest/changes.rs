//! What is changed in part stays as it is otherwise, and one act does one thing.

use axum::http::StatusCode;
use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::run::{
    AttemptId, Failure, FailureKind, Happening, Origin, Patience, RunEvent,
};
use evenkeel_kit::Clock;
use evenkeel_store::runs::{self, Opening, Subject};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{House, Things, nightly};

impl House {
    /// A run of the instance fails after it was given leave under the assignment of the project.
    async fn fails(&self, things: &Things) {
        let tx = self.store.tenant(self.ours).await.expect("a transaction");
        let opening = Opening {
            instance: things.instance.parse().expect("an id"),
            name: "edge-01 update".to_owned(),
            description: String::new(),
            attempt: Some(AttemptId(Uuid::now_v7())),
            origin: Origin {
                target: None,
                policy: None,
                order: None,
            },
            follows: None,
        };
        let (now, patience) = (self.clock.now(), Patience::default());
        let new = Subject::New(Box::new(opening));
        let fetched = Happening::of(RunEvent::Downloaded);
        let run = runs::advance(&tx, new, &fetched, &patience, now).await;
        let run = run.expect("it opens");
        runs::grant(&tx, &run, Some(Scope::Project), now)
            .await
            .expect("granted");
        let failed = Happening::of(RunEvent::Failed(Failure {
            kind: FailureKind::Apply,
            reason: "a script failed".to_owned(),
        }));
        runs::advance(&tx, Subject::Run(run.id), &failed, &patience, now)
            .await
            .expect("it ends");
        tx.commit().await.expect("committed");
    }

    /// The policy is assigned to the project, stops after a failure, and one has failed.
    async fn stopped(&self, things: &Things) -> Value {
        self.ok(&format!("DELETE assignments/{}", things.instance), None)
            .await;
        let body = json!({"osUpdatePolicyId": things.policy, "stopAfterFailures": 1});
        self.ok("PUT assignments/project", Some(body)).await;
        self.fails(things).await;
        let told = self.ok("GET assignments/project", None).await;
        assert_eq!(told["failures"], 1);
        self.clock.advance(TimeDelta::minutes(1));
        told
    }
}

#[tokio::test]
async fn to_take_a_pause_back_leaves_what_stopped_after_failures_alone() {
    let house = House::new().await;
    let things = house.furnish().await;
    let stopped = house.stopped(&things).await;
    for scope in ["project", &things.site, &things.policy] {
        let pause = format!("pauses/{scope}");
        let reason = Some(json!({"reason": "a storm"}));
        let made = house.ok(&format!("PUT {pause}"), reason).await;
        assert_eq!(house.ok(&format!("GET {pause}"), None).await, made);
        house.ok(&format!("DELETE {pause}"), None).await;
        assert_eq!(house.ok("GET assignments/project", None).await, stopped);
    }
}

#[tokio::test]
async fn a_pause_that_is_not_there_is_not_found() {
    let house = House::new().await;
    let things = house.furnish().await;
    let stopped = house.stopped(&things).await;
    for scope in ["project", &things.site, &things.policy, "site-00000000"] {
        for method in ["GET", "DELETE"] {
            let what = format!("{method} pauses/{scope}");
            let (status, problem) = house.ours(&what, None).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{what}: {problem}");
            assert_eq!(problem["message"], "pause not found", "{what}");
        }
    }
    assert_eq!(house.ok("GET assignments/project", None).await, stopped);
}

#[tokio::test]
async fn pauses_are_listed_page_by_page() {
    let house = House::new().await;
    let things = house.furnish().await;
    for scope in ["project", &things.site, &things.policy] {
        house
            .ok(&format!("PUT pauses/{scope}"), Some(json!({})))
            .await;
        house.clock.advance(TimeDelta::seconds(1));
    }
    let page = house.ok("GET pauses?pageSize=1&offset=1", None).await;
    assert_eq!(page["pauses"][0]["scope"], things.site.as_str());
    assert_eq!(
        (&page["totalElements"], &page["hasNext"]),
        (&json!(3), &json!(true))
    );
    let last = house.ok("GET pauses?pageSize=1&offset=2", None).await;
    assert_eq!(last["hasNext"], false);
}

#[tokio::test]
async fn an_assignment_that_stopped_goes_on_when_somebody_says_so_and_why() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.stopped(&things).await;
    let path = format!("GET compute/instances/{}/decision", things.instance);
    let decision = house.ok(&path, None).await;
    assert_eq!(decision["slots"]["failures"], 1);

    let resume = "PUT assignments/project/resume";
    let because = Some(json!({"reason": "the mirror is mended"}));
    let told = house.ok(resume, because.clone()).await;
    assert_eq!(
        (&told["failures"], &told["since"]),
        (&json!(0), &json!("2026-03-01T12:01:00Z"))
    );
    let resumption = json!({
        "at": "2026-03-01T12:01:00Z", "by": "writer", "reason": "the mirror is mended",
    });
    assert_eq!(told["resumption"], resumption);
    // Once more, because the answer was lost.
    house.clock.advance(TimeDelta::minutes(1));
    assert_eq!(house.ok(resume, because).await, told);
    assert_eq!(house.ok("GET assignments/project", None).await, told);
    // What was read is written back, and counts from now.
    let anew = house.ok("PUT assignments/project", Some(told)).await;
    assert_eq!(anew["resumption"], Value::Null);

    let nothing = format!("PUT assignments/{}/resume", things.site);
    let (status, problem) = house.ours(&nothing, Some(json!({}))).await;
    assert_eq!(
        (status, &problem["message"]),
        (StatusCode::NOT_FOUND, &json!("assignment not found"))
    );
}

#[tokio::test]
async fn a_decision_tells_how_a_stopped_assignment_goes_on() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.stopped(&things).await;
    house.speaks(&things).await;
    let path = format!("compute/instances/{}", things.instance);
    let now = Some(json!({"kind": "now"}));
    house.ok(&format!("PUT {path}/order"), now).await;
    let decision = house.ok(&format!("GET {path}/decision"), None).await;
    assert_eq!(decision["reason"]["code"], "stopped");
    let text =
        "1 updates of project failed; it starts no more until `evenkeel assignment resume project`";
    assert_eq!(decision["reason"]["text"], text);
}

#[tokio::test]
async fn limits_stay_unless_they_are_named() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.stopped(&things).await;
    let told = async |body: Value| {
        let told = house.ok("PATCH assignments/project", Some(body)).await;
        (
            told["maxConcurrent"].clone(),
            told["stopAfterFailures"].clone(),
            told["failures"].clone(),
        )
    };
    let same = json!({"osUpdatePolicyId": things.policy, "maxConcurrent": 5});
    assert_eq!(told(same).await, (json!(5), json!(1), json!(1)));
    let raised = json!({"stopAfterFailures": 2});
    assert_eq!(told(raised).await, (json!(5), json!(2), json!(1)));
    let latest = json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST"});
    let latest = house.ok("POST os-update-policies", Some(latest)).await;
    let other = json!({"osUpdatePolicyId": latest["resourceId"]});
    assert_eq!(told(other).await, (json!(5), json!(2), json!(0)));
    let none = json!({"maxConcurrent": null, "stopAfterFailures": null});
    assert_eq!(told(none).await, (Value::Null, Value::Null, json!(0)));

    // Where nothing is assigned, only a policy can be.
    let site = format!("PATCH assignments/{}", things.site);
    let (status, _) = house.ours(&site, Some(json!({"maxConcurrent": 1}))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let made = json!({"osUpdatePolicyId": things.policy, "maxConcurrent": 1});
    let made = house.ok(&site, Some(made)).await;
    assert_eq!(made["maxConcurrent"], 1);
    for (body, field) in [
        (json!({"osUpdatePolicyId": null}), "osUpdatePolicyId"),
        (json!({"maxConcurrent": 0}), "maxConcurrent"),
        (json!({"colour": 1}), "colour"),
    ] {
        let (status, problem) = house.ours(&site, Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["field"], field);
    }
}

/// A client of the ancestor assigns by the instance and knows of no limits.
#[tokio::test]
async fn a_policy_that_is_assigned_by_the_instance_keeps_the_limits() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("assignments/{}", things.instance);
    let limited = json!({"stopAfterFailures": 3});
    house.ok(&format!("PATCH {path}"), Some(limited)).await;
    let latest = json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST"});
    let latest = house.ok("POST os-update-policies", Some(latest)).await;
    let instance = format!("PATCH compute/instances/{}", things.instance);
    let other = json!({"osUpdatePolicyID": latest["resourceId"]});
    house.ok(&instance, Some(other)).await;
    let told = house.ok(&format!("GET {path}"), None).await;
    assert_eq!(told["osUpdatePolicyId"], latest["resourceId"]);
    assert_eq!(told["stopAfterFailures"], 3);
}

#[tokio::test]
async fn a_setting_is_changed_and_the_others_stay() {
    let house = House::new().await;
    let change = async |body: Value| house.ok("PATCH settings", Some(body)).await;
    let days = change(json!({"retentionDays": 90})).await;
    assert_eq!(
        days,
        json!({"retentionDays": 90, "anyScheduleStatus": false})
    );
    let both = change(json!({"anyScheduleStatus": true})).await;
    assert_eq!(
        both,
        json!({"retentionDays": 90, "anyScheduleStatus": true})
    );
    let usual = change(json!({"retentionDays": null})).await;
    assert_eq!(
        usual,
        json!({"retentionDays": null, "anyScheduleStatus": true})
    );
    assert_eq!(house.ok("GET settings", None).await, usual);
    for (body, field) in [
        (json!({"retentionDays": 36_501}), "retentionDays"),
        (json!({"anyScheduleStatus": 1}), "anyScheduleStatus"),
        (json!({"colour": 1}), "colour"),
    ] {
        let (status, problem) = house.ours("PATCH settings", Some(body)).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::BAD_REQUEST, &json!(field))
        );
    }
}

/// Two people change two settings at the same time.
#[tokio::test]
async fn no_change_of_settings_is_lost() {
    let house = House::new().await;
    for days in 1..=10 {
        let one = json!({"retentionDays": days});
        let other = json!({"anyScheduleStatus": days % 2 == 0});
        tokio::join!(
            house.ok("PATCH settings", Some(one.clone())),
            house.ok("PATCH settings", Some(other.clone())),
        );
        let told = house.ok("GET settings", None).await;
        assert_eq!(told["retentionDays"], one["retentionDays"]);
        assert_eq!(told["anyScheduleStatus"], other["anyScheduleStatus"]);
    }
}

/// A client of the ancestor reads a schedule, changes it and writes back the fields that it knows.
#[tokio::test]
async fn a_schedule_that_is_described_anew_keeps_its_zone_unless_it_is_named() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("PUT schedules/repeated/{}", things.repeated);
    let put = async |zone: Option<Value>| {
        let mut body = nightly(&things.site);
        body["name"] = json!("anew");
        match zone {
            Some(zone) => body["timeZone"] = zone,
            None => drop(body.as_object_mut().expect("members").remove("timeZone")),
        }
        house.ok(&path, Some(body)).await["timeZone"].clone()
    };
    assert_eq!(put(None).await, "Europe/Berlin");
    assert_eq!(put(Some(json!("Asia/Tokyo"))).await, "Asia/Tokyo");
    assert_eq!(put(None).await, "Asia/Tokyo");
    assert_eq!(put(Some(Value::Null)).await, "UTC");
    assert_eq!(put(None).await, "UTC");
    let mut new = nightly(&things.site);
    new["timeZone"] = Value::Null;
    let made = house.ok("POST schedules/repeated", Some(new)).await;
    assert_eq!(made["timeZone"], "UTC");
}

#[tokio::test]
async fn what_a_host_cannot_be_told_is_refused_and_what_it_cannot_be_asked_is_ignored() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("compute/hosts/{}", things.host);
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
            let (status, problem) = house.ours(&format!("{method} {path}"), body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{field}: {problem}");
            assert_eq!(problem["field"], field);
        }
        let bad = Some(json!({field: "nonsense?"}));
        let (status, problem) = house.ours(&format!("PATCH {path}"), bad).await;
        assert_eq!(
            (status, &problem["field"]),
            (StatusCode::BAD_REQUEST, &json!(field))
        );
    }
    // What was read is written back, also what only the server can say.
    let mut whole = house.ok(&format!("GET {path}"), None).await;
    whole["currentPowerState"] = json!("POWER_STATE_ON");
    whole["desiredPowerState"] = Value::Null;
    whole["name"] = json!("edge-02");
    let put = house.ok(&format!("PUT {path}"), Some(whole)).await;
    assert_eq!(put["name"], "edge-02");
    assert_eq!(put["currentPowerState"], "POWER_STATE_UNSPECIFIED");
}
