//! Lists, details, creation and deletion of resources.

use serde_json::{Value, json};

use crate::TestCli;

fn hosts() -> Value {
    json!({
        "hosts": [
            {
                "resourceId": "host-00000001", "name": "edge-01", "currentState": "HOST_STATE_ONBOARDED",
                "hostStatus": "Running", "hostStatusIndicator": "STATUS_INDICATION_IDLE",
                "instance": {
                    "resourceId": "inst-00000001", "os": {"name": "Debian GNU/Linux 12"},
                    "updateStatus": "Update completed", "updateStatusIndicator": "STATUS_INDICATION_IDLE",
                    "osUpdateAvailable": "[{\"name\":\"curl\"},{\"name\":\"jq\"}]",
                },
            },
            {"resourceId": "host-00000002", "name": "twin"},
            {"resourceId": "host-00000003", "name": "twin"},
        ],
        "totalElements": 3, "hasNext": false,
    })
}

#[tokio::test]
async fn hosts_are_listed() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/hosts", hosts());
    insta::assert_snapshot!(cli.run("evenkeel host list").await);
    insta::assert_snapshot!(cli.run("evenkeel host list --quiet").await);
    let json: Value =
        serde_json::from_str(&cli.run("evenkeel host list -o json").await).expect("JSON");
    assert_eq!(json[0]["name"], "edge-01");
    assert_eq!(json[1]["instance"], Value::Null);
    let yaml = cli.run("evenkeel host list -o yaml").await;
    assert!(yaml.contains("resourceId: host-00000001"), "{yaml}");
}

#[tokio::test]
async fn an_empty_list_is_reported_only_in_tables() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts", json!({"hosts": [], "totalElements": 0, "hasNext": false}));
    assert_eq!(cli.run("evenkeel host list").await, "no hosts\n");
    assert_eq!(cli.run("evenkeel host list -o json").await, "[]\n");
}

#[tokio::test]
async fn a_host_is_shown_by_its_name() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/hosts", hosts());
    let mut host = hosts()["hosts"][0].clone();
    host["timestamps"] =
        json!({"createdAt": "2026-01-02T03:04:05.678Z", "updatedAt": "2026-01-02T03:04:05Z"});
    cli.fake_server.answer("GET compute/hosts/host-00000001", host);
    insta::assert_snapshot!(cli.run("evenkeel host get edge-01").await);
}

#[tokio::test]
async fn an_ambiguous_name_lists_the_ids() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/hosts", hosts());
    insta::assert_snapshot!(cli.fail("evenkeel host get twin").await, @r"
    2 hosts have the name `twin`
    hint: use one of their IDs: host-00000002, host-00000003
    ");
    insta::assert_snapshot!(cli.fail("evenkeel host delete unknown").await, @r"
    there is no host `unknown`
    hint: `evenkeel host list` lists all hosts
    ");
}

#[tokio::test]
async fn a_host_is_deleted_with_its_instance() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", hosts()["hosts"][0].clone())
        .answer("DELETE compute/instances/inst-00000001", json!({}))
        .answer("DELETE compute/hosts/host-00000001", json!({}));
    insta::assert_snapshot!(cli.run("evenkeel host delete host-00000001 --with-instance").await, @r"
    instance inst-00000001 deleted
    host host-00000001 deleted
    ");
}

#[tokio::test]
async fn a_host_is_registered() {
    let cli = TestCli::new().await;
    cli.fake_server.answer(
        "POST compute/hosts/register",
        json!({"resourceId": "host-00000009", "name": "new"}),
    );
    let id = cli.run("evenkeel host register new --serial ABC12345 -q").await;
    assert_eq!(id, "host-00000009\n");
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"POST compute/hosts/register {"name":"new","serialNumber":"ABC12345","uuid":"","siteId":"","autoOnboard":true,"enableVpro":false,"userLvmSize":0}"#);
}

#[tokio::test]
async fn a_policy_is_created_and_assigned() {
    let cli = TestCli::new().await;
    let policy = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "security", "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "curl=8.5\njq",
    });
    cli.fake_server
        .answer("POST os-update-policies", policy.clone())
        .answer(
            "GET compute/instances",
            json!({
                "instances": [{"resourceId": "inst-00000001", "host": {"name": "edge-01"}}],
                "totalElements": 1, "hasNext": false,
            }),
        )
        .answer("PATCH compute/instances/inst-00000001", json!({"resourceId": "inst-00000001"}));
    insta::assert_snapshot!(
        cli.run("evenkeel policy create security --package curl=8.5 --package jq").await
    );
    cli.fake_server.answer(
        "GET os-update-policies",
        json!({"osUpdatePolicies": [policy], "totalElements": 1, "hasNext": false}),
    );
    cli.run("evenkeel instance set-policy edge-01 security").await;
    cli.run("evenkeel instance set-policy inst-00000001 --none").await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST os-update-policies {"name":"security","updatePolicy":"UPDATE_POLICY_TARGET","updatePackages":"curl=8.5\njq","allowDowngrade":false}
    GET compute/instances?filter=(name == "edge-01" OR host.name == "edge-01")
    GET os-update-policies?filter=name == "security"
    PATCH compute/instances/inst-00000001 {"osUpdatePolicyID":"osupdatepolicy-00000001"}
    PATCH compute/instances/inst-00000001 {"osUpdatePolicyID":""}
    "#);
}

#[tokio::test]
async fn a_schedule_takes_relative_times() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("POST schedules/single", json!({
        "resourceId": "singlesche-00000001", "name": "tonight", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
        "startSeconds": 1_772_366_430, "endSeconds": 1_772_373_630, "targetHostId": "host-00000001",
        "targetHost": {"name": "edge-01"},
    }));
    let line = "evenkeel schedule create tonight --start +30s --duration 2h --host host-00000001";
    insta::assert_snapshot!(cli.run(line).await);
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"POST schedules/single {"name":"tonight","scheduleStatus":"SCHEDULE_STATUS_OS_UPDATE","startSeconds":1772366430,"endSeconds":1772373630,"targetHostId":"host-00000001"}"#);
}

#[tokio::test]
async fn a_join_token_is_shown_once() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("POST join-tokens", json!({
            "resourceId": "jointoken-00000001", "expiresAt": "2026-03-01T13:00:00Z", "mayCreateHosts": true,
            "usable": true, "token": "ekj1.abc.def",
        }))
        .answer("PUT join-tokens/jointoken-00000001/revoke", json!({}));
    assert_eq!(cli.run("evenkeel join-token create -q --one-time").await, "ekj1.abc.def\n");
    insta::assert_snapshot!(cli.run("evenkeel join-token create").await);
    assert_eq!(
        cli.run("evenkeel join-token revoke jointoken-00000001").await,
        "join token jointoken-00000001 revoked\n"
    );
}

#[tokio::test]
async fn tokens_of_operators_are_listed_and_revoked() {
    let cli = TestCli::new().await;
    let (one, other) =
        ("3f2504e0-4f89-41d3-9a0c-0305e82c3301", "3f2504e0-4f89-41d3-9a0c-0305e82c3302");
    let token = |id: &str, revoked: Value| {
        json!({
            "tokenId": id, "subject": "alice", "roles": ["evenkeel-admin"],
            "issuedAt": "2026-03-01T12:00:00Z", "expiresAt": "2026-03-08T12:00:00Z",
            "revokedAt": revoked, "revokedBy": "",
        })
    };
    let revoked = token(other, json!("2026-03-02T12:00:00Z"));
    cli.fake_server
        .answer("GET operator-tokens", json!([token(one, Value::Null), revoked.clone()]))
        .answer(&format!("PUT operator-tokens/{one}/revoke"), revoked)
        .answer("PUT operator-tokens/revoke", json!({}));
    insta::assert_snapshot!(cli.run("evenkeel token list").await, @r"
    ID                                    NAME  SUBJECT  ROLES           EXPIRES               LAST USED  STATE    AGE
    3f2504e0-4f89-41d3-9a0c-0305e82c3301  -     alice    evenkeel-admin  2026-03-08T12:00:00Z  -          valid    0s
    3f2504e0-4f89-41d3-9a0c-0305e82c3302  -     alice    evenkeel-admin  2026-03-08T12:00:00Z  -          revoked  0s
    ");
    let done = cli.run(&format!("evenkeel token revoke {one}")).await;
    assert_eq!(done, format!("token {one} revoked\n"));
    let provider = "https://login.example";
    cli.run(&format!("evenkeel token revoke --subject bob --issuer {provider}")).await;
    let requests = cli.fake_server.requests();
    let last = requests.lines().last().unwrap_or_default();
    let body = r#"{"subject":"bob","issuer":"https://login.example"}"#;
    assert_eq!(last, format!("PUT operator-tokens/revoke {body}"));
}

#[tokio::test]
async fn a_token_for_automation_is_shown_once() {
    let cli = TestCli::new().await;
    let created = json!({
        "tokenId": "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "name": "ci", "project": "default",
        "subject": "alice", "roles": ["11111111-2222-3333-4444-555555555555_im-rw"],
        "namedRoles": ["operator@default"], "issuedAt": "2026-03-01T12:00:00Z",
        "expiresAt": "2026-03-31T12:00:00Z", "revokedAt": null, "revokedBy": "",
        "lastUsedAt": "2026-03-02T12:00:00Z", "token": "eyJ.abc.def",
    });
    cli.fake_server
        .answer("POST operator-tokens", created.clone())
        .answer("POST operator-tokens", created.clone());
    let create = "evenkeel token create ci --role operator --expires 30d";
    insta::assert_snapshot!(cli.run(create).await, @r"
    id       3f2504e0-4f89-41d3-9a0c-0305e82c3301
    name     ci
    roles    operator@default
    expires  2026-03-31T12:00:00Z
    token    eyJ.abc.def
    ");
    assert_eq!(cli.run(&format!("{create} --quiet")).await, "eyJ.abc.def\n");
    let body = r#"{"name":"ci","role":"operator","lifetimeSeconds":2592000}"#;
    let requests = cli.fake_server.requests();
    assert_eq!(requests.lines().last(), Some(&*format!("POST operator-tokens {body}")));
    cli.fake_server.answer("GET operator-tokens", json!([created]));
    let listed = cli.run("evenkeel token list").await;
    let row = listed.lines().last().unwrap_or_default();
    for part in [" ci ", " operator@default ", " 2026-03-02T12:00:00Z ", " valid"] {
        assert!(row.contains(part), "{part}: {listed}");
    }
}

#[tokio::test]
async fn the_revocation_of_an_unknown_subject_fails_unless_forced() {
    let cli = TestCli::new().await;
    let unknown = json!({"unknownSubject": true});
    // An older server does not report it.
    for answer in [unknown.clone(), unknown, json!({})] {
        cli.fake_server.answer("PUT operator-tokens/revoke", answer);
    }
    let failure = cli.fail("evenkeel token revoke --subject alise").await;
    let expected =
        "the server has no record of a token or a login of `alise`\nhint: check the name";
    assert!(failure.starts_with(expected), "{failure}");
    let done = cli.run("evenkeel token revoke --subject alise --force").await;
    assert_eq!(done, "all tokens of alise revoked\n");
    let done = cli.run("evenkeel token revoke --subject alise").await;
    assert_eq!(done, "all tokens of alise revoked\n");
}

#[tokio::test]
async fn an_operating_system_is_read_from_a_profile() {
    let cli = TestCli::new().await;
    let path = cli.home.path().join("profile.yaml");
    let text = "appVersion: apps/v1\nmetadata: {release: 1}\nspec:\n  name: Edge 3\n  type: OS_TYPE_IMMUTABLE\n  \
                provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: edge\n  \
                osImageUrl: files/edge.raw.gz\n  osImageVersion: 3.0.1\n  \
                osImageSha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n  \
                osPackageManifestURL: files/manifest.json\n  metadata: {channel: stable}\n";
    std::fs::write(&path, text).expect("written");
    cli.fake_server
        .answer("POST compute/os", json!({"resourceId": "os-00000001", "name": "Edge 3"}));
    cli.run(&format!("evenkeel os create -f {}", path.display())).await;
    insta::assert_snapshot!(cli.fake_server.requests());
}

#[tokio::test]
async fn projects_are_created_and_deleted() {
    let cli = TestCli::new().await;
    let project = json!({
        "name": "lab", "spec": {"description": "ours"},
        "status": {"projectStatus": {
            "statusIndicator": "STATUS_INDICATION_IDLE", "message": "ready", "timeStamp": 1_772_366_400,
            "uID": "11111111-2222-3333-4444-555555555555",
        }},
    });
    cli.fake_server
        .answer("PUT projects/lab", json!({}))
        .answer("GET projects/lab", project.clone())
        .answer("GET projects", json!([project]))
        .answer("DELETE projects/lab", json!({}));
    insta::assert_snapshot!(cli.run("evenkeel project create lab --description ours").await);
    insta::assert_snapshot!(cli.run("evenkeel project list").await);
    assert_eq!(cli.run("evenkeel project list -q").await, "lab\n");
    assert_eq!(cli.run("evenkeel project delete lab --yes").await, "project lab deleted\n");
}

#[tokio::test]
async fn an_empty_name_is_rejected_without_a_request() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer(
            "GET compute/hosts",
            json!({"hosts": [{"resourceId": "host-00000001"}], "totalElements": 1, "hasNext": false}),
        )
        .answer(
            "GET compute/instances",
            json!({"instances": [{"resourceId": "inst-00000001"}], "totalElements": 1, "hasNext": false}),
        );
    let message = cli.fail("evenkeel host delete \"\"").await;
    assert!(message.starts_with("the ID or name of the host is empty\n"), "{message}");
    let message = cli.fail("evenkeel instance delete \"\"").await;
    assert!(message.starts_with("the ID or name of the instance is empty\n"), "{message}");
    assert_eq!(cli.fake_server.requests(), "");
}

#[tokio::test]
async fn a_join_token_is_used_up_or_expired() {
    let token = |one_time: bool, used: u32| {
        json!({
            "resourceId": "jointoken-00000001", "expiresAt": "2026-01-01T00:00:00Z", "oneTime": one_time,
            "usedCount": used, "usable": false,
        })
    };
    for (one_time, used, state) in
        [(true, 1, "used up"), (true, 0, "expired"), (false, 3, "expired")]
    {
        let cli = TestCli::new().await;
        cli.fake_server.answer(
            "GET join-tokens",
            json!({"joinTokens": [token(one_time, used)], "totalElements": 1, "hasNext": false}),
        );
        let text = cli.run("evenkeel join-token list").await;
        assert!(text.contains(state), "{state}: {text}");
    }
}

#[tokio::test]
async fn a_project_in_ids_only_mode_is_its_name() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET projects/west", json!({"name": "west"}));
    assert_eq!(cli.run("evenkeel project get west -q").await, "west\n");
}

#[tokio::test]
async fn the_deletion_of_a_project_is_confirmed_with_the_number_of_its_hosts() {
    let mut cli = TestCli::new().await;
    let summary = json!({"total": 3, "running": 3, "error": 0, "unallocated": 0});
    let empty = json!({"total": 0, "running": 0, "error": 0, "unallocated": 0});
    cli.fake_server
        .answer("GET projects/lab/compute/hosts/summary", summary)
        .answer("GET projects/attic/compute/hosts/summary", empty)
        .answer("DELETE projects/lab?force=true", json!({}))
        .answer("DELETE projects/attic", json!({}));
    insta::assert_snapshot!(cli.fail("evenkeel project delete lab --force").await, @r"
    this deletes the project lab with 3 hosts and everything else in it
    hint: add --yes to confirm
    ");
    cli.interactive = true;
    let refused = cli.answer("evenkeel project delete lab --force", "\n").await;
    assert_eq!(refused.expect_err("the default is no").to_string(), "nothing was done");
    insta::assert_snapshot!(cli.fail("evenkeel project delete lab").await, @r"
    the project lab has 3 hosts
    hint: `evenkeel project delete lab --force` deletes it with all its contents
    ");
    assert!(!cli.fake_server.requests().contains("DELETE"), "{}", cli.fake_server.requests());
    let delete = "evenkeel project delete lab --force";
    let (text, _) = cli.answer(delete, "y\n").await.expect("deleted");
    let question = "delete the project lab with 3 hosts and everything else in it? [y/N] ";
    assert_eq!(text, format!("{question}project lab deleted\n"));
    let (text, _) = cli.answer("evenkeel project delete attic", "y\n").await.expect("deleted");
    let question = "delete the project attic, which has no hosts, and everything in it? [y/N] ";
    assert_eq!(text, format!("{question}project attic deleted\n"));
}

#[tokio::test]
async fn a_project_in_use_is_deleted_only_with_force() {
    let cli = TestCli::new().await;
    let in_use = json!({"code": "FailedPrecondition", "message": "the project still has 3 hosts"});
    cli.fake_server
        .answer_with("DELETE projects/lab", 400, in_use)
        .answer("DELETE projects/lab?force=true", json!({}));
    insta::assert_snapshot!(cli.fail("evenkeel project delete lab --yes").await, @r"
    the project still has 3 hosts
    hint: `evenkeel project delete lab --force` deletes it with all its contents
    ");
    assert_eq!(cli.run("evenkeel project delete lab --force --yes").await, "project lab deleted\n");
}

#[tokio::test]
async fn an_operating_system_is_changed() {
    let cli = TestCli::new().await;
    cli.fake_server.answer(
        "PATCH compute/os/os-00000001",
        json!({"resourceId": "os-00000001", "architecture": "arm64", "metadata": "{\"channel\":\"stable\"}"}),
    );
    let text = cli.run("evenkeel os set os-00000001 --architecture arm64 --metadata {}").await;
    assert!(text.contains("architecture   arm64\n"), "{text}");
    assert!(text.contains("metadata       {\"channel\":\"stable\"}\n"), "{text}");
    assert_eq!(
        cli.fake_server.requests(),
        r#"PATCH compute/os/os-00000001 {"architecture":"arm64","metadata":"{}"}"#
    );
}
