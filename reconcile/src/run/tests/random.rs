//! Random documents on random machines.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use evenkeel_configuration::document::{FileKind, UnitCommand};

use super::kills::{check_calls, end_state, run_given_up, run_killed};
use super::*;

const PATHS: [&str; 4] = ["/etc/a", "/etc/b", "/etc/d/x", "/etc/e"];

/// A unit file that is an entry of its own, or of a unit.
const OWN_FILE: &str = "/etc/systemd/system/own.service";

/// Random entries of a component: texts of YAML.
type Entries = BoxedStrategy<Vec<String>>;

fn choice(choices: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    select(choices)
}

fn files() -> Entries {
    let desired = choice(&[
        "content: {inline: x}",
        "content: {inline: y}",
        "content: {inline: x}, mode: '0644'",
        "content: {inline: y}, owner: web",
        "content: {inline: x}, group: staff",
        "type: symlink, target: /etc/x",
        "type: absent",
        "type: permissions, mode: '0640'",
        "type: directory",
        "type: directory, prune: true",
    ]);
    let paths = subsequence(PATHS.to_vec(), 0..=PATHS.len());
    (paths, vec(desired, PATHS.len()))
        .prop_map(|(paths, desired)| {
            let entry = |(path, desired): (&str, &str)| {
                format!("component: File, name: {path}, desired: {{{desired}}}")
            };
            paths.into_iter().zip(desired).map(entry).collect()
        })
        .boxed()
}

fn unit_entry(name: &'static str) -> impl Strategy<Value = Option<String>> {
    let content = choice(&[
        "",
        "",
        "content: \"[Service]\\n[Install]\\nWantedBy=multi-user.target\\n\"",
        "content: \"[Service]\\nA=1\\n[Install]\\nWantedBy=multi-user.target\\n\"",
        "content: \"[Service]\\n\"",
    ]);
    let drop_ins = choice(&["", "dropIns: {a.conf: x}", "dropIns: {a.conf: y, b.conf: x}"]);
    let enable = choice(&["", "", "enable: true", "enable: false"]);
    let command = choice(&["", "", "command: start", "command: restart", "command: stop"]);
    let paths = subsequence(PATHS.to_vec(), 0..=2);
    let entry = (content, drop_ins, enable, command, paths).prop_map(
        move |(content, drop_ins, enable, command, paths)| {
            let paths = if paths.is_empty() {
                String::new()
            } else {
                format!("filePaths: [{}]", paths.join(", "))
            };
            let fields = [content, drop_ins, enable, command, &paths];
            let fields: Vec<&str> = fields.into_iter().filter(|field| !field.is_empty()).collect();
            format!("component: Unit, name: {name}, desired: {{{}}}", fields.join(", "))
        },
    );
    option::of(entry)
}

fn entry_of(component: &'static str, name: &'static str, desired: &'static [&str]) -> Entries {
    option::of(select(desired))
        .prop_map(move |desired| {
            let entry = desired.map(|desired| {
                format!("component: {component}, name: {name}, desired: {{{desired}}}")
            });
            entry.into_iter().collect()
        })
        .boxed()
}

fn units() -> Entries {
    (unit_entry("one.service"), unit_entry("two.service"), unit_entry("packaged.service"))
        .prop_map(|(one, two, packaged)| [one, two, packaged].into_iter().flatten().collect())
        .boxed()
}

fn others() -> Entries {
    let parts = vec![
        entry_of("Package", "first", &["", "version: absent", "version: '2'", "version: '3'"]),
        entry_of("Package", "second", &["", "version: absent"]),
        entry_of("Package", "'second:all'", &[""]),
        entry_of("File", OWN_FILE, &["content: {inline: x}, mode: '0644'", "type: absent"]),
        entry_of("Unit", "own.service", &["content: x", "content: x, dropIns: {a.conf: x}", ""]),
        entry_of("User", "web", &["", "groups: [staff]", "absent: true", "uid: 500, shell: /x"]),
        entry_of("User", "app", &["absent: true", "comment: x", "group: staff"]),
        entry_of("UserGroup", "staff", &["", "gid: 300", "gid: 33", "absent: true"]),
        entry_of("UserGroup", "www-data", &["absent: true", "gid: 33"]),
        entry_of("Sysctl", "vm.swappiness", &["value: '1'", "value: '60'"]),
        entry_of("Sysctl", "vm.max_map_count", &["value: '1'"]),
        entry_of(
            "PackageSource",
            "main",
            &[
                "source: \"Types: deb\\nURIs: https://a\\nSuites: b\"",
                "source: \"Types: deb\\nURIs: https://b\\nSuites: b\"",
            ],
        ),
        entry_of("Action", "pre", &["command: 'true', timing: pre", "command: 'true'"]),
        entry_of("Action", "post", &["command: 'true'", "command: 'true 2', timing: both"]),
        entry_of(
            "Action",
            "rare",
            &[
                "command: 'true'",
                "command: 'true'",
                "command: 'false'",
                "command: 'false', timing: pre",
                "command: 'false', timing: pre, status: ignore",
            ],
        ),
    ];
    parts.prop_map(|parts| parts.concat()).boxed()
}

/// A document with its entries in two bundles. `filePaths` have only paths of entries.
fn documents() -> impl Strategy<Value = Document> {
    let all = (files(), units(), others());
    let settings = (any::<u64>(), proptest::bool::weighted(0.2));
    (all, settings).prop_filter_map("invalid", |((files, units, others), (seed, reverts))| {
        let mut text =
            ["bundles:\n- name: a\n  entries:\n", "- name: b\n  entries:\n"].map(str::to_owned);
        let entries = files.iter().chain(&units).chain(&others);
        for (index, entry) in entries.enumerate() {
            let mut entry = entry.clone();
            for path in PATHS {
                if !files.iter().any(|file| file.contains(&format!("name: {path},"))) {
                    entry = entry.replace(&format!("{path}, "), "").replace(path, "");
                }
            }
            let entry = entry.replace("[]", "[/none]").replace(", filePaths: [/none]", "");
            let entry = entry.replace("filePaths: [/none]", "").replace(", ]", "]");
            let bundle = usize::from((seed >> (index % 64)) & 1 == 1);
            writeln!(text[bundle], "  - {{{entry}}}").unwrap();
        }
        let mut document = native::read(&text.concat()).ok()?;
        if reverts {
            document.on_failure = FailureMode::Revert;
        }
        Some(document)
    })
}

/// What a random machine has.
#[derive(Clone, Debug)]
struct MachineSeed {
    files: Vec<Option<&'static str>>,
    /// Of each unit: whether it has a file, is enabled, runs.
    units: Vec<(bool, bool, bool)>,
    packages: Vec<Option<&'static str>>,
    has_drop_in: bool,
    /// A unit that fails to start.
    broken: Option<&'static str>,
}

fn machines() -> impl Strategy<Value = MachineSeed> {
    let content = option::of(choice(&["x", "y"]));
    let versions = option::of(choice(&["1", "2"]));
    let units = vec(any::<(bool, bool, bool)>(), 2);
    let broken = proptest::option::weighted(0.1, choice(&["one.service", "two.service"]));
    (vec(content, 4), units, vec(versions, 2), any::<bool>(), broken).prop_map(
        |(files, units, packages, has_drop_in, broken)| MachineSeed {
            files,
            units,
            packages,
            has_drop_in,
            broken,
        },
    )
}

fn node_of(seed: &MachineSeed) -> SimulatedNode {
    let node = SimulatedNode::new();
    let root = node.files.path("/");
    for (path, content) in PATHS.iter().zip(&seed.files) {
        if let Some(content) = content {
            node.files.write(path, content);
        }
    }
    if seed.has_drop_in {
        node.files.write("/etc/systemd/system/one.service.d/a.conf", "x");
    }
    for (unit, (has_file, is_enabled, is_active)) in
        ["one.service", "two.service"].iter().zip(&seed.units)
    {
        if *has_file {
            let text = "[Service]\n[Install]\nWantedBy=multi-user.target\n";
            node.files.write(&format!("/usr/lib/systemd/system/{unit}"), text);
        }
        let systemd = &mut node.model().systemd;
        if *is_enabled {
            systemd.run(&root, &["enable", unit]);
        }
        if *is_active {
            systemd.run(&root, &["start", unit]);
        }
    }
    node.model().systemd.broken.extend(seed.broken.map(str::to_owned));
    for (name, version) in ["first", "second"].iter().zip(&seed.packages) {
        if version.is_some() {
            set_package(&root, name, *version);
        }
    }
    let unit_text = "[Service]\n[Install]\nWantedBy=multi-user.target\n";
    let files = [("/usr/lib/systemd/system/packaged.service", unit_text), ("/etc/b", "default")];
    let files = files.map(|(path, content)| (path.to_owned(), content.to_owned()));
    node.model().package_files.insert("first".to_owned(), files.to_vec());
    node
}

/// A run that follows a failed one restarts only the units that the failed one has left.
fn check_repeated_run(node: &mut SimulatedNode, document: &Document, failed: &RunReport) {
    let remaining = failed.remaining.steps.iter().filter_map(|planned| match &planned.step {
        Step::RunUnit { unit, .. } => Some(unit.clone()),
        _ => None,
    });
    let remaining: BTreeSet<String> = remaining.collect();
    node.run(document);
    for call in node.take_calls() {
        let words: Vec<&str> = call.split(' ').collect();
        if let ["systemctl", "restart" | "start" | "stop" | "try-restart", unit] = words[..] {
            assert!(remaining.contains(unit), "{call}: {failed:#?}");
        }
    }
}

/// Every unit that the run restarts after a change runs with the current files.
fn check_running_files(node: &SimulatedNode, document: &Document) {
    let mut model = node.model().systemd.clone();
    let index = DocumentIndex::new(document);
    for (_, entry) in document.entries() {
        let Desired::Unit(state) = &entry.desired else { continue };
        let is_managed = |path: &String| {
            let entry = index.find(&EntryKey::file(path)).map(|(_, entry)| &entry.desired);
            matches!(entry, Some(Desired::File(state)) if state.kind == FileKind::File)
        };
        let restarts = must_run(state) && state.command != Some(UnitCommand::Start);
        if !restarts || !state.file_paths.iter().all(is_managed) || state.file_paths.is_empty() {
            continue;
        }
        let before = model.active.get(&entry.name).cloned();
        model.run(&node.files.path("/"), &["restart", &entry.name]);
        let after = model.active.get(&entry.name).cloned();
        let files = state.file_paths.len();
        let tail = |texts: &Option<Vec<String>>| {
            texts.as_ref().map(|texts| texts[texts.len().saturating_sub(files)..].to_vec())
        };
        assert_eq!(tail(&before), tail(&after), "{} runs with old files", entry.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_second_run_changes_nothing(
        seed in machines(),
        documents in vec(documents(), 1..4),
        fails_reload in any::<bool>(),
    ) {
        let mut node = node_of(&seed);
        if fails_reload {
            node.model().failing_calls.push("systemctl daemon-reload".to_owned());
        }
        for document in &documents {
            let pending = node.state.pending_restarts.clone();
            let report = node.run(document);
            node.take_calls();
            if report.outcome == RunOutcome::Succeeded {
                node.check_unchanged(document);
                if documents.len() == 1 {
                    check_running_files(&node, document);
                }
            } else if report.outcome == RunOutcome::Failed {
                check_repeated_run(&mut node, document, &report);
            } else if report.outcome == RunOutcome::Reverted {
                let mut units = node.state.pending_restarts.keys();
                let is_expected = |unit: &String| {
                    fails_reload || pending.contains_key(unit) || seed.broken == Some(unit.as_str())
                };
                prop_assert!(units.all(is_expected));
            }
        }
    }

    #[test]
    fn a_run_that_is_killed_and_continued_ends_like_an_undisturbed_run(
        seed in machines(),
        (first, second) in (documents(), documents()),
        (position, is_killed_twice) in (0.0..1.0, any::<bool>()),
    ) {
        let mut node = node_of(&seed);
        node.run(&first);
        node.take_calls();
        let fuse = Fuse::endless();
        let report = node.run_with(&second, &fuse).unwrap();
        let expected = end_state(&node, report);
        let expected_calls = node.take_calls();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
            reason = "a random number below the number of points")]
        let point = (fuse.points() as f64 * position) as usize;
        let mut node = node_of(&seed);
        node.run(&first);
        node.take_calls();
        let kills = if is_killed_twice { vec![point, point % 11] } else { vec![point] };
        if let Some(end) = run_killed(&mut node, &second, &kills) {
            let label = format!("killed at points {kills:?} of {}", fuse.points());
            end.assert_equals(&expected, &label);
            check_calls(&node, &expected_calls, kills.len(), &label);
        }
        if expected.has_succeeded() {
            let mut node = node_of(&seed);
            node.run(&first);
            let end = run_given_up(&mut node, &second, point).without_changes();
            let label = format!("given up at point {point} of {}", fuse.points());
            end.assert_equals(&expected.without_changes(), &label);
        }
    }
}
