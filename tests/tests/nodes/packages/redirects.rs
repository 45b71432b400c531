//! Mirrors that redirect: endlessly, to files of the node, or to another host.

use evenkeel_tests::lab::{Member, Repository, Web};

use super::scenario::{Stage, assert_failure, scenarios};

scenarios![
    a_redirection_loop_is_a_failed_refresh_with_its_cause,
    a_redirection_without_an_end_is_ended_by_the_time_limit,
    a_redirection_without_an_end_does_not_block_other_sources,
    a_redirection_to_a_file_of_the_node_is_refused,
    a_redirection_to_a_host_with_another_key_is_refused,
    a_package_that_is_redirected_to_a_file_of_the_node_is_not_installed,
];

/// The update from the only source of a node must fail before anything changes.
#[track_caller]
fn assert_refused(member: &Member<'_>, kind: &str, texts: &[&str]) {
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &[kind], texts);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

/// The repository of the scenario at the address of a server, with the update of `demo-hello`.
fn publish_at(repository: Repository, web: &Web) -> Repository {
    let repository = repository.with_url(format!("http://{}", web.address()));
    repository.publish("demo-hello_1.1");
    repository
}

fn a_redirection_loop_is_a_failed_refresh_with_its_cause(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::redirect(repository.folder(), "/", str::to_owned);
    let member = stage.member_with_source(&publish_at(repository, &web));
    assert_refused(&member, "refresh", &["Release file", "redirection loop"]);
}

/// Each address differs, so this is no loop for apt.
fn a_redirection_without_an_end_is_ended_by_the_time_limit(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::redirect(repository.folder(), "/", |path| format!("{path}x"));
    let repository = publish_at(repository, &web);
    let node = stage.node("node").with_variable("EVENKEEL_AGENT_PACKAGES__REFRESH_TIMEOUT", "3s");
    let member = stage.join_with_source(node, &repository);
    assert_refused(&member, "refresh", &["did not end within 3 s and was killed"]);
}

fn a_redirection_without_an_end_does_not_block_other_sources(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::redirect(repository.folder(), "/", |path| format!("{path}x"));
    let repository = publish_at(repository, &web);
    let node = stage.node("node").with_variable("EVENKEEL_AGENT_PACKAGES__REFRESH_TIMEOUT", "10s");
    let member = stage.join(node.with_file(repository.folder(), repository.inside()));
    let inside = repository.inside();
    member.node.sh(&format!("cp {inside}/repo.sources /etc/apt/sources.list.d/own.sources"));
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let remarks = run["report"]["remarks"].to_string();
    let is_reported = remarks.contains("some package sources could not be used")
        && remarks.contains(&web.address().to_string());
    assert!(is_reported, "{run:#}");
}

fn a_redirection_to_a_file_of_the_node_is_refused(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::redirect(repository.folder(), "/", |path| format!("file:///srv/own{path}"));
    let member = stage.member_with_source(&publish_at(repository, &web));
    assert_refused(&member, "refresh", &["Release file", "file:/srv/own", "forbidden"]);
}

fn a_redirection_to_a_host_with_another_key_is_refused(stage: &Stage) {
    let forged = Repository::empty(&stage.lab, "forged", "/srv/forged");
    let other = Web::serve(forged.folder());
    publish_at(forged, &other);
    let address = other.address();
    let repository = stage.repository();
    let web =
        Web::redirect(repository.folder(), "/", move |path| format!("http://{address}{path}"));
    let member = stage.member_with_source(&publish_at(repository, &web));
    assert_refused(&member, "signature", &["not signed"]);
    assert!(!other.requests().is_empty(), "apt has followed the redirection");
}

/// The file has the size and the digest that the index requires.
fn a_package_that_is_redirected_to_a_file_of_the_node_is_not_installed(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::redirect(repository.folder(), "/pool/", |path| format!("file:///srv/own{path}"));
    let member = stage.member_with_source(&publish_at(repository, &web));
    assert_refused(&member, "download", &["demo-hello", "file:/srv/own/pool", "forbidden"]);
}
