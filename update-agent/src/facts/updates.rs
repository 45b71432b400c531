//! What an update of everything would bring, and what it would leave.

use super::FactsReader;
use crate::model::{Withheld, WithheldCause};
use crate::modules::packages::{
    self, Install, Installed, KnownPackage, Preferences, Seen, Simulation, Target, View,
};

/// A package for which apt knows a newer version, or a new one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Available {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version that is there; empty if none is and others will need it.
    pub installed: String,
    /// The version that could be there.
    pub available: String,
    /// The suites and codenames that have it, in ascending order.
    pub suites: Vec<String>,
}

impl FactsReader {
    /// What an update of everything would bring, and what it would leave. If apt cannot tell, what it could tell last.
    pub(super) async fn updates(
        &self,
        known: &[KnownPackage],
        native: &str,
    ) -> (Vec<Available>, Vec<Withheld>) {
        let wish = packages::latest();
        let view = View::default();
        match self.tools.simulate(&wish, false, view).await {
            Ok(simulation) => {
                let installed = packages::by_package(known, native);
                let unpinned = self.without_preferences().await;
                let targets = self.targets().await;
                // While the owner's word cannot be had nothing is changed anyway.
                let limits = self.owner.limits().unwrap_or_default();
                let world = World {
                    simulation: &simulation,
                    unpinned: unpinned.as_ref(),
                    targets: &targets,
                    suites: &limits.suites,
                };
                world.updates(&installed)
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "apt cannot tell which updates are available");
                let last = self.last.as_ref().map(|last| &last.facts);
                last.map_or_else(Default::default, |facts| {
                    (facts.available.clone(), facts.withheld.clone())
                })
            }
        }
    }

    /// What an update of everything would bring without the node's own preferences; `None` if it has none.
    async fn without_preferences(&self) -> Option<Simulation> {
        if !packages::has_preferences(&self.place).unwrap_or(false) {
            return None;
        }
        let view = View::default().with(Preferences::Nothing);
        let simulation = self.tools.simulate(&packages::latest(), false, view).await;
        simulation
            .inspect_err(|failure| tracing::warn!(error = %failure, "cannot tell what is pinned"))
            .ok()
    }

    /// The indexes of packages that apt has. Without them suites are known by one name only.
    async fn targets(&self) -> Vec<Target> {
        let targets = self.tools.targets(View::default()).await;
        targets.unwrap_or_else(|failure| {
            tracing::warn!(error = %failure, "cannot tell which suites there are");
            Vec::new()
        })
    }
}

/// What apt would do, and what that is held against.
struct World<'a> {
    simulation: &'a Simulation,
    unpinned: Option<&'a Simulation>,
    targets: &'a [Target],
    /// The suites that the machine's owner allows; empty for any.
    suites: &'a [String],
}

impl World<'_> {
    /// What an update would bring, and what it would leave.
    fn updates(&self, installed: &Installed<'_>) -> (Vec<Available>, Vec<Withheld>) {
        let allowed = Simulation {
            installs: self
                .simulation
                .installs
                .iter()
                .filter(|install| self.is_allowed(install))
                .cloned()
                .collect(),
            ..self.simulation.clone()
        };
        let available = allowed.installs.iter();
        let mut available: Vec<_> = available
            .map(|install| self.available(install, installed))
            .collect();
        available.sort();
        let seen = Seen {
            chosen: &allowed,
            free: Some(self.simulation),
            unpinned: self.unpinned,
        };
        let withheld = packages::withheld(installed, &seen, |_| WithheldCause::Limits);
        (available, withheld)
    }

    /// Whether it is an update, which an older version is not, and the owner allows it.
    fn is_allowed(&self, install: &Install) -> bool {
        let suites = packages::suites(&install.origins, self.targets);
        packages::are_among(&suites, self.suites)
            && !self.simulation.downgrades.contains(&install.package)
    }

    fn available(&self, install: &Install, installed: &Installed<'_>) -> Available {
        let known = installed.get(&install.package);
        let architecture = known.map_or(&install.architecture, |known| &known.architecture);
        Available {
            name: install.name().to_owned(),
            architecture: architecture.clone(),
            installed: install.before.clone().unwrap_or_default(),
            available: install.after.clone(),
            suites: packages::suites(&install.origins, self.targets)
                .into_iter()
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the owner allows only these suites, unless none is named.
    fn world<'a>(simulation: &'a Simulation, suites: &'a [String]) -> World<'a> {
        World {
            simulation,
            unpinned: None,
            targets: &[],
            suites,
        }
    }

    fn install(package: &str, before: Option<&str>, suite: &str) -> Install {
        Install {
            package: package.into(),
            before: before.map(str::to_owned),
            after: "2".into(),
            architecture: "all".into(),
            origins: vec![format!("Debian:12/{suite}")],
        }
    }

    #[test]
    fn new_packages_are_told_and_what_the_owner_does_not_allow_is_withheld() {
        let known = ["app", "lib", "older"].map(|name| KnownPackage {
            name: name.into(),
            architecture: "amd64".into(),
            version: "1".into(),
            want: "install".into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        });
        let installed = packages::by_package(&known, "amd64");
        let simulation = Simulation {
            installs: vec![
                install("app", Some("1"), "stable"),
                install("fresh", None, "stable"),
                install("lib", Some("1"), "security"),
                install("older", Some("3"), "stable"),
            ],
            downgrades: vec!["older".into()],
            ..Simulation::default()
        };
        let told = |suites: &[String]| {
            let (available, withheld) = world(&simulation, suites).updates(&installed);
            let available = available
                .iter()
                .map(|one| format!("{} {:?} {}", one.name, one.installed, one.suites.join(",")));
            let withheld = withheld
                .iter()
                .map(|one| format!("{} {:?}", one.name, one.cause));
            available.chain(withheld).collect::<Vec<_>>()
        };
        assert_eq!(
            told(&[]),
            [
                "app \"1\" stable",
                "fresh \"\" stable",
                "lib \"1\" security"
            ]
        );
        assert_eq!(
            told(&["security".to_owned()]),
            ["lib \"1\" security", "app Limits"]
        );
    }
}
