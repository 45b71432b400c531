//! Checks of dpkg's database, its lock, and the age of the package lists.

use chrono::TimeDelta;

use super::PackagesModule;
use crate::commands::doctor::DoctorFinding;
use crate::model::Failure;
use crate::module_registry::ModuleRegistry;
use crate::modules::{Module as _, TryKind};
use crate::status::{self, AgentStatus};

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
    findings
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
            "an update waits for it; `fuser -v /var/lib/dpkg/lock-frontend` shows the holder",
        ),
        Err(failure) => {
            DoctorFinding::failed("dpkg's lock", failure.reason, "run this command as root")
        }
    }
}

fn check_lists(registry: &ModuleRegistry<'_>, last: &AgentStatus) -> DoctorFinding {
    if !last.refresh_error.is_empty() {
        return DoctorFinding::failed(
            "lists",
            last.refresh_error.clone(),
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
            format!("were last refreshed at {}", at.to_rfc3339()),
            "is the agent running?",
        ),
        Some(_) => DoctorFinding::passed("lists", "are up to date and correctly signed"),
    }
}
