//! Limits of the machine's owner: a file on the machine that no message of the server can override.
//!
//! The file is read again for each decision. While it is unreadable or invalid, or could have been
//! written by another user, everything that it could limit is refused.

mod actions;
mod document_sources;
#[cfg(test)]
mod fuzz;
mod hours;
mod key_block;
mod key_expiry;
mod logged_in_users;
mod report_filter;
mod source_keys;
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
use serde::{Deserialize, Serialize};

use crate::config::describe_settings_error;
use crate::model::{Failure, FailureKind, PackageSpec};
use crate::paths::AgentPaths;
use crate::reboot::RebootObjection;

use self::source_keys::SourceKeys;

pub use self::actions::{ActionPermission, BadActionPermission, ConfigurationLimits};
pub use self::hours::{BadHours, Hours};
pub use self::report_filter::{FailureLogRule, ReportFilter, ReportLimits};
pub use self::source_keys::SourceKeyReport;
pub use self::sources::SourceSuite;

/// The file with the owner's limits, as seen from inside the managed root. Without the file there
/// are no limits.
pub const LIMITS_FILE: &str = "/etc/evenkeel/limits.toml";

/// Maximum size of the file in bytes. A larger file is an error.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Maximum length of the summary in bytes.
const MAX_SUMMARY_BYTES: usize = 1000;

/// Limits of the owner. The default allows everything except sources whose keys are not on the
/// machine, removals of protected packages, unsigned images, older images, and actions of
/// configuration documents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the limits file")]
pub struct OwnerLimits {
    /// Allowed suites of packages: `SUITE` as the machine's source files name it, or `URI SUITE`;
    /// empty for any.
    pub suites: Vec<String>,
    /// Fingerprints and key files that may sign a source of an update policy; empty for any key of
    /// the machine. A key file may be outside of the folder of the keys.
    pub keys: Vec<String>,
    /// Whether an update policy may add sources.
    pub new_sources: bool,
    /// Whether a source of an update policy may be signed by a key that is not on the machine.
    pub server_keys: bool,
    /// Whether an update may install packages that the machine does not have.
    pub new_packages: bool,
    /// Packages that no update may remove, in addition to the default ones: names, also with `*`
    /// and `?`.
    pub protected_packages: Vec<String>,
    /// Packages that an update may remove although they are protected by default.
    pub removable_packages: Vec<String>,
    /// When a change or a reboot may begin, in the node's local time; empty for always.
    pub hours: Vec<Hours>,
    /// Whether a package may be downgraded.
    pub downgrades: bool,
    /// Whether a package may be removed.
    pub removals: bool,
    /// When the agent may reboot the system.
    pub reboots: RebootLimit,
    /// Whether changes and reboots wait until no user is logged in.
    pub users: LoggedInUsersRule,
    /// Limits of images.
    pub image: ImageLimits,
    /// Limits of configuration documents.
    pub configuration: ConfigurationLimits,
    /// Limits of reports.
    pub reports: ReportLimits,
}

/// Limits of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageLimits {
    /// Whether an image may run that no key of the machine has signed. Only this file can allow it.
    pub unsigned_images: bool,
    /// Whether an image may be installed that is older than one that proved itself on this machine.
    /// Only this file can allow it.
    pub downgrades: bool,
}

/// When the agent may reboot the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootLimit {
    /// Whenever an update needs it.
    #[default]
    Always,
    /// Never.
    Never,
    /// When an update needs it and no user is logged in.
    WhenNoUserIsLoggedIn,
}

/// Whether changes wait until no user is logged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoggedInUsersRule {
    /// A change does not wait.
    #[default]
    Ignore,
    /// A change waits until all users have logged out.
    Wait,
}

impl Default for OwnerLimits {
    fn default() -> Self {
        Self {
            suites: Vec::new(),
            keys: Vec::new(),
            new_sources: true,
            server_keys: false,
            new_packages: true,
            protected_packages: Vec::new(),
            removable_packages: Vec::new(),
            hours: Vec::new(),
            downgrades: true,
            removals: true,
            reboots: RebootLimit::default(),
            users: LoggedInUsersRule::default(),
            image: ImageLimits::default(),
            configuration: ConfigurationLimits::default(),
            reports: ReportLimits::default(),
        }
    }
}

impl OwnerLimits {
    /// Parses a limits file. Fails at the first invalid entry, with its name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let limits: Self = Figment::from(Toml::string(text))
            .extract()
            .map_err(|error| describe_settings_error(&error))?;
        if let Some(suite) = limits.suites.iter().find(|suite| !sources::is_suite_entry(suite)) {
            return Err(format!("{suite:?} is neither a suite nor `URI SUITE`"));
        }
        if let Some(key) = limits.keys.iter().find(|key| !sources::is_key(key)) {
            return Err(format!(
                "{key:?} is neither the fingerprint of a key nor the path of a key file"
            ));
        }
        let mut patterns = limits.protected_packages.iter().chain(&limits.removable_packages);
        if let Some(pattern) = patterns.find(|pattern| !is_package_pattern(pattern)) {
            return Err(format!("{pattern:?} is not a pattern of package names"));
        }
        if limits.reports.failure_log_filter.iter().any(|pattern| pattern.trim().is_empty()) {
            return Err("an entry of failure_log_filter is empty".to_owned());
        }
        Ok(limits)
    }

    /// The stanzas that apt may use for the sources of an update policy.
    fn resolve_sources(
        &self,
        paths: &AgentPaths,
        stanzas: &[String],
    ) -> Result<Vec<String>, String> {
        if stanzas.is_empty() {
            return Ok(Vec::new());
        }
        if !self.new_sources {
            return Err("the update policy adds a source".to_owned());
        }
        let keys = SourceKeys::load(paths, &self.named_key_files())?;
        let stanzas = stanzas.iter();
        stanzas.map(|stanza| sources::resolve_source(self, &keys, stanza)).collect()
    }

    fn named_key_files(&self) -> Vec<&str> {
        self.keys.iter().map(String::as_str).filter(|key| key.starts_with('/')).collect()
    }

    fn check_hours(&self, at: NaiveDateTime) -> Result<(), String> {
        if self.hours.is_empty() || self.hours.iter().any(|hours| hours.contains(at)) {
            return Ok(());
        }
        Err(format!("it is outside the owner's hours ({})", self.format_hours()))
    }

    fn format_hours(&self) -> String {
        let hours: Vec<_> = self.hours.iter().map(Hours::to_string).collect();
        hours.join(", ")
    }
}

/// Whether a text is a package name, also with `*` and `?`.
fn is_package_pattern(text: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.*?".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

/// Lists the limits, and unusual permissions, in one line; empty if there are none.
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
            parts.push(format!("only at {}", self.format_hours()));
        }
        let reboots = match self.reboots {
            RebootLimit::Always => None,
            RebootLimit::Never => Some("no reboots"),
            RebootLimit::WhenNoUserIsLoggedIn => Some("reboots only when no user is logged in"),
        };
        if !self.protected_packages.is_empty() {
            parts.push(format!("no removal of {}", self.protected_packages.join(", ")));
        }
        let actions = &self.configuration.actions;
        if !actions.is_empty() {
            let actions: Vec<_> = actions.iter().map(ActionPermission::to_string).collect();
            parts.push(format!("allowed actions: {}", actions.join(", ")));
        }
        if !self.removable_packages.is_empty() {
            parts.push(format!("{} may be removed", self.removable_packages.join(", ")));
        }
        let rules = [
            (!self.new_sources).then_some("no new sources"),
            (self.server_keys).then_some("keys from the server are allowed"),
            (!self.new_packages).then_some("no new packages"),
            (!self.downgrades).then_some("no downgrades"),
            (!self.removals).then_some("no removals"),
            reboots,
            (self.users == LoggedInUsersRule::Wait)
                .then_some("changes only when no user is logged in"),
            (self.image.unsigned_images).then_some("unsigned images are allowed"),
            (self.image.downgrades).then_some("older images are allowed"),
            (self.reports.failure_logs == FailureLogRule::None)
                .then_some("no output of failed programs in reports"),
            (!self.reports.failure_log_filter.is_empty())
                .then_some("the output of programs in reports is filtered"),
        ];
        parts.extend(rules.into_iter().flatten().map(str::to_owned));
        f.write_str(&parts.join("; "))
    }
}

/// The limits file is unreadable, invalid or not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the owner's limits in {}: {reason}", path.display())]
pub struct OwnerError {
    /// Path of the file.
    pub path: PathBuf,
    /// Why the file cannot be used.
    pub reason: String,
}

/// The machine's owner. Each method reads the limits file again.
#[derive(Debug)]
pub struct Owner {
    paths: AgentPaths,
    clock: Arc<dyn Clock>,
    to_local_time: fn(DateTime<Utc>) -> NaiveDateTime,
    /// logind's folder of sessions, on the agent's own system.
    sessions: Option<PathBuf>,
}

impl Owner {
    /// Creates the owner of a managed root.
    pub fn new(paths: AgentPaths, clock: Arc<dyn Clock>) -> Self {
        let sessions =
            paths.is_own_system().then(|| paths.inside(logged_in_users::SESSIONS_FOLDER));
        Self { paths, clock, to_local_time: |at| at.with_timezone(&Local).naive_local(), sessions }
    }

    /// Looks for sessions of users in another folder, on a system that is not the agent's own.
    #[must_use]
    pub fn with_sessions(mut self, folder: PathBuf) -> Self {
        self.sessions = Some(folder);
        self
    }

    /// Reads the limits. Fails if the file exists but cannot be used; then nothing is allowed.
    pub fn limits(&self) -> Result<OwnerLimits, OwnerError> {
        let path = self.paths.inside(LIMITS_FILE);
        let text = match read_limits(&path) {
            Ok(text) => text,
            Err(reason) => return Err(OwnerError { path, reason }),
        };
        let Some(text) = text else {
            return Ok(OwnerLimits::default());
        };
        OwnerLimits::parse(&text).map_err(|reason| OwnerError { path, reason })
    }

    /// What reports may contain of the output of programs; nothing while the limits cannot be used.
    pub fn report_filter(&self) -> ReportFilter {
        match self.limits() {
            Ok(limits) => ReportFilter::new(&limits.reports),
            Err(_) => ReportFilter::without_logs(),
        }
    }

    /// Checks whether a change may begin now: the hours and the logged-in users. The error says why
    /// not; it is temporary.
    pub fn may_begin(&self) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        limits.check_hours((self.to_local_time)(self.clock.now()))?;
        match limits.users {
            LoggedInUsersRule::Ignore => Ok(()),
            LoggedInUsersRule::Wait => self.check_no_user_logged_in(),
        }
    }

    /// Checks whether the agent may reboot the system now. Only logged-in users are a temporary
    /// objection: the hours may not begin again before the next day.
    pub fn may_reboot(&self) -> Result<(), RebootObjection> {
        let limits = self.limits().map_err(|error| RebootObjection::lasting(error.to_string()))?;
        if limits.reboots == RebootLimit::Never {
            let reason = "the machine's owner does not allow reboots";
            return Err(RebootObjection::lasting(reason));
        }
        limits
            .check_hours((self.to_local_time)(self.clock.now()))
            .map_err(RebootObjection::lasting)?;
        let waits_for_users = limits.reboots == RebootLimit::WhenNoUserIsLoggedIn
            || limits.users == LoggedInUsersRule::Wait;
        if waits_for_users {
            self.check_no_user_logged_in().map_err(RebootObjection::temporary)?;
        }
        Ok(())
    }

    /// Checks the sources of a spec, with their suites and keys. A spec that allows removals or
    /// downgrades is not refused: the plan leaves out what the owner does not allow.
    pub fn check_spec(&self, spec: &PackageSpec) -> Result<(), Failure> {
        self.resolve_sources(spec).map(drop)
    }

    /// The sources of a spec as apt may use them: keys of this machine replace those that the
    /// sources contain. Fails if the limits do not allow a source.
    pub fn resolve_sources(&self, spec: &PackageSpec) -> Result<Vec<String>, Failure> {
        let limits =
            self.limits().map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))?;
        limits.resolve_sources(&self.paths, &spec.sources).map_err(|why| {
            Failure::new(
                FailureKind::Limits,
                format!("the machine's owner does not allow this: {why}"),
            )
        })
    }

    /// The state of the keys that may sign the sources of an update policy. If the limits cannot be
    /// used, without the files that they name.
    pub fn report_source_keys(&self) -> SourceKeyReport {
        let limits = self.limits().unwrap_or_default();
        SourceKeyReport::new(&self.paths, &limits.named_key_files(), self.clock.now())
    }

    /// The limits in one line, for people; empty if there are none.
    pub fn summary(&self) -> String {
        let mut summary = match self.limits() {
            Ok(limits) => limits.to_string(),
            Err(error) => error.to_string(),
        };
        if summary.len() > MAX_SUMMARY_BYTES {
            summary.truncate(summary.floor_char_boundary(MAX_SUMMARY_BYTES));
            summary.push_str(" …");
        }
        summary
    }

    /// Warning about an unusable limits file.
    pub fn warning(&self) -> Option<String> {
        let error = self.limits().err()?;
        Some(format!("{error}; nothing is changed until this is fixed"))
    }

    /// Whether a user is logged in to the agent's own system.
    pub fn is_user_logged_in(&self) -> bool {
        self.sessions.as_deref().is_some_and(logged_in_users::is_user_logged_in)
    }

    fn check_no_user_logged_in(&self) -> Result<(), String> {
        if self.is_user_logged_in() {
            return Err("a user is logged in".to_owned());
        }
        Ok(())
    }
}

/// Reads the file; `None` if it does not exist.
fn read_limits(path: &Path) -> Result<Option<String>, String> {
    let Some(text) = read_trusted(path, MAX_FILE_BYTES)? else {
        return Ok(None);
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    check_only_root_writes_in(folder).map_err(|why| format!("its folder is not trusted: {why}"))?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    Ok(Some(text))
}

/// Reads a file of at most `most` bytes that only root can have written; `None` if it does not
/// exist. The error says why the file is not trusted. The checks apply to the opened file, so it
/// cannot be replaced in between.
pub(crate) fn read_trusted(path: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err("it is a symbolic link".to_owned()),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let error_text = |error: io::Error| error.to_string();
    let metadata = file.metadata().map_err(error_text)?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    check_only_root_writes(&metadata)?;
    if metadata.len() > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content).map_err(error_text)?;
    Ok(Some(content))
}

/// Like [`check_only_root_writes`], for a folder.
pub(crate) fn check_only_root_writes_in(folder: &Path) -> Result<(), String> {
    let metadata = fs::metadata(folder).map_err(|error| error.to_string())?;
    check_only_root_writes(&metadata)
}

/// Checks that only root, or the agent's own user, can have written a file. The error says why not.
pub(crate) fn check_only_root_writes(metadata: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != own {
        return Err(format!("it belongs to the user {}, not to root", metadata.uid()));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err("users other than root may write to it".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
