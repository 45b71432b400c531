//! What a node says of itself.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::condition::{self, ConditionKind};
use evenkeel_domain::decide::Protocol;
use evenkeel_domain::eim::MAX_AVAILABLE;
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_domain::text::{cut, cut_list, storable};
use evenkeel_proto::agent::{AvailablePackage, Facts, WithheldCause, WithheldPackage};
use evenkeel_store::nodes::{BootedImage, NodeState};
use evenkeel_store::{StoreError, os_profiles};
use prost::Message as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::agent::slots;
use crate::progress::Scene;

/// The most packages that a list may hold, and the most of anything else.
const MAX_PACKAGES: usize = 100_000;
const MAX_LIST: usize = 10_000;

/// The longest text of a fact, in bytes.
const MAX_TEXT: usize = 4_096;

/// The longest text of `dpkg --audit`, in bytes.
const MAX_AUDIT: usize = 65_536;

/// The most suites of a package that are kept.
const MAX_SUITES: usize = 20;

/// The most troubles of an agent that are kept, and the longest one in bytes; the longest text of its owner's limits.
/// What is longer is cut: an agent in trouble is heard all the same.
const MAX_TROUBLES: usize = 20;
const MAX_TROUBLE: usize = 500;
const MAX_LIMITS: usize = 2_000;

/// The longest text of a condition, in bytes.
const MAX_CONDITION: usize = 2_000;

/// How the text ends that says that the list of what could be updated was cut.
const KEPT: &str = " of them are kept";

/// Takes what a node says of itself into what is known of it. The digest is the node's own: facts of a newer agent may
/// have fields that this program does not know and would leave out.
pub fn take(node: &mut NodeState, facts: Facts, digest: Vec<u8>, now: Time) -> Result<(), Invalid> {
    check(&facts)?;
    let digest = match digest.len() {
        0 => Sha256::digest(facts.encode_to_vec()).to_vec(),
        32 => digest,
        _ => return Err(Invalid::new("facts_digest", "not a SHA-256 digest")),
    };
    let cut = available(node, &facts.available);
    let is_judged = judges_cut(node);
    let is_it = |kind| is_judged && kind == ConditionKind::DetailCut;
    condition::replace(&mut node.conditions, is_it, cut, now);
    let troubles = troubles(&facts);
    let is_it = |kind| kind == ConditionKind::AgentTrouble;
    condition::replace(&mut node.conditions, is_it, in_trouble(&troubles), now);
    node.bad_images = slots::known(&node.bad_images, &facts.bad_images, now);
    node.facts = shown(&facts, &troubles);
    node.protocol = Protocol::Own {
        modules: facts.modules,
    };
    node.agent_version = facts.agent_version;
    node.booted = facts.booted_image.map(|image| BootedImage {
        profile_name: image.profile_name,
        image_id: image.image_id,
    });
    node.facts_digest = digest;
    in_boot(node, facts.boot_id, now);
    Ok(())
}

/// Whether facts may take back that something was cut: what they said themselves, and what was said of an update that
/// another one has followed.
fn judges_cut(node: &NodeState) -> bool {
    let later = node.last_end.as_ref();
    let later = |since: Time| later.is_some_and(|end| since + TimeDelta::seconds(1) < end.at);
    node.conditions.iter().any(|one| {
        let is_it = one.kind == ConditionKind::DetailCut;
        is_it && (one.text.ends_with(KEPT) || later(one.since))
    })
}

/// What a person should know of the agent itself, as it says so.
fn troubles(facts: &Facts) -> Vec<String> {
    cut_list(&facts.troubles, MAX_TROUBLES, MAX_TROUBLE)
}

fn in_trouble(troubles: &[String]) -> Option<(ConditionKind, String)> {
    let text = troubles.join("; ");
    (!text.is_empty()).then(|| (ConditionKind::AgentTrouble, cut(&text, MAX_CONDITION)))
}

/// What could be updated, as many packages as are kept of it. Says so if those are not all.
fn available(
    node: &mut NodeState,
    packages: &[AvailablePackage],
) -> Option<(ConditionKind, String)> {
    let mut text = String::new();
    let mut kept = 0;
    for package in packages {
        let entry = entry(package).to_string();
        if text.len() + entry.len() + 2 > MAX_AVAILABLE {
            break;
        }
        text.push(if kept == 0 { '[' } else { ',' });
        text.push_str(&entry);
        kept += 1;
    }
    if kept > 0 {
        text.push(']');
    }
    node.os_update_available = text;
    let all = packages.len();
    (kept < all).then(|| {
        let text = format!("{all} packages could be updated; the first {kept}{KEPT}");
        (ConditionKind::DetailCut, text)
    })
}

/// A package that could be updated, as the ancestor's clients know it, and the suites that have it.
fn entry(package: &AvailablePackage) -> Value {
    let mut entry = json!({
        "name": package.name,
        "architecture": package.architecture,
        "installed_version": package.installed_version,
        "available_version": package.available_version,
    });
    let suites: Vec<_> = package.suites.iter().take(MAX_SUITES).collect();
    if let (false, Some(members)) = (suites.is_empty(), entry.as_object_mut()) {
        members.insert("suites".to_owned(), json!(suites));
    }
    entry
}

/// The facts, for people and programs.
fn shown(facts: &Facts, troubles: &[String]) -> Value {
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
        "modules": facts.modules,
        "installedDigest": facts.installed_digest,
        "packagesDigest": hex(&facts.packages_digest),
        "rebootRequired": facts.reboot_required,
        "rebootRequiredBy": facts.reboot_required_by,
        "rebootReasons": facts.reboot_reasons,
        "withheld": facts.withheld.iter().map(withheld).collect::<Vec<_>>(),
        "staleServices": services.collect::<Vec<_>>(),
        "bootedImage": facts.booted_image.as_ref().map(|image| json!({
            "profileName": image.profile_name,
            "imageId": image.image_id,
        })),
        "slots": slots::shown(&facts.slots),
        "badImages": slots::failed(&facts.bad_images),
        "audit": facts.audit,
        "troubles": troubles,
        "limits": cut(&storable(&facts.limits), MAX_LIMITS),
    })
}

fn withheld(package: &WithheldPackage) -> Value {
    use WithheldCause as C;
    let cause = match package.cause() {
        C::Unspecified => "unspecified",
        C::Hold => "hold",
        C::KeptBack => "kept_back",
        C::Phased => "phased",
        C::Pinned => "pinned",
        C::Limits => "limits",
        C::Policy => "policy",
    };
    json!({
        "name": package.name,
        "architecture": package.architecture,
        "installedVersion": package.installed_version,
        "availableVersion": package.available_version,
        "cause": cause,
        "detail": package.detail,
    })
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

/// Takes note of the boot that the node is in. A machine never comes back to a boot that another one has replaced: then
/// there are two of them. A boot that is new to both ends the suspicion until the next proof.
fn in_boot(node: &mut NodeState, boot_id: String, now: Time) {
    if boot_id.is_empty() || boot_id == node.boot_id {
        return;
    }
    let came_back = boot_id == node.previous_boot_id;
    let two = came_back.then(|| {
        let text = "two machines speak with its identity: each of them is in another boot";
        (ConditionKind::TwoMachines, text.to_owned())
    });
    let is_it = |kind| kind == ConditionKind::TwoMachines;
    condition::replace(&mut node.conditions, is_it, two, now);
    node.previous_boot_id = std::mem::replace(&mut node.boot_id, boot_id);
}

/// Holds the image that the node has booted against the catalogue: what its instance runs moves only on that.
pub async fn booted(scene: &mut Scene<'_>) -> Result<(), StoreError> {
    let Some(booted) = scene.node.booted.clone() else {
        return Ok(());
    };
    if scene.world.known.os_kind != OsKind::Immutable {
        return Ok(());
    }
    let running = &scene.world.known.running;
    let mut holds = None;
    if booted.profile_name != running.profile_name {
        let text = format!(
            "it has booted an image of the profile {:?}, and its instance runs {:?}",
            booted.profile_name, running.profile_name
        );
        holds = Some((ConditionKind::ProfileMismatch, text));
    } else if booted.image_id != running.image_id {
        let known =
            os_profiles::find_image(&scene.tx, &booted.profile_name, &booted.image_id).await?;
        if let Some(profile) = known {
            scene.runs(Image::of(&profile));
        } else {
            let text = format!(
                "it has booted the image {:?}, which the catalogue does not have",
                booted.image_id
            );
            holds = Some((ConditionKind::UnknownImage, text));
        }
    }
    let judged = |kind| {
        matches!(
            kind,
            ConditionKind::ProfileMismatch
                | ConditionKind::UnknownImage
                | ConditionKind::OtherImage
        )
    };
    condition::replace(&mut scene.node.conditions, judged, holds, scene.now);
    Ok(())
}

fn check(facts: &Facts) -> Result<(), Invalid> {
    let many = [
        ("facts.available", facts.available.len(), MAX_PACKAGES),
        ("facts.withheld", facts.withheld.len(), MAX_PACKAGES),
        (
            "facts.reboot_required_by",
            facts.reboot_required_by.len(),
            MAX_PACKAGES,
        ),
        ("facts.stale_services", facts.stale_services.len(), MAX_LIST),
        ("facts.reboot_reasons", facts.reboot_reasons.len(), MAX_LIST),
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
    for text in texts(facts) {
        one_text(text, MAX_TEXT)?;
    }
    one_text(&facts.audit, MAX_AUDIT)
}

/// Every text but the audit and those that are cut.
fn texts(facts: &Facts) -> impl Iterator<Item = &String> {
    let one = [
        &facts.agent_version,
        &facts.architecture,
        &facts.kernel_release,
        &facts.boot_id,
        &facts.installed_digest,
    ];
    let release = facts.os_release.iter().flat_map(|release| {
        [
            &release.id,
            &release.version_id,
            &release.pretty_name,
            &release.version_codename,
        ]
    });
    let available = facts.available.iter().flat_map(|package| {
        let texts = [
            &package.name,
            &package.architecture,
            &package.installed_version,
            &package.available_version,
        ];
        texts.into_iter().chain(&package.suites)
    });
    let withheld = facts.withheld.iter().flat_map(|package| {
        [
            &package.name,
            &package.architecture,
            &package.installed_version,
            &package.available_version,
            &package.detail,
        ]
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
        .chain(withheld)
        .chain(services)
        .chain(image)
        .chain(&facts.modules)
        .chain(&facts.reboot_required_by)
        .chain(&facts.reboot_reasons)
}

/// Postgres keeps every text but one with a zero byte in it.
fn one_text(text: &str, max: usize) -> Result<(), Invalid> {
    if text.len() > max {
        return Err(Invalid::new(
            "facts",
            format!("a text is longer than {max} bytes"),
        ));
    }
    if text.contains('\0') {
        return Err(Invalid::new("facts", "a text has a zero byte"));
    }
    Ok(())
}
