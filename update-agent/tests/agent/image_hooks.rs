//! What the machine itself says of an image on its way: its hooks, and its keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_update_agent::model::{FailureKind, Sha256, Target, Wish};
use evenkeel_update_agent::modules::image::signature::statement;
use evenkeel_update_agent::modules::image::slots::SlotState;
use evenkeel_update_agent::status;
use rcgen::{KeyPair, PublicKeyData as _, SigningKey as _};

use crate::image_steps::{STORY, rests_on_new, rests_on_old, reverted};
use crate::support::image_node::{ImageNode, image};

/// The status with which a hook says "not yet".
const NOT_YET: i32 = 75;

/// A node with a hook that ends with a status.
fn with_hook(moment: &str, status: i32) -> ImageNode {
    let node = ImageNode::in_window();
    node.hook(moment);
    node.machine.state().hooks_end = status;
    node
}

/// What was done to the slots, in order.
fn done(node: &ImageNode) -> Vec<String> {
    node.machine.state().log.clone()
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_says_not_yet_before_the_download_keeps_it_from_being_asked_for() {
    let node = with_hook("before-download", NOT_YET);
    for _ in 0..2 {
        let error = node.live().await.unwrap_err().to_string();
        assert!(error.ends_with("the hook ask says not yet"), "{error}");
    }
    assert_eq!(node.server().story(), "downloading");
    assert_eq!(node.machine.state().downloads, 0);
    assert_eq!(done(&node), [""; 0]);
    rests_on_old(&node, "");

    node.machine.state().hooks_end = 0;
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_says_not_yet_before_the_arming_leaves_the_image_in_its_slot() {
    let node = with_hook("before-arming", NOT_YET);
    node.live().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.server().begins, 0, "the hook comes first");
    let shown = status::read(&node.place().status()).unwrap();
    assert_eq!(shown.waiting, "the hook ask says not yet");
    assert_eq!(done(&node), ["withdraw", "begin to write", "write"]);
    assert!(matches!(node.slots().b, SlotState::Written(_)));
    rests_on_old(&node, "");

    node.machine.state().hooks_end = 0;
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine.state().downloads, 2, "it is not fetched again");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_behind_the_commit_is_a_remark_and_undoes_nothing() {
    let node = with_hook("after-commit", 1);
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.server().story(), STORY);
    let last = node.server().only_attempt().last().unwrap().clone();
    let remarks = last.account.unwrap().remarks;
    assert_eq!(remarks, ["the hook ask ended with status 1"]);
}

/// 1.1 with a signature, and the public key for it as PEM.
fn signed() -> (Target, String) {
    let key = KeyPair::generate().unwrap();
    let mut target = image("1.1");
    let Wish::Image(wish) = &mut target.wish else {
        panic!("an image")
    };
    let id = Sha256::of(&key.subject_public_key_info());
    let signature = key.sign(statement(wish).as_bytes()).unwrap();
    let signature = format!("{id}:{}", STANDARD.encode(signature));
    wish.signatures.push(signature);
    (target, key.public_key_pem())
}

/// Lets a node take nothing but what this key has signed; the key's file.
fn demand(node: &ImageNode, key: &str) -> PathBuf {
    fs::remove_file(node.place().inside("/etc/evenkeel/limits.toml")).unwrap();
    let folder = node.place().image_keys();
    fs::create_dir(&folder).unwrap();
    let file = folder.join("publisher.pem");
    fs::write(&file, key).unwrap();
    for (path, mode) in [(&folder, 0o755), (&file, 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    file
}

/// As late as can be: behind all other looks at it, by the last that is asked before the change begins.
#[tokio::test(start_paused = true)]
async fn an_image_whose_key_is_taken_away_after_it_was_fetched_is_not_armed() {
    let (target, key) = signed();
    let node = with_hook("before-arming", 0);
    node.server().target = Some(target);
    node.machine.state().hooks_remove = Some(demand(&node, &key));
    node.live().await.unwrap_err();
    rests_on_old(&node, "");
    assert_eq!(
        node.server().story(),
        "downloading, downloaded, began, reverted"
    );
    let failure = reverted(&node);
    assert_eq!(failure.kind, FailureKind::Signature);
    assert!(failure.reason.contains("knows no key"), "{failure}");
    assert!(matches!(node.slots().b, SlotState::Written(_)));
    let done = done(&node);
    assert_eq!(done, ["withdraw", "begin to write", "write", "withdraw"]);
}
