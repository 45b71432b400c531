//! Scripts of packages that fail. What can be finished is, and what cannot is told with what a person must do.

use serde_json::{Value, json};

use crate::story::{Stage, because, stories};

stories![
    a_package_whose_preinst_fails_stays_as_it_was,
    a_package_whose_old_and_new_prerm_fail_stays_as_it_was,
    a_package_whose_old_prerm_fails_is_upgraded_by_the_new_one,
    a_postinst_that_fails_is_told_with_what_a_person_must_do_and_that_helps,
    a_failure_is_told_with_its_own_words_and_none_of_an_earlier_one,
    a_dependency_that_nobody_has_is_refused_before_anything_is_changed,
];

#[track_caller]
fn says(run: &Value, words: &str) {
    let log = run["log"].as_str().expect("a text");
    assert!(log.contains(words), "nothing of {words:?} in {log}");
}

fn a_package_whose_preinst_fails_stays_as_it_was(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-preinst_1.0"]);
    member.want("demo-preinst=1.1");
    let run = member.update_to("reverted");
    because(&run, &["apply"], &["apt-get install"]);
    says(&run, "demo-preinst: preinst fails on purpose");
    member.stands(&[("demo-preinst", "1.0 installed")]);
}

fn a_package_whose_old_and_new_prerm_fail_stays_as_it_was(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-stuck_1.0"]);
    member.want("demo-stuck=1.1");
    let run = member.update_to("reverted");
    because(&run, &["apply"], &["apt-get install"]);
    says(&run, "demo-stuck: prerm fails on purpose");
    member.stands(&[("demo-stuck", "1.0 installed")]);
}

fn a_package_whose_old_prerm_fails_is_upgraded_by_the_new_one(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-prerm_1.0"]);
    member.want("demo-prerm=1.1");
    member.update_to("succeeded");
    member.stands(&[("demo-prerm", "1.1 installed")]);
}

fn a_postinst_that_fails_is_told_with_what_a_person_must_do_and_that_helps(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-bad_1.0"]);
    member.want("demo-bad=1.1\ndemo-hello=1.1");
    let run = member.update_to("failed");
    because(&run, &["apply"], &["dpkg --configure demo-bad"]);
    says(&run, "demo-bad: postinst fails on purpose");

    // The others are not drawn into it.
    let found = member.node.found();
    assert_eq!(found.package("demo-bad"), "1.1 half-configured");
    assert_eq!(found.package("demo-hello"), "1.1 installed");
    assert!(found.audit.contains("demo-bad"), "{found:#?}");
    assert!(!found.audit.contains("demo-hello"), "{found:#?}");
    let packages = run["packages"].as_array().expect("packages");
    let states = packages
        .iter()
        .map(|one| json!([one["name"], one["state"]]));
    let states: Vec<_> = states.collect();
    assert!(
        states.contains(&json!(["demo-bad", "half-configured"])),
        "{run:#}"
    );
    assert!(
        states.contains(&json!(["demo-hello", "installed"])),
        "{run:#}"
    );

    // It is not tried again by itself, and what is advised works.
    assert!(member.agent_once().status.success());
    assert_eq!(member.only_run()["resourceId"], run["resourceId"]);
    member
        .node
        .sh("touch /opt/demo/repaired; dpkg --configure demo-bad");
    member.stands(&[("demo-bad", "1.1 installed")]);
}

fn a_failure_is_told_with_its_own_words_and_none_of_an_earlier_one(stage: &Stage) {
    let member = stage.member();
    // What was there before belongs to others.
    member.given(&["demo-bad_1.0", "demo-preinst_1.0"]);
    member
        .node
        .sh("apt-get -q -y install demo-preinst=1.1 || true; grep -q demo-preinst /var/log/apt/term.log");
    member.want("demo-bad=1.1");
    let run = member.update_to("failed");
    says(&run, "demo-bad: postinst fails on purpose");
    let log = run["log"].as_str().expect("a text");
    assert!(!log.contains("demo-preinst"), "{log}");
}

fn a_dependency_that_nobody_has_is_refused_before_anything_is_changed(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-missing_1.0"]);
    member.want("demo-missing=1.1\ndemo-hello=1.1");
    let run = member.update_to("failed");
    because(&run, &["plan"], &["apt-get"]);
    says(&run, "demo-nowhere");
    member.stands(&[
        ("demo-missing", "1.0 installed"),
        ("demo-hello", "1.0 installed"),
    ]);
}
