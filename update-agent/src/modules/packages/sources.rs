//! Configuration that apt sees in addition to the system's own: sources of a spec, only the allowed suites, and preferences
//! that pin versions. All are copies in folders of the agent, used for one spec only.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::slice;

use evenkeel_domain::package_source;

use super::index_targets::IndexTarget;
use crate::durable::{self, FileError};
use crate::owner::SourceSuite;
use crate::paths::AgentPaths;

/// The folders, as paths inside the managed root: allowed sources, all sources, preferences, and apt's caches for the first
/// two, which must not replace the caches of the system's sources.
const ALLOWED_FOLDER: &str = "/var/lib/evenkeel-agent/sources";
const ALL_FOLDER: &str = "/var/lib/evenkeel-agent/sources-whole";
const PREFERENCES_FOLDER: &str = "/var/lib/evenkeel-agent/preferences";
const CACHES_FOLDER: &str = "/var/lib/evenkeel-agent/apt-caches";

/// Settings of apt that remove the hooks of a refresh.
const SETTINGS_WITHOUT_HOOKS: &str = "/var/lib/evenkeel-agent/apt-caches/without-hooks.conf";

/// File with the sources of the policy. It replaces a file of the system with this name.
const POLICY_FILE: &str = "evenkeel-update.sources";

/// Which sources apt sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceScope {
    /// The system's own.
    #[default]
    System,
    /// The system's own and those of the spec.
    All,
    /// The allowed suites of these.
    Allowed,
}

/// Which preferences apt sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferenceScope {
    /// The system's own.
    #[default]
    System,
    /// Those of the spec, followed by the system's own.
    Spec,
    /// None.
    Disabled,
}

/// The configuration that apt sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AptView {
    pub sources: SourceScope,
    pub preferences: PreferenceScope,
}

impl AptView {
    /// A view of these sources with the system's preferences.
    pub fn from_sources(sources: SourceScope) -> Self {
        Self { sources, preferences: PreferenceScope::System }
    }

    /// The same sources with other preferences.
    #[must_use]
    pub fn with_preferences(self, preferences: PreferenceScope) -> Self {
        Self { preferences, ..self }
    }

    /// The command-line options of apt for this view.
    pub fn options(self) -> Vec<String> {
        let mut settings = Vec::new();
        let folder = match self.sources {
            SourceScope::System => None,
            SourceScope::All => Some((ALL_FOLDER, "whole")),
            SourceScope::Allowed => Some((ALLOWED_FOLDER, "allowed")),
        };
        if let Some((folder, cache)) = folder {
            settings.push("Dir::Etc::SourceList=/dev/null".to_owned());
            settings.push(format!("Dir::Etc::SourceParts={folder}"));
            // Lists of the other sources must not be deleted.
            settings.push("APT::Get::List-Cleanup=0".to_owned());
            settings.push(format!("Dir::Cache::pkgcache={CACHES_FOLDER}/{cache}.bin"));
            settings.push("Dir::Cache::srcpkgcache=".to_owned());
        }
        let folder = match self.preferences {
            PreferenceScope::System => None,
            PreferenceScope::Spec => Some(PREFERENCES_FOLDER),
            PreferenceScope::Disabled => Some("/dev/null"),
        };
        if let Some(folder) = folder {
            settings.push("Dir::Etc::Preferences=/dev/null".to_owned());
            settings.push(format!("Dir::Etc::PreferencesParts={folder}"));
        }
        let options = settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]);
        options.collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    name: String,
    text: String,
    /// Whether the file is one of the system's, and not the policy's.
    is_own: bool,
}

impl SourceFile {
    /// Whether the file has one source per line.
    fn is_list(&self) -> bool {
        Path::new(&self.name).extension().is_some_and(|extension| extension == "list")
    }

    /// The addresses and suites of the sources, without passwords.
    pub fn describe(&self) -> String {
        let suites = list_suites(slice::from_ref(self)).into_iter();
        let names =
            suites.map(|(_, (uri, suite))| format!("{} {suite}", without_credentials(&uri)));
        names.collect::<Vec<_>>().join(", ")
    }
}

/// The address and the name of each suite of sources, and whether it is the system's own.
fn list_suites(sources: &[SourceFile]) -> Vec<(bool, (String, String))> {
    let suites = RefCell::new(Vec::new());
    let record = |suite: SourceSuite<'_>, _: &BTreeSet<String>, _: bool| {
        let names = (suite.uri.to_owned(), suite.suite.to_owned());
        suites.borrow_mut().push((suite.is_own, names));
        true
    };
    filter_sources(sources, &[], &record);
    suites.into_inner()
}

/// The address and the name of each suite of the system's own sources.
pub fn own_suites(sources: &[SourceFile]) -> Vec<(String, String)> {
    let own = list_suites(sources).into_iter().filter(|(is_own, _)| *is_own);
    own.map(|(_, names)| names).collect()
}

/// A URI without a user name and a password.
fn without_credentials(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
    let host_end = rest.find('/').unwrap_or(rest.len());
    let (host, path) = rest.split_at(host_end);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Collects the system's sources and those of a spec.
pub fn collect_sources(
    paths: &AgentPaths,
    stanzas: &[String],
) -> Result<Vec<SourceFile>, FileError> {
    let mut sources = Vec::new();
    for file in system_source_files(paths)? {
        let name = file.file_name().unwrap_or(OsStr::new("sources.list"));
        if name == POLICY_FILE && !stanzas.is_empty() {
            continue;
        }
        let content = fs::read(&file).map_err(FileError::while_doing("read", &file))?;
        sources.push(SourceFile {
            name: name.to_string_lossy().into_owned(),
            text: String::from_utf8_lossy(&content).into_owned(),
            is_own: true,
        });
    }
    if !stanzas.is_empty() {
        let stanzas: Vec<_> =
            stanzas.iter().map(|text| package_source::without_comments(text)).collect();
        sources.push(SourceFile {
            name: POLICY_FILE.to_owned(),
            text: stanzas.join("\n\n") + "\n",
            is_own: false,
        });
    }
    Ok(sources)
}

/// Writes the folder of a scope from scratch.
pub fn write_sources(
    paths: &AgentPaths,
    scope: SourceScope,
    sources: &[SourceFile],
) -> Result<(), FileError> {
    let folder = match scope {
        SourceScope::System => return Ok(()),
        SourceScope::All => ALL_FOLDER,
        SourceScope::Allowed => ALLOWED_FOLDER,
    };
    let folder = paths.inside(folder);
    remove_folder(&folder)?;
    // Sources may contain passwords. apt reads them as root.
    durable::create_folder(&folder, 0o700)?;
    durable::create_folder(&paths.inside(CACHES_FOLDER), 0o700)?;
    for source in sources {
        durable::replace_file(&folder.join(&source.name), source.text.as_bytes(), 0o600)?;
    }
    Ok(())
}

/// Writes the folder of preferences from scratch: first `text`, then copies of the system's own. apt uses the first match.
pub fn write_preferences(paths: &AgentPaths, text: &str) -> Result<(), FileError> {
    let folder = paths.inside(PREFERENCES_FOLDER);
    remove_folder(&folder)?;
    durable::create_folder(&folder, 0o700)?;
    durable::replace_file(&folder.join("00-evenkeel"), text.as_bytes(), 0o600)?;
    for (name, file) in system_preference_files(paths)? {
        let content = fs::read(&file).map_err(FileError::while_doing("read", &file))?;
        durable::replace_file(&folder.join(name), &content, 0o600)?;
    }
    Ok(())
}

/// Writes settings of apt that remove the hooks of a refresh. Returns the path inside the managed root.
pub fn write_settings_without_hooks(paths: &AgentPaths) -> Result<&'static str, FileError> {
    let text = "#clear APT::Update::Pre-Invoke;\n\
                #clear APT::Update::Post-Invoke;\n\
                #clear APT::Update::Post-Invoke-Success;\n";
    durable::create_folder(&paths.inside(CACHES_FOLDER), 0o700)?;
    durable::replace_file(&paths.inside(SETTINGS_WITHOUT_HOOKS), text.as_bytes(), 0o600)?;
    Ok(SETTINGS_WITHOUT_HOOKS)
}

/// Whether the system has preferences of its own.
pub fn has_preferences(paths: &AgentPaths) -> Result<bool, FileError> {
    Ok(!system_preference_files(paths)?.is_empty())
}

pub fn remove_folders(paths: &AgentPaths) -> Result<(), FileError> {
    [ALLOWED_FOLDER, ALL_FOLDER, PREFERENCES_FOLDER, CACHES_FOLDER]
        .iter()
        .try_for_each(|folder| remove_folder(&paths.inside(folder)))
}

pub fn remove_folder(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::while_doing("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn system_source_files(paths: &AgentPaths) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    let list = paths.inside("/etc/apt/sources.list");
    if list.is_file() {
        files.push(list);
    }
    let parts = list_files(&paths.inside("/etc/apt/sources.list.d"))?;
    files.extend(parts.into_iter().filter(|path| is_source_file(path)));
    Ok(files)
}

/// The system's preference files, with names that keep apt's order.
fn system_preference_files(paths: &AgentPaths) -> Result<Vec<(String, PathBuf)>, FileError> {
    let mut files = Vec::new();
    let preferences_file = paths.inside("/etc/apt/preferences");
    if preferences_file.is_file() {
        files.push(("10-preferences".to_owned(), preferences_file));
    }
    for path in list_files(&paths.inside("/etc/apt/preferences.d"))? {
        let extension = path.extension();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else {
            continue;
        };
        if extension.is_none_or(|extension| extension == "pref") {
            files.push((format!("50-{name}"), path.clone()));
        }
    }
    Ok(files)
}

/// The files of a folder, sorted by name; empty if the folder does not exist.
fn list_files(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::while_doing("read", folder)(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(FileError::while_doing("read", folder))?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn is_source_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "list" || extension == "sources")
}

/// Decides about a suite from its name in the source, from all its names, and from whether apt has an index of it, so that
/// all its names are known.
pub type SuiteFilter<'a> = dyn Fn(SourceSuite<'_>, &BTreeSet<String>, bool) -> bool + 'a;

/// The sources with only the allowed suites.
pub fn filter_sources(
    sources: &[SourceFile],
    targets: &[IndexTarget],
    lets: &SuiteFilter<'_>,
) -> Vec<SourceFile> {
    let keep = |is_own: bool, uris: &[&str], suite: &str| {
        uris.iter().all(|uri| {
            let own = targets.iter().filter(|target| target.belongs_to(uri, suite));
            let mut names: BTreeSet<_> =
                own.flat_map(IndexTarget::suite_names).map(str::to_owned).collect();
            let is_known = !names.is_empty();
            names.insert(suite.to_owned());
            lets(SourceSuite { uri, suite, is_own }, &names, is_known)
        })
    };
    let filtered = sources.iter().map(|source| {
        let keep = |uris: &[&str], suite: &str| keep(source.is_own, uris, suite);
        let text = if source.is_list() {
            filter_lines(&source.text, &keep)
        } else {
            filter_stanzas(&source.text, &keep)
        };
        SourceFile { name: source.name.clone(), text, is_own: source.is_own }
    });
    let left = filtered.filter(|source| !source.text.trim().is_empty());
    left.collect()
}

/// The sources as files of one line or one stanza each.
pub fn split_sources(sources: &[SourceFile]) -> Vec<SourceFile> {
    let is_source = |_: SourceSuite<'_>, _: &BTreeSet<String>, _: bool| true;
    let mut parts = Vec::new();
    for source in filter_sources(sources, &[], &is_source) {
        let separator = if source.is_list() { "\n" } else { "\n\n" };
        let texts = source.text.split(separator).filter(|text| !text.trim().is_empty());
        parts.extend(texts.enumerate().map(|(number, text)| SourceFile {
            name: format!("{number}-{}", source.name),
            text: format!("{}\n", text.trim_end()),
            is_own: source.is_own,
        }));
    }
    parts
}

type SuitePredicate<'a> = dyn Fn(&[&str], &str) -> bool + 'a;

/// Filters lines of the form `deb [OPTIONS] URI SUITE COMPONENT...`.
fn filter_lines(text: &str, keep: &SuitePredicate<'_>) -> String {
    let lines = text.lines().filter(|line| {
        parse_list_line(line).is_some_and(|(uri, suite)| keep(&[uri.as_str()], suite))
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The URI and the suite of such a line.
fn parse_list_line(line: &str) -> Option<(String, &str)> {
    let line = line.split('#').next()?.trim();
    let (kind, mut rest) = line.split_once([' ', '\t'])?;
    if kind != "deb" && kind != "deb-src" {
        return None;
    }
    rest = rest.trim_start();
    if rest.starts_with('[') {
        rest = rest.split_once(']')?.1.trim_start();
    }
    // The name of a disk is in brackets and may contain blanks.
    let (uri, rest) = if let Some(disk) = rest.strip_prefix("cdrom:[") {
        let (name, rest) = disk.split_once(']')?;
        let (end, rest) = rest.split_once([' ', '\t'])?;
        (format!("cdrom:[{name}]{end}"), rest)
    } else {
        let (uri, rest) = rest.split_once([' ', '\t'])?;
        (uri.to_owned(), rest)
    };
    let suite = rest.split_whitespace().next()?;
    Some((uri, suite))
}

/// Filters DEB822 stanzas.
fn filter_stanzas(text: &str, keep: &SuitePredicate<'_>) -> String {
    let mut stanzas = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        if !line.trim().is_empty() {
            lines.push(line);
            continue;
        }
        stanzas.extend(filter_stanza(&lines, keep));
        lines.clear();
    }
    stanzas.join("\n")
}

/// A stanza with only the matching suites; `None` if none matches.
fn filter_stanza(lines: &[&str], keep: &SuitePredicate<'_>) -> Option<String> {
    let mut field = String::new();
    let (mut uris, mut suites, mut others) = (Vec::new(), Vec::new(), String::new());
    for line in lines.iter().copied() {
        if line.starts_with('#') {
            continue;
        }
        let value = if line.starts_with([' ', '\t']) {
            line
        } else {
            let (name, value) = line.split_once(':')?;
            // apt accepts a blank before the colon.
            field = name.trim().to_ascii_lowercase();
            value
        };
        match field.as_str() {
            "suites" => {
                suites.extend(value.split_whitespace());
                continue;
            }
            "uris" => uris.extend(value.split_whitespace()),
            _ => {}
        }
        others.push_str(line);
        others.push('\n');
    }
    // Without a URI, nothing would be checked.
    suites.retain(|suite| !uris.is_empty() && keep(&uris, suite));
    (!suites.is_empty()).then(|| format!("{others}Suites: {}\n", suites.join(" ")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_sources_of_the_policy_are_not_the_systems_own() {
        let own = SourceFile::new("a.list", "deb http://y stable main\n");
        let policy =
            SourceFile { is_own: false, ..SourceFile::new("b.list", "deb http://z a b\n") };
        let suites = own_suites(&[own, policy]);
        assert_eq!(suites, [("http://y".to_owned(), "stable".to_owned())]);
    }

    #[test]
    fn sources_are_split_into_lines_and_stanzas() {
        let stanzas = "Types: deb\nURIs: https://me:secret@x/a file:/b\nSuites: stable updates\nSigned-By:\n .\n key\n\n\n\
                       # A comment.\n\nTypes: deb\nURIs: http://y\nSuites: other\n";
        let lines = "# A comment.\ndeb http://z stable main\n\ndeb-src http://z stable main # x\n";
        let files = [SourceFile::new("a.sources", stanzas), SourceFile::new("b.list", lines)];
        let parts = split_sources(&files);
        let described: Vec<_> =
            parts.iter().map(|part| (part.name.as_str(), part.describe())).collect();
        let first = "https://x/a stable, file:/b stable, https://x/a updates, file:/b updates";
        let expected = [
            ("0-a.sources", first),
            ("1-a.sources", "http://y other"),
            ("0-b.list", "http://z stable"),
            ("1-b.list", "http://z stable"),
        ];
        assert_eq!(described, expected.map(|(name, text)| (name, text.to_owned())));
        assert!(parts[0].text.contains("Signed-By:\n .\n key\n"), "{}", parts[0].text);
    }
    use crate::modules::packages::index_targets;

    impl SourceFile {
        pub fn new(name: &str, text: &str) -> Self {
            Self { name: name.to_owned(), text: text.to_owned(), is_own: true }
        }

        pub fn text(&self) -> &str {
            &self.text
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn extra_sources_are_written_next_to_copies_of_the_systems() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let old = collect_sources(&paths, &["Types: deb\n".to_owned()]).unwrap();
        write_sources(&paths, SourceScope::Allowed, &old).unwrap();
        let apt = root.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&apt).unwrap();
        fs::write(root.path().join("etc/apt/sources.list"), "deb x").unwrap();
        fs::write(apt.join("a.sources"), "Types: deb").unwrap();
        fs::write(apt.join("a.sources.bak"), "old").unwrap();

        let stanzas = ["# ours\n\nTypes: deb\nURIs: a\n", "Types: deb\nURIs: b"].map(str::to_owned);
        let new = collect_sources(&paths, &stanzas).unwrap();
        write_sources(&paths, SourceScope::Allowed, &new).unwrap();

        let folder = paths.inside(ALLOWED_FOLDER);
        assert_eq!(names(&folder), ["a.sources", "evenkeel-update.sources", "sources.list"]);
        assert_eq!(
            fs::read_to_string(folder.join("evenkeel-update.sources")).unwrap(),
            "Types: deb\nURIs: a\n\nTypes: deb\nURIs: b\n"
        );
        for entry in fs::read_dir(&folder).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "for its owner only");
        }

        remove_folders(&paths).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn pins_precede_copies_of_the_systems_preferences() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        assert!(!has_preferences(&paths).unwrap());
        let parts = root.path().join("etc/apt/preferences.d");
        fs::create_dir_all(&parts).unwrap();
        fs::write(root.path().join("etc/apt/preferences"), "whole").unwrap();
        for name in ["a", "b.pref", "c.bak"] {
            fs::write(parts.join(name), name).unwrap();
        }
        assert!(has_preferences(&paths).unwrap());
        write_preferences(&paths, "ours").unwrap();
        let folder = paths.inside(PREFERENCES_FOLDER);
        assert_eq!(names(&folder), ["00-evenkeel", "10-preferences", "50-a", "50-b.pref"]);
    }

    #[test]
    fn a_view_becomes_apt_options() {
        assert_eq!(AptView::default().options(), [""; 0]);
        let view =
            AptView::from_sources(SourceScope::Allowed).with_preferences(PreferenceScope::Spec);
        assert_eq!(
            view.options().join(" "),
            "-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/var/lib/evenkeel-agent/sources \
             -o APT::Get::List-Cleanup=0 -o Dir::Cache::pkgcache=/var/lib/evenkeel-agent/apt-caches/allowed.bin \
             -o Dir::Cache::srcpkgcache= -o Dir::Etc::Preferences=/dev/null \
             -o Dir::Etc::PreferencesParts=/var/lib/evenkeel-agent/preferences"
        );
    }

    fn filter_text(name: &str, text: &str, allowed: &[&str], also_unknown: bool) -> String {
        let targets = index_targets::parse_targets(
            "http://deb.example/debian/\tstable-security\toldstable-security\tbookworm-security\tDebian\t12\n\
             http://deb.example/debian/\tstable\toldstable\tbookworm\tDebian\t12\n",
        )
        .unwrap();
        let source = SourceFile::new(name, text);
        let lets = |_: SourceSuite<'_>, names: &BTreeSet<String>, is_known: bool| {
            allowed.iter().any(|&suite| names.contains(suite)) || (also_unknown && !is_known)
        };
        let left = filter_sources(&[source], &targets, &lets);
        left.into_iter().map(|source| source.text).collect()
    }

    #[test]
    fn only_allowed_suites_remain_in_stanzas() {
        let text = "\
# Debian
Types: deb
URIs: http://deb.example/debian
Suites: stable
 stable-security other
Components: main
Signed-By:
 -----BEGIN
 .
 x

Types: deb
URIs: http://other.example/
Suites: any
";
        assert_eq!(
            filter_text("a.sources", text, &["bookworm-security"], false),
            "Types: deb\nURIs: http://deb.example/debian\nComponents: main\nSigned-By:\n -----BEGIN\n .\n x\nSuites: stable-security\n"
        );
        // A suite without an index may turn out to be an allowed one.
        let left = filter_text("a.sources", text, &["bookworm-security"], true);
        assert!(left.contains("Suites: stable-security other\n"), "{left}");
        assert!(left.contains("\n\nTypes: deb\nURIs: http://other.example/\nSuites: any\n"));
        assert_eq!(filter_text("a.sources", text, &["nowhere"], false), "");
        assert_eq!(filter_text("a.sources", "Suites: stable\n", &["stable"], false), "");
        let blank = "URIs: http://deb.example/debian\nSuites: stable\nSuites : other\n";
        assert_eq!(
            filter_text("a.sources", blank, &["stable"], false),
            "URIs: http://deb.example/debian\nSuites: stable\n"
        );
    }

    #[test]
    fn only_allowed_suites_remain_in_lists() {
        let text = "\
# deb http://deb.example/debian stable main
deb [arch=amd64 signed-by=/x] http://deb.example/debian/ stable main # comment
deb\thttp://deb.example/debian   stable-security main
deb-src http://deb.example/debian stable-security main
deb cdrom:[Debian GNU/Linux 12]/ stable main
nonsense
";
        assert_eq!(
            filter_text("sources.list", text, &["oldstable"], false),
            "deb [arch=amd64 signed-by=/x] http://deb.example/debian/ stable main # comment\n"
        );
        assert_eq!(
            filter_text("sources.list", text, &["bookworm-security"], false),
            "deb\thttp://deb.example/debian   stable-security main\ndeb-src http://deb.example/debian stable-security main\n"
        );
        assert_eq!(filter_text("sources.list", text, &["stable"], false).lines().count(), 2);
    }
}
