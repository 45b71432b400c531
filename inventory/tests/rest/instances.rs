//! Instances: what they refer to, what of them can be changed until when, and how the trust in them ends.

use axum::http::StatusCode;
use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::house::{House, Who, os_body};

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1LQmV0h8eCDfX5T";

fn id(answer: &Value) -> &str {
    answer["resourceId"].as_str().expect("an id")
}

impl House {
    /// An account and two configurations: their ids.
    async fn first_start(&self) -> (String, Vec<String>) {
        let ann = json!({"username": "ann", "sshKey": KEY});
        let ann = self.ok("POST localAccounts", Some(ann)).await;
        let mut configs = Vec::new();
        for name in ["ntp", "proxy"] {
            let body = json!({"name": name, "description": "of all", "config": "#cloud-config"});
            let made = self.ok("POST customConfigs", Some(body)).await;
            configs.push(id(&made).to_owned());
        }
        configs.sort();
        (id(&ann).to_owned(), configs)
    }

    /// A host on which nothing runs.
    async fn bare(&self) -> String {
        let body = json!({"name": "bare", "serialNumber": "BARE12345"});
        let made = self.ok("POST compute/hosts/register", Some(body)).await;
        id(&made).to_owned()
    }

    /// The operating system with this name.
    async fn system(&self, name: &str) -> String {
        id(&self.ok("POST compute/os", Some(os_body(name))).await).to_owned()
    }
}

#[tokio::test]
async fn an_instance_tells_what_it_starts_with_and_the_list_tells_less() {
    let house = House::new().await;
    let things = house.furnish().await;
    let (ann, configs) = house.first_start().await;
    let (first, second) = (&configs[0], &configs[1]);
    let body = json!({
        "hostID": house.bare().await, "osID": things.os, "kind": "INSTANCE_KIND_METAL",
        "localAccountID": ann, "customConfigID": [second, first, second], "osUpdatePolicyID": "",
    });
    let made = house.ok("POST compute/instances", Some(body)).await;
    assert_eq!(made["customConfigID"], json!(configs));
    let path = format!("compute/instances/{}", id(&made));
    let shown = house.ok(&format!("GET {path}"), None).await;
    assert_eq!(shown, made);
    assert_eq!(shown["localAccountID"], ann.as_str());
    assert_eq!(shown["localaccount"]["username"], "ann");
    let told: Vec<_> = shown["customConfig"]
        .as_array()
        .expect("a list")
        .iter()
        .map(id)
        .collect();
    assert_eq!(told, [first, second]);
    assert_eq!(shown["host"]["name"], "bare");
    assert_eq!(shown["host"]["instance"], Value::Null);

    let list = house.ok("GET compute/instances", None).await;
    let listed = list["instances"].as_array().expect("a list");
    let listed = listed
        .iter()
        .find(|one| one["resourceId"] == made["resourceId"]);
    let listed = listed.expect("it is there");
    assert_eq!(listed["customConfig"], json!([]));
    assert_eq!(listed["customConfigID"], json!(configs));
    assert_eq!(listed["localaccount"], shown["localaccount"]);
    assert_eq!(listed["os"], shown["os"]);

    for used in [
        format!("DELETE localAccounts/{ann}"),
        format!("DELETE customConfigs/{first}"),
    ] {
        let (status, problem) = house.ours(&used, None).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("FailedPrecondition")),
            "{used}"
        );
    }
    house.ok(&format!("DELETE {path}"), None).await;
    house.ok(&format!("DELETE localAccounts/{ann}"), None).await;
}

#[tokio::test]
async fn what_an_instance_has_not_is_null_or_empty() {
    let house = House::new().await;
    let things = house.furnish().await;
    let body = json!({"hostID": house.bare().await, "osID": things.os});
    let made = house.ok("POST compute/instances", Some(body)).await;
    for null in ["localaccount", "updatePolicy", "effectiveUpdatePolicy"] {
        assert_eq!(made[null], Value::Null, "{null}");
    }
    for empty in ["customConfig", "customConfigID", "workloadMembers"] {
        assert_eq!(made[empty], json!([]), "{empty}");
    }
    for text in [
        "localAccountID",
        "osUpdatePolicyID",
        "existingCves",
        "runtimePackages",
        "osUpdateAvailable",
    ] {
        assert_eq!(made[text], "", "{text}");
    }
    assert_eq!(made["instanceID"], made["resourceId"]);
    assert_eq!(made["kind"], "INSTANCE_KIND_UNSPECIFIED");
    assert_eq!(made["provisioningStatus"], "Not Provisioned");
}

#[tokio::test]
async fn an_instance_is_made_of_things_that_are_there_and_once_on_a_host() {
    let house = House::new().await;
    let things = house.furnish().await;
    let bare = house.bare().await;
    let with = |field: &str, value: Value| {
        let mut body = json!({"hostID": bare, "osID": things.os});
        body[field] = value;
        Some(body)
    };
    for (body, code, field) in [
        (with("hostID", json!("")), "InvalidArgument", "hostID"),
        (with("osID", json!("")), "InvalidArgument", "osID"),
        (
            with("localAccountID", json!("ann")),
            "InvalidArgument",
            "localAccountID",
        ),
        (
            with("customConfigID", json!(["ntp"])),
            "InvalidArgument",
            "customConfigID",
        ),
        (with("kind", json!("METAL")), "InvalidArgument", "kind"),
        (
            with("hostID", json!(things.host)),
            "FailedPrecondition",
            "hostID",
        ),
        (
            with("hostID", json!("host-00000000")),
            "FailedPrecondition",
            "hostID",
        ),
        (
            with("osID", json!("os-00000000")),
            "FailedPrecondition",
            "osID",
        ),
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
        let (status, problem) = house.ours("POST compute/instances", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{field}: {problem}");
        assert_eq!(problem["code"], code, "{field}: {problem}");
        assert_eq!(problem["field"], field, "{problem}");
    }
    let list = house.ok("GET compute/instances", None).await;
    assert_eq!(list["totalElements"], 1, "something was written");
}

#[tokio::test]
async fn a_policy_must_be_meant_for_the_operating_system_it_is_assigned_to() {
    let house = House::new().await;
    let things = house.furnish().await;
    let mut image = os_body("Edge 3");
    image["osType"] = json!("OS_TYPE_IMMUTABLE");
    let image = house.ok("POST compute/os", Some(image)).await;
    let policy = json!({"name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image["resourceId"]});
    let policy = house.ok("POST os-update-policies", Some(policy)).await;
    assert_eq!(policy["targetOs"]["name"], "Edge 3");
    assert_eq!(policy["targetOsId"], "");

    let patch = format!("PATCH compute/instances/{}", things.instance);
    let body = Some(json!({"osUpdatePolicyID": policy["resourceId"]}));
    let (status, problem) = house.ours(&patch, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["field"], "osUpdatePolicyID");
    insta::assert_snapshot!(
        problem["message"].as_str().expect("a text"),
        @"osUpdatePolicyID: policy image does not fit: it wishes for an image, and the instance is updated by packages"
    );
    // Nor may the operating system be changed under the policy that is assigned.
    let body = Some(json!({"osID": image["resourceId"]}));
    let (status, problem) = house.ours(&patch, body).await;
    assert_eq!(
        (status, &problem["field"]),
        (StatusCode::BAD_REQUEST, &json!("osID")),
        "{problem}"
    );
    let both = json!({"osID": image["resourceId"], "osUpdatePolicyID": policy["resourceId"]});
    let changed = house.ok(&patch, Some(both)).await;
    assert_eq!(changed["os"]["name"], "Edge 3");
    assert_eq!(changed["updatePolicy"]["name"], "image");
}

#[tokio::test]
async fn the_operating_system_is_chosen_until_the_node_has_spoken() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("compute/instances/{}", things.instance);
    let other = house.system("Debian 13").await;
    let changed = house
        .ok(&format!("PATCH {path}"), Some(json!({"osID": other})))
        .await;
    assert_eq!(
        (&changed["osID"], &changed["os"]["name"]),
        (&json!(other), &json!("Debian 13"))
    );
    assert_eq!(changed["updatePolicy"]["name"], "security");

    house.speaks(&things).await;
    let before = house.ok(&format!("GET {path}"), None).await;
    assert_eq!(before["currentState"], "INSTANCE_STATE_RUNNING");
    let back = json!({"osID": things.os, "name": "x", "osUpdatePolicyID": things.policy});
    for method in ["PUT", "PATCH"] {
        let what = format!("{method} {path}");
        let (status, problem) = house.ours(&what, Some(back.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["field"], "osID", "{what}: {problem}");
        assert_eq!(
            problem["message"],
            format!("osID: the instance is provisioned with {other}; its node says what it runs")
        );
    }
    assert_eq!(house.ok(&format!("GET {path}"), None).await, before);
    let same = json!({"osID": other, "name": "renamed"});
    let renamed = house.ok(&format!("PATCH {path}"), Some(same)).await;
    assert_eq!(renamed["name"], "renamed");
}

#[tokio::test]
async fn what_is_chosen_when_an_instance_is_made_is_taken_with_its_own_value_only() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("compute/instances/{}", things.instance);
    let before = house.ok(&format!("GET {path}"), None).await;
    for (query, body, field) in [
        (
            "",
            json!({"hostID": "host-00000001", "name": "x"}),
            "hostID",
        ),
        ("", json!({"hostID": null}), "hostID"),
        ("", json!({"hostID": ""}), "hostID"),
        ("?fieldMask=hostID", json!({}), "hostID"),
        (
            "",
            json!({"securityFeature": "SECURITY_FEATURE_NONE"}),
            "securityFeature",
        ),
        (
            "",
            json!({"localAccountID": "localaccount-00000001"}),
            "localAccountID",
        ),
        (
            "",
            json!({"customConfigID": ["customconfig-00000001"]}),
            "customConfigID",
        ),
    ] {
        let what = format!("PATCH {path}{query}");
        let (status, problem) = house.ours(&what, Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["field"], field, "{what}: {problem}");
        assert_eq!(
            problem["message"],
            format!("{field}: it is chosen when the instance is made, and cannot be changed")
        );
    }
    for (query, body, field) in [
        ("", json!({"kind": 7}), "kind"),
        ("", json!({"osID": null}), "osID"),
        ("?fieldMask=osID", json!({}), "osID"),
        ("", json!({"name": "a;b"}), "name"),
        ("", json!({"colour": "red"}), "colour"),
        (
            "?fieldMask=name,colour",
            json!({"name": "red"}),
            "fieldMask",
        ),
    ] {
        let what = format!("PATCH {path}{query}");
        let (status, problem) = house.ours(&what, Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{what}: {problem}");
        assert_eq!(problem["field"], field, "{what}: {problem}");
    }
    assert_eq!(house.ok(&format!("GET {path}"), None).await, before);

    let mut body = before.clone();
    body["name"] = json!("renamed");
    // What is read holds no policy's id: it would take the policy away.
    body["osUpdatePolicyID"] = json!(things.policy);
    house.clock.advance(TimeDelta::minutes(1));
    for method in ["PUT", "PATCH"] {
        let renamed = house
            .ok(&format!("{method} {path}"), Some(body.clone()))
            .await;
        assert_eq!(renamed["name"], "renamed");
        assert_eq!(renamed["updatePolicy"], before["updatePolicy"]);
        assert_eq!(renamed["timestamps"]["updatedAt"], "2026-03-01T12:01:00Z");
        // What changes nothing leaves no trace.
        house.clock.advance(TimeDelta::minutes(1));
    }
}

#[tokio::test]
async fn a_change_touches_only_what_its_mask_names() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = |query: &str| format!("PATCH compute/instances/{}{query}", things.instance);

    let renamed = house
        .ok(
            &path(""),
            Some(json!({"name": "renamed", "host": null, "hostID": things.host})),
        )
        .await;
    assert_eq!(renamed["name"], "renamed");
    assert_eq!(renamed["updatePolicy"]["name"], "security");

    let masked = house
        .ok(
            &path("?fieldMask=kind"),
            Some(json!({"name": "not meant", "hostID": "x", "kind": "INSTANCE_KIND_METAL"})),
        )
        .await;
    assert_eq!(masked["name"], "renamed");
    assert_eq!(masked["kind"], "INSTANCE_KIND_METAL");

    let read_only = house
        .ok(
            &path("?fieldMask=currentState,instanceStatus,name"),
            Some(json!({"currentState": "INSTANCE_STATE_DELETED", "name": "again"})),
        )
        .await;
    assert_eq!(read_only["name"], "again");
    assert_eq!(read_only["currentState"], "INSTANCE_STATE_UNSPECIFIED");

    let cleared = house
        .ok(&path("?fieldMask=osUpdatePolicyID"), Some(json!({})))
        .await;
    assert_eq!(cleared["updatePolicy"], Value::Null);
    assert_eq!(cleared["name"], "again");

    for nothing in [json!(null), json!("")] {
        let linked = house
            .ok(&path(""), Some(json!({"osUpdatePolicyID": things.policy})))
            .await;
        assert_eq!(linked["updatePolicy"]["name"], "security");
        let unlinked = house
            .ok(&path(""), Some(json!({"osUpdatePolicyID": nothing})))
            .await;
        assert_eq!(unlinked["updatePolicy"], Value::Null);
    }
}

#[tokio::test]
async fn an_instance_that_is_described_anew_loses_what_is_left_out_but_not_what_it_is() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("compute/instances/{}", things.instance);
    let body = json!({"kind": "INSTANCE_KIND_METAL", "osUpdatePolicyID": things.policy});
    let put = house.ok(&format!("PUT {path}"), Some(body)).await;
    assert_eq!(
        (&put["kind"], &put["name"]),
        (&json!("INSTANCE_KIND_METAL"), &json!(""))
    );
    assert_eq!(put["updatePolicy"]["name"], "security");

    let put = house
        .ok(&format!("PUT {path}"), Some(json!({"name": "anew"})))
        .await;
    assert_eq!(
        (&put["kind"], &put["name"]),
        (&json!("INSTANCE_KIND_UNSPECIFIED"), &json!("anew"))
    );
    assert_eq!(put["updatePolicy"], Value::Null);
    assert_eq!(
        (&put["hostID"], &put["osID"]),
        (&json!(things.host), &json!(things.os))
    );
    let (status, problem) = house
        .ours("PUT compute/instances/inst-00000000", Some(json!({})))
        .await;
    assert_eq!(
        (status, &problem["message"]),
        (StatusCode::NOT_FOUND, &json!("instance_resource not found"))
    );
}

/// Two people change two fields at the same time.
#[tokio::test]
async fn no_change_of_an_instance_is_lost() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("PATCH compute/instances/{}", things.instance);
    for n in 0..5 {
        let kind = ["INSTANCE_KIND_METAL", "INSTANCE_KIND_UNSPECIFIED"][n % 2];
        let name = format!("name {n}");
        tokio::join!(
            house.ok(&path, Some(json!({"name": name}))),
            house.ok(&path, Some(json!({"kind": kind}))),
        );
        let told = house
            .ok(&format!("GET compute/instances/{}", things.instance), None)
            .await;
        assert_eq!((&told["name"], &told["kind"]), (&json!(name), &json!(kind)));
    }
}

#[tokio::test]
async fn an_instance_that_is_invalidated_is_so_at_once_and_for_good() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.speaks(&things).await;
    let path = format!("compute/instances/{}", things.instance);
    for _ in 0..2 {
        let done = house.ok(&format!("PUT {path}/invalidate"), None).await;
        assert_eq!(done, json!({}));
    }
    house.speaks(&things).await;
    let shown = house.ok(&format!("GET {path}"), None).await;
    assert_eq!(shown["desiredState"], "INSTANCE_STATE_UNTRUSTED");
    assert_eq!(shown["currentState"], "INSTANCE_STATE_UNTRUSTED");
    assert_eq!(shown["instanceStatus"], "Invalidated");
    let decision = house.ok(&format!("GET {path}/decision"), None).await;
    assert_eq!(decision["reason"]["code"], "not_trusted");

    let missing = "PUT compute/instances/inst-00000000/invalidate";
    let (status, _) = house.ours(missing, None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let what = format!("PUT /v1/projects/ours/{path}/invalidate");
    let (status, _) = house.ask(Who::Reader, &what, None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(house.ok(&format!("DELETE {path}"), None).await, json!({}));
}

#[tokio::test]
async fn instances_are_listed_by_what_is_asked_for() {
    let house = House::new().await;
    let things = house.furnish().await;
    let body = json!({"hostID": house.bare().await, "osID": things.os, "name": "another"});
    house.ok("POST compute/instances", Some(body)).await;
    let names = async |query: &str| {
        let list = house
            .ok(&format!("GET compute/instances?{query}"), None)
            .await;
        let of = |one: &Value| one["name"].as_str().expect("a name").to_owned();
        let names: Vec<_> = list["instances"]
            .as_array()
            .expect("a list")
            .iter()
            .map(of)
            .collect();
        (names.join(" "), list["totalElements"].clone())
    };
    let by_host = format!("filter=host.resourceId%3D%22{}%22&pageSize=10", things.host);
    assert_eq!(names(&by_host).await, ("on-edge-01".to_owned(), json!(1)));
    let ordered = names("orderBy=name%20desc").await;
    assert_eq!(ordered, ("on-edge-01 another".to_owned(), json!(2)));
    let page = names("orderBy=name&pageSize=1").await;
    assert_eq!(page, ("another".to_owned(), json!(2)));
    let unassigned = names("filter=NOT%20has(updatePolicy)").await;
    assert_eq!(unassigned, ("another".to_owned(), json!(1)));
}
