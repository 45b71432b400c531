//! Sources that are forged, unsigned, missing or expired, and sources of another release.

use std::fs::{self, File};
use std::io::Write as _;

use evenkeel_tests::lab::{Member, Repository, Suite, package};
use serde_json::json;

use super::scenario::{
    Stage, assert_failure, list_sources_twice, scenarios, trust_repository, write_file,
};

scenarios![
    a_repository_that_was_tampered_with_is_refused,
    an_unsigned_repository_is_refused,
    a_repository_signed_with_an_expired_key_is_refused,
    a_changed_label_is_reported_with_the_command_that_accepts_it,
    an_expired_repository_is_refused,
    a_repository_that_is_not_valid_yet_is_reported_with_this_cause,
    a_missing_repository_is_reported,
    a_broken_source_does_not_block_an_update_from_the_others,
    a_source_that_is_listed_twice_does_not_hide_which_source_is_broken,
    a_failing_hook_does_not_hide_which_source_is_broken,
    an_update_that_needs_a_broken_source_fails_with_its_error,
    a_file_whose_size_differs_from_the_index_is_refused,
    a_file_whose_content_differs_from_the_index_is_refused,
    a_policy_may_add_a_source_that_only_its_update_uses,
    a_source_of_a_policy_is_refused_if_its_key_is_not_on_the_node,
    the_owner_can_allow_a_source_with_a_key_from_the_server,
    a_source_of_a_policy_that_was_tampered_with_is_refused,
    a_plan_that_would_change_the_release_is_refused,
    a_source_that_only_claims_the_installed_release_cannot_replace_it,
    a_label_like_the_output_of_apt_does_not_confuse_the_agent,
    a_label_of_several_lines_does_not_block_updates,
];

/// The update must fail before anything changes, with one of these kinds and all of these texts.
#[track_caller]
fn assert_refused(stage: &Stage, repository: &Repository, kinds: &[&str], texts: &[&str]) {
    let member = stage.member_with_source(repository);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, kinds, texts);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

/// Changes the signed release file.
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
    assert_refused(stage, &repository, &["signature"], &["not signed"]);
}

fn an_unsigned_repository_is_refused(stage: &Stage) {
    let repository = stage.repository().with_variable("SIGN", "no");
    repository.publish("demo-hello_1.1");
    assert_refused(stage, &repository, &["signature"], &["not signed"]);
}

fn a_repository_signed_with_an_expired_key_is_refused(stage: &Stage) {
    let repository = stage.repository().with_variable("SIGN", "past");
    repository.publish("demo-hello_1.1");
    // Debian 13 verifies with another program.
    let cause = match stage.suite {
        Suite::Bookworm => "EXPKEYSIG",
        Suite::Trixie => "sqv",
    };
    assert_refused(stage, &repository, &["signature"], &["not signed", cause]);
}

fn a_changed_label_is_reported_with_the_command_that_accepts_it(stage: &Stage) {
    let repository = stage.repository().with_variable("LABEL", "First");
    repository.publish("demo-hello_1.0");
    let member = stage.member_with_source(&repository);
    member.node.sh("apt-get -q update --error-on=any");
    stage.repository().with_variable("LABEL", "Second").publish("demo-hello_1.1");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["refresh"], &["'Second'", "--allow-releaseinfo-change"]);
    member.node.sh("apt-get -q update --allow-releaseinfo-change");
    member.assign_packages("demo-hello=1.1");
    member.order_now();
    assert!(member.agent_once().status.success());
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn an_expired_repository_is_refused(stage: &Stage) {
    let repository = stage.repository().with_variable("VALID_UNTIL", "yesterday");
    repository.publish("demo-hello_1.1");
    assert_refused(stage, &repository, &["refresh", "signature"], &["expired"]);
}

/// As on a node whose clock is behind. On one whose clock is ahead, repositories are expired.
fn a_repository_that_is_not_valid_yet_is_reported_with_this_cause(stage: &Stage) {
    let repository = stage.repository().with_variable("DATE", "+2 days");
    repository.publish("demo-hello_1.1");
    assert_refused(stage, &repository, &["refresh"], &["not valid yet"]);
}

fn a_missing_repository_is_reported(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let member = stage.member_with_source(&repository);
    fs::remove_dir_all(repository.folder().join("dists")).expect("a folder less");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["refresh"], &["/srv/own"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

/// A node with the fleet's repository and an expired one.
fn member_with_broken_source(stage: &Stage) -> Member<'static> {
    let broken = stage.repository().with_variable("DIST", "broken");
    let broken = broken.with_variable("VALID_UNTIL", "yesterday");
    broken.publish("demo-hello_1.1");
    let member = stage.join(stage.node("node").with_file(broken.folder(), broken.inside()));
    member.node.sh("cp /srv/own/repo.sources /etc/apt/sources.list.d/own.sources");
    member
}

fn a_broken_source_does_not_block_an_update_from_the_others(stage: &Stage) {
    let member = member_with_broken_source(stage);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let remarks = run["report"]["remarks"].to_string();
    let is_reported =
        remarks.contains("some package sources could not be used") && remarks.contains("/srv/own");
    assert!(is_reported, "{run:#}");
    let condition = member.condition_message("package_lists_outdated");
    assert!(condition.contains("/srv/own") && condition.contains("expired"), "{condition:?}");
}

/// apt warns about the source that is listed twice, in the same output.
fn a_source_that_is_listed_twice_does_not_hide_which_source_is_broken(stage: &Stage) {
    let member = member_with_broken_source(stage);
    list_sources_twice(&member.node);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let remarks = run["report"]["remarks"].to_string();
    assert!(remarks.contains("some package sources could not be used"), "{run:#}");
}

fn a_failing_hook_does_not_hide_which_source_is_broken(stage: &Stage) {
    let member = member_with_broken_source(stage);
    let hook = "APT::Update::Post-Invoke {\"exit 3\";};\n";
    write_file(&member.node, "/etc/apt/apt.conf.d/90hooks", hook);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let remarks = run["report"]["remarks"].to_string();
    assert!(remarks.contains("some package sources could not be used"), "{run:#}");
}

fn an_update_that_needs_a_broken_source_fails_with_its_error(stage: &Stage) {
    let member = member_with_broken_source(stage);
    member.assign_packages("demo-hello=9");
    let run = member.update_to("failed");
    assert_failure(&run, &["refresh"], &["demo-hello", "/srv/own", "expired"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_file_whose_size_differs_from_the_index_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let path = repository.folder().join("pool/demo-hello_1.1_all.deb");
    let mut file = File::options().append(true).open(path).expect("a file");
    file.write_all(b"more").expect("a longer file");
    let kinds = ["download", "signature"];
    assert_refused(stage, &repository, &kinds, &["demo-hello"]);
}

fn a_file_whose_content_differs_from_the_index_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let path = repository.folder().join("pool/demo-hello_1.1_all.deb");
    let mut content = fs::read(&path).expect("a file");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&path, content).expect("another file");
    let kinds = ["download", "signature"];
    assert_refused(stage, &repository, &kinds, &["demo-hello"]);
}

/// A node without sources, and a policy for `demo-hello` that contains a source with its key.
fn member_with_policy_source(stage: &Stage, repository: &Repository) -> Member<'static> {
    let member = stage.member_with_source(repository);
    member.node.sh("rm /etc/apt/sources.list.d/*");
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
        "updateSources": [repository.apt_source()],
    }));
    member
}

/// A compromised server adds a source with its own key.
fn a_source_of_a_policy_is_refused_if_its_key_is_not_on_the_node(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let member = member_with_policy_source(stage, &repository);
    let run = member.update_to("failed");
    let texts = ["is signed by the key", "/etc/evenkeel/keys.d", "server_keys = true"];
    assert_failure(&run, &["limits"], &texts);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn the_owner_can_allow_a_source_with_a_key_from_the_server(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let member = member_with_policy_source(stage, &repository);
    write_file(&member.node, "/etc/evenkeel/limits.toml", "server_keys = true\n");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_policy_may_add_a_source_that_only_its_update_uses(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    let member = member_with_policy_source(stage, &repository);
    trust_repository(&member.node, &repository);
    let run = member.update_to("succeeded");
    assert_eq!(package(&run, "demo-hello")["after"], "1.1");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let left =
        "ls -A /etc/apt/sources.list.d; ls -A /var/lib/evenkeel-agent | grep -x sources || true";
    assert_eq!(member.node.sh(left), "");
}

fn a_source_of_a_policy_that_was_tampered_with_is_refused(stage: &Stage) {
    let repository = stage.repository();
    repository.publish("demo-hello_1.1");
    tamper(&repository);
    let member = member_with_policy_source(stage, &repository);
    trust_repository(&member.node, &repository);
    let run = member.update_to("failed");
    assert_failure(&run, &["signature"], &["not signed"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_plan_that_would_change_the_release_is_refused(stage: &Stage) {
    let repository = stage.repository().with_variable("DIST", "forky");
    repository.publish("base-files_99");
    repository.publish("demo-hello_1.1");
    let member = stage.member_with_source(&repository);
    let before = member.node.dpkg_status();
    member.assign_latest(&json!({}));
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["it would move the system from", "base-files"]);
    assert_eq!(member.node.dpkg_status(), before);
}

fn a_source_that_only_claims_the_installed_release_cannot_replace_it(stage: &Stage) {
    let codename = stage.suite.to_string();
    let release = Repository::empty(&stage.lab, "release", "/srv/release");
    release.with_variable("DIST", &codename).publish("demo-hello_1.0");
    let claiming = stage.repository().with_variable("DIST", "thirdparty");
    let claiming = claiming.with_variable("CODENAME", &codename);
    claiming.publish("base-files_99");
    let node = stage.node("node").with_file(&stage.lab.path("release"), "/srv/release");
    let member = stage.join(node.with_file(claiming.folder(), claiming.inside()));
    member.node.sh("cp /srv/own/repo.sources /etc/apt/sources.list.d/own.sources; \
         cp /srv/release/repo.sources /etc/apt/sources.list.d/release.sources");
    let before = member.node.dpkg_status();
    member.assign_latest(&json!({}));
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["base-files 99", "/srv/own", "thirdparty", &codename]);
    assert_eq!(member.node.dpkg_status(), before);
}

fn a_label_like_the_output_of_apt_does_not_confuse_the_agent(stage: &Stage) {
    let repository = stage.repository().with_variable("LABEL", "Evil [x]) [a ], Inc.");
    repository.publish("demo-hello_1.1");
    let member = stage.member_with_source(&repository);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    assert_eq!(package(&run, "demo-hello")["after"], "1.1");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

/// apt prints the label as it is: one line of its output becomes two.
fn a_label_of_several_lines_does_not_block_updates(stage: &Stage) {
    let label = "Evil\n Inst other (9 x [all])\n \u{1b}[2J";
    let repository = stage.repository().with_variable("LABEL", label);
    repository.publish("demo-hello_1.1");
    let member = stage.member_with_source(&repository);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    assert_eq!(package(&run, "demo-hello")["after"], "1.1");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}
