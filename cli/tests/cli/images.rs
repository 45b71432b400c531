//! Images: who vouches for one, how it may be fetched, and what a node told of it.

use serde_json::{Value, json};

use crate::Desk;

/// A signature of an image, by a key of these digits.
fn signature(digits: &str) -> String {
    format!("{}:c2ln", digits.repeat(32))
}

#[tokio::test]
async fn signatures_of_an_image_are_given_changed_and_taken_away() {
    let desk = Desk::new().await;
    let (first, second) = (signature("ab"), signature("cd"));
    let os = |signatures: &[&String]| {
        json!({
            "resourceId": "os-00000001", "name": "edge 1.1", "osType": "OS_TYPE_IMMUTABLE", "architecture": "x86_64",
            "profileName": "edge", "imageId": "1.1", "sha256": "0".repeat(64), "imageSignatures": signatures,
        })
    };
    desk.double
        .answer("POST compute/os", os(&[&first, &second]))
        .answer("PATCH compute/os/os-00000001", os(&[&second]))
        .answer("PATCH compute/os/os-00000001", os(&[]));
    let digest = "12".repeat(32);
    let line = format!(
        "evenkeel os create edge-1.1 --type immutable --profile edge --image-version 1.1 --sha256 {digest} \
         --image-signature {first} --image-signature {second}"
    );
    insta::assert_snapshot!(desk.run(&line).await, @r"
    id             os-00000001
    name           edge 1.1
    type           immutable
    architecture   x86_64
    profile        edge
    image version  1.1
    created        -

    The image is signed by:
    KEY
    abababababababababababababababababababababababababababababababab
    cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
    ");
    let set = "evenkeel os set os-00000001";
    let other = format!("{set} --architecture aarch64 --image-signature {second}");
    let told = desk.run(&other).await;
    assert!(!told.contains("abab"), "{told}");
    let told = desk.run(&format!("{set} --no-image-signatures")).await;
    assert!(!told.contains("signed"), "{told}");
    let asked = desk.double.asked();
    let bodies: Vec<Value> = asked
        .lines()
        .filter_map(|line| serde_json::from_str(line.splitn(3, ' ').last()?).ok())
        .collect();
    assert_eq!(bodies[0]["imageSignatures"], json!([first, second]));
    assert_eq!(
        bodies[1..],
        [
            json!({"architecture": "aarch64", "imageSignatures": [second]}),
            json!({"imageSignatures": []}),
        ]
    );
}

#[tokio::test]
async fn a_profile_may_have_signatures_of_its_image() {
    let desk = Desk::new().await;
    let path = desk.home.path().join("profile.yaml");
    let text = format!(
        "spec:\n  name: edge\n  type: OS_TYPE_IMMUTABLE\n  osImageSignatures: [\"{}\"]\n",
        signature("ab")
    );
    std::fs::write(&path, text).expect("written");
    desk.double
        .answer("POST compute/os", json!({"resourceId": "os-00000001"}));
    desk.run(&format!("evenkeel os create -f {}", path.display()))
        .await;
    let asked = desk.double.asked();
    let wanted = format!(r#""imageSignatures":["{}"]"#, signature("ab"));
    assert!(asked.contains(&wanted), "{asked}");
}

#[tokio::test]
async fn a_policy_may_have_rules_for_images() {
    let desk = Desk::new().await;
    let made = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "slow", "updatePolicy": "UPDATE_POLICY_LATEST",
        "imageRules": {"downloadBytesPerSecond": 524_288, "maxBytes": 4_294_967_296_u64, "attempts": 3},
    });
    desk.double.answer("POST os-update-policies", made);
    let line = "evenkeel policy create slow --latest --image-download-rate 512K --image-max-size 4G --image-attempts 3";
    insta::assert_snapshot!(desk.run(line).await, @r"
    id          osupdatepolicy-00000001
    name        slow
    wish        whatever is newest
    downgrades  not allowed
    offline     never
    created     -

    Rules:
    RULE
    an image at most 524288 bytes a second
    no image of more than 4294967296 bytes
    at most 3 attempts in a row to fetch an image
    ");
    let path = desk.home.path().join("policy.yaml");
    let text = "spec: {name: slow, updatePolicy: UPDATE_POLICY_LATEST, imageRules: {attempts: 1}}";
    std::fs::write(&path, text).expect("written");
    desk.run(&format!("evenkeel policy create -f {}", path.display()))
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    POST os-update-policies {"name":"slow","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"imageRules":{"downloadBytesPerSecond":524288,"maxBytes":4294967296,"attempts":3}}
    POST os-update-policies {"name":"slow","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"imageRules":{"attempts":1}}
    "#);
}

#[tokio::test]
async fn a_run_names_the_image_before_and_the_one_that_runs() {
    let image = |before: &str, booted: &str| json!({"profileName": "edge", "before": before, "wanted": "1.1", "booted": booted});
    for (image, wanted) in [
        (image("1.0", "1.0"), "image     edge 1.0 to 1.1, runs 1.0\n"),
        (image("1.0", ""), "image     edge 1.0 to 1.1\n"),
        (image("", "1.1"), "image     edge 1.1, runs 1.1\n"),
    ] {
        let desk = Desk::new().await;
        let run =
            json!({"resourceId": "osupdaterun-00000001", "state": "reverted", "image": image});
        desk.double
            .answer("GET os-update-runs/osupdaterun-00000001", run);
        let told = desk.run("evenkeel run get osupdaterun-00000001").await;
        assert!(told.contains(wanted), "{wanted:?} in {told}");
    }
}

#[tokio::test]
async fn a_node_with_slots_shows_them_and_what_failed_in_them() {
    let desk = Desk::new().await;
    let instance = json!({
        "resourceId": "inst-00000001", "host": {"resourceId": "host-00000001", "name": "edge-01"},
        "slots": [
            {"name": "root-a", "state": "good", "imageId": "1.0"},
            {"name": "root-b", "state": "empty", "imageId": ""},
        ],
        "badImages": [{"sha256": "ab".repeat(32), "imageId": "1.1", "why": "the kernel panicked"}],
    });
    let decision = json!({
        "instanceId": "inst-00000001", "hostId": "host-00000001", "time": "2026-03-01T12:00:00Z", "act": "idle",
        "reason": {"code": "quarantined", "text": "the image 1.1 failed on this node before", "data": {"imageId": "1.1"}},
        "policy": {"resourceId": "osupdatepolicy-00000001", "name": "slow", "level": "project", "assignedTo": "project",
                   "target": {"kind": "image", "osId": "os-00000002", "imageRules": {"attempts": 1}}},
    });
    desk.double
        .answer("GET compute/instances/inst-00000001", instance)
        .answer("GET compute/instances/inst-00000001/decision", decision);
    let tables = "Slots:\nSLOT    STATE  IMAGE VERSION\nroot-a  good   1.0\nroot-b  empty  -\n\n\
                  Images that failed here:\nIMAGE VERSION  SHA256        BECAUSE\n\
                  1.1            abababababab  the kernel panicked\n";
    for line in ["evenkeel instance get", "evenkeel explain"] {
        let told = desk.run(&format!("{line} inst-00000001")).await;
        assert!(told.contains(tables), "{line}: {told}");
    }
    let told = desk.run("evenkeel explain inst-00000001").await;
    let rules = "rules        no second attempt to fetch an image\n";
    assert!(told.contains(rules), "{told}");
}
