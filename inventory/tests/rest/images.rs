//! Images: who vouches for one, how it may be fetched, and what its node told of it.

use chrono::TimeDelta;
use evenkeel_domain::decide::{KnownBad, Protocol};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::run::{
    AttemptId, Evidence, Happening, ImageChange, Origin, Patience, RunEvent,
};
use evenkeel_kit::Clock;
use evenkeel_store::runs::{self, Opening, Subject};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::house::{House, id_of, os_body, statement};

/// The digest of a release.
fn digest(version: &str) -> String {
    format!("{:0>64}", version.replace('.', "a"))
}

/// A release of the line `edge`.
fn image(version: &str) -> Value {
    let mut body = os_body(&format!("edge {version}"));
    body["osType"] = json!("OS_TYPE_IMMUTABLE");
    body["profileName"] = json!("edge");
    body["imageId"] = json!(version);
    body["sha256"] = json!(digest(version));
    body
}

impl House {
    async fn made(&self, list: &str, body: Value) -> Value {
        self.ok(&format!("POST {list}"), Some(body)).await
    }

    async fn shown(&self, path: &str) -> Value {
        self.ok(&format!("GET {path}"), None).await
    }

    /// A host that runs an image: its id and that of its instance.
    async fn edge(&self, os: &str) -> (String, String) {
        let host = json!({"name": "edge-02", "serialNumber": "EDGE12345"});
        let host = id_of(&self.made("compute/hosts/register", host).await);
        let instance = json!({"hostID": host, "osID": os});
        let instance = id_of(&self.made("compute/instances", instance).await);
        (host, instance)
    }
}

#[tokio::test]
async fn signatures_of_an_image_stay_until_somebody_says_otherwise() {
    let house = House::new().await;
    let (first, second) = (statement("first"), statement("second"));
    let mut body = image("1.0");
    body["imageSignatures"] = json!([first, second]);
    let made = house.made("compute/os", body).await;
    assert_eq!(made["imageSignatures"], json!([first, second]));
    let id = id_of(&made);
    let path = format!("compute/os/{id}");
    let list = house.shown("compute/os").await;
    assert_eq!(list["OperatingSystemResources"], json!([made]));
    let policy = json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": id});
    let policy = house.made("os-update-policies", policy).await;
    assert_eq!(policy["targetOs"], made);

    // A client that does not know them writes back what it knows; another one says that it does not know.
    let mut known = made.clone();
    let members = known.as_object_mut().expect("an object");
    members.remove("imageSignatures");
    let mut unknown = made.clone();
    unknown["imageSignatures"] = Value::Null;
    for (method, body) in [
        ("PUT", known),
        ("PUT", unknown.clone()),
        ("PATCH", unknown),
        ("PUT", made.clone()),
    ] {
        let told = house.ok(&format!("{method} {path}"), Some(body)).await;
        assert_eq!(told, made, "{method}");
    }
    for mask in ["imageSignatures", "metadata,imageSignatures"] {
        let masked = format!("PATCH {path}?fieldMask={mask}");
        assert_eq!(house.ok(&masked, Some(json!({}))).await, made, "{mask}");
    }

    // Another architecture and who vouches for it, in one change.
    let change = json!({"architecture": "aarch64", "imageSignatures": [second]});
    let told = house.ok(&format!("PATCH {path}"), Some(change)).await;
    assert_eq!(
        (&told["architecture"], &told["imageSignatures"]),
        (&json!("aarch64"), &json!([second]))
    );
    let none = json!({"architecture": "aarch64", "imageSignatures": []});
    let told = house.ok(&format!("PUT {path}"), Some(none)).await;
    assert_eq!(told["imageSignatures"], json!([]));
    assert_eq!(house.shown(&path).await, told);
}

#[tokio::test]
async fn a_policy_tells_how_an_image_may_be_fetched() {
    let house = House::new().await;
    let things = house.furnish().await;
    let usual = json!({"downloadBytesPerSecond": 0, "maxBytes": 0, "attempts": 0});
    let rules =
        json!({"downloadBytesPerSecond": 4_096, "maxBytes": 1_073_741_824_u64, "attempts": 3});
    let latest = |rules: &Value| json!({"name": "latest", "updatePolicy": "UPDATE_POLICY_LATEST", "imageRules": rules});
    let plain = house.made("os-update-policies", latest(&Value::Null)).await;
    assert_eq!(plain["imageRules"], usual);
    let careful = house.made("os-update-policies", latest(&rules)).await;
    assert_eq!(careful["imageRules"], rules);

    // A wish for an image takes them as well; one for packages takes the usual ones and shows none.
    let image = id_of(&house.made("compute/os", image("1.0")).await);
    let exactly = json!({
        "name": "image", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": image, "imageRules": rules,
    });
    let exactly = house.made("os-update-policies", exactly).await;
    assert_eq!(exactly["imageRules"], rules);
    let packages = json!({
        "name": "packages", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "curl", "imageRules": usual,
    });
    let packages = house.made("os-update-policies", packages).await;
    let assigned = format!("PUT assignments/{}", things.instance);
    let decision = format!("compute/instances/{}/decision", things.instance);
    for (policy, wanted) in [(careful, rules.clone()), (packages, Value::Null)] {
        let body = json!({"osUpdatePolicyId": policy["resourceId"]});
        house.ok(&assigned, Some(body)).await;
        let target = house.shown(&decision).await["policy"]["target"].clone();
        assert_eq!(target["imageRules"], wanted, "{target}");
    }
    let (_, instance) = house.edge(&image).await;
    let body = json!({"osUpdatePolicyId": exactly["resourceId"]});
    house.ok("PUT assignments/project", Some(body)).await;
    let shown = house.shown(&format!("compute/instances/{instance}")).await;
    assert_eq!(
        shown["effectiveUpdatePolicy"]["target"]["imageRules"],
        rules
    );
}

#[tokio::test]
async fn an_image_that_failed_on_a_node_is_told_and_not_wanted_any_more() {
    let house = House::new().await;
    let old = id_of(&house.made("compute/os", image("1.0")).await);
    let new = id_of(&house.made("compute/os", image("1.1")).await);
    let (host, instance) = house.edge(&old).await;
    let policy = json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": new});
    let policy = house.made("os-update-policies", policy).await;
    let body = json!({"osUpdatePolicyId": policy["resourceId"]});
    house.ok("PUT assignments/project", Some(body)).await;
    let path = format!("compute/instances/{instance}");
    let decision = format!("{path}/decision");
    let says = async |bad: Vec<KnownBad>, facts: Value| {
        let modules = vec!["image".to_owned()];
        house
            .known(&host, |node| {
                node.provisioned = true;
                node.protocol = Protocol::Own { modules };
                node.bad_images = bad;
                node.facts = facts;
            })
            .await;
    };

    says(Vec::new(), json!({})).await;
    let told = house.shown(&decision).await;
    assert_eq!(told["reason"]["code"], "no_window");
    let shown = house.shown(&path).await;
    assert_eq!(
        (&shown["slots"], &shown["badImages"]),
        (&json!([]), &json!([]))
    );

    let slots = json!([
        {"name": "root-a", "state": "good", "imageId": "1.0"},
        {"name": "root-b", "state": "bad", "imageId": "1.1"},
    ]);
    let failed = json!([{"sha256": digest("1.1"), "imageId": "1.1", "why": "the kernel panicked"}]);
    let bad = KnownBad {
        sha256: Sha256::parse("sha256", &digest("1.1")).expect("a digest"),
        since: house.clock.now(),
    };
    says(vec![bad], json!({"slots": slots, "badImages": failed})).await;
    let told = house.shown(&decision).await;
    assert_eq!(told["act"], "idle");
    assert_eq!(told["reason"]["code"], "quarantined");
    assert_eq!(told["reason"]["data"], json!({"imageId": "1.1"}));
    let shown = house.shown(&path).await;
    assert_eq!((&shown["slots"], &shown["badImages"]), (&slots, &failed));
    // Lists and hosts do not say so much.
    let list = house.shown("compute/instances").await;
    let host = house.shown(&format!("compute/hosts/{host}")).await;
    for less in [&list["instances"][0], &host["instance"]] {
        assert_eq!(
            (&less["slots"], &less["badImages"]),
            (&json!([]), &json!([]))
        );
    }
}

#[tokio::test]
async fn a_run_tells_which_image_ran_before_and_after_it() {
    let house = House::new().await;
    let things = house.furnish().await;
    let os = id_of(&house.made("compute/os", image("1.0")).await);
    let (_, instance) = house.edge(&os).await;
    let opening = Opening {
        instance: instance.parse().expect("an id"),
        name: "edge-02 update".to_owned(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::from_u128(9))),
        origin: Origin {
            target: None,
            policy: None,
            order: None,
        },
        follows: None,
    };
    let planned = Evidence {
        image: Some(ImageChange {
            profile_name: "edge".to_owned(),
            before: "1.0".to_owned(),
            wanted: "1.1".to_owned(),
            booted: None,
        }),
        ..Evidence::default()
    };
    let ended = Evidence {
        booted: Some("1.1".to_owned()),
        ..Evidence::default()
    };
    let mut told = Vec::new();
    let mut subject = Subject::New(Box::new(opening));
    for (sequence, event, evidence) in [
        (1, RunEvent::Began, planned),
        (2, RunEvent::Finished, ended),
    ] {
        let happening = Happening {
            sequence: Some(sequence),
            evidence,
            ..Happening::of(event)
        };
        let tx = house.store.tenant(house.ours).await.expect("a transaction");
        let now = house.clock.now();
        let run = runs::advance(&tx, subject, &happening, &Patience::default(), now).await;
        let run = run.expect("it goes on");
        tx.commit().await.expect("committed");
        subject = Subject::Run(run.id);
        house.clock.advance(TimeDelta::minutes(1));
        told.push(house.shown(&format!("os-update-runs/{}", run.id)).await);
    }
    let change = |booted: &str| json!({"profileName": "edge", "before": "1.0", "wanted": "1.1", "booted": booted});
    assert_eq!(told[0]["image"], change(""));
    assert_eq!(told[1]["image"], change("1.1"));
    let of_it = format!("filter=instance.resourceId%3D%3D%22{instance}%22");
    let list = house.shown(&format!("os-update-runs?{of_it}")).await;
    assert_eq!(list["osUpdateRuns"][0]["image"], change("1.1"));
    // A run of packages has none.
    let packages = house.shown(&format!("os-update-runs/{}", things.run)).await;
    assert_eq!(packages["image"], Value::Null);
}
