//! How old versions of packages are: a policy may ask for those only that have been heard of for some days.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::{Act, Decision};
use evenkeel_domain::package::FoundVersion;
use evenkeel_proto::agent::Facts;
use evenkeel_store::nodes::NodeState;
use evenkeel_store::{StoreError, Tx, versions};
use serde::Deserialize;

/// The versions that a node says it could get, now or once nothing withholds them: what is kept back because others would
/// have to go is what a policy that allows removals brings.
pub fn told(facts: &Facts) -> Vec<FoundVersion> {
    let available = facts.available.iter().map(|package| FoundVersion {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        version: package.available_version.clone(),
    });
    let withheld = facts.withheld.iter().map(|package| FoundVersion {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        version: package.available_version.clone(),
    });
    available.chain(withheld).take(versions::MAX_TOLD).collect()
}

/// The versions that are old enough, and how long it stays at those.
#[derive(Debug, Default)]
pub struct Settled {
    /// By name, architecture and version.
    pub versions: Vec<FoundVersion>,
    /// Before which instant they are the same, whatever is heard of until then; none if no age is asked for.
    pub until: Option<Time>,
}

/// The versions that are old enough for what a node is to fetch or to apply, of the packages that it could update. Empty,
/// and nothing is read, unless the policy asks for an age.
///
/// # Errors
/// The database cannot be reached.
pub async fn settled(
    tx: &Tx,
    node: &NodeState,
    decision: &Decision,
    now: Time,
) -> Result<Settled, StoreError> {
    let Some(days) = asked(decision) else {
        return Ok(Settled::default());
    };
    let mut names: Vec<String> = known(node).into_iter().map(|found| found.name).collect();
    names.sort_unstable();
    names.dedup();
    let age = TimeDelta::days(days.into());
    // What is heard of from now on is of that age later.
    let known = versions::steady_until(tx, &names, age, now).await?;
    Ok(Settled {
        until: known.into_iter().chain([now + age]).min(),
        versions: versions::settled(tx, names, now - age).await?,
    })
}

/// Whether an age matters and one of the versions that the node could get is to be noted. Nothing is read unless the
/// policy asks for an age.
///
/// # Errors
/// The database cannot be reached.
pub async fn is_unheard(
    tx: &Tx,
    node: &NodeState,
    decision: &Decision,
    now: Time,
) -> Result<bool, StoreError> {
    if asked(decision).is_none() {
        return Ok(false);
    }
    versions::is_unheard(tx, &known(node), now).await
}

/// Notes the versions that a node could get by what it said before, if an age matters.
///
/// # Errors
/// The database cannot be reached.
pub async fn note(
    tx: &Tx,
    node: &NodeState,
    decision: &Decision,
    now: Time,
) -> Result<(), StoreError> {
    if asked(decision).is_some() {
        versions::see(tx, &known(node), now).await?;
    }
    Ok(())
}

/// How many days old versions must be for what is to be fetched or applied; none if any age will do.
pub fn asked(decision: &Decision) -> Option<u32> {
    let (Act::Fetch(target) | Act::Apply { target, .. }) = &decision.act else {
        return None;
    };
    Some(target.min_age_days()).filter(|days| *days > 0)
}

/// A package that a node could update, as it is kept of its facts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    name: String,
    architecture: String,
    #[serde(alias = "availableVersion")]
    available_version: String,
}

/// The versions that a node could get, as they are kept of its facts.
fn known(node: &NodeState) -> Vec<FoundVersion> {
    let available: Vec<Entry> = serde_json::from_str(&node.os_update_available).unwrap_or_default();
    let withheld = node.facts.get("withheld");
    let withheld = withheld.and_then(|list| Vec::<Entry>::deserialize(list).ok());
    let found = |entry: Entry| FoundVersion {
        name: entry.name,
        architecture: entry.architecture,
        version: entry.available_version,
    };
    let all = available.into_iter().chain(withheld.unwrap_or_default());
    all.map(found).collect()
}
