//! Assignments, pauses, settings: what holds for many nodes.

use serde_json::{Value, json};

use crate::Desk;

fn policies() -> Value {
    json!({
        "osUpdatePolicies": [{"resourceId": "osupdatepolicy-00000001", "name": "security"}],
        "totalElements": 1, "hasNext": false,
    })
}

fn sites() -> Value {
    json!({"sites": [{"resourceId": "site-00000001", "name": "Mitte"}], "totalElements": 1, "hasNext": false})
}

fn assignment(target: &str, failures: u32) -> Value {
    json!({
        "target": target, "targetKind": "site", "osUpdatePolicyId": "osupdatepolicy-00000001", "maxConcurrent": 10,
        "stopAfterFailures": 2, "slotsInUse": 3, "failures": failures, "since": "2026-03-01T10:00:00Z",
    })
}

#[tokio::test]
async fn assignments_are_listed_with_how_far_they_are_used_up() {
    let desk = Desk::new().await;
    let mut free = assignment("project", 0);
    free["maxConcurrent"] = Value::Null;
    free["stopAfterFailures"] = Value::Null;
    free["slotsInUse"] = json!(0);
    let all = json!({
        "assignments": [assignment("site-00000001", 2), free], "totalElements": 2, "hasNext": false,
    });
    desk.double
        .answer("GET assignments", all)
        .answer("GET os-update-policies", policies())
        .answer("GET sites", sites());
    insta::assert_snapshot!(desk.run("evenkeel assignment list").await, @r"
    TARGET                 POLICY                              UPDATING  FAILURES         SINCE
    Mitte (site-00000001)  security (osupdatepolicy-00000001)  3 of 10   2 of 2: stopped  2026-03-01T10:00:00Z
    project                security (osupdatepolicy-00000001)  0         0                2026-03-01T10:00:00Z
    ");
    assert_eq!(
        desk.run("evenkeel assignment list -q").await,
        "site-00000001\nproject\n"
    );
}

#[tokio::test]
async fn a_policy_is_assigned_to_a_target_of_any_kind() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET os-update-policies", policies())
        .answer("GET sites", sites())
        .answer(
            "PATCH assignments/site-00000001",
            assignment("site-00000001", 0),
        )
        .answer("PATCH assignments/project", assignment("project", 0))
        .answer("DELETE assignments/project", json!({}));
    let line =
        "evenkeel assignment set site:Mitte security --max-concurrent 10 --stop-after-failures 2";
    insta::assert_snapshot!(desk.run(line).await, @r"
    target    Mitte (site-00000001)
    policy    security (osupdatepolicy-00000001)
    updating  3 of 10
    failures  0 of 2
    since     2026-03-01T10:00:00Z
    ");
    for rest in [
        "osupdatepolicy-00000001",
        "--max-concurrent 3",
        "--stop-after-failures none",
        "security --no-limits",
    ] {
        desk.run(&format!("evenkeel assignment set project {rest} -q"))
            .await;
    }
    assert_eq!(
        desk.run("evenkeel assignment clear project").await,
        "assignment project cleared\n"
    );
    let asked = desk.double.asked();
    let written: Vec<_> = asked
        .lines()
        .filter(|line| !line.starts_with("GET"))
        .collect();
    insta::assert_snapshot!(written.join("\n"), @r#"
    PATCH assignments/site-00000001 {"maxConcurrent":10,"osUpdatePolicyId":"osupdatepolicy-00000001","stopAfterFailures":2}
    PATCH assignments/project {"osUpdatePolicyId":"osupdatepolicy-00000001"}
    PATCH assignments/project {"maxConcurrent":3}
    PATCH assignments/project {"stopAfterFailures":null}
    PATCH assignments/project {"maxConcurrent":null,"osUpdatePolicyId":"osupdatepolicy-00000001","stopAfterFailures":null}
    DELETE assignments/project
    "#);
}

#[tokio::test]
async fn an_assignment_that_stopped_is_resumed() {
    let desk = Desk::new().await;
    let mut resumed = assignment("site-00000001", 0);
    resumed["resumption"] =
        json!({"at": "2026-03-01T11:00:00Z", "by": "alice", "reason": "mended"});
    desk.double
        .answer("GET os-update-policies", policies())
        .answer("GET sites", sites())
        .answer("PUT assignments/site-00000001/resume", resumed);
    let line = "evenkeel assignment resume site:Mitte --reason mended";
    insta::assert_snapshot!(desk.run(line).await, @r"
    target    Mitte (site-00000001)
    policy    security (osupdatepolicy-00000001)
    updating  3 of 10
    failures  0 of 2
    since     2026-03-01T10:00:00Z
    resumed   by alice at 2026-03-01T11:00:00Z: mended
    ");
    desk.run("evenkeel assignment resume site-00000001 -q")
        .await;
    let told = desk.fail("evenkeel assignment resume project").await;
    assert!(
        told.starts_with("no policy is assigned to project itself\n"),
        "{told}"
    );
    let asked = desk.double.asked();
    let written: Vec<_> = asked
        .lines()
        .filter(|line| line.starts_with("PUT"))
        .collect();
    insta::assert_snapshot!(written.join("\n"), @r#"
    PUT assignments/site-00000001/resume {"reason":"mended"}
    PUT assignments/site-00000001/resume {"reason":""}
    PUT assignments/project/resume {"reason":""}
    "#);
}

#[tokio::test]
async fn a_target_without_a_kind_is_asked_for_it() {
    let desk = Desk::new().await;
    insta::assert_snapshot!(desk.fail("evenkeel assignment set Mitte security").await, @r"
    `Mitte` does not say what kind of target it is
    hint: give an id, or the kind with the name: `instance:Mitte`, `host:Mitte`, `site:Mitte` or `region:Mitte`; `project` is the whole project
    ");
    let told = desk.fail("evenkeel assignment clear site-00000001").await;
    assert!(
        told.starts_with("no policy is assigned to site-00000001 itself\n"),
        "{told}"
    );
}

#[tokio::test]
async fn everything_is_paused_and_resumed() {
    let desk = Desk::new().await;
    let pause = |scope: &str| json!({"scope": scope, "reason": "storm", "by": "alice", "since": "2026-03-01T11:00:00Z"});
    desk.double
        .answer("GET sites", sites())
        .answer("GET os-update-policies", policies())
        .answer("PUT pauses/project", pause("project"))
        .answer("PUT pauses/site-00000001", pause("site-00000001"))
        .answer("PUT pauses/osupdatepolicy-00000001", pause("osupdatepolicy-00000001"))
        .answer("DELETE pauses/project", json!({}))
        .answer(
            "GET pauses",
            json!({"pauses": [pause("project"), pause("site-00000001")], "totalElements": 2, "hasNext": false}),
        );
    insta::assert_snapshot!(desk.run("evenkeel pause --reason storm").await, @r"
    paused  the project
    reason  storm
    by      alice
    since   2026-03-01T11:00:00Z
    ");
    desk.run("evenkeel pause --site Mitte --reason storm").await;
    desk.run("evenkeel pause --policy security --reason storm")
        .await;
    insta::assert_snapshot!(desk.run("evenkeel pause list").await, @r"
    PAUSED                 REASON  BY     SINCE
    project                storm   alice  2026-03-01T11:00:00Z
    Mitte (site-00000001)  storm   alice  2026-03-01T11:00:00Z
    ");
    assert_eq!(
        desk.run("evenkeel resume").await,
        "pause of project taken back\n"
    );
    insta::assert_snapshot!(desk.fail("evenkeel resume --site Mitte").await, @r"
    there is no pause of site-00000001
    hint: `evenkeel pause list` shows the pauses; what stopped after failures goes on with `evenkeel assignment resume`
    ");
    let asked = desk.double.asked();
    let written: Vec<_> = asked
        .lines()
        .filter(|line| !line.starts_with("GET"))
        .collect();
    insta::assert_snapshot!(written.join("\n"), @r#"
    PUT pauses/project {"reason":"storm"}
    PUT pauses/site-00000001 {"reason":"storm"}
    PUT pauses/osupdatepolicy-00000001 {"reason":"storm"}
    DELETE pauses/project
    DELETE pauses/site-00000001
    "#);
}

#[tokio::test]
async fn pauses_are_listed_wherever_the_global_options_stand() {
    let desk = Desk::new().await;
    let none = json!({"pauses": [], "totalElements": 0, "hasNext": false});
    desk.double.answer("GET pauses", none);
    for line in [
        "evenkeel pause list --project default",
        "evenkeel pause --project default list",
        "evenkeel --project default pause list",
        "evenkeel pause -p default --output table list",
    ] {
        assert_eq!(desk.run(line).await, "no pauses\n", "{line}");
    }
    for line in [
        "evenkeel pause --reason storm list",
        "evenkeel pause --site s list",
        "evenkeel pause --policy p list",
    ] {
        let told = desk.fail(line).await;
        assert!(told.starts_with("a list of pauses takes neither"), "{told}");
    }
}

#[tokio::test]
async fn a_setting_is_changed_and_the_others_stay() {
    let desk = Desk::new().await;
    let settings =
        |days: Value, any: bool| json!({"retentionDays": days, "anyScheduleStatus": any});
    desk.double
        .answer("GET settings", settings(Value::Null, true))
        .answer("PATCH settings", settings(json!(90), true));
    insta::assert_snapshot!(desk.run("evenkeel project settings show").await, @r"
    project            default
    runs are kept      as long as the server says
    windows come from  every schedule
    ");
    insta::assert_snapshot!(desk.run("evenkeel project settings set --retention-days 90").await, @r"
    project            default
    runs are kept      90 days after the end
    windows come from  every schedule
    ");
    desk.run("evenkeel project settings set --retention-days default --any-schedule-status false")
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    GET settings
    PATCH settings {"retentionDays":90}
    PATCH settings {"anyScheduleStatus":false,"retentionDays":null}
    "#);
}

#[tokio::test]
async fn a_policy_may_go_back_and_may_hold_offline() {
    let desk = Desk::new().await;
    let made = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "back", "updatePolicy": "UPDATE_POLICY_LATEST",
        "allowDowngrade": true, "offlineDays": 1,
    });
    desk.double.answer("POST os-update-policies", made);
    let line = "evenkeel policy create back --latest --allow-downgrade --offline-days 1";
    insta::assert_snapshot!(desk.run(line).await, @r"
    id          osupdatepolicy-00000001
    name        back
    wish        whatever is newest
    downgrades  allowed
    offline     for a day
    created     -
    ");
    let path = desk.home.path().join("policy.yaml");
    let text = "spec: {name: back, updatePolicy: UPDATE_POLICY_LATEST, allowDowngrade: true, offlineDays: 0}";
    std::fs::write(&path, text).expect("written");
    desk.run(&format!("evenkeel policy create -f {}", path.display()))
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    POST os-update-policies {"name":"back","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":true,"offlineDays":1}
    POST os-update-policies {"name":"back","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":true,"offlineDays":0}
    "#);
}

#[tokio::test]
async fn a_policy_may_have_rules_for_packages() {
    let desk = Desk::new().await;
    let made = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "careful", "updatePolicy": "UPDATE_POLICY_LATEST",
        "packageRules": {
            "suites": ["bookworm-security"], "exclude": ["linux-*", "jq"], "minAgeDays": 7, "allowRemovals": true,
            "reboot": "NEVER", "services": "RESTART", "downloadBytesPerSecond": 2_097_152,
        },
    });
    desk.double.answer("POST os-update-policies", made);
    let line = "evenkeel policy create careful --latest --suite bookworm-security --exclude linux-* --exclude jq \
                --min-age-days 7 --allow-removals --reboot never --restart-services --download-rate 2M";
    let words: Vec<_> = line.split_whitespace().collect();
    insta::assert_snapshot!(desk.run(&words.join(" ")).await, @r"
    id          osupdatepolicy-00000001
    name        careful
    wish        whatever is newest
    downgrades  not allowed
    offline     never
    created     -

    Rules:
    RULE
    only from bookworm-security
    without linux-*, jq
    only versions that are known for 7 days
    packages may be removed
    no reboot
    services that run what was replaced are restarted
    at most 2097152 bytes a second
    ");
    let path = desk.home.path().join("policy.yaml");
    let text =
        "spec: {name: careful, updatePolicy: UPDATE_POLICY_LATEST, packageRules: {exclude: [jq]}}";
    std::fs::write(&path, text).expect("written");
    desk.run(&format!("evenkeel policy create -f {}", path.display()))
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    POST os-update-policies {"name":"careful","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"packageRules":{"suites":["bookworm-security"],"exclude":["linux-*","jq"],"minAgeDays":7,"allowRemovals":true,"reboot":"NEVER","services":"RESTART","downloadBytesPerSecond":2097152}}
    POST os-update-policies {"name":"careful","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"packageRules":{"exclude":["jq"]}}
    "#);
}
