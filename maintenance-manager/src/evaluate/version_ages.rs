//! The age of package versions: a policy may require that a version has been known for some days.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::{Act, Decision};
use evenkeel_domain::package::ObservedVersion;
use evenkeel_proto::agent::Facts;
use evenkeel_store::nodes::NodeState;
use evenkeel_store::{StoreError, Tx, package_versions};
use serde::Deserialize;

/// The versions that the node reports as available, held back ones included: a policy that allows
/// removals can install versions that are held back because other packages would have to go.
pub fn available_versions(facts: &Facts) -> Vec<ObservedVersion> {
    let available = facts.available.iter().map(|package| ObservedVersion {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        version: package.available_version.clone(),
    });
    let held_back = facts.held_back.iter().map(|package| ObservedVersion {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        version: package.available_version.clone(),
    });
    available.chain(held_back).take(package_versions::MAX_VERSIONS_PER_REPORT).collect()
}

/// The versions that are old enough, and how long this list stays valid.
#[derive(Debug, Default)]
pub struct SettledVersions {
    /// Each version with the name and the architecture of its package.
    pub versions: Vec<ObservedVersion>,
    /// When the list may change; `None` if the policy requires no age.
    pub valid_until: Option<Time>,
}

/// Loads the versions that are old enough to be fetched or applied, of the packages that the node
/// can update. Returns an empty list without a query if the policy requires no age.
pub async fn load_settled(
    tx: &Tx,
    node: &NodeState,
    decision: &Decision,
    now: Time,
) -> Result<SettledVersions, StoreError> {
    let Some(days) = required_age_days(decision) else {
        return Ok(SettledVersions::default());
    };
    let mut names: Vec<String> =
        stored_versions(node).into_iter().map(|version| version.name).collect();
    names.sort_unstable();
    names.dedup();
    let age = TimeDelta::days(days.into());
    // Versions that are recorded from now on reach the age later than this.
    let steady_until = package_versions::steady_until(tx, node.instance, &names, age, now).await?;
    Ok(SettledVersions {
        valid_until: steady_until.into_iter().chain([now + age]).min(),
        versions: package_versions::list_known_since(tx, node.instance, names, now - age).await?,
    })
}

/// Whether an age matters and one of the available versions is not recorded yet. Runs no query if
/// the policy requires no age.
pub async fn has_unrecorded(
    tx: &Tx,
    node: &NodeState,
    decision: &Decision,
    now: Time,
) -> Result<bool, StoreError> {
    if required_age_days(decision).is_none() {
        return Ok(false);
    }
    package_versions::has_unrecorded(tx, &stored_versions(node), now).await
}

/// Records the versions that the node reported as available earlier, if an age matters.
pub async fn record(
    tx: &Tx,
    node: &NodeState,
    decision: &Decision,
    now: Time,
) -> Result<(), StoreError> {
    if required_age_days(decision).is_some() {
        package_versions::record_seen(tx, node.instance, &stored_versions(node), now).await?;
    }
    Ok(())
}

/// The age in days that versions must have to be fetched or applied; `None` if any age is accepted.
pub fn required_age_days(decision: &Decision) -> Option<u32> {
    let (Act::Fetch(target) | Act::Apply { target, .. }) = &decision.act else {
        return None;
    };
    Some(target.min_age_days()).filter(|days| *days > 0)
}

/// A package that the node can update, as stored with its facts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoredPackage {
    name: String,
    architecture: String,
    #[serde(alias = "availableVersion")]
    available_version: String,
}

/// The available versions from the stored facts of the node.
fn stored_versions(node: &NodeState) -> Vec<ObservedVersion> {
    let available: Vec<StoredPackage> =
        serde_json::from_str(&node.os_update_available).unwrap_or_default();
    let held_back = node.facts.get("heldBack");
    let held_back = held_back.and_then(|list| Vec::<StoredPackage>::deserialize(list).ok());
    let to_version = |package: StoredPackage| ObservedVersion {
        name: package.name,
        architecture: package.architecture,
        version: package.available_version,
    };
    let all = available.into_iter().chain(held_back.unwrap_or_default());
    all.map(to_version).collect()
}
