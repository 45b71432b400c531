//! Fetching over a line that is slow, that breaks, and that others need too.

use std::time::Duration;

use evenkeel_tests::lab::{Member, Repository, SlowLine, Web, until};
use serde_json::{Value, json};

use crate::story::{SOON, Stage, stories};

stories![
    a_download_that_broke_off_is_gone_on_with_where_it_was,
    a_download_takes_no_more_of_the_line_than_the_policy_allows,
];

/// The file that is large enough to be in the middle of.
const LARGE: &str = "pool/demo-big_1.1_all.deb";

/// A node whose only source is a repository that is reached at this address.
fn member_at(stage: &Stage, repository: Repository, address: &str) -> Member<'static> {
    let repository = repository.reached_by(format!("http://{address}"));
    repository.publish("demo-big_1.1");
    stage.member_of(&repository)
}

fn wants_the_large_one(member: &Member<'_>, rules: &Value) {
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-big=1.1",
        "packageRules": rules,
    }));
    member.order_now();
}

fn a_download_that_broke_off_is_gone_on_with_where_it_was(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::of(repository.folder());
    let line = SlowLine::to(&web.address().to_string(), Duration::from_millis(5));
    let member = member_at(stage, repository, &line.address().to_string());
    wants_the_large_one(&member, &json!({}));

    let mut agent = member.start_agent(&["run", "--once"]);
    until("a part is there", SOON, || {
        (line.carried() > 4 << 20).then_some(())
    });
    line.cut();
    until("the line is broken", SOON, || {
        line.lost_an_answer().then_some(())
    });
    line.mend();
    let status = agent.wait(SOON);
    assert!(status.success(), "{}", agent.log());
    drop(agent);

    let asked = web.asked();
    let again = asked.iter().filter(|one| one.path == LARGE && one.from > 0);
    assert!(again.count() > 0, "{asked:?}");
    assert_eq!(member.only_run()["state"], "succeeded");
    member.stands(&[("demo-big", "1.1 installed")]);
}

fn a_download_takes_no_more_of_the_line_than_the_policy_allows(stage: &Stage) {
    let repository = stage.repository();
    let web = Web::of(repository.folder());
    let member = member_at(stage, repository, &web.address().to_string());
    wants_the_large_one(&member, &json!({ "downloadBytesPerSecond": 5 << 20 }));
    let run = member.go_on_to("succeeded");
    let phases = run["account"]["phases"].as_array().expect("phases");
    let download = phases.iter().find(|phase| phase["phase"] == "download");
    let download = download.unwrap_or_else(|| panic!("no download in {run:#}"));
    // 20 MB take four seconds; apt counts by the second and may be one ahead.
    assert!(download["bytes"].as_u64() > Some(19_000_000), "{download}");
    assert!(download["millis"].as_u64() > Some(2_000), "{download}");
    member.stands(&[("demo-big", "1.1 installed")]);
}
