//! The last reported state of nodes: one row per instance, written by the maintenance manager only.

mod brief;
mod convert;
mod machine;
mod outdated_lists;
mod silence;
mod summary;

use evenkeel_domain::Time;
use evenkeel_domain::agent_start::RecentStarts;
use evenkeel_domain::condition::Condition;
use evenkeel_domain::decide::{
    AgentProtocol, LastRun, QuarantinedImage, Target, TargetKind, Verdict,
};
use evenkeel_domain::eim::{DeliveryState, LastSample};
use evenkeel_domain::id::{InstanceId, OsId};
use evenkeel_domain::instance::{FactsSummary, InstanceState};
use evenkeel_domain::run::UpdateRun;
use evenkeel_domain::status::{Indication, Status};
use sea_orm::sea_query::{CommonTableExpression, Expr};
use sea_orm::{
    ColumnTrait, ConnectionTrait, EntityTrait, NotSet, QueryFilter, QuerySelect, QueryTrait,
};
use serde_json::Value;

use crate::contents;
use crate::error::StoreError;
use crate::keyed::KeyedEntity;
use crate::rows::instance;
use crate::rows::node_state::{Column, Entity, Model};
use crate::tx::Tx;
use convert::into_row;

pub use brief::{NodeBrief, available_digest, load_briefs};
pub use machine::{MachineKey, find_by_host, find_with_host, lock, lock_with_host};
pub use outdated_lists::mark_outdated_lists;
pub use silence::{NO_CONNECTION_STATUS, SilentNode, mark_silent_nodes};
pub(crate) use summary::SummaryRow;

#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    pub instance: InstanceId,
    /// The operating system that it runs.
    pub os: OsId,
    /// Whether it has reported since its instance was created.
    pub provisioned: bool,
    pub protocol: AgentProtocol,
    /// The version of its agent; empty if unknown.
    pub agent_version: String,
    /// Its current boot; empty if unknown.
    pub boot_id: String,
    /// Digest of the facts as the agent encoded them; empty before the first report.
    pub facts_digest: Vec<u8>,
    /// The reported facts: a JSON object.
    pub facts: Value,
    /// The facts that lists and filters use.
    pub facts_summary: FactsSummary,
    /// Its current activity.
    pub status: Status,
    pub update_status: Status,
    /// Its conditions, shown to operators.
    pub conditions: Vec<Condition>,
    /// Its previous boot; empty if unknown. Only servers of the release before read it.
    pub previous_boot_id: String,
    /// The last starts of its agent.
    pub recent_starts: RecentStarts,
    /// Digest of its list of installed packages, which is stored in the contents.
    pub packages_digest: Option<contents::ContentDigest>,
    /// The image that it reports as booted.
    pub booted: Option<BootedImage>,
    /// The images that failed on it, and since when.
    pub bad_images: Vec<QuarantinedImage>,
    /// Available updates (see [`evenkeel_domain::instance::Summary::os_update_available`]).
    pub os_update_available: String,
    /// How its last attempt ended.
    pub last_end: Option<LastRun>,
    /// Why the node defers a prepared update, in the agent's words; empty if it does not.
    pub waiting: String,
    /// The last sample of an EIM agent.
    pub last_sample: Option<LastSample>,
    /// What was last delivered to an EIM agent.
    pub delivered: DeliveryState,
}

/// A booted image as a node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootedImage {
    /// The profile name, shared by the images of a series.
    pub profile_name: String,
    pub image_id: String,
}

/// Creates the state of the node of a new instance.
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
        protocol: AgentProtocol::Unknown,
        agent_version: String::new(),
        boot_id: String::new(),
        facts_digest: Vec::new(),
        facts: Value::Object(serde_json::Map::new()),
        facts_summary: FactsSummary::default(),
        status: Status::new("Not Installed", Indication::Unspecified, now),
        update_status: Status::new("No Current Update", Indication::Unspecified, now),
        conditions: Vec::new(),
        previous_boot_id: String::new(),
        recent_starts: RecentStarts::default(),
        packages_digest: None,
        booted: None,
        bad_images: Vec::new(),
        os_update_available: String::new(),
        last_end: None,
        waiting: String::new(),
        last_sample: None,
        delivered: DeliveryState::default(),
    };
    let row = into_row(tx, &state, None)?;
    Entity::insert(row).exec_without_returning(tx.conn()).await?;
    Ok(())
}

pub(crate) async fn lock_row(tx: &Tx, instance: InstanceId) -> Result<Option<Model>, StoreError> {
    let row = tx.scope::<Entity>().filter(Column::InstanceId.eq(instance.bits().cast_signed()));
    Ok(row.lock_exclusive().one(tx.conn()).await?)
}

/// Sets the operating system of a node that has not reported yet. The caller has locked its row.
pub(crate) async fn set_os(tx: &Tx, instance: InstanceId, os: OsId) -> Result<(), StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::OsId, Expr::value(os.bits().cast_signed()))
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

/// Sets the status of a node if it changed. The caller has locked its row.
pub(crate) async fn set_status(
    tx: &Tx,
    instance: InstanceId,
    status: &Status,
) -> Result<(), StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::Status, Expr::value(status.text.clone()))
        .col_expr(Column::StatusIndication, Expr::value(status.indication.name()))
        .col_expr(Column::StatusAt, Expr::value(status.at))
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::Status.ne(status.text.clone()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

/// The state of the node of an instance.
///
/// # Errors
/// The instance does not exist in the project.
pub async fn find(tx: &Tx, instance: InstanceId) -> Result<NodeState, StoreError> {
    let row = tx.scope::<Entity>().filter(Column::InstanceId.eq(instance.bits().cast_signed()));
    let what = instance::Entity::RESOURCE;
    row.one(tx.conn()).await?.ok_or(StoreError::NotFound { what })?.try_into()
}

/// Stores the state of a node whose row this transaction has locked.
///
/// # Errors
/// The database cannot be reached, or the row does not exist.
pub async fn save(tx: &Tx, state: &NodeState) -> Result<(), StoreError> {
    update_row(tx, state, None).await
}

/// Stores the state of a node whose row this transaction has locked and read as `before`.
///
/// # Errors
/// As for [`save`].
pub async fn save_changes(
    tx: &Tx,
    before: &NodeState,
    state: &NodeState,
) -> Result<(), StoreError> {
    update_row(tx, state, Some(before)).await
}

async fn update_row(
    tx: &Tx,
    state: &NodeState,
    before: Option<&NodeState>,
) -> Result<(), StoreError> {
    let mut row = into_row(tx, state, before)?;
    row.tenant_id = NotSet;
    row.instance_id = NotSet;
    let instance = state.instance.bits().cast_signed();
    let node = tx.change::<Entity>().set(row);
    let mut node = node.filter(Column::InstanceId.eq(instance)).into_query();
    if state.provisioned {
        // In the same statement, because every report does this. An invalidated instance stays
        // invalidated.
        let running = InstanceState::Running.name();
        let new = tx
            .change::<instance::Entity>()
            .col_expr(instance::Column::CurrentState, Expr::value(running))
            .filter(instance::Column::Id.eq(instance))
            .filter(instance::Column::CurrentState.eq(InstanceState::Unspecified.name()));
        let new =
            CommonTableExpression::new().table_name("running").query(new.into_query()).to_owned();
        node.with_cte(new);
    }
    match tx.conn().execute(&node).await?.rows_affected() {
        1 => Ok(()),
        _ => Err(StoreError::NotFound { what: instance::Entity::RESOURCE }),
    }
}

impl NodeState {
    /// Updates the update status and the last end from a changed run. An attempt that ended before
    /// the last one does not change them.
    pub fn reflect(&mut self, run: &UpdateRun, now: Time) {
        let later = self.last_end.as_ref().filter(|last| last.run != run.id);
        if later.is_some_and(|last| run.ended_at().is_some_and(|at| at < last.at)) {
            return;
        }
        let (text, indication) = run.state.status();
        let status = Status::new(text, indication, now);
        self.update_status = status.with_time_of(Some(&self.update_status));
        if !run.state.is_untouched() {
            // A run that has begun no longer waits.
            self.waiting.clear();
        }
        if let Some(at) = run.ended_at() {
            let target = run.origin.target.as_ref();
            let verdict = run.state.verdict();
            if let (Verdict::Bad, Some(target)) = (verdict, target) {
                self.update_known_failure(target, at);
            }
            self.last_end =
                Some(LastRun { run: run.id, target: target.map(Target::digest), at, verdict });
        }
    }

    /// Records a repeated failure of a known bad image, so that the failure is later than the order
    /// that permitted the new attempt.
    fn update_known_failure(&mut self, target: &Target, at: Time) {
        let TargetKind::Image(image) = &target.kind else {
            return;
        };
        let mut failures = self.bad_images.iter_mut();
        if let Some(failure) = failures.find(|failure| failure.sha256 == image.sha256) {
            failure.since = failure.since.max(at);
        }
    }
}
