//! What nodes last said: one row an instance, written by the maintenance manager only.

mod brief;
mod convert;
mod machine;
mod silence;
mod summary;

use evenkeel_domain::Time;
use evenkeel_domain::condition::Condition;
use evenkeel_domain::decide::{KnownBad, LastEnd, Protocol, Target, TargetKind, Verdict};
use evenkeel_domain::eim::{Delivered, Seen};
use evenkeel_domain::id::{InstanceId, OsId};
use evenkeel_domain::instance::InstanceState;
use evenkeel_domain::run::UpdateRun;
use evenkeel_domain::status::{Indication, Status};
use sea_orm::sea_query::{CommonTableExpression, Expr};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, EntityTrait, IntoActiveModel, NotSet,
    QueryFilter, QuerySelect, QueryTrait,
};
use serde_json::Value;

use crate::contents;
use crate::error::StoreError;
use crate::keyed::Keyed;
use crate::rows::instance;
use crate::rows::node_state::{Column, Entity, Model};
use crate::tx::Tx;
use convert::into_row;

pub use brief::{Brief, briefs, digest_of};
pub use machine::{Machine, find_by_host, lock, lock_with_host, read};
pub use silence::{NO_CONNECTION, Silent, silence};
pub(crate) use summary::SummaryRow;

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
    /// What people should know about it.
    pub conditions: Vec<Condition>,
    /// The boot before that; empty if it is not known.
    pub previous_boot_id: String,
    /// The digest of its list of installed packages, which is kept among the contents.
    pub packages_digest: Option<contents::Digest>,
    /// The image that it says it has booted.
    pub booted: Option<BootedImage>,
    /// The images that failed on it, and since when we know.
    pub bad_images: Vec<KnownBad>,
    /// What could be updated (see [`evenkeel_domain::instance::Summary::os_update_available`]).
    pub os_update_available: String,
    /// How its last attempt ended.
    pub last_end: Option<LastEnd>,
    /// Why the node itself does not let a prepared change begin, in its own words; empty if it does.
    pub waiting: String,
    /// The last sample of one of the ancestor's agents.
    pub seen: Option<Seen>,
    /// What was delivered last to one of the ancestor's agents.
    pub delivered: Delivered,
}

/// An image, as a node reports what it has booted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootedImage {
    /// The line of releases.
    pub profile_name: String,
    /// Its version.
    pub image_id: String,
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
        conditions: Vec::new(),
        previous_boot_id: String::new(),
        packages_digest: None,
        booted: None,
        bad_images: Vec::new(),
        os_update_available: String::new(),
        last_end: None,
        waiting: String::new(),
        seen: None,
        delivered: Delivered::default(),
    };
    let row = into_row(tx, &state)?.into_active_model().reset_all();
    Entity::insert(row)
        .exec_without_returning(tx.conn())
        .await?;
    Ok(())
}

pub(crate) async fn lock_row(tx: &Tx, instance: InstanceId) -> Result<Option<Model>, StoreError> {
    let row = tx
        .scope::<Entity>()
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()));
    Ok(row.lock_exclusive().one(tx.conn()).await?)
}

/// Says which operating system a node that has not spoken yet will run. The caller has locked its row.
pub(crate) async fn set_os(tx: &Tx, instance: InstanceId, os: OsId) -> Result<(), StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::OsId, Expr::value(os.bits().cast_signed()))
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .exec(tx.conn())
        .await?;
    Ok(())
}

/// Shows what a node is doing, if it is something else than before. The caller has locked its row.
pub(crate) async fn set_status(
    tx: &Tx,
    instance: InstanceId,
    status: &Status,
) -> Result<(), StoreError> {
    tx.change::<Entity>()
        .col_expr(Column::Status, Expr::value(status.text.clone()))
        .col_expr(
            Column::StatusIndication,
            Expr::value(status.indication.name()),
        )
        .col_expr(Column::StatusAt, Expr::value(status.at))
        .filter(Column::InstanceId.eq(instance.bits().cast_signed()))
        .filter(Column::Status.ne(status.text.clone()))
        .exec(tx.conn())
        .await?;
    Ok(())
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
/// The database cannot be reached, or the row is not there.
pub async fn save(tx: &Tx, state: &NodeState) -> Result<(), StoreError> {
    let mut row = into_row(tx, state)?.into_active_model().reset_all();
    row.tenant_id = NotSet;
    row.instance_id = NotSet;
    let instance = state.instance.bits().cast_signed();
    let node = tx.change::<Entity>().set(row);
    let mut node = node.filter(Column::InstanceId.eq(instance)).into_query();
    if state.provisioned {
        // In the same statement: this is done with all that a node says. What was invalidated stays so.
        let running = InstanceState::Running.name();
        let new = tx
            .change::<instance::Entity>()
            .col_expr(instance::Column::CurrentState, Expr::value(running))
            .filter(instance::Column::Id.eq(instance))
            .filter(instance::Column::CurrentState.eq(InstanceState::Unspecified.name()));
        let new = CommonTableExpression::new()
            .table_name("running")
            .query(new.into_query())
            .to_owned();
        node.with_cte(new);
    }
    match tx.conn().execute(&node).await?.rows_affected() {
        1 => Ok(()),
        _ => Err(StoreError::NotFound {
            what: instance::Entity::WHAT,
        }),
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
        if !run.state.is_untouched() {
            // What has begun waits for nothing any more.
            self.waiting.clear();
        }
        if let Some(at) = run.ended_at() {
            let target = run.origin.target.as_ref();
            let verdict = run.state.verdict();
            if let (Verdict::Bad, Some(target)) = (verdict, target) {
                self.fails_again(target, at);
            }
            self.last_end = Some(LastEnd {
                run: run.id,
                target: target.map(Target::digest),
                at,
                verdict,
            });
        }
    }

    /// Of an image that failed before it is known anew: an order had its try, whatever is tried after it.
    fn fails_again(&mut self, target: &Target, at: Time) {
        let TargetKind::Image(image) = &target.wish else {
            return;
        };
        let mut known = self.bad_images.iter_mut();
        if let Some(known) = known.find(|known| known.sha256 == image.sha256) {
            known.since = known.since.max(at);
        }
    }
}
