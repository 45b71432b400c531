//! `evenkeel explain`: what a node should do now, and why.

use clap::Args;
use evenkeel_api::decision::{AvailableUpdate, Decision, DecisionWindow};
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::order::OrderResource;
use evenkeel_api::update_run::{RunPackage, RunTarget};

use super::host::parse_packages;
use super::{assignment, instance, policy};
use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests;
use crate::resource::Resource;
use crate::time::{format_distance, format_optional_time, format_time};

/// Explain what a node should do now, and why: the answer that the server gives to the node.
#[derive(Debug, Args)]
pub struct Explain {
    /// ID or name of an instance or of its host.
    #[arg(value_name = "INSTANCE_OR_HOST")]
    node: String,
}

impl Explain {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let id = instance::resolve_instance_id(client, &self.node).await?;
        let path = format!("{}/decision", InstanceResource::address(&id));
        if !printer.is_human_readable() {
            let decision: Decision = client.get(&path).await?;
            return printer.print_page(&decision, &decision.act, &DetailPage::default());
        }
        let instance: InstanceResource = requests::find(client, &id).await?;
        let decision: Decision = client.get(&path).await?;
        printer.print_page(&decision, &decision.act, &build_page(&instance, &decision))
    }
}

fn build_page(instance: &InstanceResource, decision: &Decision) -> DetailPage {
    let mut page = DetailPage::default();
    page.field("host", describe_host(instance, decision))
        .field("instance", &decision.instance_id)
        .field("action", action_cell(decision))
        .field("reason", &decision.reason.text)
        .field("next change", format_optional_time(decision.next_change))
        .field("may start", may_start_cell(decision));
    add_policy(&mut page, decision);
    if let Some(run) = &decision.run {
        page.field("run", format!("{} {}", run.resource_id, run.state));
    }
    if let Some(order) = &decision.order {
        page.field("order", describe_order(order));
    }
    if let Some(since) = decision.silent_since {
        let text =
            format!("since {}, for {}", format_time(since), format_distance(since, decision.time));
        page.field("silent", Cell::toned(text, Tone::Bad));
    }
    page.field_if("owner limits", &decision.owner_limits);
    if let Some(grant) = &decision.grant {
        let text = format!("may start without the server until {}", format_time(grant.expires_at));
        page.field("offline grant", text);
    }
    let planned = planned_changes(decision);
    let possible =
        if planned.is_empty() { possible_changes(instance, decision) } else { Vec::new() };
    if planned.is_empty() && possible.is_empty() {
        add_no_changes(&mut page, instance, decision);
    }
    add_tables(&mut page, instance, decision);
    page.table("Would change:", PLANNED_HEADER, planned);
    page.table("May concern:", &["PACKAGE", "ARCHITECTURE", "INSTALLED", "TARGET"], possible);
    page
}

/// Adds why no package changes are listed. Unknown updates are not the same as none.
fn add_no_changes(page: &mut DetailPage, instance: &InstanceResource, decision: &Decision) {
    if decision.policy.is_none() && decision.target.is_none() {
        page.field("may concern", "nothing: no policy applies");
    } else if desired_target(decision).is_some_and(is_package_update) {
        let is_empty = decision.available_updates.is_empty();
        let unreported =
            if is_empty { instance::facts::unreported_lists_reason(instance) } else { None };
        let unknown = instance::facts::unknown_updates_reason(instance, decision.time);
        let text = match unknown.or(unreported) {
            Some(why) => Cell::toned(format!("unknown: {why}"), Tone::Bad),
            None if is_empty => Cell::from("none reported by the node"),
            None => Cell::from("none of the updates that the node reports"),
        };
        page.field("may concern", text);
    }
}

const PLANNED_HEADER: &[&str] = &["PACKAGE", "ARCHITECTURE", "ACTION", "INSTALLED", "TARGET"];

/// The plan of the open run, with all packages that change; without one, the plan of the last run
/// while nothing has changed since. Empty before the node has planned.
fn planned_changes(decision: &Decision) -> Vec<Vec<Cell>> {
    let run = decision.run.as_ref().filter(|run| !run.has_ended());
    let packages = run.map_or(&decision.last_plan, |run| &run.packages).iter();
    let row = |one: &RunPackage| {
        cells![&one.name, &one.architecture, &one.action, &one.before, &one.version]
    };
    packages.map(row).collect()
}

/// Adds the policy, its desired update, and the usage of its assignment.
fn add_policy(page: &mut DetailPage, decision: &Decision) {
    let Some(policy) = &decision.policy else {
        page.field("policy", "none");
        return;
    };
    let name = name_with_id(&policy.name, &policy.resource_id);
    let target = instance::describe_scope(policy);
    page.field("policy", format!("{name}, assigned to the {target}"));
    if let Some(desired) = desired_target(decision) {
        page.field("desired", describe_desired(desired));
        page.field_if("rules", &describe_rules(desired).join("; "));
    }
    if let Some(slots) = &decision.slots {
        let used = assignment::format_usage(
            slots.held_by_others + u32::from(slots.holds_slot),
            slots.max_concurrent,
        );
        let mine = if slots.holds_slot { ", including this node" } else { "" };
        let noun = match slots.max_concurrent.unwrap_or(slots.held_by_others) {
            1 => "node",
            _ => "nodes",
        };
        page.field("updating", format!("{used} {noun}{mine}")).field(
            "failures",
            assignment::failures_cell(slots.failures, slots.stop_after_failures),
        );
    }
}

/// The update rules that differ from the defaults.
fn describe_rules(desired: &RunTarget) -> Vec<String> {
    let packages = desired.package_rules.as_ref().map(policy::rules::describe_package_rules);
    let images = desired.image_rules.as_ref();
    let images = images.map(policy::rules::describe_image_rules);
    packages.into_iter().chain(images).flatten().collect()
}

fn add_tables(page: &mut DetailPage, instance: &InstanceResource, decision: &Decision) {
    let conditions = instance.conditions.iter();
    let conditions = conditions.map(instance::condition_row);
    page.table("Conditions:", instance::CONDITION_HEADER, conditions);
    instance::add_image_tables(page, instance);
    let pauses = decision.pauses.iter().map(Resource::row);
    page.table("Pauses:", &["PAUSED", "REASON", "BY", "SINCE"], pauses);
    let skipped = decision.skipped_policies.iter().map(|policy| {
        cells![
            name_with_id(&policy.name, &policy.resource_id),
            describe_scope(&policy.level, &policy.assigned_to),
            &policy.reason
        ]
    });
    page.table("Skipped policies:", &["POLICY", "ASSIGNED TO", "REASON"], skipped);
    let windows = decision.windows.iter().map(|window| window_row(window, decision));
    page.table("Windows:", &["START", "END", "OPENED BY", "STATE"], windows);
    let granted = decision.grant.iter().flat_map(|grant| &grant.windows);
    let granted = granted.map(|window| cells![format_time(window.start), format_time(window.end)]);
    page.table("Offline grant:", &["START", "END"], granted);
}

fn name_with_id(name: &str, id: &str) -> String {
    if name.is_empty() { id.to_owned() } else { format!("{name} ({id})") }
}

/// Name of the scope that a policy is assigned to.
fn describe_scope(level: &str, assigned_to: &str) -> String {
    match level {
        "site" | "region" => format!("{level} {assigned_to}"),
        _ => level.to_owned(),
    }
}

fn describe_host(instance: &InstanceResource, decision: &Decision) -> String {
    let host = instance.host.as_ref();
    let name = host.map_or("", |host| host.name.as_str());
    name_with_id(name, &decision.host_id)
}

fn action_cell(decision: &Decision) -> Cell {
    match decision.act.as_str() {
        "idle" => Cell::from("none"),
        "fetch" => Cell::toned("prepare without changes", Tone::Busy),
        "apply" => Cell::toned("update", Tone::Good),
        "continue" => Cell::toned("continue the open run", Tone::Busy),
        "cancel" => Cell::toned("cancel the open run", Tone::Bad),
        other => Cell::from(other),
    }
}

fn may_start_cell(decision: &Decision) -> Cell {
    match (decision.may_start, decision.start_deadline) {
        (false, _) => Cell::from("no"),
        (true, None) => Cell::toned("yes", Tone::Good),
        (true, Some(before)) => {
            Cell::toned(format!("yes, until {}", format_time(before)), Tone::Good)
        }
    }
}

fn describe_order(order: &OrderResource) -> String {
    let what = match order.kind.as_str() {
        "now" => format!("update until {}", format_time(order.until)),
        "cancel" => "skip the windows that were open".to_owned(),
        other => other.to_owned(),
    };
    let why = if order.reason.is_empty() { String::new() } else { format!(": {}", order.reason) };
    format!("{what}, by {} at {}{why}", order.by, format_time(order.since))
}

/// The target of the decision, else that of the policy.
fn desired_target(decision: &Decision) -> Option<&RunTarget> {
    let policy = decision.policy.as_ref().map(|policy| &policy.target);
    decision.target.as_ref().or(policy)
}

/// Whether the target is packages. `latest` covers packages and images.
fn is_package_update(desired: &RunTarget) -> bool {
    !matches!(desired.kind.as_str(), "image" | "kernel")
}

fn describe_desired(desired: &RunTarget) -> String {
    let kernel = |text: &str| format!("the kernel command line `{text}`");
    match (desired.kind.as_str(), desired.mode.as_str()) {
        ("image", _) if desired.image_id.is_empty() => format!("image of {}", desired.os_id),
        ("image", _) => {
            format!("image {} {} ({})", desired.profile_name, desired.image_id, desired.os_id)
        }
        ("kernel", _) => kernel(&desired.kernel_command),
        (_, "latest") => "latest".to_owned(),
        _ => {
            let mut parts = desired.packages.clone();
            if !desired.sources.is_empty() {
                let noun = if desired.sources.len() == 1 { "source" } else { "sources" };
                parts.push(format!("{} {noun}", desired.sources.len()));
            }
            if !desired.kernel_command.is_empty() {
                parts.push(kernel(&desired.kernel_command));
            }
            parts.join(", ")
        }
    }
}

fn window_row(window: &DecisionWindow, decision: &Decision) -> Vec<Cell> {
    let when = if window.open {
        Cell::toned(
            format!("open, closes in {}", format_distance(decision.time, window.end)),
            Tone::Good,
        )
    } else {
        Cell::from(format!("opens in {}", format_distance(decision.time, window.start)))
    };
    let opener =
        if window.schedule_id.is_empty() { &window.opened_by } else { &window.schedule_id };
    cells![format_time(window.start), format_time(window.end), opener, when]
}

/// Target of a package of which the node reports no newer version.
const NOT_PLANNED: &str = "not known before the node plans it";

/// The changes that the desired update may make, before the node has planned it. Updates that the
/// node would certainly not install are omitted: those that the policy excludes or that are too
/// young, and packages that have the requested version.
fn possible_changes(instance: &InstanceResource, decision: &Decision) -> Vec<Vec<Cell>> {
    let Some(desired) = desired_target(decision).filter(|desired| is_package_update(desired))
    else {
        return Vec::new();
    };
    let available = &decision.available_updates;
    if desired.mode != "exactly" {
        return available
            .iter()
            .filter(|update| !update.excluded && !update.too_young)
            .map(|update| update_row(update, &update.available))
            .collect();
    }
    let packages = parse_packages(&instance.runtime_packages).unwrap_or_default();
    let is_up_to_date = decision.reason.code == "up_to_date";
    let rows = package_requirements(desired).filter_map(|required| {
        let reported =
            available.iter().find(|update| required.matches(&update.name, &update.architecture));
        let installed =
            packages.iter().find(|package| required.matches(&package.name, &package.architecture));
        let installed = reported
            .map(|update| (update.installed.as_str(), update.architecture.as_str()))
            .or(installed.map(|one| (one.version.as_str(), one.architecture.as_str())));
        let newest = reported.map(|update| update.available.as_str());
        let (version, architecture) = match installed {
            Some((version, _)) if required.version == Some(version) => return None,
            // Without a newer version, the newest one is installed.
            Some(_) if required.version.or(newest).is_none() => return None,
            Some(installed) => installed,
            None if is_up_to_date => return None,
            None if packages.is_empty() => ("unknown", required.architecture),
            None => ("", required.architecture),
        };
        let target = required.version.or(newest).unwrap_or(NOT_PLANNED);
        Some(cells![required.name, architecture, version, target])
    });
    rows.collect()
}

/// A package that a policy names, as `NAME[:ARCHITECTURE][=VERSION]`.
struct RequiredPackage<'a> {
    name: &'a str,
    /// Empty for any.
    architecture: &'a str,
    version: Option<&'a str>,
}

impl RequiredPackage<'_> {
    fn matches(&self, name: &str, architecture: &str) -> bool {
        self.name == name && (self.architecture.is_empty() || self.architecture == architecture)
    }
}

fn package_requirements(desired: &RunTarget) -> impl Iterator<Item = RequiredPackage<'_>> {
    desired.packages.iter().map(|text| {
        let (package, version) = match text.split_once('=') {
            Some((package, version)) => (package, Some(version)),
            None => (text.as_str(), None),
        };
        let (name, architecture) = package.split_once(':').unwrap_or((package, ""));
        // apt's qualifiers for any architecture and for that of the node.
        let architecture = Some(architecture).filter(|name| !matches!(*name, "any" | "native"));
        RequiredPackage { name, architecture: architecture.unwrap_or_default(), version }
    })
}

fn update_row(update: &AvailableUpdate, to: &str) -> Vec<Cell> {
    cells![&update.name, &update.architecture, &update.installed, to]
}
