//! A run that is killed at any point and continued ends like an undisturbed run.

use super::*;

/// What a run must lead to, whether it was killed or not.
#[derive(Debug, PartialEq)]
pub(super) struct EndState {
    tree: BTreeMap<String, String>,
    systemd: SystemdModel,
    state: NodeState,
    report: Report,
    outcome: RunOutcome,
    changed: BTreeSet<EntryKey>,
    has_saved: bool,
}

pub(super) fn end_state(node: &SimulatedNode, report: RunReport) -> EndState {
    let RunReport { report, outcome, changed, .. } = report;
    EndState {
        tree: node.files.tree(),
        systemd: node.model().systemd.clone(),
        state: node.state.clone(),
        report,
        outcome,
        changed,
        has_saved: node.files.saved().exists(),
    }
}

/// The step in which the stored run was interrupted, and how many attempts of it have begun.
fn interrupted_step(node: &SimulatedNode) -> Option<(Step, u32)> {
    let stored = node.journal.stored.as_ref()?;
    let next = stored.completed.last().map_or(0, |step| step.index + 1);
    let attempts = stored.begun.iter().filter(|step| step.index == next).map(|step| step.attempt);
    let planned = stored.pass.plan.steps.get(next)?;
    attempts.max().map(|attempts| (planned.step.clone(), attempts))
}

/// Runs a document, kills the run at points, and continues it. Returns the end, if no step was
/// interrupted too often; otherwise the run must have reported that.
pub(super) fn run_killed(
    node: &mut SimulatedNode,
    document: &Document,
    points: &[usize],
) -> Option<EndState> {
    let (mut is_comparable, mut is_reported) = (true, true);
    for point in points {
        if let Ok(report) = node.run_with(document, &Fuse::after(*point)) {
            return is_comparable.then(|| end_state(node, report));
        }
        is_comparable &= match interrupted_step(node) {
            Some((Step::PreAction { .. } | Step::PostAction { .. }, _)) => false,
            Some((Step::ReloadUnits, _)) => {
                // A later reload makes up for it.
                is_reported = false;
                false
            }
            Some((_, attempts)) => attempts < 2,
            None => true,
        };
    }
    let report = node.run_with(document, &Fuse::endless());
    // A reversal that was interrupted twice has not restored the files.
    let report = report.or_else(|_| node.run_with(document, &Fuse::endless())).unwrap();
    if is_comparable {
        return Some(end_state(node, report));
    }
    let is_known = |failure: &RunFailure| {
        failure.reason.contains("interrupted") || failure.reason.contains("has not read")
    };
    let is_good = matches!(report.outcome, RunOutcome::Succeeded | RunOutcome::Reverted);
    assert!(is_good || !is_reported || report.failures.iter().any(is_known), "{report:#?}");
    None
}

/// An interrupted step is repeated once, and an action never.
pub(super) fn check_calls(node: &SimulatedNode, expected: &[String], kills: usize, label: &str) {
    let calls = node.take_calls();
    let count = |calls: &[String], call: &String| calls.iter().filter(|c| *c == call).count();
    for call in &calls {
        let is_action = call.starts_with("/bin/sh");
        let limit = count(expected, call) + if is_action { 0 } else { kills };
        assert!(count(&calls, call) <= limit, "{label}: {call}: {calls:#?} {expected:#?}");
    }
}

/// Runs a document, kills the run at a point, gives it up, and runs the document again.
pub(super) fn run_given_up(
    node: &mut SimulatedNode,
    document: &Document,
    point: usize,
) -> EndState {
    let result = node.run_with(document, &Fuse::after(point));
    let report = result.unwrap_or_else(|_| {
        node.give_up(document);
        node.run(document)
    });
    end_state(node, report)
}

impl EndState {
    pub(super) fn has_succeeded(&self) -> bool {
        self.outcome == RunOutcome::Succeeded
    }

    /// Fails with only what differs.
    pub(super) fn assert_equals(&self, expected: &Self, label: &str) {
        let paths = self.tree.keys().chain(expected.tree.keys());
        for path in paths {
            assert_eq!(self.tree.get(path), expected.tree.get(path), "{label}: {path}");
        }
        assert_eq!(self.systemd, expected.systemd, "{label}");
        assert_eq!(self.state, expected.state, "{label}");
        assert_eq!(self.report, expected.report, "{label}");
        assert_eq!(self, expected, "{label}");
    }

    /// The state that does not depend on which run has made the changes.
    pub(super) fn without_changes(mut self) -> Self {
        self.changed.clear();
        // The lists may be updated once more.
        self.state.has_old_package_lists = false;
        for entry in &mut self.report.entries {
            entry.modified = false;
        }
        self
    }
}

/// Kills the second run at every point.
fn check_kills((first, second): (&Document, &Document), prepare: impl Fn(&mut SimulatedNode)) {
    let new_node = || {
        let mut node = SimulatedNode::new();
        prepare(&mut node);
        node.run(first);
        node.take_calls();
        node
    };
    let mut node = new_node();
    let fuse = Fuse::endless();
    let report = node.run_with(second, &fuse).unwrap();
    let expected = end_state(&node, report);
    let expected_calls = node.take_calls();
    assert!(!expected.has_saved);
    for point in 0..fuse.points() {
        // Every fifth run is killed again while it is continued.
        let more = [&[point][..], &[point, point % 7], &[point, point % 3, point % 5]];
        for kills in more.into_iter().take(if point % 5 == 0 { 3 } else { 1 }) {
            let label = format!("killed at points {kills:?} of {}", fuse.points());
            let mut node = new_node();
            if let Some(end) = run_killed(&mut node, second, kills) {
                end.assert_equals(&expected, &label);
                check_calls(&node, &expected_calls, kills.len(), &label);
            }
        }
    }
    if !expected.has_succeeded() {
        return;
    }
    let expected = expected.without_changes();
    for point in 0..fuse.points() {
        let mut node = new_node();
        let end = run_given_up(&mut node, second, point).without_changes();
        end.assert_equals(&expected, &format!("given up at point {point} of {}", fuse.points()));
    }
}

#[test]
fn a_first_run_that_was_killed_is_continued() {
    let unit_text = "[Service]\n[Install]\nWantedBy=multi-user.target\n".to_owned();
    let files = vec![("/usr/lib/systemd/system/web.service".to_owned(), unit_text)];
    let document = entries(&[
        "component: Action, name: before, desired: {command: 'true before', timing: pre}",
        "component: Action, name: after, desired: {command: 'true after'}",
        "component: Sysctl, name: vm.swappiness, desired: {value: '10'}",
        &unit("web.service", "dropIns: {10-a.conf: \"[Service]\\n\"}, filePaths: [/etc/web/conf]"),
        &unit("own.service", &format!("content: {SERVICE}")),
        "component: File, name: /etc/web/conf, desired: {owner: web, group: staff}",
        "component: User, name: web, desired: {groups: [staff]}",
        "component: UserGroup, name: staff, desired: {gid: 300}",
        "component: Package, name: web",
        "component: PackageSource, name: main, desired: {source: \"Types: deb\\nURIs: https://a\\n\
         Suites: b\\nComponents: c\"}",
    ]);
    check_kills((&entries(&[]), &document), |node| {
        node.model().package_files.insert("web".to_owned(), files.clone());
    });
}

#[test]
fn a_run_with_removals_that_was_killed_is_continued() {
    let first = entries(&[
        &file("/etc/a", "a"),
        &file("/etc/b/c", "b"),
        &unit("own.service", &format!("content: {SERVICE}")),
        &unit("web.service", "filePaths: [/etc/a], dropIns: {a.conf: \"[Service]\\n\"}"),
        "component: Package, name: web",
        "component: User, name: web",
        "component: Sysctl, name: vm.swappiness, desired: {value: '10'}",
    ]);
    let second = entries(&[
        "component: File, name: /etc/b/c, desired: {type: absent}",
        &unit("web.service", ""),
        "component: UserGroup, name: app, desired: {absent: true}",
    ]);
    check_kills((&first, &second), |node| node.add_running_unit("web.service"));
}

#[test]
fn a_reversal_that_was_killed_is_continued() {
    let mut document = entries(&[
        &file("/etc/a", "new"),
        &file("/etc/b", "new"),
        &unit("web.service", "filePaths: [/etc/a]"),
        &unit("other.service", "enable: false"),
        &unit("own.service", &format!("content: {SERVICE}")),
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    document.on_failure = FailureMode::Revert;
    check_kills((&entries(&[]), &document), |node| {
        node.add_running_unit("web.service");
        node.add_running_unit("other.service");
        node.files.write("/etc/a", "old");
    });
}

#[test]
fn a_run_that_was_killed_during_a_failed_restart_repeats_the_restart() {
    let document = entries(&[&file("/etc/a", "new"), &unit("web.service", "filePaths: [/etc/a]")]);
    check_kills((&entries(&[]), &document), |node| {
        node.add_running_unit("web.service");
        node.model().systemd.broken.insert("web.service".to_owned());
    });
}
