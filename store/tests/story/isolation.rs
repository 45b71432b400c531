//! Isolation of projects in every table, and the effect of schema steps on existing rows.

mod reads;
mod writes;
mod wrong_tenant;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::eim::SampleKind;
use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::Host;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::run::{Failure, FailureKind, RunEvent, RunTimeouts};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{
    Store, assignments, contacts, contents, hardware, join_tokens, limit_usage, node_tokens, nodes,
    orders, os_details, os_reports, os_settings, package_versions, pauses, runs, settings,
};

use crate::day_zero;
use crate::fixtures::{
    NOON, assign, contact, create_latest_policy, create_node, create_project, create_region,
    create_site, new_attempt, numbered_record, window,
};
use crate::os_details::{edge, finding, report, selection};

/// Creates one of everything.
pub async fn create_everything(store: &Store, tenant: TenantId) {
    let (host, instance) = create_node(store, tenant, 1).await;
    let region = create_region(store, tenant, "europe", None).await;
    create_site(store, tenant, Some(region.id)).await;
    let policy = create_latest_policy(store, tenant).await;
    assign(store, tenant, Scope::Project, policy.id, (Some(1), None)).await;
    create_schedules_and_orders(store, tenant, &host, &instance).await;
    day_zero::create_in_use(store, tenant, &host, &instance).await;
    create_registry_data(store, tenant).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    settings::set(&tx, &ProjectSettings::default())
        .await
        .expect("set");
    limit_usage::take_slot(&tx, Scope::Project, instance.id, None, NOON)
        .await
        .expect("slot taken");
    contents::insert_if_missing(&tx, &[1; 32], "bash 5.2", NOON)
        .await
        .expect("stored");
    hardware::store_if_changed(&tx, host.id, Hardware::default(), &[2; 32], NOON)
        .await
        .expect("stored");
    let version = ObservedVersion {
        name: "bash".into(),
        architecture: "amd64".into(),
        version: "5.2".into(),
    };
    package_versions::record_seen(&tx, &[version], NOON)
        .await
        .expect("recorded");
    let expires_at = NOON + TimeDelta::hours(1);
    node_tokens::bind(&tx, &[1; 32], host.id, expires_at, NOON)
        .await
        .expect("bound");
    let begun = numbered_record(RunEvent::Began, 1);
    let timeouts = RunTimeouts::default();
    runs::advance(&tx, new_attempt(&instance, 1), &begun, &timeouts, NOON)
        .await
        .expect("opened");
    let token = evenkeel_domain::join_token::JoinTokenSpec {
        name: Name::default(),
        expires_at: NOON + TimeDelta::days(1),
        one_time: true,
        may_create_hosts: true,
    };
    join_tokens::create(&tx, &token, token_digest(tenant), NOON)
        .await
        .expect("a token");
    tx.commit().await.expect("committed");
    let tx = store.fleet().await.expect("a transaction");
    contacts::record_contacts(&tx, vec![contact(tenant, instance.id, NOON)])
        .await
        .expect("recorded");
    tx.commit().await.expect("committed");
}

/// Creates an imported image, a catalogue selection and a report.
async fn create_registry_data(store: &Store, tenant: TenantId) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_settings::set(&tx, &selection("~3.0.1"))
        .await
        .expect("set");
    os_details::import(&tx, &edge("3.0.1"), NOON)
        .await
        .expect("stored");
    os_reports::replace(&tx, &report(vec![finding("gone", NOON)]))
        .await
        .expect("reported");
    tx.commit().await.expect("committed");
}

/// Digest of the secret of a project's join token.
fn token_digest(tenant: TenantId) -> [u8; 32] {
    let half = tenant.uuid().into_bytes();
    std::array::from_fn(|at| half[at % half.len()])
}

/// Creates schedules, a pause and an order for a node.
async fn create_schedules_and_orders(
    store: &Store,
    tenant: TenantId,
    host: &Host,
    instance: &Instance,
) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let target = ScheduleTarget::Host(host.id);
    schedules::create(&tx, &window(target, 1, 2), NOON)
        .await
        .expect("scheduled");
    let again = RepeatedSpec {
        name: Name::default(),
        status: ScheduleStatus::OsUpdate,
        duration: TimeDelta::hours(1),
        cron: Cron::parse("0", "2", "*", "*", "*").expect("a cron"),
        zone: Zone::UTC,
        target: Some(target),
    };
    repeated::create(&tx, &again, NOON)
        .await
        .expect("scheduled");
    let pause = Pause {
        scope: PauseScope::Project,
        reason: String::new(),
        by: "alice".into(),
        at: NOON,
    };
    pauses::set(&tx, &pause).await.expect("paused");
    let order = Order {
        kind: OrderKind::Now,
        at: NOON,
        until: NOON,
        reason: String::new(),
        by: "alice".into(),
    };
    orders::set(&tx, &[instance.id], &order)
        .await
        .expect("ordered");
    tx.commit().await.expect("committed");
}

/// Whatever statement is sent: with the scope of another project it sees, changes and deletes
/// nothing.
#[tokio::test]
async fn no_table_shows_one_project_to_another() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        create_project(&store, "ours").await,
        create_project(&store, "theirs").await,
    );
    create_everything(&store, ours).await;
    create_everything(&store, theirs).await;
    let sql = format!(
        "DO $$ DECLARE one text; seen bigint; tables integer := 0; BEGIN \
         FOR one IN SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id' LOOP \
         tables := tables + 1; \
         PERFORM set_config('evenkeel.tenant', '{theirs}', true); \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{ours}'::uuid; \
         IF seen <> 0 THEN RAISE '% shows % rows', one, seen; END IF; \
         EXECUTE format('SELECT count(*) FROM %I', one) INTO seen; \
         IF seen = 0 THEN RAISE '% hides the rows of its own project', one; END IF; \
         PERFORM set_config('evenkeel.tenant', '', true); \
         EXECUTE format('SELECT count(*) FROM %I', one) INTO seen; \
         IF seen <> 0 THEN RAISE '% shows % rows without a scope', one, seen; END IF; \
         END LOOP; IF tables < 20 THEN RAISE 'only % tables', tables; END IF; END $$"
    );
    store.execute_unprepared(&sql).await.expect("isolated");
}

/// A database of the first release with a node is migrated to this release.
#[tokio::test]
async fn rows_of_the_first_release_are_read_by_this_one() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let (first, later) = steps.split_at(2 * 6);
    assert_eq!((first.len(), later.len() % 2), (12, 0));
    let as_fleet = |sql: &str| format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
    for down in later.chunks(2).rev().map(|pair| pair[1]) {
        store
            .execute_unprepared(&as_fleet(down))
            .await
            .expect("down");
    }
    let written = format!(
        "UPDATE node_states SET sample_kind = 'started', sample_detail_digest = 'abc', \
         delivered_start_at = '2027-01-15T08:00:00Z', delivered_end_at = '2027-01-15T09:00:00Z', \
         delivered_policy_id = {}",
        policy.id.bits().cast_signed()
    );
    store
        .execute_unprepared(&as_fleet(&written))
        .await
        .expect("written");
    let read = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let node = nodes::find(&tx, instance.id).await.expect("a node");
        let sample = node.last_sample.expect("a sample");
        assert_eq!(
            (sample.kind, sample.detail_digest.as_str()),
            (SampleKind::Started, "abc")
        );
        assert_eq!(
            node.delivered.single,
            Some((NOON, NOON + TimeDelta::hours(1)))
        );
        let assigned = assignments::find(&tx, Scope::Project, NOON).await;
        let assigned = assigned.expect("assigned");
        assert_eq!(
            (assigned.policy, assigned.limits.is_limited()),
            (policy.id, false)
        );
        let read = nodes::find_with_host(&tx, nodes::MachineKey::Host(host.id)).await;
        assert_eq!(read.expect("a host").0.site, None);
    };
    for up in later.chunks(2).map(|pair| pair[0]) {
        store.execute_unprepared(&as_fleet(up)).await.expect("up");
    }
    read().await;
    // Down and up again, with the present rows.
    for down in later.chunks(2).rev().map(|pair| pair[1]) {
        store
            .execute_unprepared(&as_fleet(down))
            .await
            .expect("down");
    }
    for up in later.chunks(2).map(|pair| pair[0]) {
        store.execute_unprepared(&as_fleet(up)).await.expect("up");
    }
    read().await;
}

/// The previous release cannot read rows with values that it does not know.
#[tokio::test]
async fn the_reverse_step_removes_values_that_the_previous_release_does_not_know() {
    let store = fresh_store().await;
    let tenant = create_project(&store, "ours").await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let condition = |kind| Condition {
        kind,
        text: "a text".into(),
        since: NOON,
    };
    let two_machines = condition(ConditionKind::TwoMachines);
    let mut locked = nodes::lock(&tx, host.id).await.expect("a node");
    locked.conditions = vec![two_machines.clone(), condition(ConditionKind::AgentError)];
    nodes::save(&tx, &locked).await.expect("saved");
    let failure = Failure {
        kind: FailureKind::Limits,
        reason: "the owner allows no removals".into(),
    };
    let failed = numbered_record(RunEvent::Failed(failure), 1);
    let timeouts = RunTimeouts::default();
    let run = runs::advance(&tx, new_attempt(&instance, 1), &failed, &timeouts, NOON).await;
    let run = run.expect("opened and ended").id;
    tx.commit().await.expect("committed");

    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let step = steps.chunks(2).nth(13).expect("the fourteenth step");
    for sql in [step[1], step[0]] {
        let statement = format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
        store
            .execute_unprepared(&statement)
            .await
            .expect("executed");
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let stored = nodes::find(&tx, instance.id).await.expect("a node");
    assert_eq!(stored.conditions, [two_machines]);
    let run = runs::find(&tx, run).await.expect("a run");
    let detail = format!("{:?}", run.state);
    assert!(
        detail.contains("Unspecified") && detail.contains("no removals"),
        "{detail}"
    );
}
