//! The primary of the database is lost while nodes poll and report, and its standby is promoted.

use std::time::{Duration, Instant};

use evenkeel_tests::history::{Replicas, print_progress};

use super::front_proxy::FrontProxy;
use super::load::Load;
use super::{REPLICA_COUNT, connect_operator, haproxy_settings};
use crate::hanging::database::Database;
use crate::hanging::database_proxy::DatabaseProxy;
use crate::hanging::test_server::until;

/// IDs jump ahead by this number when a standby is promoted.
const ID_JUMP: u64 = 1 << 20;

/// A server tests a connection to the database that was idle for this long before it uses it. A call on a connection that
/// was used later than this before the loss of the primary may fail.
const IDLE_TEST_AGE: Duration = Duration::from_secs(5);

/// A primary whose commits wait for its standby, and the addresses of both.
struct DatabasePair {
    primary: Database,
    standby: Database,
    proxies: [DatabaseProxy; 2],
}

impl DatabasePair {
    async fn start() -> Self {
        let primary = Database::start().await;
        let standby = primary.start_standby().await;
        // After the copy, so that the standby waits for no other one when it is promoted.
        primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        primary.query("SELECT pg_reload_conf()").await;
        until("commits wait for the standby", async || {
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            (primary.query(sql).await == "1").then_some(())
        })
        .await;
        let proxies = [
            DatabaseProxy::start(&primary.socket()).await,
            DatabaseProxy::start(&standby.socket()).await,
        ];
        Self { primary, standby, proxies }
    }

    /// The URL of both, for servers that use the one that can be written.
    fn url(&self) -> String {
        let [primary, standby] = self.proxies.each_ref().map(DatabaseProxy::address);
        format!(
            "postgres://evenkeel@{primary},{standby}/evenkeel?sslmode=disable\
             &target_session_attrs=read-write"
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_under_load_loses_no_report_and_fails_no_poll_afterwards() {
    let pair = DatabasePair::start().await;
    let settings = haproxy_settings();
    let mut replicas = Replicas::start_on(&pair.url(), &[settings.as_str(); REPLICA_COUNT]).await;
    let proxy = FrontProxy::start_haproxy(&mut replicas).await;
    let client = connect_operator(&replicas, &proxy);
    let mut load = Load::start(&replicas, &client, proxy.address("southbound")).await;
    load.wait_for_polls().await;

    let DatabasePair { primary, standby, proxies: _proxies } = pair;
    let lost_at = Instant::now();
    primary.stop().await;
    // Otherwise they could still be ready when the test asks whether they are ready again.
    replicas.wait_for_readiness(false).await;
    standby.promote().await;
    print_progress(&format!("the standby was promoted after {:.1?}", lost_at.elapsed()));
    replicas.wait_for_readiness(true).await;
    print_progress(&format!("all replicas were ready after {:.1?}", lost_at.elapsed()));
    // Until then, HAProxy may refuse the new connection of a node.
    proxy.wait_until_replicas_are_up().await;
    let recovered_at = Instant::now().max(lost_at + IDLE_TEST_AGE);
    until("no connection of the old primary is used", async || {
        (Instant::now() > recovered_at).then_some(())
    })
    .await;
    load.wait_for_polls().await;

    load.enroll_node().await;
    let last_number = standby.query("SELECT last_value FROM host_numbers").await;
    let last_number: u64 = last_number.parse().expect("a number");
    assert!(last_number > ID_JUMP, "the numbers of hosts did not jump: {last_number}");

    let result = load.stop().await;
    print_progress(&result.to_string());
    let logs = format!("{}\n-- proxy\n{}", replicas.logs(), proxy.log());
    result.assert_no_failed_poll(Some((lost_at, recovered_at)), &logs);
    result.assert_no_lost_report(&client).await;
    replicas.stop().await;
    standby.stop().await;
}
