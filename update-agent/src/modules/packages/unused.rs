//! Removes packages that were installed automatically and that no package needs any more.
//!
//! apt decides which packages these are, for the state after the update. The step is the last one
//! of a plan, and its failure is only a remark: the update itself has then succeeded. If a package is
//! not configured, the unused kernels are also removed in a first step.

use std::collections::BTreeSet;
use std::slice;

use super::apt::{AptTransaction, tool_failure};
use super::boot_space::{has_read_only_kernels, measure_boot_file_systems};
use super::parse::Simulation;
use super::plan::{PackageObservation, PackageStep, index_by_apt_name, join_names};
use super::protected::removal_refusal;
use super::refusals::RELEASE_PACKAGE;
use super::rules::is_excluded;
use super::sources::AptView;
use super::{AllowedChanges, PackagesModule, apt_log};
use crate::kernel_history::KernelHistory;
use crate::model::{Failure, FailureKind, PackageSpec, UnusedPackagesRule};
use crate::modules::TryKind;
use crate::os;

/// Maximum number of simulations until no package is left that must stay.
const MAX_SIMULATIONS: usize = 5;

/// Packages of one kernel release are named with one of these prefixes and the release.
const KERNEL_PREFIXES: [&str; 5] = [
    "linux-image-",
    "linux-image-unsigned-",
    "linux-modules-",
    "linux-modules-extra-",
    "linux-headers-",
];

impl PackagesModule {
    /// The packages that no package needs after the update, and that policy and owner allow to
    /// remove. A failure is only logged: it must not prevent the update.
    pub(super) async fn find_unused(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        view: AptView,
        observed: &PackageObservation,
    ) -> Vec<String> {
        if spec.rules.unused_packages == UnusedPackagesRule::Keep || !observed.owner_limits.removals
        {
            return Vec::new();
        }
        if has_read_only_kernels(&measure_boot_file_systems(&self.paths)) {
            tracing::warn!(
                "unused packages stay, because the file system of the kernels is read-only"
            );
            return Vec::new();
        }
        let kernels = self.kernels_in_use();
        let is_old_kernel =
            |package: &String| is_kernel_package(package) && !belongs_to_kernel(package, &kernels);
        if spec.rules.unused_packages == UnusedPackagesRule::RemoveKernels
            && !observed.automatic.iter().any(is_old_kernel)
        {
            return Vec::new();
        }
        let context = (observed, kernels.as_slice());
        let unused = self.simulate_until_allowed(spec, allowed, view, context).await;
        unused.unwrap_or_else(|failure| {
            tracing::warn!(error = %failure, "cannot find out which packages are unused");
            Vec::new()
        })
    }

    /// The kernels that must stay: the running one, and the one that ran before it.
    fn kernels_in_use(&self) -> [String; 3] {
        let history = KernelHistory::read(&self.paths);
        [os::kernel_release(), history.running, history.previous]
    }

    /// Simulates the removal of unused packages until it contains only allowed removals. apt gets
    /// the others as packages in use, so that it also retains what they need.
    async fn simulate_until_allowed(
        &self,
        spec: &PackageSpec,
        allowed: AllowedChanges,
        view: AptView,
        (observed, kernels): (&PackageObservation, &[String]),
    ) -> Result<Vec<String>, Failure> {
        let mut retained = BTreeSet::new();
        for _ in 0..MAX_SIMULATIONS {
            let in_use = in_use_option(kernels, &retained);
            let simulation =
                self.tools.simulate_unused(spec, allowed, view, in_use.as_deref()).await?;
            let (removable, others) = partition_unused(spec, observed, kernels, &simulation);
            if others.is_empty() {
                return Ok(removable);
            }
            retained.extend(others);
        }
        let reason = format!(
            "apt would also remove packages that must stay, such as {}",
            join_names(retained)
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }

    /// Removes the packages of a step. Fails without a change if apt would remove others as well.
    pub(super) async fn remove_unused(
        &self,
        step: &PackageStep,
        trying: TryKind,
    ) -> Result<(), Failure> {
        if trying == TryKind::Again {
            // apt or dpkg may have outlived the agent and still be running.
            let _lock = self.lock_dpkg(self.tools.timeouts().apply).await?;
            self.tools.configure_all().await?;
        }
        self.apply_dpkg_updates().await?;
        let left = self.remaining_removals(step).await?;
        if left.is_empty() {
            return Ok(());
        }
        self.check_still_unused(step, &left).await?;
        let removals = left.iter().map(String::as_str).collect();
        let transaction = AptTransaction { removals, ..AptTransaction::default() };
        let simulation = self.tools.simulate_files(&transaction).await?;
        let mut more = simulation.removals;
        more.retain(|package| !left.contains(package));
        more.extend(simulation.installs.into_iter().map(|install| install.package));
        if !more.is_empty() {
            let reason = format!(
                "the unused packages stay, because apt would also change {}",
                join_names(more)
            );
            return Err(Failure::new(FailureKind::Plan, reason));
        }
        let start = apt_log::log_length(&self.paths);
        let failed = match self.run_transaction(step).await {
            Ok(output) if output.succeeded() => return Ok(()),
            Ok(output) => {
                tool_failure(FailureKind::Apply, "the removal of unused packages", &output)
            }
            Err(failed) => failed,
        };
        // With a pending trigger of another package, the whole update would have failed.
        if let Err(failure) = self.configure_remaining().await {
            tracing::warn!(error = %failure, "cannot run the triggers after a failed removal");
        }
        Err(apt_log::add_log(failed, &apt_log::read_since(&self.paths, start)))
    }

    /// Removes the unused kernels of a step before the update. A failure is only logged: the last step of the plan tries
    /// again, also for a kernel that another package needs until its update.
    pub(super) async fn remove_kernels_before_update(&self, step: &PackageStep, trying: TryKind) {
        if let Err(failure) = self.remove_kernels_with_dpkg(step, trying).await {
            tracing::warn!(error = %failure, "unused kernels stay until the end of the update");
        }
    }

    /// Removes packages with dpkg, because apt first configures the packages that may need the space. dpkg removes only the
    /// named packages, and none that another package needs.
    async fn remove_kernels_with_dpkg(
        &self,
        step: &PackageStep,
        trying: TryKind,
    ) -> Result<(), Failure> {
        // After a restart of the agent, apt or dpkg may have outlived it and still be running.
        let wait = match trying {
            TryKind::First => self.tools.timeouts().lock,
            TryKind::Again => self.tools.timeouts().apply,
        };
        let _lock = self.lock_dpkg(wait).await?;
        let left = self.remaining_removals(step).await?;
        if left.is_empty() {
            return Ok(());
        }
        self.check_still_unused(step, &left).await?;
        let names: Vec<&str> = left.iter().map(String::as_str).collect();
        let output = self.tools.remove_packages(&names).await?;
        if output.succeeded() {
            return Ok(());
        }
        Err(tool_failure(FailureKind::Apply, "dpkg --remove", &output))
    }

    /// Fails if the limits of the owner now protect one of the packages, or if one belongs to a kernel that is in use now:
    /// the plan may be days old, and another kernel may have been started since.
    async fn check_still_unused(&self, step: &PackageStep, left: &[String]) -> Result<(), Failure> {
        if let Some(why) = self.limits_refusal(slice::from_ref(step)).await? {
            let reason = format!("the unused packages stay: {why}");
            return Err(Failure::new(FailureKind::Limits, reason));
        }
        let kernels = self.kernels_in_use();
        let in_use = left.iter().filter(|package| belongs_to_kernel(package, &kernels));
        let in_use: Vec<_> = in_use.cloned().collect();
        if in_use.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "the unused packages stay, because a kernel was started since the plan was made: {}",
            join_names(in_use)
        );
        Err(Failure::new(FailureKind::Plan, reason))
    }
}

/// Whether a package belongs to one kernel release.
pub(super) fn is_kernel_package(package: &str) -> bool {
    KERNEL_PREFIXES.iter().any(|prefix| {
        let release = package.strip_prefix(prefix);
        release.is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// Whether a package belongs to one of these kernel releases.
fn belongs_to_kernel(package: &str, kernels: &[String]) -> bool {
    let name = package.split(':').next().unwrap_or_default();
    kernels.iter().filter(|release| !release.is_empty()).any(|release| {
        KERNEL_PREFIXES.iter().any(|prefix| {
            let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(release));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    })
}

/// Divides the unused packages into those that may be removed and those that must stay.
fn partition_unused(
    spec: &PackageSpec,
    observed: &PackageObservation,
    kernels: &[String],
    simulation: &Simulation,
) -> (Vec<String>, Vec<String>) {
    let installed = index_by_apt_name(&observed.packages, &observed.native_architecture);
    let only_kernels = spec.rules.unused_packages == UnusedPackagesRule::RemoveKernels;
    let is_removable = |package: &String| {
        let is_on_hold =
            installed.get(package).is_none_or(|dpkg_package| dpkg_package.want == "hold");
        (!only_kernels || is_kernel_package(package))
            && !belongs_to_kernel(package, kernels)
            && !is_on_hold
            && package != RELEASE_PACKAGE
            && !is_excluded(&spec.rules, package)
            && removal_refusal(package, &observed.owner_limits, &observed.protected).is_none()
    };
    let unused = simulation.removals.iter();
    let unused = unused.filter(|package| !observed.simulation.removals.contains(package));
    unused.cloned().partition(is_removable)
}

/// The setting of apt for packages that are in use although no package needs them, as a regular
/// expression; `None` if there are none.
fn in_use_option(kernels: &[String], packages: &BTreeSet<String>) -> Option<String> {
    let releases = kernels.iter().filter(|release| !release.is_empty());
    let kernels = releases.map(|release| format!("linux-.*-{}(-.*)?", escape_regex(release)));
    let names = packages.iter().map(|package| package.split(':').next().unwrap_or_default());
    let patterns: BTreeSet<String> = kernels.chain(names.map(escape_regex)).collect();
    let patterns: Vec<String> = patterns.into_iter().collect();
    (!patterns.is_empty()).then(|| format!("APT::NeverAutoRemove::=^({})$", patterns.join("|")))
}

/// Escapes a text for an extended regular expression.
fn escape_regex(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_punctuation() && !"-_:~".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PackageMode, PackageRules};
    use crate::modules::packages::parse::DpkgPackage;
    use crate::owner::OwnerLimits;

    const RUNNING: &str = "6.1.0-40-amd64";

    fn package(name: &str, want: &str) -> DpkgPackage {
        DpkgPackage {
            name: name.into(),
            architecture: "amd64".into(),
            version: "1".into(),
            want: want.into(),
            state: "installed".into(),
            flag: "ok".into(),
            size: 0,
        }
    }

    fn partition(
        rule: UnusedPackagesRule,
        limits: OwnerLimits,
        unused: &[&str],
    ) -> (Vec<String>, Vec<String>) {
        let rules = PackageRules {
            unused_packages: rule,
            exclude: vec!["excluded*".into()],
            ..PackageRules::default()
        };
        let spec = PackageSpec { rules, ..PackageSpec::new(PackageMode::Latest) };
        let mut packages: Vec<_> = unused.iter().map(|name| package(name, "install")).collect();
        packages.push(package("held", "hold"));
        let observed = PackageObservation {
            native_architecture: "amd64".into(),
            packages,
            owner_limits: limits,
            simulation: Simulation { removals: vec!["planned".into()], ..Simulation::default() },
            ..PackageObservation::default()
        };
        let removals = unused.iter().map(|&name| name.to_owned()).collect();
        let simulation = Simulation { removals, ..Simulation::default() };
        partition_unused(&spec, &observed, &[RUNNING.to_owned(), String::new()], &simulation)
    }

    #[test]
    fn only_unused_packages_that_the_rules_allow_are_removed() {
        let unused = [
            "linux-image-6.1.0-38-amd64",
            "linux-headers-6.1.0-38-amd64",
            "linux-image-6.1.0-40-amd64",
            "linux-image-6.1.0-40-amd64-unsigned",
            "linux-image-amd64",
            "libunused1",
            "excluded1",
            "held",
            "planned",
            "base-files",
        ];
        let limits = OwnerLimits::default;
        let (removed, stay) = partition(UnusedPackagesRule::RemoveKernels, limits(), &unused);
        assert_eq!(removed, ["linux-image-6.1.0-38-amd64", "linux-headers-6.1.0-38-amd64"]);
        assert_eq!(stay.len(), 7, "{stay:?}");
        let (removed, _) = partition(UnusedPackagesRule::RemoveAll, limits(), &unused);
        assert_eq!(
            removed,
            [
                "linux-image-6.1.0-38-amd64",
                "linux-headers-6.1.0-38-amd64",
                "linux-image-amd64",
                "libunused1"
            ]
        );
        let protected =
            OwnerLimits { protected_packages: vec!["linux-image-*".into()], ..limits() };
        let (removed, _) = partition(UnusedPackagesRule::RemoveKernels, protected, &unused);
        assert_eq!(removed, ["linux-headers-6.1.0-38-amd64"]);
    }

    #[test]
    fn apt_gets_the_kernels_and_packages_that_stay_as_one_expression() {
        assert_eq!(in_use_option(&[String::new()], &BTreeSet::new()), None);
        let packages = ["g++:i386".to_owned()].into();
        assert_eq!(
            in_use_option(&["6.1.0-40".to_owned(), String::new()], &packages).as_deref(),
            Some("APT::NeverAutoRemove::=^(g\\+\\+|linux-.*-6\\.1\\.0-40(-.*)?)$")
        );
    }
}
