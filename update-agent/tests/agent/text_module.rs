//! A third module, which the agent does not know, runs through the real engine, journal, reports
//! and link. It writes a text into a file, in two steps.

use std::fs;
use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::{Clock, Secret};
use evenkeel_proto::agent as pb;
use evenkeel_update_agent::agent::{Agent, AgentError};
use evenkeel_update_agent::facts::Facts;
use evenkeel_update_agent::history;
use evenkeel_update_agent::journal::{FileJournal, Journal, JournalEntry};
use evenkeel_update_agent::link::ServerLink;
use evenkeel_update_agent::model::{
    Action, AttemptEvent, EventKind, Failure, FailureKind, ModuleParts, PackageMode, PackageSpec,
    UpdateTarget,
};
use evenkeel_update_agent::modules::packages::PackagesModule;
use evenkeel_update_agent::modules::{
    Draft, Module, ModuleKind, RebootNeed, ReportText, TryKind, UndoOutcome, Verdict,
};
use evenkeel_update_agent::reboot::RebootObjection;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::link::{poll_query, trusted_link};
use crate::support::journal::{BreakingJournal, WriteSide};
use crate::support::node::TestNode;
use crate::support::server::TestServer;
use crate::support::system::FakeSystem;

const STORY: &str = "downloading, downloaded, began, verify begun, finished";

/// Keeps the text of a file.
struct TextModule {
    file: PathBuf,
    system: Arc<FakeSystem>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextSpec {
    text: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TextStep {
    /// Writes the text next to the file.
    Write(String),
    /// Replaces the file.
    Replace,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct TextReport {
    before: String,
    desired: String,
    after: String,
}

impl TextModule {
    fn new(node: &TestNode) -> Self {
        Self { file: node.paths().inside("/text"), system: node.system.clone() }
    }

    fn read(&self) -> String {
        fs::read_to_string(&self.file).unwrap_or_default()
    }
}

impl Module for TextModule {
    const NAME: &'static str = "text";
    const STEP_NAMES: &'static [&'static str] = &["write", "replace"];
    type Spec = TextSpec;
    type Observation = String;
    type Step = TextStep;
    type Baseline = ();
    type Report = TextReport;

    fn parse_spec(message: &pb::target::Spec) -> Option<TextSpec> {
        // The protocol has no message for texts.
        let pb::target::Spec::Kernel(kernel) = message else { return None };
        Some(TextSpec { text: kernel.command.clone() })
    }

    fn observe(&self, _spec: &TextSpec) -> impl Future<Output = Result<String, Failure>> + Send {
        ready(Ok(self.read()))
    }

    fn plan(spec: &TextSpec, observed: &String) -> Result<Draft<TextStep, TextReport>, Failure> {
        if spec.text == *observed {
            return Ok(Draft::default());
        }
        Ok(Draft {
            report: TextReport {
                before: observed.clone(),
                desired: spec.text.clone(),
                after: String::new(),
            },
            steps: vec![TextStep::Write(spec.text.clone()), TextStep::Replace],
            ..Draft::default()
        })
    }

    fn step_name(step: &TextStep) -> &'static str {
        match step {
            TextStep::Write(_) => "write",
            TextStep::Replace => "replace",
        }
    }

    fn apply(
        &self,
        step: &TextStep,
        _trying: TryKind,
        _start_deadline: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        self.system.log_action(Self::step_name(step));
        let new = self.file.with_extension("new");
        let applied = match step {
            TextStep::Write(text) => fs::write(new, text),
            // The file may have been replaced before the agent was killed.
            TextStep::Replace if !new.exists() => Ok(()),
            TextStep::Replace => fs::rename(new, &self.file),
        };
        ready(applied.map_err(|error| Failure::new(FailureKind::Storage, error.to_string())))
    }

    fn verify(
        &self,
        _steps: &[TextStep],
        _baseline: &(),
        report: &mut TextReport,
    ) -> impl Future<Output = Result<Verdict, Failure>> + Send {
        report.after = self.read();
        let is_wrong = report.after != report.desired;
        let problem = is_wrong.then(|| Failure::new(FailureKind::Verify, "the text is wrong"));
        ready(Ok(Verdict { problem, is_final: true }))
    }

    /// The text "reboot" needs a reboot.
    fn find_reboot_need(
        &self,
        _steps: &[TextStep],
        _baseline: &(),
    ) -> impl Future<Output = Result<RebootNeed, Failure>> + Send {
        let reasons = (self.read() == "reboot").then(|| vec!["the text requires it".to_owned()]);
        ready(Ok(RebootNeed { reasons, is_the_change: false }))
    }

    fn post_apply(
        &self,
        _steps: &[TextStep],
        _baseline: &(),
        _report: &mut TextReport,
    ) -> impl Future<Output = Result<Vec<String>, Failure>> + Send {
        self.system.log_action("post-apply");
        ready(Ok(Vec::new()))
    }

    fn post_failure(
        &self,
        _steps: &[TextStep],
        _baseline: &(),
        _report: &mut TextReport,
    ) -> impl Future<Output = Result<Vec<String>, Failure>> + Send {
        self.system.log_action("post-failure");
        ready(Ok(vec!["the text stays".to_owned()]))
    }

    fn is_untouched(
        &self,
        _steps: &[TextStep],
    ) -> impl Future<Output = Result<bool, Failure>> + Send {
        ready(Ok(!self.file.exists() && !self.file.with_extension("new").exists()))
    }

    fn write_event(report: &TextReport, event: &mut pb::Event) {
        if let Some(pb::event::Kind::Finished(end)) = &mut event.kind {
            let version = report.after.clone();
            end.results.push(pb::PackageResult { version, ..pb::PackageResult::default() });
        }
    }

    fn describe(report: &TextReport) -> ReportText {
        ReportText {
            change: format!("the text {}", report.desired),
            planned: vec![format!("{:?} -> {:?}", report.before, report.desired)],
            results: vec![format!("now {:?}", report.after)],
        }
    }
}

fn text_part(text: &str) -> ModuleParts {
    ModuleParts::of(TextModule::NAME, &TextSpec { text: text.into() }).unwrap()
}

fn text_report(event: &AttemptEvent) -> TextReport {
    event.report.as_ref().unwrap().modules.read(TextModule::NAME).unwrap()
}

/// A node whose server wants a text.
fn node_with_spec(spec: ModuleParts) -> TestNode {
    let node = TestNode::in_window();
    node.server().target = Some(UpdateTarget { digest: "text".into(), spec });
    node
}

fn agent(node: &TestNode, journal: Box<dyn Journal>) -> Agent {
    node.agent_with_modules(journal, vec![Box::new(TextModule::new(node))])
}

async fn run_once(node: &TestNode) -> Result<(), AgentError> {
    agent(node, Box::new(FileJournal::new(node.paths().journal()))).run_once().await
}

#[tokio::test]
async fn the_agent_runs_a_module_that_it_does_not_know() {
    let node = node_with_spec(text_part("new"));
    run_once(&node).await.unwrap();
    assert_eq!(TextModule::new(&node).read(), "new");
    assert_eq!(node.server().story(), STORY);
    let facts = node.server().facts.clone().unwrap();
    assert_eq!(facts.modules, ["packages", "text"]);
    let report = text_report(node.server().only_attempt().last().unwrap());
    let expected = TextReport { before: String::new(), desired: "new".into(), after: "new".into() };
    assert_eq!(report, expected);
    let [record] = &history::read_history(&node.paths().history()).unwrap()[..] else {
        panic!("one record")
    };
    assert_eq!(
        (&*record.change, &record.results[..]),
        ("the text new", &["now \"new\"".to_owned()][..])
    );
    assert_eq!(record.report.modules.read(TextModule::NAME), Some(expected));

    node.server().reported_events.clear();
    run_once(&node).await.unwrap();
    assert_eq!(node.server().story(), "nothing to do");
}

#[tokio::test]
async fn a_kill_at_any_write_of_the_journal_does_not_change_the_result_of_a_module() {
    for side in [WriteSide::Before, WriteSide::After] {
        let mut at = 0;
        loop {
            let node = node_with_spec(text_part("new"));
            let path = node.paths().journal();
            let journal = |at| Box::new(BreakingJournal::new(&path, &node.system, at, side));
            let was_killed = agent(&node, journal(at)).run_once().await.is_err();
            if was_killed {
                agent(&node, journal(usize::MAX)).run_once().await.unwrap();
            }
            let context = format!("{side:?} write {at}");
            assert_eq!(TextModule::new(&node).read(), "new", "{context}");
            assert_eq!(node.server().story(), STORY, "{context}");
            assert_eq!(text_report(node.server().only_attempt().last().unwrap()).after, "new");
            assert_eq!(node.state_files(), [""; 0], "{context}");
            let log = node.system.take_log();
            for step in TextModule::STEP_NAMES {
                let done = format!("journal done-text-{step}");
                let marked = log.iter().position(|line| *line == done).expect(step);
                assert!(!log[marked..].iter().any(|line| line == step), "{context}: {log:?}");
            }
            if !was_killed {
                assert!(at > 8, "an attempt writes its journal more than {at} times");
                break;
            }
            at += 1;
        }
    }
}

/// The agent was killed after the start was permitted, and the next one starts after the window.
#[tokio::test]
async fn a_module_that_has_changed_nothing_does_not_begin_after_its_window() {
    let mut late = 0;
    for at in 0.. {
        let node = node_with_spec(text_part("new"));
        node.server().start_deadline = Some(node.clock.now() + TimeDelta::hours(1));
        let path = node.paths().journal();
        let journal = BreakingJournal::new(&path, &node.system, at, WriteSide::After);
        if agent(&node, Box::new(journal)).run_once().await.is_ok() {
            break;
        }
        let log = node.system.take_log();
        if !log.iter().any(|line| line == "journal began") || log.iter().any(|line| line == "write")
        {
            continue;
        }
        late += 1;
        node.clock.advance(TimeDelta::hours(2));
        run_once(&node).await.unwrap_err();
        assert_eq!(node.server().story(), "downloading, downloaded, began, reverted");
        assert_eq!(TextModule::new(&node).read(), "");
        assert_eq!(node.state_files(), [""; 0]);
    }
    assert!(late > 0, "no kill hit the moment after the start");
}

#[tokio::test]
async fn one_attempt_changes_what_several_modules_are_responsible_for() {
    let mut spec = text_part("new");
    let packages = serde_json::to_value(PackageSpec::new(PackageMode::Latest)).unwrap();
    spec.insert(PackagesModule::NAME, packages);
    let node = node_with_spec(spec);
    run_once(&node).await.unwrap();
    assert_eq!(TextModule::new(&node).read(), "new");
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().story(), STORY);
    let [record] = &history::read_history(&node.paths().history()).unwrap()[..] else {
        panic!("one record")
    };
    assert_eq!(record.change, "the text new, 2 packages");
}

/// A restart of services right before a reboot would be a second outage.
#[tokio::test]
async fn the_work_after_a_change_is_done_only_if_the_node_does_not_reboot() {
    for (objection, expected, other) in [
        (None, "reboot", "post-apply"),
        (Some(RebootObjection::lasting("a demonstration")), "post-apply", "reboot"),
    ] {
        let node = node_with_spec(text_part("reboot"));
        node.machine().owner_objection = objection;
        run_once(&node).await.unwrap();
        node.boot();
        run_once(&node).await.unwrap();
        let log = node.system.take_log();
        let count = |what: &str| log.iter().filter(|line| *line == what).count();
        assert_eq!((count(expected), count(other)), (1, 0), "{log:?}");
    }
}

#[tokio::test]
async fn a_failed_module_is_reported_with_what_it_left() {
    let node = node_with_spec(text_part("new"));
    fs::create_dir(node.paths().inside("/text")).unwrap();
    run_once(&node).await.unwrap_err();
    let last = node.server().only_attempt().last().unwrap().clone();
    let EventKind::Failed { failure } = &last.kind else { panic!("{last:?}") };
    assert_eq!(failure.kind, FailureKind::Storage);
    assert!(failure.reason.ends_with("the text is wrong"), "{failure}");
    assert_eq!(text_report(&last).after, "");
    let log = node.system.take_log();
    assert_eq!(log.iter().filter(|line| *line == "post-failure").count(), 1, "{log:?}");
    assert!(log.iter().all(|line| line != "post-apply"), "{log:?}");
    let remarks = &last.report.as_ref().unwrap().remarks;
    assert!(remarks.contains(&"the text stays".to_owned()), "{remarks:?}");
}

#[tokio::test]
async fn a_verified_change_has_no_work_after_a_failure() {
    let node = node_with_spec(text_part("new"));
    run_once(&node).await.unwrap();
    assert!(node.system.take_log().iter().all(|line| line != "post-failure"));
}

#[tokio::test]
async fn a_module_without_undo_may_have_nothing_to_undo() {
    let node = TestNode::new();
    let module = TextModule::new(&node);
    assert_eq!(Module::undo(&module, &[]).await, Ok(UndoOutcome::Complete));
    fs::write(node.paths().inside("/text"), "new").unwrap();
    assert_eq!(Module::undo(&module, &[]).await, Ok(UndoOutcome::Impossible));
}

/// Half of an instruction means something else.
#[tokio::test]
async fn a_spec_that_its_module_cannot_read_changes_nothing() {
    let spec = serde_json::json!({ "text": "new", "more": 1 });
    let node = node_with_spec(ModuleParts::of(TextModule::NAME, &spec).unwrap());
    run_once(&node).await.unwrap_err();
    let last = node.server().only_attempt().last().unwrap().clone();
    let EventKind::Failed { failure } = last.kind else { panic!("{last:?}") };
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(!node.paths().inside("/text").exists());
}

#[tokio::test]
async fn specs_and_reports_of_a_module_cross_the_wire() {
    let server = TestServer::start_on_loopback().await;
    let link = trusted_link(&server).await.with_modules(vec![ModuleKind::of::<TextModule>()]);
    link.set_credential(&Secret::new("first-credential")).unwrap();
    let message = pb::target::Spec::Kernel(pb::Kernel { command: "new".into() });
    server.state.lock().unwrap().target =
        Some(pb::Target { digest: "d".into(), spec: Some(message) });
    let answer = link.poll(poll_query(&Facts::default(), true)).await.unwrap();
    let Action::Fetch(target) = answer.decision.action else { panic!("{:?}", answer.decision) };
    assert_eq!(target.spec, text_part("new"));

    let mut entry = JournalEntry::new(Uuid::from_u128(1), target);
    let report = TextReport { after: "new".into(), ..TextReport::default() };
    entry.reports = ModuleParts::of(TextModule::NAME, &report).unwrap();
    entry.events.push(AttemptEvent {
        sequence: 1,
        at: DateTime::UNIX_EPOCH,
        boot_id: "boot-1".into(),
        kind: EventKind::Finished,
        report: entry.run_report(),
        interruptions: Vec::new(),
    });
    assert_eq!(link.report(&entry).await.unwrap(), 1);
    let state = server.state.lock().unwrap();
    let events = state.reported_events.values().next().unwrap();
    let Some(pb::event::Kind::Finished(end)) = &events[0].kind else { panic!("{events:?}") };
    assert_eq!(end.results[0].version, "new");
}
