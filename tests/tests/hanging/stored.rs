//! What a node tells just as the database falls silent: it is not answered unless it is stored, and it is stored once.

use std::pin::pin;
use std::time::Duration;

use evenkeel_tests::history::read_runs;

use super::door::Passage;
use super::house::{House, until};
use super::node::Node;

/// How long a node waits for an answer before it repeats itself.
const IMPATIENCE: Duration = Duration::from_secs(3);

/// How many attempts are stored.
const STORED: &str = "SELECT count(*) FROM update_runs";

/// How many transactions of the server are open.
const OPEN: &str = "SELECT count(*) FROM pg_stat_activity \
                    WHERE usename = 'evenkeel' AND xact_start IS NOT NULL";

#[tokio::test(flavor = "multi_thread")]
async fn a_report_whose_commit_is_lost_is_stored_when_it_is_repeated() {
    tell_as_all_falls_silent(Passage::Silent, async |house: &House| {
        // Postgres ends what is left alone.
        until("nobody writes any more", async || {
            (house.database.ask(OPEN).await == "0").then_some(())
        })
        .await;
        assert_eq!(house.database.ask(STORED).await, "0");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_stored_without_an_answer_is_not_stored_again_when_it_is_repeated() {
    tell_as_all_falls_silent(Passage::Mute, async |house: &House| {
        until("it is stored", async || {
            (house.database.ask(STORED).await == "1").then_some(())
        })
        .await;
    })
    .await;
}

/// A node tells the beginning of an attempt, and at its commit the door lets only this pass. Then something is so, and
/// the node has no answer. It repeats itself when the door is open again.
async fn tell_as_all_falls_silent(passage: Passage, is_so: impl AsyncFnOnce(&House)) {
    let house = House::open().await;
    let node = Node::own(&house, 1).await;
    house.wish(&node.instance).await;
    let target = node.target().await;

    house.door.at_commit(passage);
    {
        let mut told = pin!(node.stage(&target));
        tokio::select! {
            answer = &mut told => panic!("before it is stored: {answer:?}"),
            () = house.door.happened() => {}
        }
        is_so(&house).await;
        let answer = tokio::time::timeout(IMPATIENCE, told).await;
        assert!(
            !matches!(answer, Ok(Ok(_))),
            "nobody knows that: {answer:?}"
        );
    }
    house.door.open().await;
    let acknowledged = until("it is taken", async || {
        let repeated = tokio::time::timeout(IMPATIENCE, node.stage(&target)).await;
        repeated.ok()?.ok()
    })
    .await;

    assert_eq!(acknowledged, 2);
    let runs = read_runs(&house.desk).await;
    let [run] = runs.as_slice() else {
        panic!("not one attempt: {runs:#?}");
    };
    let told = run.events.iter().filter_map(|event| event.sequence);
    assert_eq!(told.collect::<Vec<_>>(), [1, 2], "{run:#?}");
    house.close().await;
}
