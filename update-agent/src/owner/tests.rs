use std::os::unix::fs::PermissionsExt;

use chrono::TimeDelta;
use evenkeel_kit::TestClock;

use super::key_block::testing::armored_key;
use super::*;
use crate::model::PackageMode;

fn parse_utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// Local time in Berlin in 2026.
fn berlin_time(at: DateTime<Utc>) -> NaiveDateTime {
    let summer = parse_utc("2026-03-29T01:00:00Z")..parse_utc("2026-10-25T01:00:00Z");
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
        let clock = TestClock::new(parse_utc("2026-06-01T12:00:00Z"));
        let paths = AgentPaths::new(root.path(), None);
        let owner = Owner {
            to_local_time: berlin_time,
            sessions: Some(root.path().join("sessions")),
            ..Owner::new(paths, Arc::new(clock.clone()))
        };
        Self { root, clock, owner }
    }

    fn with_limits(limits: &str) -> Self {
        let machine = Self::new();
        machine.write_limits(limits, 0o644);
        machine
    }

    fn write_limits(&self, limits: &str, mode: u32) {
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
        self.clock.set(parse_utc(at));
        self.owner.may_begin().is_ok()
    }
}

fn package_spec(sources: &[&str]) -> PackageSpec {
    PackageSpec {
        sources: sources.iter().map(|text| (*text).to_owned()).collect(),
        ..PackageSpec::new(PackageMode::Latest)
    }
}

#[test]
fn without_limits_everything_is_allowed() {
    let machine = Machine::new();
    machine.log_in();
    let owner = &machine.owner;
    assert_eq!(owner.limits().unwrap(), OwnerLimits::default());
    owner.may_begin().unwrap();
    owner.may_reboot().unwrap();
    owner.check_spec(&package_spec(&[])).unwrap();
    assert_eq!(owner.summary(), "");
    assert_eq!(owner.warning(), None);
    machine.write_limits("", 0o644);
    assert_eq!(machine.owner.limits().unwrap(), OwnerLimits::default());
}

#[test]
fn invalid_or_untrusted_limits_allow_nothing() {
    let invalid = [
        ("downgrade = false", 0o644, "downgrade"),
        ("hours = [\"22-4\"]", 0o644, "22-4"),
        ("suites = [\"\"]", 0o644, "neither a suite"),
        ("suites = [\"a stable\"]", 0o644, "neither a suite"),
        ("protected_packages = [\"a b\"]", 0o644, "not a pattern"),
        ("removable_packages = [\"\"]", 0o644, "not a pattern"),
        ("keys = [\"ABC\"]", 0o644, "neither the fingerprint"),
        ("reboots = \"sometimes\"", 0o644, "sometimes"),
        ("\"", 0o644, "limits.toml"),
        ("", 0o664, "users other than root"),
        ("", 0o646, "users other than root"),
    ];
    for (text, mode, why) in invalid {
        let machine = Machine::new();
        machine.write_limits(text, mode);
        let owner = &machine.owner;
        let problem = owner.warning().unwrap();
        assert!(problem.contains(why), "{text}: {problem}");
        // Words of the library that reads the file.
        for word in ["source string", "default.", "\n"] {
            assert!(!problem.contains(word), "{text}: {problem}");
        }
        assert!(problem.ends_with("; nothing is changed until this is fixed"));
        owner.may_begin().unwrap_err();
        owner.may_reboot().unwrap_err();
        let failure = owner.check_spec(&package_spec(&[])).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Limits);
        assert!(owner.summary().contains(why), "{}", owner.summary());
    }
}

#[test]
fn the_file_and_its_folder_must_belong_to_root() {
    let machine = Machine::with_limits("");
    let file = machine.root.path().join("etc/evenkeel/limits.toml");
    let folder = file.parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let error = machine.owner.limits().unwrap_err();
    assert!(error.reason.starts_with("its folder is not trusted"), "{error}");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();

    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("nowhere", &file).unwrap();
    let error = machine.owner.limits().unwrap_err();
    assert_eq!(error.reason, "it is a symbolic link");

    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let error = machine.owner.limits().unwrap_err();
    assert_eq!(error.reason, "it is not a regular file");

    fs::remove_dir(&file).unwrap();
    machine.write_limits(&"#".repeat(70_000), 0o644);
    let error = machine.owner.limits().unwrap_err();
    assert!(error.reason.contains("longer than"), "{error}");
}

#[test]
fn a_change_begins_in_the_hours_of_the_nodes_own_time() {
    let machine = Machine::with_limits("hours = [\"22:00-04:00\", \"Sun 10:00-11:00\"]");
    assert!(!machine.may_begin_at("2026-06-01T19:59:59Z"));
    assert!(machine.may_begin_at("2026-06-01T20:00:00Z"));
    assert!(machine.may_begin_at("2026-06-02T01:59:59Z"));
    assert!(!machine.may_begin_at("2026-06-02T02:00:00Z"));
    assert!(machine.may_begin_at("2026-06-07T08:00:00Z"));
    machine.clock.set(parse_utc("2026-06-02T12:00:00Z"));
    assert_eq!(
        machine.owner.may_begin().unwrap_err(),
        "it is outside the owner's hours (22:00-04:00, Sun 10:00-11:00)"
    );
    let objection = machine.owner.may_reboot().unwrap_err();
    assert!(!objection.is_temporary, "the hours may not begin before the next day");
}

#[test]
fn hours_follow_the_local_clock_across_daylight_saving_changes() {
    // 01:59 is followed by 03:00, so this night has no such hour.
    let machine = Machine::with_limits("hours = [\"02:00-03:00\"]");
    assert!(!machine.may_begin_at("2026-03-29T00:59:59Z"));
    assert!(!machine.may_begin_at("2026-03-29T01:00:00Z"));
    // 02:59 is followed by 02:00, so this night has the hour twice.
    assert!(!machine.may_begin_at("2026-10-24T23:59:59Z"));
    assert!(machine.may_begin_at("2026-10-25T00:00:00Z"));
    assert!(machine.may_begin_at("2026-10-25T01:59:59Z"));
    assert!(!machine.may_begin_at("2026-10-25T02:00:00Z"));

    let machine = Machine::with_limits("hours = [\"22:00-04:00\"]");
    assert!(machine.may_begin_at("2026-03-29T01:59:59Z"));
    assert!(!machine.may_begin_at("2026-03-29T02:00:00Z"));
    assert!(machine.may_begin_at("2026-10-25T02:59:59Z"));
    assert!(!machine.may_begin_at("2026-10-25T03:00:00Z"));
}

#[test]
fn logged_in_users_are_waited_for_if_the_limits_require_it() {
    let machine = Machine::with_limits("users = \"wait\"\nreboots = \"when_no_user_is_logged_in\"");
    machine.owner.may_begin().unwrap();
    machine.owner.may_reboot().unwrap();
    machine.log_in();
    let why = machine.owner.may_begin().unwrap_err();
    assert_eq!(why, "a user is logged in");
    let objection = machine.owner.may_reboot().unwrap_err();
    assert_eq!(objection, RebootObjection::temporary("a user is logged in"));
    for (limits, is_allowed) in [
        ("users = \"wait\"", false),
        ("reboots = \"when_no_user_is_logged_in\"", false),
        ("users = \"ignore\"", true),
    ] {
        machine.write_limits(limits, 0o644);
        assert_eq!(machine.owner.may_reboot().is_ok(), is_allowed, "{limits}");
    }
    machine.write_limits("reboots = \"never\"", 0o644);
    machine.owner.may_begin().unwrap();
    let objection = machine.owner.may_reboot().unwrap_err();
    assert_eq!(objection, RebootObjection::lasting("the machine's owner does not allow reboots"));
}

/// A source that is signed by a file of the machine.
const SOURCE: &str = "URIs: https://x\nSuites: stable\nSigned-By: /etc/evenkeel/keys.d/own.asc\n";

#[test]
fn a_spec_with_disallowed_sources_fails_with_that_reason() {
    let machine = Machine::with_limits("new_sources = false");
    machine.owner.check_spec(&package_spec(&[])).unwrap();
    let failure = machine.owner.check_spec(&package_spec(&[SOURCE])).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Limits);
    assert_eq!(
        failure.reason,
        "the machine's owner does not allow this: the update policy adds a source"
    );
    let machine = Machine::with_limits("suites = [\"stable\"]");
    let failure = machine.owner.check_spec(&package_spec(&[SOURCE])).unwrap_err();
    assert!(failure.reason.contains("the suite stable of a source"), "{}", failure.reason);
}

#[test]
fn a_source_is_used_only_with_a_key_of_the_machine_unless_the_limits_allow_others() {
    let machine = Machine::new();
    let spec = package_spec(&[SOURCE]);
    let failure = machine.owner.resolve_sources(&spec).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Limits);
    assert!(failure.reason.contains("put the public key there"), "{}", failure.reason);

    machine.write_limits("server_keys = true", 0o644);
    assert_eq!(machine.owner.resolve_sources(&spec).unwrap(), [SOURCE]);
    assert_eq!(machine.owner.summary(), "keys from the server are allowed");

    machine.write_limits("", 0o644);
    let folder = machine.root.path().join("etc/evenkeel/keys.d");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.join("own.asc");
    fs::write(&file, armored_key(1).0).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(machine.owner.resolve_sources(&spec).unwrap(), [SOURCE]);
}

#[test]
fn the_documented_example_is_valid_and_summarised_in_one_line() {
    let document = include_str!("../../../docs/agent-limits.md");
    let (_, after) = document.split_once("```toml\n").unwrap();
    let (example, _) = after.split_once("```").unwrap();
    let machine = Machine::with_limits(example);
    assert_eq!(
        machine.owner.summary(),
        "only the suites bookworm, bookworm-updates, bookworm-security, https://deb.example/own own; \
         only the keys /etc/apt/keyrings/own.gpg, 0123456789ABCDEF0123456789ABCDEF01234567; \
         only at 22:00-04:00, Sat,Sun 00:00-24:00; no removal of postgresql-*; \
         allowed actions: /usr/local/lib/evenkeel-actions; ifupdown may be removed; no new sources; no new packages; no downgrades; no removals; \
         reboots only when no user is logged in; changes only when no user is logged in; \
         the output of programs in reports is filtered"
    );
}

#[test]
fn unsigned_and_older_images_are_allowed_by_the_owner_only_and_summarised() {
    let allowed = |text: &str| {
        let machine = Machine::with_limits(text);
        let limits = machine.owner.limits().unwrap();
        (limits.image.unsigned_images, machine.owner.summary())
    };
    assert_eq!(allowed(""), (false, String::new()));
    let expected = "unsigned images are allowed".to_owned();
    assert_eq!(allowed("[image]\nunsigned_images = true"), (true, expected));
    let machine = Machine::with_limits("[image]\ndowngrades = true");
    assert!(machine.owner.limits().unwrap().image.downgrades);
    assert_eq!(machine.owner.summary(), "older images are allowed");
    let machine = Machine::with_limits("[image]\nunsigned_image = true");
    assert!(machine.owner.warning().unwrap().contains("unsigned_image"));
}

#[test]
fn actions_are_allowed_by_the_owner_only() {
    let machine = Machine::new();
    let root = machine.root.path();
    let check = || machine.owner.limits().unwrap().configuration.check_action(root, "true");
    check().unwrap_err();
    machine.write_limits("[configuration]\nactions = [\"all\"]", 0o644);
    check().unwrap();
    assert_eq!(machine.owner.summary(), "allowed actions: all");
    machine.write_limits("[configuration]\nactions = [\"everything\"]", 0o644);
    let warning = machine.owner.warning().unwrap();
    assert!(warning.contains("\"everything\" is neither \"all\" nor"), "{warning}");
    machine.write_limits("[configuration]\naction = [\"all\"]", 0o644);
    assert!(machine.owner.warning().unwrap().contains("action"));
}

#[test]
fn a_summary_is_never_long() {
    let suites: Vec<_> = (0..500).map(|number| format!("\"é{number}\"")).collect();
    let machine = Machine::with_limits(&format!("suites = [{}]", suites.join(",")));
    let summary = machine.owner.summary();
    assert!(summary.len() < 1010 && summary.ends_with(" …"), "{summary}");
}
