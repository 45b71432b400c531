//! Invalid images: none is ever armed, the old release stays in use, and the run states the reason.

use std::fs::{self, File};

use evenkeel_registry::{Digest, SigningKey};
use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::reason;
use evenkeel_tests::lab::vm::{
    BootCount, Release, ReleaseKind, Slot, Vms, compress, counts, statement,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::NEW_VERSION;
use super::node::{Node, UPDATE_TIMEOUT};

/// Sizes that exceed the slot, and a limit of the policy that every image exceeds, in bytes.
const TOO_LARGE_BYTES: u64 = 1 << 30;
const TOO_LARGE_UNPACKED_BYTES: u64 = 400 << 20;
const MAX_ALLOWED_BYTES: u64 = 1 << 20;

/// A copy of a release with another version and file digest, and a valid signature.
fn with_version(node: &Node, like: &Release, version: &str, sha256: &str) -> Release {
    let mut release = like.clone();
    version.clone_into(&mut release.version);
    sha256.clone_into(&mut release.sha256);
    release.signature = node.vms.key().sign_text(&statement(version, sha256));
    release
}

/// Offers a release with these changes and rules, and orders it. The run must fail with this kind, and
/// the old release must stay in use.
#[track_caller]
fn assert_refused(
    node: &mut Node,
    release: &Release,
    otherwise: &Value,
    rules: &Value,
    kind: &str,
) {
    let os = node.fleet.publish_with(release, otherwise);
    let policy = json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "targetOsId": os,
        "imageRules": rules,
    });
    node.fleet.assign_new_policy(&node.vm, &policy);
    node.fleet.order_update(&node.vm);
    let run = node.fleet.wait_for_run_end(&mut node.vm, &release.version, UPDATE_TIMEOUT);
    print_progress(&format!("{}: {} {}", release.version, run["state"], run["reason"]));
    assert_eq!(run["state"], "failed", "{run:#}");
    assert_eq!(reason(&run).0, kind, "{run:#}");
    let entries = node.vm.entries();
    assert_eq!(counts(&entries, Slot::A), [BootCount::Permanent], "{entries:?}");
    assert_eq!(counts(&entries, Slot::B), [], "{entries:?}");
    let old = node.old.clone();
    node.wait_for_matching_record(&[&old]);
}

/// Files whose content does not match their digest.
fn try_corrupt_images(node: &mut Node, good: &Release) {
    let content = fs::read(&good.file).expect("an image");
    let half = content.len() / 2;
    fs::write(node.fleet.image_path("truncated"), &content[..half]).expect("a file");
    let truncated = with_version(node, good, "1.1.1", &good.sha256);
    let url = json!({ "imageUrl": node.fleet.image_url("truncated") });
    assert_refused(node, &truncated, &url, &Value::Null, "download");

    let mut other = content;
    other[half] ^= 1;
    fs::write(node.fleet.image_path("corrupted"), &other).expect("a file");
    let corrupted = with_version(node, good, "1.1.2", &good.sha256);
    let url = json!({ "imageUrl": node.fleet.image_url("corrupted") });
    assert_refused(node, &corrupted, &url, &Value::Null, "download");

    let digest = Digest::compute(b"another").hex();
    let wrong = with_version(node, good, "1.1.3", &digest);
    let url = json!({ "imageUrl": node.fleet.image_url(&format!("{}.raw", good.version)) });
    assert_refused(node, &wrong, &url, &Value::Null, "download");
}

/// Files without a signature by the trusted key.
fn try_unsigned_images(node: &mut Node, good: &Release) {
    let unknown_key = SigningKey::generate();
    let text = statement("1.1.4", &good.sha256);
    let by_unknown_key = json!([unknown_key.sign_text(&text)]);
    let of_another = json!([good.signature]);
    for (version, signatures) in
        [("1.1.4", by_unknown_key), ("1.1.5", of_another), ("1.1.6", json!([]))]
    {
        let release = with_version(node, good, version, &good.sha256);
        let otherwise = json!({
            "imageUrl": node.fleet.image_url(&format!("{}.raw", good.version)),
            "imageSignatures": signatures,
        });
        assert_refused(node, &release, &otherwise, &Value::Null, "signature");
    }
}

/// Files that exceed the slot, exceed the slot when unpacked, or exceed the limit of the policy.
fn try_large_images(node: &mut Node, good: &Release) {
    let sparse = |name: &str, bytes: u64| {
        let path = node.fleet.image_path(name);
        let file = File::create(&path).expect("a file");
        file.set_len(bytes).expect("a sparse file");
        path
    };
    sparse("large", TOO_LARGE_BYTES);
    let grows = node.fleet.image_path("grows.zst");
    compress(&sparse("grows", TOO_LARGE_UNPACKED_BYTES), &grows);
    let digest = Digest::compute(b"never downloaded completely").hex();
    let large = with_version(node, good, "1.1.7", &digest);
    let url = json!({ "imageUrl": node.fleet.image_url("large") });
    assert_refused(node, &large, &url, &Value::Null, "storage");

    let digest = Digest::compute(&fs::read(&grows).expect("a file")).hex();
    let grows = with_version(node, good, "1.1.8", &digest);
    let url = json!({ "imageUrl": node.fleet.image_url("grows.zst") });
    assert_refused(node, &grows, &url, &Value::Null, "storage");

    let over_limit = with_version(node, good, "1.1.9", &good.sha256);
    let url = json!({ "imageUrl": node.fleet.image_url(&format!("{}.raw", good.version)) });
    assert_refused(node, &over_limit, &url, &json!({ "maxBytes": MAX_ALLOWED_BYTES }), "download");
}

#[test]
fn an_invalid_image_is_never_armed_and_a_good_one_works_directly_after_it() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "artefacts");
    let good = node.vms.release(NEW_VERSION, ReleaseKind::Good);
    node.fleet.publish(&good);
    try_corrupt_images(&mut node, &good);
    try_unsigned_images(&mut node, &good);
    try_large_images(&mut node, &good);

    // For another architecture: the server rejects the policy.
    let other = with_version(&node, &good, "1.1.10", &good.sha256);
    let architecture = json!({ "architecture": "aarch64" });
    let os = node.fleet.publish_with(&other, &architecture);
    let policy = json!({ "name": "arm", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": os });
    let policy = node.fleet.rest.post("os-update-policies", &policy);
    let path = format!("compute/instances/{}", node.vm.instance());
    let body = json!({ "osUpdatePolicyID": policy["resourceId"] });
    let (status, answer) = node.fleet.rest.send(Method::PATCH, &path, Some(&body));
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("another architecture"), "{answer}");

    node.update(&good, "succeeded");
    node.check_disk(&[&good]);
}
