//! What of a node is looked at at each of its polls. What it said at length is known by digests and is not read.

use std::collections::HashMap;
use std::sync::LazyLock;

use evenkeel_domain::Time;
use evenkeel_domain::condition::Condition;
use evenkeel_domain::decide::{KnownBad, LastEnd, Protocol};
use evenkeel_domain::eim::{Delivered, Seen};
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId, OsId};
use evenkeel_domain::status::{Indication, Status};
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::convert::{last_end, protocol};
use super::{Machine, NodeState};
use crate::contents;
use crate::error::StoreError;
use crate::fields::{Reader, columns, fields};
use crate::rows::{Kept, host, named};
use crate::tx::{Tx, all, ids_in};

const TABLE: &str = "node_states";

/// What of a [`NodeState`] is looked at at each poll.
#[derive(Clone, Debug, PartialEq)]
pub struct Brief {
    /// Its instance.
    pub instance: InstanceId,
    /// The operating system that it runs.
    pub os: OsId,
    /// Whether it has spoken since its instance was made.
    pub provisioned: bool,
    /// How it speaks.
    pub protocol: Protocol,
    /// Digest of the facts as the agent encoded them; empty before the first.
    pub facts_digest: Vec<u8>,
    /// The digest of the list of installed packages that it said last (see [`NodeState::said_packages`]).
    pub said_packages: Option<contents::Digest>,
    /// The digest of its list of installed packages, which is kept among the contents.
    pub packages_digest: Option<contents::Digest>,
    /// What it is doing.
    pub status: Status,
    /// Where its updates stand.
    pub update_status: Status,
    /// What people should know about it.
    pub conditions: Vec<Condition>,
    /// The images that failed on it, and since when we know.
    pub bad_images: Vec<KnownBad>,
    /// The digest of what could be updated (see [`digest_of`]).
    pub available_digest: contents::Digest,
    /// How its last attempt ended.
    pub last_end: Option<LastEnd>,
    /// Why the node itself does not let a prepared change begin, in its own words; empty if it does.
    pub waiting: String,
    /// The last sample of one of the ancestor's agents.
    pub seen: Option<Seen>,
    /// What was delivered last to one of the ancestor's agents.
    pub delivered: Delivered,
}

/// The digest by which it is known what could be updated.
#[must_use]
pub fn digest_of(available: &str) -> contents::Digest {
    Sha256::digest(available).into()
}

impl NodeState {
    /// What of it is looked at at each poll.
    #[must_use]
    pub fn brief(&self) -> Brief {
        Brief {
            instance: self.instance,
            os: self.os,
            provisioned: self.provisioned,
            protocol: self.protocol.clone(),
            facts_digest: self.facts_digest.clone(),
            said_packages: self.said_packages(),
            packages_digest: self.packages_digest,
            status: self.status.clone(),
            update_status: self.update_status.clone(),
            conditions: self.conditions.clone(),
            bad_images: self.bad_images.clone(),
            available_digest: digest_of(&self.os_update_available),
            last_end: self.last_end.clone(),
            waiting: self.waiting.clone(),
            seen: self.seen.clone(),
            delivered: self.delivered.clone(),
        }
    }

    /// The digest of the list of installed packages that the node said last; none if it said none. The list itself may
    /// not have been told yet.
    #[must_use]
    pub fn said_packages(&self) -> Option<contents::Digest> {
        self.facts.get("packagesDigest").and_then(digest)
    }
}

/// A digest as facts show it. The steps of the schema know the same rule.
fn digest(shown: &Value) -> Option<contents::Digest> {
    let digits = shown.as_str()?.as_bytes();
    let mut digest = contents::Digest::default();
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

/// The part of a row of `node_states` that is in columns of their own.
#[derive(Debug)]
struct BriefRow {
    instance_id: i32,
    os_id: i32,
    provisioned: bool,
    protocol: String,
    modules: Vec<String>,
    facts_digest: Vec<u8>,
    said_packages_digest: Option<Vec<u8>>,
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
    said_packages_digest,
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

/// Parameters: the project, hosts by their ids, hosts by their UUIDs.
static BRIEFS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT h.id, h.uuid, {}, {}, n.conditions, n.bad_images, n.sample, n.delivered FROM hosts h \
         JOIN instances i ON i.tenant_id = $1 AND i.host_id = h.id \
         JOIN node_states n ON n.tenant_id = $1 AND n.instance_id = i.id \
         WHERE h.tenant_id = $1 AND (h.id = ANY ({}) OR h.uuid = ANY (ARRAY(SELECT unnest($3::uuid[]))))",
        columns::<host::Model>("h"),
        columns::<BriefRow>("n"),
        ids_in(2),
    )
});

/// Hosts and what of their nodes is looked at at each poll, in the order in which they are asked for: one statement for any
/// number of them, and none for none. None where there is no such host in the project, or it has no instance. What makes
/// no sense of one says nothing of the others.
///
/// # Errors
/// The database cannot be reached.
pub async fn briefs(
    tx: &Tx,
    of: &[Machine],
) -> Result<Vec<Result<Option<(Host, Brief)>, StoreError>>, StoreError> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let (mut hosts, mut uuids): (Vec<i32>, Vec<Uuid>) = (Vec::new(), Vec::new());
    for machine in of {
        match machine {
            Machine::Host(id) => hosts.push(id.bits().cast_signed()),
            Machine::Uuid(uuid) => uuids.push(*uuid),
        }
    }
    let values = [tx.tenant().uuid().into(), hosts.into(), uuids.into()];
    let rows = all(tx.conn(), BRIEFS.as_str(), values).await?;
    let mut found = HashMap::new();
    for row in &rows {
        let mut row = Reader::new(row);
        let (id, uuid): (i32, Option<Uuid>) = (row.take()?, row.take()?);
        found.insert(Machine::Host(HostId::from_bits(id.cast_unsigned())), row);
        if let Some(uuid) = uuid {
            found.insert(Machine::Uuid(uuid), row);
        }
    }
    let read = of.iter().map(|machine| {
        let row = found.get(machine).copied();
        row.map(from_row).transpose()
    });
    Ok(read.collect())
}

fn from_row(mut row: Reader<'_>) -> Result<(Host, Brief), StoreError> {
    let host: host::Model = row.fields()?;
    Ok((host.try_into()?, brief(&mut row)?))
}

fn brief(row: &mut Reader<'_>) -> Result<Brief, StoreError> {
    let plain: BriefRow = row.fields()?;
    let id = plain.instance_id;
    let indication = |name: &str, column| named(Indication::from_name(name), TABLE, id, column);
    let digest = |bytes: Vec<u8>, column| {
        let digest = contents::Digest::try_from(bytes);
        named(digest.ok(), TABLE, id, column)
    };
    let said = plain.said_packages_digest;
    let said = said.map(|bytes| digest(bytes, "said_packages_digest"));
    let packages = plain.packages_digest;
    let packages = packages.map(|bytes| digest(bytes, "packages_digest"));
    let end = (
        plain.last_end_run_id,
        plain.last_end_at,
        plain.last_end_verdict,
    );
    // In the order of the statement.
    let conditions = named(kept(row), TABLE, id, "conditions")?;
    let bad_images = named(kept(row), TABLE, id, "bad_images")?;
    let seen = sample(row, id)?;
    let delivered = named(kept(row), TABLE, id, "delivered")?;
    Ok(Brief {
        instance: InstanceId::from_bits(id.cast_unsigned()),
        os: OsId::from_bits(plain.os_id.cast_unsigned()),
        provisioned: plain.provisioned,
        protocol: protocol(&plain.protocol, plain.modules, id)?,
        facts_digest: plain.facts_digest,
        said_packages: said.transpose()?,
        packages_digest: packages.transpose()?,
        status: Status {
            text: plain.status,
            indication: indication(&plain.status_indication, "status_indication")?,
            at: plain.status_at,
        },
        update_status: Status {
            text: plain.update_status,
            indication: indication(&plain.update_status_indication, "update_status_indication")?,
            at: plain.update_status_at,
        },
        conditions,
        bad_images,
        available_digest: digest(plain.available_digest, "available_digest")?,
        last_end: last_end(end, plain.last_end_target, id)?,
        waiting: plain.waiting,
        seen,
        delivered,
    })
}

fn sample(row: &mut Reader<'_>, id: i32) -> Result<Option<Seen>, StoreError> {
    let sample = row.take::<Option<Kept<Seen>>>();
    let sample = named(sample.ok(), TABLE, id, "sample")?;
    Ok(sample.map(|kept| kept.0))
}

/// What the next column holds, which is JSON, if that makes sense.
fn kept<T: DeserializeOwned>(row: &mut Reader<'_>) -> Option<T> {
    let kept: Kept<T> = row.take().ok()?;
    Some(kept.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_digest_is_read_as_facts_show_it_and_nothing_else_is_one() {
        let shown = json!("00ff".repeat(15) + "aBcD");
        let mut expected = [0x00, 0xff].repeat(15);
        expected.extend([0xab, 0xcd]);
        assert_eq!(digest(&shown).map(Vec::from), Some(expected));
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
