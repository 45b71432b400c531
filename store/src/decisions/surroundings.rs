//! What is read about a node in one statement: its operating system, what it belongs to, its order and its project's
//! settings.

use evenkeel_domain::host::Host;
use evenkeel_domain::id::{InstanceId, OsId, RegionId};
use evenkeel_domain::order::Order;
use evenkeel_domain::os::OsProfile;
use sea_orm::FromQueryResult;

use crate::chain::Chain;
use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::rows::{os_profile, update_order};
use crate::tx::{Tx, columns, one};

pub struct Surroundings {
    pub os: OsProfile,
    pub chain: Chain,
    pub order: Option<Order>,
    pub any_schedule_status: bool,
    /// Whether its instance is believed.
    pub trusted: bool,
}

pub async fn surroundings(
    tx: &Tx,
    host: &Host,
    instance: InstanceId,
    os: OsId,
) -> Result<Surroundings, StoreError> {
    let sql = format!(
        "WITH RECURSIVE up (id, nearness) AS ( \
         SELECT region_id, 1 FROM sites WHERE tenant_id = $1 AND id = $4 \
         UNION ALL \
         SELECT r.parent_id, up.nearness + 1 FROM up JOIN regions r ON r.tenant_id = $1 AND r.id = up.id) \
         SELECT {}, {}, coalesce(s.any_schedule_status, false) AS any_status, \
         NOT EXISTS (SELECT 1 FROM instances i WHERE i.tenant_id = o.tenant_id AND i.id = $3 \
         AND (i.desired_state IN ('untrusted', 'deleted') OR i.current_state IN ('untrusted', 'deleted'))) AS trusted, \
         ARRAY(SELECT id FROM up WHERE id IS NOT NULL ORDER BY nearness) AS regions \
         FROM os_profiles o \
         LEFT JOIN update_orders u ON u.tenant_id = o.tenant_id AND u.instance_id = $3 \
         LEFT JOIN project_settings s ON s.tenant_id = o.tenant_id \
         WHERE o.tenant_id = $1 AND o.id = $2",
        columns::<os_profile::Entity>("o"),
        columns::<update_order::Entity>("u"),
    );
    let values = [
        tx.tenant().uuid().into(),
        os.bits().cast_signed().into(),
        instance.bits().cast_signed().into(),
        host.site.map(|site| site.bits().cast_signed()).into(),
    ];
    let what = os_profile::Entity::WHAT;
    let row = one(tx.conn(), sql, values).await?;
    let row = row.ok_or(StoreError::NotFound { what })?;
    let order = update_order::Model::from_query_result_optional(&row, "u_")?;
    let regions: Vec<i32> = row.try_get("", "regions")?;
    Ok(Surroundings {
        os: os_profile::Model::from_query_result(&row, "o_")?.try_into()?,
        chain: Chain {
            instance,
            host: host.id,
            site: host.site,
            regions: regions
                .into_iter()
                .map(|bits| RegionId::from_bits(bits.cast_unsigned()))
                .collect(),
        },
        order: order.map(Order::try_from).transpose()?,
        any_schedule_status: row.try_get("", "any_status")?,
        trusted: row.try_get("", "trusted")?,
    })
}
