//! `evenkeel explain`: what a node should do now, why, and until when.

use clap::Args;
use evenkeel_api::decision::{AvailableUpdate, Decision, DecisionWindow};
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::order::OrderResource;
use evenkeel_api::update_run::RunTarget;

use super::{assignment, instance, pause, policy};
use crate::Failure;
use crate::client::Client;
use crate::resource::{self, Resource};
use crate::time::{distance, show, show_option};
use crate::view::{Cell, Page, Printer, Tone};

/// Say what a node should do now, why, and until when: what the server would answer to the node itself.
#[derive(Debug, Args)]
pub struct Explain {
    /// The id or name of an instance or of its host.
    #[arg(value_name = "INSTANCE_OR_HOST")]
    node: String,
}

impl Explain {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let id = instance::meant(client, &self.node).await?;
        let path = format!("{}/decision", InstanceResource::address(&id));
        if !printer.is_for_people() {
            let decision: Decision = client.get(&path).await?;
            return printer.page(&decision, &decision.act, &Page::default());
        }
        let instance: InstanceResource = resource::find(client, &id).await?;
        let decision: Decision = client.get(&path).await?;
        printer.page(&decision, &decision.act, &page(&instance, &decision))
    }
}

fn page(instance: &InstanceResource, decision: &Decision) -> Page {
    let mut page = Page::default();
    page.field("host", host(instance, decision))
        .field("instance", decision.instance_id.clone())
        .field("now", act(decision))
        .field("because", decision.reason.text.clone())
        .field("next change", show_option(decision.next))
        .field("may begin", may_begin(decision));
    policy(&mut page, decision);
    if let Some(run) = &decision.run {
        page.field("run", format!("{} {}", run.resource_id, run.state));
    }
    if let Some(order) = &decision.order {
        page.field("order", words_of_order(order));
    }
    if let Some(since) = decision.silent_since {
        let text = format!(
            "since {}, for {}",
            show(since),
            distance(since, decision.time)
        );
        page.field("silent", Cell::toned(text, Tone::Bad));
    }
    page.field_if("owner's limits", &decision.owner_limits);
    if let Some(grant) = &decision.grant {
        let text = format!("it may begin without asking until {}", show(grant.expires));
        page.field("granted ahead", text);
    }
    let changes = changes(decision);
    if changes.is_empty() && wished(decision).is_none_or(is_of_packages) {
        page.field("would change", "nothing that the node knows of");
    }
    tables(&mut page, instance, decision);
    page.table(
        "Would change:",
        &["PACKAGE", "ARCHITECTURE", "INSTALLED", "TO"],
        changes,
    );
    page
}

/// What is wished for, by which policy, and how far its assignment is used up.
fn policy(page: &mut Page, decision: &Decision) {
    let Some(policy) = &decision.policy else {
        page.field("policy", "none");
        return;
    };
    let name = named(&policy.name, &policy.resource_id);
    let target = place(&policy.level, &policy.assigned_to);
    page.field("policy", format!("{name}, assigned to the {target}"));
    if let Some(wish) = wished(decision) {
        page.field("wish", words_of_wish(wish));
        page.field_if("rules", &rules(wish).join("; "));
    }
    if let Some(slots) = &decision.slots {
        let used = assignment::used(slots.held + u32::from(slots.mine), slots.max_concurrent);
        let mine = if slots.mine { ", this node too" } else { "" };
        page.field("updating", format!("{used} nodes{mine}")).field(
            "failures",
            assignment::failures(slots.failures, slots.stop_after_failures),
        );
    }
}

/// How it may be done, if it is not as usual.
fn rules(wish: &RunTarget) -> Vec<String> {
    let packages = wish.package_rules.as_ref().map(policy::rules::words);
    let images = wish.image_rules.as_ref();
    let images = images.map(policy::rules::words_of_images);
    packages.into_iter().chain(images).flatten().collect()
}

fn tables(page: &mut Page, instance: &InstanceResource, decision: &Decision) {
    let conditions = instance.conditions.iter();
    let conditions = conditions.map(instance::row_of_condition).collect();
    page.table("Conditions:", instance::CONDITIONS, conditions);
    instance::show_images(page, instance);
    let pauses = decision
        .pauses
        .iter()
        .map(|paused| pause::row(paused, paused.scope.clone()));
    page.table(
        "Pauses:",
        &["PAUSED", "REASON", "BY", "SINCE"],
        pauses.collect(),
    );
    let skipped = decision.skipped_policies.iter().map(|policy| {
        vec![
            Cell::from(named(&policy.name, &policy.resource_id)),
            place(&policy.level, &policy.assigned_to).into(),
            policy.why.clone().into(),
        ]
    });
    page.table(
        "Policies that are nearer and do not fit:",
        &["POLICY", "ASSIGNED TO", "BECAUSE"],
        skipped.collect(),
    );
    let windows = decision
        .windows
        .iter()
        .map(|window| row_of_window(window, decision));
    page.table(
        "Windows:",
        &["START", "END", "OPENED BY", ""],
        windows.collect(),
    );
    let ahead = decision.grant.iter().flat_map(|grant| &grant.windows);
    let ahead = ahead.map(|window| vec![show(window.start).into(), show(window.end).into()]);
    page.table("Granted ahead:", &["START", "END"], ahead.collect());
}

fn named(name: &str, id: &str) -> String {
    if name.is_empty() {
        id.to_owned()
    } else {
        format!("{name} ({id})")
    }
}

/// What a policy is assigned to, in words.
fn place(level: &str, assigned_to: &str) -> String {
    match level {
        "site" | "region" => format!("{level} {assigned_to}"),
        _ => level.to_owned(),
    }
}

fn host(instance: &InstanceResource, decision: &Decision) -> String {
    let host = instance.host.as_ref();
    let name = host.map_or("", |host| host.name.as_str());
    named(name, &decision.host_id)
}

fn act(decision: &Decision) -> Cell {
    match decision.act.as_str() {
        "idle" => Cell::from("do nothing"),
        "fetch" => Cell::toned("prepare, and change nothing", Tone::Busy),
        "apply" => Cell::toned("update", Tone::Good),
        "continue" => Cell::toned("go on with the open run", Tone::Busy),
        "cancel" => Cell::toned("give up the open run", Tone::Bad),
        other => Cell::from(other),
    }
}

fn may_begin(decision: &Decision) -> Cell {
    match (decision.may_start, decision.before) {
        (false, _) => Cell::from("no"),
        (true, None) => Cell::toned("yes", Tone::Good),
        (true, Some(before)) => Cell::toned(format!("yes, until {}", show(before)), Tone::Good),
    }
}

fn words_of_order(order: &OrderResource) -> String {
    let what = match order.kind.as_str() {
        "now" => format!("update until {}", show(order.until)),
        "cancel" => "not in the windows that were open".to_owned(),
        other => other.to_owned(),
    };
    let why = if order.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", order.reason)
    };
    format!("{what}, by {} at {}{why}", order.by, show(order.since))
}

/// What it should reach now, else what the policy wishes for.
fn wished(decision: &Decision) -> Option<&RunTarget> {
    let policy = decision.policy.as_ref().map(|policy| &policy.target);
    decision.target.as_ref().or(policy)
}

/// Whether packages are wished for; a policy that wishes for whatever is newest does not say of what.
fn is_of_packages(wish: &RunTarget) -> bool {
    !matches!(wish.kind.as_str(), "image" | "kernel")
}

fn words_of_wish(wish: &RunTarget) -> String {
    let kernel = |text: &str| format!("the kernel command line `{text}`");
    match (wish.kind.as_str(), wish.mode.as_str()) {
        ("image", _) if wish.image_id.is_empty() => format!("the image of {}", wish.os_id),
        ("image", _) => format!(
            "image {} {} ({})",
            wish.profile_name, wish.image_id, wish.os_id
        ),
        ("kernel", _) => kernel(&wish.kernel_command),
        (_, "latest") => "whatever is newest".to_owned(),
        _ => {
            let mut parts = wish.packages.clone();
            if !wish.sources.is_empty() {
                parts.push(format!("{} sources", wish.sources.len()));
            }
            if !wish.kernel_command.is_empty() {
                parts.push(kernel(&wish.kernel_command));
            }
            parts.join(", ")
        }
    }
}

fn row_of_window(window: &DecisionWindow, decision: &Decision) -> Vec<Cell> {
    let when = if window.open {
        Cell::toned(
            format!("open, closes in {}", distance(decision.time, window.end)),
            Tone::Good,
        )
    } else {
        Cell::from(format!(
            "opens in {}",
            distance(decision.time, window.start)
        ))
    };
    let opener = if window.schedule_id.is_empty() {
        &window.opened_by
    } else {
        &window.schedule_id
    };
    vec![
        show(window.start).into(),
        show(window.end).into(),
        opener.clone().into(),
        when,
    ]
}

/// What the wish would change: of what is available, what is wished for.
fn changes(decision: &Decision) -> Vec<Vec<Cell>> {
    let Some(wish) = wished(decision).filter(|wish| is_of_packages(wish)) else {
        return Vec::new();
    };
    let available = &decision.available_updates;
    if wish.mode != "exactly" {
        return available
            .iter()
            .filter(|update| !update.left_out)
            .map(|update| row_of_update(update, &update.available))
            .collect();
    }
    packages(wish)
        .filter_map(|(name, version)| {
            let (name, architecture) = name.split_once(':').unwrap_or((name, ""));
            let fits = |update: &&AvailableUpdate| {
                update.name == name
                    && (architecture.is_empty() || update.architecture == architecture)
            };
            match (available.iter().find(fits), version) {
                (Some(update), version) => {
                    Some(row_of_update(update, version.unwrap_or(&update.available)))
                }
                // The node offers nothing newer; a version that is named may be another all the same.
                (None, Some(version)) if decision.reason.code != "up_to_date" => {
                    let unknown = AvailableUpdate {
                        name: name.to_owned(),
                        architecture: architecture.to_owned(),
                        installed: "not known".to_owned(),
                        ..AvailableUpdate::default()
                    };
                    Some(row_of_update(&unknown, version))
                }
                (None, _) => None,
            }
        })
        .collect()
}

fn packages(wish: &RunTarget) -> impl Iterator<Item = (&str, Option<&str>)> {
    wish.packages.iter().map(|text| match text.split_once('=') {
        Some((name, version)) => (name, Some(version)),
        None => (text.as_str(), None),
    })
}

fn row_of_update(update: &AvailableUpdate, to: &str) -> Vec<Cell> {
    vec![
        update.name.clone().into(),
        update.architecture.clone().into(),
        update.installed.clone().into(),
        to.into(),
    ]
}
