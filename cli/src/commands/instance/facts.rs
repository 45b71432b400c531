//! The facts of a node, as its instance shows them. What is unknown is never shown as none.

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_api::instance::{InstanceForeignChange, InstanceHeldBackPackage, InstanceResource};
use evenkeel_api::os::OsType;

use crate::page::{Cell, DetailPage, Tone, cells};
use crate::time::{format_distance, format_optional_time, format_time};

/// Package lists that are older than this say nothing about the updates that are missing now. The
/// server raises the condition `package_lists_outdated` at the same age.
const MAX_LISTS_AGE: TimeDelta = TimeDelta::days(3);

const UNKNOWN: &str = "unknown";

/// Adds the facts that fit on one line each. A node that is updated by images has no packages.
pub fn add_facts(page: &mut DetailPage, instance: &InstanceResource) {
    page.field_if("kernel", &instance.kernel_release);
    if !is_updated_by_images(instance) {
        page.field("lists", lists_field(instance))
            .field("security", security_cell(instance))
            .field("held back", held_back_cell(instance));
    }
    page.field("reboot", reboot_cell(instance));
}

fn is_updated_by_images(instance: &InstanceResource) -> bool {
    instance.os.as_ref().is_some_and(|os| os.os_type == OsType::Immutable)
}

/// Adds the facts that have several rows.
pub fn add_fact_tables(page: &mut DetailPage, instance: &InstanceResource) {
    let reasons = instance.reboot_reasons.iter().map(|reason| cells![reason]);
    page.table("A reboot is required because:", &["REASON"], reasons)
        .table(
            held_back_title(instance),
            &["PACKAGE", "ARCHITECTURE", "INSTALLED", "AVAILABLE", "SUITE", "SECURITY", "CAUSE"],
            instance.held_back_packages.iter().map(held_back_row),
        )
        .table(
            "Services that run replaced files:",
            &["SERVICE", "FILES"],
            instance.stale_units.iter().map(|unit| cells![&unit.name, unit.files.join(" ")]),
        )
        .table(
            "Packages that others changed last:",
            &["TIME", "CHANGE"],
            instance.foreign_change.iter().flat_map(foreign_change_rows),
        );
}

/// Whether the node holds back more packages than the server lists.
pub fn is_held_back_list_cut(instance: &InstanceResource) -> bool {
    let all = instance.held_back_updates.and_then(|all| usize::try_from(all).ok());
    all.is_some_and(|all| all > instance.held_back_packages.len())
}

fn held_back_title(instance: &InstanceResource) -> &'static str {
    if is_held_back_list_cut(instance) { "Held back, the first ones:" } else { "Held back:" }
}

/// The packages that the node lists, and the number of the others.
fn foreign_change_rows(change: &InstanceForeignChange) -> Vec<Vec<Cell>> {
    let time = format_optional_time(change.changed_at);
    let listed = u32::try_from(change.packages.len()).unwrap_or(u32::MAX);
    let others = change.count.saturating_sub(listed);
    let others = (others > 0).then(|| format!("and {others} more"));
    change.packages.iter().cloned().chain(others).map(|text| cells![&time, text]).collect()
}

fn held_back_row(package: &InstanceHeldBackPackage) -> Vec<Cell> {
    let cause = match package.detail.as_str() {
        "" => package.cause.clone(),
        detail => format!("{}: {detail}", package.cause),
    };
    cells![
        &package.name,
        &package.architecture,
        &package.installed,
        &package.available,
        main_suite(&package.suites),
        is_security_cell(package.security),
        cause
    ]
}

/// The suite to show of a version: the first security suite, else the first one.
pub fn main_suite(suites: &[String]) -> &str {
    let security = suites.iter().find(|suite| suite.ends_with("-security"));
    security.or(suites.first()).map(String::as_str).unwrap_or_default()
}

/// Whether a version is a security update; `None` for unknown.
pub fn is_security_cell(is_security: Option<bool>) -> Cell {
    match is_security {
        None => Cell::from(UNKNOWN),
        Some(true) => Cell::toned("yes", Tone::Bad),
        Some(false) => Cell::from(""),
    }
}

/// Number of security updates that are missing.
pub fn security_cell(instance: &InstanceResource) -> Cell {
    count_cell(instance.security_updates, Tone::Bad)
}

/// Number of updates that are held back.
pub fn held_back_cell(instance: &InstanceResource) -> Cell {
    count_cell(instance.held_back_updates, Tone::Busy)
}

fn count_cell(count: Option<u32>, tone: Tone) -> Cell {
    match count {
        None => Cell::from(UNKNOWN),
        Some(0) => Cell::from("none"),
        Some(count) => Cell::toned(count.to_string(), tone),
    }
}

/// Whether a reboot is required.
pub fn reboot_cell(instance: &InstanceResource) -> Cell {
    match instance.reboot_required {
        None => Cell::from(UNKNOWN),
        Some(true) => Cell::toned("required", Tone::Busy),
        Some(false) => Cell::from("not required"),
    }
}

/// Time of the package lists, for a column.
pub fn lists_cell(instance: &InstanceResource) -> Cell {
    let tone = if instance.package_lists_error.is_empty() { Tone::Plain } else { Tone::Bad };
    let time = instance.package_lists_refreshed_at.map(format_time);
    Cell::toned(time.unwrap_or_else(|| UNKNOWN.to_owned()), tone)
}

/// Time of the package lists, with the error of the last refresh.
fn lists_field(instance: &InstanceResource) -> Cell {
    let lists = lists_cell(instance);
    match instance.package_lists_error.as_str() {
        "" => lists,
        error => Cell::toned(format!("{}: {error}", lists.text), lists.tone),
    }
}

/// Whether the node has not reported yet, or could not fetch its package lists.
pub fn lacks_package_lists(instance: &InstanceResource) -> bool {
    !has_reported(instance) || !instance.package_lists_error.is_empty()
}

fn has_reported(instance: &InstanceResource) -> bool {
    instance.provisioning_status != "Not Provisioned"
}

/// Why the available updates are unknown; `None` if the server has no sign of that.
pub fn unknown_updates_reason(instance: &InstanceResource, now: DateTime<Utc>) -> Option<String> {
    if !has_reported(instance) {
        return Some("the node has not reported yet".to_owned());
    }
    let error = instance.package_lists_error.as_str();
    match instance.package_lists_refreshed_at {
        None => Some(error.to_owned()).filter(|error| !error.is_empty()),
        Some(at) if error.is_empty() && now - at <= MAX_LISTS_AGE => None,
        Some(at) => {
            let age = format_distance(at, now);
            let why = if error.is_empty() { String::new() } else { format!(": {error}") };
            let at = format_time(at);
            Some(format!("the package lists were last fetched at {at}, {age} ago{why}"))
        }
    }
}

/// Why a node that lists no updates may have some: it has never reported the state of its package
/// lists, as an agent of EIM or of an older release.
pub fn unreported_lists_reason(instance: &InstanceResource) -> Option<String> {
    let is_unreported = instance.package_lists_refreshed_at.is_none()
        && instance.package_lists_error.is_empty()
        && !is_updated_by_images(instance);
    is_unreported.then(|| "the node has not reported the state of its package lists yet".to_owned())
}

#[cfg(test)]
mod tests {
    use evenkeel_api::os::OperatingSystemResource;

    use super::*;

    #[test]
    fn only_nodes_without_package_lists_do_not_have_to_report_them() {
        let silent = InstanceResource::default();
        assert!(unreported_lists_reason(&silent).is_some());
        let fetched = Some(DateTime::UNIX_EPOCH);
        let current =
            InstanceResource { package_lists_refreshed_at: fetched, ..InstanceResource::default() };
        assert_eq!(unreported_lists_reason(&current), None);
        let os = OperatingSystemResource {
            os_type: OsType::Immutable,
            ..OperatingSystemResource::default()
        };
        let image = InstanceResource { os: Some(os), ..InstanceResource::default() };
        assert_eq!(unreported_lists_reason(&image), None);
    }

    #[test]
    fn updates_are_unknown_without_current_lists() {
        let fetched = DateTime::UNIX_EPOCH;
        let reason = |at: Option<DateTime<Utc>>, error: &str, now| {
            let instance = InstanceResource {
                package_lists_refreshed_at: at,
                package_lists_error: error.to_owned(),
                ..InstanceResource::default()
            };
            unknown_updates_reason(&instance, now)
        };
        let later = |hours| fetched + TimeDelta::hours(hours);
        assert_eq!(reason(None, "", later(0)), None, "an agent that does not report it");
        assert_eq!(reason(Some(fetched), "", later(72)), None);
        assert_eq!(
            reason(Some(fetched), "", later(80)).as_deref(),
            Some("the package lists were last fetched at 1970-01-01T00:00:00Z, 3d 8h ago")
        );
        assert_eq!(
            reason(Some(fetched), "no route to host", later(1)).as_deref(),
            Some(
                "the package lists were last fetched at 1970-01-01T00:00:00Z, 1h 0m ago: no route to host"
            )
        );
        assert_eq!(reason(None, "no route", later(1)).as_deref(), Some("no route"));
        let new = InstanceResource {
            provisioning_status: "Not Provisioned".to_owned(),
            ..InstanceResource::default()
        };
        assert!(unknown_updates_reason(&new, fetched).is_some());
        assert!(lacks_package_lists(&new));
    }

    #[test]
    fn a_security_suite_is_shown_before_others() {
        let suites = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(main_suite(&suites(&["bookworm", "bookworm-security"])), "bookworm-security");
        assert_eq!(main_suite(&suites(&["bookworm", "oldstable"])), "bookworm");
        assert_eq!(main_suite(&[]), "");
    }
}
