//! What stays on the node of the attempts that ended.

use evenkeel_update_agent::history::{self, Record};
use evenkeel_update_agent::model::FailureKind;

use crate::support::journal::{BreakingJournal, Side};
use crate::support::node::Node;

fn records(node: &Node) -> Vec<Record> {
    history::read(&node.place().history()).unwrap()
}

#[tokio::test]
async fn an_attempt_that_ended_is_kept_with_what_it_changed() {
    let node = Node::in_window();
    node.run_once().await.unwrap();
    let [record] = &records(&node)[..] else {
        panic!("one record")
    };
    assert_eq!(record.outcome, "finished");
    assert_eq!(record.target, "latest");
    assert_eq!((record.changed, record.kind), (2, None));
    let names: Vec<_> = record.changes.iter().map(|change| &change.name).collect();
    assert_eq!(names, ["app", "lib"]);
    assert!(record.began.is_some());
    assert!(!record.account.phases.is_empty());
}

#[tokio::test]
async fn a_failure_is_kept_with_its_reason() {
    let node = Node::in_window();
    node.packages().broken.insert("app".into());
    node.run_once().await.unwrap_err();
    let [record] = &records(&node)[..] else {
        panic!("one record")
    };
    assert_eq!(record.outcome, "failed");
    assert_eq!(record.kind, Some(FailureKind::Apply));
    assert!(record.reason.contains("app"), "{record:?}");
}

/// The end is in the journal, and the agent dies before anything else knows of it.
#[tokio::test]
async fn an_end_that_was_only_written_into_the_journal_is_kept_by_the_next_agent() {
    let mut at = 0;
    loop {
        let node = Node::in_window();
        let journal = node.place().journal();
        let breaking = BreakingJournal::new(&journal, &node.system, at, Side::After);
        let died = node
            .agent_with(Box::new(breaking))
            .run_once()
            .await
            .is_err();
        if !died {
            assert!(at > 3, "an attempt writes its journal more than {at} times");
            break;
        }
        node.run_once().await.unwrap();
        assert_eq!(records(&node).len(), 1, "write {at}");
        at += 1;
    }
}

#[tokio::test]
async fn a_history_that_cannot_be_written_hinders_nothing() {
    let node = Node::in_window();
    std::fs::create_dir(node.place().history()).unwrap();
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
}
