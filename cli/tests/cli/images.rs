//! Images: signatures, rules, and the slots and failed images of nodes.

use serde_json::{Value, json};

use crate::TestCli;

/// A signature with a key ID of these digits.
fn signature(digits: &str) -> String {
    format!("{}:c2ln", digits.repeat(32))
}

#[tokio::test]
async fn image_signatures_are_added_changed_and_removed() {
    let cli = TestCli::new().await;
    let (first, second) = (signature("ab"), signature("cd"));
    let os = |signatures: &[&String]| {
        json!({
            "resourceId": "os-00000001", "name": "edge 1.1", "osType": "OS_TYPE_IMMUTABLE", "architecture": "x86_64",
            "profileName": "edge", "imageId": "1.1", "sha256": "0".repeat(64), "imageSignatures": signatures,
        })
    };
    cli.fake_server
        .answer("POST compute/os", os(&[&first, &second]))
        .answer("PATCH compute/os/os-00000001", os(&[&second]))
        .answer("PATCH compute/os/os-00000001", os(&[]));
    let digest = "12".repeat(32);
    let line = format!(
        "evenkeel os create edge-1.1 --type immutable --profile edge --image-version 1.1 --sha256 {digest} \
         --image-signature {first} --image-signature {second}"
    );
    insta::assert_snapshot!(cli.run(&line).await, @r"
    id             os-00000001
    name           edge 1.1
    type           immutable
    architecture   x86_64
    profile        edge
    image version  1.1
    created        -

    Image signatures:
    KEY
    abababababababababababababababababababababababababababababababab
    cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
    ");
    let set = "evenkeel os set os-00000001";
    let other = format!("{set} --architecture aarch64 --image-signature {second}");
    let output = cli.run(&other).await;
    assert!(!output.contains("abab"), "{output}");
    let output = cli.run(&format!("{set} --no-image-signatures")).await;
    assert!(!output.contains("signatures"), "{output}");
    let requests = cli.fake_server.requests();
    let bodies: Vec<Value> = requests
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
    let cli = TestCli::new().await;
    let path = cli.home.path().join("profile.yaml");
    let text = format!(
        "spec:\n  name: edge\n  type: OS_TYPE_IMMUTABLE\n  osImageSignatures: [\"{}\"]\n",
        signature("ab")
    );
    std::fs::write(&path, text).expect("written");
    cli.fake_server.answer("POST compute/os", json!({"resourceId": "os-00000001"}));
    cli.run(&format!("evenkeel os create -f {}", path.display())).await;
    let requests = cli.fake_server.requests();
    let expected = format!(r#""imageSignatures":["{}"]"#, signature("ab"));
    assert!(requests.contains(&expected), "{requests}");
}

#[tokio::test]
async fn a_policy_may_have_rules_for_images() {
    let cli = TestCli::new().await;
    let policy = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "slow", "updatePolicy": "UPDATE_POLICY_LATEST",
        "imageRules": {"downloadBytesPerSecond": 524_288, "maxBytes": 4_294_967_296_u64, "attempts": 3},
    });
    cli.fake_server.answer("POST os-update-policies", policy);
    let line = "evenkeel policy create slow --latest --image-download-rate 512K --image-max-size 4G --image-attempts 3";
    insta::assert_snapshot!(cli.run(line).await, @r"
    id          osupdatepolicy-00000001
    name        slow
    desired     latest
    downgrades  not allowed
    offline     never
    created     -

    Rules:
    RULE
    download images at 524288 bytes per second at most
    no images larger than 4294967296 bytes
    at most 3 consecutive failed image downloads
    ");
    let path = cli.home.path().join("policy.yaml");
    let text = "spec: {name: slow, updatePolicy: UPDATE_POLICY_LATEST, imageRules: {attempts: 1}}";
    std::fs::write(&path, text).expect("written");
    cli.run(&format!("evenkeel policy create -f {}", path.display())).await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST os-update-policies {"name":"slow","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"imageRules":{"downloadBytesPerSecond":524288,"maxBytes":4294967296,"attempts":3}}
    POST os-update-policies {"name":"slow","updatePolicy":"UPDATE_POLICY_LATEST","allowDowngrade":false,"imageRules":{"attempts":1}}
    "#);
}

#[tokio::test]
async fn a_run_names_the_previous_and_the_running_image() {
    let image = |before: &str, booted: &str| json!({"profileName": "edge", "before": before, "desired": "1.1", "booted": booted});
    for (image, expected) in [
        (image("1.0", "1.0"), "image     edge 1.0 to 1.1, runs 1.0\n"),
        (image("1.0", ""), "image     edge 1.0 to 1.1\n"),
        (image("", "1.1"), "image     edge 1.1, runs 1.1\n"),
    ] {
        let cli = TestCli::new().await;
        let run =
            json!({"resourceId": "osupdaterun-00000001", "state": "reverted", "image": image});
        cli.fake_server.answer("GET os-update-runs/osupdaterun-00000001", run);
        let output = cli.run("evenkeel run get osupdaterun-00000001").await;
        assert!(output.contains(expected), "{expected:?} in {output}");
    }
}

#[tokio::test]
async fn an_instance_with_slots_shows_them_and_failed_images() {
    let cli = TestCli::new().await;
    let instance = json!({
        "resourceId": "inst-00000001", "host": {"resourceId": "host-00000001", "name": "edge-01"},
        "slots": [
            {"name": "root-a", "state": "good", "imageId": "1.0"},
            {"name": "root-b", "state": "empty", "imageId": ""},
        ],
        "badImages": [{"sha256": "ab".repeat(32), "imageId": "1.1", "reason": "the kernel panicked"}],
    });
    let decision = json!({
        "instanceId": "inst-00000001", "hostId": "host-00000001", "time": "2026-03-01T12:00:00Z", "act": "idle",
        "reason": {"code": "quarantined", "text": "the image 1.1 failed on this node before", "data": {"imageId": "1.1"}},
        "policy": {"resourceId": "osupdatepolicy-00000001", "name": "slow", "level": "project", "assignedTo": "project",
                   "target": {"kind": "image", "osId": "os-00000002", "imageRules": {"attempts": 1}}},
    });
    cli.fake_server
        .answer("GET compute/instances/inst-00000001", instance)
        .answer("GET compute/instances/inst-00000001/decision", decision);
    let tables = "Slots:\nSLOT    STATE  IMAGE VERSION\nroot-a  good   1.0\nroot-b  empty  -\n\n\
                  Failed images:\nIMAGE VERSION  SHA256        REASON\n\
                  1.1            abababababab  the kernel panicked\n";
    for line in ["evenkeel instance get", "evenkeel explain"] {
        let output = cli.run(&format!("{line} inst-00000001")).await;
        assert!(output.contains(tables), "{line}: {output}");
    }
    let output = cli.run("evenkeel explain inst-00000001").await;
    let rules = "rules        no retry of a failed image download\n";
    assert!(output.contains(rules), "{output}");
}

#[tokio::test]
async fn an_operating_system_shows_its_registry_its_signature_and_its_vulnerabilities() {
    let cli = TestCli::new().await;
    let cves = |id: &str| {
        let entry =
            json!([{"cve_id": id, "priority": "high", "affected_packages": ["curl", "jq"]}]);
        entry.to_string()
    };
    let os = json!({
        "resourceId": "os-00000001", "name": "edge 1.1", "osType": "OS_TYPE_IMMUTABLE", "architecture": "x86_64",
        "profileName": "edge", "profileVersion": "1.1.0", "imageId": "1.1", "sha256": "ab".repeat(32),
        "securityFeature": "SECURITY_FEATURE_SECURE_BOOT_AND_FULL_DISK_ENCRYPTION",
        "registry": "release", "revision": "1.1.0", "artifactDigest": "sha256:12", "signature": {"key": "cd"},
        "installedPackages": "{\"repo\":[{\"name\":\"apt\",\"version\":\"2\"},{\"name\":\"jq\",\"version\":\"1\"}]}",
        "existingCves": cves("CVE-2026-1"), "fixedCves": cves("CVE-2026-2"),
    });
    cli.fake_server.answer("GET compute/os/os-00000001", os);
    insta::assert_snapshot!(cli.run("evenkeel os get os-00000001").await, @r"
    id               os-00000001
    name             edge 1.1
    type             immutable
    architecture     x86_64
    profile          edge
    image version    1.1
    profile version  1.1.0
    sha256           abababababababababababababababababababababababababababababababab
    security         secure boot and full disk encryption
    registry         release
    revision         1.1.0
    artifact         sha256:12
    signature        of key cd
    packages         2, listed with -o json
    created          -

    Open vulnerabilities:
    CVE         PRIORITY  PACKAGES
    CVE-2026-1  high      curl, jq

    Fixed vulnerabilities:
    CVE         PRIORITY  PACKAGES
    CVE-2026-2  high      curl, jq
    ");
}
