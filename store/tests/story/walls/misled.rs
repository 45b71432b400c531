//! The program's own scope wrong on purpose: its queries ask for one project while the database shows another one. Then
//! nothing of the asked one is read, and nothing of either is changed.
//!
//! Every function of the store that takes the transaction of a project is tried; those for all projects see all of them
//! by design.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::custom_config::CustomConfig;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{
    CustomConfigId, HostId, JoinTokenId, LocalAccountId, OsId, PolicyId, ProviderId, RegionId,
    RepeatedScheduleId, SingleScheduleId, SiteId,
};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_domain::os::{OsKind, OsProfile, OsSpec};
use evenkeel_domain::place::{Region, Site};
use evenkeel_domain::provider::Provider;
use evenkeel_domain::run::{Failure, FailureKind, Happening, Patience, RunEvent, UpdateRun};
use evenkeel_domain::schedule::{RepeatedSchedule, SingleSchedule};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::decisions::{Horizon, Reading, World, world};
use evenkeel_store::nodes::NodeState;
use evenkeel_store::runs::{Opening, Subject};
use evenkeel_store::schedules::repeated;
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::{fresh_store, misled, rows_of};
use evenkeel_store::{
    Store, StoreError, Tx, assignments, brake, custom_configs, hosts, instances, join_tokens,
    listing, local_accounts, nodes, os_inside, os_profiles, providers, regions, runs, schedules,
    settings, sites,
};

use super::{everything, reads, writes};
use crate::house::{NOON, attempt, bookworm, list, project};

/// What a project has, one of each kind.
pub struct Of {
    pub tenant: TenantId,
    pub host: Host,
    pub instance: Instance,
    pub node: NodeState,
    pub world: World,
    pub run: UpdateRun,
    pub region: Region,
    pub site: Site,
    pub policy: PolicyId,
    pub image: OsProfile,
    /// The image that came from a registry.
    pub edge: OsId,
    pub provider: Provider,
    pub config: CustomConfig,
    pub account: LocalAccount,
    pub single: SingleSchedule,
    pub repeated: RepeatedSchedule,
    pub token: JoinTokenId,
}

/// Fills a project so that every function of the store finds something.
async fn furnished(store: &Store, tenant: TenantId) -> Of {
    everything(store, tenant).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = HostId::from_bits(first(&tx, Resource::Host).await);
    let host = hosts::find(&tx, host).await.expect("a host");
    let instance = instances::find_by_host(&tx, host.id).await;
    let instance = instance.expect("an instance");
    let policy = PolicyId::from_bits(first(&tx, Resource::Policy).await);
    let image = more(&tx, &instance, policy).await;
    let edge = os_inside::default_of(&tx, "edge").await;
    let node = nodes::find(&tx, instance.id).await.expect("a node");
    let look = Reading::Look(NOON);
    let world = world(&tx, &host, &node, &Horizon::default(), look).await;
    let run = runs::find_open(&tx, instance.id).await.expect("answered");
    let tokens = join_tokens::all(&tx).await.expect("tokens");
    let region = RegionId::from_bits(first(&tx, Resource::Region).await);
    let site = SiteId::from_bits(first(&tx, Resource::Site).await);
    let provider = ProviderId::from_bits(first(&tx, Resource::Provider).await);
    let config = CustomConfigId::from_bits(first(&tx, Resource::CustomConfig).await);
    let account = LocalAccountId::from_bits(first(&tx, Resource::LocalAccount).await);
    let single = SingleScheduleId::from_bits(first(&tx, Resource::SingleSchedule).await);
    let again = RepeatedScheduleId::from_bits(first(&tx, Resource::RepeatedSchedule).await);
    let of = Of {
        tenant,
        host,
        instance,
        node,
        world: world.expect("a world"),
        run: run.expect("an open run"),
        region: regions::find(&tx, region).await.expect("a region"),
        site: sites::find(&tx, site).await.expect("a site"),
        policy,
        image,
        edge: edge.expect("answered").expect("an image"),
        provider: providers::find(&tx, provider).await.expect("a provider"),
        config: custom_configs::find(&tx, config)
            .await
            .expect("a configuration"),
        account: local_accounts::find(&tx, account)
            .await
            .expect("an account"),
        single: schedules::find(&tx, single).await.expect("a schedule"),
        repeated: repeated::find(&tx, again).await.expect("a schedule"),
        token: tokens.first().expect("a token").id,
    };
    tx.commit().await.expect("committed");
    of
}

/// The id of the first of a kind.
async fn first(tx: &Tx, resource: Resource) -> u32 {
    let start = listing::From::Offset(0);
    let chosen = listing::page(tx, &list(resource, "", ""), &start, 1).await;
    let ids = chosen.expect("a page").ids;
    *ids.first().expect("one of each kind")
}

/// What [`everything`] leaves out: settings of its own, a policy of the instance itself with a slot, an image, and a run
/// that has no attempt. Gives the image.
async fn more(tx: &Tx, instance: &Instance, policy: PolicyId) -> OsProfile {
    let own = ProjectSettings {
        retention_days: Some(7),
        any_schedule_status: true,
    };
    settings::set(tx, &own).await.expect("set");
    let scope = Scope::Instance(instance.id);
    assignments::assign(tx, scope, policy, NOON)
        .await
        .expect("assigned");
    brake::hold(tx, scope, instance.id, None, NOON)
        .await
        .expect("held");
    let Subject::New(opening) = attempt(instance, 2) else {
        panic!("an attempt is new");
    };
    let sampled = Opening {
        attempt: None,
        ..*opening
    };
    let failed = RunEvent::Failed(Failure {
        kind: FailureKind::Apply,
        reason: "a script failed".into(),
    });
    let (sampled, failed) = (Subject::New(Box::new(sampled)), Happening::of(failed));
    runs::advance(tx, sampled, &failed, &Patience::default(), NOON)
        .await
        .expect("opened and over");
    let image = OsSpec {
        kind: OsKind::Immutable,
        name: "image".into(),
        profile_name: "line".into(),
        image_id: "2".into(),
        ..bookworm()
    };
    let made = os_profiles::create(tx, &image, NOON).await;
    made.expect("an image")
}

/// What only the store itself uses, and what only tests use.
const INNER: [&str; 3] = ["listing/query.rs", "testing", "testing.rs"];

/// Tells how the database would read and nothing of what it holds.
const HARMLESS: &str = "listing::plan";

/// Every function of the store that takes the transaction of a project, such as `hosts::find`.
fn functions() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut folders) = (BTreeSet::new(), vec![source.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = path.strip_prefix(&source).expect("a path below the source");
            if !INNER.iter().any(|inner| file.starts_with(inner)) {
                found.extend(functions_of(&path, &module_of(file)));
            }
        }
    }
    found
}

/// The module by which others know what is in a file: the parts of a module are known by the whole.
fn module_of(file: &Path) -> String {
    if file == Path::new("schedules/repeated.rs") {
        return "schedules::repeated".to_owned();
    }
    let whole: PathBuf = file.iter().take(1).collect();
    whole.with_extension("").display().to_string()
}

fn functions_of(file: &Path, module: &str) -> Vec<String> {
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

/// The project that is asked for, the one that is shown, and what the first one has.
async fn two_projects(store: &Store) -> (TenantId, TenantId, Of) {
    let (asked, shown) = (project(store, "asked").await, project(store, "shown").await);
    let of = Box::pin(furnished(store, asked)).await;
    Box::pin(furnished(store, shown)).await;
    (asked, shown, of)
}

#[tokio::test]
async fn a_program_with_the_wrong_scope_reads_nothing() {
    let store = fresh_store().await;
    let (asked, shown, of) = Box::pin(two_projects(&store)).await;
    let tx = store.tenant(asked).await.expect("a transaction");
    let found = Box::pin(reads::all(&tx, &of)).await;
    tx.commit().await.expect("committed");
    let tx = misled(&store, asked, shown).await;
    let told = Box::pin(reads::all(&tx, &of)).await;
    tx.commit().await.expect("committed");
    assert!(found.len() > 60, "only {} functions", found.len());
    for ((name, found), (_, told)) in found.iter().zip(&told) {
        assert!(reads::is_nothing(told), "{name} tells {told}");
        assert!(
            !reads::is_nothing(found),
            "{name} would find nothing anyway"
        );
    }
}

#[tokio::test]
async fn a_program_with_the_wrong_scope_changes_nothing() {
    let store = fresh_store().await;
    let (asked, shown, of) = Box::pin(two_projects(&store)).await;
    let held = async || (rows_of(&store, asked).await, rows_of(&store, shown).await);
    let before = held().await;
    let tx = store.tenant(asked).await.expect("a transaction");
    let reading = Box::pin(reads::all(&tx, &of)).await;
    tx.commit().await.expect("committed");
    assert!(held().await == before, "a read changed something");

    let reading: BTreeSet<String> = reading.into_iter().map(|(name, _)| name).collect();
    let all = functions();
    let gone: Vec<_> = reading.difference(&all).collect();
    assert!(gone.is_empty(), "{gone:?} are tried and are not there");
    let mut tried = 0;
    for name in all.difference(&reading).filter(|name| *name != HARMLESS) {
        // With the right scope it would be done, or refused by a rule that has seen what is there.
        let tx = store.tenant(asked).await.expect("a transaction");
        let rightful = writes::one(name, &tx, &of).await;
        drop(tx);
        let rightful = rightful.unwrap_or_else(|| panic!("nobody tries {name}: add it here"));
        let rules = matches!(
            rightful,
            Ok(()) | Err(StoreError::Conflict(_) | StoreError::Refused(_))
        );
        assert!(rules, "{name}: {rightful:?}");

        let tx = misled(&store, asked, shown).await;
        let done = writes::one(name, &tx, &of).await;
        if matches!(done, Some(Ok(()))) {
            tx.commit().await.expect("committed");
        }
        assert!(held().await == before, "{name} changed something");
        tried += 1;
    }
    assert!(tried > 50, "only {tried} functions");
}
