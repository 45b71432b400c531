//! Sources that lie, that are not signed by whom they should be, that are gone, and that bring another release.

use std::fs::{self, File};
use std::io::Write as _;

use evenkeel_tests::lab::{Repository, package};
use serde_json::json;

use crate::story::{Stage, because, stories};

stories![
    a_repository_that_was_tampered_with_is_refused,
    a_repository_that_nobody_signed_is_refused,
    a_repository_that_is_signed_with_an_expired_key_is_refused,
    a_repository_whose_time_is_over_is_refused,
    a_repository_that_is_gone_is_told,
    a_file_of_another_size_than_the_index_says_is_refused,
    a_file_of_another_content_than_the_index_says_is_refused,
    a_policy_may_bring_a_source_that_only_its_update_sees,
    a_source_of_a_policy_that_was_tampered_with_is_refused,
    a_plan_that_would_change_the_release_is_refused,
];

/// The update ends before anything was changed, for a reason of one of these kinds that says these words.
#[track_caller]
fn is_refused(stage: &Stage, repository: &Repository, kinds: &[&str], words: &[&str]) {
    let member = stage.member_of(repository);
    member.want("demo-hello=1.1");
    let run = member.update_to("failed");
    because(&run, kinds, words);
    member.stands(&[("demo-hello", "1.0 installed")]);
}

/// Changes what was signed.
fn tamper(repository: &Repository) {
    let release = repository.folder().join("dists/stable/InRelease");
    let text = fs::read_to_string(&release).expect("a signed release");
    let other = text.replace("Origin: Tests", "Origin: Others");
    assert_ne!(text, other);
    fs::write(&release, other).expect("a changed release");
}

fn a_repository_that_was_tampered_with_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    tamper(&repository);
    is_refused(stage, &repository, &["signature"], &["not signed"]);
}

fn a_repository_that_nobody_signed_is_refused(stage: &Stage) {
    let repository = stage.repository().made_with("SIGN", "no");
    repository.publish("demo-hello_1.1");
    is_refused(stage, &repository, &["signature"], &["not signed"]);
}

fn a_repository_that_is_signed_with_an_expired_key_is_refused(stage: &Stage) {
    let repository = stage.repository().made_with("SIGN", "past");
    repository.publish("demo-hello_1.1");
    is_refused(stage, &repository, &["signature"], &["not signed"]);
}

fn a_repository_whose_time_is_over_is_refused(stage: &Stage) {
    let repository = stage.repository().made_with("VALID_UNTIL", "yesterday");
    repository.publish("demo-hello_1.1");
    is_refused(stage, &repository, &["refresh", "signature"], &["expired"]);
}

fn a_repository_that_is_gone_is_told(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let member = stage.member_of(&repository);
    fs::remove_dir_all(repository.folder().join("dists")).expect("a folder less");
    member.want("demo-hello=1.1");
    let run = member.update_to("failed");
    because(&run, &["refresh"], &["/srv/own"]);
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn a_file_of_another_size_than_the_index_says_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let path = repository.folder().join("pool/demo-hello_1.1_all.deb");
    let mut file = File::options().append(true).open(path).expect("a file");
    file.write_all(b"more").expect("a longer file");
    let kinds = ["download", "signature"];
    is_refused(stage, &repository, &kinds, &["demo-hello"]);
}

fn a_file_of_another_content_than_the_index_says_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let path = repository.folder().join("pool/demo-hello_1.1_all.deb");
    let mut content = fs::read(&path).expect("a file");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&path, content).expect("another file");
    let kinds = ["download", "signature"];
    is_refused(stage, &repository, &kinds, &["demo-hello"]);
}

fn a_policy_may_bring_a_source_that_only_its_update_sees(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let member = stage.member_of(&repository);
    member.node.sh("rm /etc/apt/sources.list.d/*");
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
        "updateSources": [repository.sources()],
    }));
    let run = member.update_to("succeeded");
    assert_eq!(package(&run, "demo-hello")["after"], "1.1");
    member.stands(&[("demo-hello", "1.1 installed")]);
    let left =
        "ls -A /etc/apt/sources.list.d; ls -A /var/lib/evenkeel-agent | grep -x sources || true";
    assert_eq!(member.node.sh(left), "");
}

fn a_source_of_a_policy_that_was_tampered_with_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    tamper(&repository);
    let member = stage.member_of(&repository);
    member.node.sh("rm /etc/apt/sources.list.d/*");
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
        "updateSources": [repository.sources()],
    }));
    let run = member.update_to("failed");
    because(&run, &["signature"], &["not signed"]);
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn a_plan_that_would_change_the_release_is_refused(stage: &Stage) {
    let repository = stage.repository().made_with("DIST", "forky");
    repository.publish("base-files_99");
    repository.publish("demo-hello_1.1");
    let member = stage.member_of(&repository);
    let before = member.node.found();
    member.want_all(&json!({}));
    let run = member.update_to("failed");
    because(
        &run,
        &["plan"],
        &["it would take the system from", "base-files"],
    );
    assert_eq!(member.node.found(), before);
}
