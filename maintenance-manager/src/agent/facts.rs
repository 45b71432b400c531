//! What a node says of itself.

use evenkeel_domain::decide::Protocol;
use evenkeel_domain::invalid::Invalid;
use evenkeel_proto::agent::Facts;
use evenkeel_store::nodes::NodeState;
use prost::Message as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The most packages that a list may hold.
const MAX_PACKAGES: usize = 100_000;

/// The longest text of a fact, in bytes.
const MAX_TEXT: usize = 4_096;

/// The longest text of `dpkg --audit`, in bytes.
const MAX_AUDIT: usize = 65_536;

/// Takes what a node says of itself into what is known of it. The digest is the node's own: facts of a newer agent may
/// have fields that this program does not know and would leave out.
pub fn take(node: &mut NodeState, facts: Facts, digest: Vec<u8>) -> Result<(), Invalid> {
    check(&facts)?;
    let digest = match digest.len() {
        0 => Sha256::digest(facts.encode_to_vec()).to_vec(),
        32 => digest,
        _ => return Err(Invalid::new("facts_digest", "not a SHA-256 digest")),
    };
    let release = facts.os_release.unwrap_or_default();
    let available = facts.available.iter().map(|package| {
        json!({
            "name": package.name,
            "architecture": package.architecture,
            "installed_version": package.installed_version,
            "available_version": package.available_version,
        })
    });
    node.os_update_available = match available.len() {
        0 => String::new(),
        _ => serde_json::Value::from(available.collect::<Vec<_>>()).to_string(),
    };
    node.facts = json!({
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
        "rebootRequired": facts.reboot_required,
        "rebootRequiredBy": facts.reboot_required_by,
        "audit": facts.audit,
    });
    node.protocol = Protocol::Own {
        modules: facts.modules,
    };
    node.agent_version = facts.agent_version;
    node.boot_id = facts.boot_id;
    node.facts_digest = digest;
    Ok(())
}

fn check(facts: &Facts) -> Result<(), Invalid> {
    if facts.available.len() > MAX_PACKAGES {
        return Err(Invalid::new(
            "facts.available",
            format!("more than {MAX_PACKAGES} packages"),
        ));
    }
    if facts.modules.len() > 100 || facts.reboot_required_by.len() > MAX_PACKAGES {
        return Err(Invalid::new("facts", "a list is too long"));
    }
    let release = facts.os_release.clone().unwrap_or_default();
    let texts = [
        &facts.agent_version,
        &facts.architecture,
        &facts.kernel_release,
        &facts.boot_id,
        &facts.installed_digest,
        &release.id,
        &release.version_id,
        &release.pretty_name,
        &release.version_codename,
    ];
    let packages = facts.available.iter().flat_map(|package| {
        [
            &package.name,
            &package.architecture,
            &package.installed_version,
            &package.available_version,
        ]
    });
    let long = texts
        .into_iter()
        .chain(packages)
        .chain(&facts.modules)
        .chain(&facts.reboot_required_by);
    for text in long {
        one_text(text, MAX_TEXT)?;
    }
    one_text(&facts.audit, MAX_AUDIT)
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
