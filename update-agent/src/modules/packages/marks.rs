//! The marks of automatically and manually installed packages: as apt would leave them if it
//! installed the packages by their names.

use std::collections::BTreeSet;

use super::PackagesModule;
use super::parse::DpkgPackage;
use super::plan::{InstalledPackages, PackageObservation};
use super::providers::resolve_requirement;
use crate::model::{PackageMode, PackageSpec};

/// The marks that a plan sets, by the names of the packages in apt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedMarks {
    pub automatic: Vec<String>,
    pub manual: Vec<String>,
}

/// Plans the marks. apt marks every package that is installed from a file as manually installed, so
/// automatic packages must be marked again, and new packages that were not requested as well. A
/// package that the policy names is marked as manual, also if it is not changed.
pub fn plan_marks(
    spec: &PackageSpec,
    observed: &PackageObservation,
    installed: &InstalledPackages<'_>,
) -> PlannedMarks {
    let requested: BTreeSet<&str> = match &spec.mode {
        PackageMode::Latest => BTreeSet::new(),
        PackageMode::Exactly(packages) => packages
            .iter()
            .flat_map(|package| resolve_requirement(&package.name, observed, installed))
            .collect(),
    };
    let installs = observed.simulation.installs.iter();
    let is_automatic = |package: &str, is_new: bool| {
        !requested.contains(package) && (is_new || observed.automatic.contains(package))
    };
    let automatic =
        installs.filter(|install| is_automatic(&install.package, install.before.is_none()));
    let manual = requested.iter().filter(|package| {
        observed.automatic.contains(**package)
            && observed.simulation.install(package).is_none()
            && installed.contains_key(**package)
    });
    PlannedMarks {
        automatic: automatic.map(|install| install.package.clone()).collect(),
        manual: manual.map(|package| (*package).to_owned()).collect(),
    }
}

impl PackagesModule {
    /// After a failed installation: marks packages as automatic that apt has marked as manual. A
    /// failure is only logged, because the installation has failed anyway.
    pub(super) async fn restore_marks(&self, automatic: &[String]) {
        let marked = async {
            let installed = self.list_installed().await?;
            let is_present =
                |package: &&String| installed.get(*package).is_some_and(DpkgPackage::is_present);
            let present: Vec<String> = automatic.iter().filter(is_present).cloned().collect();
            self.tools.mark_automatic(&present).await
        };
        if let Err(failure) = marked.await {
            tracing::warn!(error = %failure, "cannot restore the marks of automatic packages");
        }
    }
}
