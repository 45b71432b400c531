//! Parses the output of apt and dpkg. They run with `LC_ALL=C.UTF-8`, so the output is in English.

use std::collections::{BTreeMap, BTreeSet};

use super::Digest;

/// A package in dpkg's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpkgPackage {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    pub version: String,
    /// Selection state: `install`, `hold`, `deinstall`, …
    pub want: String,
    /// Status: `installed`, `half-configured`, `config-files`, …
    pub state: String,
    /// `ok` or `reinstreq`.
    pub flag: String,
    /// Installed size in bytes, as declared by the package; 0 if it declares none.
    pub size: u64,
}

impl DpkgPackage {
    /// Whether any of its files are on the system.
    pub fn is_present(&self) -> bool {
        !matches!(self.state.as_str(), "config-files" | "not-installed")
    }

    /// Whether dpkg requires the package to be unpacked again.
    pub fn needs_reinstall(&self) -> bool {
        self.is_present() && (self.state == "half-installed" || self.flag != "ok")
    }

    /// Whether its removal failed before it was complete. dpkg can only continue the removal.
    pub fn is_half_removed(&self) -> bool {
        self.state == "half-installed"
            && self.flag == "ok"
            && matches!(self.want.as_str(), "deinstall" | "purge")
    }

    /// Whether dpkg has no work left for the package.
    pub fn is_settled(&self) -> bool {
        self.flag == "ok" && (self.state == "installed" || !self.is_present())
    }

    /// Whether all files of one version are in place, or none. Scripts may still have to run.
    pub fn has_complete_files(&self) -> bool {
        !self.is_present()
            || (self.flag == "ok" && !matches!(self.state.as_str(), "half-installed" | "unpacked"))
    }

    /// Name of the package in apt: with the architecture only if it is a foreign one.
    pub fn apt_name(&self, native: &str) -> String {
        apt_name(&self.name, &self.architecture, native)
    }
}

/// Name of a package in apt: with the architecture only if it is a foreign one.
pub fn apt_name(name: &str, architecture: &str, native: &str) -> String {
    if architecture == native || architecture == "all" {
        name.to_owned()
    } else {
        format!("{name}:{architecture}")
    }
}

/// The format for `dpkg-query --show` that [`parse_list`] reads.
pub const LIST_FORMAT: &str = "${Package}\t${Architecture}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\t${db:Status-Eflag}\t${Installed-Size}\n";

/// Parses the list of packages; `Err` is the first invalid line.
pub fn parse_list(text: &str) -> Result<Vec<DpkgPackage>, &str> {
    text.lines()
        .map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            let [name, architecture, version, want, state, flag, size] = fields[..] else {
                return Err(line);
            };
            Ok(DpkgPackage {
                name: name.to_owned(),
                architecture: architecture.to_owned(),
                version: version.to_owned(),
                want: want.to_owned(),
                state: state.to_owned(),
                flag: flag.to_owned(),
                size: parse_kibibytes(size).unwrap_or(0),
            })
        })
        .collect()
}

/// Parses a size in Debian's unit of 1024 bytes.
fn parse_kibibytes(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Parses the output of `apt-mark`: one name of apt a line.
pub fn parse_names(text: &str) -> BTreeSet<String> {
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// A version of a package: name, version, architecture.
pub type ExactVersion = (String, String, String);

/// Parses the stanzas of `apt-cache show`: the installed size of each version in bytes. Versions that declare none are
/// omitted.
pub fn parse_sizes(text: &str) -> BTreeMap<ExactVersion, u64> {
    let stanzas = text.split("\n\n");
    let size = |stanza: &str| {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key == name).then(|| value.trim().to_owned())
            })
        };
        let size = parse_kibibytes(&field("Installed-Size")?)?;
        let exact = (field("Package")?, field("Version")?, field("Architecture")?);
        Some((exact, size))
    };
    stanzas.filter_map(size).collect()
}

/// Parses the configuration files that `dpkg-query` prints for `${Conffiles}`: ` PATH HASH`, optionally with a status.
pub fn parse_conffiles(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(' '));
    // A path may contain blanks; the hash does not.
    let paths = lines.filter_map(|line| {
        let line = ["remove-on-upgrade", "obsolete"]
            .iter()
            .fold(line, |line, status| line.trim_end().trim_end_matches(*status));
        line.trim_end().rsplit_once(' ').map(|(path, _)| path)
    });
    paths.filter(|path| path.starts_with('/')).collect()
}

/// Result of an apt simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Packages that apt would unpack.
    pub installs: Vec<PlannedInstall>,
    /// Packages that apt would remove.
    pub removals: Vec<String>,
    /// Packages whose newer version apt would not install. apt prints this list for people, so invalid lines are ignored.
    pub held_back: Vec<HeldBackUpgrade>,
    /// Packages that apt would downgrade.
    pub downgrades: Vec<String>,
}

impl Simulation {
    pub fn install(&self, package: &str) -> Option<&PlannedInstall> {
        let mut installs = self.installs.iter();
        installs.find(|install| install.package == package)
    }
}

/// A package whose newer version apt would not install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBackUpgrade {
    /// Name in apt.
    pub package: String,
    /// The newer version.
    pub available: String,
    /// Whether its publisher rolls it out in phases.
    pub phased: bool,
}

/// What happens to the packages in a list that apt prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpgradeFate {
    HeldBack,
    Phased,
    Downgraded,
}

/// The headings of apt's lists of packages.
const FATE_HEADINGS: [(&str, UpgradeFate); 6] = [
    ("The following packages have been kept back:", UpgradeFate::HeldBack),
    ("The following upgrades have been deferred due to phasing:", UpgradeFate::Phased),
    ("The following packages will be DOWNGRADED:", UpgradeFate::Downgraded),
    ("Not upgrading:", UpgradeFate::HeldBack),
    ("Not upgrading yet due to phasing:", UpgradeFate::Phased),
    ("DOWNGRADING:", UpgradeFate::Downgraded),
];

/// A package that apt would unpack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedInstall {
    /// Name in apt.
    pub package: String,
    /// The installed version.
    pub before: Option<String>,
    /// The version that would be installed.
    pub after: String,
    /// The architecture of the new version.
    pub architecture: String,
    /// The origins of the version as apt prints them, for example `Debian-Security:12/oldstable-security`.
    pub origins: Vec<String>,
}

impl PlannedInstall {
    /// Debian's name.
    pub fn name(&self) -> &str {
        self.package.split(':').next().unwrap_or_default()
    }

    /// The package as an argument of apt: `NAME[:ARCH]=VERSION`.
    pub fn apt_argument(&self) -> String {
        format!("{}={}", self.package, self.after)
    }

    /// The file name that apt uses.
    pub fn file_name(&self) -> String {
        let part = |text: &str| text.replace('%', "%25").replace('_', "%5f").replace(':', "%3a");
        format!("{}_{}_{}.deb", part(self.name()), part(&self.after), part(&self.architecture))
    }
}

/// Splits a text into records. A record continues in lines that begin with a blank: a repository can write several lines into
/// a field of its Release file, apt prints them as they are, and deb822(5) requires the blank.
pub(super) fn split_records(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut breaks = rest.match_indices('\n').map(|(at, _)| at);
        let end = breaks.find(|at| !rest[at + 1..].starts_with([' ', '\t']));
        let (record, left) = rest.split_at(end.unwrap_or(rest.len()));
        rest = left.strip_prefix('\n').unwrap_or_default();
        Some(record)
    })
}

/// A text from a repository without control characters except tabs.
pub(super) fn replace_control_characters(text: &str) -> String {
    text.replace(|letter: char| letter.is_control() && letter != '\t', "\u{fffd}")
}

/// Parses the output of `apt-get --simulate`; `Err` is the first invalid record.
pub fn parse_simulation(text: &str) -> Result<Simulation, &str> {
    let mut simulation = Simulation::default();
    for record in split_records(text) {
        if let Some(rest) = record.strip_prefix("Inst ") {
            simulation.installs.push(parse_install(rest).ok_or(record)?);
        } else if let Some(rest) = record.strip_prefix("Remv ").or(record.strip_prefix("Purg ")) {
            let package = rest.split(' ').next().filter(|name| is_package_name(name));
            simulation.removals.push(package.ok_or(record)?.to_owned());
        } else if let Some((heading, list)) = record.split_once('\n') {
            let fate = FATE_HEADINGS.iter().find(|(text, _)| *text == heading);
            if let Some((_, fate)) = fate {
                add_listed_packages(&mut simulation, *fate, list);
            }
        }
    }
    Ok(simulation)
}

/// Adds the packages of a list.
fn add_listed_packages(simulation: &mut Simulation, fate: UpgradeFate, list: &str) {
    for (package, available) in list.lines().filter_map(parse_listed_package) {
        match fate {
            UpgradeFate::Downgraded => simulation.downgrades.push(package.to_owned()),
            UpgradeFate::HeldBack | UpgradeFate::Phased => {
                simulation.held_back.push(HeldBackUpgrade {
                    package: package.to_owned(),
                    available: available.to_owned(),
                    phased: fate == UpgradeFate::Phased,
                });
            }
        }
    }
}

/// Parses `   NAME[:ARCH] (BEFORE => AFTER)` into the package and the version after.
fn parse_listed_package(line: &str) -> Option<(&str, &str)> {
    let (package, versions) = line.trim().split_once(" (")?;
    let (_, after) = versions.strip_suffix(')')?.split_once(" => ")?;
    (is_package_name(package) && is_version(after)).then_some((package, after))
}

/// Whether dpkg accepts a text as the name of a package, optionally with an architecture. A repository may offer packages
/// with any other name, which cannot be installed. Debian's policy, which applies to requested packages, is stricter.
fn is_package_name(text: &str) -> bool {
    let (name, architecture) = text.split_once(':').unwrap_or((text, "all"));
    let is_plain = |text: &str, marks: &str| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
    };
    is_plain(name, "+-._") && is_plain(architecture, "-")
}

/// Whether dpkg accepts a text as a version.
fn is_version(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ".+-~:".contains(c))
}

/// Parses `NAME[:ARCH] [BEFORE] (AFTER ORIGIN, ORIGIN [ARCH]) [NAME on NAME] [NAME:ARCH ]`; the second part is optional, and
/// any number of names in brackets follow, which are the packages that are broken until a later step. An origin begins with a
/// label, in which a repository may write brackets as well, so the end is parsed from the right.
fn parse_install(rest: &str) -> Option<PlannedInstall> {
    let (package, rest) = rest.split_once(' ')?;
    let (before, rest) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (before, rest) = rest.split_once("] ")?;
            (Some(before.to_owned()), rest)
        }
        None => (None, rest),
    };
    let (after, rest) = rest.strip_prefix('(')?.split_once(' ')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "+-.: ".contains(c);
    let mut rest = rest;
    while let Some((before_names, names)) =
        rest.strip_suffix(']').and_then(|rest| rest.rsplit_once(" ["))
        && names.chars().all(is_name)
    {
        rest = before_names;
    }
    let (origins, architecture) = rest.strip_suffix("])")?.rsplit_once('[')?;
    // All parts, also empty ones: joined again they are the text that apt printed.
    let origins = origins.strip_suffix(' ').unwrap_or(origins);
    let parts = origins.split(", ").filter(|_| !origins.is_empty());
    let is_valid = is_package_name(package)
        && is_version(after)
        && is_package_name(architecture)
        && before.as_deref().is_none_or(|before| !before.contains(char::is_control));
    is_valid.then(|| PlannedInstall {
        package: package.to_owned(),
        before,
        after: after.to_owned(),
        architecture: architecture.to_owned(),
        origins: parts.map(replace_control_characters).collect(),
    })
}

/// A file that apt would download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDownload {
    pub uri: String,
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Expected hash, from the signed index of the repository.
    pub digest: Digest,
}

/// Parses the output of `apt-get --print-uris download`; `Err` is the first invalid line.
pub fn parse_uris(text: &str) -> Result<Vec<FileDownload>, &str> {
    text.lines()
        .filter(|line| line.starts_with('\''))
        .map(|line| parse_uri(line).ok_or(line))
        .collect()
}

/// Parses `'URI' NAME SIZE HASH:VALUE`.
fn parse_uri(line: &str) -> Option<FileDownload> {
    let (uri, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut fields = rest.split(' ');
    let name = fields.next()?;
    let size = fields.next()?.parse().ok()?;
    let digest = Digest::parse(fields.next()?)?;
    let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    let plain =
        name.strip_suffix(".deb").is_some() && !name.starts_with('.') && name.bytes().all(is_part);
    plain.then(|| FileDownload { uri: uri.to_owned(), name: name.to_owned(), size, digest })
}

/// The output of a tool without the lines that it overwrote on a terminal.
pub fn clean_output(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for line in text.lines() {
        let last = line.rsplit('\r').find(|part| !part.trim().is_empty());
        cleaned.push_str(last.unwrap_or_default());
        cleaned.push('\n');
    }
    cleaned
}

/// The lines in which apt or dpkg reports an error, joined.
pub fn error_summary(text: &str) -> String {
    let mut gist = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !is_error_line(line) {
            continue;
        }
        if !gist.is_empty() {
            gist.push_str("; ");
        }
        gist.push_str(line.trim());
        // dpkg continues the message in the next line, indented by one space.
        if is_dpkg_error(line)
            && let Some(more) = lines.next_if(|next| next.starts_with(' '))
        {
            gist.push_str(more);
        }
    }
    gist
}

fn is_dpkg_error(line: &str) -> bool {
    ["dpkg: error", "dpkg-query: error"].iter().any(|prefix| line.starts_with(prefix))
}

fn is_error_line(line: &str) -> bool {
    const RELATIONS: [&str; 4] =
        [" : Depends: ", " : PreDepends: ", " : Conflicts: ", " : Breaks: "];
    // Without pseudo-terminals apt prints an error about them that is not the cause.
    (line.starts_with("E: ") && !line.contains("Is /dev/pts mounted?"))
        || is_dpkg_error(line)
        || RELATIONS.iter().any(|relation| line.contains(relation))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Debian 12, apt 2.6.1: `apt-get -s upgrade --with-new-pkgs` on amd64 with i386 as foreign architecture.
    const UPGRADE: &str = "\
Reading package lists...
Building dependency tree...
Reading state information...
Calculating upgrade...
The following packages have been kept back:
  demo-held
The following NEW packages will be installed:
  linux-image-6.1.0-40-amd64
The following packages will be upgraded:
  libc6 libc6:i386 bind9-host demo-app
4 upgraded, 1 newly installed, 0 to remove and 1 not upgraded.
Inst libc6 [2.36-9+deb12u9] (2.36-9+deb12u10 Debian:12.10/stable, Debian-Security:12/stable-security [amd64]) [libc6:i386 ]
Inst libc6:i386 [2.36-9+deb12u9] (2.36-9+deb12u10 Debian:12.10/stable [i386])
Conf libc6 (2.36-9+deb12u10 Debian:12.10/stable [amd64])
Inst bind9-host [1:9.18.33-1~deb12u2] (1:9.18.41-1~deb12u1 Debian-Security:12/stable-security [amd64]) []
Inst demo-app [1.0] (1.1 stable, local-deb [all])
Inst libpam-modules-bin [1.5.2-6+deb12u1] (1.5.2-6+deb12u3 Debian-Security:12/oldstable-security [amd64]) [libpam-modules:amd64 on libpam-modules-bin:amd64] [libpam-modules:amd64 ]
Inst linux-image-6.1.0-40-amd64 (6.1.153-1 Debian:12.12/stable [amd64])
Conf demo-app (1.1 stable [all])
";

    #[test]
    fn a_simulation_is_read_with_epochs_and_foreign_architectures() {
        let simulation = parse_simulation(UPGRADE).unwrap();
        let parsed: Vec<_> = simulation
            .installs
            .iter()
            .map(|install| {
                let before = install.before.as_deref().unwrap_or("-");
                format!(
                    "{} {before} -> {} {} ({})",
                    install.package,
                    install.after,
                    install.architecture,
                    install.name()
                )
            })
            .collect();
        insta::assert_snapshot!(parsed.join("\n"), @r"
        libc6 2.36-9+deb12u9 -> 2.36-9+deb12u10 amd64 (libc6)
        libc6:i386 2.36-9+deb12u9 -> 2.36-9+deb12u10 i386 (libc6)
        bind9-host 1:9.18.33-1~deb12u2 -> 1:9.18.41-1~deb12u1 amd64 (bind9-host)
        demo-app 1.0 -> 1.1 all (demo-app)
        libpam-modules-bin 1.5.2-6+deb12u1 -> 1.5.2-6+deb12u3 amd64 (libpam-modules-bin)
        linux-image-6.1.0-40-amd64 - -> 6.1.153-1 amd64 (linux-image-6.1.0-40-amd64)
        ");
        assert!(simulation.removals.is_empty());
    }

    #[test]
    fn held_back_packages_are_read_with_their_new_version() {
        let text = "\
The following packages have been kept back:
   demo-held (1.0 => 1.1)
   libc6:i386 (1:2.36-9 => 1:2.36-10)
   nonsense
The following upgrades have been deferred due to phasing:
   demo-phased (1.0 => 2.0)
The following packages will be upgraded:
   demo-app (1.0 => 1.1)
1 upgraded, 0 newly installed, 0 to remove and 3 not upgraded.
";
        let held_back = parse_simulation(text).unwrap().held_back.into_iter();
        let parsed: Vec<_> = held_back
            .map(|upgrade| format!("{} {} {}", upgrade.package, upgrade.available, upgrade.phased))
            .collect();
        assert_eq!(
            parsed,
            ["demo-held 1.1 false", "libc6:i386 1:2.36-10 false", "demo-phased 2.0 true"]
        );
    }

    #[test]
    fn a_file_is_named_as_apt_names_it() {
        let simulation = parse_simulation(UPGRADE).unwrap();
        let files: Vec<_> = simulation.installs.iter().map(PlannedInstall::file_name).collect();
        assert_eq!(
            files[..3],
            [
                "libc6_2.36-9+deb12u10_amd64.deb",
                "libc6_2.36-9+deb12u10_i386.deb",
                "bind9-host_1%3a9.18.41-1~deb12u1_amd64.deb"
            ]
        );
    }

    #[test]
    fn origins_are_read() {
        let simulation = parse_simulation(UPGRADE).unwrap();
        let origins = |package: &str| simulation.install(package).unwrap().origins.clone();
        assert_eq!(origins("libc6"), ["Debian:12.10/stable", "Debian-Security:12/stable-security"]);
        assert_eq!(origins("demo-app"), ["stable", "local-deb"]);
        assert_eq!(origins("libpam-modules-bin"), ["Debian-Security:12/oldstable-security"]);
    }

    #[test]
    fn a_label_cannot_break_the_parser() {
        for label in
            ["Evil [x])", "Evil [x]) [a ]", "(5.6, 7.0) [amd64]", "] [", "Evil\t(1.1 x [all])"]
        {
            for end in ["", " [libc6:i386 ]", " []", " [a on demo:all] [b:i386 on c] [a b:i386 ]"] {
                let line = format!("Inst demo [1.0] (1.1 {label}:12/stable [all]){end}\n");
                let simulation = parse_simulation(&line).unwrap();
                let install = simulation.install("demo").unwrap();
                assert_eq!((install.after.as_str(), install.architecture.as_str()), ("1.1", "all"));
                assert_eq!(install.file_name(), "demo_1.1_all.deb");
                assert_eq!(install.origins.join(", "), format!("{label}:12/stable"));
            }
        }
    }

    /// As apt 2.6.2 prints the fields of a Release file that have several lines.
    #[test]
    fn line_breaks_of_a_repository_are_no_records() {
        let text = "\
Inst demo [1.0] (1.1 Evil
 Inst other (9 x [all])
\tyy\u{1b}[2J:12/stable
 two [all])
Conf demo (1.1 Evil
 Inst other (9 x [all])
\tyy\u{1b}[2J:12/stable
 two [all])
The following packages have been kept back:
   demo-held (1.0 => 1.1)
Inst next (1 x [all])
";
        let simulation = parse_simulation(text).unwrap();
        let packages: Vec<_> = simulation.installs.iter().map(PlannedInstall::name).collect();
        assert_eq!(packages, ["demo", "next"]);
        let replaced =
            "Evil\u{fffd} Inst other (9 x [all])\u{fffd}\tyy\u{fffd}[2J:12/stable\u{fffd} two";
        assert_eq!(simulation.installs[0].origins, [replaced]);
        assert_eq!(simulation.held_back.len(), 1);
    }

    #[test]
    fn a_name_or_a_version_that_dpkg_refuses_is_an_error() {
        for line in [
            "Inst $(id) (1.1 x [all])",
            "Inst -o (1.1 x [all])",
            "Inst ../demo (1.1 x [all])",
            "Inst demo:all:all (1.1 x [all])",
            "Inst demo (1.1$x/y x [all])",
            "Inst demo (1\u{1b}[2J x [all])",
            "Inst demo (1.1 x [a/b])",
            "Inst demo [1\u{7f}] (1.1 x [all])",
            "Remv -o [1]",
        ] {
            assert_eq!(parse_simulation(line), Err(line));
        }
        let lax = parse_simulation("Inst Demo_x [v1_2] (V1.1 x [all])").unwrap();
        assert_eq!(lax.installs[0].file_name(), "Demo%5fx_V1.1_all.deb");
        let list = "DOWNGRADING:\n   $(id) (2 => 1)\n   demo (2 => 1/x)\n   good (2 => 1)\n";
        assert_eq!(parse_simulation(list).unwrap().downgrades, ["good"]);
    }

    /// From Debian 13, apt 3.0.3, with two additional repositories; apt 2.6.1 prints the same.
    #[test]
    fn downgrades_new_and_held_back_packages_are_read() {
        let text = "\
Reading package lists...
Building dependency tree...
Reading state information...
Calculating upgrade...
The following NEW packages will be installed:
   demo-fresh (1:3.0~x)
The following packages have been kept back:
   demo-hello (1.1 => 1.2)
The following packages will be upgraded:
   demo-app (1.0 => 1.2)
The following packages will be DOWNGRADED:
   demo-bad (1.1 => 1.0)
1 upgraded, 1 newly installed, 1 downgraded, 0 to remove and 1 not upgraded.
1 not fully installed or removed.
Inst demo-bad [1.1] (1.0 9/stable [all])
Inst demo-fresh (1:3.0~x Extra:9/extra-suite [all])
Inst demo-app [1.0] (1.2 Extra:9/extra-suite [all])
Conf demo-bad (1.0 9/stable [all])
";
        let simulation = parse_simulation(text).unwrap();
        assert_eq!(simulation.downgrades, ["demo-bad"]);
        assert_eq!(simulation.held_back.len(), 1);
        assert_eq!(simulation.held_back[0].package, "demo-hello");
        let fresh = simulation.install("demo-fresh").unwrap();
        assert_eq!(fresh.before, None);
        assert_eq!(fresh.origins, ["Extra:9/extra-suite"]);
    }

    /// From Debian 12, `apt-cache show --no-all-versions`.
    #[test]
    fn installed_sizes_are_read() {
        let text = "\
Package: demo-lib
Architecture: all
Version: 1.1
Size: 708
Description: Installed-Size: 9
 Installed-Size: 9

Package: demo-fresh
Architecture: all
Version: 1:3.0~x
Installed-Size: 12
Description: x

";
        let sizes = parse_sizes(text);
        let exact = ("demo-fresh".into(), "1:3.0~x".into(), "all".into());
        assert_eq!(sizes, [(exact, 12 << 10)].into());
    }

    #[test]
    fn conffiles_are_read_with_their_status() {
        let text = "
 /etc/demo/conf 52a92d20a2cd30900f8afacd347bd9a0
 /etc/demo/a b 52a92d20a2cd30900f8afacd347bd9a0 obsolete
 /etc/demo/gone 52a92d20a2cd30900f8afacd347bd9a0 remove-on-upgrade

nonsense
";
        assert_eq!(parse_conffiles(text), ["/etc/demo/conf", "/etc/demo/a b", "/etc/demo/gone"]);
    }

    #[test]
    fn removals_are_read() {
        let text = "Remv demo-app [1.1]\nPurg demo-lib [1.1] [other:amd64 ]\n";
        assert_eq!(parse_simulation(text).unwrap().removals, ["demo-app", "demo-lib"]);
    }

    #[test]
    fn an_invalid_line_is_an_error() {
        for line in
            ["Inst demo", "Inst demo [1.0] 1.1", "Inst demo (1.1)", "Inst  (1 x [all])", "Remv "]
        {
            assert_eq!(parse_simulation(line), Err(line));
        }
        assert_eq!(parse_list("curl\tamd64\t1"), Err("curl\tamd64\t1"));
        for line in [
            "'http://x/a.deb' ../a.deb 1 SHA256:00",
            "'http://x/a.deb' a.deb 1 MD5Sum:d41d8cd98f00b204e9800998ecf8427e",
            "'http://x/a.deb' a.deb one",
            "'http://x/a.deb' a.deb 1",
        ] {
            assert_eq!(parse_uris(line), Err(line));
        }
    }

    #[test]
    fn the_package_list_is_read() {
        // As dpkg-query of Debian 12 and 13 prints it: a package without a size, and one with only a name.
        let text = "demo-bad\tall\t1.1\tinstall\thalf-configured\tok\t\nlibc6\ti386\t2.36-9\thold\tinstalled\tok\t13000\njq\tamd64\t1.6\tdeinstall\tconfig-files\tok\t109\ndemo-hello\t\t\tunknown\tnot-installed\tok\t\n";
        let packages = parse_list(text).unwrap();
        let parsed: Vec<_> = packages
            .iter()
            .map(|package| (package.apt_name("amd64"), package.is_present()))
            .collect();
        let expected =
            [("demo-bad", true), ("libc6:i386", true), ("jq", false), ("demo-hello:", false)];
        assert_eq!(parsed, expected.map(|(name, here)| (name.to_owned(), here)));
        let sizes: Vec<_> = packages.iter().map(|package| package.size).collect();
        assert_eq!(sizes, [0, 13_000 << 10, 109 << 10, 0]);
    }

    #[test]
    fn files_to_fetch_are_read_with_their_hashes() {
        let digest = "ab".repeat(32);
        let text = format!(
            "Reading package lists...\n'file:/srv/repo/pool/bind9-host_1%3a9.18_amd64.deb' bind9-host_1%3a9.18_amd64.deb 722 SHA256:{digest}\n"
        );
        let files = parse_uris(&text).unwrap();
        assert_eq!(files[0].name, "bind9-host_1%3a9.18_amd64.deb");
        assert_eq!(files[0].size, 722);
        assert_eq!(files[0].uri, "file:/srv/repo/pool/bind9-host_1%3a9.18_amd64.deb");
        assert_eq!(files[0].digest, Digest::Sha256(digest));
    }

    #[test]
    fn overwritten_terminal_output_is_dropped() {
        let text = "(Reading database ... \r(Reading database ... 5%\r(Reading database ... 7103 files)\nSetting up x ...\r\n";
        assert_eq!(clean_output(text), "(Reading database ... 7103 files)\nSetting up x ...\n");
    }

    #[test]
    fn the_summary_names_missing_dependencies() {
        let text = "The following packages have unmet dependencies:\n demo-missing : Depends: demo-nowhere but it is not installable\nE: Unable to correct problems, you have held broken packages.\n";
        assert_eq!(
            error_summary(text),
            "demo-missing : Depends: demo-nowhere but it is not installable; E: Unable to correct problems, you have held broken packages."
        );
    }

    #[test]
    fn the_summary_contains_the_errors_of_apt_and_dpkg() {
        let text = "Setting up demo-bad (1.1) ...\ndpkg: error processing package demo-bad (--configure):\n installed demo-bad package post-installation script subprocess returned error exit status 1\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n";
        assert_eq!(
            error_summary(text),
            "dpkg: error processing package demo-bad (--configure): installed demo-bad package post-installation script subprocess returned error exit status 1; E: Sub-process /usr/bin/dpkg returned an error code (1)"
        );
    }
}
