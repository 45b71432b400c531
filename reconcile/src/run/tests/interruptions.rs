//! Steps that kill the agent or the machine.

use super::*;

/// Kills the run in each attempt of the call, as often as the machine comes back.
fn run_with_killer(node: &mut SimulatedNode, document: &Document, call: &str) -> RunReport {
    for _ in 0..20 {
        node.model().killing_call = Some(call.to_owned());
        if let Ok(report) = node.run_with(document, &Fuse::endless()) {
            node.model().killing_call = None;
            return report;
        }
    }
    panic!("the run never ends: {:#?}", node.take_calls());
}

#[test]
fn an_action_that_was_interrupted_is_not_repeated() {
    for timing in ["pre", "post"] {
        let mut node = SimulatedNode::new();
        let action =
            format!("component: Action, name: a, desired: {{command: 'reboot', timing: {timing}}}");
        let document = entries(&[&action, &file("/etc/a", "a")]);
        let report = run_with_killer(&mut node, &document, "/bin/sh -c reboot");
        assert_eq!(report.outcome, RunOutcome::Failed);
        assert!(report.failures[0].reason.contains("interrupted while the action ran"));
        assert_eq!(node.take_calls(), ["/bin/sh -c reboot"]);
        // Neither does the next run of the revision repeat it, also after another change.
        node.files.write("/etc/a", "b");
        let report = node.run(&document);
        assert_eq!(report.outcome, RunOutcome::Failed, "{report:#?}");
        let is_known = |failure: &RunFailure| failure.reason.contains("has interrupted");
        assert!(report.failures.iter().any(is_known), "{timing}: {report:#?}");
        assert_eq!(node.take_calls(), [""; 0]);
    }
}

#[test]
fn an_action_that_runs_always_is_not_repeated_by_the_next_run() {
    let mut node = SimulatedNode::new();
    let action = "component: Action, name: a, desired: {command: 'reboot', when: always}";
    run_with_killer(&mut node, &entries(&[action]), "/bin/sh -c reboot");
    node.take_calls();
    node.run(&entries(&[action]));
    assert_eq!(node.take_calls(), [""; 0]);
}

#[test]
fn a_restart_that_kills_the_agent_twice_fails() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[&file("/etc/a", "a"), &unit("web.service", "filePaths: [/etc/a]")]);
    let call = "systemctl restart";
    let report = run_with_killer(&mut node, &document, call);
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert!(report.failures[0].reason.contains("interrupted twice"), "{report:#?}");
    assert_eq!(node.take_calls(), ["systemctl restart web.service"; 2]);
    // No run of the revision attempts it again, and the failure is reported.
    let report = node.run(&document);
    assert_eq!((report.outcome, node.take_calls()), (RunOutcome::Failed, Vec::new()));
    let other = entries(&[
        &file("/etc/a", "a"),
        &file("/etc/b", "b"),
        &unit("web.service", "filePaths: [/etc/a]"),
    ]);
    assert_eq!(node.run_well(&other), ["systemctl restart web.service"]);
}

#[test]
fn a_change_of_packages_that_kills_the_agent_twice_is_reverted() {
    let mut node = SimulatedNode::new();
    let mut document = entries(&[&file("/etc/a", "a"), "component: Package, name: web"]);
    document.on_failure = FailureMode::Revert;
    let report = run_with_killer(&mut node, &document, "packages");
    assert_eq!(report.outcome, RunOutcome::Reverted);
    assert!(!node.files.path("/etc/a").exists());
    assert_eq!(node.take_calls().iter().filter(|call| call.starts_with("packages")).count(), 2);
}

#[test]
fn the_way_back_undoes_the_step_that_was_interrupted() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[&unit("web.service", "enable: false")]);
    node.model().killing_call = Some("systemctl disable".to_owned());
    node.run_with(&document, &Fuse::endless()).unwrap_err();
    let report =
        node.run_and(&document, &Fuse::endless(), |run, journal| run.revert(journal)).unwrap();
    assert_eq!(report.outcome, RunOutcome::Reverted);
    let root = node.files.path("/etc/systemd/system/multi-user.target.wants/web.service");
    assert!(root.symlink_metadata().is_ok());
}

#[test]
fn the_restart_of_the_agent_is_not_repeated() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("evenkeel-agent.service");
    let document =
        entries(&[&unit("evenkeel-agent.service", "dropIns: {a.conf: \"[Service]\\n\"}")]);
    let restart = "systemctl --no-block restart evenkeel-agent.service";
    let report = run_with_killer(&mut node, &document, "systemctl --no-block restart");
    assert_eq!(report.outcome, RunOutcome::Succeeded);
    assert_eq!(node.take_calls(), ["systemctl daemon-reload", restart]);
    // A restart that fails is due in the next run.
    let mut node = SimulatedNode::new();
    node.add_running_unit("evenkeel-agent.service");
    node.model().failing_calls.push("systemctl --no-block".to_owned());
    assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
    node.take_calls();
    assert_eq!(node.run_well(&document), [restart]);
}

#[test]
fn a_journal_with_a_gap_is_refused() {
    let mut node = SimulatedNode::new();
    let document = entries(&[&file("/etc/a", "a")]);
    node.run_with(&document, &Fuse::after(8)).unwrap_err();
    let stored = node.journal.stored.as_mut().unwrap();
    stored.completed = vec![CompletedStep { index: usize::MAX, ..CompletedStep::default() }];
    let error = node.run_with(&document, &Fuse::endless()).unwrap_err();
    assert_eq!(error, RunError::DamagedJournal(usize::MAX));
}

#[test]
fn files_whose_change_was_interrupted_twice_restart_their_units() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[&file("/etc/a", "a"), &unit("web.service", "filePaths: [/etc/a]")]);
    // The files are written, and the journal cannot store that.
    let mut has_ended = false;
    for point in (0..60).rev() {
        node.run_with(&document, &Fuse::after(point)).ok();
        let is_begun = |stored: &StoredRun| stored.begun.len() == 1 && stored.completed.is_empty();
        let is_begun = node.journal.stored.as_ref().is_some_and(is_begun);
        if is_begun && node.files.path("/etc/a").exists() {
            node.run_with(&document, &Fuse::after(2)).unwrap_err();
            let report = node.run(&document);
            assert!(report.failures.iter().any(|f| f.reason.contains("interrupted twice")));
            assert!(!node.state.owned.entries.contains(&EntryKey::file("/etc/a")));
            has_ended = true;
            break;
        }
        node = SimulatedNode::new();
        node.add_running_unit("web.service");
    }
    assert!(has_ended);
    assert_eq!(node.take_calls(), ["systemctl restart web.service"]);
}
