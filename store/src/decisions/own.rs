//! What is a node's own, read in one statement for any number of nodes: whether it is believed, its order, its open run.

use std::sync::LazyLock;

use evenkeel_domain::order::Order;
use evenkeel_domain::run::UpdateRun;
use sea_orm::QueryResult;

use super::About;
use crate::error::StoreError;
use crate::fields::{Reader, columns};
use crate::rows::{update_order, update_run};
use crate::tx::{Tx, all, ids_in};

/// What is a node's own.
#[derive(Debug)]
pub struct Own {
    /// Whether its instance is believed.
    pub trusted: bool,
    pub order: Option<Order>,
    /// Its run that is not over.
    pub run: Option<UpdateRun>,
}

pub(super) static OWN: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT coalesce(i.desired_state NOT IN ('untrusted', 'deleted') \
         AND i.current_state NOT IN ('untrusted', 'deleted'), true), \
         {}, {} \
         FROM unnest({}) WITH ORDINALITY AS n (instance, place) \
         {} {} {} \
         ORDER BY n.place",
        columns::<update_order::Model>("u"),
        columns::<update_run::Model>("r"),
        ids_in(2),
        of_node("instances", "id = n.instance", "i"),
        of_node("update_orders", "instance_id = n.instance", "u"),
        of_node(
            "update_runs",
            "instance_id = n.instance AND ended_at IS NULL",
            "r"
        ),
    )
});

/// Joins what a table has of each node `n`, looked up one by one: of a table that it takes for short, the planner would
/// read the whole project, for each report (docs/adr/0023). `OFFSET 0` keeps it from doing so.
fn of_node(table: &str, is: &str, alias: &str) -> String {
    format!(
        "LEFT JOIN LATERAL (SELECT * FROM {table} WHERE tenant_id = $1 AND {is} OFFSET 0) {alias} ON true"
    )
}

/// What is the own of each of these nodes, in their order. What makes no sense of one says nothing of the others.
pub(super) async fn own(
    tx: &Tx,
    of: &[About<'_>],
) -> Result<Vec<Result<Own, StoreError>>, StoreError> {
    let instances = of.iter().map(|about| about.instance.bits().cast_signed());
    let values = [
        tx.tenant().uuid().into(),
        instances.collect::<Vec<i32>>().into(),
    ];
    let rows = all(tx.conn(), OWN.as_str(), values).await?;
    Ok(rows.iter().map(from_row).collect())
}

fn from_row(row: &QueryResult) -> Result<Own, StoreError> {
    let mut row = Reader::new(row);
    let trusted = row.take()?;
    let order = row.joined::<update_order::Model>()?;
    let run = row.joined::<update_run::Model>()?;
    Ok(Own {
        trusted,
        order: order.map(Order::try_from).transpose()?,
        run: run.map(UpdateRun::try_from).transpose()?,
    })
}
