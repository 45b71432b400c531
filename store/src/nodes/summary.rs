//! The part of a node's state that is shown to users. The rest of the row is long and is not read.

use evenkeel_domain::Time;
use evenkeel_domain::condition::Condition;
use evenkeel_domain::id::OsId;
use evenkeel_domain::instance::{FactsSummary, Summary};
use evenkeel_domain::status::Status;

use super::convert::facts_summary;
use crate::error::StoreError;
use crate::fields::fields;
use crate::rows::{JsonColumn, or_corrupt};

/// The part of a row of `node_states` that is shown to users.
#[derive(Debug)]
pub(crate) struct SummaryRow {
    instance_id: i32,
    os_id: i32,
    provisioned: bool,
    status: String,
    status_indication: String,
    status_at: Time,
    update_status: String,
    update_status_indication: String,
    update_status_at: Time,
    os_update_available: String,
    conditions: JsonColumn<Vec<Condition>>,
    packages_digest: Option<Vec<u8>>,
    facts_version: i16,
    kernel_release: Option<String>,
    reboot_required: Option<bool>,
    package_lists_refreshed_at: Option<Time>,
    package_lists_error: Option<String>,
    security_updates: Option<i32>,
    held_back_updates: Option<i32>,
    stale_services: Option<i32>,
    boot_time: Option<Time>,
    reboot_required_by: Option<Vec<String>>,
    agent_version: String,
}

fields!(SummaryRow {
    instance_id,
    os_id,
    provisioned,
    status,
    status_indication,
    status_at,
    update_status,
    update_status_indication,
    update_status_at,
    os_update_available,
    conditions,
    packages_digest,
    facts_version,
    kernel_release,
    reboot_required,
    package_lists_refreshed_at,
    package_lists_error,
    security_updates,
    held_back_updates,
    stale_services,
    boot_time,
    reboot_required_by,
    agent_version,
});

impl TryFrom<SummaryRow> for Summary {
    type Error = StoreError;

    fn try_from(row: SummaryRow) -> Result<Self, StoreError> {
        const TABLE: &str = "node_states";
        let id = row.instance_id;
        let packages = row.packages_digest.map(TryInto::try_into).transpose().ok();
        Ok(Self {
            os: OsId::from_bits(row.os_id.cast_unsigned()),
            provisioned: row.provisioned,
            status: Status::from_stored(row.status, &row.status_indication, row.status_at),
            update_status: Status::from_stored(
                row.update_status,
                &row.update_status_indication,
                row.update_status_at,
            ),
            os_update_available: row.os_update_available,
            conditions: row.conditions.0,
            agent_version: row.agent_version,
            packages: or_corrupt(packages, TABLE, id, "packages_digest")?,
            facts: facts_summary!(row),
        })
    }
}
