//! Downloads over connections that are slow, that break, or that others need as well.

use std::time::Duration;

use evenkeel_tests::lab::{Member, Repository, SlowConnection, Web, describe_output, until};
use serde_json::{Value, json};

use super::scenario::{Stage, WAIT_TIMEOUT, scenarios};

scenarios![
    a_broken_download_resumes_where_it_stopped,
    a_download_runs_as_the_user_of_apt_and_not_as_root,
    a_download_uses_no_more_bandwidth_than_the_policy_allows,
    a_package_in_the_cache_of_apt_is_not_downloaded_and_lists_are_fetched_once,
];

/// Path of a file that is large enough to interrupt its download.
const LARGE_PACKAGE_PATH: &str = "pool/demo-big_1.1_all.deb";

/// A node whose only source is a repository at this address.
fn member_with_source_at(stage: &Stage, repository: Repository, address: &str) -> Member<'static> {
    let repository = repository.with_url(format!("http://{address}"));
    repository.publish("demo-big_1.1");
    stage.member_with_source(&repository)
}

fn order_large_package(member: &Member<'_>, rules: &Value) {
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-big=1.1",
        "packageRules": rules,
    }));
    member.order_now();
}

fn a_broken_download_resumes_where_it_stopped(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::serve(repository.folder());
    let line = SlowConnection::to(&web.address().to_string(), Duration::from_millis(5));
    let member = member_with_source_at(stage, repository, &line.address().to_string());
    order_large_package(&member, &json!({}));

    let mut agent = member.start_agent(&["run", "--once"]);
    until("a part is downloaded", WAIT_TIMEOUT, || (line.bytes_carried() > 4 << 20).then_some(()));
    line.cut();
    until("the connection is broken", WAIT_TIMEOUT, || line.has_lost_answer().then_some(()));
    line.repair();
    let status = agent.wait(WAIT_TIMEOUT);
    assert!(status.success(), "{}", agent.log());
    drop(agent);

    let requests = web.requests();
    let again = requests.iter().filter(|one| one.path == LARGE_PACKAGE_PATH && one.from > 0);
    assert!(again.count() > 0, "{requests:?}");
    assert_eq!(member.only_run()["state"], "succeeded");
    member.assert_packages(&[("demo-big", "1.1 installed")]);
}

/// Prints the effective user ID of each process that downloads over HTTP, one a line.
const DOWNLOAD_USERS: &str = r#"
for process in /proc/[0-9]*; do
  [ "$(cat "$process/comm" 2> /dev/null)" = http ] || continue
  sed -n 's/^Uid:[[:blank:]]*[0-9]*[[:blank:]]*\([0-9]*\).*/\1/p' "$process/status" 2> /dev/null || true
done
"#;

fn a_download_runs_as_the_user_of_apt_and_not_as_root(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::serve(repository.folder());
    let line = SlowConnection::to(&web.address().to_string(), Duration::from_millis(5));
    let member = member_with_source_at(stage, repository, &line.address().to_string());
    let apt_user = member.node.sh("id -u _apt");
    order_large_package(&member, &json!({}));

    let mut agent = member.start_agent(&["run", "--once"]);
    until("a part is downloaded", WAIT_TIMEOUT, || (line.bytes_carried() > 2 << 20).then_some(()));
    let users = until("a program downloads", WAIT_TIMEOUT, || {
        let users = member.node.succeed_inside(&["sh", "-c", DOWNLOAD_USERS]);
        (!users.is_empty()).then_some(users)
    });
    assert!(users.lines().all(|user| user == apt_user.trim()), "{users} instead of {apt_user}");
    let status = agent.wait(WAIT_TIMEOUT);
    assert!(status.success(), "{}", agent.log());
    drop(agent);
    member.assert_packages(&[("demo-big", "1.1 installed")]);
}

fn a_download_uses_no_more_bandwidth_than_the_policy_allows(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::serve(repository.folder());
    let member = member_with_source_at(stage, repository, &web.address().to_string());
    order_large_package(&member, &json!({ "downloadBytesPerSecond": 5 << 20 }));
    let run = member.run_agent_to("succeeded");
    let phases = run["report"]["phases"].as_array().expect("phases");
    let download = phases.iter().find(|phase| phase["phase"] == "download");
    let download = download.unwrap_or_else(|| panic!("no download in {run:#}"));
    // 20 MB take four seconds; apt counts whole seconds and may be one second ahead.
    assert!(download["bytes"].as_u64() > Some(19_000_000), "{download}");
    assert!(download["millis"].as_u64() > Some(2_000), "{download}");
    member.assert_packages(&[("demo-big", "1.1 installed")]);
}

fn a_package_in_the_cache_of_apt_is_not_downloaded_and_lists_are_fetched_once(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::serve(repository.folder());
    let member = member_with_source_at(stage, repository, &web.address().to_string());
    member.node.sh("apt-get update && apt-get install --yes --download-only demo-big=1.1");
    let earlier = web.requests().len();
    order_large_package(&member, &json!({}));
    let output = member.agent_once();
    assert!(output.status.success(), "{}", describe_output(&output));

    let requests = web.requests().split_off(earlier);
    let count = |end: &str| requests.iter().filter(|one| one.path.ends_with(end)).count();
    assert_eq!(count(LARGE_PACKAGE_PATH), 0, "{requests:?}");
    assert_eq!(count("InRelease"), 1, "{requests:?}");
    assert_eq!(member.only_run()["state"], "succeeded");
    member.assert_packages(&[("demo-big", "1.1 installed")]);
}
