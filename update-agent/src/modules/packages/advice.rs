//! Instructions for a person about a package that the agent could not finish.

use super::files::Deb;
use super::parse::DpkgPackage;

/// What to do; `None` if dpkg has finished the package. `file` is the retained file of the package, `log` dpkg's output.
pub fn advice(dpkg_package: &DpkgPackage, file: Option<&Deb>, log: &str) -> Option<String> {
    let name = &dpkg_package.name;
    let package = match dpkg_package.architecture.as_str() {
        "" | "all" => name.clone(),
        architecture => format!("{name}:{architecture}"),
    };
    if dpkg_package.needs_reinstall() {
        return Some(match file {
            Some(file) => format!(
                "{name} is half-installed: run `dpkg --install {}`, then `dpkg --configure --pending`",
                file.path()
            ),
            None => format!(
                "{name} is half-installed: fetch it with `apt-get download {package}`, run `dpkg --install` with the file, then \
                 `dpkg --configure --pending`"
            ),
        });
    }
    let script = failed_script(log, name);
    match dpkg_package.state.as_str() {
        "half-configured" => Some(match script {
            Some(script) => format!(
                "the {script} script of {name} fails: fix the problem that it reports, then run `dpkg --configure {package}`"
            ),
            None => format!(
                "{name} is not configured: fix the problem that its script reports, then run `dpkg --configure {package}`"
            ),
        }),
        "unpacked" => Some(format!(
            "{name} is not configured: when its dependencies are installed, run `dpkg --configure {package}`"
        )),
        "triggers-awaited" | "triggers-pending" => Some(format!(
            "triggers of {name} are pending: run `dpkg --configure --pending`"
        )),
        _ => script.map(|script| {
            format!("the {script} script of {name} fails: fix the problem that it reports, then update the package again")
        }),
    }
}

/// The script that failed according to dpkg: `new NAME package pre-installation script subprocess returned …`.
fn failed_script<'a>(log: &'a str, name: &str) -> Option<&'a str> {
    let failed = log.lines().rev().find_map(|line| {
        let (before, rest) = line.split_once(" package ")?;
        let (script, _) = rest.split_once(" script subprocess ")?;
        let named_package = before.rsplit(' ').next()?;
        (named_package == name || named_package.split(':').next() == Some(name)).then_some(script)
    });
    failed.filter(|script| !script.is_empty() && !script.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::packages::Digest;

    /// From Debian 12 and 13.
    const LOG: &str = "\
dpkg: error processing archive /x/demo-preinst_1.1_all.deb (--unpack):
 new demo-preinst package pre-installation script subprocess returned error exit status 1
dpkg: error processing package demo-bad (--configure):
 installed demo-bad package post-installation script subprocess returned error exit status 1
 installed libfoo:i386 package post-installation script subprocess was killed by signal (Killed)
";

    fn package(name: &str, architecture: &str, state: &str) -> DpkgPackage {
        DpkgPackage {
            name: name.into(),
            architecture: architecture.into(),
            version: "1.1".into(),
            want: "install".into(),
            state: state.into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    #[test]
    fn each_state_has_its_advice() {
        for (package, expected) in [
            (
                package("demo-bad", "all", "half-configured"),
                Some(
                    "the post-installation script of demo-bad fails: fix the problem that it reports, then run `dpkg --configure demo-bad`",
                ),
            ),
            (
                package("libfoo", "i386", "half-configured"),
                Some(
                    "the post-installation script of libfoo fails: fix the problem that it reports, then run `dpkg --configure libfoo:i386`",
                ),
            ),
            (
                package("other", "all", "half-configured"),
                Some(
                    "other is not configured: fix the problem that its script reports, then run `dpkg --configure other`",
                ),
            ),
            (
                package("other", "all", "unpacked"),
                Some(
                    "other is not configured: when its dependencies are installed, run `dpkg --configure other`",
                ),
            ),
            (
                package("other", "all", "triggers-awaited"),
                Some("triggers of other are pending: run `dpkg --configure --pending`"),
            ),
            (
                package("demo-preinst", "all", "installed"),
                Some(
                    "the pre-installation script of demo-preinst fails: fix the problem that it reports, then update the package again",
                ),
            ),
            (package("other", "all", "installed"), None),
            (
                package("torn", "amd64", "half-installed"),
                Some(
                    "torn is half-installed: fetch it with `apt-get download torn:amd64`, run `dpkg --install` with the file, then \
                     `dpkg --configure --pending`",
                ),
            ),
        ] {
            assert_eq!(advice(&package, None, LOG).as_deref(), expected, "{package:?}");
        }
    }

    #[test]
    fn a_half_installed_package_is_installed_from_the_retained_file() {
        let file = Deb {
            name: "torn_1.1_all.deb".into(),
            size: 1,
            digest: Digest::Sha256(String::new()),
            apt_argument: "torn=1.1".into(),
            uri: String::new(),
        };
        let torn = DpkgPackage { flag: "reinstreq".into(), ..package("torn", "all", "installed") };
        assert_eq!(
            advice(&torn, Some(&file), "").unwrap(),
            "torn is half-installed: run `dpkg --install /var/lib/evenkeel-agent/archives/torn_1.1_all.deb`, then `dpkg --configure --pending`"
        );
    }
}
