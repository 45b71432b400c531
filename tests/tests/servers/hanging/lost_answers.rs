//! Reports that are sent while the database falls silent: the server confirms only what is stored,
//! and stores each report once.

use std::pin::pin;
use std::time::Duration;

use evenkeel_tests::history::read_runs;

use super::database_proxy::TrafficMode;
use super::node::Node;
use super::test_server::{TestServer, until};

/// Time after which a node repeats a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Number of stored attempts.
const COUNT_RUNS: &str = "SELECT count(*) FROM update_runs";

/// Number of open transactions of the server.
const COUNT_OPEN_TRANSACTIONS: &str = "SELECT count(*) FROM pg_stat_activity \
                    WHERE usename = 'evenkeel' AND xact_start IS NOT NULL";

#[tokio::test(flavor = "multi_thread")]
async fn a_report_whose_commit_is_lost_is_stored_when_it_is_repeated() {
    report_while_traffic_is_held(TrafficMode::HoldAll, async |server: &TestServer| {
        // Postgres ends abandoned transactions.
        until("no transaction is open", async || {
            (server.database.query(COUNT_OPEN_TRANSACTIONS).await == "0").then_some(())
        })
        .await;
        assert_eq!(server.database.query(COUNT_RUNS).await, "0");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_stored_without_an_answer_is_not_stored_again_when_it_is_repeated() {
    report_while_traffic_is_held(TrafficMode::HoldReplies, async |server: &TestServer| {
        until("the report is stored", async || {
            (server.database.query(COUNT_RUNS).await == "1").then_some(())
        })
        .await;
    })
    .await;
}

/// A node reports the start of an attempt, and the proxy switches to this mode at the commit. The
/// check `is_so` passes, and the node gets no answer. It repeats the report when the proxy forwards
/// again.
async fn report_while_traffic_is_held(passage: TrafficMode, is_so: impl AsyncFnOnce(&TestServer)) {
    let server = TestServer::start().await;
    let node = Node::join_own(&server, 1).await;
    server.order_update(&node.instance).await;
    let target = node.wait_for_target().await;

    server.proxy.set_mode_at_commit(passage);
    {
        let mut report = pin!(node.report_staged(&target));
        tokio::select! {
            answer = &mut report => panic!("answered before the report was stored: {answer:?}"),
            () = server.proxy.wait_for_commit_action() => {}
        }
        is_so(&server).await;
        let answer = tokio::time::timeout(CALL_TIMEOUT, report).await;
        assert!(!matches!(answer, Ok(Ok(_))), "the server cannot know that: {answer:?}");
    }
    server.proxy.forward_all().await;
    let acknowledged = until("the report is accepted", async || {
        let repeated = tokio::time::timeout(CALL_TIMEOUT, node.report_staged(&target)).await;
        repeated.ok()?.ok()
    })
    .await;

    assert_eq!(acknowledged, 2);
    let runs = read_runs(&server.client).await;
    let [run] = runs.as_slice() else {
        panic!("not exactly one attempt: {runs:#?}");
    };
    let sequences = run.events.iter().filter_map(|event| event.sequence);
    assert_eq!(sequences.collect::<Vec<_>>(), [1, 2], "{run:#?}");
    server.stop().await;
}
