//! A module that prepares a change which the next reset applies, and that cannot always cancel it.

use std::fs;
use std::future::ready;
use std::path::PathBuf;

use chrono::{DateTime, Utc};
use evenkeel_update_agent::journal::{FileJournal, Journal};
use evenkeel_update_agent::model::{Failure, FailureKind, ModuleParts, UpdateTarget};
use evenkeel_update_agent::modules::{Draft, Module, RebootNeed, TryKind, UndoOutcome, Verdict};
use evenkeel_update_agent::reboot::RebootObjection;

use crate::support::journal::{BreakingJournal, WriteSide};
use crate::support::node::TestNode;

/// Arms a change with a file.
struct ArmedModule {
    armed: PathBuf,
    /// While this file exists, the change cannot be cancelled.
    stuck: PathBuf,
}

impl ArmedModule {
    fn new(node: &TestNode) -> Self {
        let paths = node.paths();
        Self { armed: paths.inside("/armed"), stuck: paths.inside("/stuck") }
    }
}

impl Module for ArmedModule {
    const NAME: &'static str = "armed";
    const STEP_NAMES: &'static [&'static str] = &["arm"];
    const APPLIES_ON_REBOOT: bool = true;
    type Spec = String;
    type Observation = ();
    type Step = String;
    type Baseline = ();
    type Report = String;

    fn observe(&self, _spec: &String) -> impl Future<Output = Result<(), Failure>> + Send {
        ready(Ok(()))
    }

    fn plan(spec: &String, _observed: &()) -> Result<Draft<String, String>, Failure> {
        Ok(Draft { steps: vec![spec.clone()], ..Draft::default() })
    }

    fn step_name(_step: &String) -> &'static str {
        "arm"
    }

    fn apply(
        &self,
        step: &String,
        _trying: TryKind,
        _start_deadline: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        let armed = fs::write(&self.armed, step);
        ready(armed.map_err(|error| Failure::new(FailureKind::Storage, error.to_string())))
    }

    fn verify(
        &self,
        _steps: &[String],
        _baseline: &(),
        _report: &mut String,
    ) -> impl Future<Output = Result<Verdict, Failure>> + Send {
        ready(Ok(Verdict::default()))
    }

    fn find_reboot_need(
        &self,
        _steps: &[String],
        _baseline: &(),
    ) -> impl Future<Output = Result<RebootNeed, Failure>> + Send {
        let reasons = Some(vec!["it is armed".to_owned()]);
        ready(Ok(RebootNeed { reasons, is_the_change: true }))
    }

    fn is_untouched(
        &self,
        _steps: &[String],
    ) -> impl Future<Output = Result<bool, Failure>> + Send {
        ready(Ok(!self.armed.exists()))
    }

    fn undo(&self, _steps: &[String]) -> impl Future<Output = Result<UndoOutcome, Failure>> + Send {
        if self.stuck.exists() {
            return ready(Err(Failure::new(FailureKind::Apply, "the boot partition is read-only")));
        }
        let disarmed = fs::remove_file(&self.armed);
        let disarmed =
            disarmed.map_err(|error| Failure::new(FailureKind::Storage, error.to_string()));
        ready(disarmed.map(|()| UndoOutcome::Complete))
    }
}

/// Runs an agent whose journal breaks at a write.
async fn run_once(node: &TestNode, break_at: usize) -> Result<(), String> {
    let path = node.paths().journal();
    let journal: Box<dyn Journal> = match break_at {
        usize::MAX => Box::new(FileJournal::new(path)),
        at => Box::new(BreakingJournal::new(&path, &node.system, at, WriteSide::After)),
    };
    let mut agent = node.agent_with_modules(journal, vec![Box::new(ArmedModule::new(node))]);
    agent.run_once().await.map_err(|error| error.to_string())
}

/// A node whose agent was killed after it had announced the reset into an armed change.
async fn node_before_reset() -> TestNode {
    for at in 0..20 {
        let node = TestNode::in_window();
        let spec = ModuleParts::of(ArmedModule::NAME, &"new").unwrap();
        node.server().target = Some(UpdateTarget { digest: "armed".into(), spec });
        run_once(&node, at).await.unwrap_err();
        if node.system.take_log().iter().any(|line| line == "journal reboot-begun") {
            return node;
        }
    }
    panic!("the reset is never announced")
}

/// The owner forbids the reset after it was announced, and the change cannot be cancelled. Without a pause between two
/// tries, the agent would never end, or use a whole processor.
#[tokio::test]
async fn a_prepared_change_that_cannot_be_cancelled_is_tried_again_later() {
    let node = node_before_reset().await;
    node.machine().owner_objection = Some(RebootObjection::lasting("a demonstration"));
    let module = ArmedModule::new(&node);
    fs::write(&module.stuck, "").unwrap();
    let error = run_once(&node, usize::MAX).await.unwrap_err();
    assert!(error.contains("reverting failed and is tried again"), "{error}");
    assert!(error.contains("the boot partition is read-only"), "{error}");
    assert!(module.armed.exists());

    fs::remove_file(&module.stuck).unwrap();
    run_once(&node, usize::MAX).await.unwrap_err();
    assert!(!module.armed.exists());
    assert!(node.server().story().ends_with("reverted"), "{}", node.server().story());
    assert_eq!(node.machine().reboot_requests, 0);
}
