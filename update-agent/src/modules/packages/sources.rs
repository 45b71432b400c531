//! What apt is shown beside the system's own: sources that a wish brings along, only those suites that may be taken, and
//! preferences that keep versions away. All are copies in folders of the agent, used only for one wish.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::targets::Target;
use crate::durable::{self, FileError};
use crate::place::Place;

/// The folders as seen from inside the managed root: the sources that may be taken, all the sources, preferences, and
/// apt's own knowledge of the first two, which must not take the place of that of the system's.
const ALLOWED: &str = "/var/lib/evenkeel-agent/sources";
const WHOLE: &str = "/var/lib/evenkeel-agent/sources-whole";
const PREFERENCES: &str = "/var/lib/evenkeel-agent/preferences";
const CACHES: &str = "/var/lib/evenkeel-agent/apt-caches";

/// Which sources apt is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shown {
    /// The system's own.
    #[default]
    System,
    /// The system's own and those of the wish.
    Whole,
    /// Of those, the suites that may be taken.
    Allowed,
}

/// Which preferences apt is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preferences {
    /// The system's own.
    #[default]
    System,
    /// The system's own, and before them those of the wish.
    Wish,
    /// None.
    Nothing,
}

/// What apt is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Which sources.
    pub sources: Shown,
    /// Which preferences.
    pub preferences: Preferences,
}

impl View {
    /// These sources with the system's preferences.
    pub fn of(sources: Shown) -> Self {
        Self {
            sources,
            preferences: Preferences::System,
        }
    }

    /// The same sources with other preferences.
    #[must_use]
    pub fn with(self, preferences: Preferences) -> Self {
        Self {
            preferences,
            ..self
        }
    }

    /// What makes apt see this and nothing else.
    pub fn options(self) -> Vec<String> {
        let mut settings = Vec::new();
        let folder = match self.sources {
            Shown::System => None,
            Shown::Whole => Some((WHOLE, "whole")),
            Shown::Allowed => Some((ALLOWED, "allowed")),
        };
        if let Some((folder, cache)) = folder {
            settings.push("Dir::Etc::SourceList=/dev/null".to_owned());
            settings.push(format!("Dir::Etc::SourceParts={folder}"));
            // Lists of sources that are not shown are not rubbish.
            settings.push("APT::Get::List-Cleanup=0".to_owned());
            settings.push(format!("Dir::Cache::pkgcache={CACHES}/{cache}.bin"));
            settings.push("Dir::Cache::srcpkgcache=".to_owned());
        }
        let folder = match self.preferences {
            Preferences::System => None,
            Preferences::Wish => Some(PREFERENCES),
            Preferences::Nothing => Some("/dev/null"),
        };
        if let Some(folder) = folder {
            settings.push("Dir::Etc::Preferences=/dev/null".to_owned());
            settings.push(format!("Dir::Etc::PreferencesParts={folder}"));
        }
        let options = settings
            .into_iter()
            .flat_map(|setting| ["-o".to_owned(), setting]);
        options.collect()
    }
}

/// A file of sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: String,
    text: String,
}

/// The system's sources, and those of a wish.
pub fn all(place: &Place, stanzas: &[String]) -> Result<Vec<Source>, FileError> {
    let mut sources = Vec::new();
    for file in of_system(place)? {
        let name = file.file_name().unwrap_or(OsStr::new("sources.list"));
        let content = fs::read(&file).map_err(FileError::while_doing("read", &file))?;
        sources.push(Source {
            name: name.to_string_lossy().into_owned(),
            text: String::from_utf8_lossy(&content).into_owned(),
        });
    }
    if !stanzas.is_empty() {
        let stanzas: Vec<_> = stanzas.iter().map(|text| text.trim_end()).collect();
        sources.push(Source {
            name: "evenkeel-wish.sources".to_owned(),
            text: stanzas.join("\n\n") + "\n",
        });
    }
    Ok(sources)
}

/// Makes the folder of what is shown anew.
pub fn write(place: &Place, shown: Shown, sources: &[Source]) -> Result<(), FileError> {
    let folder = match shown {
        Shown::System => return Ok(()),
        Shown::Whole => WHOLE,
        Shown::Allowed => ALLOWED,
    };
    let folder = place.inside(folder);
    remove(&folder)?;
    // Sources may hold passwords. apt reads them as root.
    durable::make_folder(&folder, 0o700)?;
    durable::make_folder(&place.inside(CACHES), 0o700)?;
    for source in sources {
        durable::replace(&folder.join(&source.name), source.text.as_bytes(), 0o600)?;
    }
    Ok(())
}

/// Makes the folder of preferences anew: copies of the system's own behind these, because apt goes by the first that fits.
pub fn write_preferences(place: &Place, text: &str) -> Result<(), FileError> {
    let folder = place.inside(PREFERENCES);
    remove(&folder)?;
    durable::make_folder(&folder, 0o700)?;
    durable::replace(&folder.join("00-evenkeel"), text.as_bytes(), 0o600)?;
    for (name, file) in preferences_of_system(place)? {
        let content = fs::read(&file).map_err(FileError::while_doing("read", &file))?;
        durable::replace(&folder.join(name), &content, 0o600)?;
    }
    Ok(())
}

/// Whether the system has preferences of its own.
pub fn has_preferences(place: &Place) -> Result<bool, FileError> {
    Ok(!preferences_of_system(place)?.is_empty())
}

/// Removes the folders.
pub fn clean(place: &Place) -> Result<(), FileError> {
    [ALLOWED, WHOLE, PREFERENCES, CACHES]
        .iter()
        .try_for_each(|folder| remove(&place.inside(folder)))
}

fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::while_doing("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn of_system(place: &Place) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    let list = place.inside("/etc/apt/sources.list");
    if list.is_file() {
        files.push(list);
    }
    let parts = files_of(&place.inside("/etc/apt/sources.list.d"))?;
    files.extend(parts.into_iter().filter(|path| is_source(path)));
    Ok(files)
}

/// The system's preferences with the names that keep them in the order in which apt reads them.
fn preferences_of_system(place: &Place) -> Result<Vec<(String, PathBuf)>, FileError> {
    let mut files = Vec::new();
    let whole = place.inside("/etc/apt/preferences");
    if whole.is_file() {
        files.push(("10-preferences".to_owned(), whole));
    }
    for path in files_of(&place.inside("/etc/apt/preferences.d"))? {
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

/// The files of a folder that may be missing, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::while_doing("read", folder)(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(FileError::while_doing("read", folder))?
            .path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn is_source(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "list" || extension == "sources")
}

/// Decides about a suite by its names, and by whether apt has an index of it, so that these are all its names.
pub type Lets<'a> = dyn Fn(&BTreeSet<String>, bool) -> bool + 'a;

/// The sources with only those suites that are let through.
pub fn only(sources: &[Source], targets: &[Target], lets: &Lets<'_>) -> Vec<Source> {
    let keep = |uris: &[&str], suite: &str| {
        uris.iter().all(|uri| {
            let own = targets.iter().filter(|target| target.is_of(uri, suite));
            let mut names: BTreeSet<_> = own.flat_map(Target::names).map(str::to_owned).collect();
            let is_known = !names.is_empty();
            names.insert(suite.to_owned());
            lets(&names, is_known)
        })
    };
    let filtered = sources.iter().map(|source| {
        let is_list = Path::new(&source.name)
            .extension()
            .is_some_and(|extension| extension == "list");
        let text = if is_list {
            only_lines(&source.text, &keep)
        } else {
            only_stanzas(&source.text, &keep)
        };
        Source {
            name: source.name.clone(),
            text,
        }
    });
    let left = filtered.filter(|source| !source.text.trim().is_empty());
    left.collect()
}

type Keep<'a> = dyn Fn(&[&str], &str) -> bool + 'a;

/// Lines of the form `deb [OPTIONS] URI SUITE COMPONENT...`.
fn only_lines(text: &str, keep: &Keep<'_>) -> String {
    let lines = text.lines().filter(|line| {
        uri_and_suite(line).is_some_and(|(uri, suite)| keep(&[uri.as_str()], suite))
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The URI and the suite of such a line.
fn uri_and_suite(line: &str) -> Option<(String, &str)> {
    let line = line.split('#').next()?.trim();
    let (kind, mut rest) = line.split_once([' ', '\t'])?;
    if kind != "deb" && kind != "deb-src" {
        return None;
    }
    rest = rest.trim_start();
    if rest.starts_with('[') {
        rest = rest.split_once(']')?.1.trim_start();
    }
    // The name of a disk stands in brackets and may have blanks.
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

/// Stanzas of deb822.
fn only_stanzas(text: &str, keep: &Keep<'_>) -> String {
    let mut stanzas = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        if !line.trim().is_empty() {
            lines.push(line);
            continue;
        }
        stanzas.extend(only_suites(&lines, keep));
        lines.clear();
    }
    stanzas.join("\n")
}

/// A stanza with the suites that are kept; `None` if none is.
fn only_suites(lines: &[&str], keep: &Keep<'_>) -> Option<String> {
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
            field = name.to_ascii_lowercase();
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
    suites.retain(|suite| keep(&uris, suite));
    (!suites.is_empty()).then(|| format!("{others}Suites: {}\n", suites.join(" ")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::modules::packages::targets;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_sources_of_a_wish_lie_beside_copies_of_the_systems_own() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let old = all(&place, &["Types: deb\n".to_owned()]).unwrap();
        write(&place, Shown::Allowed, &old).unwrap();
        let apt = root.path().join("etc/apt/sources.list.d");
        fs::create_dir_all(&apt).unwrap();
        fs::write(root.path().join("etc/apt/sources.list"), "deb x").unwrap();
        fs::write(apt.join("a.sources"), "Types: deb").unwrap();
        fs::write(apt.join("a.sources.bak"), "old").unwrap();

        let stanzas = ["Types: deb\nURIs: a\n", "Types: deb\nURIs: b"].map(str::to_owned);
        let new = all(&place, &stanzas).unwrap();
        write(&place, Shown::Allowed, &new).unwrap();

        let folder = place.inside(ALLOWED);
        assert_eq!(
            names(&folder),
            ["a.sources", "evenkeel-wish.sources", "sources.list"]
        );
        assert_eq!(
            fs::read_to_string(folder.join("evenkeel-wish.sources")).unwrap(),
            "Types: deb\nURIs: a\n\nTypes: deb\nURIs: b\n"
        );
        for entry in fs::read_dir(&folder).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "for its owner only");
        }

        clean(&place).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn preferences_of_a_wish_come_before_copies_of_the_systems_own() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        assert!(!has_preferences(&place).unwrap());
        let parts = root.path().join("etc/apt/preferences.d");
        fs::create_dir_all(&parts).unwrap();
        fs::write(root.path().join("etc/apt/preferences"), "whole").unwrap();
        for name in ["a", "b.pref", "c.bak"] {
            fs::write(parts.join(name), name).unwrap();
        }
        assert!(has_preferences(&place).unwrap());
        write_preferences(&place, "ours").unwrap();
        let folder = place.inside(PREFERENCES);
        assert_eq!(
            names(&folder),
            ["00-evenkeel", "10-preferences", "50-a", "50-b.pref"]
        );
    }

    #[test]
    fn what_is_shown_is_named_to_apt() {
        assert_eq!(View::default().options(), [""; 0]);
        let view = View::of(Shown::Allowed).with(Preferences::Wish);
        assert_eq!(
            view.options().join(" "),
            "-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/var/lib/evenkeel-agent/sources \
             -o APT::Get::List-Cleanup=0 -o Dir::Cache::pkgcache=/var/lib/evenkeel-agent/apt-caches/allowed.bin \
             -o Dir::Cache::srcpkgcache= -o Dir::Etc::Preferences=/dev/null \
             -o Dir::Etc::PreferencesParts=/var/lib/evenkeel-agent/preferences"
        );
    }

    fn filtered(name: &str, text: &str, wanted: &[&str], also_unknown: bool) -> String {
        let targets = targets::read(
            "http://deb.example/debian/\tstable-security\toldstable-security\tbookworm-security\tDebian\t12\n\
             http://deb.example/debian/\tstable\toldstable\tbookworm\tDebian\t12\n",
        )
        .unwrap();
        let source = Source {
            name: name.into(),
            text: text.into(),
        };
        let lets = |names: &BTreeSet<String>, is_known: bool| {
            wanted.iter().any(|&wanted| names.contains(wanted)) || (also_unknown && !is_known)
        };
        let left = only(&[source], &targets, &lets);
        left.into_iter().map(|source| source.text).collect()
    }

    #[test]
    fn only_suites_that_are_let_through_are_left_of_a_file_of_stanzas() {
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
            filtered("a.sources", text, &["bookworm-security"], false),
            "Types: deb\nURIs: http://deb.example/debian\nComponents: main\nSigned-By:\n -----BEGIN\n .\n x\nSuites: stable-security\n"
        );
        // What apt has no index of may turn out to be a suite that is wanted.
        let left = filtered("a.sources", text, &["bookworm-security"], true);
        assert!(left.contains("Suites: stable-security other\n"), "{left}");
        assert!(left.contains("\n\nTypes: deb\nURIs: http://other.example/\nSuites: any\n"));
        assert_eq!(filtered("a.sources", text, &["nowhere"], false), "");
    }

    #[test]
    fn only_suites_that_are_let_through_are_left_of_a_file_of_lines() {
        let text = "\
# deb http://deb.example/debian stable main
deb [arch=amd64 signed-by=/x] http://deb.example/debian/ stable main # comment
deb\thttp://deb.example/debian   stable-security main
deb-src http://deb.example/debian stable-security main
deb cdrom:[Debian GNU/Linux 12]/ stable main
nonsense
";
        assert_eq!(
            filtered("sources.list", text, &["oldstable"], false),
            "deb [arch=amd64 signed-by=/x] http://deb.example/debian/ stable main # comment\n"
        );
        assert_eq!(
            filtered("sources.list", text, &["bookworm-security"], false),
            "deb\thttp://deb.example/debian   stable-security main\ndeb-src http://deb.example/debian stable-security main\n"
        );
        assert_eq!(
            filtered("sources.list", text, &["stable"], false)
                .lines()
                .count(),
            2
        );
    }
}
