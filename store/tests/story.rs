//! The store, told as stories on a real Postgres.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::instance::{Instance, InstanceKind, NewInstance};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::package::PackageChange;
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_domain::run::{AttemptId, Happening, Origin, Patience, RunEvent};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSpec};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_domain::text::Name;
use evenkeel_store::decisions::{self, Horizon};
use evenkeel_store::runs::{self, Opening, Subject};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{
    Actor, Conflict, Page, Store, StoreError, assignments, changes, contacts, hosts, instances,
    nodes, os_profiles, policies, projects, schedules,
};
use futures_util::future::join_all;
use uuid::Uuid;

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

async fn project(store: &Store, name: &str) -> TenantId {
    let tx = store.fleet().await.expect("a transaction");
    let name = ProjectName::parse("name", name).expect("a name");
    let project = projects::create(&tx, &name, "", NOON)
        .await
        .expect("a project");
    tx.commit().await.expect("committed");
    project.id
}

fn registration(n: u128) -> Registration {
    let uuid = Uuid::from_u128(n).to_string();
    Registration::parse("edge", &uuid, "", true).expect("a registration")
}

fn bookworm() -> OsSpec {
    let release = OsRelease {
        id: "debian".into(),
        version_id: "12".into(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".into(),
        codename: "bookworm".into(),
    };
    OsSpec::of_release(&release, "amd64").expect("a profile")
}

async fn node(store: &Store, tenant: TenantId, n: u128) -> (Host, Instance) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON)
        .await
        .expect("a host");
    let os = os_profiles::ensure(&tx, &bookworm(), NOON)
        .await
        .expect("an os");
    let new = NewInstance {
        host: host.id,
        os: os.id,
        name: Name::default(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
    };
    let instance = instances::create(&tx, &new, NOON)
        .await
        .expect("an instance");
    tx.commit().await.expect("committed");
    (host, instance)
}

fn attempt(instance: &Instance, n: u128) -> Subject {
    Subject::New(Box::new(Opening {
        instance: instance.id,
        name: "edge update".into(),
        description: "OS update".into(),
        attempt: Some(AttemptId(Uuid::from_u128(n))),
        origin: Origin {
            target: None,
            policy: None,
        },
    }))
}

fn numbered(event: RunEvent, number: u32) -> Happening {
    Happening {
        sequence: Some(number),
        ..Happening::of(event)
    }
}

#[tokio::test]
async fn what_belongs_to_one_project_is_not_seen_from_another() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let (host, instance) = node(&store, ours, 1).await;

    let tx = store.tenant(theirs).await.expect("a transaction");
    assert!(matches!(
        hosts::find(&tx, host.id).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        instances::find(&tx, instance.id).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        nodes::lock(&tx, host.id).await,
        Err(StoreError::NotFound { .. })
    ));
    assert_eq!(
        hosts::list(&tx, Page::default())
            .await
            .expect("a list")
            .total,
        0
    );
    assert!(matches!(
        hosts::delete(&tx, host.id).await,
        Err(StoreError::NotFound { .. })
    ));
    // The same machine may be known in both.
    hosts::register(&tx, &registration(1), NOON)
        .await
        .expect("the same UUID elsewhere");
}

/// The application's own scope is the first wall. Without it the second one still holds, and without a scope there is
/// nothing at all.
#[tokio::test]
async fn row_level_security_holds_alone() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let (_, instance) = node(&store, ours, 1).await;

    let counts = |scope: Option<TenantId>| {
        let setting = scope.map_or(String::new(), |tenant| {
            format!("PERFORM set_config('evenkeel.tenant', '{tenant}', true);")
        });
        let expected = i32::from(scope == Some(ours));
        format!(
            "DO $$ BEGIN {setting} IF (SELECT count(*) FROM hosts) <> {expected} \
             OR (SELECT count(*) FROM instances) <> {expected} \
             OR (SELECT count(*) FROM node_states) <> {expected} \
             THEN RAISE 'the wall has a hole'; END IF; END $$"
        )
    };
    for scope in [Some(ours), Some(theirs), None] {
        store
            .unprepared(&counts(scope))
            .await
            .expect("the wall holds");
    }
    let across = format!(
        "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '{theirs}', true); \
         INSERT INTO last_contacts SELECT '{ours}', {}, now(); END $$",
        instance.id.bits().cast_signed()
    );
    let refused = store
        .unprepared(&across)
        .await
        .expect_err("a row was written across");
    let Some(cause) = std::error::Error::source(&refused) else {
        panic!("{refused}");
    };
    assert!(cause.to_string().contains("row-level security"), "{cause}");
}

#[tokio::test]
async fn every_table_has_forced_row_level_security() {
    let store = fresh_store().await;
    let sql = "DO $$ DECLARE bare text; BEGIN \
               SELECT string_agg(relname, ', ') INTO bare FROM pg_class \
               WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace \
               AND relname <> 'seaql_migrations' AND NOT (relrowsecurity AND relforcerowsecurity); \
               IF bare IS NOT NULL THEN RAISE 'without row-level security: %', bare; END IF; END $$";
    store.unprepared(sql).await.expect("all tables");
}

#[tokio::test]
async fn the_steps_down_undo_the_steps_up() {
    let store = fresh_store().await;
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    for down in steps.chunks(2).rev().map(|pair| pair[1]) {
        store.unprepared(down).await.expect("down");
    }
    for up in steps.chunks(2).map(|pair| pair[0]) {
        store.unprepared(up).await.expect("and up again");
    }
}

#[tokio::test]
async fn a_machine_is_known_once_in_its_project() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let twice = hosts::register(&tx, &registration(1), NOON).await;
    let Err(StoreError::Conflict(conflict)) = twice else {
        panic!("{twice:?}");
    };
    assert_eq!(
        conflict.to_string(),
        "host_resource with this uuid exists already"
    );
}

/// A statement takes at most 65,535 parameters; a project may have more of everything.
#[tokio::test]
async fn any_number_of_ids_is_looked_up_at_once() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut ids: Vec<_> = (1_000_000..1_070_000)
        .map(evenkeel_domain::id::HostId::nth)
        .collect();
    ids.push(host.id);
    assert_eq!(
        instances::of_hosts(&tx, &ids)
            .await
            .expect("an answer")
            .len(),
        1
    );
    assert_eq!(
        hosts::find_many(&tx, &ids).await.expect("an answer").len(),
        1
    );
}

#[tokio::test]
async fn a_policy_in_use_stays() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", Wish::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    assignments::set(&tx, Scope::Instance(instance.id), policy.id)
        .await
        .expect("assigned");
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = policies::delete(&tx, policy.id).await;
    let Err(StoreError::Conflict(Conflict::InUse { .. })) = refused else {
        panic!("{refused:?}");
    };
    drop(tx);

    let tx = store.tenant(tenant).await.expect("a transaction");
    assignments::clear(&tx, Scope::Instance(instance.id))
        .await
        .expect("taken back");
    policies::delete(&tx, policy.id)
        .await
        .expect("nobody uses it");
}

#[tokio::test]
async fn a_run_is_moved_and_its_history_kept() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let patience = Patience::default();
    let tx = store.tenant(tenant).await.expect("a transaction");

    let mut first = numbered(RunEvent::Downloading, 1);
    first.evidence.plan = Some(vec![PackageChange {
        name: "demo-hello".into(),
        architecture: "all".into(),
        before: Some("1.0".into()),
        wanted: Some("1.1".into()),
        found: None,
    }]);
    let run = runs::advance(&tx, attempt(&instance, 1), &first, &patience, NOON)
        .await
        .expect("opened");
    for (event, number) in [
        (RunEvent::Downloaded, 2),
        (RunEvent::Began, 3),
        (RunEvent::Finished, 4),
    ] {
        let later = NOON + TimeDelta::minutes(i64::from(number));
        let subject = || Subject::Run(run.id);
        let event = numbered(event, number);
        runs::advance(&tx, subject(), &event, &patience, later)
            .await
            .expect("moved");
        // The answer was lost, and the agent says it again.
        runs::advance(&tx, subject(), &event, &patience, later)
            .await
            .expect("known already");
    }
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let run = runs::find(&tx, run.id).await.expect("it is there");
    assert_eq!(run.state.name(), "succeeded");
    assert_eq!(run.ended_at(), Some(NOON + TimeDelta::minutes(4)));
    assert_eq!(run.packages[0].wanted.as_deref(), Some("1.1"));
    let told: Vec<_> = runs::events(&tx, run.id).await.expect("a history");
    let told: Vec<_> = told
        .iter()
        .map(|e| format!("{} {}->{}", e.position, e.event, e.state))
        .collect();
    assert_eq!(
        told,
        [
            "1 downloading->downloading",
            "2 downloaded->staged",
            "3 began->applying",
            "4 finished->succeeded"
        ]
    );
}

/// A policy may go while its run is open: the run keeps its copy and goes on.
#[tokio::test]
async fn a_run_outlives_its_policy() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", Wish::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    let opening = Subject::New(Box::new(Opening {
        instance: instance.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::from_u128(1))),
        origin: Origin {
            target: None,
            policy: Some(policy.clone()),
        },
    }));
    let patience = Patience::default();
    let begun = numbered(RunEvent::Began, 1);
    let run = runs::advance(&tx, opening, &begun, &patience, NOON)
        .await
        .expect("opened");
    policies::delete(&tx, policy.id)
        .await
        .expect("nobody uses it");
    let ended = numbered(RunEvent::Finished, 2);
    runs::advance(&tx, Subject::Run(run.id), &ended, &patience, NOON)
        .await
        .expect("ended");
    let run = runs::find(&tx, run.id).await.expect("it is there");
    assert_eq!(run.state.name(), "succeeded");
    assert_eq!(run.origin.policy, Some(policy));
}

/// The catalogue may have an entry of that name already, of another line of releases.
#[tokio::test]
async fn a_release_whose_name_is_taken_gets_a_profile_all_the_same() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let other = OsSpec {
        profile_name: "debian-lts".into(),
        ..bookworm()
    };
    os_profiles::create(&tx, &other, NOON)
        .await
        .expect("the catalogue's");
    let made = os_profiles::ensure(&tx, &bookworm(), NOON)
        .await
        .expect("the node's");
    assert_eq!(
        made.spec.name,
        "Debian GNU/Linux 12 (bookworm) (debian-12 12)"
    );
    let again = os_profiles::ensure(&tx, &bookworm(), NOON)
        .await
        .expect("the same");
    assert_eq!(made.id, again.id);
}

#[tokio::test]
async fn an_instance_has_one_open_run() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let opened = join_all((0..8).map(|n| {
        let (store, instance) = (store.clone(), instance.clone());
        async move {
            let tx = store.tenant(tenant).await?;
            let event = numbered(RunEvent::Downloading, 1);
            runs::advance(
                &tx,
                attempt(&instance, n),
                &event,
                &Patience::default(),
                NOON,
            )
            .await?;
            tx.commit().await
        }
    }))
    .await;
    assert_eq!(
        opened.iter().filter(|result| result.is_ok()).count(),
        1,
        "{opened:?}"
    );
}

#[tokio::test]
async fn a_decision_reads_the_whole_chain() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", Wish::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    assignments::set(&tx, Scope::Project, policy.id)
        .await
        .expect("assigned");
    let window = SingleSpec {
        name: Name::default(),
        status: ScheduleStatus::OsUpdate,
        start: NOON + TimeDelta::hours(1),
        end: Some(NOON + TimeDelta::hours(2)),
        target: Some(ScheduleTarget::Host(host.id)),
    };
    schedules::create(&tx, &window, NOON)
        .await
        .expect("scheduled");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.provisioned = true;
    nodes::save(&tx, &node).await.expect("saved");

    let at = |now| {
        let (tx, host, node) = (&tx, &host, &node);
        async move {
            let world = decisions::world(tx, host, node, &Horizon::default(), now).await;
            world.expect("a world").decide(now)
        }
    };
    let before = at(NOON).await;
    assert_eq!(before.act.name(), "fetch");
    assert_eq!(
        before.because.to_string(),
        "the next window opens at 2027-01-15T09:00:00Z"
    );
    assert_eq!(at(NOON + TimeDelta::minutes(90)).await.act.name(), "apply");
    assert_eq!(instance.summary.update_status.text, "No Current Update");
}

#[tokio::test]
async fn the_change_log_says_who_did_what() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
    };
    let tx = store
        .tenant_as(tenant, &actor)
        .await
        .expect("a transaction");
    let host = hosts::register(&tx, &registration(1), NOON)
        .await
        .expect("a host");
    hosts::delete(&tx, host.id).await.expect("deleted");
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let changes = changes::of(&tx, "host", host.id.bits())
        .await
        .expect("a log");
    let told: Vec<_> = changes
        .iter()
        .map(|c| (c.operation.as_str(), c.actor.as_deref()))
        .collect();
    assert_eq!(told, [("insert", Some("alice")), ("delete", Some("alice"))]);
    let before = changes[1].before.as_ref().expect("the row before");
    assert_eq!(before["name"], "edge");
}

#[tokio::test]
async fn contacts_are_written_in_batches_and_only_forward() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let gone = evenkeel_domain::id::InstanceId::nth(4_000_000);
    for minutes in [5, 3] {
        let tx = store.fleet().await.expect("a transaction");
        let at = NOON + TimeDelta::minutes(minutes);
        contacts::heard(&tx, vec![(tenant, instance.id, at), (tenant, gone, at)])
            .await
            .expect("noted");
        tx.commit().await.expect("committed");
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let last = contacts::last(&tx, instance.id).await.expect("a time");
    assert_eq!(last, Some(NOON + TimeDelta::minutes(5)));
}
