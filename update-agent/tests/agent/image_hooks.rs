//! The hooks and keys of the machine, which decide about an image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_update_agent::model::{FailureKind, Sha256, UpdateTarget};
use evenkeel_update_agent::modules::image::signature::signed_statement;
use evenkeel_update_agent::modules::image::slots::SlotState;
use evenkeel_update_agent::status;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};

use crate::image_steps::{STORY, assert_runs_new, assert_runs_old, revert_failure};
use crate::support::image_node::{ImageNode, change_spec, image_target};

/// The exit status with which a hook reports "not ready".
const STATUS_NOT_READY: i32 = 75;

/// A node with a hook that exits with `status`.
fn node_with_hook(moment: &str, status: i32) -> ImageNode {
    let node = ImageNode::in_window();
    node.add_hook(moment);
    node.machine.state().hook_status = status;
    node
}

/// The operations on the slots, in order.
fn slot_log(node: &ImageNode) -> Vec<String> {
    node.machine.state().log.clone()
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_is_not_ready_before_the_download_delays_it() {
    let node = node_with_hook("before-download", STATUS_NOT_READY);
    for _ in 0..2 {
        let error = node.run_until_idle().await.unwrap_err().to_string();
        assert!(error.ends_with("the hook ask is not ready"), "{error}");
    }
    assert_eq!(node.server().story(), "downloading");
    assert_eq!(node.machine.state().downloads, 0);
    assert_eq!(slot_log(&node), [""; 0]);
    assert_runs_old(&node, "");

    node.machine.state().hook_status = 0;
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_is_not_ready_before_arming_delays_the_arming() {
    let node = node_with_hook("before-arming", STATUS_NOT_READY);
    node.run_until_idle().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.server().start_requests, 0, "the hook runs before the start request");
    let status = status::read_status(&node.paths().status()).unwrap();
    assert_eq!(status.waiting, "the hook ask is not ready");
    assert_eq!(slot_log(&node), ["withdraw", "begin to write", "write"]);
    assert!(matches!(node.slots().b, SlotState::Written(_)));
    assert_runs_old(&node, "");

    node.machine.state().hook_status = 0;
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine.state().downloads, 2, "the image is not downloaded again");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_after_the_commit_is_a_remark_and_undoes_nothing() {
    let node = node_with_hook("after-commit", 1);
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
    let last = node.server().only_attempt().last().unwrap().clone();
    let remarks = last.report.unwrap().remarks;
    assert_eq!(remarks, ["the hook ask ended with status 1"]);
}

/// A person creates the file when the last check before the start has begun.
#[tokio::test(start_paused = true)]
async fn an_inhibit_file_delays_the_reset_into_an_image() {
    let node = node_with_hook("before-update", 0);
    let inhibit = node.paths().inside("/etc/evenkeel/inhibit");
    node.machine.state().hook_creates = Some(inhibit.clone());
    let started = tokio::time::Instant::now();
    let person = async {
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert!(!slot_log(&node).contains(&"arm".to_owned()));
        fs::remove_file(&inhibit).unwrap();
    };
    let (end, ()) = tokio::join!(node.run_until_idle(), person);
    end.unwrap();
    assert!(started.elapsed() >= Duration::from_mins(10));
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn an_inhibit_file_that_stays_reverts_the_update_to_an_image() {
    let node = node_with_hook("before-update", 0);
    let inhibit = node.paths().inside("/etc/evenkeel/inhibit");
    node.machine.state().hook_creates = Some(inhibit);
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    let failure = revert_failure(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert_eq!(
        failure.reason,
        "the machine delayed the reset for 30 min, which is the limit: \
         /etc/evenkeel/inhibit: a demonstration"
    );
    assert!(!slot_log(&node).contains(&"arm".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn logged_in_users_are_warned_before_the_reset_into_an_image() {
    let node = ImageNode::in_window();
    node.log_in();
    let started = tokio::time::Instant::now();
    node.run_until_idle().await.unwrap();
    assert!(started.elapsed() >= Duration::from_mins(1));
    let warnings = node.machine.state().warnings.clone();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("reboots in 1 min"), "{warnings:?}");
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

/// A signed target for version 1.1, and the public key as PEM.
fn signed_target() -> (UpdateTarget, String) {
    let key = KeyPair::generate().unwrap();
    let mut target = image_target("1.1");
    let id = Sha256::hash(&key.subject_public_key_info());
    change_spec(&mut target, |spec| {
        let signature = key.sign(signed_statement(spec).as_bytes()).unwrap();
        spec.signatures.push(format!("{id}:{}", STANDARD.encode(signature)));
    });
    (target, key.public_key_pem())
}

/// Lets a node accept only images that are signed with `key`; returns the key's file.
fn require_key(node: &ImageNode, key: &str) -> PathBuf {
    fs::remove_file(node.paths().inside("/etc/evenkeel/limits.toml")).unwrap();
    let folder = node.paths().image_keys();
    fs::create_dir(&folder).unwrap();
    let file = folder.join("publisher.pem");
    fs::write(&file, key).unwrap();
    for (path, mode) in [(&folder, 0o755), (&file, 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    file
}

/// The key is removed as late as possible: by the last hook before the change starts.
#[tokio::test(start_paused = true)]
async fn an_image_whose_key_is_removed_after_the_download_is_not_armed() {
    let (target, key) = signed_target();
    let node = node_with_hook("before-arming", 0);
    node.server().target = Some(target);
    node.machine.state().hook_removes = Some(require_key(&node, &key));
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    assert_eq!(node.server().story(), "downloading, downloaded, began, reverted");
    let failure = revert_failure(&node);
    assert_eq!(failure.kind, FailureKind::Signature);
    assert!(failure.reason.contains("has no key"), "{failure}");
    assert!(matches!(node.slots().b, SlotState::Written(_)));
    let done = slot_log(&node);
    assert_eq!(done, ["withdraw", "begin to write", "write", "withdraw"]);
}
