//! The word of the machine's owner: a file of the machine that no message of the server can widen.
//!
//! The file is read anew each time that something is to be decided. While it cannot be read, is not understood, or could
//! have been written by somebody else, everything that it could limit is refused.

mod hours;
mod people;
mod sources;

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Local, NaiveDateTime, Utc};
use evenkeel_kit::Clock;
use figment::Figment;
use figment::providers::{Format, Toml};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::model::{Failure, FailureKind, PackageWish, Plan};
use crate::place::Place;

pub use self::hours::{BadHours, Hours};

/// Where the owner's limits are, as seen from inside the managed root. The file may be missing: then there are none.
pub const FILE: &str = "/etc/evenkeel/limits.toml";

/// A longer file is a mistake.
const MOST_BYTES: u64 = 64 << 10;

/// A longer summary is cut.
const MOST_SUMMARY: usize = 1000;

/// What the owner allows. Without a word of the owner that is everything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnerLimits {
    /// The suites that packages may come from, as sources name them; empty for any.
    pub suites: Vec<String>,
    /// Fingerprints and files of keys that a source of a wish may be signed by; empty for any.
    pub keys: Vec<String>,
    /// Whether a wish may bring sources of its own.
    pub new_sources: bool,
    /// When a change or a reboot may begin, by the node's own time; empty for always.
    pub hours: Vec<Hours>,
    /// Whether a package may be brought to an older version.
    pub downgrades: bool,
    /// Whether a package may be removed.
    pub removals: bool,
    /// When the agent may reboot the system.
    pub reboots: Reboots,
    /// Whether people who are logged in are waited for.
    pub users: Users,
}

/// When the agent may reboot the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reboots {
    /// Whenever an update needs it.
    #[default]
    Always,
    /// Not at all.
    Never,
    /// When an update needs it and nobody is logged in.
    WhenNobodyIsLoggedIn,
}

/// Whether people who are logged in are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Users {
    /// A change begins beside them.
    #[default]
    Ignore,
    /// A change begins when all have gone.
    Wait,
}

impl Default for OwnerLimits {
    fn default() -> Self {
        Self {
            suites: Vec::new(),
            keys: Vec::new(),
            new_sources: true,
            hours: Vec::new(),
            downgrades: true,
            removals: true,
            reboots: Reboots::default(),
            users: Users::default(),
        }
    }
}

impl OwnerLimits {
    /// Reads the text of a limits file. Fails on the first thing that is not understood, and says what it is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let limits: Self = Figment::from(Toml::string(text))
            .extract()
            .map_err(|error| error.to_string())?;
        let is_suite = |suite: &&String| !suite.is_empty() && !suite.contains(char::is_whitespace);
        if let Some(suite) = limits.suites.iter().find(|suite| !is_suite(suite)) {
            return Err(format!("{suite:?} is no suite"));
        }
        if let Some(key) = limits.keys.iter().find(|key| !sources::is_key(key)) {
            return Err(format!(
                "{key:?} is neither the fingerprint of a key nor the path of a file of keys"
            ));
        }
        Ok(limits)
    }

    fn allow_now(&self, at: NaiveDateTime) -> Result<(), String> {
        if self.hours.is_empty() || self.hours.iter().any(|hours| hours.contain(at)) {
            return Ok(());
        }
        Err(format!(
            "it is outside the owner's hours ({})",
            self.told_hours()
        ))
    }

    fn told_hours(&self) -> String {
        let hours: Vec<_> = self.hours.iter().map(Hours::to_string).collect();
        hours.join(", ")
    }
}

/// What is limited, in one line; nothing if nothing is.
impl fmt::Display for OwnerLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.suites.is_empty() {
            parts.push(format!("only the suites {}", self.suites.join(", ")));
        }
        if !self.keys.is_empty() {
            parts.push(format!("only the keys {}", self.keys.join(", ")));
        }
        if !self.hours.is_empty() {
            parts.push(format!("only at {}", self.told_hours()));
        }
        let reboots = match self.reboots {
            Reboots::Always => None,
            Reboots::Never => Some("no reboots"),
            Reboots::WhenNobodyIsLoggedIn => Some("reboots only when nobody is logged in"),
        };
        let words = [
            (!self.new_sources).then_some("no new sources"),
            (!self.downgrades).then_some("no downgrades"),
            (!self.removals).then_some("no removals"),
            reboots,
            (self.users == Users::Wait).then_some("changes only when nobody is logged in"),
        ];
        parts.extend(words.into_iter().flatten().map(str::to_owned));
        f.write_str(&parts.join("; "))
    }
}

/// The owner's word cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner's limits in {} cannot be relied on: {why}", path.display())]
pub struct OwnerError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The machine's owner. Everything is asked of the file as it is at that moment.
#[derive(Debug)]
pub struct Owner {
    place: Place,
    clock: Arc<dyn Clock>,
    local: fn(DateTime<Utc>) -> NaiveDateTime,
    /// logind's folder of sessions, on a system of the agent's own.
    sessions: Option<PathBuf>,
}

impl Owner {
    /// The owner of a place.
    pub fn new(place: Place, clock: Arc<dyn Clock>) -> Self {
        let sessions = place
            .is_own_system()
            .then(|| place.inside(people::SESSIONS));
        Self {
            place,
            clock,
            local: |at| at.with_timezone(&Local).naive_local(),
            sessions,
        }
    }

    /// What the owner allows now. Fails if the file is there and cannot be relied on; then nothing is allowed.
    pub fn limits(&self) -> Result<OwnerLimits, OwnerError> {
        let path = self.place.inside(FILE);
        let text = match read(&path) {
            Ok(text) => text,
            Err(why) => return Err(OwnerError { path, why }),
        };
        let Some(text) = text else {
            return Ok(OwnerLimits::default());
        };
        OwnerLimits::parse(&text).map_err(|why| OwnerError { path, why })
    }

    /// Whether a change may begin now: the hours, and who is logged in. Else why not; it passes by itself.
    pub fn may_begin(&self) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        limits.allow_now((self.local)(self.clock.now()))?;
        match limits.users {
            Users::Ignore => Ok(()),
            Users::Wait => self.nobody_is_logged_in(),
        }
    }

    /// Whether the agent may reboot the system now; else why not.
    pub fn may_reboot(&self) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        match limits.reboots {
            Reboots::Always => {}
            Reboots::Never => return Err("the machine's owner allows no reboots".to_owned()),
            Reboots::WhenNobodyIsLoggedIn => self.nobody_is_logged_in()?,
        }
        limits.allow_now((self.local)(self.clock.now()))
    }

    /// Whether the owner allows what a wish brings: its sources, their suites and their keys. That a wish allows removals
    /// or downgrades is no reason to refuse it: what the owner does not allow is left out when the change is planned.
    pub fn allows(&self, wish: &PackageWish) -> Result<(), Failure> {
        let refuse = |why: String| {
            Failure::new(
                FailureKind::Limits,
                format!("the machine's owner does not allow it: {why}"),
            )
        };
        let limits = self
            .limits()
            .map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))?;
        if !limits.new_sources && !wish.sources.is_empty() {
            return Err(refuse("the wish brings a source of its own".to_owned()));
        }
        wish.sources
            .iter()
            .try_for_each(|stanza| sources::check(&limits, stanza))
            .map_err(refuse)
    }

    /// Whether a plan still fits what the owner allows, which may have changed since it was made; else why not.
    pub fn allows_plan(&self, plan: &Plan) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        let removed = plan.changes.iter().find(|change| change.after.is_none());
        match removed {
            Some(change) if !limits.removals => Err(format!(
                "the machine's owner allows no removals, and {} is to be removed",
                change.name
            )),
            _ => Ok(()),
        }
    }

    /// What the owner limits, in one line for people; empty if nothing is limited.
    pub fn summary(&self) -> String {
        let mut words = match self.limits() {
            Ok(limits) => limits.to_string(),
            Err(error) => error.to_string(),
        };
        if words.len() > MOST_SUMMARY {
            words.truncate(words.floor_char_boundary(MOST_SUMMARY));
            words.push_str(" …");
        }
        words
    }

    /// What a person should mend in the limits file.
    pub fn trouble(&self) -> Option<String> {
        let error = self.limits().err()?;
        Some(format!("{error}; nothing is changed until it is mended"))
    }

    fn nobody_is_logged_in(&self) -> Result<(), String> {
        match &self.sessions {
            Some(sessions) if people::are_logged_in(sessions) => {
                Err("somebody is logged in".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The text of the file; `None` if it is not there. The file that was looked at is the one that is read.
fn read(path: &Path) -> Result<Option<String>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err("it is a symbolic link".to_owned()),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let said = |error: io::Error| error.to_string();
    let found = file.metadata().map_err(said)?;
    if !found.is_file() {
        return Err("it is no file".to_owned());
    }
    only_root_writes(&found)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    only_root_writes(&fs::metadata(folder).map_err(said)?)
        .map_err(|why| format!("of its folder: {why}"))?;
    if found.len() > MOST_BYTES {
        return Err(format!("it is longer than {MOST_BYTES} bytes"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES)
        .read_to_string(&mut text)
        .map_err(said)?;
    Ok(Some(text))
}

/// Whether nobody but root, or the agent's own user where that is another one, can have written a file; else why not.
pub(crate) fn only_root_writes(found: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != 0 && found.uid() != own {
        return Err(format!(
            "it belongs to the user {}, not to root",
            found.uid()
        ));
    }
    if found.mode() & 0o022 != 0 {
        return Err("others than root may write it".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
        let document = include_str!("../../docs/agent-limits.md");
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
    fn a_summary_is_never_long() {
        let suites: Vec<_> = (0..500).map(|number| format!("\"é{number}\"")).collect();
        let machine = Machine::with(&format!("suites = [{}]", suites.join(",")));
        let summary = machine.owner.summary();
        assert!(summary.len() < 1010 && summary.ends_with(" …"), "{summary}");
    }
}
