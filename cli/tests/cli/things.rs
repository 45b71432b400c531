//! Listing, showing, making and deleting.

use serde_json::{Value, json};

use crate::Desk;

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
    let desk = Desk::new().await;
    desk.double.answer("GET compute/hosts", hosts());
    insta::assert_snapshot!(desk.run("evenkeel host list").await);
    insta::assert_snapshot!(desk.run("evenkeel host list --quiet").await);
    let json: Value =
        serde_json::from_str(&desk.run("evenkeel host list -o json").await).expect("JSON");
    assert_eq!(json[0]["name"], "edge-01");
    assert_eq!(json[1]["instance"], Value::Null);
    let yaml = desk.run("evenkeel host list -o yaml").await;
    assert!(yaml.contains("resourceId: host-00000001"), "{yaml}");
}

#[tokio::test]
async fn an_empty_list_says_so_to_people_only() {
    let desk = Desk::new().await;
    desk.double.answer(
        "GET compute/hosts",
        json!({"hosts": [], "totalElements": 0, "hasNext": false}),
    );
    assert_eq!(desk.run("evenkeel host list").await, "no hosts\n");
    assert_eq!(desk.run("evenkeel host list -o json").await, "[]\n");
}

#[tokio::test]
async fn a_host_is_shown_by_its_name() {
    let desk = Desk::new().await;
    desk.double.answer("GET compute/hosts", hosts());
    let mut host = hosts()["hosts"][0].clone();
    host["timestamps"] =
        json!({"createdAt": "2026-01-02T03:04:05.678Z", "updatedAt": "2026-01-02T03:04:05Z"});
    desk.double.answer("GET compute/hosts/host-00000001", host);
    insta::assert_snapshot!(desk.run("evenkeel host get edge-01").await);
}

#[tokio::test]
async fn a_name_that_means_several_things_lists_their_ids() {
    let desk = Desk::new().await;
    desk.double.answer("GET compute/hosts", hosts());
    insta::assert_snapshot!(desk.fail("evenkeel host get twin").await, @r"
    2 hosts are called `twin`
    hint: say which by its id: host-00000002, host-00000003
    ");
    insta::assert_snapshot!(desk.fail("evenkeel host delete nobody").await, @r"
    there is no host `nobody`
    hint: `evenkeel host list` shows what there is
    ");
}

#[tokio::test]
async fn a_host_is_deleted_with_what_runs_on_it() {
    let desk = Desk::new().await;
    desk.double
        .answer(
            "GET compute/hosts/host-00000001",
            hosts()["hosts"][0].clone(),
        )
        .answer("DELETE compute/instances/inst-00000001", json!({}))
        .answer("DELETE compute/hosts/host-00000001", json!({}));
    insta::assert_snapshot!(desk.run("evenkeel host delete host-00000001 --with-instance").await, @r"
    instance inst-00000001 deleted
    host host-00000001 deleted
    ");
}

#[tokio::test]
async fn a_machine_is_announced() {
    let desk = Desk::new().await;
    desk.double.answer(
        "POST compute/hosts/register",
        json!({"resourceId": "host-00000009", "name": "new"}),
    );
    let id = desk
        .run("evenkeel host register new --serial ABC12345 -q")
        .await;
    assert_eq!(id, "host-00000009\n");
    insta::assert_snapshot!(desk.double.asked(), @r#"POST compute/hosts/register {"name":"new","serialNumber":"ABC12345","uuid":"","siteId":"","autoOnboard":true,"enableVpro":false,"userLvmSize":0}"#);
}

#[tokio::test]
async fn a_policy_is_made_and_assigned() {
    let desk = Desk::new().await;
    let policy = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "security", "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "curl=8.5\njq",
    });
    desk.double
        .answer("POST os-update-policies", policy.clone())
        .answer(
            "GET os-update-policies",
            json!({
                "osUpdatePolicies": [policy], "totalElements": 1, "hasNext": false,
            }),
        )
        .answer(
            "GET compute/instances",
            json!({
                "instances": [{"resourceId": "inst-00000001", "host": {"name": "edge-01"}}],
                "totalElements": 1, "hasNext": false,
            }),
        )
        .answer(
            "PATCH compute/instances/inst-00000001",
            json!({"resourceId": "inst-00000001"}),
        );
    insta::assert_snapshot!(
        desk.run("evenkeel policy create security --package curl=8.5 --package jq")
            .await
    );
    desk.run("evenkeel instance set-policy edge-01 security")
        .await;
    desk.run("evenkeel instance set-policy inst-00000001 --none")
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    POST os-update-policies {"name":"security","updatePolicy":"UPDATE_POLICY_TARGET","updatePackages":"curl=8.5\njq","allowDowngrade":false}
    GET compute/instances?filter=(name == "edge-01" OR host.name == "edge-01")
    GET os-update-policies?filter=name == "security"
    PATCH compute/instances/inst-00000001 {"osUpdatePolicyID":"osupdatepolicy-00000001"}
    PATCH compute/instances/inst-00000001 {"osUpdatePolicyID":""}
    "#);
}

#[tokio::test]
async fn a_schedule_is_given_in_relative_times() {
    let desk = Desk::new().await;
    desk.double.answer("POST schedules/single", json!({
        "resourceId": "singlesche-00000001", "name": "tonight", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
        "startSeconds": 1_772_366_430, "endSeconds": 1_772_373_630, "targetHostId": "host-00000001",
        "targetHost": {"name": "edge-01"},
    }));
    let line = "evenkeel schedule create tonight --start +30s --duration 2h --host host-00000001";
    insta::assert_snapshot!(desk.run(line).await);
    insta::assert_snapshot!(desk.double.asked(), @r#"POST schedules/single {"name":"tonight","scheduleStatus":"SCHEDULE_STATUS_OS_UPDATE","startSeconds":1772366430,"endSeconds":1772373630,"targetHostId":"host-00000001"}"#);
}

#[tokio::test]
async fn a_join_token_is_shown_once() {
    let desk = Desk::new().await;
    desk.double
        .answer("POST join-tokens", json!({
            "resourceId": "jointoken-00000001", "expiresAt": "2026-03-01T13:00:00Z", "mayCreateHosts": true,
            "usable": true, "token": "ekj1.abc.def",
        }))
        .answer("PUT join-tokens/jointoken-00000001/revoke", json!({}));
    assert_eq!(
        desk.run("evenkeel join-token create -q --one-time").await,
        "ekj1.abc.def\n"
    );
    insta::assert_snapshot!(desk.run("evenkeel join-token create").await);
    assert_eq!(
        desk.run("evenkeel join-token revoke jointoken-00000001")
            .await,
        "join token jointoken-00000001 revoked\n"
    );
}

#[tokio::test]
async fn an_operating_system_is_read_from_a_profile() {
    let desk = Desk::new().await;
    let path = desk.home.path().join("profile.yaml");
    let text = "appVersion: apps/v1\nmetadata: {release: 1}\nspec:\n  name: Edge 3\n  type: OS_TYPE_IMMUTABLE\n  \
                provider: OS_PROVIDER_KIND_INFRA\n  architecture: x86_64\n  profileName: edge\n  \
                osImageUrl: files/edge.raw.gz\n  osImageVersion: 3.0.1\n  \
                osImageSha256: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n  \
                osPackageManifestURL: files/manifest.json\n  metadata: {channel: stable}\n";
    std::fs::write(&path, text).expect("written");
    desk.double.answer(
        "POST compute/os",
        json!({"resourceId": "os-00000001", "name": "Edge 3"}),
    );
    desk.run(&format!("evenkeel os create -f {}", path.display()))
        .await;
    insta::assert_snapshot!(desk.double.asked());
}

#[tokio::test]
async fn projects_are_made_and_deleted() {
    let desk = Desk::new().await;
    let project = json!({
        "name": "lab", "spec": {"description": "ours"},
        "status": {"projectStatus": {
            "statusIndicator": "STATUS_INDICATION_IDLE", "message": "ready", "timeStamp": 1_772_366_400,
            "uID": "11111111-2222-3333-4444-555555555555",
        }},
    });
    desk.double
        .answer("PUT projects/lab", json!({}))
        .answer("GET projects/lab", project.clone())
        .answer("GET projects", json!([project]))
        .answer("DELETE projects/lab", json!({}));
    insta::assert_snapshot!(
        desk.run("evenkeel project create lab --description ours")
            .await
    );
    insta::assert_snapshot!(desk.run("evenkeel project list").await);
    assert_eq!(desk.run("evenkeel project list -q").await, "lab\n");
    assert_eq!(
        desk.run("evenkeel project delete lab").await,
        "project lab deleted\n"
    );
}

#[tokio::test]
async fn an_empty_text_means_nothing_and_nobody_is_asked() {
    let desk = Desk::new().await;
    desk.double
        .answer(
            "GET compute/hosts",
            json!({"hosts": [{"resourceId": "host-00000001"}], "totalElements": 1, "hasNext": false}),
        )
        .answer(
            "GET compute/instances",
            json!({"instances": [{"resourceId": "inst-00000001"}], "totalElements": 1, "hasNext": false}),
        );
    let told = desk.fail("evenkeel host delete \"\"").await;
    assert!(told.starts_with("an empty text means no host\n"), "{told}");
    let told = desk.fail("evenkeel instance delete \"\"").await;
    assert!(
        told.starts_with("an empty text means no instance\n"),
        "{told}"
    );
    assert_eq!(desk.double.asked(), "");
}

#[tokio::test]
async fn a_join_token_is_used_up_or_expired() {
    let token = |one_time: bool, used: u32| {
        json!({
            "resourceId": "jointoken-00000001", "expiresAt": "2026-01-01T00:00:00Z", "oneTime": one_time,
            "usedCount": used, "usable": false,
        })
    };
    for (one_time, used, state) in [
        (true, 1, "used up"),
        (true, 0, "expired"),
        (false, 3, "expired"),
    ] {
        let desk = Desk::new().await;
        desk.double.answer(
            "GET join-tokens",
            json!({"joinTokens": [token(one_time, used)], "totalElements": 1, "hasNext": false}),
        );
        let text = desk.run("evenkeel join-token list").await;
        assert!(text.contains(state), "{state}: {text}");
    }
}

#[tokio::test]
async fn a_quiet_project_is_its_name() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET projects/west", json!({"name": "west"}));
    assert_eq!(desk.run("evenkeel project get west -q").await, "west\n");
}

#[tokio::test]
async fn a_project_that_is_in_use_is_deleted_only_on_purpose() {
    let desk = Desk::new().await;
    let held = json!({"code": "FailedPrecondition", "message": "the project still has 3 hosts"});
    desk.double
        .answer_with("DELETE projects/lab", 400, held)
        .answer("DELETE projects/lab?force=true", json!({}));
    insta::assert_snapshot!(desk.fail("evenkeel project delete lab").await, @r"
    the project still has 3 hosts
    hint: `evenkeel project delete lab --force` deletes it with all that is in it
    ");
    assert_eq!(
        desk.run("evenkeel project delete lab --force").await,
        "project lab deleted\n"
    );
}
