//! The indexes of packages that apt has, and the names of the suites that they belong to.

use std::collections::BTreeSet;

/// What [`read`] reads, for `apt-get indextargets --format`.
pub const FORMAT: &str = "$(REPO_URI)\t$(RELEASE)\t$(SUITE)\t$(CODENAME)\t$(LABEL)\t$(VERSION)";

/// The kind of index that tells of packages, for the same command.
pub const KIND: &str = "Created-By: Packages";

/// An index of packages. What its Release file does not say is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Where the repository is.
    pub uri: String,
    /// The suite as the source names it.
    pub release: String,
    /// The suite as the Release file names it, such as `oldstable-security`.
    pub suite: String,
    /// The codename that it gives, such as `bookworm-security`.
    pub codename: String,
    label: String,
    version: String,
}

impl Target {
    /// Whether it belongs to a suite of a source.
    pub fn is_of(&self, uri: &str, release: &str) -> bool {
        self.release == release && plain_uri(&self.uri) == plain_uri(uri)
    }

    /// The names of its suite: the source's, and those of the Release file. A folder is no name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = [&self.release, &self.suite, &self.codename];
        let names = names.into_iter().map(String::as_str);
        names.filter(|name| !name.is_empty() && !name.ends_with('/'))
    }

    /// What apt writes behind a version that it has from here.
    fn origin(&self) -> String {
        let colon = if self.label.is_empty() { "" } else { ":" };
        let slash = if self.version.is_empty() { "" } else { "/" };
        format!("{}{colon}{}{slash}{}", self.label, self.version, self.suite)
    }
}

/// A URI without what makes no difference.
fn plain_uri(uri: &str) -> String {
    let uri = uri.trim_end_matches('/');
    match uri.strip_prefix("file:///") {
        Some(path) => format!("file:/{path}"),
        None => uri.to_owned(),
    }
}

/// Reads what apt prints of its indexes; `Err` is the line that makes no sense.
pub fn read(text: &str) -> Result<Vec<Target>, &str> {
    text.lines()
        .map(|line| {
            let fields: Vec<_> = line.split('\t').map(said).collect();
            let [uri, release, suite, codename, label, version] = fields[..] else {
                return Err(line);
            };
            Ok(Target {
                uri: uri.to_owned(),
                release: release.to_owned(),
                suite: suite.to_owned(),
                codename: codename.to_owned(),
                label: label.to_owned(),
                version: version.to_owned(),
            })
        })
        .collect()
}

/// apt leaves the name of a field where it has no value.
fn said(field: &str) -> &str {
    if field.starts_with("$(") { "" } else { field }
}

/// The suites and codenames that a version comes from, by what apt says of it.
pub fn suites(origins: &[String], targets: &[Target]) -> BTreeSet<String> {
    let mut suites = BTreeSet::new();
    for origin in origins {
        let own = of(origin, targets);
        if own.is_empty() {
            suites.extend(suite(origin).map(str::to_owned));
        }
        for target in own {
            suites.extend(target.names().map(str::to_owned));
        }
    }
    suites
}

/// The codenames that a version comes from, as far as they are known.
pub fn codenames<'a>(origins: &[String], targets: &'a [Target]) -> BTreeSet<&'a str> {
    let targets = origins.iter().flat_map(|origin| of(origin, targets));
    let names = targets.map(|target| target.codename.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// The indexes that apt means.
fn of<'a>(origin: &str, targets: &'a [Target]) -> Vec<&'a Target> {
    let own = targets.iter().filter(|target| target.origin() == origin);
    own.collect()
}

/// The suite of `LABEL:VERSION/SUITE`, where the first two may be missing.
fn suite(origin: &str) -> Option<&str> {
    let (_, suite) = origin
        .rsplit_once('/')
        .or_else(|| origin.rsplit_once(':'))
        .unwrap_or(("", origin));
    let is_suite = !suite.is_empty() && !matches!(suite, "local-deb" | "now");
    is_suite.then_some(suite)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Debian 12, and with repositories that say little.
    const TARGETS: &str = "\
http://deb.debian.org/debian/\tbookworm\toldstable\tbookworm\tDebian\t12.15
http://deb.debian.org/debian-security/\tbookworm-security\toldstable-security\tbookworm-security\tDebian-Security\t12
file:/srv/repo/\tstable\tstable\tstable\t$(LABEL)\t9
file:/srv/extra/\tentryname\textra-suite\textra-code\tExtra\t$(VERSION)
https://flat.example/\t./\t$(SUITE)\t$(CODENAME)\tFlat\t$(VERSION)
";

    fn names(origin: &str) -> Vec<String> {
        let targets = read(TARGETS).unwrap();
        suites(&[origin.to_owned()], &targets).into_iter().collect()
    }

    #[test]
    fn a_version_belongs_to_every_name_of_its_suite() {
        assert_eq!(names("Debian:12.15/oldstable"), ["bookworm", "oldstable"]);
        assert_eq!(
            names("Debian-Security:12/oldstable-security"),
            ["bookworm-security", "oldstable-security"]
        );
        assert_eq!(names("9/stable"), ["stable"]);
        assert_eq!(
            names("Extra:extra-suite"),
            ["entryname", "extra-code", "extra-suite"]
        );
    }

    #[test]
    fn a_version_of_an_index_that_is_not_known_belongs_to_what_apt_says_of_it() {
        assert_eq!(names("Debian:13.1/stable"), ["stable"]);
        assert_eq!(names("Other:sid"), ["sid"]);
        assert_eq!(names("local-deb"), [""; 0]);
    }

    #[test]
    fn a_codename_is_known_only_where_the_release_file_gives_one() {
        let targets = read(TARGETS).unwrap();
        let origins = |origin: &str| [origin.to_owned()];
        let known = codenames(&origins("Debian:12.15/oldstable"), &targets);
        assert_eq!(known, ["bookworm"].into());
        assert!(codenames(&origins("Flat:"), &targets).is_empty());
        assert!(codenames(&origins("Debian:13.1/stable"), &targets).is_empty());
    }

    #[test]
    fn an_index_belongs_to_the_suite_of_its_source() {
        let targets = read(TARGETS).unwrap();
        assert!(targets[0].is_of("http://deb.debian.org/debian", "bookworm"));
        assert!(targets[2].is_of("file:///srv/repo", "stable"));
        assert!(!targets[2].is_of("file:///srv/repo", "entryname"));
        assert!(!targets[0].is_of("http://deb.debian.org/debian-security", "bookworm"));
    }

    #[test]
    fn a_line_that_makes_no_sense_is_not_skipped() {
        assert_eq!(read("file:/srv\tstable"), Err("file:/srv\tstable"));
    }
}
