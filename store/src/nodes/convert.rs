//! Conversion between node states and their rows.

use evenkeel_domain::Time;
use evenkeel_domain::decide::{AgentProtocol, LastRun, Verdict};
use evenkeel_domain::id::{InstanceId, OsId, RunId};
use evenkeel_domain::instance::FactsSummary;
use evenkeel_domain::status::Status;
use sea_orm::{ActiveModelTrait as _, IntoActiveModel as _, NotSet};
use serde::Serialize;
use serde_json::Value;

use super::{BootedImage, NodeState, available_digest};
use crate::error::StoreError;
use crate::rows::node_state::{ActiveModel, Model};
use crate::rows::or_corrupt;
use crate::tx::Tx;

const TABLE: &str = "node_states";

/// The facts that lists and filters use, from the columns of a row of either type.
macro_rules! facts_summary {
    ($row:ident) => {
        FactsSummary {
            version: $row.facts_version,
            kernel_release: $row.kernel_release,
            reboot_required: $row.reboot_required,
            reboot_required_by: $row.reboot_required_by,
            boot_time: $row.boot_time,
            package_lists_refreshed_at: $row.package_lists_refreshed_at,
            package_lists_error: $row.package_lists_error,
            security_updates: $row.security_updates.map($crate::nodes::convert::count),
            held_back_updates: $row.held_back_updates.map($crate::nodes::convert::count),
            stale_services: $row.stale_services.map($crate::nodes::convert::count),
        }
    };
}
pub(super) use facts_summary;

/// The row of a node. The facts and the list of available updates may be megabytes long, so they
/// are not set if they are as `before`.
pub(super) fn into_row(
    tx: &Tx,
    state: &NodeState,
    before: Option<&NodeState>,
) -> Result<ActiveModel, StoreError> {
    let available = &state.os_update_available;
    let has_new_facts = before.is_none_or(|before| before.facts != state.facts);
    let has_new_available = before.is_none_or(|before| before.os_update_available != *available);
    let (protocol, modules) = match &state.protocol {
        AgentProtocol::Unknown => ("unknown", Vec::new()),
        AgentProtocol::Eim => ("eim", Vec::new()),
        AgentProtocol::Own { modules } => ("own", modules.clone()),
    };
    let end = state.last_end.as_ref();
    let booted = state.booted.as_ref();
    let facts = &state.facts_summary;
    let sample = match &state.last_sample {
        None => None,
        Some(last_sample) => Some(json(last_sample, state, "sample")?),
    };
    let row = Model {
        tenant_id: tx.tenant().uuid(),
        instance_id: state.instance.bits().cast_signed(),
        os_id: state.os.bits().cast_signed(),
        provisioned: state.provisioned,
        protocol: protocol.to_owned(),
        modules,
        agent_version: state.agent_version.clone(),
        boot_id: state.boot_id.clone(),
        facts_digest: state.facts_digest.clone(),
        facts: if has_new_facts { state.facts.clone() } else { Value::Null },
        facts_version: facts.version,
        status: state.status.text.clone(),
        status_indication: state.status.indication.name().to_owned(),
        status_at: state.status.at,
        update_status: state.update_status.text.clone(),
        update_status_indication: state.update_status.indication.name().to_owned(),
        update_status_at: state.update_status.at,
        os_update_available: if has_new_available { available.clone() } else { String::new() },
        last_end_run_id: end.map(|end| end.run.bits().cast_signed()),
        last_end_target: end.and_then(|end| end.target.clone()),
        last_end_at: end.map(|end| end.at),
        last_end_verdict: end.map(|end| end.verdict.name().to_owned()),
        sample,
        delivered: json(&state.delivered, state, "delivered")?,
        conditions: json(&state.conditions, state, "conditions")?,
        bad_images: json(&state.bad_images, state, "bad_images")?,
        previous_boot_id: state.previous_boot_id.clone(),
        recent_starts: json(&state.recent_starts, state, "recent_starts")?,
        packages_digest: state.packages_digest.map(|digest| digest.to_vec()),
        booted_profile: booted.map(|image| image.profile_name.clone()),
        booted_image: booted.map(|image| image.image_id.clone()),
        waiting: state.waiting.clone(),
        reported_packages_digest: state.reported_packages().map(|digest| digest.to_vec()),
        available_digest: available_digest(available).to_vec(),
        kernel_release: facts.kernel_release.clone(),
        reboot_required: facts.reboot_required,
        package_lists_refreshed_at: facts.package_lists_refreshed_at,
        package_lists_error: facts.package_lists_error.clone(),
        security_updates: facts.security_updates.map(stored_count),
        held_back_updates: facts.held_back_updates.map(stored_count),
        stale_services: facts.stale_services.map(stored_count),
        boot_time: facts.boot_time,
        reboot_required_by: facts.reboot_required_by.clone(),
    };
    let mut row = row.into_active_model().reset_all();
    if !has_new_facts {
        row.facts = NotSet;
    }
    if !has_new_available {
        row.os_update_available = NotSet;
    }
    Ok(row)
}

/// A count as a column has it. Reports are far smaller than its range.
fn stored_count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A count in a row.
pub(super) fn count(stored: i32) -> u32 {
    u32::try_from(stored).unwrap_or_default()
}

fn json(
    value: &impl Serialize,
    state: &NodeState,
    column: &'static str,
) -> Result<Value, StoreError> {
    let row = state.instance.bits().cast_signed();
    or_corrupt(serde_json::to_value(value).ok(), TABLE, row, column)
}

/// The protocol in a row.
pub(super) fn protocol(
    name: &str,
    modules: Vec<String>,
    row: i32,
) -> Result<AgentProtocol, StoreError> {
    let protocol = match name {
        "unknown" => Some(AgentProtocol::Unknown),
        "eim" => Some(AgentProtocol::Eim),
        "own" => Some(AgentProtocol::Own { modules }),
        _ => None,
    };
    or_corrupt(protocol, TABLE, row, "protocol")
}

/// The run, the time and the verdict of the last end.
type LastEndColumns = (Option<i32>, Option<Time>, Option<String>);

/// The end of the last attempt in a row.
pub(super) fn last_end(
    end: LastEndColumns,
    target: Option<String>,
    row: i32,
) -> Result<Option<LastRun>, StoreError> {
    let (Some(run), Some(at), Some(verdict)) = end else {
        return Ok(None);
    };
    let verdict = Verdict::from_name(&verdict);
    Ok(Some(LastRun {
        run: RunId::from_bits(run.cast_unsigned()),
        target,
        at,
        verdict: or_corrupt(verdict, TABLE, row, "last_end_verdict")?,
    }))
}

impl TryFrom<Model> for NodeState {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        let id = row.instance_id;
        let end = (row.last_end_run_id, row.last_end_at, row.last_end_verdict);
        let last_sample = row.sample.map(serde_json::from_value).transpose().ok();
        let delivered = serde_json::from_value(row.delivered).ok();
        let conditions = serde_json::from_value(row.conditions).ok();
        let bad_images = serde_json::from_value(row.bad_images).ok();
        let recent_starts = serde_json::from_value(row.recent_starts).ok();
        let packages = row.packages_digest.map(TryInto::try_into).transpose().ok();
        let booted = row.booted_profile.zip(row.booted_image);
        Ok(Self {
            instance: InstanceId::from_bits(id.cast_unsigned()),
            os: OsId::from_bits(row.os_id.cast_unsigned()),
            provisioned: row.provisioned,
            protocol: protocol(&row.protocol, row.modules, id)?,
            agent_version: row.agent_version,
            boot_id: row.boot_id,
            facts_digest: row.facts_digest,
            facts: row.facts,
            facts_summary: facts_summary!(row),
            status: Status::from_stored(row.status, &row.status_indication, row.status_at),
            update_status: Status::from_stored(
                row.update_status,
                &row.update_status_indication,
                row.update_status_at,
            ),
            os_update_available: row.os_update_available,
            conditions: or_corrupt(conditions, TABLE, id, "conditions")?,
            bad_images: or_corrupt(bad_images, TABLE, id, "bad_images")?,
            previous_boot_id: row.previous_boot_id,
            recent_starts: or_corrupt(recent_starts, TABLE, id, "recent_starts")?,
            packages_digest: or_corrupt(packages, TABLE, id, "packages_digest")?,
            booted: booted.map(|(profile_name, image_id)| BootedImage { profile_name, image_id }),
            last_end: last_end(end, row.last_end_target, id)?,
            waiting: row.waiting,
            last_sample: or_corrupt(last_sample, TABLE, id, "sample")?,
            delivered: or_corrupt(delivered, TABLE, id, "delivered")?,
        })
    }
}
