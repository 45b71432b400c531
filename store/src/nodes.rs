//! What nodes last said: one row an instance, written by the maintenance manager only.

use evenkeel_domain::Time;
use evenkeel_domain::decide::{LastEnd, Protocol, Target, Verdict};
use evenkeel_domain::eim::{Delivered, SampleKind, Seen};
use evenkeel_domain::id::{HostId, InstanceId, OsId, PolicyId, RunId};
use evenkeel_domain::instance::{InstanceState, Summary};
use evenkeel_domain::run::UpdateRun;
use evenkeel_domain::status::{Indication, Status};
use sea_orm::sea_query::{Expr, Query};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, EntityTrait, IntoActiveModel, QueryFilter, QuerySelect,
};
use serde_json::Value;

use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::rows::node_state::{Column, Entity, Model};
use crate::rows::{instance, named};
use crate::tx::Tx;

/// What is known of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// Its instance.
    pub instance: InstanceId,
    /// The operating system that it runs.
    pub os: OsId,
    /// Whether it has spoken since its instance was made.
    pub provisioned: bool,
    /// How it speaks.
    pub protocol: Protocol,
    /// The version of its agent; empty if it is not known.
    pub agent_version: String,
    /// The boot that it is in; empty if it is not known.
    pub boot_id: String,
    /// Digest of the facts as the agent encoded them; empty before the first.
    pub facts_digest: Vec<u8>,
    /// The facts, for people and programs: a JSON object.
    pub facts: Value,
    /// What it is doing.
    pub status: Status,
    /// Where its updates stand.
    pub update_status: Status,
    /// What could be updated (see [`Summary::os_update_available`]).
    pub os_update_available: String,
    /// How its last attempt ended.
    pub last_end: Option<LastEnd>,
    /// The last sample of one of the ancestor's agents.
    pub seen: Option<Seen>,
    /// What was delivered last to one of the ancestor's agents.
    pub delivered: Delivered,
}

/// Makes the row of a new instance.
pub(crate) async fn create(
    tx: &Tx,
    instance: InstanceId,
    os: OsId,
    now: Time,
) -> Result<(), StoreError> {
    let state = NodeState {
        instance,
        os,
        provisioned: false,
        protocol: Protocol::Unknown,
        agent_version: String::new(),
        boot_id: String::new(),
        facts_digest: Vec::new(),
        facts: Value::Object(serde_json::Map::new()),
        status: Status::new("Not Installed", Indication::Unspecified, now),
        update_status: Status::new("No Current Update", Indication::Unspecified, now),
        os_update_available: String::new(),
        last_end: None,
        seen: None,
        delivered: Delivered::default(),
    };
    let row = into_row(tx, &state).into_active_model().reset_all();
    Entity::insert(row)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}

/// What is known of the node on a host, locked until the end of the transaction: its reports are taken one by one.
///
/// # Errors
/// The host has no instance in the project.
pub async fn lock(tx: &Tx, host: HostId) -> Result<NodeState, StoreError> {
    let what = instance::Entity::WHAT;
    let on_host = tx
        .scope::<instance::Entity>()
        .filter(instance::Column::HostId.eq(host.bits().cast_signed()))
        .one(tx.conn())
        .await?;
    let id = on_host.ok_or(StoreError::NotFound { what })?.id;
    let row = lock_row(tx, InstanceId::from_bits(id.cast_unsigned())).await?;
    row.ok_or(StoreError::NotFound { what })?.try_into()
}

pub(crate) async fn lock_row(tx: &Tx, instance: InstanceId) -> Result<Option<Model>, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()));
    Ok(row.lock_exclusive().one(tx.conn()).await?)
}

/// What is known of the node on a host.
///
/// # Errors
/// The host has no instance in the project.
pub async fn find_by_host(tx: &Tx, host: HostId) -> Result<NodeState, StoreError> {
    let on_host = Query::select()
        .column(instance::Column::Id)
        .from(instance::Entity)
        .and_where(instance::Column::TenantId.eq(tx.tenant().uuid()))
        .and_where(instance::Column::HostId.eq(host.bits().cast_signed()))
        .to_owned();
    let row = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.in_subquery(on_host))
        .one(tx.conn())
        .await?;
    let what = instance::Entity::WHAT;
    row.ok_or(StoreError::NotFound { what })?.try_into()
}

/// What is known of the node of an instance.
///
/// # Errors
/// There is no such instance in the project.
pub async fn find(tx: &Tx, instance: InstanceId) -> Result<NodeState, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()));
    let what = instance::Entity::WHAT;
    row.one(tx.conn())
        .await?
        .ok_or(StoreError::NotFound { what })?
        .try_into()
}

/// Keeps what is now known of a node whose row this transaction has locked.
///
/// # Errors
/// The database cannot be reached.
pub async fn save(tx: &Tx, state: &NodeState) -> Result<(), StoreError> {
    into_row(tx, state)
        .into_active_model()
        .reset_all()
        .update(tx.conn())
        .await?;
    if state.provisioned {
        let running = InstanceState::Running.name();
        tx.change::<instance::Entity>()
            .col_expr(instance::Column::CurrentState, Expr::value(running))
            .filter(instance::Column::Id.eq(state.instance.bits().cast_signed()))
            .filter(instance::Column::CurrentState.ne(running))
            .exec(tx.conn())
            .await?;
    }
    Ok(())
}

/// The part that people see.
pub(crate) fn summary(row: Model) -> Result<Summary, StoreError> {
    let state = NodeState::try_from(row)?;
    Ok(Summary {
        os: state.os,
        provisioned: state.provisioned,
        status: state.status,
        update_status: state.update_status,
        os_update_available: state.os_update_available,
    })
}

fn into_row(tx: &Tx, state: &NodeState) -> Model {
    let (protocol, modules) = match &state.protocol {
        Protocol::Unknown => ("unknown", Vec::new()),
        Protocol::Eim => ("eim", Vec::new()),
        Protocol::Own { modules } => ("own", modules.clone()),
    };
    let end = state.last_end.as_ref();
    let single = state.delivered.single;
    Model {
        tenant_id: tx.tenant().uuid(),
        instance_id: state.instance.bits().cast_signed(),
        os_id: state.os.bits().cast_signed(),
        provisioned: state.provisioned,
        protocol: protocol.to_owned(),
        modules,
        agent_version: state.agent_version.clone(),
        boot_id: state.boot_id.clone(),
        facts_digest: state.facts_digest.clone(),
        facts: state.facts.clone(),
        status: state.status.text.clone(),
        status_indication: state.status.indication.name().to_owned(),
        status_at: state.status.at,
        update_status: state.update_status.text.clone(),
        update_status_indication: state.update_status.indication.name().to_owned(),
        update_status_at: state.update_status.at,
        os_update_available: state.os_update_available.clone(),
        last_end_run_id: end.map(|end| end.run.bits().cast_signed()),
        last_end_target: end.and_then(|end| end.target.clone()),
        last_end_at: end.map(|end| end.at),
        last_end_verdict: end.map(|end| end.verdict.name().to_owned()),
        sample_kind: state.seen.as_ref().map(|seen| seen.kind.name().to_owned()),
        sample_detail_digest: state.seen.as_ref().map(|seen| seen.detail_digest.clone()),
        delivered_start_at: single.map(|(start, _)| start),
        delivered_end_at: single.map(|(_, end)| end),
        delivered_policy_id: state.delivered.policy.map(|id| id.bits().cast_signed()),
        delivery_cleared_at: state.delivered.cleared_at,
    }
}

impl TryFrom<Model> for NodeState {
    type Error = StoreError;

    fn try_from(row: Model) -> Result<Self, StoreError> {
        const TABLE: &str = "node_states";
        let id = row.instance_id;
        let indication = |name: &str, column| named(Indication::from_name(name), TABLE, id, column);
        let protocol = match row.protocol.as_str() {
            "unknown" => Some(Protocol::Unknown),
            "eim" => Some(Protocol::Eim),
            "own" => Some(Protocol::Own {
                modules: row.modules,
            }),
            _ => None,
        };
        let last_end = match (row.last_end_run_id, row.last_end_at, &row.last_end_verdict) {
            (Some(run), Some(at), Some(verdict)) => Some(LastEnd {
                run: RunId::from_bits(run.cast_unsigned()),
                target: row.last_end_target,
                at,
                verdict: named(Verdict::from_name(verdict), TABLE, id, "last_end_verdict")?,
            }),
            _ => None,
        };
        let seen = match (&row.sample_kind, row.sample_detail_digest) {
            (Some(kind), Some(detail_digest)) => Some(Seen {
                kind: named(SampleKind::from_name(kind), TABLE, id, "sample_kind")?,
                detail_digest,
            }),
            _ => None,
        };
        Ok(Self {
            instance: InstanceId::from_bits(id.cast_unsigned()),
            os: OsId::from_bits(row.os_id.cast_unsigned()),
            provisioned: row.provisioned,
            protocol: named(protocol, TABLE, id, "protocol")?,
            agent_version: row.agent_version,
            boot_id: row.boot_id,
            facts_digest: row.facts_digest,
            facts: row.facts,
            status: Status {
                text: row.status,
                indication: indication(&row.status_indication, "status_indication")?,
                at: row.status_at,
            },
            update_status: Status {
                text: row.update_status,
                indication: indication(&row.update_status_indication, "update_status_indication")?,
                at: row.update_status_at,
            },
            os_update_available: row.os_update_available,
            last_end,
            seen,
            delivered: Delivered {
                single: row.delivered_start_at.zip(row.delivered_end_at),
                policy: row
                    .delivered_policy_id
                    .map(|id| PolicyId::from_bits(id.cast_unsigned())),
                cleared_at: row.delivery_cleared_at,
            },
        })
    }
}

impl NodeState {
    /// Sums up a run that was moved: where the updates stand, and how the last attempt ended. An attempt that ended
    /// before the last one did is history.
    pub fn reflect(&mut self, run: &UpdateRun, now: Time) {
        let later = self.last_end.as_ref().filter(|last| last.run != run.id);
        if later.is_some_and(|last| run.ended_at().is_some_and(|at| at < last.at)) {
            return;
        }
        let (text, indication) = run.state.status();
        let status = Status::new(text, indication, now);
        self.update_status = status.since(Some(&self.update_status));
        if let Some(at) = run.ended_at() {
            self.last_end = Some(LastEnd {
                run: run.id,
                target: run.origin.target.as_ref().map(Target::digest),
                at,
                verdict: run.state.verdict(),
            });
        }
    }
}
