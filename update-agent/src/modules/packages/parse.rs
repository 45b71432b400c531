//! Reads what apt and dpkg print. They are run with `LC_ALL=C.UTF-8`, so that they speak English.

use std::collections::BTreeMap;

use super::Digest;

/// A package as dpkg knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version.
    pub version: String,
    /// What is to become of it: `install`, `hold`, `deinstall`, …
    pub want: String,
    /// Where it stands: `installed`, `half-configured`, `config-files`, …
    pub state: String,
    /// `ok` or `reinstreq`.
    pub flag: String,
    /// Bytes that it takes on the disk, as it says itself; 0 if it does not say.
    pub size: u64,
}

impl Known {
    /// Whether any of its files are on the system.
    pub fn is_present(&self) -> bool {
        !matches!(self.state.as_str(), "config-files" | "not-installed")
    }

    /// Whether dpkg asks for its files to be unpacked anew.
    pub fn is_torn(&self) -> bool {
        self.is_present() && (self.state == "half-installed" || self.flag != "ok")
    }

    /// Whether dpkg is done with it, one way or the other.
    pub fn is_settled(&self) -> bool {
        self.flag == "ok" && (self.state == "installed" || !self.is_present())
    }

    /// Its name as apt says it: with the architecture only if that is a foreign one.
    pub fn package(&self, native: &str) -> String {
        package(&self.name, &self.architecture, native)
    }
}

/// A package's name as apt says it.
pub fn package(name: &str, architecture: &str, native: &str) -> String {
    if architecture == native || architecture == "all" {
        name.to_owned()
    } else {
        format!("{name}:{architecture}")
    }
}

/// The format for `dpkg-query --show` that [`listing`] reads.
pub const LISTING: &str = "${Package}\t${Architecture}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\t${db:Status-Eflag}\t${Installed-Size}\n";

/// Reads the list of packages; `Err` is the line that makes no sense.
pub fn listing(text: &str) -> Result<Vec<Known>, &str> {
    text.lines()
        .map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            let [name, architecture, version, want, state, flag, size] = fields[..] else {
                return Err(line);
            };
            Ok(Known {
                name: name.to_owned(),
                architecture: architecture.to_owned(),
                version: version.to_owned(),
                want: want.to_owned(),
                state: state.to_owned(),
                flag: flag.to_owned(),
                size: kibibytes(size).unwrap_or(0),
            })
        })
        .collect()
}

/// Debian writes the sizes of what is installed in units of 1024 bytes.
fn kibibytes(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// A version of a package: its name, its version, its architecture.
pub type Exact = (String, String, String);

/// Reads the stanzas that `apt-cache show` prints: the bytes that each version takes on the disk. A version that does not
/// say so is left out.
pub fn sizes(text: &str) -> BTreeMap<Exact, u64> {
    let stanzas = text.split("\n\n");
    let size = |stanza: &str| {
        let field = |name: &str| {
            stanza.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                (found == name).then(|| value.trim().to_owned())
            })
        };
        let size = kibibytes(&field("Installed-Size")?)?;
        let exact = (field("Package")?, field("Version")?, field("Architecture")?);
        Some((exact, size))
    };
    stanzas.filter_map(size).collect()
}

/// Reads the configuration files that `dpkg-query` prints for `${Conffiles}`: ` PATH HASH`, and what became of it.
pub fn conffiles(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(' '));
    // A path may have blanks; the hash has none.
    let paths = lines.filter_map(|line| {
        let line = ["remove-on-upgrade", "obsolete"]
            .iter()
            .fold(line, |line, word| line.trim_end().trim_end_matches(*word));
        line.trim_end().rsplit_once(' ').map(|(path, _)| path)
    });
    paths.filter(|path| path.starts_with('/')).collect()
}

/// What apt would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Packages that would be unpacked.
    pub installs: Vec<Install>,
    /// Packages that would be removed.
    pub removals: Vec<String>,
    /// Packages that would stay although there is a newer version. What apt says of them is for people: a line that
    /// makes no sense is passed over.
    pub kept: Vec<Kept>,
    /// Packages among those that would be unpacked whose version would be an older one.
    pub downgrades: Vec<String>,
}

impl Simulation {
    /// What would be unpacked of a package.
    pub fn install(&self, package: &str) -> Option<&Install> {
        let mut installs = self.installs.iter();
        installs.find(|install| install.package == package)
    }
}

/// A package that would stay although there is a newer version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name as apt says it.
    pub package: String,
    /// The newer version.
    pub available: String,
    /// Whether that is let out to some machines first.
    pub phased: bool,
}

/// What becomes of the packages that apt lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Phased,
    Downgraded,
}

/// What apt says before it lists packages.
const FATES: [(&str, Fate); 6] = [
    ("The following packages have been kept back:", Fate::Kept),
    (
        "The following upgrades have been deferred due to phasing:",
        Fate::Phased,
    ),
    (
        "The following packages will be DOWNGRADED:",
        Fate::Downgraded,
    ),
    ("Not upgrading:", Fate::Kept),
    ("Not upgrading yet due to phasing:", Fate::Phased),
    ("DOWNGRADING:", Fate::Downgraded),
];

/// A package that would be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Install {
    /// Its name as apt says it.
    pub package: String,
    /// The version that is there.
    pub before: Option<String>,
    /// The version that would be there.
    pub after: String,
    /// The architecture of the new version.
    pub architecture: String,
    /// Where it comes from, each as apt says it: `Debian-Security:12/oldstable-security`.
    pub origins: Vec<String>,
}

impl Install {
    /// Debian's name.
    pub fn name(&self) -> &str {
        self.package.split(':').next().unwrap_or_default()
    }

    /// What to ask apt for: `NAME[:ARCH]=VERSION`.
    pub fn order(&self) -> String {
        format!("{}={}", self.package, self.after)
    }

    /// The name that apt gives its file.
    pub fn file(&self) -> String {
        let part = |text: &str| {
            text.replace('%', "%25")
                .replace('_', "%5f")
                .replace(':', "%3a")
        };
        format!(
            "{}_{}_{}.deb",
            part(self.name()),
            part(&self.after),
            part(&self.architecture)
        )
    }
}

/// Reads what `apt-get --simulate` prints; `Err` is the line that makes no sense.
pub fn simulation(text: &str) -> Result<Simulation, &str> {
    let mut simulation = Simulation::default();
    let mut fate = None;
    for line in text.lines() {
        if line.starts_with(' ') {
            match (fate, listed(line)) {
                (Some(Fate::Downgraded), Some((package, _))) => {
                    simulation.downgrades.push(package.to_owned());
                }
                (Some(fate), Some((package, available))) => simulation.kept.push(Kept {
                    package: package.to_owned(),
                    available: available.to_owned(),
                    phased: fate == Fate::Phased,
                }),
                _ => {}
            }
            continue;
        }
        fate = FATES
            .iter()
            .find(|(said, _)| *said == line)
            .map(|(_, fate)| *fate);
        if let Some(rest) = line.strip_prefix("Inst ") {
            simulation.installs.push(install(rest).ok_or(line)?);
        } else if let Some(rest) = line.strip_prefix("Remv ").or(line.strip_prefix("Purg ")) {
            let package = rest.split(' ').next().filter(|name| !name.is_empty());
            simulation.removals.push(package.ok_or(line)?.to_owned());
        }
    }
    Ok(simulation)
}

/// `   NAME[:ARCH] (BEFORE => AFTER)`: the package and the version after.
fn listed(line: &str) -> Option<(&str, &str)> {
    let (package, versions) = line.trim().split_once(" (")?;
    let (_, after) = versions.strip_suffix(')')?.split_once(" => ")?;
    Some((package, after))
}

/// `NAME[:ARCH] [BEFORE] (AFTER ORIGIN, ORIGIN [ARCH]) [NAME:ARCH ]`, where the second and the last part may be missing.
fn install(rest: &str) -> Option<Install> {
    let (package, rest) = rest.split_once(' ')?;
    let (before, rest) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (before, rest) = rest.split_once("] ")?;
            (Some(before.to_owned()), rest)
        }
        None => (None, rest),
    };
    let (after, rest) = rest.strip_prefix('(')?.split_once(' ')?;
    let (origins, _) = rest.split_once("])")?;
    let (origins, architecture) = origins.rsplit_once('[')?;
    let origins = origins.trim().split(", ").filter(|part| !part.is_empty());
    let whole = [package, after, architecture]
        .iter()
        .all(|part| !part.is_empty());
    whole.then(|| Install {
        package: package.to_owned(),
        before,
        after: after.to_owned(),
        architecture: architecture.to_owned(),
        origins: origins.map(str::to_owned).collect(),
    })
}

/// A file that apt would fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Where it lies.
    pub uri: String,
    /// The name it gets.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// What it must hash to, as the signed index of the repository says.
    pub digest: Digest,
}

/// Reads what `apt-get --print-uris download` prints; `Err` is the line that makes no sense.
pub fn uris(text: &str) -> Result<Vec<Fetch>, &str> {
    text.lines()
        .filter(|line| line.starts_with('\''))
        .map(|line| uri(line).ok_or(line))
        .collect()
}

/// `'URI' NAME SIZE HASH:VALUE`.
fn uri(line: &str) -> Option<Fetch> {
    let (uri, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut words = rest.split(' ');
    let name = words.next()?;
    let size = words.next()?.parse().ok()?;
    let digest = Digest::parse(words.next()?)?;
    let plain =
        name.strip_suffix(".deb").is_some() && !name.starts_with('.') && !name.contains('/');
    plain.then(|| Fetch {
        uri: uri.to_owned(),
        name: name.to_owned(),
        size,
        digest,
    })
}

/// What a tool said, without the lines that it overwrote on a terminal.
pub fn words(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for line in text.lines() {
        let last = line.rsplit('\r').find(|part| !part.trim().is_empty());
        cleaned.push_str(last.unwrap_or_default());
        cleaned.push('\n');
    }
    cleaned
}

/// The lines in which apt or dpkg says what is wrong, joined.
pub fn gist(text: &str) -> String {
    let mut gist = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !says_what_is_wrong(line) {
            continue;
        }
        if !gist.is_empty() {
            gist.push_str("; ");
        }
        gist.push_str(line.trim());
        // dpkg goes on in the next line, indented by one space.
        if is_dpkgs_error(line)
            && let Some(more) = lines.next_if(|next| next.starts_with(' '))
        {
            gist.push_str(more);
        }
    }
    gist
}

fn is_dpkgs_error(line: &str) -> bool {
    ["dpkg: error", "dpkg-query: error"]
        .iter()
        .any(|word| line.starts_with(word))
}

fn says_what_is_wrong(line: &str) -> bool {
    const RELATIONS: [&str; 4] = [
        " : Depends: ",
        " : PreDepends: ",
        " : Conflicts: ",
        " : Breaks: ",
    ];
    // Without pseudo-terminals apt complains about them, which is not what is wrong.
    (line.starts_with("E: ") && !line.contains("Is /dev/pts mounted?"))
        || is_dpkgs_error(line)
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
Inst linux-image-6.1.0-40-amd64 (6.1.153-1 Debian:12.12/stable [amd64])
Conf demo-app (1.1 stable [all])
";

    #[test]
    fn what_apt_would_do_is_read_with_epochs_foreign_architectures_and_packages_kept_back() {
        let simulation = simulation(UPGRADE).unwrap();
        let seen: Vec<_> = simulation
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
        insta::assert_snapshot!(seen.join("\n"), @r"
        libc6 2.36-9+deb12u9 -> 2.36-9+deb12u10 amd64 (libc6)
        libc6:i386 2.36-9+deb12u9 -> 2.36-9+deb12u10 i386 (libc6)
        bind9-host 1:9.18.33-1~deb12u2 -> 1:9.18.41-1~deb12u1 amd64 (bind9-host)
        demo-app 1.0 -> 1.1 all (demo-app)
        linux-image-6.1.0-40-amd64 - -> 6.1.153-1 amd64 (linux-image-6.1.0-40-amd64)
        ");
        assert!(simulation.removals.is_empty());
    }

    #[test]
    fn what_apt_keeps_is_read_with_the_version_that_it_would_have() {
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
        let kept = simulation(text).unwrap().kept.into_iter();
        let seen: Vec<_> = kept
            .map(|kept| format!("{} {} {}", kept.package, kept.available, kept.phased))
            .collect();
        assert_eq!(
            seen,
            [
                "demo-held 1.1 false",
                "libc6:i386 1:2.36-10 false",
                "demo-phased 2.0 true"
            ]
        );
    }

    #[test]
    fn a_file_is_named_as_apt_names_it() {
        let simulation = simulation(UPGRADE).unwrap();
        let files: Vec<_> = simulation.installs.iter().map(Install::file).collect();
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
    fn where_a_version_comes_from_is_read() {
        let simulation = simulation(UPGRADE).unwrap();
        let origins = |package: &str| simulation.install(package).unwrap().origins.clone();
        assert_eq!(
            origins("libc6"),
            ["Debian:12.10/stable", "Debian-Security:12/stable-security"]
        );
        assert_eq!(origins("demo-app"), ["stable", "local-deb"]);
    }

    /// From Debian 13, apt 3.0.3, with two repositories of one's own; apt 2.6.1 prints the same.
    #[test]
    fn an_upgrade_with_an_older_version_a_new_package_and_one_that_is_kept_is_read() {
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
        let simulation = simulation(text).unwrap();
        assert_eq!(simulation.downgrades, ["demo-bad"]);
        assert_eq!(simulation.kept.len(), 1);
        assert_eq!(simulation.kept[0].package, "demo-hello");
        let fresh = simulation.install("demo-fresh").unwrap();
        assert_eq!(fresh.before, None);
        assert_eq!(fresh.origins, ["Extra:9/extra-suite"]);
    }

    /// From Debian 12, `apt-cache show --no-all-versions`.
    #[test]
    fn what_a_version_takes_on_the_disk_is_read_if_it_says_so() {
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
        let sizes = sizes(text);
        let exact = ("demo-fresh".into(), "1:3.0~x".into(), "all".into());
        assert_eq!(sizes, [(exact, 12 << 10)].into());
    }

    #[test]
    fn configuration_files_are_read_with_what_became_of_them() {
        let text = "
 /etc/demo/conf 52a92d20a2cd30900f8afacd347bd9a0
 /etc/demo/a b 52a92d20a2cd30900f8afacd347bd9a0 obsolete
 /etc/demo/gone 52a92d20a2cd30900f8afacd347bd9a0 remove-on-upgrade

nonsense
";
        assert_eq!(
            conffiles(text),
            ["/etc/demo/conf", "/etc/demo/a b", "/etc/demo/gone"]
        );
    }

    #[test]
    fn removals_are_seen() {
        let text = "Remv demo-app [1.1]\nPurg demo-lib [1.1] [other:amd64 ]\n";
        assert_eq!(simulation(text).unwrap().removals, ["demo-app", "demo-lib"]);
    }

    #[test]
    fn a_line_that_makes_no_sense_is_not_skipped() {
        for line in [
            "Inst demo",
            "Inst demo [1.0] 1.1",
            "Inst demo (1.1)",
            "Inst  (1 x [all])",
            "Remv ",
        ] {
            assert_eq!(simulation(line), Err(line));
        }
        assert_eq!(listing("curl\tamd64\t1"), Err("curl\tamd64\t1"));
        for line in [
            "'http://x/a.deb' ../a.deb 1 SHA256:00",
            "'http://x/a.deb' a.deb 1 MD5Sum:d41d8cd98f00b204e9800998ecf8427e",
            "'http://x/a.deb' a.deb one",
            "'http://x/a.deb' a.deb 1",
        ] {
            assert_eq!(uris(line), Err(line));
        }
    }

    #[test]
    fn the_list_of_packages_is_read() {
        // As dpkg-query of Debian 12 and 13 prints it: a package without a size, and one that is only known by name.
        let text = "demo-bad\tall\t1.1\tinstall\thalf-configured\tok\t\nlibc6\ti386\t2.36-9\thold\tinstalled\tok\t13000\njq\tamd64\t1.6\tdeinstall\tconfig-files\tok\t109\ndemo-hello\t\t\tunknown\tnot-installed\tok\t\n";
        let known = listing(text).unwrap();
        let seen: Vec<_> = known
            .iter()
            .map(|known| (known.package("amd64"), known.is_present()))
            .collect();
        let expected = [
            ("demo-bad", true),
            ("libc6:i386", true),
            ("jq", false),
            ("demo-hello:", false),
        ];
        assert_eq!(seen, expected.map(|(name, here)| (name.to_owned(), here)));
        let sizes: Vec<_> = known.iter().map(|known| known.size).collect();
        assert_eq!(sizes, [0, 13_000 << 10, 109 << 10, 0]);
    }

    #[test]
    fn files_to_fetch_are_read_with_their_hashes() {
        let digest = "ab".repeat(32);
        let text = format!(
            "Reading package lists...\n'file:/srv/repo/pool/bind9-host_1%3a9.18_amd64.deb' bind9-host_1%3a9.18_amd64.deb 722 SHA256:{digest}\n"
        );
        let files = uris(&text).unwrap();
        assert_eq!(files[0].name, "bind9-host_1%3a9.18_amd64.deb");
        assert_eq!(files[0].size, 722);
        assert_eq!(
            files[0].uri,
            "file:/srv/repo/pool/bind9-host_1%3a9.18_amd64.deb"
        );
        assert_eq!(files[0].digest, Digest::Sha256(digest));
    }

    #[test]
    fn what_was_overwritten_on_the_terminal_is_left_out() {
        let text = "(Reading database ... \r(Reading database ... 5%\r(Reading database ... 7103 files)\nSetting up x ...\r\n";
        assert_eq!(
            words(text),
            "(Reading database ... 7103 files)\nSetting up x ...\n"
        );
    }

    #[test]
    fn the_gist_names_what_is_missing() {
        let text = "The following packages have unmet dependencies:\n demo-missing : Depends: demo-nowhere but it is not installable\nE: Unable to correct problems, you have held broken packages.\n";
        assert_eq!(
            gist(text),
            "demo-missing : Depends: demo-nowhere but it is not installable; E: Unable to correct problems, you have held broken packages."
        );
    }

    #[test]
    fn the_gist_is_what_apt_and_dpkg_call_an_error() {
        let text = "Setting up demo-bad (1.1) ...\ndpkg: error processing package demo-bad (--configure):\n installed demo-bad package post-installation script subprocess returned error exit status 1\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n";
        assert_eq!(
            gist(text),
            "dpkg: error processing package demo-bad (--configure): installed demo-bad package post-installation script subprocess returned error exit status 1; E: Sub-process /usr/bin/dpkg returned an error code (1)"
        );
    }
}
