use super::*;

fn revert_document(entries_of_bundle: &[&str]) -> Document {
    let mut document = entries(entries_of_bundle);
    document.on_failure = FailureMode::Revert;
    document
}

#[test]
fn a_run_that_fails_restores_files_and_units() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.add_running_unit("stopped.service");
    node.files.write("/etc/a", "old");
    let root = node.files.path("/");
    let running = node.model().systemd.active.clone();
    let tree = node.files.tree();
    let document = revert_document(&[
        &file("/etc/a", "new"),
        &file("/etc/b", "new"),
        &unit("web.service", "filePaths: [/etc/a], dropIns: {a.conf: \"[Service]\\n\"}"),
        &unit("stopped.service", "enable: false"),
        &unit("own.service", &format!("content: {SERVICE}")),
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Reverted);
    for (path, text) in node.files.tree() {
        let is_new_folder = !tree.contains_key(&path) && text.ends_with("directory");
        assert!(is_new_folder || tree.get(&path) == Some(&text), "{path}: {text}");
    }
    assert!(
        tree.keys().all(|path| root.join(path.trim_start_matches('/')).symlink_metadata().is_ok())
    );
    let active = node.model().systemd.active.clone();
    assert_eq!(active.keys().collect::<Vec<_>>(), running.keys().collect::<Vec<_>>());
    assert!(active["web.service"].last().unwrap().ends_with("old"));
    assert_eq!(node.state, NodeState::default());
}

#[test]
fn a_run_that_keeps_its_changes_restores_nothing() {
    let mut node = SimulatedNode::new();
    let document = entries(&[
        &file("/etc/a", "new"),
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
    assert_eq!(node.files.read("/etc/a"), "new");
}

#[test]
fn a_good_run_is_taken_back_by_its_caller() {
    let document = entries(&[
        &file("/etc/a", "new"),
        &unit("web.service", "filePaths: [/etc/a]"),
        "component: Package, name: tool",
    ]);
    for is_resumed in [false, true] {
        let mut node = SimulatedNode::new();
        node.add_running_unit("web.service");
        node.files.write("/etc/a", "old");
        let report = node.run_and(&document, &Fuse::endless(), |run, journal| {
            let report = run.execute(journal)?;
            assert_eq!(report.outcome, RunOutcome::Succeeded);
            if is_resumed { Err(JournalError(String::new()).into()) } else { run.revert(journal) }
        });
        let report = if is_resumed {
            assert!(report.is_err());
            node.run_and(&document, &Fuse::endless(), |run, journal| run.revert(journal))
        } else {
            report
        };
        let report = report.unwrap();
        assert_eq!(report.outcome, RunOutcome::Reverted);
        assert_eq!(node.files.read("/etc/a"), "old");
        let running = node.model().systemd.active["web.service"].clone();
        assert!(running.last().unwrap().ends_with("old"), "{running:?}");
        // The package stays, and the next run without its entry removes it.
        let package = EntryKey::new(Component::Package, "tool");
        assert_eq!(node.state.owned.entries, BTreeSet::from([package]));
    }
}

#[test]
fn a_unit_that_does_not_restart_after_a_reversal_restarts_in_the_next_run() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.files.write("/etc/a", "old");
    let document =
        revert_document(&[&file("/etc/a", "new"), &unit("web.service", "filePaths: [/etc/a]")]);
    node.model().systemd.broken.insert("web.service".to_owned());
    assert_eq!(node.run(&document).outcome, RunOutcome::ReversalFailed);
    let restart = "systemctl restart web.service";
    assert_eq!(node.take_calls(), [restart, "systemctl daemon-reload", restart]);
    node.model().systemd.broken.clear();
    let old = entries(&[&file("/etc/a", "old"), &unit("web.service", "filePaths: [/etc/a]")]);
    assert_eq!(node.run_well(&old), [restart]);
    node.check_unchanged(&old);
}

#[test]
fn a_reversal_sets_the_old_values_of_the_kernel() {
    let mut node = SimulatedNode::new();
    let document = revert_document(&[
        "component: Sysctl, name: vm.swappiness, desired: {value: '10'}",
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    assert_eq!(node.run(&document).outcome, RunOutcome::Reverted);
    assert_eq!(node.files.read("/proc/sys/vm/swappiness"), "60\n");
    assert!(!node.files.path("/etc/sysctl.d/zz-evenkeel.conf").exists());
}

#[test]
fn a_reversal_that_restores_not_all_files_keeps_the_way_back() {
    let mut node = SimulatedNode::new();
    node.files.write("/etc/a", "old");
    let document = entries(&[&file("/etc/a", "new"), &file("/etc/b", "b")]);
    let stop = || Err(JournalError(String::new()).into());
    let stopped = node.run_and(&document, &Fuse::endless(), |run, journal| {
        run.execute(journal)?;
        stop()
    });
    assert!(stopped.is_err());
    let reversed = node.run_and(&document, &Fuse::with_full_path("/etc/"), |run, journal| {
        let report = run.revert(journal)?;
        assert_eq!(report.outcome, RunOutcome::ReversalFailed);
        assert!(!report.failures.is_empty());
        assert!(report.state.owned.entries.contains(&EntryKey::file("/etc/b")));
        assert!(run.discard_saved().is_err());
        stop()
    });
    assert!(reversed.is_err() && node.files.read("/etc/a") == "new");
    // The next attempt restores the rest.
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Reverted, "{report:#?}");
    assert_eq!(node.files.read("/etc/a"), "old");
    assert!(!node.files.path("/etc/b").exists());
    assert_eq!(node.state, NodeState::default());
}

#[test]
fn a_reversal_whose_plan_cannot_be_stored_has_not_begun() {
    let mut node = SimulatedNode::new();
    node.files.write("/etc/a", "old");
    let document = entries(&[&file("/etc/a", "new")]);
    let report = node.run_and(&document, &Fuse::endless(), |run, journal| {
        run.execute(journal)?;
        let mut full = MemoryJournal::default();
        let fuse = Fuse::after(0);
        let error = run.revert(&mut FusedJournal { journal: &mut full, fuse: &fuse }).unwrap_err();
        assert!(matches!(error, RunError::Journal(_)));
        run.revert(journal)
    });
    assert_eq!(report.unwrap().outcome, RunOutcome::Reverted);
    assert_eq!(node.files.read("/etc/a"), "old");
}
