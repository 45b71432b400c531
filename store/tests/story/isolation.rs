//! Isolation of projects in every table, and the effect of schema steps on existing rows.

mod reads;
mod writes;
mod wrong_tenant;

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::Host;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::notification::{
    NotificationEvent, NotificationTargetSpec, TargetAddress, WebhookSecret,
};
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::run::{RunEvent, RunTimeouts};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::change_seals::ChangeSealer;
use evenkeel_store::daily_usage::ProjectCharge;
use evenkeel_store::node_tokens::NodeToken;
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::{
    Store, contacts, contents, daily_usage, hardware, join_tokens, limit_usage, node_tokens, nodes,
    notification_targets, notifications, orders, os_details, os_reports, os_settings,
    package_versions, pauses, runs, settings,
};

use crate::day_zero;
use crate::fixtures::{
    NOON, assign, contact, create_latest_policy, create_node, create_region, create_site,
    new_attempt, numbered_record, store_with_two_projects, window,
};
use crate::os_details::{edge, finding, report, selection};

/// The time that an amount costs.
const COST: Duration = Duration::from_secs(1);

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
    settings::set(&tx, &ProjectSettings::default()).await.expect("set");
    limit_usage::take_slot(&tx, Scope::Project, instance.id, None, NOON).await.expect("slot taken");
    contents::insert_if_missing(&tx, &[1; 32], "bash 5.2", NOON).await.expect("stored");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.packages_digest = Some([1; 32]);
    nodes::save(&tx, &node).await.expect("saved");
    hardware::store_if_changed(&tx, host.id, Hardware::default(), &[2; 32], NOON)
        .await
        .expect("stored");
    let version = ObservedVersion {
        name: "bash".into(),
        architecture: "amd64".into(),
        version: "5.2".into(),
    };
    package_versions::record_seen(&tx, instance.id, &[version], NOON).await.expect("recorded");
    daily_usage::charge_node(&tx, host.id, "runs", COST).await.expect("charged");
    let expires_at = NOON + TimeDelta::hours(1);
    let node_token = NodeToken { digest: [1; 32], subject: Some([2; 32]), expires_at };
    node_tokens::bind(&tx, &node_token, host.id, NOON).await.expect("bound");
    let begun = numbered_record(RunEvent::Began, 1);
    let timeouts = RunTimeouts::default();
    runs::advance(&tx, new_attempt(&instance, 1), &begun, &timeouts, NOON).await.expect("opened");
    let token = evenkeel_domain::join_token::JoinTokenSpec {
        name: Name::default(),
        expires_at: NOON + TimeDelta::days(1),
        one_time: true,
        may_create_hosts: true,
        may_replace_eim_agents: false,
    };
    join_tokens::create(&tx, &token, token_digest(tenant), NOON).await.expect("a token");
    let secret = WebhookSecret::from_bytes(vec![1; WebhookSecret::BYTES]);
    let webhook = webhook("chat");
    let target = notification_targets::create(&tx, &webhook, &secret, NOON).await;
    let target = target.expect("a target");
    notifications::queue_test(&tx, target.id, NOON).await.expect("queued");
    tx.commit().await.expect("committed");
    let tx = store.fleet().await.expect("a transaction");
    contacts::record_contacts(&tx, vec![contact(tenant, instance.id, NOON)], NOON)
        .await
        .expect("recorded");
    let charge = ProjectCharge { tenant, amount: "runs", cost: COST };
    daily_usage::charge_projects(&tx, &[charge]).await.expect("charged");
    tx.commit().await.expect("committed");
    let number = instance.id.bits().cast_signed();
    let notified = format!(
        "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
         INSERT INTO notified_stops VALUES ('{tenant}', 'project', 0, now()); \
         INSERT INTO notified_certificates VALUES ('{tenant}', 'rest', now()); \
         INSERT INTO notified_security_updates VALUES ('{tenant}', {number}, 'bash', '5.2'); END $$"
    );
    store.execute_unprepared(&notified).await.expect("recorded");
    ChangeSealer::new(store.clone()).pass().await.expect("sealed");
}

/// A webhook for failed runs.
fn webhook(name: &str) -> NotificationTargetSpec {
    NotificationTargetSpec {
        name: Name::parse("name", name).expect("a name"),
        address: TargetAddress::from_stored("https://hooks.example/".to_owned()),
        events: vec![NotificationEvent::RunFailed],
    }
}

/// Creates an imported image, a catalogue selection and a report.
async fn create_registry_data(store: &Store, tenant: TenantId) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_settings::set(&tx, &selection("~3.0.1")).await.expect("set");
    os_details::import(&tx, &edge("3.0.1"), NOON).await.expect("stored");
    os_reports::replace(&tx, &report(vec![finding("gone", NOON)])).await.expect("reported");
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
    schedules::create(&tx, &window(target, 1, 2), NOON).await.expect("scheduled");
    let again = RepeatedSpec {
        name: Name::default(),
        status: ScheduleStatus::OsUpdate,
        duration: TimeDelta::hours(1),
        cron: Cron::parse("0", "2", "*", "*", "*").expect("a cron"),
        zone: Zone::UTC,
        target: Some(target),
    };
    repeated::create(&tx, &again, NOON).await.expect("scheduled");
    let pause =
        Pause { scope: PauseScope::Project, reason: String::new(), by: "alice".into(), at: NOON };
    pauses::set(&tx, &pause).await.expect("paused");
    let order = Order {
        kind: OrderKind::Now,
        at: NOON,
        until: NOON,
        reason: String::new(),
        by: "alice".into(),
    };
    orders::set(&tx, &[instance.id], &order).await.expect("ordered");
    tx.commit().await.expect("committed");
}

/// Whatever statement is sent: with the scope of another project it sees, changes and deletes
/// nothing.
#[tokio::test]
async fn no_table_shows_one_project_to_another() {
    let (store, ours, theirs) = store_with_two_projects().await;
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
