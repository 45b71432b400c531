//! dpkg's database, its lock, and how current apt's lists are.

use chrono::TimeDelta;

use super::Finding;
use crate::commands::workshop::Workshop;
use crate::model::Failure;
use crate::modules::packages::Packages;
use crate::modules::{Module as _, Try};
use crate::status::{self, Status};

/// Lists that are older than so many times the time between two refreshes are old.
const OLD: i32 = 3;

/// Looks at what apt and dpkg say. An image may come without them.
pub async fn look(workshop: &Workshop<'_>) -> Vec<Finding> {
    if !workshop.has_packages() {
        return Vec::new();
    }
    let mut findings = vec![audit(workshop.tools().audit().await)];
    let modules = workshop.modules();
    for module in modules
        .iter()
        .filter(|module| module.name() == Packages::NAME)
    {
        findings.push(lock(module.at_work(Try::First).await));
    }
    let last = status::read(&workshop.place.status()).unwrap_or_default();
    findings.push(lists(workshop, &last));
    findings
}

fn audit(audit: Result<String, Failure>) -> Finding {
    match audit {
        Ok(found) if found.is_empty() => Finding::good("dpkg", "finds every package in order"),
        Ok(found) => Finding::bad(
            "dpkg",
            found,
            "if an update is open, the agent finishes it by itself; else mend what is named, as `dpkg --audit` says",
        ),
        Err(failure) => Finding::bad("dpkg", failure.reason, "this root has no working dpkg"),
    }
}

fn lock(at_work: Result<Option<String>, Failure>) -> Finding {
    match at_work {
        Ok(None) => Finding::good("dpkg's lock", "is free"),
        Ok(Some(who)) => Finding::doubtful(
            "dpkg's lock",
            who,
            "an update waits until it is done; `fuser -v /var/lib/dpkg/lock-frontend` names it",
        ),
        Err(failure) => Finding::bad("dpkg's lock", failure.reason, "run this as root"),
    }
}

fn lists(workshop: &Workshop<'_>, last: &Status) -> Finding {
    if !last.refresh_trouble.is_empty() {
        return Finding::bad(
            "lists",
            last.refresh_trouble.clone(),
            "see what `apt-get update` says: the sources in /etc/apt, their keys, the network",
        );
    }
    let now = workshop.clock.now();
    let most = workshop.config.pace().refresh_every.checked_mul(OLD);
    let most = most.unwrap_or(TimeDelta::MAX);
    match last.refreshed {
        None => Finding::doubtful(
            "lists",
            "the agent has not made them current yet",
            "is it running?",
        ),
        Some(at) if now - at > most => Finding::doubtful(
            "lists",
            format!("were last made current at {}", at.to_rfc3339()),
            "is the agent running?",
        ),
        Some(_) => Finding::good("lists", "are current, and their signatures hold"),
    }
}
