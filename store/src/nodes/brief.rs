//! The part of a node's state that each poll reads. Long values are represented by their digests.

use std::collections::HashMap;
use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::condition::Condition;
use evenkeel_domain::decide::{AgentProtocol, LastRun, QuarantinedImage};
use evenkeel_domain::eim::{DeliveryState, LastSample};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId, OsId};
use evenkeel_domain::status::Status;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::convert::{last_end, protocol};
use super::{MachineKey, NodeState};
use crate::contents;
use crate::error::StoreError;
use crate::fields::{RowReader, columns, fields};
use crate::rows::{JsonColumn, host, or_corrupt};
use crate::tx::{Tx, ids_in, query_all};

const TABLE: &str = "node_states";

/// The part of [`NodeState`] that each poll reads.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeBrief {
    pub instance: InstanceId,
    /// The operating system that it runs.
    pub os: OsId,
    /// Whether it has reported since its instance was created.
    pub provisioned: bool,
    pub protocol: AgentProtocol,
    /// Digest of the facts as the agent encoded them; empty before the first report.
    pub facts_digest: Vec<u8>,
    /// Version of the summary of the facts (see [`FactsSummary::version`]).
    ///
    /// [`FactsSummary::version`]: evenkeel_domain::instance::FactsSummary::version
    pub facts_version: i16,
    /// Digest of the last reported list of installed packages (see
    /// [`NodeState::reported_packages`]).
    pub reported_packages: Option<contents::ContentDigest>,
    /// Digest of its list of installed packages, which is stored in the contents.
    pub packages_digest: Option<contents::ContentDigest>,
    /// Its current activity.
    pub status: Status,
    /// The state of its updates.
    pub update_status: Status,
    /// Its conditions, shown to operators.
    pub conditions: Vec<Condition>,
    /// The images that failed on it, and since when.
    pub bad_images: Vec<QuarantinedImage>,
    /// Digest of the available updates (see [`available_digest`]).
    pub available_digest: contents::ContentDigest,
    /// How its last attempt ended.
    pub last_end: Option<LastRun>,
    /// Why the node defers a prepared update, in the agent's words; empty if it does not.
    pub waiting: String,
    /// The last sample of an EIM agent.
    pub last_sample: Option<LastSample>,
    /// What was last delivered to an EIM agent.
    pub delivered: DeliveryState,
}

/// The digest of a text of available updates.
#[must_use]
pub fn available_digest(available: &str) -> contents::ContentDigest {
    Sha256::digest(available).into()
}

impl NodeState {
    /// The part that each poll reads.
    #[must_use]
    pub fn brief(&self) -> NodeBrief {
        NodeBrief {
            instance: self.instance,
            os: self.os,
            provisioned: self.provisioned,
            protocol: self.protocol.clone(),
            facts_digest: self.facts_digest.clone(),
            facts_version: self.facts_summary.version,
            reported_packages: self.reported_packages(),
            packages_digest: self.packages_digest,
            status: self.status.clone(),
            update_status: self.update_status.clone(),
            conditions: self.conditions.clone(),
            bad_images: self.bad_images.clone(),
            available_digest: available_digest(&self.os_update_available),
            last_end: self.last_end.clone(),
            waiting: self.waiting.clone(),
            last_sample: self.last_sample.clone(),
            delivered: self.delivered.clone(),
        }
    }

    /// Digest of the last reported list of installed packages; none if the node reported none. The
    /// list itself may not have been received yet.
    #[must_use]
    pub fn reported_packages(&self) -> Option<contents::ContentDigest> {
        self.facts.get("packagesDigest").and_then(digest)
    }
}

/// Parses a digest in the facts.
fn digest(value: &Value) -> Option<contents::ContentDigest> {
    let digits = value.as_str()?.as_bytes();
    let mut digest = contents::ContentDigest::default();
    if digits.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
        for digit in pair {
            let digit = char::from(*digit).to_digit(16)?;
            *byte = (*byte << 4) | u8::try_from(digit).ok()?;
        }
    }
    Some(digest)
}

/// The plain columns of a brief in `node_states`.
#[derive(Debug)]
struct BriefRow {
    instance_id: i32,
    os_id: i32,
    provisioned: bool,
    protocol: String,
    modules: Vec<String>,
    facts_digest: Vec<u8>,
    facts_version: i16,
    reported_packages_digest: Option<Vec<u8>>,
    packages_digest: Option<Vec<u8>>,
    status: String,
    status_indication: String,
    status_at: Time,
    update_status: String,
    update_status_indication: String,
    update_status_at: Time,
    available_digest: Vec<u8>,
    last_end_run_id: Option<i32>,
    last_end_target: Option<String>,
    last_end_at: Option<Time>,
    last_end_verdict: Option<String>,
    waiting: String,
}

fields!(BriefRow {
    instance_id,
    os_id,
    provisioned,
    protocol,
    modules,
    facts_digest,
    facts_version,
    reported_packages_digest,
    packages_digest,
    status,
    status_indication,
    status_at,
    update_status,
    update_status_indication,
    update_status_at,
    available_digest,
    last_end_run_id,
    last_end_target,
    last_end_at,
    last_end_verdict,
    waiting,
});

/// Parameters: project, host ids, host UUIDs.
static BRIEFS_SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT h.id, h.uuid, {}, {}, n.conditions, n.bad_images, n.sample, n.delivered FROM hosts h \
         JOIN instances i ON i.tenant_id = $1 AND i.host_id = h.id \
         JOIN node_states n ON n.tenant_id = $1 AND n.instance_id = i.id \
         WHERE h.tenant_id = $1 AND EXISTS (SELECT FROM projects p WHERE p.tenant_id = $1 AND p.removed_at IS NULL) \
         AND (h.id = ANY ({}) OR h.uuid = ANY (ARRAY(SELECT unnest($3::uuid[]))))",
        columns::<host::Model>("h"),
        columns::<BriefRow>("n"),
        ids_in(2),
    )
});

/// Hosts with the briefs of their nodes, in the order of the keys: one statement for any number of
/// keys, and none for no keys. None for a host that does not exist in the project or has no
/// instance. A corrupt row of one node does not affect the others.
pub async fn load_briefs(
    tx: &Tx,
    of: &[MachineKey],
) -> Result<Vec<Result<Option<(Host, NodeBrief)>, StoreError>>, StoreError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let (mut hosts, mut uuids): (Vec<i32>, Vec<Uuid>) = (Vec::new(), Vec::new());
    for machine in of {
        match machine {
            MachineKey::Host(id) => hosts.push(id.bits().cast_signed()),
            MachineKey::Uuid(uuid) => uuids.push(*uuid),
        }
    }
    let values = [tx.tenant().uuid().into(), hosts.into(), uuids.into()];
    let rows = query_all(tx.conn(), BRIEFS_SQL.as_str(), values).await?;
    let mut found_rows = HashMap::new();
    for row in &rows {
        let mut row = RowReader::new(row);
        let (id, uuid): (i32, Option<Uuid>) = (row.take()?, row.take()?);
        found_rows.insert(MachineKey::Host(HostId::from_bits(id.cast_unsigned())), row);
        if let Some(uuid) = uuid {
            found_rows.insert(MachineKey::Uuid(uuid), row);
        }
    }
    let read = of.iter().map(|machine| {
        let row = found_rows.get(machine).copied();
        row.map(from_row).transpose()
    });
    Ok(read.collect())
}

fn from_row(mut row: RowReader<'_>) -> Result<(Host, NodeBrief), StoreError> {
    let host: host::Model = row.fields()?;
    Ok((host.try_into()?, read_brief(&mut row)?))
}

fn read_brief(row: &mut RowReader<'_>) -> Result<NodeBrief, StoreError> {
    let plain: BriefRow = row.fields()?;
    let id = plain.instance_id;
    let digest = |bytes: Vec<u8>, column| {
        let digest = contents::ContentDigest::try_from(bytes);
        or_corrupt(digest.ok(), TABLE, id, column)
    };
    let reported = plain.reported_packages_digest;
    let reported = reported.map(|bytes| digest(bytes, "reported_packages_digest"));
    let packages = plain.packages_digest;
    let packages = packages.map(|bytes| digest(bytes, "packages_digest"));
    let end = (plain.last_end_run_id, plain.last_end_at, plain.last_end_verdict);
    // In the order of the statement.
    let conditions = or_corrupt(read_json(row), TABLE, id, "conditions")?;
    let bad_images = or_corrupt(read_json(row), TABLE, id, "bad_images")?;
    let last_sample = read_sample(row, id)?;
    let delivered = or_corrupt(read_json(row), TABLE, id, "delivered")?;
    Ok(NodeBrief {
        instance: InstanceId::from_bits(id.cast_unsigned()),
        os: OsId::from_bits(plain.os_id.cast_unsigned()),
        provisioned: plain.provisioned,
        protocol: protocol(&plain.protocol, plain.modules, id)?,
        facts_digest: plain.facts_digest,
        facts_version: plain.facts_version,
        reported_packages: reported.transpose()?,
        packages_digest: packages.transpose()?,
        status: Status::from_stored(plain.status, &plain.status_indication, plain.status_at),
        update_status: Status::from_stored(
            plain.update_status,
            &plain.update_status_indication,
            plain.update_status_at,
        ),
        conditions,
        bad_images,
        available_digest: digest(plain.available_digest, "available_digest")?,
        last_end: last_end(end, plain.last_end_target, id)?,
        waiting: plain.waiting,
        last_sample,
        delivered,
    })
}

fn read_sample(row: &mut RowReader<'_>, id: i32) -> Result<Option<LastSample>, StoreError> {
    let sample = row.take::<Option<JsonColumn<LastSample>>>();
    let sample = or_corrupt(sample.ok(), TABLE, id, "sample")?;
    Ok(sample.map(|json| json.0))
}

/// Reads the JSON in the next column; none if it cannot be decoded.
fn read_json<T: DeserializeOwned>(row: &mut RowReader<'_>) -> Option<T> {
    let json: JsonColumn<T> = row.take().ok()?;
    Some(json.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_hex_digest_of_the_right_length_is_read() {
        let value = json!("00ff".repeat(15) + "aBcD");
        let mut expected = [0x00, 0xff].repeat(15);
        expected.extend([0xab, 0xcd]);
        assert_eq!(digest(&value).map(Vec::from), Some(expected));
        for other in [
            json!(""),
            json!("ab"),
            json!("+f".repeat(32)),
            json!("zz".repeat(32)),
            json!("ä".repeat(32)),
            json!("ab".repeat(33)),
            json!(7),
            json!(null),
        ] {
            assert_eq!(digest(&other), None, "{other}");
        }
    }
}
