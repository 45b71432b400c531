//! Shares of the database connections.

use evenkeel_store::{SPARE_CONNECTIONS, ShareSizes};

use super::Config;

/// Minimum number of connections that are divided into shares.
const MIN_CONNECTIONS_FOR_SHARES: u32 = 8;

/// The search for runs that have timed out holds one connection, and uses another one.
const MIN_NODE_CONNECTIONS: u32 = 2;

impl Config {
    /// The shares of nodes, of the REST API and of logins; none if there are too few connections.
    ///
    /// # Errors
    /// The other shares leave too few connections to nodes.
    pub(crate) fn connection_shares(&self) -> Result<Option<ShareSizes>, String> {
        let database = &self.database;
        let total = database.max_connections;
        if total < MIN_CONNECTIONS_FOR_SHARES {
            return Ok(None);
        }
        let rest_reads = database.rest_read_connections.unwrap_or(total / 6).max(1);
        let rest_writes = database.rest_write_connections.unwrap_or(total / 10).max(1);
        let logins = (total / 16).max(1);
        let streams = u32::try_from(self.max_streams()).unwrap_or(u32::MAX);
        let others = [rest_reads, rest_writes, logins, streams, SPARE_CONNECTIONS];
        let others = others.into_iter().fold(0, u32::saturating_add);
        match total.checked_sub(others) {
            Some(nodes) if nodes >= MIN_NODE_CONNECTIONS => {
                Ok(Some(ShareSizes { nodes, rest_reads, rest_writes, logins }))
            }
            _ => Err(format!(
                "database.rest_read_connections ({rest_reads}), database.rest_write_connections ({rest_writes}), the streamed lists \
                 ({streams}), logins ({logins}) and checks ({SPARE_CONNECTIONS}) leave fewer than {MIN_NODE_CONNECTIONS} connections of \
                 database.max_connections ({total}) to nodes"
            )),
        }
    }

    /// Maximum number of streamed lists; each holds a connection.
    pub(super) fn max_streams(&self) -> usize {
        let total = self.database.max_connections;
        if total < MIN_CONNECTIONS_FOR_SHARES {
            return self.rest.max_streams;
        }
        let most = usize::try_from(total / 6).unwrap_or(usize::MAX);
        self.rest.max_streams.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(total: u32, rest_reads: Option<u32>) -> Result<Option<ShareSizes>, String> {
        let mut config = Config::default();
        config.database.max_connections = total;
        config.database.rest_read_connections = rest_reads;
        config.connection_shares()
    }

    #[test]
    fn nodes_have_most_of_the_connections() {
        for (total, nodes, rest_reads, rest_writes, logins) in
            [(8, 3, 1, 1, 1), (16, 9, 2, 1, 1), (32, 16, 5, 3, 2), (100, 59, 16, 10, 6)]
        {
            let expected = ShareSizes { nodes, rest_reads, rest_writes, logins };
            assert_eq!(shares(total, None), Ok(Some(expected)), "{total}");
        }
    }

    #[test]
    fn a_connection_belongs_to_no_share() {
        for total in [8, 16, 32, 100] {
            let mut config = Config::default();
            config.database.max_connections = total;
            let sizes = config.connection_shares().unwrap().unwrap();
            let streams = u32::try_from(config.max_streams()).unwrap();
            let shared = [sizes.nodes, sizes.rest_reads, sizes.rest_writes, sizes.logins, streams];
            assert_eq!(shared.into_iter().sum::<u32>() + SPARE_CONNECTIONS, total);
        }
    }

    #[test]
    fn few_connections_are_not_divided() {
        assert_eq!(shares(7, None), Ok(None));
    }

    #[test]
    fn shares_without_two_connections_for_nodes_are_refused() {
        let refused = shares(30, Some(19)).unwrap_err();
        assert!(refused.contains("database.rest_read_connections (19)"), "{refused}");
        let nodes = shares(30, Some(18)).unwrap().map(|sizes| sizes.nodes);
        assert_eq!(nodes, Some(MIN_NODE_CONNECTIONS));
        assert!(shares(30, Some(u32::MAX)).is_err());
    }
}
