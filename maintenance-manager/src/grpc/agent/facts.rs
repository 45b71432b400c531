//! Stores the facts that a node reports about itself.

mod hardware;
mod machine_names;
mod summary;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::agent_start::{AgentStart, StartChange};
use evenkeel_domain::condition::{self, CUT_LIST_SUFFIX, ConditionKind};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::eim::MAX_AVAILABLE_BYTES;
use evenkeel_domain::instance::FactsSummary;
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::os::{Image, OsKind, Sha256};
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::text::{cut, cut_list, storable};
use evenkeel_proto::agent::{AvailablePackage, Facts, ForeignChange, HeldBackPackage};
use evenkeel_store::nodes::{BootedImage, NodeState};
use evenkeel_store::{StoreError, os_profiles};
use prost::Message as _;
use serde_json::{Value, json};
use sha2::Digest as _;

use crate::evaluate::version_ages;
use crate::grpc::agent::slots;
use crate::node_transaction::NodeTransaction;
use crate::wire::agent::{MAX_SUITES_PER_PACKAGE, held_back_cause, parse_instant};

use hardware::ReportedHardware;

pub use hardware::store_hardware;
pub use machine_names::{record_names, reported_serial};

/// The maximum number of packages in a list, and of entries in any other list.
const MAX_PACKAGES: usize = 100_000;
const MAX_LIST_ENTRIES: usize = 10_000;

/// The maximum length of a text in the facts, in bytes.
const MAX_TEXT_BYTES: usize = 4_096;

/// The maximum length of the output of `dpkg --audit`, in bytes.
const MAX_AUDIT_BYTES: usize = 65_536;

/// The maximum number of agent errors that are stored, the maximum length of one, and the maximum
/// length of the description of the owner's limits, in bytes. Longer input is cut and not rejected:
/// an agent with problems must still be able to report.
const MAX_AGENT_ERRORS: usize = 20;
const MAX_AGENT_ERROR_BYTES: usize = 500;
const MAX_LIMITS_BYTES: usize = 2_000;

/// The maximum number of other update programs, and of packages of a foreign change, that are stored.
const MAX_OTHER_UPDATERS: usize = 20;
const MAX_FOREIGN_PACKAGES: usize = 20;

/// The maximum length of the IDs of a boot and of a start of the agent, in bytes.
const MAX_START_ID_BYTES: usize = 64;

/// The maximum length of the text of a condition, in bytes.
const MAX_CONDITION_BYTES: usize = 2_000;

/// Facts in the form in which they are stored. They are converted before the transaction of the
/// node begins, because they may be megabytes long.
#[derive(Debug)]
pub struct ParsedFacts {
    digest: Vec<u8>,
    /// The versions of packages that are available for the node.
    pub versions: Vec<ObservedVersion>,
    /// The available updates as JSON, and the condition that says that the list was cut.
    available: (String, Option<(ConditionKind, String)>),
    /// The condition that the agent reports errors.
    agent_error: Option<(ConditionKind, String)>,
    /// The condition that other programs update the machine.
    other_updaters: Option<(ConditionKind, String)>,
    bad_images: Vec<Sha256>,
    json: Value,
    summary: FactsSummary,
    modules: Vec<String>,
    agent_version: String,
    booted: Option<BootedImage>,
    start: AgentStart,
    /// The hardware; `None` if the agent does not report it.
    pub hardware: Option<ReportedHardware>,
    /// The condition that a part of the hardware cannot be stored.
    hardware_error: Option<(ConditionKind, String)>,
}

/// Converts facts. The digest comes from the node: a newer agent may send fields that this server
/// does not know and would leave out of the digest.
pub fn parse(facts: Facts, digest: Vec<u8>) -> Result<ParsedFacts, Invalid> {
    validate(&facts)?;
    let agent_errors = agent_errors(&facts);
    let (hardware, hardware_error) = hardware::parse_hardware(&facts).unzip();
    Ok(ParsedFacts {
        digest: match digest.len() {
            0 => sha2::Sha256::digest(facts.encode_to_vec()).to_vec(),
            32 => digest,
            _ => return Err(Invalid::new("facts_digest", "not a SHA-256 digest")),
        },
        versions: version_ages::available_versions(&facts),
        available: available_packages(&facts.available),
        agent_error: agent_error_condition(&agent_errors),
        other_updaters: other_updaters_condition(&other_updaters(&facts)),
        bad_images: slots::bad_image_digests(&facts.bad_images),
        json: facts_json(&facts, &agent_errors),
        summary: summary::summarize(&facts),
        modules: facts.modules,
        agent_version: facts.agent_version,
        booted: facts.booted_image.map(|image| BootedImage {
            profile_name: image.profile_name,
            image_id: image.image_id,
        }),
        start: AgentStart {
            boot_id: cut(&facts.boot_id, MAX_START_ID_BYTES),
            session: cut(&facts.agent_session, MAX_START_ID_BYTES),
        },
        hardware,
        hardware_error: hardware_error.flatten(),
    })
}

/// Stores the facts of a node.
pub fn apply(node: &mut NodeState, facts: ParsedFacts, now: Time) {
    let (available, cut) = facts.available;
    node.os_update_available = available;
    let may_clear = may_clear_detail_cut(node);
    let is_it = |kind| may_clear && kind == ConditionKind::DetailCut;
    condition::replace(&mut node.conditions, is_it, cut, now);
    let is_it = |kind| kind == ConditionKind::AgentError;
    condition::replace(&mut node.conditions, is_it, facts.agent_error, now);
    let outdated = facts.summary.lists_condition(now);
    let is_it = |kind| kind == ConditionKind::PackageListsOutdated;
    condition::replace(&mut node.conditions, is_it, outdated, now);
    let is_it = |kind| kind == ConditionKind::OtherUpdaters;
    condition::replace(&mut node.conditions, is_it, facts.other_updaters, now);
    let is_it = |kind| kind == ConditionKind::HardwareIncomplete;
    condition::replace(&mut node.conditions, is_it, facts.hardware_error, now);
    node.bad_images = slots::merge_bad_images(&node.bad_images, facts.bad_images, now);
    node.facts = facts.json;
    node.facts_summary = facts.summary;
    node.protocol = AgentProtocol::Own { modules: facts.modules };
    node.agent_version = facts.agent_version;
    node.booted = facts.booted;
    node.facts_digest = facts.digest;
    record_start(node, facts.start, now);
}

/// Whether new facts may clear the `detail_cut` condition: only if facts set it, or if the update
/// that set it was followed by another one.
fn may_clear_detail_cut(node: &NodeState) -> bool {
    let last_end = node.last_end.as_ref();
    let is_superseded =
        |since: Time| last_end.is_some_and(|end| since + TimeDelta::seconds(1) < end.at);
    node.conditions.iter().any(|one| {
        let is_it = one.kind == ConditionKind::DetailCut;
        is_it && (one.text.ends_with(CUT_LIST_SUFFIX) || is_superseded(one.since))
    })
}

/// The errors of the agent itself that a person should know about.
fn agent_errors(facts: &Facts) -> Vec<String> {
    cut_list(&facts.agent_errors, MAX_AGENT_ERRORS, MAX_AGENT_ERROR_BYTES)
}

fn agent_error_condition(agent_errors: &[String]) -> Option<(ConditionKind, String)> {
    let text = agent_errors.join("; ");
    (!text.is_empty()).then(|| (ConditionKind::AgentError, cut(&text, MAX_CONDITION_BYTES)))
}

/// The other programs that update the machine, each with what it does.
fn other_updaters(facts: &Facts) -> Vec<String> {
    cut_list(&facts.other_updaters, MAX_OTHER_UPDATERS, MAX_AGENT_ERROR_BYTES)
}

fn other_updaters_condition(updaters: &[String]) -> Option<(ConditionKind, String)> {
    let text = updaters.join("; ");
    (!text.is_empty()).then(|| (ConditionKind::OtherUpdaters, cut(&text, MAX_CONDITION_BYTES)))
}

fn foreign_change_json(change: &ForeignChange) -> Value {
    json!({
        "changedAt": change.changed_at.and_then(parse_instant),
        "count": change.count,
        "packages": cut_list(&change.packages, MAX_FOREIGN_PACKAGES, MAX_AGENT_ERROR_BYTES),
    })
}

/// As many available updates as fit, as JSON, and a condition if the list was cut.
fn available_packages(packages: &[AvailablePackage]) -> (String, Option<(ConditionKind, String)>) {
    let mut text = String::new();
    let mut stored = 0;
    for package in packages {
        let entry = package_json(package).to_string();
        if text.len() + entry.len() + 2 > MAX_AVAILABLE_BYTES {
            break;
        }
        text.push(if stored == 0 { '[' } else { ',' });
        text.push_str(&entry);
        stored += 1;
    }
    if stored > 0 {
        text.push(']');
    }
    let all = packages.len();
    let cut = (stored < all).then(|| {
        let text = format!("{all} packages could be updated; the first {stored}{CUT_LIST_SUFFIX}");
        (ConditionKind::DetailCut, text)
    });
    (text, cut)
}

/// An available update in the form that EIM's clients know, with the suites and the labels of the
/// repositories that have it.
fn package_json(package: &AvailablePackage) -> Value {
    let mut object = json!({
        "name": package.name,
        "architecture": package.architecture,
        "installed_version": package.installed_version,
        "available_version": package.available_version,
    });
    for (name, texts) in [("suites", &package.suites), ("origins", &package.origins)] {
        if let (false, Some(members)) = (texts.is_empty(), object.as_object_mut()) {
            members.insert(name.to_owned(), json!(first_suites(texts)));
        }
    }
    object
}

/// The suites, or the labels of repositories, that are stored for a package.
fn first_suites(texts: &[String]) -> &[String] {
    &texts[..texts.len().min(MAX_SUITES_PER_PACKAGE)]
}

fn facts_json(facts: &Facts, agent_errors: &[String]) -> Value {
    let release = facts.os_release.clone().unwrap_or_default();
    let services = facts.stale_services.iter().map(|service| {
        json!({
            "name": service.name,
            "files": service.files,
        })
    });
    json!({
        "agentVersion": facts.agent_version,
        "osRelease": {
            "id": release.id,
            "versionId": release.version_id,
            "prettyName": release.pretty_name,
            "versionCodename": release.version_codename,
        },
        "architecture": facts.architecture,
        "kernelRelease": facts.kernel_release,
        "bootId": facts.boot_id,
        "hostName": machine_names::host_name(facts),
        "serialNumber": machine_names::serial_number(facts),
        "modules": facts.modules,
        "installedDigest": facts.installed_digest,
        "packagesDigest": hex(&facts.packages_digest),
        "rebootRequired": facts.reboot_required,
        "rebootRequiredBy": facts.reboot_required_by,
        "rebootReasons": facts.reboot_reasons,
        "heldBack": facts.held_back.iter().map(held_back_json).collect::<Vec<_>>(),
        "staleServices": services.collect::<Vec<_>>(),
        "bootedImage": facts.booted_image.as_ref().map(|image| json!({
            "profileName": image.profile_name,
            "imageId": image.image_id,
        })),
        "slots": slots::image_slots(&facts.slots),
        "badImages": slots::failed_images(&facts.bad_images),
        "audit": facts.audit,
        "agentErrors": agent_errors,
        "otherUpdaters": other_updaters(facts),
        "foreignChange": facts.foreign_change.as_ref().map(foreign_change_json),
        "limits": cut(&storable(&facts.limits), MAX_LIMITS_BYTES),
    })
}

fn held_back_json(package: &HeldBackPackage) -> Value {
    json!({
        "name": package.name,
        "architecture": package.architecture,
        "installedVersion": package.installed_version,
        "availableVersion": package.available_version,
        "cause": held_back_cause(package.cause()),
        "detail": package.detail,
        "suites": first_suites(&package.suites),
        "origins": first_suites(&package.origins),
    })
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// Records the start that the facts come from. A node that returns to an earlier start shares its
/// identity with a second machine. A new start clears the condition, unless it follows another one
/// soon: copies whose starts are not all stored look like new starts.
fn record_start(node: &mut NodeState, start: AgentStart, now: Time) {
    let boot_id = start.boot_id.clone();
    if !boot_id.is_empty() && boot_id != node.boot_id {
        node.previous_boot_id = std::mem::replace(&mut node.boot_id, boot_id);
    }
    let two = match node.recent_starts.record(start, now) {
        StartChange::Unchanged | StartChange::NewSoon => return,
        StartChange::New => None,
        StartChange::Returned => {
            let text = "two machines use this identity and report in turn; both keep running: enrol the copy again \
                        with a UUID of its own (`evenkeel-agent enroll --uuid`)";
            Some((ConditionKind::TwoMachines, text.to_owned()))
        }
    };
    let is_it = |kind| kind == ConditionKind::TwoMachines;
    condition::replace(&mut node.conditions, is_it, two, now);
}

/// Compares the booted image with the catalogue. Only this changes the image that the instance
/// runs.
pub async fn check_booted_image(node_tx: &mut NodeTransaction<'_>) -> Result<(), StoreError> {
    let Some(booted) = node_tx.node.booted.clone() else {
        return Ok(());
    };
    if node_tx.input.facts.os_kind != OsKind::Immutable {
        return Ok(());
    }
    let running = &node_tx.input.facts.running;
    let mut holds = None;
    if booted.profile_name != running.profile_name {
        let text = format!(
            "it has booted an image of the profile {:?}, and its instance runs {:?}",
            booted.profile_name, running.profile_name
        );
        holds = Some((ConditionKind::ProfileMismatch, text));
    } else if booted.image_id != running.image_id {
        let catalogued =
            os_profiles::find_image(&node_tx.tx, &booted.profile_name, &booted.image_id).await?;
        if let Some(profile) = catalogued {
            node_tx.set_running_image(Image::from_profile(&profile));
        } else {
            let text = format!(
                "it has booted the image {:?}, which the catalogue does not have",
                booted.image_id
            );
            holds = Some((ConditionKind::UnknownImage, text));
        }
    }
    let is_image_condition = |kind| {
        matches!(
            kind,
            ConditionKind::ProfileMismatch
                | ConditionKind::UnknownImage
                | ConditionKind::OtherImage
        )
    };
    condition::replace(&mut node_tx.node.conditions, is_image_condition, holds, node_tx.now);
    Ok(())
}

fn validate(facts: &Facts) -> Result<(), Invalid> {
    let many = [
        ("facts.available", facts.available.len(), MAX_PACKAGES),
        ("facts.held_back", facts.held_back.len(), MAX_PACKAGES),
        ("facts.reboot_required_by", facts.reboot_required_by.len(), MAX_PACKAGES),
        ("facts.stale_services", facts.stale_services.len(), MAX_LIST_ENTRIES),
        ("facts.reboot_reasons", facts.reboot_reasons.len(), MAX_LIST_ENTRIES),
        ("facts.modules", facts.modules.len(), 100),
    ];
    for (field, count, most) in many {
        if count > most {
            return Err(Invalid::new(field, format!("more than {most}")));
        }
    }
    let files: usize = facts.stale_services.iter().map(|one| one.files.len()).sum();
    if files > MAX_PACKAGES {
        let message = format!("more than {MAX_PACKAGES} files");
        return Err(Invalid::new("facts.stale_services", message));
    }
    if !matches!(facts.packages_digest.len(), 0 | 32) {
        let message = "not a SHA-256 digest";
        return Err(Invalid::new("facts.packages_digest", message));
    }
    for text in checked_texts(facts) {
        check_text(text, MAX_TEXT_BYTES)?;
    }
    check_text(&facts.audit, MAX_AUDIT_BYTES)
}

/// All texts except the audit and those that are cut.
fn checked_texts(facts: &Facts) -> impl Iterator<Item = &String> {
    let one = [
        &facts.agent_version,
        &facts.architecture,
        &facts.kernel_release,
        &facts.boot_id,
        &facts.agent_session,
        &facts.installed_digest,
    ];
    let release = facts.os_release.iter().flat_map(|release| {
        [&release.id, &release.version_id, &release.pretty_name, &release.version_codename]
    });
    let available = facts.available.iter().flat_map(|package| {
        let checked_texts = [
            &package.name,
            &package.architecture,
            &package.installed_version,
            &package.available_version,
        ];
        checked_texts.into_iter().chain(&package.suites).chain(&package.origins)
    });
    let held_back = facts.held_back.iter().flat_map(|package| {
        let checked_texts = [
            &package.name,
            &package.architecture,
            &package.installed_version,
            &package.available_version,
            &package.detail,
        ];
        checked_texts.into_iter().chain(&package.suites).chain(&package.origins)
    });
    let services = facts
        .stale_services
        .iter()
        .flat_map(|service| std::iter::once(&service.name).chain(&service.files));
    let image = facts.booted_image.iter();
    let image = image.flat_map(|image| [&image.profile_name, &image.image_id]);
    one.into_iter()
        .chain(release)
        .chain(available)
        .chain(held_back)
        .chain(services)
        .chain(image)
        .chain(&facts.modules)
        .chain(&facts.reboot_required_by)
        .chain(&facts.reboot_reasons)
}

/// Rejects texts that are too long or have a zero byte, which Postgres cannot store.
fn check_text(text: &str, max: usize) -> Result<(), Invalid> {
    if text.len() > max {
        return Err(Invalid::new("facts", format!("a text is longer than {max} bytes")));
    }
    if text.contains('\0') {
        return Err(Invalid::new("facts", "a text has a zero byte"));
    }
    Ok(())
}
