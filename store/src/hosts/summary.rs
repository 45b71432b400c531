//! Counts of hosts.

use evenkeel_domain::filter::{Filter, Resource};
use evenkeel_domain::instance::InstanceState;
use evenkeel_domain::status::Indication;

use crate::error::StoreError;
use crate::listing::{self, Listing};
use crate::tx::{Tx, query_one};

/// The number of hosts, in total and by condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSummary {
    pub total: u64,
    /// Hosts with an error status of their own or of their instance.
    pub error: u64,
    /// Hosts with a running instance and no error status.
    pub running: u64,
    /// Hosts without a site.
    pub unallocated: u64,
}

/// Counts the hosts that match a filter, or all hosts without one: one statement.
///
/// # Errors
/// The filter uses a field that is not stored, or the database cannot be reached.
pub async fn summary(tx: &Tx, filter: Option<&Filter>) -> Result<HostSummary, StoreError> {
    let listing = Listing {
        resource: Resource::Host,
        filter: filter.cloned(),
        within: None,
        order: Vec::new(),
    };
    // Its first value is the project.
    let (ids_sql, mut values) = listing::ids_query(tx, &listing)?;
    let filter_clause = match filter {
        None => String::new(),
        Some(_) => format!(" AND h.id IN ({ids_sql})"),
    };
    let (error, running) = (values.len() + 1, values.len() + 2);
    values.push(Indication::Error.name().into());
    values.push(InstanceState::Running.name().into());
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE is_bad), count(*) FILTER (WHERE runs AND NOT is_bad), \
         count(*) FILTER (WHERE site_id IS NULL) FROM ( \
         SELECT h.site_id, coalesce(i.current_state = ${running}, FALSE) AS runs, \
         coalesce(${error} IN (h.status_indication, n.status_indication, n.update_status_indication), FALSE) AS is_bad \
         FROM hosts h \
         LEFT JOIN instances i ON i.tenant_id = h.tenant_id AND i.host_id = h.id \
         LEFT JOIN node_states n ON n.tenant_id = i.tenant_id AND n.instance_id = i.id \
         WHERE h.tenant_id = $1{filter_clause}) counted"
    );
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        return Ok(HostSummary::default());
    };
    let count = |at| row.try_get_by_index::<i64>(at).map(i64::cast_unsigned);
    Ok(HostSummary {
        total: count(0)?,
        error: count(1)?,
        running: count(2)?,
        unallocated: count(3)?,
    })
}
