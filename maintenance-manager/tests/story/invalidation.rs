//! Invalidation by changes: every table in the change log is listed here with the nodes that a
//! change affects, and is changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{PolicyId, RegionId, SiteId};
use evenkeel_domain::location::{RegionSpec, SiteSpec};
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::pause::PauseScope;
use evenkeel_store::{regions, sites};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::test_server::{TestNode, TestServer, downloading, finished};

/// The nodes whose answers a change invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AffectedNodes {
    /// None: no answer depends on the table.
    NoNode,
    /// Nearby nodes: one node, the nodes of a site or region, or those under the same limits.
    Near,
    Project,
}

use AffectedNodes::{Near, NoNode, Project};

/// All tables whose changes are in the log, in alphabetical order.
const LOGGED_TABLES: [(&str, AffectedNodes); 25] = [
    ("assignments", Near),
    ("custom_configs", NoNode),
    ("host_hardware", NoNode),
    ("hosts", Near),
    ("instance_custom_configs", NoNode),
    ("instances", Near),
    ("join_tokens", NoNode),
    ("local_accounts", NoNode),
    ("node_states", Near),
    ("notification_targets", NoNode),
    ("os_details", NoNode),
    ("os_profiles", Project),
    ("os_settings", NoNode),
    ("pauses", Near),
    ("project_settings", Project),
    ("projects", Project),
    ("providers", NoNode),
    ("regions", Project),
    ("repeated_schedules", Near),
    ("single_schedules", Near),
    ("sites", Near),
    ("update_orders", Near),
    ("update_policies", Project),
    ("update_runs", Near),
    ("update_slots", Near),
];

/// Counts the polls that were answered from the cache.
struct HitRecorder(Arc<AtomicU64>);

impl Recorder for HitRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let is_hit = key.labels().any(|label| label.value() == "hit");
        if key.name() == "evenkeel_poll_requests_total" && is_hit {
            return Counter::from_arc(Arc::clone(&self.0));
        }
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Three nodes: two at different sites, and one in another project.
struct InvalidationFixture {
    server: TestServer,
    other: TestServer,
    near: TestNode,
    far: TestNode,
    foreign: TestNode,
    policy: PolicyId,
    site: SiteId,
    region: RegionId,
    hits: Arc<AtomicU64>,
}

impl InvalidationFixture {
    /// The near node has already been updated by a policy with a limit.
    async fn new(hits: Arc<AtomicU64>) -> Self {
        let server = TestServer::new().await;
        let other = server.in_new_project("other").await;
        let (near, far) = (server.nth_node(1).await, server.nth_node(2).await);
        let foreign = other.nth_node(3).await;
        let policy = server.create_policy("demo-hello=1.1").await;
        let alone = Scope::Instance(near.instance);
        server.assign(alone, policy, Some(1), None).await;
        let events = [(1, downloading()), (2, finished())];
        server.report(&near, 1, policy, &events).await;
        let region = server.region().await;
        let (site, elsewhere) = (server.site(Some(region)).await, server.site(None).await);
        server.move_to_site(&near, site).await;
        server.move_to_site(&far, elsewhere).await;
        Self { server, other, near, far, foreign, policy, site, region, hits }
    }

    /// Whether a poll is answered from the cache.
    async fn is_hit(&self, server: &TestServer, node: &TestNode) -> bool {
        let before = self.hits.load(Ordering::Relaxed);
        server.poll(node).await;
        self.hits.load(Ordering::Relaxed) > before
    }

    /// Polls until the answer is cached. The answer to a poll that finds a change is not cached.
    async fn poll_until_cached(&self, server: &TestServer, node: &TestNode) {
        let settled = async {
            while !self.is_hit(server, node).await {
                self.catch_up().await;
            }
        };
        let settled = tokio::time::timeout(Duration::from_mins(1), settled).await;
        settled.expect("the answer is cached");
    }

    async fn poll_all_until_cached(&self) {
        self.poll_until_cached(&self.server, &self.near).await;
        self.poll_until_cached(&self.server, &self.far).await;
        self.poll_until_cached(&self.other, &self.foreign).await;
    }

    async fn catch_up(&self) {
        while !self.server.manager.wait_until_caught_up().await {}
    }

    /// Which of the nodes are not answered from the cache.
    async fn cache_misses(&self) -> [bool; 3] {
        [
            !self.is_hit(&self.server, &self.near).await,
            !self.is_hit(&self.server, &self.far).await,
            !self.is_hit(&self.other, &self.foreign).await,
        ]
    }

    /// Changes a row of a table, for the near node if the change does not affect the whole project.
    async fn change(&self, table: &str) {
        let (server, policy) = (&self.server, self.policy);
        match table {
            "assignments" => {
                server.assign(Scope::Site(self.site), policy, None, None).await;
            }
            "pauses" => server.pause(PauseScope::Site(self.site)).await,
            "single_schedules" => server.window(self.near.host, 600_000, 600_060).await,
            "update_orders" => server.order(self.near.instance, OrderKind::Cancel).await,
            table => server.execute_sql(&self.statement(table)).await,
        }
    }

    fn statement(&self, table: &str) -> String {
        let tenant = self.server.tenant;
        let host = self.near.host.bits().cast_signed();
        let instance = self.near.instance.bits().cast_signed();
        let site = self.site.bits().cast_signed();
        let region = self.region.bits().cast_signed();
        let described = |column| {
            format!("UPDATE {table} SET {column} = {column} || 'x' WHERE tenant_id = '{tenant}'")
        };
        match table {
            "projects" | "os_profiles" | "update_policies" => described("description"),
            "regions" | "join_tokens" => described("name"),
            "hosts" => format!("{} AND id = {host}", described("note")),
            "instances" => format!("{} AND id = {instance}", described("name")),
            "node_states" => {
                format!("{} AND instance_id = {instance}", described("agent_version"))
            }
            "update_runs" => format!("{} AND instance_id = {instance}", described("description")),
            "sites" => format!("UPDATE sites SET latitude = latitude + 1 WHERE id = {site}"),
            "project_settings" => format!(
                "INSERT INTO project_settings (tenant_id, any_schedule_status) VALUES ('{tenant}', false)"
            ),
            "update_slots" => format!(
                "INSERT INTO update_slots (tenant_id, target_kind, target_id, instance_id, since_at) \
                 VALUES ('{tenant}', 'instance', {instance}, {}, now())",
                self.far.instance.bits().cast_signed()
            ),
            "repeated_schedules" => format!(
                "INSERT INTO repeated_schedules (tenant_id, id, name, status, duration_seconds, cron_minutes, \
                 cron_hours, cron_day_month, cron_month, cron_day_week, time_zone, target_region_id, created_at, \
                 updated_at) VALUES ('{tenant}', 1, '', 'maintenance', 3600, '0', '0', '1', '12', '*', 'UTC', {region}, \
                 now(), now())"
            ),
            "host_hardware" => format!(
                "INSERT INTO host_hardware VALUES ('{tenant}', {host}, '', 0, '', '', '', '', 0, 0, 0, '', '', '', '', \
                 'none', '', '[]', '[]', '[]', '[]', sha256(''), now(), now())"
            ),
            "providers" => format!(
                "INSERT INTO providers VALUES ('{tenant}', 1, 'baremetal', 'unspecified', 'p', '', '{{}}', '', now(), now())"
            ),
            "custom_configs" => format!(
                "INSERT INTO custom_configs VALUES ('{tenant}', 1, 'c', '', 'c', now(), now())"
            ),
            "instance_custom_configs" => {
                format!("INSERT INTO instance_custom_configs VALUES ('{tenant}', {instance}, 1)")
            }
            "local_accounts" => format!(
                "INSERT INTO local_accounts VALUES ('{tenant}', 1, 'a', 'ssh-ed25519 A', now(), now())"
            ),
            "notification_targets" => format!(
                "INSERT INTO notification_targets VALUES ('{tenant}', 1, 'chat', 'https://chat.example/hook', '{{run-failed}}', \
                 true, sha256(''), now(), now())"
            ),
            "os_details" => format!(
                "INSERT INTO os_details (tenant_id, os_id, registry, repository, revision, artifact, platform_bundle, files, \
                 refreshed_at) SELECT '{tenant}', min(id), 'r', 'p', '1.0.0', sha256(''), '', '[]', now() FROM os_profiles \
                 WHERE tenant_id = '{tenant}'"
            ),
            "os_settings" => {
                format!("INSERT INTO os_settings (tenant_id, revision) VALUES ('{tenant}', 'main')")
            }
            other => panic!("no change is defined for {other}"),
        }
    }
}

impl TestServer {
    /// Runs SQL directly in the database.
    pub async fn execute_sql(&self, sql: &str) {
        let transaction = format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
        self.store.execute_unprepared(&transaction).await.expect("done");
    }

    async fn region(&self) -> RegionId {
        let tx = self.tx().await;
        let region = regions::create(&tx, &RegionSpec::default(), self.now()).await;
        tx.commit().await.expect("committed");
        region.expect("a region").id
    }

    async fn site(&self, region: Option<RegionId>) -> SiteId {
        let spec = SiteSpec { region, ..SiteSpec::default() };
        let tx = self.tx().await;
        let site = sites::create(&tx, &spec, self.now()).await;
        tx.commit().await.expect("committed");
        site.expect("a site").id
    }

    async fn move_to_site(&self, node: &TestNode, site: SiteId) {
        let (site, host) = (site.bits().cast_signed(), node.host.bits().cast_signed());
        let moved = format!("UPDATE hosts SET site_id = {site} WHERE id = {host}");
        self.execute_sql(&moved).await;
    }
}

#[tokio::test]
async fn a_change_invalidates_exactly_the_affected_nodes() {
    let hits = Arc::new(AtomicU64::new(0));
    let recorder = HitRecorder(Arc::clone(&hits));
    let _counting = metrics::set_default_local_recorder(&recorder);
    let fixture = InvalidationFixture::new(hits).await;
    for (table, marks) in LOGGED_TABLES {
        fixture.poll_all_until_cached().await;
        fixture.change(table).await;
        fixture.catch_up().await;
        let expected = match marks {
            NoNode => [false; 3],
            Near => [true, false, false],
            Project => [true, true, false],
        };
        assert_eq!(fixture.cache_misses().await, expected, "{table}");
    }
}

#[tokio::test]
async fn every_table_that_is_in_the_log_is_in_the_list() {
    let server =
        TestServer::without_log_follower(evenkeel_maintenance_manager::Settings::default()).await;
    let listed = LOGGED_TABLES.map(|(table, _)| table).join(" ");
    let same = format!(
        "DO $$ DECLARE found text; BEGIN \
         SELECT string_agg(c.relname::text, ' ' ORDER BY c.relname::text COLLATE \"C\") INTO found \
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid \
         WHERE p.proname = 'record_change' AND NOT t.tgisinternal; \
         IF found IS DISTINCT FROM '{listed}' THEN RAISE 'the log has %', found; END IF; END $$"
    );
    server.execute_sql(&same).await;
}
