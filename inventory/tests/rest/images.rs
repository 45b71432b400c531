//! Images: signatures, rules for fetching, and what nodes report about them.

use chrono::TimeDelta;
use evenkeel_domain::decide::{AgentProtocol, QuarantinedImage};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::run::{
    AttemptId, Evidence, ImageChange, Origin, RunEvent, RunEventRecord, RunTimeouts,
};
use evenkeel_kit::Clock;
use evenkeel_store::runs::{self, RunOpening, Subject};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{TestServer, image_signature, os_body, resource_id};

/// The digest of a release.
fn digest(version: &str) -> String {
    format!("{:0>64}", version.replace('.', "a"))
}

/// A release of the profile `edge`.
fn image(version: &str) -> Value {
    let mut body = os_body(&format!("edge {version}"));
    body["osType"] = json!("OS_TYPE_IMMUTABLE");
    body["profileName"] = json!("edge");
    body["imageId"] = json!(version);
    body["sha256"] = json!(digest(version));
    body
}

impl TestServer {
    /// Creates a host and an instance with this image, and returns their ids.
    async fn create_edge_host(&self, os: &str) -> (String, String) {
        let host = json!({"name": "edge-02", "serialNumber": "EDGE12345"});
        let host = resource_id(&self.post("compute/hosts/register", host).await);
        let instance = json!({"hostID": host, "osID": os});
        let instance = resource_id(&self.post("compute/instances", instance).await);
        (host, instance)
    }
}

#[tokio::test]
async fn image_signatures_stay_until_a_request_changes_them() {
    let server = TestServer::new().await;
    let (first, second) = (image_signature("first"), image_signature("second"));
    let mut body = image("1.0");
    body["imageSignatures"] = json!([first, second]);
    let created = server.post("compute/os", body).await;
    assert_eq!(created["imageSignatures"], json!([first, second]));
    let id = resource_id(&created);
    let path = format!("compute/os/{id}");
    let list = server.get("compute/os").await;
    assert_eq!(list["OperatingSystemResources"], json!([created]));
    let policy = json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": id});
    let policy = server.post("os-update-policies", policy).await;
    assert_eq!(policy["targetOs"], created);

    // A client that does not know the field omits it; another client sends null.
    let mut without_signatures = created.clone();
    let members = without_signatures.as_object_mut().expect("an object");
    members.remove("imageSignatures");
    let mut unknown = created.clone();
    unknown["imageSignatures"] = Value::Null;
    for (method, body) in [
        ("PUT", without_signatures),
        ("PUT", unknown.clone()),
        ("PATCH", unknown),
        ("PUT", created.clone()),
    ] {
        let updated = server.expect_ok(&format!("{method} {path}"), Some(body)).await;
        assert_eq!(updated, created, "{method}");
    }
    for mask in ["imageSignatures", "metadata,imageSignatures"] {
        let masked = format!("PATCH {path}?fieldMask={mask}");
        assert_eq!(server.expect_ok(&masked, Some(json!({}))).await, created, "{mask}");
    }

    // One change of the architecture and the signatures.
    let change = json!({"architecture": "aarch64", "imageSignatures": [second]});
    let updated = server.patch(&path, change).await;
    assert_eq!(
        (&updated["architecture"], &updated["imageSignatures"]),
        (&json!("aarch64"), &json!([second]))
    );
    let none = json!({"architecture": "aarch64", "imageSignatures": []});
    let updated = server.put(&path, none).await;
    assert_eq!(updated["imageSignatures"], json!([]));
    assert_eq!(server.get(&path).await, updated);
}

#[tokio::test]
async fn a_policy_has_rules_for_fetching_images() {
    let (server, resources) = TestServer::with_resources().await;
    let default_rules = json!({"downloadBytesPerSecond": 0, "maxBytes": 0, "attempts": 0});
    let rules =
        json!({"downloadBytesPerSecond": 4_096, "maxBytes": 1_073_741_824_u64, "attempts": 3});
    let latest = |rules: &Value| json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST", "imageRules": rules});
    let plain = server.post("os-update-policies", latest(&Value::Null)).await;
    assert_eq!(plain["imageRules"], default_rules);
    let with_rules = server.post("os-update-policies", latest(&rules)).await;
    assert_eq!(with_rules["imageRules"], rules);

    // A policy with a target image accepts the rules as well. A policy for packages accepts the
    // defaults and returns none.
    let image = resource_id(&server.post("compute/os", image("1.0")).await);
    let exactly = json!({
        "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image, "imageRules": rules,
    });
    let exactly = server.post("os-update-policies", exactly).await;
    assert_eq!(exactly["imageRules"], rules);
    let packages = json!({
        "name": "packages", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl", "imageRules": default_rules,
    });
    let packages = server.post("os-update-policies", packages).await;
    let assigned = format!("PUT assignments/{}", resources.instance);
    let decision = format!("compute/instances/{}/decision", resources.instance);
    for (policy, expected) in [(with_rules, rules.clone()), (packages, Value::Null)] {
        let body = json!({"osUpdatePolicyId": policy["resourceId"]});
        server.expect_ok(&assigned, Some(body)).await;
        let target = server.get(&decision).await["policy"]["target"].clone();
        assert_eq!(target["imageRules"], expected, "{target}");
    }
    let (_, instance) = server.create_edge_host(&image).await;
    let body = json!({"osUpdatePolicyId": exactly["resourceId"]});
    server.put("assignments/project", body).await;
    let fetched = server.get(&format!("compute/instances/{instance}")).await;
    assert_eq!(fetched["effectiveUpdatePolicy"]["target"]["imageRules"], rules);
}

#[tokio::test]
async fn an_image_that_failed_on_a_node_is_reported_and_no_longer_desired() {
    let server = TestServer::new().await;
    let old = resource_id(&server.post("compute/os", image("1.0")).await);
    let new = resource_id(&server.post("compute/os", image("1.1")).await);
    let (host, instance) = server.create_edge_host(&old).await;
    let policy = json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": new});
    let policy = server.post("os-update-policies", policy).await;
    let body = json!({"osUpdatePolicyId": policy["resourceId"]});
    server.put("assignments/project", body).await;
    let path = format!("compute/instances/{instance}");
    let decision = format!("{path}/decision");
    let report_node = async |bad: Vec<QuarantinedImage>, facts: Value| {
        let modules = vec!["image".to_owned()];
        server
            .edit_node(&host, |node| {
                node.provisioned = true;
                node.protocol = AgentProtocol::Own { modules };
                node.bad_images = bad;
                node.facts = facts;
            })
            .await;
    };

    report_node(Vec::new(), json!({})).await;
    let answer = server.get(&decision).await;
    assert_eq!(answer["reason"]["code"], "no_window");
    let fetched = server.get(&path).await;
    assert_eq!((&fetched["slots"], &fetched["badImages"]), (&json!([]), &json!([])));

    let slots = json!([
        {"name": "root-a", "state": "good", "imageId": "1.0"},
        {"name": "root-b", "state": "bad", "imageId": "1.1"},
    ]);
    let failed =
        json!([{"sha256": digest("1.1"), "imageId": "1.1", "reason": "the kernel panicked"}]);
    let bad = QuarantinedImage {
        sha256: Sha256::parse("sha256", &digest("1.1")).expect("a digest"),
        since: server.clock.now(),
    };
    report_node(vec![bad], json!({"slots": slots, "badImages": failed})).await;
    let answer = server.get(&decision).await;
    assert_eq!(answer["act"], "idle");
    assert_eq!(answer["reason"]["code"], "quarantined");
    assert_eq!(answer["reason"]["data"], json!({"imageId": "1.1"}));
    let fetched = server.get(&path).await;
    assert_eq!((&fetched["slots"], &fetched["badImages"]), (&slots, &failed));
    // Lists and hosts omit these fields.
    let list = server.get("compute/instances").await;
    let host = server.get(&format!("compute/hosts/{host}")).await;
    for summary in [&list["instances"][0], &host["instance"]] {
        assert_eq!((&summary["slots"], &summary["badImages"]), (&json!([]), &json!([])));
    }
}

#[tokio::test]
async fn a_run_shows_the_image_before_and_after_it() {
    let (server, resources) = TestServer::with_resources().await;
    let os = resource_id(&server.post("compute/os", image("1.0")).await);
    let (_, instance) = server.create_edge_host(&os).await;
    let opening = RunOpening {
        instance: instance.parse().expect("an id"),
        name: "edge-02 update".to_owned(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::from_u128(9))),
        origin: Origin { target: None, policy: None, order: None },
        follows: None,
        assignment: None,
    };
    let planned = Evidence {
        image: Some(ImageChange {
            profile_name: "edge".to_owned(),
            before: "1.0".to_owned(),
            desired: "1.1".to_owned(),
            booted: None,
        }),
        ..Evidence::default()
    };
    let ended = Evidence { booted: Some("1.1".to_owned()), ..Evidence::default() };
    let mut runs = Vec::new();
    let mut subject = Subject::New(Box::new(opening));
    for (sequence, event, evidence) in
        [(1, RunEvent::Began, planned), (2, RunEvent::Finished, ended)]
    {
        let record = RunEventRecord {
            sequence: Some(sequence),
            evidence,
            ..RunEventRecord::from_event(event)
        };
        let tx = server.store.tenant(server.ours).await.expect("a transaction");
        let now = server.clock.now();
        let run = runs::advance(&tx, subject, &record, &RunTimeouts::default(), now).await;
        let run = run.expect("it goes on");
        tx.commit().await.expect("committed");
        subject = Subject::Run(run.id);
        server.clock.advance(TimeDelta::minutes(1));
        runs.push(server.get(&format!("os-update-runs/{}", run.id)).await);
    }
    let change = |booted: &str| json!({"profileName": "edge", "before": "1.0", "desired": "1.1", "booted": booted});
    assert_eq!(runs[0]["image"], change(""));
    assert_eq!(runs[1]["image"], change("1.1"));
    let of_it = format!("filter=instance.resourceId%3D%3D%22{instance}%22");
    let list = server.get(&format!("os-update-runs?{of_it}")).await;
    assert_eq!(list["osUpdateRuns"][0]["image"], change("1.1"));
    // A run of packages has none.
    let packages = server.get(&format!("os-update-runs/{}", resources.run)).await;
    assert_eq!(packages["image"], Value::Null);
}
