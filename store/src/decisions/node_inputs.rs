//! Inputs of a single node, read in one statement for any number of nodes: trust, order and open
//! run.

use std::sync::LazyLock;

use evenkeel_domain::decide::UnreadableObject;
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::instance::InstanceState;
use evenkeel_domain::order::Order;
use evenkeel_domain::run::UpdateRun;
use sea_orm::QueryResult;
use uuid::Uuid;

use super::DecisionSubject;
use super::unreadable::log_unreadable;
use crate::error::StoreError;
use crate::fields::{RowReader, columns};
use crate::rows::{update_order, update_run};
use crate::runs::NO_PACKAGES_SQL;
use crate::tx::{Tx, ids_in, query_all};

/// The inputs of a single node.
#[derive(Debug)]
pub struct NodeInputs {
    /// Whether its instance is trusted.
    pub trusted: bool,
    pub order: Option<Order>,
    /// Its open run, without its planned packages.
    pub run: Option<UpdateRun>,
    /// Its open run, if a newer release wrote it and this release cannot read it.
    pub unreadable_run: Option<RunId>,
    /// The first of its open run, its instance and its order that a newer release wrote.
    pub unreadable: Option<UnreadableObject>,
}

pub(super) static NODE_INPUTS_SQL: LazyLock<String> = LazyLock::new(|| {
    let known_states = InstanceState::ALL.iter().map(|state| format!("'{}'", state.name()));
    let known_states = known_states.collect::<Vec<_>>().join(", ");
    format!(
        "SELECT coalesce(i.desired_state NOT IN ('untrusted', 'deleted') \
         AND i.current_state NOT IN ('untrusted', 'deleted'), true), i.id, \
         coalesce(i.desired_state IN ({known_states}) AND i.current_state IN ({known_states}), true), \
         {}, {} \
         FROM unnest({}) WITH ORDINALITY AS n (instance, position) \
         {} {} {} \
         ORDER BY n.position",
        columns::<update_order::Model>("u"),
        columns::<update_run::Model>("r").replace("r.packages,", &format!("{NO_PACKAGES_SQL},")),
        ids_in(2),
        lateral_join("instances", "id = n.instance", "i"),
        lateral_join("update_orders", "instance_id = n.instance", "u"),
        lateral_join("update_runs", "instance_id = n.instance AND ended_at IS NULL", "r"),
    )
});

/// Joins the row of a table that belongs to node `n`, one lookup per node. If the planner expected
/// a short table, it would read the whole project for each report (docs/adr/0023). `OFFSET 0`
/// prevents this.
fn lateral_join(table: &str, is: &str, alias: &str) -> String {
    format!(
        "LEFT JOIN LATERAL (SELECT * FROM {table} WHERE tenant_id = $1 AND {is} OFFSET 0) {alias} ON true"
    )
}

/// Loads the inputs of these nodes, in their order. A corrupt row of one node does not affect the
/// others.
pub(super) async fn load_node_inputs(
    tx: &Tx,
    of: &[DecisionSubject<'_>],
) -> Result<Vec<Result<NodeInputs, StoreError>>, StoreError> {
    let instances = of.iter().map(|subject| subject.instance.bits().cast_signed());
    let values = [tx.tenant().uuid().into(), instances.collect::<Vec<i32>>().into()];
    let rows = query_all(tx.conn(), NODE_INPUTS_SQL.as_str(), values).await?;
    Ok(rows.iter().map(from_row).collect())
}

fn from_row(row: &QueryResult) -> Result<NodeInputs, StoreError> {
    let mut row = RowReader::new(row);
    let trusted = row.take()?;
    let (instance, knows_states): (Option<i32>, bool) = (row.take()?, row.take()?);
    let order = row.joined::<update_order::Model>()?;
    // Read apart, because the others may be unreadable.
    let mut first_columns = row;
    let (_, run_id): (Option<Uuid>, Option<i32>) = (first_columns.take()?, first_columns.take()?);
    let instance = instance.map(|id| InstanceId::from_bits(id.cast_unsigned()));
    let object = |kind| instance.map(|id| UnreadableObject { kind, id: id.to_string() });
    let order = order.map(Order::try_from).transpose();
    let unreadable_order = order.as_ref().err().and_then(|error| {
        log_unreadable(error);
        object("order of")
    });
    let unreadable_instance = if knows_states { None } else { object("instance") };
    let (run, unreadable_run) = match read_run(&mut row) {
        Ok(run) => (run, None),
        Err(error) => {
            log_unreadable(&error);
            (None, run_id.map(|id| RunId::from_bits(id.cast_unsigned())))
        }
    };
    let unreadable_object =
        unreadable_run.map(|run| UnreadableObject { kind: "run", id: run.to_string() });
    Ok(NodeInputs {
        trusted,
        order: order.unwrap_or_default(),
        run,
        unreadable_run,
        unreadable: unreadable_object.or(unreadable_instance).or(unreadable_order),
    })
}

fn read_run(row: &mut RowReader<'_>) -> Result<Option<UpdateRun>, StoreError> {
    row.joined::<update_run::Model>()?.map(UpdateRun::try_from).transpose()
}
