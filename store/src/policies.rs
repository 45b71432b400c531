//! Update policies. They are created and deleted, and never changed.

use evenkeel_domain::Time;
use evenkeel_domain::id::{OsId, PolicyId};
use evenkeel_domain::package::PackageRequirement;
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec, TargetUpdate, UpdatePolicy};
use evenkeel_domain::text::Name;
use sea_orm::{ActiveModelTrait, Set};
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::rows::update_policy::{ActiveModel, Entity, Model};
use crate::tx::Tx;
use crate::{ids, keyed, pauses};

const TABLE: &str = "update_policies";

/// Creates a policy.
///
/// # Errors
/// It targets an operating system that does not exist in the project.
pub async fn create(tx: &Tx, spec: &PolicySpec, now: Time) -> Result<UpdatePolicy, StoreError> {
    let id = PolicyId::nth(ids::next(tx.conn(), "policy_numbers").await?);
    let (mode, target) = match &spec.desired {
        DesiredUpdate::Latest => ("latest", TargetUpdate::default()),
        DesiredUpdate::Target(target) => ("target", target.clone()),
    };
    let (rules, images) = (&spec.rules, &spec.image_rules);
    let row = ActiveModel {
        tenant_id: Set(tx.tenant().uuid()),
        id: Set(id.bits().cast_signed()),
        name: Set(spec.name.to_string()),
        description: Set(spec.description.clone()),
        mode: Set(mode.to_owned()),
        target_os_id: Set(target.os.map(|os| os.bits().cast_signed())),
        packages: Set(PackageRequirement::format_list(&target.packages)),
        sources: Set(target.sources),
        kernel_command: Set(target.kernel_command),
        created_at: Set(now),
        allow_downgrade: Set(spec.allow_downgrade),
        offline_days: Set(spec.offline_days.cast_signed()),
        rules: Set(rules_value(rules, rules.is_default(), (id, "rules"))?),
        image_rules: Set(rules_value(images, images.is_default(), (id, "image_rules"))?),
    };
    row.insert(tx.conn()).await?.try_into()
}

/// The rules as stored: the default rules are an empty object, as in policies of older releases.
fn rules_value(
    rules: &impl Serialize,
    are_usual: bool,
    (id, column): (PolicyId, &'static str),
) -> Result<Value, StoreError> {
    if are_usual {
        return Ok(json!({}));
    }
    let row = id.bits().cast_signed();
    or_corrupt(serde_json::to_value(rules).ok(), TABLE, row, column)
}

/// The policy with this id.
///
/// # Errors
/// It does not exist in the project.
pub async fn find(tx: &Tx, id: PolicyId) -> Result<UpdatePolicy, StoreError> {
    keyed::find::<Entity, _>(tx, id.bits()).await
}

/// The policies with these ids that exist, in no particular order.
pub async fn find_many(tx: &Tx, ids: &[PolicyId]) -> Result<Vec<UpdatePolicy>, StoreError> {
    keyed::find_many::<Entity, _>(tx, ids.iter().map(|id| id.bits())).await
}

/// Deletes a policy and its pause. Runs keep their frozen copy.
///
/// # Errors
/// It does not exist in the project, or it is assigned to something.
pub async fn delete(tx: &Tx, id: PolicyId) -> Result<(), StoreError> {
    tx.lock_for_change().await?;
    keyed::delete::<Entity>(tx, id.bits()).await?;
    pauses::clear(tx, PauseScope::Policy(id)).await
}

impl TryFrom<Model> for UpdatePolicy {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let id = row.id;
        let packages = PackageRequirement::parse_list("packages", &row.packages).ok();
        let desired = match row.mode.as_str() {
            "latest" => Some(DesiredUpdate::Latest),
            "target" => Some(DesiredUpdate::Target(TargetUpdate {
                os: row.target_os_id.map(|os| OsId::from_bits(os.cast_unsigned())),
                packages: or_corrupt(packages, TABLE, id, "packages")?,
                sources: row.sources,
                kernel_command: row.kernel_command,
            })),
            _ => None,
        };
        let rules = serde_json::from_value(row.rules).ok();
        let image_rules = serde_json::from_value(row.image_rules).ok();
        Ok(Self {
            id: PolicyId::from_bits(id.cast_unsigned()),
            spec: PolicySpec {
                name: Name::from_stored(&row.name),
                description: row.description,
                desired: or_corrupt(desired, TABLE, id, "mode")?,
                allow_downgrade: row.allow_downgrade,
                offline_days: row.offline_days.cast_unsigned(),
                rules: or_corrupt(rules, TABLE, id, "rules")?,
                image_rules: or_corrupt(image_rules, TABLE, id, "image_rules")?,
            },
            created_at: row.created_at,
        })
    }
}
