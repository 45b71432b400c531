//! What the node records of finished attempts.

use evenkeel_update_agent::history::{self, AttemptRecord};
use evenkeel_update_agent::model::FailureKind;
use evenkeel_update_agent::modules::Module as _;
use evenkeel_update_agent::modules::packages::{PackageReport, PackagesModule};

use crate::support::journal::{BreakingJournal, WriteSide};
use crate::support::node::TestNode;

fn records(node: &TestNode) -> Vec<AttemptRecord> {
    history::read_history(&node.paths().history()).unwrap()
}

#[tokio::test]
async fn a_finished_attempt_is_recorded_with_its_changes() {
    let node = TestNode::in_window();
    node.run_once().await.unwrap();
    let [record] = &records(&node)[..] else { panic!("one record") };
    assert_eq!(record.outcome, "finished");
    assert_eq!(record.target, "latest");
    assert_eq!((&*record.change, record.kind), ("2 packages", None));
    let report: PackageReport = record.report.modules.read(PackagesModule::NAME).unwrap();
    let names: Vec<_> = report.changes.iter().map(|change| &change.name).collect();
    assert_eq!(names, ["app", "lib"]);
    assert!(record.began.is_some());
    assert!(!record.report.phases.is_empty());
}

#[tokio::test]
async fn a_failure_is_recorded_with_its_reason() {
    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    node.run_once().await.unwrap_err();
    let [record] = &records(&node)[..] else { panic!("one record") };
    assert_eq!(record.outcome, "failed");
    assert_eq!(record.kind, Some(FailureKind::Apply));
    assert!(record.reason.contains("app"), "{record:?}");
}

/// The end is in the journal, and the agent is killed before it records the end elsewhere.
#[tokio::test]
async fn an_end_that_only_reached_the_journal_is_recorded_by_the_next_agent() {
    let mut at = 0;
    loop {
        let node = TestNode::in_window();
        let journal = node.paths().journal();
        let journal_that_breaks =
            BreakingJournal::new(&journal, &node.system, at, WriteSide::After);
        let was_killed =
            node.agent_with_journal(Box::new(journal_that_breaks)).run_once().await.is_err();
        if !was_killed {
            assert!(at > 3, "an attempt writes its journal more than {at} times");
            break;
        }
        node.run_once().await.unwrap();
        assert_eq!(records(&node).len(), 1, "write {at}");
        at += 1;
    }
}

#[tokio::test]
async fn a_history_that_cannot_be_written_does_not_block_updates() {
    let node = TestNode::in_window();
    std::fs::create_dir(node.paths().history()).unwrap();
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
}
