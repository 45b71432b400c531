use std::os::unix::fs::PermissionsExt;

use chrono::TimeDelta;
use evenkeel_kit::TestClock;

use super::*;
use crate::model::{Change, PackageMode};

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// The clock on the wall in Berlin in the year 2026.
fn berlin(at: DateTime<Utc>) -> NaiveDateTime {
    let summer = utc("2026-03-29T01:00:00Z")..utc("2026-10-25T01:00:00Z");
    let ahead = if summer.contains(&at) { 2 } else { 1 };
    at.naive_utc() + TimeDelta::hours(ahead)
}

/// A machine in Berlin.
struct Machine {
    root: tempfile::TempDir,
    clock: TestClock,
    owner: Owner,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let clock = TestClock::new(utc("2026-06-01T12:00:00Z"));
        let place = Place::new(root.path(), None);
        let owner = Owner {
            local: berlin,
            sessions: Some(root.path().join("sessions")),
            ..Owner::new(place, Arc::new(clock.clone()))
        };
        Self { root, clock, owner }
    }

    fn with(limits: &str) -> Self {
        let machine = Self::new();
        machine.write(limits, 0o644);
        machine
    }

    fn write(&self, limits: &str, mode: u32) {
        let folder = self.root.path().join("etc/evenkeel");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("limits.toml");
        fs::write(&file, limits).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn log_in(&self) {
        let folder = self.root.path().join("sessions");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("1"), "STATE=active\nCLASS=user\n").unwrap();
    }

    fn may_begin_at(&self, at: &str) -> bool {
        self.clock.set(utc(at));
        self.owner.may_begin().is_ok()
    }
}

fn wish(sources: &[&str]) -> PackageWish {
    PackageWish {
        sources: sources.iter().map(|text| (*text).to_owned()).collect(),
        ..PackageWish::new(PackageMode::Latest)
    }
}

#[test]
fn without_a_word_of_the_owner_everything_is_allowed() {
    let machine = Machine::new();
    machine.log_in();
    let owner = &machine.owner;
    assert_eq!(owner.limits().unwrap(), OwnerLimits::default());
    owner.may_begin().unwrap();
    owner.may_reboot().unwrap();
    owner.allows(&wish(&["Types: deb"])).unwrap();
    assert_eq!(owner.summary(), "");
    assert_eq!(owner.trouble(), None);
    machine.write("", 0o644);
    assert_eq!(machine.owner.limits().unwrap(), OwnerLimits::default());
}

#[test]
fn a_word_that_may_be_somebody_elses_or_is_not_understood_allows_nothing() {
    let unlike = [
        ("downgrade = false", 0o644, "downgrade"),
        ("hours = [\"22-4\"]", 0o644, "22-4"),
        ("suites = [\"\"]", 0o644, "no suite"),
        ("keys = [\"ABC\"]", 0o644, "neither the fingerprint"),
        ("reboots = \"sometimes\"", 0o644, "sometimes"),
        ("\"", 0o644, "limits.toml"),
        ("", 0o664, "others than root"),
        ("", 0o646, "others than root"),
    ];
    for (text, mode, why) in unlike {
        let machine = Machine::new();
        machine.write(text, mode);
        let owner = &machine.owner;
        let trouble = owner.trouble().unwrap();
        assert!(trouble.contains(why), "{text}: {trouble}");
        assert!(trouble.ends_with("; nothing is changed until it is mended"));
        owner.may_begin().unwrap_err();
        owner.may_reboot().unwrap_err();
        owner.allows_plan(&Plan::default()).unwrap_err();
        let failure = owner.allows(&wish(&[])).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Limits);
        assert!(owner.summary().contains(why), "{}", owner.summary());
    }
}

#[test]
fn the_file_must_be_one_in_a_folder_of_roots() {
    let machine = Machine::with("");
    let file = machine.root.path().join("etc/evenkeel/limits.toml");
    let folder = file.parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let error = machine.owner.limits().unwrap_err();
    assert!(error.why.starts_with("of its folder"), "{error}");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();

    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("nowhere", &file).unwrap();
    let error = machine.owner.limits().unwrap_err();
    assert_eq!(error.why, "it is a symbolic link");

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = machine.owner.limits().unwrap_err();
    assert_eq!(error.why, "it is no file");

    fs::remove_dir(&file).unwrap();
    machine.write(&"#".repeat(70_000), 0o644);
    let error = machine.owner.limits().unwrap_err();
    assert!(error.why.contains("longer than"), "{error}");
}

#[test]
fn a_change_begins_in_the_hours_of_the_nodes_own_time() {
    let machine = Machine::with("hours = [\"22:00-04:00\", \"Sun 10:00-11:00\"]");
    assert!(!machine.may_begin_at("2026-06-01T19:59:59Z"));
    assert!(machine.may_begin_at("2026-06-01T20:00:00Z"));
    assert!(machine.may_begin_at("2026-06-02T01:59:59Z"));
    assert!(!machine.may_begin_at("2026-06-02T02:00:00Z"));
    assert!(machine.may_begin_at("2026-06-07T08:00:00Z"));
    machine.clock.set(utc("2026-06-02T12:00:00Z"));
    assert_eq!(
        machine.owner.may_begin().unwrap_err(),
        "it is outside the owner's hours (22:00-04:00, Sun 10:00-11:00)"
    );
    machine.owner.may_reboot().unwrap_err();
}

#[test]
fn hours_go_by_the_clock_on_the_wall_when_it_is_changed() {
    // 01:59 is followed by 03:00, so that this night has no such hour.
    let machine = Machine::with("hours = [\"02:00-03:00\"]");
    assert!(!machine.may_begin_at("2026-03-29T00:59:59Z"));
    assert!(!machine.may_begin_at("2026-03-29T01:00:00Z"));
    // 02:59 is followed by 02:00: this night has it twice.
    assert!(!machine.may_begin_at("2026-10-24T23:59:59Z"));
    assert!(machine.may_begin_at("2026-10-25T00:00:00Z"));
    assert!(machine.may_begin_at("2026-10-25T01:59:59Z"));
    assert!(!machine.may_begin_at("2026-10-25T02:00:00Z"));

    let machine = Machine::with("hours = [\"22:00-04:00\"]");
    assert!(machine.may_begin_at("2026-03-29T01:59:59Z"));
    assert!(!machine.may_begin_at("2026-03-29T02:00:00Z"));
    assert!(machine.may_begin_at("2026-10-25T02:59:59Z"));
    assert!(!machine.may_begin_at("2026-10-25T03:00:00Z"));
}

#[test]
fn people_are_waited_for_where_the_owner_says_so() {
    let machine = Machine::with("users = \"wait\"\nreboots = \"when_nobody_is_logged_in\"");
    machine.owner.may_begin().unwrap();
    machine.owner.may_reboot().unwrap();
    machine.log_in();
    let why = machine.owner.may_begin().unwrap_err();
    assert_eq!(why, "somebody is logged in");
    machine.owner.may_reboot().unwrap_err();
    machine.write("reboots = \"never\"", 0o644);
    machine.owner.may_begin().unwrap();
    let why = machine.owner.may_reboot().unwrap_err();
    assert_eq!(why, "the machine's owner allows no reboots");
}

#[test]
fn a_wish_with_sources_that_the_owner_does_not_want_fails_for_that_reason() {
    let machine = Machine::with("new_sources = false");
    machine.owner.allows(&wish(&[])).unwrap();
    let failure = machine.owner.allows(&wish(&["Types: deb"])).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Limits);
    assert_eq!(
        failure.reason,
        "the machine's owner does not allow it: the wish brings a source of its own"
    );
    let machine = Machine::with("suites = [\"stable\"]");
    let good = "Suites: stable";
    machine.owner.allows(&wish(&[good])).unwrap();
    let failure = machine.owner.allows(&wish(&[good, "Suites: sid"]));
    assert!(
        failure
            .unwrap_err()
            .reason
            .ends_with("the suite sid is not among those allowed")
    );
}

#[test]
fn a_removal_that_was_planned_before_the_owner_forbade_it_does_not_begin() {
    let plan = Plan {
        changes: vec![Change {
            name: "demo".to_owned(),
            architecture: "amd64".to_owned(),
            before: Some("1.0".to_owned()),
            after: None,
            suite: String::new(),
            download_bytes: 0,
        }],
        ..Plan::default()
    };
    let machine = Machine::with("");
    machine.owner.allows_plan(&plan).unwrap();
    machine.write("removals = false", 0o644);
    let why = machine.owner.allows_plan(&plan).unwrap_err();
    assert!(why.ends_with("demo is to be removed"), "{why}");
    machine.owner.allows_plan(&Plan::default()).unwrap();
}

#[test]
fn the_example_of_the_document_is_understood_and_told_in_one_line() {
    let document = include_str!("../../../docs/agent-limits.md");
    let (_, after) = document.split_once("```toml\n").unwrap();
    let (example, _) = after.split_once("```").unwrap();
    let machine = Machine::with(example);
    assert_eq!(
        machine.owner.summary(),
        "only the suites bookworm, bookworm-updates, bookworm-security; \
         only the keys /etc/apt/keyrings/own.gpg, 0123456789ABCDEF0123456789ABCDEF01234567; \
         only at 22:00-04:00, Sat,Sun 00:00-24:00; no new sources; no downgrades; no removals; \
         reboots only when nobody is logged in; changes only when nobody is logged in"
    );
}

#[test]
fn images_that_nobody_signed_are_allowed_by_the_owner_alone_and_told() {
    let allowed = |text: &str| {
        let machine = Machine::with(text);
        let limits = machine.owner.limits().unwrap();
        (limits.image.unsigned_images, machine.owner.summary())
    };
    assert_eq!(allowed(""), (false, String::new()));
    let words = "images without a signature are allowed".to_owned();
    assert_eq!(allowed("[image]\nunsigned_images = true"), (true, words));
    let machine = Machine::with("[image]\nunsigned_image = true");
    assert!(machine.owner.trouble().unwrap().contains("unsigned_image"));
}

#[test]
fn a_summary_is_never_long() {
    let suites: Vec<_> = (0..500).map(|number| format!("\"é{number}\"")).collect();
    let machine = Machine::with(&format!("suites = [{}]", suites.join(",")));
    let summary = machine.owner.summary();
    assert!(summary.len() < 1010 && summary.ends_with(" …"), "{summary}");
}
