//! What the agent does for each word of the server, and how each attempt ends.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_update_agent::agent::AgentError;
use evenkeel_update_agent::model::{Failure, FailureKind, News, Target, Wish};
use evenkeel_update_agent::node::load_credential;
use evenkeel_update_agent::status;

use crate::support::node::{Node, exactly};

fn last_news(node: &Node) -> News {
    node.server().only_attempt().last().unwrap().news.clone()
}

fn failure(node: &Node) -> Failure {
    last_news(node).failure().expect("a failure").clone()
}

#[tokio::test]
async fn inside_the_window_the_node_becomes_as_it_is_wanted_and_says_so() {
    let node = Node::in_window();
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(
        node.server().story(),
        "downloading, downloaded, began, verify begun, finished"
    );
    assert!(node.packages().automatic.contains("lib"));
    let log = node.system.take_log();
    assert_eq!(
        log,
        [
            "refresh",
            "refresh",
            "download app=2 lib=2",
            "install",
            "mark"
        ]
    );
    assert_eq!(node.left_over(), [""; 0]);
}

#[tokio::test]
async fn outside_the_window_everything_is_fetched_and_nothing_is_changed() {
    let node = Node::new();
    node.server().target = Some(exactly("app", Some("2")));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");

    node.system.take_log();
    node.server().open = true;
    node.run_once().await.unwrap();

    assert_eq!(node.system.listing(), "app 2 installed\nlib 1 installed");
    let log = node.system.take_log();
    assert_eq!(log, ["install"], "nothing is fetched twice");
}

#[tokio::test]
async fn what_was_fetched_and_broke_meanwhile_is_fetched_again_before_the_change() {
    let node = Node::new();
    node.server().target = Some(exactly("app", None));
    node.run_once().await.unwrap();
    let file = "/var/lib/evenkeel-agent/archives/app_2_all.deb";
    std::fs::write(node.place().inside(file), "noise").unwrap();
    node.system.take_log();
    node.server().open = true;
    node.run_once().await.unwrap();
    assert_eq!(node.system.take_log(), ["download app=2", "install"]);
    assert_eq!(node.system.listing(), "app 2 installed\nlib 1 installed");
}

#[tokio::test]
async fn a_withdrawn_wish_is_cancelled_and_leaves_nothing_behind() {
    let node = Node::new();
    node.server().target = Some(exactly("app", None));
    node.run_once().await.unwrap();
    node.server().target = None;
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded, cancelled");
    assert_eq!(node.left_over(), [""; 0]);
}

#[tokio::test]
async fn a_wish_that_was_replaced_is_given_up_for_the_new_one() {
    let node = Node::new();
    node.server().target = Some(exactly("app", None));
    node.run_once().await.unwrap();
    node.server().target = Some(exactly("lib", None));
    node.server().open = true;
    // This server lets go of the past only when it has been told of it.
    node.server().forgetful = true;
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 1 installed\nlib 2 installed");
    let ends: Vec<_> = node
        .server()
        .told
        .values()
        .map(|events| events.last().unwrap().news.name())
        .collect();
    assert!(
        ends.contains(&"cancelled") && ends.contains(&"finished"),
        "{ends:?}"
    );
}

#[tokio::test]
async fn where_there_is_nothing_to_fetch_nothing_is_told_and_it_is_not_tried_again_soon() {
    let node = Node::new();
    node.server().target = Some(exactly("app", Some("1")));
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert!(node.server().told.is_empty());
    node.system.take_log();
    agent.run_once().await.unwrap();
    assert!(node.system.take_log().is_empty());
    node.clock.advance(TimeDelta::hours(2));
    agent.run_once().await.unwrap();
    assert_eq!(node.system.take_log(), ["refresh"]);
}

#[tokio::test]
async fn a_node_that_is_as_wanted_has_nothing_to_do() {
    let node = Node::in_window();
    node.server().target = Some(exactly("app", Some("1")));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "nothing to do");
    assert_eq!(node.server().begins, 0);
}

#[tokio::test]
async fn a_package_whose_script_fails_ends_the_attempt_with_dpkgs_own_words() {
    let node = Node::in_window();
    node.packages().broken.insert("app".into());
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::Attempt(_)), "{error}");
    let News::Failed {
        failure, results, ..
    } = last_news(&node)
    else {
        panic!("a failure")
    };
    assert_eq!(failure.kind, FailureKind::Apply);
    assert!(
        failure.log.contains("app: postinst fails on purpose"),
        "{}",
        failure.log
    );
    assert!(
        failure.reason.contains("app is 2 and half-configured"),
        "{}",
        failure.reason
    );
    let states: Vec<_> = results
        .iter()
        .map(|result| format!("{} {} {}", result.name, result.version, result.state))
        .collect();
    assert_eq!(states, ["app 2 half-configured", "lib 2 installed"]);

    node.system.take_log();
    node.run_once().await.unwrap();
    let log = node.system.take_log();
    assert_eq!(log, ["refresh"], "it is not tried again");
    assert!(node.server().facts.as_ref().unwrap().audit.contains("app"));
}

#[tokio::test]
async fn once_its_cause_is_gone_a_half_configured_package_is_finished() {
    let node = Node::in_window();
    node.packages().broken.insert("app".into());
    node.run_once().await.unwrap_err();
    node.packages().broken.clear();
    node.server().told.clear();
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert!(node.server().story().ends_with("finished"));
}

#[tokio::test]
async fn a_failed_wish_is_not_tried_in_circles_even_if_the_server_wants_it() {
    let node = Node::in_window();
    node.packages().broken.insert("app".into());
    node.server().forgetful = true;
    let mut agent = node.agent();
    agent.run_once().await.unwrap_err();
    assert_eq!(node.server().told.len(), 1);
}

#[tokio::test]
async fn a_plan_that_would_remove_a_package_is_refused() {
    let node = Node::in_window();
    node.packages().in_the_way.push("lib".into());
    node.run_once().await.unwrap_err();
    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Plan);
    assert_eq!(failure.reason, "it would remove lib");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
}

#[tokio::test]
async fn a_name_that_is_none_never_reaches_a_command_line() {
    let node = Node::in_window();
    for name in ["-oAPT::Update::Pre-Invoke::=id", "app;id", "app-"] {
        node.server().told.clear();
        node.server().target = Some(exactly(name, None));
        node.run_once().await.unwrap_err();
        let failure = failure(&node);
        assert_eq!(failure.kind, FailureKind::Plan);
        assert!(
            failure.reason.ends_with("is no package's name"),
            "{failure}"
        );
    }
}

#[tokio::test]
async fn what_the_agent_does_not_know_how_to_do_is_unsupported() {
    let node = Node::in_window();
    node.server().target = Some(Target {
        digest: "image".into(),
        wish: Wish::Unknown,
    });
    node.run_once().await.unwrap_err();
    assert_eq!(failure(&node).kind, FailureKind::Unsupported);
}

#[tokio::test]
async fn what_the_agent_does_not_know_is_told_before_its_window_opens() {
    let node = Node::new();
    node.server().target = Some(Target {
        digest: "image".into(),
        wish: Wish::Unknown,
    });
    let mut agent = node.agent();
    agent.run_once().await.unwrap_err();
    assert_eq!(node.server().story(), "failed");
    assert_eq!(failure(&node).kind, FailureKind::Unsupported);
    node.server().forgetful = true;
    agent.run_once().await.unwrap_err();
    assert_eq!(node.server().told.len(), 1, "once");
}

#[tokio::test]
async fn a_mark_that_fails_is_told_and_fails_nothing() {
    let node = Node::in_window();
    node.packages().mark_error = "E: extended_states cannot be written".into();
    node.run_once().await.unwrap();
    assert!(node.server().story().ends_with("verify begun, finished"));
    let end = status::read(&node.place().status()).unwrap().last_end;
    let end = end.unwrap();
    assert_eq!(end.outcome, "finished");
    assert_eq!(
        end.remarks,
        [
            "mark: apt-mark auto ended with status 100: E: extended_states cannot be written:\n\
             E: extended_states cannot be written"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn sources_that_cannot_be_refreshed_are_tried_again_and_then_reported() {
    let node = Node::in_window();
    for (text, kind) in [
        (
            "E: The repository does not have a Release file.",
            FailureKind::Refresh,
        ),
        ("E: GPG error: NO_PUBKEY 1", FailureKind::Signature),
    ] {
        node.server().told.clear();
        node.packages().refresh_error = text.into();
        node.run_once().await.unwrap_err();
        let failure = failure(&node);
        assert_eq!(failure.kind, kind);
        assert!(failure.reason.contains(text), "{failure}");
    }
}

#[tokio::test]
async fn a_node_that_was_changed_by_someone_else_since_the_plan_is_not_touched() {
    let node = Node::new();
    node.server().target = Some(exactly("app", Some("2")));
    node.run_once().await.unwrap();
    let other = ("3".to_owned(), "installed".to_owned());
    node.packages().installed.insert("app".into(), other);
    node.server().open = true;
    node.run_once().await.unwrap_err();
    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Plan);
    assert!(
        failure.reason.ends_with("since the plan was made: app"),
        "{failure}"
    );
    assert_eq!(node.server().begins, 0);
}

#[tokio::test]
async fn without_leave_nothing_is_changed_and_everything_stays_ready() {
    let node = Node::in_window();
    node.server().refuse = true;
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
    node.server().refuse = false;
    node.system.take_log();
    node.run_once().await.unwrap();
    assert_eq!(node.system.take_log(), ["install", "mark"]);
}

#[tokio::test]
async fn a_server_that_stored_less_than_was_believed_is_told_again() {
    let node = Node::in_window();
    node.server().forgotten = 2;
    node.run_once().await.unwrap();
    assert_eq!(
        node.server().story(),
        "downloading, downloaded, began, verify begun, finished"
    );
}

#[tokio::test]
async fn a_server_that_never_acknowledges_is_given_a_rest() {
    let node = Node::in_window();
    node.server().forgotten = u32::MAX;
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::NoProgress), "{error}");
}

#[tokio::test]
async fn a_new_credential_is_kept_and_used() {
    let node = Node::new();
    node.server().renewal = Some("second".into());
    node.run_once().await.unwrap();
    assert_eq!(node.server().renewed, ["second"]);
    assert_eq!(load_credential(&node.place()).unwrap().reveal(), "second");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_error_of_a_single_run() {
    let node = Node::new();
    node.server().silent_polls = 1;
    let error = node.run_once().await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the server cannot be reached"),
        "{error}"
    );
}

#[tokio::test]
async fn facts_travel_only_when_they_changed() {
    let node = Node::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(
        node.server().polls,
        3,
        "the server asked for the facts, then for the list of packages"
    );
    let available: Vec<_> = {
        let server = node.server();
        let facts = server.facts.as_ref().unwrap();
        facts
            .available
            .iter()
            .map(|package| package.name.clone())
            .collect()
    };
    assert_eq!(available, ["app", "lib"]);
    agent.run_once().await.unwrap();
    assert_eq!(node.server().polls, 4);
    std::fs::create_dir_all(node.place().inside("/run")).unwrap();
    std::fs::write(node.place().inside("/run/reboot-required"), "").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(
        node.server().polls,
        5,
        "the agent knew that they had changed"
    );
    assert!(node.server().facts.as_ref().unwrap().reboot_required);
}

#[tokio::test(start_paused = true)]
async fn the_daemon_waits_as_it_is_told_and_longer_when_nobody_answers() {
    let node = Node::new();
    node.server().silent_polls = 3;
    let mut agent = node.agent();
    let begun = tokio::time::Instant::now();
    let watch = async {
        while node.server().polls < 7 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        node.stop.cancel();
    };
    tokio::join!(agent.run(), watch);
    // Three failures (1 s, 2 s, 4 s, each with jitter), three polls because of questions, then a minute.
    let passed = begun.elapsed();
    let expected = Duration::from_mins(1)..Duration::from_secs(80);
    assert!(expected.contains(&passed), "{passed:?}");
}

#[tokio::test]
async fn an_agent_that_was_asked_to_stop_begins_nothing() {
    let node = Node::in_window();
    node.stop.cancel();
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::Stopped), "{error}");
    assert_eq!(node.server().polls, 0);
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
}
