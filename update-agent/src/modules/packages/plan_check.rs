//! Checks right before the start whether a plan still fits the node.

use super::parse::PlannedInstall;
use super::plan::join_names;
use super::{PackageStep, PackagesModule, StepItem, apt_transaction};
use crate::model::{Failure, FailureKind};

impl PackagesModule {
    /// Fails if a package was changed since the plan was made, except to its planned version.
    pub(super) async fn check_unchanged(&self, steps: &[PackageStep]) -> Result<(), Failure> {
        let installed = self.list_installed().await?;
        let version = |item: &StepItem| {
            let package = installed.get(&item.package).filter(|package| package.is_present());
            package.map(|package| package.version.clone())
        };
        let moved = steps.iter().flat_map(PackageStep::items).filter(|item| {
            let version = version(item);
            version != item.change.before && version != item.change.after
        });
        let moved: Vec<_> = moved.map(|item| item.package.clone()).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "these packages were changed by another program since the plan was made: {}",
            join_names(moved)
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }

    /// Fails if apt would do anything that is not planned.
    pub(super) async fn check_simulation(&self, step: &PackageStep) -> Result<(), Failure> {
        let left = self.remaining_removals(step).await?;
        let simulation = self.tools.simulate_files(&apt_transaction(step, &left)).await?;
        let is_planned = |install: &PlannedInstall| {
            step.items().any(|item| {
                item.package == install.package
                    && item.change.after.as_ref() == Some(&install.after)
            })
        };
        let more = simulation.installs.iter().filter(|install| !is_planned(install));
        let more = more.map(|install| format!("install {} {}", install.package, install.after));
        let removed = simulation.removals.iter().filter(|package| !left.contains(package));
        let surprises: Vec<_> =
            removed.map(|package| format!("remove {package}")).chain(more).collect();
        if surprises.is_empty() {
            return Ok(());
        }
        let reason =
            format!("the plan no longer fits the node: apt would also {}", join_names(surprises));
        Err(Failure::new(FailureKind::Plan, reason))
    }
}
