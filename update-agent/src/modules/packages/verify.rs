//! Looking at what the steps made: versions and states, dpkg's audit, services.

use std::collections::BTreeMap;

use super::advice::advice;
use super::note::{Baseline, asked_since};
use super::parse::Known;
use super::plan::{Item, Step, enumerate};
use super::{Deb, Packages, aptlog, audit};
use crate::facts::stale_services;
use crate::model::{Failure, FailureKind, PackageResult, ServiceRule};
use crate::modules::{After, Verdict};

/// Advice about more packages than this is not given: a person then needs the log anyway.
const MOST_ADVICE: usize = 5;

impl Packages {
    /// The packages that are there, by their name as apt says it.
    pub(super) async fn installed(&self) -> Result<BTreeMap<String, Known>, Failure> {
        let native = self.tools.architecture().await?;
        let known = self.tools.list().await?.into_iter();
        Ok(known.map(|known| (known.package(&native), known)).collect())
    }

    /// Looks at everything that the steps may have changed.
    pub(super) async fn look(&self, steps: &[Step], noted: &Baseline) -> Result<Verdict, Failure> {
        let installed = self.installed().await?;
        let items: Vec<_> = steps.iter().flat_map(Step::items).collect();
        let results = items.iter().map(|item| result(item, &installed)).collect();
        self.keep_what_is_needed(&items, &installed);
        let mut problem = self.packages_problem(steps, &installed, noted).await?;
        if problem.is_none() && self.services && !noted.services.is_empty() {
            problem = self.services_problem(noted).await?;
        }
        Ok(Verdict {
            results,
            problem,
            kept_conffiles: self.kept_conffiles(steps, noted).await?,
            ..Verdict::default()
        })
    }

    /// What is wrong with packages, and what a person must do about it.
    pub(super) async fn packages_problem(
        &self,
        steps: &[Step],
        installed: &BTreeMap<String, Known>,
        noted: &Baseline,
    ) -> Result<Option<Failure>, Failure> {
        let audit = self.tools.audit().await?;
        let fresh = audit::fresh(&audit, &noted.audit);
        let wrong: Vec<_> = steps
            .iter()
            .flat_map(Step::items)
            .filter_map(|item| wrong(item, installed).map(|words| (item, words)))
            .collect();
        if wrong.is_empty() && fresh.is_empty() {
            return Ok(None);
        }
        let log = aptlog::since(&self.place, noted.log);
        let messy = audit::packages(&fresh);
        let reason = if wrong.is_empty() {
            let named = enumerate(messy.iter().cloned());
            let colon = if named.is_empty() { "" } else { ": " };
            format!("dpkg finds packages in a mess{colon}{named}")
        } else {
            enumerate(wrong.iter().map(|(_, words)| words.clone()))
        };
        let unfinished = wrong.iter().map(|(item, _)| item.package.as_str());
        let unfinished = unfinished.chain(messy.iter().map(String::as_str));
        let debs: Vec<&Deb> = steps.iter().flat_map(Step::debs).collect();
        let advice = advice_for(unfinished, installed, &debs, &log);
        let reason = [vec![reason], advice].concat().join("; ");
        let failure = Failure::with_log(FailureKind::Verify, reason, &audit);
        Ok(Some(aptlog::with_log(failure, &log)))
    }

    async fn services_problem(&self, noted: &Baseline) -> Result<Option<Failure>, Failure> {
        let lost = match self.tools.lost_services(&noted.services).await {
            Ok(lost) => lost,
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot tell how services are");
                return Ok(None);
            }
        };
        if lost.is_empty() {
            return Ok(None);
        }
        let reason = format!(
            "services that were active before are not any more: {}; look at them with `systemctl status`",
            enumerate(lost)
        );
        let log = aptlog::since(&self.place, noted.log);
        let failure = Failure::new(FailureKind::Verify, reason);
        Ok(Some(aptlog::with_log(failure, &log)))
    }

    /// A torn package can only be mended from its file: then the files stay when the attempt is over.
    fn keep_what_is_needed(&self, items: &[&Item], installed: &BTreeMap<String, Known>) {
        let torn = items
            .iter()
            .any(|item| installed.get(&item.package).is_some_and(Known::is_torn));
        if let Err(error) = self.archives.keep(torn) {
            tracing::warn!(error = %evenkeel_kit::chain(&error), "cannot mark the files as needed");
        }
    }

    /// Whether nothing is left half done of what the steps change, nor of anything else.
    pub(super) async fn is_sound(&self, steps: &[Step]) -> Result<bool, Failure> {
        let installed = self.installed().await?;
        if !installed.values().all(Known::is_settled) {
            return Ok(false);
        }
        // An audit may have old complaints about packages that the steps have nothing to do with.
        let findings: Vec<_> = audit::findings(&self.tools.audit().await?)
            .into_iter()
            .collect();
        let messy = audit::packages(&findings);
        let mut items = steps.iter().flat_map(Step::items);
        Ok(!items.any(|item| messy.contains(&item.package) || messy.contains(&item.change.name)))
    }

    /// Services that run what was replaced, and whether the change asks for a reboot.
    pub(super) async fn follow_up(&self, steps: &[Step], noted: &Baseline) -> After {
        let reasons = asked_since(&self.place, &noted.asked);
        let mut after = After {
            reboot: (!reasons.is_empty()).then_some(reasons),
            ..After::default()
        };
        let wanted = steps.iter().any(|step| {
            matches!(step, Step::Install { services, .. } if *services == ServiceRule::Restart)
        });
        if wanted && self.services {
            let stale = stale_services(&self.place).into_iter();
            let stale: Vec<_> = stale.map(|service| service.name).collect();
            let restarted = self.tools.restart_services(&stale).await;
            after.restarted = restarted.done;
            after.remarks = restarted.remarks;
        }
        after
    }
}

/// What to do about packages, each once.
fn advice_for<'a>(
    packages: impl Iterator<Item = &'a str>,
    installed: &BTreeMap<String, Known>,
    debs: &[&Deb],
    log: &str,
) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for package in packages {
        let Some(known) = installed.get(package) else {
            continue;
        };
        let begin = format!("{package}=");
        let file = debs.iter().find(|deb| deb.order.starts_with(&begin));
        let words = advice(known, file.copied(), log);
        if let Some(words) = words.filter(|words| !told.contains(words)) {
            told.push(words);
        }
    }
    told.truncate(MOST_ADVICE);
    told
}

/// A package of the plan as it is now.
fn result(item: &Item, installed: &BTreeMap<String, Known>) -> PackageResult {
    let known = installed.get(&item.package);
    let architecture = known.map_or(&item.change.architecture, |known| &known.architecture);
    PackageResult {
        name: item.change.name.clone(),
        architecture: architecture.clone(),
        version: known
            .filter(|known| known.is_present())
            .map_or_else(String::new, |known| known.version.clone()),
        state: known.map_or_else(String::new, |known| known.state.clone()),
    }
}

/// What is wrong with a package of the plan, in words.
fn wrong(item: &Item, installed: &BTreeMap<String, Known>) -> Option<String> {
    let known = installed
        .get(&item.package)
        .filter(|known| known.is_present());
    match (item.change.after.as_deref(), known) {
        (Some(wanted), Some(known)) if known.version == wanted && known.state == "installed" => {
            None
        }
        (Some(wanted), Some(known)) => Some(format!(
            "{} is {} and {} instead of {wanted} and installed",
            item.package, known.version, known.state
        )),
        (Some(wanted), None) => Some(format!("{} is not there instead of {wanted}", item.package)),
        (None, Some(known)) => Some(format!(
            "{} is {} and {} instead of removed",
            item.package, known.version, known.state
        )),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Change;
    use crate::modules::packages::Digest;

    fn known(version: &str, state: &str) -> Known {
        Known {
            name: "demo".into(),
            architecture: "all".into(),
            version: version.into(),
            want: "install".into(),
            state: state.into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    fn item(after: Option<&str>) -> Item {
        Item {
            package: "demo".into(),
            change: Change {
                name: "demo".into(),
                architecture: "all".into(),
                before: Some("1.0".into()),
                after: after.map(str::to_owned),
                suite: String::new(),
                download_bytes: 0,
            },
        }
    }

    #[test]
    fn a_package_is_held_against_the_plan() {
        let state = |known: Known| BTreeMap::from([("demo".to_owned(), known)]);
        for (after, installed, expected) in [
            (Some("1.1"), state(known("1.1", "installed")), None),
            (
                Some("1.1"),
                state(known("1.0", "installed")),
                Some("demo is 1.0 and installed instead of 1.1 and installed"),
            ),
            (
                Some("1.1"),
                state(known("1.1", "half-configured")),
                Some("demo is 1.1 and half-configured instead of 1.1 and installed"),
            ),
            (
                Some("1.1"),
                BTreeMap::new(),
                Some("demo is not there instead of 1.1"),
            ),
            (
                Some("1.1"),
                state(known("1.0", "config-files")),
                Some("demo is not there instead of 1.1"),
            ),
            (None, BTreeMap::new(), None),
            (None, state(known("1.0", "config-files")), None),
            (
                None,
                state(known("1.0", "installed")),
                Some("demo is 1.0 and installed instead of removed"),
            ),
        ] {
            assert_eq!(wrong(&item(after), &installed).as_deref(), expected);
        }
    }

    #[test]
    fn advice_is_given_once_for_each_package_and_names_the_kept_file() {
        let torn = known("1.1", "half-installed");
        let installed = BTreeMap::from([("demo".to_owned(), torn)]);
        let file = Deb {
            name: "demo_1.1_all.deb".into(),
            size: 1,
            digest: Digest::Sha256(String::new()),
            order: "demo=1.1".into(),
            uri: String::new(),
        };
        let told = advice_for(
            ["demo", "demo", "unknown"].into_iter(),
            &installed,
            &[&file],
            "",
        );
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("archives/demo_1.1_all.deb"), "{}", told[0]);
    }
}
