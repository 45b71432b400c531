//! apt's package indexes, and the names of the suites that they belong to.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::parse::{replace_control_characters, split_records};
use crate::owner::SourceSuite;

/// Format for `apt-get indextargets --format` that [`parse_targets`] reads.
pub const FORMAT: &str = "$(REPO_URI)\t$(RELEASE)\t$(SUITE)\t$(CODENAME)\t$(LABEL)\t$(VERSION)";

/// Filter of the same command that selects indexes of packages.
pub const FILTER: &str = "Created-By: Packages";

/// Replaces an origin that was found, so that the origins around it do not become one. An origin has no control characters.
const FOUND_ORIGIN: &str = ", \0, ";

/// An index of packages. Fields that its Release file does not contain are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexTarget {
    /// URI of the repository.
    pub uri: String,
    /// Name of the suite in the source.
    pub release: String,
    /// Name of the suite in the Release file, for example `oldstable-security`.
    pub suite: String,
    /// Codename in the Release file, for example `bookworm-security`.
    pub codename: String,
    pub(super) label: String,
    pub(super) version: String,
}

impl IndexTarget {
    /// Whether the index belongs to a suite of a source.
    pub fn belongs_to(&self, uri: &str, release: &str) -> bool {
        self.release == release && normalize_uri(&self.uri) == normalize_uri(uri)
    }

    /// Whether the source names a suite of a release.
    pub fn is_named_as(&self, release: &str) -> bool {
        is_suite_of(&self.release, release)
    }

    /// Whether the Release file claims to belong to a release.
    pub fn claims_release(&self, release: &str) -> bool {
        is_suite_of(&self.codename, release)
    }

    /// The suite as the machine's source names it.
    fn source_suite(&self) -> SourceSuite<'_> {
        SourceSuite { uri: &self.uri, suite: &self.release, is_own: true }
    }

    /// The names of the suite: in the source and in the Release file. A folder is not a name.
    pub fn suite_names(&self) -> impl Iterator<Item = &str> {
        let names = [&self.release, &self.suite, &self.codename];
        let names = names.into_iter().map(String::as_str);
        names.filter(|name| !name.is_empty() && !name.ends_with('/'))
    }

    /// The label of the repository, as its Release file claims it.
    pub fn label(&self) -> Option<&str> {
        Some(self.label.as_str()).filter(|label| !label.is_empty())
    }

    /// The origin that apt prints for versions of this index.
    fn origin(&self) -> String {
        let colon = if self.label.is_empty() { "" } else { ":" };
        let slash = if self.version.is_empty() { "" } else { "/" };
        format!("{}{colon}{}{slash}{}", self.label, self.version, self.suite)
    }
}

/// Whether a suite belongs to a release: `bookworm-security` and `buster/updates` do.
fn is_suite_of(suite: &str, release: &str) -> bool {
    let rest = suite.strip_prefix(release).filter(|_| !release.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/']))
}

/// A normalized URI, for comparison.
pub(super) fn normalize_uri(uri: &str) -> String {
    let uri = uri.trim_end_matches('/');
    match uri.strip_prefix("file:///") {
        Some(path) => format!("file:/{path}"),
        None => uri.to_owned(),
    }
}

/// Parses apt's list of indexes; `Err` is the first invalid record.
pub fn parse_targets(text: &str) -> Result<Vec<IndexTarget>, &str> {
    split_records(text)
        .map(|record| {
            // A repository may write a tab into its label, but not into the fields of the source.
            let fields: Vec<_> = record.splitn(5, '\t').collect();
            let [uri, release, suite, codename, rest] = fields[..] else {
                return Err(record);
            };
            let (label, version) = rest.rsplit_once('\t').ok_or(record)?;
            let mut names = FORMAT.split('\t');
            let [uri, release, suite, codename, label, version] =
                [uri, release, suite, codename, label, version]
                    .map(|field| field_value(names.next(), field));
            Ok(IndexTarget { uri, release, suite, codename, label, version })
        })
        .collect()
}

/// The value of a field. apt prints the name of the field if it has no value.
fn field_value(name: Option<&str>, field: &str) -> String {
    if name == Some(field) { String::new() } else { replace_control_characters(field) }
}

/// The suites and codenames of a version's origins.
pub fn origin_suites(origins: &[String], targets: &[IndexTarget]) -> BTreeSet<String> {
    let (own, unknown) = match_targets(origins, targets);
    let names = own.into_iter().flat_map(IndexTarget::suite_names);
    let unknown = unknown.iter().filter_map(|origin| parse_suite(origin));
    names.chain(unknown).map(str::to_owned).collect()
}

/// The labels of the repositories of a version's origins, as their Release files claim them. An origin that belongs to no
/// known index has none.
pub fn origin_labels(origins: &[String], targets: &[IndexTarget]) -> BTreeSet<String> {
    let (own, _) = match_targets(origins, targets);
    own.into_iter().filter_map(IndexTarget::label).map(str::to_owned).collect()
}

/// Whether the owner allows a source of a version. Only the names in the sources count, and only if all origins are known: an
/// unknown label may contain the origin of an allowed source.
pub fn allows_origins(origins: &[String], targets: &[IndexTarget], suites: &[String]) -> bool {
    let (own, unknown) = match_targets(origins, targets);
    let is_allowed = |target: &&IndexTarget| target.source_suite().is_allowed(suites);
    let is_file = |origin: &String| matches!(origin.as_str(), "local-deb" | "now");
    suites.is_empty() || (own.iter().any(is_allowed) && unknown.iter().all(is_file))
}

/// The indexes of a version with a file at this URI, if that is known. Several repositories may have the same origin; the
/// address of the file then decides.
pub fn find_sources<'a>(
    origins: &[String],
    file_uri: &str,
    targets: &'a [IndexTarget],
) -> Vec<&'a IndexTarget> {
    let (mut own, _) = match_targets(origins, targets);
    let file_uri = normalize_uri(file_uri);
    let has_file = |target: &IndexTarget| {
        let rest = file_uri.strip_prefix(&normalize_uri(&target.uri));
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    if targets.iter().any(has_file) {
        own.retain(|target| has_file(target));
    }
    own
}

/// The suite of a version: its codename if that is known, because other names move on to later releases.
pub fn origin_suite(origins: &[String], targets: &[IndexTarget]) -> String {
    let codename = origin_codenames(origins, targets).pop_first();
    let suite_name = || origin_suites(origins, targets).pop_first();
    codename.map_or_else(|| suite_name().unwrap_or_default(), str::to_owned)
}

/// The known codenames of a version's origins.
pub fn origin_codenames<'a>(origins: &[String], targets: &'a [IndexTarget]) -> BTreeSet<&'a str> {
    let (own, _) = match_targets(origins, targets);
    let names = own.into_iter().map(|target| target.codename.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// The indexes of a version's origins, and the origins that belong to none. apt separates origins with a comma, and a label
/// may contain commas as well, even the origin of another index. So the longest origins are searched first, and no part of
/// the text belongs to two of them.
fn match_targets<'a>(
    origins: &[String],
    targets: &'a [IndexTarget],
) -> (Vec<&'a IndexTarget>, Vec<String>) {
    let mut unknown = format!(", {}, ", origins.join(", "));
    let distinct: BTreeSet<String> = targets.iter().map(IndexTarget::origin).collect();
    let mut found: Vec<&String> = distinct.iter().filter(|origin| !origin.is_empty()).collect();
    found.sort_by_key(|origin| Reverse(origin.len()));
    found.retain(|origin| {
        let separated = format!(", {origin}, ");
        let is_found = unknown.contains(&separated);
        // Two equal origins share a separator, so the second one is found in another pass.
        while unknown.contains(&separated) {
            unknown = unknown.replace(&separated, FOUND_ORIGIN);
        }
        is_found
    });
    let own = targets.iter().filter(|target| found.contains(&&target.origin()));
    let unknown = unknown.split(", ").filter(|origin| !origin.is_empty() && *origin != "\0");
    (own.collect(), unknown.map(str::to_owned).collect())
}

/// The suite of `LABEL:VERSION/SUITE`, where the first two parts are optional.
fn parse_suite(origin: &str) -> Option<&str> {
    let (_, suite) =
        origin.rsplit_once('/').or_else(|| origin.rsplit_once(':')).unwrap_or(("", origin));
    let is_suite = !suite.is_empty() && !matches!(suite, "local-deb" | "now");
    is_suite.then_some(suite)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Debian 12, and with repositories whose Release files contain little.
    const TARGETS: &str = "\
http://deb.debian.org/debian/\tbookworm\toldstable\tbookworm\tDebian\t12.15
http://deb.debian.org/debian-security/\tbookworm-security\toldstable-security\tbookworm-security\tDebian-Security\t12
file:/srv/repo/\tstable\tstable\tstable\t$(LABEL)\t9
file:/srv/extra/\tentryname\textra-suite\textra-code\tExtra\t$(VERSION)
https://flat.example/\t./\t$(SUITE)\t$(CODENAME)\tFlat\t$(VERSION)
";

    fn names(origin: &str) -> Vec<String> {
        let targets = parse_targets(TARGETS).unwrap();
        origin_suites(&[origin.to_owned()], &targets).into_iter().collect()
    }

    #[test]
    fn a_version_matches_every_name_of_its_suite() {
        assert_eq!(names("Debian:12.15/oldstable"), ["bookworm", "oldstable"]);
        assert_eq!(
            names("Debian-Security:12/oldstable-security"),
            ["bookworm-security", "oldstable-security"]
        );
        assert_eq!(names("9/stable"), ["stable"]);
        assert_eq!(names("Extra:extra-suite"), ["entryname", "extra-code", "extra-suite"]);
    }

    #[test]
    fn a_version_of_an_unknown_index_matches_the_name_that_apt_prints() {
        assert_eq!(names("Debian:13.1/stable"), ["stable"]);
        assert_eq!(names("Other:sid"), ["sid"]);
        assert_eq!(names("local-deb"), [""; 0]);
    }

    #[test]
    fn a_version_has_the_labels_of_its_repositories() {
        let targets = parse_targets(TARGETS).unwrap();
        let labels = |origins: &[&str]| {
            let origins: Vec<_> = origins.iter().map(|origin| (*origin).to_owned()).collect();
            origin_labels(&origins, &targets).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(
            labels(&["Debian:12.15/oldstable", "Debian-Security:12/oldstable-security"]),
            ["Debian", "Debian-Security"]
        );
        assert_eq!(labels(&["9/stable"]), [""; 0], "no label");
        assert_eq!(labels(&["Debian-Security:13/unknown"]), [""; 0], "no such index");
    }

    #[test]
    fn a_label_may_contain_commas_and_tabs() {
        let label = "Acme Tools, Inc.\t(5.6, 7.0) *****";
        let text = format!("https://acme.example/\tacme\tstable\tacme-code\t{label}\t$(VERSION)\n");
        let targets = parse_targets(&format!("{TARGETS}{text}")).unwrap();
        let origin = format!("{label}:stable, Debian:12.15/oldstable, Other:sid");
        let origins: Vec<_> = origin.split(", ").map(str::to_owned).collect();
        assert_eq!(
            origin_suites(&origins, &targets).into_iter().collect::<Vec<_>>(),
            ["acme", "acme-code", "bookworm", "oldstable", "sid", "stable"]
        );
    }

    #[test]
    fn a_label_that_contains_the_origin_of_another_index_does_not_match_it() {
        let label = "x, Debian:12.15/oldstable, y";
        let text =
            format!("https://evil.example/\tevil\tevil-suite\tevil-code\t{label}\t$(VERSION)\n");
        let targets = parse_targets(&format!("{TARGETS}{text}")).unwrap();
        let origins = |origin: &str| origin.split(", ").map(str::to_owned).collect::<Vec<_>>();
        let forged = origins(&format!("{label}:evil-suite"));
        assert_eq!(origin_codenames(&forged, &targets), ["evil-code"].into());
        let allowed = ["bookworm".to_owned()];
        assert!(!allows_origins(&forged, &targets, &allowed));
        assert!(!allows_origins(&forged, &targets[..5], &allowed), "an unknown index");
        let twice = origins("Debian:12.15/oldstable, Debian:12.15/oldstable, now");
        assert!(allows_origins(&twice, &targets, &allowed));
        let both = origins(&format!("Debian:12.15/oldstable, {label}:evil-suite"));
        assert_eq!(origin_codenames(&both, &targets), ["bookworm", "evil-code"].into());
    }

    /// apt prints a field of several lines as it is.
    #[test]
    fn line_breaks_of_a_repository_forge_no_index() {
        let text = "https://evil.example/\tevil\tsuite\n two\tcode\n \u{1b}[2J\tEvil\t12\n \
                    http://deb.debian.org/debian/\tbookworm\tsuite\tcode\tEvil\t13\n";
        let targets = parse_targets(&format!("{text}{TARGETS}")).unwrap();
        assert_eq!(targets.len(), 6);
        assert_eq!((targets[0].release.as_str(), targets[0].version.as_str()), ("evil", "13"));
        assert_eq!(targets[0].suite, "suite\u{fffd} two");
        assert_eq!(targets[0].codename, "code\u{fffd} \u{fffd}[2J");
        assert!(targets[0].belongs_to("https://evil.example", "evil"));
    }

    #[test]
    fn a_codename_comes_only_from_the_release_file() {
        let targets = parse_targets(TARGETS).unwrap();
        let origins = |origin: &str| [origin.to_owned()];
        let codenames = origin_codenames(&origins("Debian:12.15/oldstable"), &targets);
        assert_eq!(codenames, ["bookworm"].into());
        assert!(origin_codenames(&origins("Flat:"), &targets).is_empty());
        assert!(origin_codenames(&origins("Debian:13.1/stable"), &targets).is_empty());
    }

    #[test]
    fn the_address_of_a_file_decides_between_sources_with_one_origin() {
        let copy = "https://evil.example/\tevil\toldstable\tbookworm\tDebian\t12.15\n";
        let targets = parse_targets(&format!("{TARGETS}{copy}")).unwrap();
        let origins = ["Debian:12.15/oldstable".to_owned()];
        let sources = |uri: &str| {
            let found = find_sources(&origins, uri, &targets).into_iter();
            found.map(|target| target.release.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(sources("https://evil.example/pool/x.deb"), ["evil"]);
        assert_eq!(sources("http://deb.debian.org/debian/pool/x.deb"), ["bookworm"]);
        assert_eq!(sources("http://deb.debian.org/debian-security/pool/x.deb"), [""; 0]);
        assert_eq!(sources(""), ["bookworm", "evil"]);
        assert_eq!(sources("http://elsewhere.example/x.deb"), ["bookworm", "evil"]);
    }

    #[test]
    fn the_owners_limits_compare_only_the_name_in_the_source() {
        let targets = parse_targets(TARGETS).unwrap();
        let allows = |origin: &str, suite: &str| {
            allows_origins(&[origin.to_owned()], &targets, &[suite.to_owned()])
        };
        assert!(allows("Extra:extra-suite", "entryname"));
        assert!(allows("Extra:extra-suite", "file:/srv/extra entryname"));
        for suite in ["extra-suite", "extra-code", "file:/srv/repo entryname"] {
            assert!(!allows("Extra:extra-suite", suite), "{suite}");
        }
        assert!(!allows("Other:stable", "stable"), "an unknown index");
        assert!(allows_origins(&[], &targets, &[]));
    }

    #[test]
    fn an_index_belongs_to_the_suite_of_its_source() {
        let targets = parse_targets(TARGETS).unwrap();
        assert!(targets[0].belongs_to("http://deb.debian.org/debian", "bookworm"));
        assert!(targets[2].belongs_to("file:///srv/repo", "stable"));
        assert!(!targets[2].belongs_to("file:///srv/repo", "entryname"));
        assert!(!targets[0].belongs_to("http://deb.debian.org/debian-security", "bookworm"));
    }

    #[test]
    fn an_invalid_line_is_an_error() {
        assert_eq!(parse_targets("file:/srv\tstable"), Err("file:/srv\tstable"));
    }
}
