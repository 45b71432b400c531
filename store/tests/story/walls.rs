//! The walls between projects on every table, and what the steps of the schema make of rows that there are.

mod misled;
mod reads;
mod writes;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::eim::SampleKind;
use evenkeel_domain::hardware::Hardware;
use evenkeel_domain::host::Host;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::order::{Order, OrderKind};
use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_domain::run::{Failure, FailureKind, Patience, RunEvent};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::Name;
use evenkeel_store::schedules::{self, repeated};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{
    Store, assignments, brake, contacts, contents, hardware, join_tokens, node_tokens, nodes,
    orders, os_inside, os_reports, os_settings, pauses, runs, settings, versions,
};

use crate::day_zero;
use crate::house::{
    NOON, assign, attempt, contact, latest, node, numbered, project, region, site, window,
};
use crate::os_inside::{edge, finding, report, wish};

/// One of everything.
pub async fn everything(store: &Store, tenant: TenantId) {
    let (host, instance) = node(store, tenant, 1).await;
    let region = region(store, tenant, "europe", None).await;
    site(store, tenant, Some(region.id)).await;
    let policy = latest(store, tenant).await;
    assign(store, tenant, Scope::Project, policy.id, (Some(1), None)).await;
    wishes(store, tenant, &host, &instance).await;
    day_zero::in_use(store, tenant, &host, &instance).await;
    from_a_registry(store, tenant).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    settings::set(&tx, &ProjectSettings::default())
        .await
        .expect("set");
    brake::hold(&tx, Scope::Project, instance.id, None, NOON)
        .await
        .expect("held");
    contents::put(&tx, &[1; 32], "bash 5.2", NOON)
        .await
        .expect("kept");
    hardware::keep(&tx, host.id, Hardware::default(), &[2; 32], NOON)
        .await
        .expect("kept");
    let told = FoundVersion {
        name: "bash".into(),
        architecture: "amd64".into(),
        version: "5.2".into(),
    };
    versions::see(&tx, &[told], NOON).await.expect("noted");
    let expires_at = NOON + TimeDelta::hours(1);
    node_tokens::bind(&tx, &[1; 32], host.id, expires_at, NOON)
        .await
        .expect("bound");
    let begun = numbered(RunEvent::Began, 1);
    let patience = Patience::default();
    runs::advance(&tx, attempt(&instance, 1), &begun, &patience, NOON)
        .await
        .expect("opened");
    let token = evenkeel_domain::join_token::JoinTokenSpec {
        name: Name::default(),
        expires_at: NOON + TimeDelta::days(1),
        one_time: true,
        may_create_hosts: true,
    };
    join_tokens::create(&tx, &token, digest_of(tenant), NOON)
        .await
        .expect("a token");
    tx.commit().await.expect("committed");
    let tx = store.fleet().await.expect("a transaction");
    contacts::heard(&tx, vec![contact(tenant, instance.id, NOON)])
        .await
        .expect("noted");
    tx.commit().await.expect("committed");
}

/// An image of a registry, what is wanted of it, and how that went.
async fn from_a_registry(store: &Store, tenant: TenantId) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_settings::set(&tx, &wish("~3.0.1")).await.expect("set");
    os_inside::keep(&tx, &edge("3.0.1"), NOON)
        .await
        .expect("kept");
    os_reports::replace(&tx, &report(vec![finding("gone", NOON)]))
        .await
        .expect("reported");
    tx.commit().await.expect("committed");
}

/// The digest of the secret of a project's join token.
fn digest_of(tenant: TenantId) -> [u8; 32] {
    let half = tenant.uuid().into_bytes();
    std::array::from_fn(|at| half[at % half.len()])
}

/// What people want of a node.
async fn wishes(store: &Store, tenant: TenantId, host: &Host, instance: &Instance) {
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

/// Whatever statement the program sends: with the scope of another project it sees, changes and removes nothing.
#[tokio::test]
async fn no_table_shows_one_project_to_another() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    everything(&store, ours).await;
    everything(&store, theirs).await;
    let sql = format!(
        "DO $$ DECLARE one text; seen bigint; tables integer := 0; BEGIN \
         FOR one IN SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id' LOOP \
         tables := tables + 1; \
         PERFORM set_config('evenkeel.tenant', '{theirs}', true); \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{ours}'::uuid; \
         IF seen <> 0 THEN RAISE '% shows % rows', one, seen; END IF; \
         EXECUTE format('SELECT count(*) FROM %I', one) INTO seen; \
         IF seen = 0 THEN RAISE '% shows a project nothing of its own', one; END IF; \
         PERFORM set_config('evenkeel.tenant', '', true); \
         EXECUTE format('SELECT count(*) FROM %I', one) INTO seen; \
         IF seen <> 0 THEN RAISE '% shows % rows without a scope', one, seen; END IF; \
         END LOOP; IF tables < 20 THEN RAISE 'only % tables', tables; END IF; END $$"
    );
    store.unprepared(&sql).await.expect("the walls hold");
}

/// A database of the first release, with a node, is brought up to date.
#[tokio::test]
async fn what_the_first_release_wrote_is_read_by_this_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let policy = latest(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let (first, later) = steps.split_at(2 * 6);
    assert_eq!((first.len(), later.len() % 2), (12, 0));
    let whole = |sql: &str| format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
    for down in later.chunks(2).rev().map(|pair| pair[1]) {
        store.unprepared(&whole(down)).await.expect("down");
    }
    let written = format!(
        "UPDATE node_states SET sample_kind = 'started', sample_detail_digest = 'abc', \
         delivered_start_at = '2027-01-15T08:00:00Z', delivered_end_at = '2027-01-15T09:00:00Z', \
         delivered_policy_id = {}",
        policy.id.bits().cast_signed()
    );
    store.unprepared(&whole(&written)).await.expect("written");
    let read = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let node = nodes::find(&tx, instance.id).await.expect("a node");
        let seen = node.seen.expect("a sample");
        assert_eq!(
            (seen.kind, seen.detail_digest.as_str()),
            (SampleKind::Started, "abc")
        );
        assert_eq!(
            node.delivered.single,
            Some((NOON, NOON + TimeDelta::hours(1)))
        );
        let assigned = assignments::find(&tx, Scope::Project, NOON).await;
        let assigned = assigned.expect("it is assigned");
        assert_eq!((assigned.policy, assigned.limits.any()), (policy.id, false));
        let read = nodes::read(&tx, nodes::Machine::Host(host.id)).await;
        assert_eq!(read.expect("a host").0.site, None);
    };
    for up in later.chunks(2).map(|pair| pair[0]) {
        store.unprepared(&whole(up)).await.expect("up");
    }
    read().await;
    // And down and up again, with what it holds now.
    for down in later.chunks(2).rev().map(|pair| pair[1]) {
        store.unprepared(&whole(down)).await.expect("down");
    }
    for up in later.chunks(2).map(|pair| pair[0]) {
        store.unprepared(&whole(up)).await.expect("up");
    }
    read().await;
}

/// A server of the release before reads no row with a word that it does not know.
#[tokio::test]
async fn a_step_back_takes_the_words_along_that_only_this_release_knows() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let condition = |kind| Condition {
        kind,
        text: "a text".into(),
        since: NOON,
    };
    let two_machines = condition(ConditionKind::TwoMachines);
    let mut known = nodes::lock(&tx, host.id).await.expect("a node");
    known.conditions = vec![two_machines.clone(), condition(ConditionKind::AgentTrouble)];
    nodes::save(&tx, &known).await.expect("saved");
    let failure = Failure {
        kind: FailureKind::Limits,
        reason: "the owner allows no removals".into(),
    };
    let failed = numbered(RunEvent::Failed(failure), 1);
    let patience = Patience::default();
    let run = runs::advance(&tx, attempt(&instance, 1), &failed, &patience, NOON).await;
    let run = run.expect("opened and over").id;
    tx.commit().await.expect("committed");

    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let step = steps.chunks(2).nth(13).expect("the fourteenth step");
    for sql in [step[1], step[0]] {
        let whole = format!("BEGIN; SET LOCAL evenkeel.tenant = '*'; {sql}; COMMIT");
        store.unprepared(&whole).await.expect("done");
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let known = nodes::find(&tx, instance.id).await.expect("a node");
    assert_eq!(known.conditions, [two_machines]);
    let run = runs::find(&tx, run).await.expect("a run");
    let detail = format!("{:?}", run.state);
    assert!(
        detail.contains("Unspecified") && detail.contains("no removals"),
        "{detail}"
    );
}
