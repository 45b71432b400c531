//! Parses and checks the input for instances.

use evenkeel_api::instance::{InstanceInput, InstancePatch};
use evenkeel_domain::Time;
use evenkeel_domain::id::{CustomConfigId, OsId, PolicyId, parse_id};
use evenkeel_domain::instance::{Instance, NewInstance};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::text::Name;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::{Tx, instances, os_profiles};

use crate::effective;
use crate::problem::Problem;
use crate::shape::instances::{kind_from, shallow};
use crate::shape::{operating_systems as os, optional_id};

const POLICY_FIELD: &str = "osUpdatePolicyID";

pub fn parse_new_instance(body: &InstanceInput) -> Result<NewInstance, Problem> {
    let account = body.local_account_id.as_deref().unwrap_or_default();
    let policy = body.os_update_policy_id.as_deref().unwrap_or_default();
    let config = |id: &String| parse_id::<CustomConfigId>("customConfigID", id);
    let configs: Result<Vec<_>, Invalid> = body.custom_config_id.iter().map(config).collect();
    Ok(NewInstance {
        host: parse_id("hostID", &body.host_id)?,
        os: parse_id("osID", &body.os_id)?,
        name: Name::parse("name", &body.name)?,
        kind: kind_from(body.kind),
        security_feature: os::security_from(body.security_feature),
        policy: optional_id(POLICY_FIELD, policy)?,
        local_account: optional_id("localAccountID", account)?,
        custom_configs: configs?,
    })
}

/// Checks that the policy of a new instance matches its operating system.
pub async fn check_new_instance(tx: &Tx, new: &NewInstance) -> Result<(), Problem> {
    match new.policy {
        None => Ok(()),
        Some(policy) => check_policy_matches_os(tx, POLICY_FIELD, policy, new.os).await,
    }
}

/// The input that describes an instance.
pub fn to_input(instance: &Instance) -> InstancePatch {
    let current = shallow(instance);
    let policy = instance.policy.map(|id| id.to_string());
    InstancePatch {
        kind: Some(current.kind),
        name: Some(current.name),
        host_id: Some(current.host_id),
        os_id: Some(current.os_id),
        local_account_id: Some(current.local_account_id),
        custom_config_id: Some(current.custom_config_id),
        os_update_policy_id: Some(policy.unwrap_or_default()),
        security_feature: Some(current.security_feature),
    }
}

/// Completes the body of a PUT: a missing operating system and missing fields that are fixed at
/// creation keep their current values. Other missing fields are cleared.
pub fn complete_replacement(instance: &Instance, body: InstancePatch) -> InstancePatch {
    let now = to_input(instance);
    InstancePatch {
        host_id: body.host_id.or(now.host_id),
        os_id: body.os_id.or(now.os_id),
        local_account_id: body.local_account_id.or(now.local_account_id),
        custom_config_id: body.custom_config_id.or(now.custom_config_id),
        security_feature: body.security_feature.or(now.security_feature),
        kind: body.kind,
        name: body.name,
        os_update_policy_id: body.os_update_policy_id,
    }
}

/// Applies the desired values, if they differ from the current ones.
pub async fn apply_change(
    tx: &Tx,
    instance: &Instance,
    desired: &InstancePatch,
    now: Time,
) -> Result<(), Problem> {
    check_fixed(&to_input(instance), desired)?;
    let change = difference(instance, desired)?;
    if change == InstanceChange::default() {
        return Ok(());
    }
    let os = change.os.unwrap_or(instance.summary.os);
    match (change.policy, change.os, instance.policy) {
        (Some(Some(policy)), ..) => check_policy_matches_os(tx, POLICY_FIELD, policy, os).await?,
        (None, Some(_), Some(policy)) => check_policy_matches_os(tx, "osID", policy, os).await?,
        _ => {}
    }
    instances::change(tx, instance.id, &change, now).await?;
    Ok(())
}

/// Checks that fields that are fixed at creation have their current value, if they are given at
/// all.
fn check_fixed(now: &InstancePatch, desired: &InstancePatch) -> Result<(), Problem> {
    let same = |a: Option<&str>, b: Option<&str>| a.unwrap_or_default() == b.unwrap_or_default();
    let configs = |of: &InstancePatch| {
        let mut ids = of.custom_config_id.clone().unwrap_or_default();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let account = (now.local_account_id.as_deref(), desired.local_account_id.as_deref());
    let security = |of: &InstancePatch| of.security_feature.unwrap_or_default();
    let fixed = [
        ("hostID", same(now.host_id.as_deref(), desired.host_id.as_deref())),
        ("localAccountID", same(account.0, account.1)),
        ("customConfigID", configs(now) == configs(desired)),
        ("securityFeature", security(now) == security(desired)),
    ];
    match fixed.iter().find(|(_, stays)| !stays) {
        None => Ok(()),
        Some((field, _)) => {
            let why = "it is set when the instance is created, and cannot be changed";
            Err(Problem::invalid(field, why))
        }
    }
}

/// The changes that lead from the current to the desired values.
fn difference(instance: &Instance, desired: &InstancePatch) -> Result<InstanceChange, Problem> {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let name = Name::parse("name", &text(desired.name.as_deref()))?;
    let kind = kind_from(desired.kind.unwrap_or_default());
    let os: OsId = parse_id("osID", &text(desired.os_id.as_deref()))?;
    instance.check_os(os)?;
    let policy = text(desired.os_update_policy_id.as_deref());
    let policy: Option<PolicyId> = optional_id(POLICY_FIELD, &policy)?;
    Ok(InstanceChange {
        name: (name != instance.name).then_some(name),
        kind: (kind != instance.kind).then_some(kind),
        os: (os != instance.summary.os).then_some(os),
        policy: (policy != instance.policy).then_some(policy),
    })
}

/// Checks that a policy assigned to a single instance matches its operating system.
pub async fn check_policy_matches_os(
    tx: &Tx,
    field: &'static str,
    policy: PolicyId,
    os: OsId,
) -> Result<(), Problem> {
    // If the operating system does not exist, the store reports it with the name of the field.
    let Some(os) = os_profiles::find_many(tx, &[os]).await?.pop() else {
        return Ok(());
    };
    match effective::find_mismatch(tx, policy, &os).await? {
        None => Ok(()),
        Some((policy, why)) => {
            let why = format!("policy {} does not fit: {why}", policy.spec.name);
            Err(Problem::invalid(field, why))
        }
    }
}
