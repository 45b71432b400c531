//! The plan of the last run of a node, while the node would plan the same again.

use std::collections::{HashMap, HashSet};

use evenkeel_api::decision::AvailableUpdate;
use evenkeel_api::update_run::RunPackage;
use evenkeel_domain::decide::{TargetKind, Verdict, resolve_target};
use evenkeel_domain::package::PackageChange;
use evenkeel_domain::run::UpdateRun;
use evenkeel_store::decisions::DecisionInput;
use evenkeel_store::nodes::NodeState;
use evenkeel_store::{StoreError, Tx, runs as stored_runs};

use crate::runs;

/// Loads the plan. Empty if a run is open or the last one has succeeded, or if the target, the
/// installed packages or the available updates have changed since the node made the plan.
pub async fn load_last_plan(
    tx: &Tx,
    node: &NodeState,
    input: &DecisionInput,
    updates: &[AvailableUpdate],
) -> Result<Vec<RunPackage>, StoreError> {
    let Ok(target) = resolve_target(&input.facts, &input.desired) else {
        return Ok(Vec::new());
    };
    let (TargetKind::Packages { exactly, .. }, None, Some(end), Some(installed)) =
        (&target.kind, &input.run, &node.last_end, &node.packages_digest)
    else {
        return Ok(Vec::new());
    };
    // A node reports its new packages only after the end of the run that installed them.
    if end.verdict == Verdict::Good || end.target != Some(target.digest()) {
        return Ok(Vec::new());
    }
    let is_valid = |run: &UpdateRun| {
        let planned = run.origin.target.as_ref();
        planned.is_some_and(|planned| planned.is_same(&target))
            && is_current(&run.packages, exactly.is_none(), updates)
    };
    let run = stored_runs::find_opened_with(tx, end.run, installed).await?;
    let run = run.filter(is_valid);
    Ok(run.map(|run| runs::plan_packages(&run.packages)).unwrap_or_default())
}

/// Whether the node still offers the planned versions and, if it is to install the newest version of
/// each package, no others.
fn is_current(plan: &[PackageChange], is_latest: bool, updates: &[AvailableUpdate]) -> bool {
    let offered = updates.iter().map(|update| (key(&update.name, &update.architecture), update));
    let offered: HashMap<_, _> = offered.collect();
    let planned = plan.iter().map(|change| key(&change.name, &change.architecture));
    let planned: HashSet<_> = planned.collect();
    let is_offered = |change: &PackageChange| {
        let Some(desired) = &change.desired else {
            // A removal follows from the other changes.
            return true;
        };
        let before = change.before.as_deref().unwrap_or_default();
        match offered.get(&key(&change.name, &change.architecture)) {
            Some(update) => update.available == *desired && update.installed == before,
            // A package that a policy names need not have a newer version.
            None => !is_latest,
        }
    };
    let is_new = |update: &AvailableUpdate| {
        let may_install = !update.excluded && !update.too_young;
        may_install && !planned.contains(&key(&update.name, &update.architecture))
    };
    !plan.is_empty() && plan.iter().all(is_offered) && !(is_latest && updates.iter().any(is_new))
}

/// What identifies a package on a node.
fn key<'a>(name: &'a str, architecture: &'a str) -> (&'a str, &'a str) {
    (name, architecture)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, before: Option<&str>, desired: Option<&str>) -> PackageChange {
        PackageChange {
            name: name.to_owned(),
            before: before.map(str::to_owned),
            desired: desired.map(str::to_owned),
            ..PackageChange::default()
        }
    }

    fn update(name: &str, installed: &str, available: &str) -> AvailableUpdate {
        AvailableUpdate {
            name: name.to_owned(),
            installed: installed.to_owned(),
            available: available.to_owned(),
            ..AvailableUpdate::default()
        }
    }

    #[test]
    fn a_plan_is_current_while_the_node_offers_the_same_updates() {
        let plan = [
            change("curl", Some("1"), Some("2")),
            change("libnew", None, Some("1")),
            change("libold", Some("1"), None),
        ];
        let updates = [update("curl", "1", "2"), update("libnew", "", "1")];
        assert!(is_current(&plan, true, &updates));
        assert!(!is_current(&[], true, &updates), "there is no plan");
        let newer = [update("curl", "1", "3"), update("libnew", "", "1")];
        assert!(!is_current(&plan, true, &newer) && !is_current(&plan, false, &newer));
        let other = [update("curl", "0", "2"), update("libnew", "", "1")];
        assert!(!is_current(&plan, true, &other), "another version is installed");
        let more = [updates.to_vec(), vec![update("vim", "1", "2")]].concat();
        assert!(!is_current(&plan, true, &more), "the next plan has this update as well");
        assert!(is_current(&plan, false, &more), "the policy does not name it");
        let excluded = AvailableUpdate { excluded: true, ..update("vim", "1", "2") };
        assert!(is_current(&plan, true, &[updates.to_vec(), vec![excluded]].concat()));
        assert!(!is_current(&plan, true, &updates[..1]), "a version is no longer offered");
        assert!(is_current(&plan, false, &updates[..1]));
    }
}
