//! Shares of the database connections.

use evenkeel_store::ShareSizes;

use super::Config;

/// Fewer connections are not divided.
const MIN_CONNECTIONS_FOR_SHARES: u32 = 8;

impl Config {
    /// The shares of nodes and of the REST API; none if there are too few connections.
    ///
    /// # Errors
    /// The shares of the REST API leave no connection to nodes.
    pub(crate) fn connection_shares(&self) -> Result<Option<ShareSizes>, String> {
        let database = &self.database;
        let total = database.max_connections;
        if total < MIN_CONNECTIONS_FOR_SHARES {
            return Ok(None);
        }
        let rest_reads = database.rest_read_connections.unwrap_or(total / 6).max(1);
        let rest_writes = database.rest_write_connections.unwrap_or(total / 10).max(1);
        let streams = u32::try_from(self.max_streams()).unwrap_or(u32::MAX);
        let rest = rest_reads.saturating_add(rest_writes).saturating_add(streams);
        match total.checked_sub(rest) {
            Some(nodes) if nodes > 0 => Ok(Some(ShareSizes { nodes, rest_reads, rest_writes })),
            _ => Err(format!(
                "database.rest_read_connections ({rest_reads}), database.rest_write_connections ({rest_writes}) and the streamed lists \
                 ({streams}) leave no connection of database.max_connections ({total}) to nodes"
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
        for (total, nodes, rest_reads, rest_writes) in
            [(8, 5, 1, 1), (16, 11, 2, 1), (30, 17, 5, 3), (100, 66, 16, 10)]
        {
            let expected = ShareSizes { nodes, rest_reads, rest_writes };
            assert_eq!(shares(total, None), Ok(Some(expected)), "{total}");
        }
    }

    #[test]
    fn few_connections_are_not_divided() {
        assert_eq!(shares(7, None), Ok(None));
    }

    #[test]
    fn shares_without_a_connection_for_nodes_are_refused() {
        let refused = shares(30, Some(22)).unwrap_err();
        assert!(refused.contains("database.rest_read_connections (22)"), "{refused}");
        assert!(shares(30, Some(21)).is_ok());
    }
}
