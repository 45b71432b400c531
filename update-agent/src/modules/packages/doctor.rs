//! Checks of dpkg and its database, the age of the package lists, the available updates, the keys of
//! sources, and the boot loader.

use chrono::TimeDelta;

use super::boot_loader::check_grub_disks;
use super::sources::AptView;
use super::{AllowedChanges, PackagesModule, latest_spec};
use crate::commands::doctor::DoctorFinding;
use crate::model::Failure;
use crate::module_registry::ModuleRegistry;
use crate::modules::{Module as _, TryKind};
use crate::owner::SourceKeyReport;
use crate::status::{self, AgentStatus};
use crate::text::{self, format_instant};

/// Name of the check of the keys in `/etc/evenkeel/keys.d`.
const SOURCE_KEYS: &str = "source keys";

/// Package lists are out of date after this many refresh intervals.
const MAX_REFRESH_INTERVALS: i32 = 3;

/// Checks apt and dpkg. A node whose image contains neither has none of these checks.
pub async fn check_packages(registry: &ModuleRegistry<'_>) -> Vec<DoctorFinding> {
    let Ok(Some(module)) = PackagesModule::build(registry) else {
        return Vec::new();
    };
    let mut findings = vec![
        check_audit(module.tools.audit().await),
        check_lock(module.find_concurrent_change(TryKind::First).await),
    ];
    let last = status::read_status(&registry.paths.status()).unwrap_or_default();
    findings.push(check_lists(registry, &last));
    findings.push(check_updates(&module).await);
    findings.push(check_source_keys(&registry.owner.report_source_keys()));
    // The disks belong to this machine, not to another root. Other checks report an unreadable list.
    if registry.paths.is_own_system() {
        let packages = module.tools.list_packages().await.unwrap_or_default();
        findings.extend(check_grub_disks(registry.paths, &packages));
    }
    findings
}

/// Checks the keys that may sign the sources of an update policy.
fn check_source_keys(report: &SourceKeyReport) -> DoctorFinding {
    if !report.faults.is_empty() {
        return DoctorFinding::failed(
            SOURCE_KEYS,
            report.faults.join("\n"),
            "fix these files: until then each update whose policy adds a source fails",
        );
    }
    if !report.expired.is_empty() {
        return DoctorFinding::warning(
            SOURCE_KEYS,
            report.expired.join("\n"),
            "apt refuses what these keys have signed: replace their files with those that the publisher has renewed",
        );
    }
    let result = match report.key_count {
        0 => "this machine has no keys for sources of update policies".to_owned(),
        count => {
            let keys = text::pluralize(count, "key", "keys");
            format!("{keys} may sign the sources of update policies")
        }
    };
    DoctorFinding::passed(SOURCE_KEYS, result)
}

fn check_audit(audit: Result<String, Failure>) -> DoctorFinding {
    match audit {
        Ok(problems) if problems.is_empty() => {
            DoctorFinding::passed("dpkg", "all packages are in order")
        }
        Ok(problems) => DoctorFinding::failed(
            "dpkg",
            problems,
            "if an update is in progress, the agent repairs this by itself; otherwise fix it as `dpkg --audit` advises",
        ),
        Err(failure) => {
            DoctorFinding::failed("dpkg", failure.reason, "install a working dpkg in this root")
        }
    }
}

fn check_lock(holder: Result<Option<String>, Failure>) -> DoctorFinding {
    match holder {
        Ok(None) => DoctorFinding::passed("dpkg's lock", "is not held"),
        Ok(Some(who)) => DoctorFinding::warning(
            "dpkg's lock",
            who,
            "an update waits for it; `fuser -v /var/lib/dpkg/lock-frontend /var/lib/apt/lists/lock` shows the holder",
        ),
        Err(failure) => {
            DoctorFinding::failed("dpkg's lock", failure.reason, "run this command as root")
        }
    }
}

/// Checks that apt can determine the available updates, as the agent does for its reports: their error is not stored.
async fn check_updates(module: &PackagesModule) -> DoctorFinding {
    let limits = module.owner.limits().unwrap_or_default();
    let allowed = AllowedChanges { removals: false, new_packages: limits.new_packages };
    match module.tools.simulate(&latest_spec(), allowed, AptView::default()).await {
        Ok(_) => DoctorFinding::passed("updates", "apt can determine the available updates"),
        Err(failure) => DoctorFinding::failed(
            "updates",
            format!("apt cannot determine the available updates: {failure}"),
            "if an update is in progress, repeat this later; otherwise check the output of \
             `apt-get --simulate upgrade`",
        ),
    }
}

fn check_lists(registry: &ModuleRegistry<'_>, last: &AgentStatus) -> DoctorFinding {
    if !last.refresh_error.is_empty() {
        return DoctorFinding::failed(
            "lists",
            format!(
                "the last refresh failed: {}; the lists were last refreshed completely: {}",
                last.refresh_error,
                format_instant(last.refreshed)
            ),
            "check the output of `apt-get update`: the sources in /etc/apt, their keys, the network",
        );
    }
    let now = registry.clock.now();
    let most = registry.config.intervals().refresh_interval.checked_mul(MAX_REFRESH_INTERVALS);
    let most = most.unwrap_or(TimeDelta::MAX);
    match last.refreshed {
        None => DoctorFinding::warning(
            "lists",
            "the agent has not refreshed the package lists yet",
            "is it running?",
        ),
        Some(at) if now - at > most => DoctorFinding::warning(
            "lists",
            format!("were last refreshed at {}", format_instant(Some(at))),
            "is the agent running?",
        ),
        Some(at) => DoctorFinding::passed(
            "lists",
            format!("were refreshed at {} and are correctly signed", format_instant(Some(at))),
        ),
    }
}
