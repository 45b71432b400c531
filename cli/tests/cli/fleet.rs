//! Assignments, pauses, project settings and policies.

use serde_json::{Value, json};

use crate::TestCli;

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
async fn assignments_are_listed_with_their_usage() {
    let cli = TestCli::new().await;
    let mut free = assignment("project", 0);
    free["maxConcurrent"] = Value::Null;
    free["stopAfterFailures"] = Value::Null;
    free["slotsInUse"] = json!(0);
    let all = json!({
        "assignments": [assignment("site-00000001", 2), free], "totalElements": 2, "hasNext": false,
    });
    cli.fake_server
        .answer("GET assignments", all)
        .answer("GET os-update-policies", policies())
        .answer("GET sites", sites());
    insta::assert_snapshot!(cli.run("evenkeel assignment list").await, @r"
    TARGET                 POLICY                              UPDATING  FAILURES         SINCE
    Mitte (site-00000001)  security (osupdatepolicy-00000001)  3 of 10   2 of 2: stopped  2026-03-01T10:00:00Z
    project                security (osupdatepolicy-00000001)  0         0                2026-03-01T10:00:00Z
    ");
    assert_eq!(cli.run("evenkeel assignment list -q").await, "site-00000001\nproject\n");
}

#[tokio::test]
async fn a_policy_is_assigned_to_a_target_of_any_kind() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET os-update-policies", policies())
        .answer("GET sites", sites())
        .answer("PATCH assignments/site-00000001", assignment("site-00000001", 0))
        .answer("PATCH assignments/project", assignment("project", 0))
        .answer("DELETE assignments/project", json!({}));
    let line =
        "evenkeel assignment set site:Mitte security --max-concurrent 10 --stop-after-failures 2";
    insta::assert_snapshot!(cli.run(line).await, @r"
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
        cli.run(&format!("evenkeel assignment set project {rest} -q")).await;
    }
    assert_eq!(cli.run("evenkeel assignment clear project").await, "assignment project cleared\n");
    let requests = cli.fake_server.requests();
    let written: Vec<_> = requests.lines().filter(|line| !line.starts_with("GET")).collect();
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
    let cli = TestCli::new().await;
    let mut resumed = assignment("site-00000001", 0);
    resumed["resumption"] = json!({"at": "2026-03-01T11:00:00Z", "by": "alice", "reason": "fixed"});
    cli.fake_server
        .answer("GET os-update-policies", policies())
        .answer("GET sites", sites())
        .answer("PUT assignments/site-00000001/resume", resumed);
    let line = "evenkeel assignment resume site:Mitte --reason fixed";
    insta::assert_snapshot!(cli.run(line).await, @r"
    target    Mitte (site-00000001)
    policy    security (osupdatepolicy-00000001)
    updating  3 of 10
    failures  0 of 2
    since     2026-03-01T10:00:00Z
    resumed   by alice at 2026-03-01T11:00:00Z: fixed
    ");
    cli.run("evenkeel assignment resume site-00000001 -q").await;
    let message = cli.fail("evenkeel assignment resume project").await;
    assert!(message.starts_with("no policy is assigned directly to project\n"), "{message}");
    let requests = cli.fake_server.requests();
    let written: Vec<_> = requests.lines().filter(|line| line.starts_with("PUT")).collect();
    insta::assert_snapshot!(written.join("\n"), @r#"
    PUT assignments/site-00000001/resume {"reason":"fixed"}
    PUT assignments/site-00000001/resume {"reason":""}
    PUT assignments/project/resume {"reason":""}
    "#);
}

#[tokio::test]
async fn the_host_of_an_assignment_is_shown_with_its_name() {
    let cli = TestCli::new().await;
    let hosts = json!({
        "hosts": [{"resourceId": "host-00000001", "name": "vm"}], "totalElements": 1, "hasNext": false,
    });
    cli.fake_server
        .answer("GET os-update-policies", policies())
        .answer("GET compute/hosts", hosts)
        .answer("PATCH assignments/host-00000001", assignment("host-00000001", 0))
        .answer("DELETE assignments/host-00000001", json!({}));
    let text = cli.run("evenkeel assignment set host:vm security").await;
    assert!(text.starts_with("target    vm (host-00000001)\n"), "{text}");
    let text = cli.run("evenkeel assignment clear host:vm").await;
    assert_eq!(text, "assignment vm (host-00000001) cleared\n");
    let text = cli.run("evenkeel assignment clear host:vm -q").await;
    assert_eq!(text, "host-00000001\n");
}

#[tokio::test]
async fn a_target_without_a_kind_is_rejected() {
    let cli = TestCli::new().await;
    insta::assert_snapshot!(cli.fail("evenkeel assignment set Mitte security").await, @r"
    `Mitte` is not an ID and does not name a kind of target
    hint: give an ID, or a kind and a name: `instance:Mitte`, `host:Mitte`, `site:Mitte` or `region:Mitte`; `project` is the whole project
    ");
    let message = cli.fail("evenkeel assignment clear site-00000001").await;
    assert!(message.starts_with("no policy is assigned directly to site-00000001\n"), "{message}");
}

#[tokio::test]
async fn everything_is_paused_and_resumed() {
    let cli = TestCli::new().await;
    let pause = |scope: &str| json!({"scope": scope, "reason": "storm", "by": "alice", "since": "2026-03-01T11:00:00Z"});
    cli.fake_server
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
    insta::assert_snapshot!(cli.run("evenkeel pause --reason storm").await, @r"
    paused  the project
    reason  storm
    by      alice
    since   2026-03-01T11:00:00Z
    ");
    let paused = cli.run("evenkeel pause --site Mitte --reason storm").await;
    assert!(paused.starts_with("paused  Mitte (site-00000001)\n"), "{paused}");
    cli.run("evenkeel pause --policy security --reason storm").await;
    insta::assert_snapshot!(cli.run("evenkeel pause list").await, @r"
    PAUSED                 REASON  BY     SINCE
    project                storm   alice  2026-03-01T11:00:00Z
    Mitte (site-00000001)  storm   alice  2026-03-01T11:00:00Z
    ");
    assert_eq!(cli.run("evenkeel resume").await, "pause of project removed\n");
    insta::assert_snapshot!(cli.fail("evenkeel resume --site Mitte").await, @r"
    there is no pause of site-00000001
    hint: `evenkeel pause list` lists the pauses; resume an assignment that stopped after failures with `evenkeel assignment resume`
    ");
    let requests = cli.fake_server.requests();
    let written: Vec<_> = requests.lines().filter(|line| !line.starts_with("GET")).collect();
    insta::assert_snapshot!(written.join("\n"), @r#"
    PUT pauses/project {"reason":"storm"}
    PUT pauses/site-00000001 {"reason":"storm"}
    PUT pauses/osupdatepolicy-00000001 {"reason":"storm"}
    DELETE pauses/project
    DELETE pauses/site-00000001
    "#);
}

#[tokio::test]
async fn pauses_are_listed_with_global_options_in_any_position() {
    let cli = TestCli::new().await;
    let none = json!({"pauses": [], "totalElements": 0, "hasNext": false});
    cli.fake_server.answer("GET pauses", none);
    for line in [
        "evenkeel pause list --project default",
        "evenkeel pause --project default list",
        "evenkeel --project default pause list",
        "evenkeel pause -p default --output table list",
    ] {
        assert_eq!(cli.run(line).await, "no pauses\n", "{line}");
    }
    for line in [
        "evenkeel pause --reason storm list",
        "evenkeel pause --site s list",
        "evenkeel pause --policy p list",
    ] {
        let message = cli.fail(line).await;
        assert!(message.starts_with("`pause list` accepts neither"), "{message}");
    }
}

#[tokio::test]
async fn a_setting_is_changed_and_the_others_stay() {
    let cli = TestCli::new().await;
    let settings =
        |days: Value, any: bool| json!({"retentionDays": days, "anyScheduleStatus": any});
    cli.fake_server
        .answer("GET settings", settings(Value::Null, true))
        .answer("PATCH settings", settings(json!(90), true));
    insta::assert_snapshot!(cli.run("evenkeel project settings show").await, @r"
    project        default
    run retention  server default
    windows from   all schedules
    ");
    insta::assert_snapshot!(cli.run("evenkeel project settings set --retention-days 90").await, @r"
    project        default
    run retention  90 days after the end
    windows from   all schedules
    ");
    cli.run("evenkeel project settings set --retention-days default --any-schedule-status false")
        .await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET settings
    PATCH settings {"retentionDays":90}
    PATCH settings {"anyScheduleStatus":false,"retentionDays":null}
    "#);
}

#[tokio::test]
async fn a_policy_may_allow_downgrades_and_offline_days() {
    let cli = TestCli::new().await;
    let policy = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "back", "updatePolicy": "UPDATE_POLICY_LATEST",
        "allowDowngrade": true, "offlineDays": 1,
    });
    cli.fake_server.answer("POST os-update-policies", policy);
    let line = "evenkeel policy create back --latest --allow-downgrade --offline-days 1";
    insta::assert_snapshot!(cli.run(line).await, @r"
    id          osupdatepolicy-00000001
    name        back
    desired     latest
    downgrades  allowed
    offline     for 1 day
    created     -
    ");
    let path = cli.home.path().join("policy.yaml");
    let text = "spec: {name: back, updatePolicy: UPDATE_POLICY_LATEST, allowDowngrade: true, offlineDays: 0}";
    std::fs::write(&path, text).expect("written");
    cli.run(&format!("evenkeel policy create -f {}", path.display())).await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST os-update-policies {"name":"back","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":true,"offlineDays":1}
    POST os-update-policies {"name":"back","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":true,"offlineDays":0}
    "#);
}

#[tokio::test]
async fn a_policy_may_have_rules_for_packages() {
    let cli = TestCli::new().await;
    let policy = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "careful", "updatePolicy": "UPDATE_POLICY_LATEST",
        "packageRules": {
            "suites": ["bookworm-security"], "exclude": ["linux-*", "jq"], "minAgeDays": 7, "allowRemovals": true,
            "reboot": "NEVER", "services": "RESTART", "downloadBytesPerSecond": 2_097_152,
            "unusedPackages": "REMOVE_ALL",
            "minimalSteps": true,
        },
    });
    cli.fake_server.answer("POST os-update-policies", policy);
    let line = "evenkeel policy create careful --latest --suite bookworm-security --exclude linux-* --exclude jq \
                --min-age-days 7 --allow-removals --reboot never --restart-services --download-rate 2M \
                --unused-packages remove-all --minimal-steps";
    let args: Vec<_> = line.split_whitespace().collect();
    insta::assert_snapshot!(cli.run(&args.join(" ")).await, @r"
    id          osupdatepolicy-00000001
    name        careful
    desired     latest
    downgrades  not allowed
    offline     never
    created     -

    Rules:
    RULE
    only from bookworm-security
    without linux-*, jq
    only versions known for at least 7 days
    packages may be removed
    no reboot
    restart services that use replaced files
    download at 2097152 bytes per second at most
    remove unused packages
    independent packages one after another
    ");
    let path = cli.home.path().join("policy.yaml");
    let text =
        "spec: {name: careful, updatePolicy: UPDATE_POLICY_LATEST, packageRules: {exclude: [jq]}}";
    std::fs::write(&path, text).expect("written");
    cli.run(&format!("evenkeel policy create -f {}", path.display())).await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST os-update-policies {"name":"careful","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"packageRules":{"suites":["bookworm-security"],"exclude":["linux-*","jq"],"minAgeDays":7,"allowRemovals":true,"reboot":"NEVER","services":"RESTART","downloadBytesPerSecond":2097152,"unusedPackages":"REMOVE_ALL","minimalSteps":true}}
    POST os-update-policies {"name":"careful","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"packageRules":{"exclude":["jq"]}}
    "#);
}
