//! What a change makes forgotten: every table that leaves a trace in the change log is in a list here, and is changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{PolicyId, RegionId, SiteId};
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::place::{RegionSpec, SiteSpec};
use evenkeel_store::{regions, sites};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::house::{House, TestNode, downloading, finished};

/// Who is looked up anew after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    /// Nobody: nothing that a node is told depends on it.
    Nobody,
    /// Those near it: one node, a site, what lies in a region, or who is counted with it.
    Near,
    /// All of the project.
    Project,
}

use Marks::{Near, Nobody, Project};

/// All tables whose changes are in the log, in alphabetical order.
const TABLES: [(&str, Marks); 24] = [
    ("assignments", Near),
    ("brake_slots", Near),
    ("custom_configs", Nobody),
    ("host_hardware", Nobody),
    ("hosts", Near),
    ("instance_custom_configs", Nobody),
    ("instances", Near),
    ("join_tokens", Nobody),
    ("local_accounts", Nobody),
    ("node_states", Near),
    ("os_inside", Nobody),
    ("os_profiles", Project),
    ("os_settings", Nobody),
    ("pauses", Near),
    ("project_settings", Project),
    ("projects", Project),
    ("providers", Nobody),
    ("regions", Project),
    ("repeated_schedules", Near),
    ("single_schedules", Near),
    ("sites", Near),
    ("update_orders", Near),
    ("update_policies", Project),
    ("update_runs", Near),
];

/// Counts the polls that were answered from memory.
struct Hits(Arc<AtomicU64>);

impl Recorder for Hits {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let is_hit = key.labels().any(|label| label.value() == "hit");
        if key.name() == "evenkeel_polls_total" && is_hit {
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
struct Estate {
    house: House,
    other: House,
    near: TestNode,
    far: TestNode,
    foreign: TestNode,
    policy: PolicyId,
    site: SiteId,
    region: RegionId,
    hits: Arc<AtomicU64>,
}

impl Estate {
    /// The near node went by a policy with a limit before.
    async fn new(hits: Arc<AtomicU64>) -> Self {
        let house = House::new().await;
        let other = house.beside("other").await;
        let (near, far) = (house.nth_node(1).await, house.nth_node(2).await);
        let foreign = other.nth_node(3).await;
        let policy = house.wish("demo-hello=1.1").await;
        let alone = Scope::Instance(near.instance);
        house.assign(alone, policy, Some(1), None).await;
        let events = [(1, downloading()), (2, finished())];
        house.report(&near, 1, policy, &events).await;
        let region = house.region().await;
        let (site, elsewhere) = (house.site(Some(region)).await, house.site(None).await);
        house.stands_at(&near, site).await;
        house.stands_at(&far, elsewhere).await;
        Self {
            house,
            other,
            near,
            far,
            foreign,
            policy,
            site,
            region,
            hits,
        }
    }

    /// Whether a poll is answered from memory.
    async fn is_hit(&self, house: &House, node: &TestNode) -> bool {
        let before = self.hits.load(Ordering::Relaxed);
        house.poll(node).await;
        self.hits.load(Ordering::Relaxed) > before
    }

    /// Polls until the answer is remembered: one that finds news is not.
    async fn settle(&self, house: &House, node: &TestNode) {
        let settled = async {
            while !self.is_hit(house, node).await {
                self.catch_up().await;
            }
        };
        let settled = tokio::time::timeout(Duration::from_mins(1), settled).await;
        settled.expect("its answer is remembered");
    }

    async fn settle_all(&self) {
        self.settle(&self.house, &self.near).await;
        self.settle(&self.house, &self.far).await;
        self.settle(&self.other, &self.foreign).await;
    }

    async fn catch_up(&self) {
        while !self.house.manager.caught_up().await {}
    }

    /// Who is not answered from memory.
    async fn forgotten(&self) -> [bool; 3] {
        [
            !self.is_hit(&self.house, &self.near).await,
            !self.is_hit(&self.house, &self.far).await,
            !self.is_hit(&self.other, &self.foreign).await,
        ]
    }

    /// Changes something in a table, for the near node if it is about less than the project.
    async fn change(&self, table: &str) {
        let (house, policy) = (&self.house, self.policy);
        match table {
            "assignments" => {
                house
                    .assign(Scope::Site(self.site), policy, None, None)
                    .await;
            }
            "pauses" => house.pause(PauseScope::Site(self.site)).await,
            "single_schedules" => house.window(self.near.host, 600_000, 600_060).await,
            "update_orders" => house.order(self.near.instance, OrderKind::Cancel).await,
            table => house.by_hand(&self.statement(table)).await,
        }
    }

    fn statement(&self, table: &str) -> String {
        let tenant = self.house.tenant;
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
                format!(
                    "{} AND instance_id = {instance}",
                    described("agent_version")
                )
            }
            "update_runs" => format!("{} AND instance_id = {instance}", described("description")),
            "sites" => format!("UPDATE sites SET latitude = latitude + 1 WHERE id = {site}"),
            "project_settings" => format!(
                "INSERT INTO project_settings (tenant_id, any_schedule_status) VALUES ('{tenant}', false)"
            ),
            "brake_slots" => format!(
                "INSERT INTO brake_slots (tenant_id, target_kind, target_id, instance_id, since_at) \
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
            "os_inside" => format!(
                "INSERT INTO os_inside SELECT '{tenant}', min(id), 'r', 'p', '1.0.0', sha256(''), '', '{{}}', NULL, '[]', \
                 NULL, NULL, NULL, now() FROM os_profiles WHERE tenant_id = '{tenant}'"
            ),
            "os_settings" => {
                format!("INSERT INTO os_settings (tenant_id, revision) VALUES ('{tenant}', 'main')")
            }
            other => panic!("nobody knows how {other} changes"),
        }
    }
}

impl House {
    /// What somebody does in the database who is not the program.
    pub async fn by_hand(&self, sql: &str) {
        let whole = format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
        self.store.unprepared(&whole).await.expect("done");
    }

    async fn region(&self) -> RegionId {
        let tx = self.tx().await;
        let region = regions::create(&tx, &RegionSpec::default(), self.time()).await;
        tx.commit().await.expect("committed");
        region.expect("a region").id
    }

    async fn site(&self, region: Option<RegionId>) -> SiteId {
        let spec = SiteSpec {
            region,
            ..SiteSpec::default()
        };
        let tx = self.tx().await;
        let site = sites::create(&tx, &spec, self.time()).await;
        tx.commit().await.expect("committed");
        site.expect("a site").id
    }

    async fn stands_at(&self, node: &TestNode, site: SiteId) {
        let (site, host) = (site.bits().cast_signed(), node.host.bits().cast_signed());
        let moved = format!("UPDATE hosts SET site_id = {site} WHERE id = {host}");
        self.by_hand(&moved).await;
    }
}

#[tokio::test]
async fn whoever_a_change_concerns_is_looked_up_anew_and_nobody_else() {
    let hits = Arc::new(AtomicU64::new(0));
    let recorder = Hits(Arc::clone(&hits));
    let _counting = metrics::set_default_local_recorder(&recorder);
    let estate = Estate::new(hits).await;
    for (table, marks) in TABLES {
        estate.settle_all().await;
        estate.change(table).await;
        estate.catch_up().await;
        let expected = match marks {
            Nobody => [false; 3],
            Near => [true, false, false],
            Project => [true, true, false],
        };
        assert_eq!(estate.forgotten().await, expected, "{table}");
    }
}

#[tokio::test]
async fn every_table_that_is_in_the_log_is_in_the_list() {
    let house = House::at_rest(evenkeel_maintenance_manager::Settings::default()).await;
    let listed = TABLES.map(|(table, _)| table).join(" ");
    let same = format!(
        "DO $$ DECLARE found text; BEGIN \
         SELECT string_agg(c.relname::text, ' ' ORDER BY c.relname::text COLLATE \"C\") INTO found \
         FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid \
         WHERE p.proname = 'record_change' AND NOT t.tgisinternal; \
         IF found IS DISTINCT FROM '{listed}' THEN RAISE 'the log tells of %', found; END IF; END $$"
    );
    house.by_hand(&same).await;
}
