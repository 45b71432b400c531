//! Images that are not what they should be: none of them is ever armed, the old release runs on, and the run says why.

use std::fs::{self, File};

use evenkeel_registry::{Digest, SigningKey};
use evenkeel_tests::history::say;
use evenkeel_tests::lab::reason;
use evenkeel_tests::lab::vm::{Count, Kind, Release, Slot, Vms, counts, packed, statement};
use reqwest::Method;
use serde_json::{Value, json};

use crate::NEW;
use crate::node::{Node, UPDATE};

/// More than a slot has room for, and more than a policy allows, in bytes.
const TOO_LARGE: u64 = 1 << 30;
const TOO_LARGE_UNPACKED: u64 = 400 << 20;
const ALLOWED: u64 = 1 << 20;

/// A release as `like` it that is called otherwise, and whose file has another digest, with a good signature.
fn called(node: &Node, like: &Release, version: &str, sha256: &str) -> Release {
    let mut release = like.clone();
    version.clone_into(&mut release.version);
    sha256.clone_into(&mut release.sha256);
    release.signature = node.vms.key().sign_text(&statement(version, sha256));
    release
}

/// Orders a release that is offered so, with these rules. It must fail in this way, and nothing comes of it.
#[track_caller]
fn is_refused(node: &mut Node, release: &Release, otherwise: &Value, rules: &Value, kind: &str) {
    let os = node.fleet.offer(release, otherwise);
    let policy = json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "targetOsId": os,
        "imageRules": rules,
    });
    node.fleet.want_with(&node.vm, &policy);
    node.fleet.order(&node.vm);
    let run = node.fleet.ended(&mut node.vm, &release.version, UPDATE);
    say(&format!(
        "{}: {} {}",
        release.version, run["state"], run["reason"]
    ));
    assert_eq!(run["state"], "failed", "{run:#}");
    assert_eq!(reason(&run).0, kind, "{run:#}");
    let entries = node.vm.entries();
    assert_eq!(counts(&entries, Slot::A), [Count::Kept], "{entries:?}");
    assert_eq!(counts(&entries, Slot::B), [], "{entries:?}");
    let old = node.old.clone();
    node.agrees(&[&old]);
}

/// Files with another content than their digest says.
fn spoilt(node: &mut Node, good: &Release) {
    let whole = fs::read(&good.file).expect("an image");
    let half = whole.len() / 2;
    fs::write(node.fleet.image("truncated"), &whole[..half]).expect("a file");
    let truncated = called(node, good, "1.1.1", &good.sha256);
    let url = json!({ "imageUrl": node.fleet.address("truncated") });
    is_refused(node, &truncated, &url, &Value::Null, "download");

    let mut other = whole;
    other[half] ^= 1;
    fs::write(node.fleet.image("corrupted"), &other).expect("a file");
    let corrupted = called(node, good, "1.1.2", &good.sha256);
    let url = json!({ "imageUrl": node.fleet.address("corrupted") });
    is_refused(node, &corrupted, &url, &Value::Null, "download");

    let digest = Digest::of(b"another").hex();
    let wrong = called(node, good, "1.1.3", &digest);
    let url = json!({ "imageUrl": node.fleet.address(&format!("{}.raw", good.version)) });
    is_refused(node, &wrong, &url, &Value::Null, "download");
}

/// Files that nobody vouches for.
fn unsigned(node: &mut Node, good: &Release) {
    let stranger = SigningKey::make();
    let text = statement("1.1.4", &good.sha256);
    let of_stranger = json!([stranger.sign_text(&text)]);
    let of_another = json!([good.signature]);
    for (version, signatures) in [
        ("1.1.4", of_stranger),
        ("1.1.5", of_another),
        ("1.1.6", json!([])),
    ] {
        let release = called(node, good, version, &good.sha256);
        let otherwise = json!({
            "imageUrl": node.fleet.address(&format!("{}.raw", good.version)),
            "imageSignatures": signatures,
        });
        is_refused(node, &release, &otherwise, &Value::Null, "signature");
    }
}

/// Files that are too large: for a slot as they are, for a slot once they are unpacked, and for the policy.
fn too_large(node: &mut Node, good: &Release) {
    let sparse = |name: &str, bytes: u64| {
        let path = node.fleet.image(name);
        let file = File::create(&path).expect("a file");
        file.set_len(bytes).expect("a sparse file");
        path
    };
    sparse("large", TOO_LARGE);
    let grows = node.fleet.image("grows.zst");
    packed(&sparse("grows", TOO_LARGE_UNPACKED), &grows);
    let digest = Digest::of(b"nobody ever has all of it").hex();
    let large = called(node, good, "1.1.7", &digest);
    let url = json!({ "imageUrl": node.fleet.address("large") });
    is_refused(node, &large, &url, &Value::Null, "storage");

    let digest = Digest::of(&fs::read(&grows).expect("a file")).hex();
    let grows = called(node, good, "1.1.8", &digest);
    let url = json!({ "imageUrl": node.fleet.address("grows.zst") });
    is_refused(node, &grows, &url, &Value::Null, "storage");

    let over = called(node, good, "1.1.9", &good.sha256);
    let url = json!({ "imageUrl": node.fleet.address(&format!("{}.raw", good.version)) });
    is_refused(
        node,
        &over,
        &url,
        &json!({ "maxBytes": ALLOWED }),
        "download",
    );
}

#[test]
fn an_image_that_is_not_what_it_should_be_is_never_armed_and_a_good_one_comes_straight_after_it() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "artefacts");
    let good = node.vms.release(NEW, Kind::Good);
    node.fleet.publish(&good);
    spoilt(&mut node, &good);
    unsigned(&mut node, &good);
    too_large(&mut node, &good);

    // For another architecture: such a policy is not even taken.
    let other = called(&node, &good, "1.1.10", &good.sha256);
    let architecture = json!({ "architecture": "aarch64" });
    let os = node.fleet.offer(&other, &architecture);
    let policy = json!({ "name": "arm", "updatePolicy": "UPDATE_POLICY_TARGET", "targetOsId": os });
    let policy = node.fleet.rest.post("/os-update-policies", &policy);
    let path = format!("/compute/instances/{}", node.vm.instance());
    let body = json!({ "osUpdatePolicyID": policy["resourceId"] });
    let (status, answer) = node.fleet.rest.ask(Method::PATCH, &path, Some(&body));
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("another architecture"), "{answer}");

    node.update(&good, "succeeded");
    node.judge(&[&good]);
}
