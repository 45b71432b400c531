//! What a person must do about a package that the agent could not finish.

use super::files::Deb;
use super::parse::Known;

/// What to do; `None` if dpkg is done with the package. `file` is the package's kept file, `log` what dpkg said.
pub fn advice(known: &Known, file: Option<&Deb>, log: &str) -> Option<String> {
    let name = &known.name;
    let package = match known.architecture.as_str() {
        "" | "all" => name.clone(),
        architecture => format!("{name}:{architecture}"),
    };
    if known.is_torn() {
        return Some(match file {
            Some(file) => format!(
                "{name} is torn: run `dpkg --install {}`, then `dpkg --configure --pending`",
                file.path()
            ),
            None => format!(
                "{name} is torn: fetch it with `apt-get download {package}`, run `dpkg --install` with the file, then \
                 `dpkg --configure --pending`"
            ),
        });
    }
    let script = failed_script(log, name);
    match known.state.as_str() {
        "half-configured" => Some(match script {
            Some(script) => format!(
                "the {script} script of {name} fails: mend what it complains of, then run `dpkg --configure {package}`"
            ),
            None => format!(
                "{name} is not configured: mend what its script complains of, then run `dpkg --configure {package}`"
            ),
        }),
        "unpacked" => Some(format!(
            "{name} is not configured: when what it needs is there, run `dpkg --configure {package}`"
        )),
        "triggers-awaited" | "triggers-pending" => Some(format!(
            "work for {name} is pending: run `dpkg --configure --pending`"
        )),
        _ => script.map(|script| {
            format!("the {script} script of {name} fails: mend what it complains of, then update it again")
        }),
    }
}

/// The script of which dpkg said that it failed: `new NAME package pre-installation script subprocess returned …`.
fn failed_script<'a>(log: &'a str, name: &str) -> Option<&'a str> {
    let told = log.lines().rev().find_map(|line| {
        let (before, rest) = line.split_once(" package ")?;
        let (script, _) = rest.split_once(" script subprocess ")?;
        let told = before.rsplit(' ').next()?;
        (told == name || told.split(':').next() == Some(name)).then_some(script)
    });
    told.filter(|script| !script.is_empty() && !script.contains(' '))
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

    fn known(name: &str, architecture: &str, state: &str) -> Known {
        Known {
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
    fn a_person_is_told_what_to_do_for_each_state() {
        for (known, expected) in [
            (
                known("demo-bad", "all", "half-configured"),
                Some(
                    "the post-installation script of demo-bad fails: mend what it complains of, then run `dpkg --configure demo-bad`",
                ),
            ),
            (
                known("libfoo", "i386", "half-configured"),
                Some(
                    "the post-installation script of libfoo fails: mend what it complains of, then run `dpkg --configure libfoo:i386`",
                ),
            ),
            (
                known("other", "all", "half-configured"),
                Some(
                    "other is not configured: mend what its script complains of, then run `dpkg --configure other`",
                ),
            ),
            (
                known("other", "all", "unpacked"),
                Some(
                    "other is not configured: when what it needs is there, run `dpkg --configure other`",
                ),
            ),
            (
                known("other", "all", "triggers-awaited"),
                Some("work for other is pending: run `dpkg --configure --pending`"),
            ),
            (
                known("demo-preinst", "all", "installed"),
                Some(
                    "the pre-installation script of demo-preinst fails: mend what it complains of, then update it again",
                ),
            ),
            (known("other", "all", "installed"), None),
            (
                known("torn", "amd64", "half-installed"),
                Some(
                    "torn is torn: fetch it with `apt-get download torn:amd64`, run `dpkg --install` with the file, then \
                     `dpkg --configure --pending`",
                ),
            ),
        ] {
            assert_eq!(advice(&known, None, LOG).as_deref(), expected, "{known:?}");
        }
    }

    #[test]
    fn a_torn_package_is_installed_from_the_kept_file() {
        let file = Deb {
            name: "torn_1.1_all.deb".into(),
            size: 1,
            digest: Digest::Sha256(String::new()),
            order: "torn=1.1".into(),
            uri: String::new(),
        };
        let torn = Known {
            flag: "reinstreq".into(),
            ..known("torn", "all", "installed")
        };
        assert_eq!(
            advice(&torn, Some(&file), "").unwrap(),
            "torn is torn: run `dpkg --install /var/lib/evenkeel-agent/archives/torn_1.1_all.deb`, then `dpkg --configure --pending`"
        );
    }
}
