//! What is asked for an instance, and what of it may be.

use evenkeel_api::instance::{InstanceInput, InstancePatch};
use evenkeel_domain::Time;
use evenkeel_domain::id::{CustomConfigId, OsId, PolicyId, parse_id};
use evenkeel_domain::instance::{Instance, NewInstance};
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::text::Name;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::{Tx, instances, os_profiles};

use super::shape::{kind_from, shallow};
use crate::problem::Problem;
use crate::shape::optional_id;
use crate::{effective, operating_systems as os};

const POLICY: &str = "osUpdatePolicyID";

/// An instance to be made.
pub fn new_instance(body: &InstanceInput) -> Result<NewInstance, Problem> {
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
        policy: optional_id(POLICY, policy)?,
        local_account: optional_id("localAccountID", account)?,
        custom_configs: configs?,
    })
}

/// Refuses a policy for a new instance that is not meant for its operating system.
pub async fn check_new(tx: &Tx, new: &NewInstance) -> Result<(), Problem> {
    match new.policy {
        None => Ok(()),
        Some(policy) => check_fit(tx, POLICY, policy, new.os).await,
    }
}

/// What an instance is, as it would be asked for.
pub fn input(instance: &Instance) -> InstancePatch {
    let shown = shallow(instance);
    let policy = instance.policy.map(|id| id.to_string());
    InstancePatch {
        kind: Some(shown.kind),
        name: Some(shown.name),
        host_id: Some(shown.host_id),
        os_id: Some(shown.os_id),
        local_account_id: Some(shown.local_account_id),
        custom_config_id: Some(shown.custom_config_id),
        os_update_policy_id: Some(policy.unwrap_or_default()),
        security_feature: Some(shown.security_feature),
    }
}

/// What an instance should be that is described anew: what is left out is emptied, but what is chosen when it is made
/// stays, and so does its operating system.
pub fn anew(instance: &Instance, body: InstancePatch) -> InstancePatch {
    let now = input(instance);
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

/// Makes an instance what it should be, if it is not yet.
pub async fn change(
    tx: &Tx,
    instance: &Instance,
    wanted: &InstancePatch,
    now: Time,
) -> Result<(), Problem> {
    check_fixed(&input(instance), wanted)?;
    let change = difference(instance, wanted)?;
    if change == InstanceChange::default() {
        return Ok(());
    }
    let os = change.os.unwrap_or(instance.summary.os);
    match (change.policy, change.os, instance.policy) {
        (Some(Some(policy)), ..) => check_fit(tx, POLICY, policy, os).await?,
        (None, Some(_), Some(policy)) => check_fit(tx, "osID", policy, os).await?,
        _ => {}
    }
    instances::change(tx, instance.id, &change, now).await?;
    Ok(())
}

/// What is chosen when an instance is made may be named with the value that it has, and with no other.
fn check_fixed(now: &InstancePatch, wanted: &InstancePatch) -> Result<(), Problem> {
    let same = |a: Option<&str>, b: Option<&str>| a.unwrap_or_default() == b.unwrap_or_default();
    let configs = |of: &InstancePatch| {
        let mut ids = of.custom_config_id.clone().unwrap_or_default();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let account = (
        now.local_account_id.as_deref(),
        wanted.local_account_id.as_deref(),
    );
    let security = |of: &InstancePatch| of.security_feature.unwrap_or_default();
    let fixed = [
        (
            "hostID",
            same(now.host_id.as_deref(), wanted.host_id.as_deref()),
        ),
        ("localAccountID", same(account.0, account.1)),
        ("customConfigID", configs(now) == configs(wanted)),
        ("securityFeature", security(now) == security(wanted)),
    ];
    match fixed.iter().find(|(_, stays)| !stays) {
        None => Ok(()),
        Some((field, _)) => {
            let why = "it is chosen when the instance is made, and cannot be changed";
            Err(Problem::invalid(field, why))
        }
    }
}

/// What changes.
fn difference(instance: &Instance, wanted: &InstancePatch) -> Result<InstanceChange, Problem> {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let name = Name::parse("name", &text(wanted.name.as_deref()))?;
    let kind = kind_from(wanted.kind.unwrap_or_default());
    let os: OsId = parse_id("osID", &text(wanted.os_id.as_deref()))?;
    instance.check_os(os)?;
    let policy = text(wanted.os_update_policy_id.as_deref());
    let policy: Option<PolicyId> = optional_id(POLICY, &policy)?;
    Ok(InstanceChange {
        name: (name != instance.name).then_some(name),
        kind: (kind != instance.kind).then_some(kind),
        os: (os != instance.summary.os).then_some(os),
        policy: (policy != instance.policy).then_some(policy),
    })
}

/// A policy that is assigned to an instance itself must be meant for its operating system.
pub async fn check_fit(
    tx: &Tx,
    field: &'static str,
    policy: PolicyId,
    os: OsId,
) -> Result<(), Problem> {
    // What is missing is told by the store, which names the field.
    let Some(os) = os_profiles::find_many(tx, &[os]).await?.pop() else {
        return Ok(());
    };
    match effective::misfit(tx, policy, &os).await? {
        None => Ok(()),
        Some((policy, why)) => {
            let why = format!("policy {} does not fit: {why}", policy.spec.name);
            Err(Problem::invalid(field, why))
        }
    }
}
