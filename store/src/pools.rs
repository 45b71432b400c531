//! The pools of connections.

#[cfg(feature = "testing")]
use std::sync::Arc;

use sea_orm::DatabaseConnection;
#[cfg(feature = "testing")]
use sea_orm::metric;
use sqlx::PgPool;

use crate::shares::{ConnectionShare, ShareSizes};

/// Connections of no share: for the heartbeat of the change log, the time of the database and the
/// readiness check, which must work while all shares are in use.
pub const SPARE_CONNECTIONS: u32 = 1;

/// Connections of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Connections to the database, in use or idle.
    pub open: u32,
    pub idle: u32,
    /// The maximum number of connections.
    pub max: u32,
}

/// A pool for nodes and the tasks of the server, and one for the REST API. A pool uses its idle
/// connections in turn, and a process of Postgres is faster the less time has passed since its last
/// statement. With one pool, the tasks would keep many connections open, and a few users would use
/// all of them in turn.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    pub(crate) nodes: DatabaseConnection,
    /// None without shares.
    pub(crate) rest: Option<DatabaseConnection>,
}

impl Pools {
    /// The pool of a share.
    pub(crate) fn of(&self, share: ConnectionShare) -> &DatabaseConnection {
        match share {
            ConnectionShare::Nodes => &self.nodes,
            ConnectionShare::RestReads | ConnectionShare::RestWrites | ConnectionShare::Logins => {
                self.rest.as_ref().unwrap_or(&self.nodes)
            }
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &PgPool> {
        [Some(&self.nodes), self.rest.as_ref()]
            .into_iter()
            .flatten()
            .map(DatabaseConnection::get_postgres_connection_pool)
    }

    /// The same pools, whose statements are observed, for tests.
    #[cfg(feature = "testing")]
    pub(crate) fn observed(
        &self,
        observe: impl Fn(&metric::Info<'_>) + Send + Sync + 'static,
    ) -> Self {
        let mut pools = self.clone();
        let observe = Arc::new(observe);
        for pool in [Some(&mut pools.nodes), pools.rest.as_mut()].into_iter().flatten() {
            let observe = Arc::clone(&observe);
            pool.set_metric_callback(move |call| observe(call));
        }
        pools
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        self.all().fold(PoolUsage { open: 0, idle: 0, max: 0 }, |sum, pool| PoolUsage {
            open: sum.open + pool.size(),
            idle: sum.idle + u32::try_from(pool.num_idle()).unwrap_or(u32::MAX),
            max: sum.max + pool.options().get_max_connections(),
        })
    }
}

/// Maximum numbers of connections of the pool for nodes and of that for the REST API.
pub(crate) fn pool_sizes(max_connections: u32, shares: Option<ShareSizes>) -> (u32, Option<u32>) {
    let Some(sizes) = shares else {
        return (max_connections, None);
    };
    let nodes = sizes.nodes.saturating_add(SPARE_CONNECTIONS).min(max_connections);
    (nodes, Some(max_connections.saturating_sub(nodes).max(1)))
}
