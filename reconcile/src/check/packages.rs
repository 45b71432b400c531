//! Checks packages by dpkg's database, `/var/lib/dpkg/status`.
//!
//! | Desired | Good if |
//! | --- | --- |
//! | `any` | a version is installed |
//! | a version | dpkg writes the installed version with the same characters |
//! | `absent` | the package is not installed, or only its configuration files are left |
//!
//! A package is installed if its state in dpkg's database is `install ok installed`, or
//! `hold ok installed`: a hold is a decision of the operator, and the package works. Every other
//! state, such as half-configured or waiting for triggers, is bad, and has a reason of its own.
//!
//! A name without an architecture stands for the package of any architecture: one of them must be
//! as desired, and none may be installed if the package must be absent. With an architecture, it
//! stands for the package of this architecture or of the architecture `all`.
//!
//! Extras are packages that are installed by name, so that apt has not marked them as installed
//! automatically in `/var/lib/apt/extended_states`. A package is no extra if
//!
//! - the document has an entry for it, whatever its desired version is,
//! - another installed package depends on it or recommends it, by its name or a name that it
//!   provides,
//! - it is essential or protected, or has the priority required or important,
//! - it is the agent.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead};

use evenkeel_configuration::document::PackageState;

use super::read;
use super::stanzas::StanzaReader;
use crate::files::{LineReader, RootFolder};
use crate::finding::{Deviation, Difference};
use crate::names::AGENT_PACKAGE;

const STATUS_PATH: &str = "/var/lib/dpkg/status";
const EXTENDED_STATES_PATH: &str = "/var/lib/apt/extended_states";

const STATUS_FIELDS: [&str; 12] = [
    "package",
    "status",
    "architecture",
    "version",
    "priority",
    "essential",
    "protected",
    "important",
    "provides",
    "depends",
    "pre-depends",
    "recommends",
];

const ALL_ARCHITECTURES: &str = "all";

/// What dpkg's database contains about the packages of a document, and the extras.
#[derive(Debug, Default)]
pub(super) struct PackageDatabase {
    /// By name without architecture.
    records: HashMap<String, Vec<PackageRecord>>,
    /// Sorted. With the architecture if there are several packages of the name.
    pub extras: Vec<String>,
}

/// One package of one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PackageRecord {
    architecture: String,
    version: String,
    status: PackageStatus,
}

/// State of a package in dpkg's database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackageStatus {
    Installed,
    NotInstalled,
    ConfigFiles,
    /// Every other state, with the reason why it is bad.
    Incomplete(&'static str),
}

impl PackageStatus {
    /// Parses the field `Status`: the desired action, the error flag, and the state.
    fn parse(status: &str) -> Self {
        let words: Vec<&str> = status.split_ascii_whitespace().collect();
        let [action, flag, state] = words[..] else {
            return Self::Incomplete("dpkg's database has no state of the package");
        };
        match state {
            "not-installed" => Self::NotInstalled,
            "config-files" => Self::ConfigFiles,
            _ if flag != "ok" => Self::Incomplete("the package must be installed again"),
            "installed" => match action {
                "install" | "hold" => Self::Installed,
                _ => Self::Incomplete("the package is selected for removal"),
            },
            "half-installed" => Self::Incomplete("the package is half-installed"),
            "unpacked" => Self::Incomplete("the package is unpacked and not configured"),
            "half-configured" => Self::Incomplete("the package is half-configured"),
            "triggers-awaited" => {
                Self::Incomplete("the package waits for triggers of other packages")
            }
            "triggers-pending" => Self::Incomplete("the package has triggers that have not run"),
            _ => Self::Incomplete("dpkg's database has an unknown state of the package"),
        }
    }

    /// Whether files of the package other than configuration files may be on the machine.
    fn is_present(self) -> bool {
        !matches!(self, Self::NotInstalled | Self::ConfigFiles)
    }
}

impl PackageDatabase {
    /// Reads dpkg's database once, if it is needed.
    ///
    /// # Errors
    /// A sentence: the file cannot be read.
    pub fn read(root: &RootFolder, names: &[&str], list_extras: bool) -> Result<Self, String> {
        if names.is_empty() && !list_extras {
            return Ok(Self::default());
        }
        // Without the marks there are no extras, and the entries are checked all the same.
        let marks = if list_extras { read_marks(root).ok() } else { None };
        let lines = read::open_lines(root, STATUS_PATH);
        let database = lines.and_then(|lines| Self::parse(lines, names, marks.as_ref()));
        database.map_err(|error| read::reading_failure(STATUS_PATH, &error))
    }

    fn parse<R: BufRead>(
        lines: LineReader<R>,
        names: &[&str],
        marks: Option<&AutomaticMarks>,
    ) -> io::Result<Self> {
        let mut records: HashMap<String, Vec<PackageRecord>> =
            names.iter().map(|name| (split_name(name).0.to_owned(), Vec::new())).collect();
        let mut search = marks.map(|marks| ExtraSearch::new(names, marks));
        let mut reader = StanzaReader::new(lines, &STATUS_FIELDS);
        while reader.read_next()? {
            let name = reader.value("package");
            let status = PackageStatus::parse(reader.value("status"));
            if let Some(records) = records.get_mut(name) {
                records.push(PackageRecord {
                    architecture: reader.value("architecture").to_owned(),
                    version: reader.value("version").to_owned(),
                    status,
                });
            }
            if let Some(search) = &mut search
                && status.is_present()
            {
                search.add(&reader, status);
            }
        }
        let extras = search.map(ExtraSearch::finish).unwrap_or_default();
        Ok(Self { records, extras })
    }
}

/// Splits `name:architecture`.
fn split_name(name: &str) -> (&str, Option<&str>) {
    match name.split_once(':') {
        Some((name, architecture)) => (name, Some(architecture)),
        None => (name, None),
    }
}

fn is_of_architecture(record: &str, desired: Option<&str>) -> bool {
    desired.is_none_or(|desired| record == desired || record == ALL_ARCHITECTURES)
}

/// Compares a package with its desired version.
pub(super) fn check_package(
    name: &str,
    state: &PackageState,
    database: &Result<PackageDatabase, String>,
) -> Deviation {
    let database = match database {
        Ok(database) => database,
        Err(reason) => return Deviation::from_failure(reason),
    };
    let (name, architecture) = split_name(name);
    let records = database.records.get(name).map(Vec::as_slice).unwrap_or_default();
    let records =
        records.iter().filter(|record| is_of_architecture(&record.architecture, architecture));
    if state.version == PackageState::ABSENT {
        return compare_absent(records);
    }
    let mut first_deviation = None;
    let mut missing_reason = "the package is not installed";
    for record in records {
        if record.status == PackageStatus::ConfigFiles {
            missing_reason = "the package is not installed; its configuration files are left";
        }
        if !record.status.is_present() {
            continue;
        }
        let deviation = compare_version(record, &state.version);
        if deviation.is_empty() {
            return deviation;
        }
        first_deviation.get_or_insert(deviation);
    }
    first_deviation.unwrap_or_else(|| {
        let mut missing = Deviation::default();
        let version = PackageState::ABSENT;
        missing.add_field(Difference::Existence, "version", version, missing_reason);
        missing
    })
}

fn compare_absent<'a>(records: impl Iterator<Item = &'a PackageRecord>) -> Deviation {
    let mut deviation = Deviation::default();
    if let Some(record) = records.into_iter().find(|record| record.status.is_present()) {
        let reason = match record.status {
            PackageStatus::Incomplete(reason) => reason.to_owned(),
            _ => installed_reason(&record.version),
        };
        let version = record.version.as_str();
        deviation.add_field(Difference::Existence, "version", version, reason);
    }
    deviation
}

fn compare_version(record: &PackageRecord, desired: &str) -> Deviation {
    let mut deviation = Deviation::default();
    if let PackageStatus::Incomplete(reason) = record.status {
        deviation.add_difference(Difference::Content, reason);
    }
    if desired != PackageState::ANY && desired != record.version {
        let version = record.version.as_str();
        let reason = installed_reason(version);
        deviation.add_field(Difference::Content, "version", version, reason);
    }
    deviation
}

fn installed_reason(version: &str) -> String {
    format!("version {version} is installed")
}

/// The packages that apt has marked as installed automatically: their architectures by name.
type AutomaticMarks = HashMap<String, Vec<String>>;

/// Reads the marks of apt. A machine without this file has no automatic packages.
fn read_marks(root: &RootFolder) -> io::Result<AutomaticMarks> {
    let lines = match read::open_lines(root, EXTENDED_STATES_PATH) {
        Ok(lines) => lines,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(HashMap::new()),
        Err(error) => return Err(error),
    };
    parse_marks(lines)
}

fn parse_marks<R: BufRead>(lines: LineReader<R>) -> io::Result<AutomaticMarks> {
    let mut marks = AutomaticMarks::new();
    let mut reader = StanzaReader::new(lines, &["package", "architecture", "auto-installed"]);
    while reader.read_next()? {
        if reader.value("auto-installed") == "1" {
            let architectures = marks.entry(reader.value("package").to_owned()).or_default();
            architectures.push(reader.value("architecture").to_owned());
        }
    }
    Ok(marks)
}

/// Searches for extras while dpkg's database is read.
#[derive(Debug)]
struct ExtraSearch<'a> {
    /// Names in the document, each with its architecture if it has one.
    documented: HashSet<(&'a str, Option<&'a str>)>,
    marks: &'a AutomaticMarks,
    candidates: Vec<ExtraCandidate>,
    /// Names that other installed packages depend on.
    needed: HashSet<String>,
    /// How many architectures of a package are on the machine.
    counts: HashMap<String, usize>,
}

#[derive(Debug)]
struct ExtraCandidate {
    name: String,
    architecture: String,
    provides: String,
}

impl<'a> ExtraSearch<'a> {
    fn new(names: &[&'a str], marks: &'a AutomaticMarks) -> Self {
        Self {
            documented: names.iter().map(|name| split_name(name)).collect(),
            marks,
            candidates: Vec::new(),
            needed: HashSet::new(),
            counts: HashMap::new(),
        }
    }

    fn add<R: BufRead>(&mut self, reader: &StanzaReader<R>, status: PackageStatus) {
        let name = reader.value("package");
        for field in ["depends", "pre-depends", "recommends"] {
            for needed in relation_names(reader.value(field)) {
                if needed != name && !self.needed.contains(needed) {
                    self.needed.insert(needed.to_owned());
                }
            }
        }
        *self.counts.entry(name.to_owned()).or_default() += 1;
        if status == PackageStatus::Installed && self.is_candidate(reader) {
            self.candidates.push(ExtraCandidate {
                name: name.to_owned(),
                architecture: reader.value("architecture").to_owned(),
                provides: reader.value("provides").to_owned(),
            });
        }
    }

    fn is_candidate<R: BufRead>(&self, reader: &StanzaReader<R>) -> bool {
        let name = reader.value("package");
        let architecture = reader.value("architecture");
        let is_set = |field| reader.value(field).eq_ignore_ascii_case("yes");
        let is_documented = self.documented.contains(&(name, None))
            || self.documented.iter().any(|(documented, desired)| {
                *documented == name && is_of_architecture(architecture, *desired)
            });
        // apt lists a package of the architecture `all` with the architecture of the machine.
        let is_automatic = self.marks.get(name).is_some_and(|marks| {
            architecture == ALL_ARCHITECTURES || marks.iter().any(|mark| mark == architecture)
        });
        !(name.is_empty()
            || name == AGENT_PACKAGE
            || is_documented
            || is_automatic
            || is_set("essential")
            || is_set("protected")
            || is_set("important")
            || matches!(reader.value("priority"), "required" | "important"))
    }

    fn finish(self) -> Vec<String> {
        let Self { candidates, needed, counts, .. } = self;
        let is_needed = |candidate: &ExtraCandidate| {
            needed.contains(&candidate.name)
                || relation_names(&candidate.provides).any(|name| needed.contains(name))
        };
        let extras = candidates.into_iter().filter(|candidate| !is_needed(candidate));
        let mut names: Vec<String> = extras
            .map(|extra| match counts.get(&extra.name) {
                Some(2..) => format!("{}:{}", extra.name, extra.architecture),
                _ => extra.name,
            })
            .collect();
        names.sort();
        names
    }
}

/// The names of a relation between packages, such as `libc6 (>= 2.34), perl:any | perl-base`.
fn relation_names(relation: &str) -> impl Iterator<Item = &str> {
    relation.split([',', '|']).filter_map(|part| {
        let is_end = |c: char| c.is_whitespace() || matches!(c, '(' | ':' | '[' | '<');
        part.trim_start().split(is_end).next().filter(|name| !name.is_empty())
    })
}

#[cfg(test)]
mod tests;
