//! A wrong tenant scope on purpose: the queries filter by one project while row-level security
//! shows another one. Then nothing of the queried project is read, and nothing of either project is
//! changed.
//!
//! Every function of the store that takes a project transaction is called. Functions for the whole
//! fleet see all projects by design.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::custom_config::CustomConfig;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{
    CustomConfigId, HostId, JoinTokenId, LocalAccountId, NotificationTargetId, OsId, PolicyId,
    ProviderId, RegionId, RepeatedScheduleId, SingleScheduleId, SiteId,
};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_domain::location::{Region, Site};
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec};
use evenkeel_domain::provider::Provider;
use evenkeel_domain::run::{
    Failure, FailureKind, RunEvent, RunEventRecord, RunTimeouts, UpdateRun,
};
use evenkeel_domain::schedule::{RepeatedSchedule, SingleSchedule};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::changes::{ChangeFilter, ChangeId};
use evenkeel_store::decisions::{DecisionInput, PlanningLimits, ReadMode, load_decision_input};
use evenkeel_store::nodes::NodeState;
use evenkeel_store::runs::{RunOpening, Subject};
use evenkeel_store::schedules::repeated;
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::{fresh_store, tenant_rows, wrong_tenant};
use evenkeel_store::{
    Store, StoreError, Tx, assignments, changes, custom_configs, hosts, instances, join_tokens,
    limit_usage, listing, local_accounts, nodes, notification_targets, notifications, os_details,
    os_profiles, providers, regions, runs, schedules, settings, sites,
};
use uuid::Uuid;

use super::{create_everything, reads, writes};
use crate::fixtures::{NOON, bookworm, create_project, new_attempt, parse_listing};

/// Resources of a project, one of each kind.
pub struct ProjectData {
    pub tenant: TenantId,
    pub host: Host,
    pub instance: Instance,
    pub node: NodeState,
    pub input: DecisionInput,
    pub run: UpdateRun,
    pub region: Region,
    pub site: Site,
    pub policy: PolicyId,
    pub image: OsProfile,
    /// The image imported from a registry.
    pub edge: OsId,
    pub provider: Provider,
    pub config: CustomConfig,
    pub account: LocalAccount,
    pub single: SingleSchedule,
    pub repeated: RepeatedSchedule,
    pub token: JoinTokenId,
    pub target: NotificationTargetId,
    pub delivery: Uuid,
    pub change: ChangeId,
}

/// Fills a project so that every function of the store finds something.
async fn seed_project_data(store: &Store, tenant: TenantId) -> ProjectData {
    create_everything(store, tenant).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = HostId::from_bits(first_id(&tx, Resource::Host).await);
    let host = hosts::find(&tx, host).await.expect("a host");
    let instance = instances::find_by_host(&tx, host.id).await;
    let instance = instance.expect("an instance");
    let policy = PolicyId::from_bits(first_id(&tx, Resource::Policy).await);
    let image = create_more(&tx, &instance, policy).await;
    let edge = os_details::find_default(&tx, "edge").await;
    let node = nodes::find(&tx, instance.id).await.expect("a node");
    let look = ReadMode::Preview(NOON);
    let input = load_decision_input(&tx, &host, &node, &PlanningLimits::default(), look).await;
    let run = runs::find_open(&tx, instance.id).await.expect("answered");
    let tokens = join_tokens::all(&tx).await.expect("tokens");
    let targets = notification_targets::all(&tx).await.expect("targets");
    let deliveries = notifications::list(&tx, None).await.expect("deliveries");
    let region = RegionId::from_bits(first_id(&tx, Resource::Region).await);
    let site = SiteId::from_bits(first_id(&tx, Resource::Site).await);
    let provider = ProviderId::from_bits(first_id(&tx, Resource::Provider).await);
    let config = CustomConfigId::from_bits(first_id(&tx, Resource::CustomConfig).await);
    let account = LocalAccountId::from_bits(first_id(&tx, Resource::LocalAccount).await);
    let single = SingleScheduleId::from_bits(first_id(&tx, Resource::SingleSchedule).await);
    let again = RepeatedScheduleId::from_bits(first_id(&tx, Resource::RepeatedSchedule).await);
    let data = ProjectData {
        tenant,
        host,
        instance,
        node,
        input: input.expect("a decision input"),
        run: run.expect("an open run"),
        region: regions::find(&tx, region).await.expect("a region"),
        site: sites::find(&tx, site).await.expect("a site"),
        policy,
        image,
        edge: edge.expect("answered").expect("an image"),
        provider: providers::find(&tx, provider).await.expect("a provider"),
        config: custom_configs::find(&tx, config).await.expect("a configuration"),
        account: local_accounts::find(&tx, account).await.expect("an account"),
        single: schedules::find(&tx, single).await.expect("a schedule"),
        repeated: repeated::find(&tx, again).await.expect("a schedule"),
        token: tokens.first().expect("a token").id,
        target: targets.first().expect("a target").id,
        delivery: deliveries.first().expect("a delivery").id,
        change: last_change(&tx).await,
    };
    tx.commit().await.expect("committed");
    data
}

/// Id of the newest change of a project.
async fn last_change(tx: &Tx) -> ChangeId {
    let all = ChangeFilter { with_server: true, ..ChangeFilter::default() };
    let changes = changes::list(tx, &all, None, 1).await.expect("changes");
    changes.first().expect("a change").id
}

/// Id of the first resource of a kind.
async fn first_id(tx: &Tx, resource: Resource) -> u32 {
    let start = listing::PageStart::Offset(0);
    let chosen = listing::page(tx, &parse_listing(resource, "", ""), &start, 1).await;
    let ids = chosen.expect("a page").ids;
    *ids.first().expect("one of each kind")
}

/// Creates what [`create_everything`] leaves out: project settings, a policy of the instance with a
/// slot, an image, and a run without an attempt. Returns the image.
async fn create_more(tx: &Tx, instance: &Instance, policy: PolicyId) -> OsProfile {
    let own = ProjectSettings { retention_days: Some(7), any_schedule_status: true };
    settings::set(tx, &own).await.expect("set");
    let scope = Scope::Instance(instance.id);
    assignments::assign(tx, scope, policy, NOON).await.expect("assigned");
    limit_usage::take_slot(tx, scope, instance.id, None, NOON).await.expect("slot taken");
    let Subject::New(opening) = new_attempt(instance, 2) else {
        panic!("expected a new attempt");
    };
    let sampled = RunOpening { attempt: None, ..*opening };
    let failed =
        RunEvent::Failed(Failure { kind: FailureKind::Apply, reason: "a script failed".into() });
    let (sampled, failed) = (Subject::New(Box::new(sampled)), RunEventRecord::from_event(failed));
    runs::advance(tx, sampled, &failed, &RunTimeouts::default(), NOON)
        .await
        .expect("opened and ended");
    let image = OsSpec {
        kind: OsKind::Immutable,
        name: "image".into(),
        profile_name: "line".into(),
        image_id: "2".into(),
        ..bookworm()
    };
    let created = os_profiles::create(tx, &image, NOON).await;
    created.expect("an image")
}

/// Files that only the store itself or only tests use.
const EXCLUDED_SOURCES: [&str; 3] = ["listing/query.rs", "testing", "testing.rs"];

/// Returns a query plan and no data.
const EXPLAIN_FUNCTION: &str = "listing::explain";

/// All functions of the store that take a project transaction, such as `hosts::find`.
fn list_functions() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut functions, mut folders) = (BTreeSet::new(), vec![source.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = path.strip_prefix(&source).expect("a path below the source");
            if !EXCLUDED_SOURCES.iter().any(|inner| file.starts_with(inner)) {
                functions.extend(functions_in(&path, &module_name(file)));
            }
        }
    }
    functions
}

/// Public module of a source file: the first component of its path.
fn module_name(file: &Path) -> String {
    if file == Path::new("schedules/repeated.rs") {
        return "schedules::repeated".to_owned();
    }
    let module: PathBuf = file.iter().take(1).collect();
    module.with_extension("").display().to_string()
}

fn functions_in(file: &Path, module: &str) -> Vec<String> {
    let text = fs::read_to_string(file).expect("a text");
    let after = text.split("pub async fn ").skip(1);
    let functions = after.filter_map(|rest| {
        let (name, rest) = rest.split_once('(')?;
        let (parameters, _) = rest.split_once(')')?;
        let takes_a_project = parameters.contains("tx: &Tx");
        takes_a_project.then(|| format!("{module}::{name}"))
    });
    functions.collect()
}

/// The queried project, the visible project, and the resources of the queried one.
async fn seed_two_projects(store: &Store) -> (TenantId, TenantId, ProjectData) {
    let (queried, visible) =
        (create_project(store, "queried").await, create_project(store, "visible").await);
    let data = Box::pin(seed_project_data(store, queried)).await;
    Box::pin(seed_project_data(store, visible)).await;
    (queried, visible, data)
}

#[tokio::test]
async fn a_wrong_tenant_scope_reads_nothing() {
    let store = fresh_store().await;
    let (queried, visible, data) = Box::pin(seed_two_projects(&store)).await;
    let tx = store.tenant(queried).await.expect("a transaction");
    let correct = Box::pin(reads::call_reads(&tx, &data)).await;
    tx.commit().await.expect("committed");
    let tx = wrong_tenant(&store, queried, visible).await;
    let wrong = Box::pin(reads::call_reads(&tx, &data)).await;
    tx.commit().await.expect("committed");
    assert!(correct.len() > 60, "only {} functions", correct.len());
    for ((name, correct), (_, wrong)) in correct.iter().zip(&wrong) {
        assert!(reads::is_empty_result(wrong), "{name} returns {wrong}");
        assert!(!reads::is_empty_result(correct), "{name} finds nothing in any case");
    }
}

#[tokio::test]
async fn a_wrong_tenant_scope_changes_nothing() {
    let store = fresh_store().await;
    let (queried, visible, data) = Box::pin(seed_two_projects(&store)).await;
    let stored_rows =
        async || (tenant_rows(&store, queried).await, tenant_rows(&store, visible).await);
    let before = stored_rows().await;
    let tx = store.tenant(queried).await.expect("a transaction");
    let reading = Box::pin(reads::call_reads(&tx, &data)).await;
    tx.commit().await.expect("committed");
    assert!(stored_rows().await == before, "a read changed something");

    let reading: BTreeSet<String> = reading.into_iter().map(|(name, _)| name).collect();
    let all = list_functions();
    let missing: Vec<_> = reading.difference(&all).collect();
    assert!(missing.is_empty(), "{missing:?} are called here and do not exist");
    let mut called = 0;
    for name in all.difference(&reading).filter(|name| *name != EXPLAIN_FUNCTION) {
        // With the correct scope the write succeeds, or a rule rejects it that has seen the
        // resource.
        let tx = store.tenant(queried).await.expect("a transaction");
        let correct_result = writes::call_write(name, &tx, &data).await;
        drop(tx);
        let correct_result =
            correct_result.unwrap_or_else(|| panic!("{name} is not called here: add it"));
        let rules = matches!(
            correct_result,
            Ok(()) | Err(StoreError::Conflict(_) | StoreError::Refused(_))
        );
        assert!(rules, "{name}: {correct_result:?}");

        let tx = wrong_tenant(&store, queried, visible).await;
        let done = writes::call_write(name, &tx, &data).await;
        if matches!(done, Some(Ok(()))) {
            tx.commit().await.expect("committed");
        }
        assert!(stored_rows().await == before, "{name} changed something");
        called += 1;
    }
    assert!(called > 50, "only {called} functions");
}
