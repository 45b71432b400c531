//! Summary of the facts of a node, for lists, filters and conditions.

use evenkeel_domain::Time;
use evenkeel_domain::instance::FactsSummary;
use evenkeel_domain::package::is_security_update;
use evenkeel_domain::text::{cut, cut_list, storable};
use evenkeel_proto::agent::{Facts, PackageLists};

use crate::wire::agent::parse_instant;

/// The maximum length of an error of the package lists, in bytes.
const MAX_LISTS_ERROR_BYTES: usize = 1_000;

/// The maximum length of the name of a package that requires a reboot, in bytes.
const MAX_PACKAGE_NAME_BYTES: usize = 128;

/// Name of the agent's module that updates packages.
const PACKAGES_MODULE: &str = "packages";

/// Summarizes the facts. What the agent does not report is `None`.
pub fn summarize(facts: &Facts) -> FactsSummary {
    let lists = facts.package_lists.as_ref();
    let refreshed_at = lists.and_then(|lists| lists.refreshed_at).and_then(parse_instant);
    // Lists that were never fetched offer nothing, which is not the same as no updates. An agent of
    // an older release sends no state of the lists. If one of several sources is broken, the lists
    // are never complete, and the updates of the others count.
    let offers_updates = !facts.available.is_empty() || !facts.held_back.is_empty();
    let is_known = facts.modules.iter().any(|module| module == PACKAGES_MODULE)
        && (lists.is_none() || refreshed_at.is_some() || offers_updates);
    let security = security_updates(facts);
    FactsSummary {
        version: FactsSummary::VERSION,
        kernel_release: Some(facts.kernel_release.clone()).filter(|text| !text.is_empty()),
        reboot_required: Some(facts.reboot_required),
        reboot_required_by: Some(reboot_packages(facts)),
        boot_time: facts.boot_time.and_then(parse_instant),
        package_lists_refreshed_at: refreshed_at,
        package_lists_error: lists.map(|lists| lists_error(lists, refreshed_at)),
        security_updates: is_known.then_some(security),
        held_back_updates: is_known.then(|| count(facts.held_back.len())),
        stale_services: Some(count(facts.stale_services.len())),
    }
}

/// The first packages that require a reboot.
fn reboot_packages(facts: &Facts) -> Vec<String> {
    cut_list(&facts.reboot_required_by, FactsSummary::MAX_REBOOT_PACKAGES, MAX_PACKAGE_NAME_BYTES)
}

/// Number of security updates that are not installed. Those that are held back count if the agent
/// knows their suites.
fn security_updates(facts: &Facts) -> u32 {
    let available = facts.available.iter().map(|one| (&one.suites, &one.origins));
    let held_back = facts.held_back.iter().map(|one| (&one.suites, &one.origins));
    let security =
        available.chain(held_back).filter(|(suites, origins)| is_security_update(suites, origins));
    count(security.count())
}

/// Why the lists are not current; empty if the last refresh succeeded.
fn lists_error(lists: &PackageLists, refreshed_at: Option<Time>) -> String {
    if lists.error.is_empty() && refreshed_at.is_none() {
        return "the agent has not fetched the package lists yet".to_owned();
    }
    cut(&storable(&lists.error), MAX_LISTS_ERROR_BYTES)
}

fn count(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::agent::{AvailablePackage, HeldBackPackage};
    use prost_types::Timestamp;

    use super::*;

    fn lists(refreshed_seconds: Option<i64>, error: &str) -> PackageLists {
        let refreshed_at = refreshed_seconds.map(|seconds| Timestamp { seconds, nanos: 0 });
        PackageLists { refreshed_at, error: error.to_owned() }
    }

    fn facts(package_lists: Option<PackageLists>) -> Facts {
        let suites = vec!["bookworm-security".to_owned()];
        Facts {
            modules: vec![PACKAGES_MODULE.to_owned()],
            available: vec![
                AvailablePackage { suites: suites.clone(), ..AvailablePackage::default() },
                AvailablePackage::default(),
            ],
            held_back: vec![
                HeldBackPackage { suites, ..HeldBackPackage::default() },
                HeldBackPackage::default(),
            ],
            package_lists,
            ..Facts::default()
        }
    }

    #[test]
    fn security_updates_that_are_held_back_count() {
        let summary = summarize(&facts(Some(lists(Some(7), ""))));
        assert_eq!(summary.security_updates, Some(2));
        assert_eq!(summary.held_back_updates, Some(2));
        assert_eq!(summary.package_lists_error.as_deref(), Some(""));
        assert_eq!(summary.kernel_release, None, "an empty text is unknown");
    }

    #[test]
    fn the_first_packages_that_require_a_reboot_and_a_valid_boot_time_are_kept() {
        let reported = |seconds| Facts {
            reboot_required_by: (0..50).map(|n| format!("linux-{n}{}", "x".repeat(500))).collect(),
            boot_time: Some(Timestamp { seconds, nanos: 0 }),
            ..Facts::default()
        };
        let summary = summarize(&reported(1_800_000_000));
        assert_eq!(summary.boot_time.map(|at| at.timestamp()), Some(1_800_000_000));
        let packages = summary.reboot_required_by.expect("a list");
        assert_eq!(packages.len(), FactsSummary::MAX_REBOOT_PACKAGES);
        assert!(packages.iter().all(|name| name.len() <= MAX_PACKAGE_NAME_BYTES), "{packages:?}");
        assert_eq!(summarize(&reported(i64::MAX)).boot_time, None, "no year that can be stored");
        assert_eq!(summarize(&Facts::default()).boot_time, None, "an older agent");
    }

    #[test]
    fn lists_that_were_never_fetched_offer_an_unknown_number_of_updates() {
        let never = facts(Some(lists(None, "")));
        assert_eq!(summarize(&never).security_updates, Some(2), "those of the other sources");
        let empty = Facts { available: Vec::new(), held_back: Vec::new(), ..never };
        let summary = summarize(&empty);
        assert_eq!((summary.security_updates, summary.held_back_updates), (None, None));
        let error = summary.package_lists_error.expect("an error");
        assert!(error.contains("not fetched the package lists yet"), "{error}");
        let without_packages = Facts { modules: Vec::new(), ..facts(None) };
        assert_eq!(summarize(&without_packages).security_updates, None);
        assert_eq!(summarize(&facts(None)).security_updates, Some(2), "an older agent");
    }
}
