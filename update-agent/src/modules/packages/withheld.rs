//! Packages that have a newer version and do not get it, and why. Pure.

use std::collections::BTreeMap;

use super::parse::{Install, Simulation};
use super::plan::Installed;
use crate::model::{Withheld, WithheldCause};

/// What apt would do, with more and more of what holds it back taken away.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What is going to be done.
    pub chosen: &'a Simulation,
    /// Without what the policy and the machine's owner leave out; `None` if they leave nothing out.
    pub free: Option<&'a Simulation>,
    /// Then without the node's own preferences as well; `None` if it has none.
    pub unpinned: Option<&'a Simulation>,
}

/// What is withheld, by name, then architecture. `left_out` tells why a version that apt would take is not taken.
pub fn withheld(
    installed: &Installed<'_>,
    seen: &Seen<'_>,
    left_out: impl Fn(&Install) -> WithheldCause,
) -> Vec<Withheld> {
    let mut causes: BTreeMap<&str, (&str, WithheldCause)> = BTreeMap::new();
    let free = seen.free.unwrap_or(seen.chosen);
    for install in newer(free, seen.chosen) {
        let cause = left_out(install);
        causes.insert(&install.package, (install.after.as_str(), cause));
    }
    for kept in free.kept.iter().chain(&seen.chosen.kept) {
        let cause = match (installed.get(&kept.package), kept.phased) {
            (Some(known), _) if known.want == "hold" => WithheldCause::Hold,
            (_, true) => WithheldCause::Phased,
            (_, false) => WithheldCause::KeptBack,
        };
        causes
            .entry(&kept.package)
            .or_insert((kept.available.as_str(), cause));
    }
    for install in seen.unpinned.into_iter().flat_map(|all| newer(all, free)) {
        causes
            .entry(&install.package)
            .or_insert((install.after.as_str(), WithheldCause::Pinned));
    }
    let withheld = causes
        .into_iter()
        .filter_map(|(package, (available, cause))| {
            let known = installed.get(package)?;
            Some(Withheld {
                name: known.name.clone(),
                architecture: known.architecture.clone(),
                installed: known.version.clone(),
                available: available.to_owned(),
                cause,
            })
        });
    let mut withheld: Vec<_> = withheld.collect();
    withheld.sort();
    withheld
}

/// What one would bring to packages that are there and the other would not. That is newer: an older version is only taken
/// where preferences say so.
fn newer<'a>(more: &'a Simulation, less: &'a Simulation) -> impl Iterator<Item = &'a Install> {
    more.installs.iter().filter(|install| {
        let other = less.install(&install.package);
        install.before.is_some()
            && !more.downgrades.contains(&install.package)
            && other.is_none_or(|other| other.after != install.after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::packages::parse::{Kept, Known};
    use crate::modules::packages::plan::by_package;

    fn known(name: &str, want: &str) -> Known {
        Known {
            name: name.into(),
            architecture: "all".into(),
            version: "1".into(),
            want: want.into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    /// `NAME=VERSION` would be unpacked, `NAME=VERSION?` is kept, `NAME=VERSION%` waits for its turn.
    fn simulation(what: &[&str]) -> Simulation {
        let mut simulation = Simulation::default();
        for word in what {
            let (package, version) = word.split_once('=').unwrap();
            let plain = version.trim_end_matches(['?', '%']);
            if plain == version {
                simulation.installs.push(Install {
                    package: package.into(),
                    before: (package != "fresh").then(|| "1".into()),
                    after: version.into(),
                    architecture: "all".into(),
                    origins: Vec::new(),
                });
            } else {
                simulation.kept.push(Kept {
                    package: package.into(),
                    available: plain.into(),
                    phased: version.ends_with('%'),
                });
            }
        }
        simulation
    }

    fn told(chosen: &[&str], free: Option<&[&str]>, unpinned: Option<&[&str]>) -> Vec<String> {
        let packages = ["a", "b", "c", "owned"].map(|name| known(name, "install"));
        let mut packages = packages.to_vec();
        packages.push(known("held", "hold"));
        let installed = by_package(&packages, "amd64");
        let (chosen, free, unpinned) = (
            simulation(chosen),
            free.map(simulation),
            unpinned.map(simulation),
        );
        let seen = Seen {
            chosen: &chosen,
            free: free.as_ref(),
            unpinned: unpinned.as_ref(),
        };
        let left_out = |install: &Install| match install.package.as_str() {
            "owned" => WithheldCause::Limits,
            _ => WithheldCause::Policy,
        };
        let withheld = withheld(&installed, &seen, left_out).into_iter();
        withheld
            .map(|one| format!("{} {} {:?}", one.name, one.available, one.cause))
            .collect()
    }

    type Words<'a> = &'a [&'a str];

    /// What is chosen, what would be without rules, and without preferences; and what is told.
    type Case<'a> = (Words<'a>, Option<Words<'a>>, Option<Words<'a>>, Words<'a>);

    #[test]
    fn what_is_withheld_is_told_with_the_cause() {
        let cases: [Case<'_>; 5] = [
            (&["a=2"], None, None, &[]),
            (
                &["a=2?", "b=2%", "held=2?", "gone=2?"],
                None,
                None,
                &["a 2 KeptBack", "b 2 Phased", "held 2 Hold"],
            ),
            // What depends on what is left out is kept back by apt, but not for a reason of its own.
            (
                &["a=2", "c=2?"],
                Some(&["a=3", "b=2", "c=2", "owned=2", "fresh=1", "held=2?"]),
                None,
                &[
                    "a 3 Policy",
                    "b 2 Policy",
                    "c 2 Policy",
                    "held 2 Hold",
                    "owned 2 Limits",
                ],
            ),
            (
                &["a=2"],
                None,
                Some(&["a=2", "b=2", "c=2?", "held=2?"]),
                &["b 2 Pinned"],
            ),
            (
                &[],
                Some(&["a=2"]),
                Some(&["a=3", "b=2"]),
                &["a 2 Policy", "b 2 Pinned"],
            ),
        ];
        for (chosen, free, unpinned, expected) in cases {
            assert_eq!(told(chosen, free, unpinned), expected, "{chosen:?}");
        }
    }

    #[test]
    fn an_older_version_is_nothing_that_is_withheld() {
        let packages = [known("a", "install")];
        let installed = by_package(&packages, "amd64");
        let free = Simulation {
            downgrades: vec!["a".into()],
            ..simulation(&["a=0"])
        };
        let seen = Seen {
            chosen: &Simulation::default(),
            free: Some(&free),
            unpinned: None,
        };
        assert!(withheld(&installed, &seen, |_| WithheldCause::Policy).is_empty());
    }
}
