//! Image series, and which update their nodes show when a series changes.

use evenkeel_domain::id::{InstanceId, OsId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::os::{OsKind, OsSpec};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::image_series::{self, ImageSeries, SeriesUpdate};
use evenkeel_store::nodes::MachineKey;
use evenkeel_store::{Store, nodes, os_profiles, projects};
use futures_util::future::join;

use crate::fixtures::{
    NOON, bookworm, create_node, create_project, execute_sql, remove_deleted_projects,
    store_with_project, store_with_two_projects,
};
use crate::os_details::wait_for_blocked_transaction;

async fn create_image(store: &Store, tenant: TenantId, series: &str, version: &str) -> OsId {
    let architecture = bookworm().architecture;
    create_image_for(store, tenant, (series, version), &architecture).await
}

/// Creates an image for an architecture.
async fn create_image_for(
    store: &Store,
    tenant: TenantId,
    (series, version): (&str, &str),
    architecture: &str,
) -> OsId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = OsSpec {
        kind: OsKind::Immutable,
        name: format!("{series} {version}"),
        architecture: architecture.to_owned(),
        profile_name: series.to_owned(),
        image_id: version.to_owned(),
        ..bookworm()
    };
    let created = os_profiles::create(&tx, &spec, NOON).await.expect("created");
    tx.commit().await.expect("committed");
    created.id
}

/// Creates a node that runs an image.
async fn create_node_with_image(store: &Store, tenant: TenantId, n: u128, os: OsId) -> Instance {
    let (_, instance) = create_node(store, tenant, n).await;
    let moved = format!(
        "UPDATE node_states SET os_id = {} WHERE tenant_id = '{tenant}' AND instance_id = {}",
        os.bits().cast_signed(),
        instance.id.bits().cast_signed()
    );
    execute_sql(store, &moved).await;
    instance
}

async fn list_outdated(store: &Store) -> Vec<ImageSeries> {
    let tx = store.fleet().await.expect("a transaction");
    image_series::list_outdated(&tx, 100).await.expect("outdated series")
}

async fn only_outdated(store: &Store) -> ImageSeries {
    let outdated = list_outdated(store).await;
    assert_eq!(outdated.len(), 1, "{outdated:?}");
    outdated[0].clone()
}

async fn update_nodes(
    store: &Store,
    series: &ImageSeries,
    after: Option<InstanceId>,
    limit: u32,
) -> Option<SeriesUpdate> {
    let tx = store.tenant(series.tenant).await.expect("a transaction");
    let followed = image_series::update_nodes(&tx, series, after, limit).await;
    tx.commit().await.expect("committed");
    followed.expect("followed")
}

async fn mark_followed(store: &Store, series: &ImageSeries) -> bool {
    let tx = store.tenant(series.tenant).await.expect("a transaction");
    let done = image_series::mark_followed(&tx, series).await.expect("recorded");
    tx.commit().await.expect("committed");
    done
}

/// Updates the nodes of all outdated series. Returns how many nodes changed.
async fn update_all(store: &Store) -> u64 {
    let mut changed = 0;
    for series in list_outdated(store).await {
        let followed = update_nodes(store, &series, None, 100).await.expect("no other replica");
        assert_eq!(followed.last, None, "fewer nodes than the limit");
        changed += followed.changed_nodes;
        assert!(mark_followed(store, &series).await);
    }
    changed
}

async fn available_update(store: &Store, tenant: TenantId, instance: &Instance) -> String {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let node = nodes::find(&tx, instance.id).await.expect("a node");
    let briefs = nodes::load_briefs(&tx, &[MachineKey::Host(instance.host)]).await;
    let brief = briefs.expect("read").pop().expect("an answer");
    let (_, brief) = brief.expect("valid").expect("found");
    let digest = nodes::available_digest(&node.os_update_available);
    assert_eq!(brief.available_digest, digest);
    node.os_update_available
}

#[tokio::test]
async fn a_newer_image_is_available_to_all_nodes_of_its_series_and_an_older_one_to_none() {
    let (store, tenant) = store_with_project().await;
    let edge = create_image(&store, tenant, "edge", "3.0.9").await;
    let other = create_image(&store, tenant, "other", "3.0.9").await;
    let mut edges = Vec::new();
    for n in 1..=5 {
        edges.push(create_node_with_image(&store, tenant, n, edge).await);
    }
    let apart = create_node_with_image(&store, tenant, 6, other).await;
    let (_, package_instance) = create_node(&store, tenant, 7).await;
    assert_eq!(update_all(&store).await, 0);

    create_image(&store, tenant, "edge", "3.0.10").await;
    assert_eq!(update_all(&store).await, 5);
    for instance in &edges {
        assert_eq!(available_update(&store, tenant, instance).await, "edge 3.0.10");
    }
    assert_eq!(available_update(&store, tenant, &apart).await, "");
    assert_eq!(available_update(&store, tenant, &package_instance).await, "");

    // Versions compare by number: an image between the two is not the newest, and an older one is
    // never available.
    for older in ["3.0.9.1", "3.0.8", "2.0"] {
        create_image(&store, tenant, "edge", older).await;
        assert_eq!(list_outdated(&store).await.len(), 1, "{older}");
        assert_eq!(update_all(&store).await, 0, "{older}");
    }
    assert_eq!(available_update(&store, tenant, &edges[0]).await, "edge 3.0.10");
}

#[tokio::test]
async fn each_node_gets_the_newest_image_for_its_architecture() {
    let (store, tenant) = store_with_project().await;
    let mut nodes = Vec::new();
    for (n, version, architecture) in [(1, "1", "x86_64"), (2, "1.1", "arm64"), (3, "1.2", "")] {
        let os = create_image_for(&store, tenant, ("edge", version), architecture).await;
        nodes.push(create_node_with_image(&store, tenant, n, os).await);
    }
    let available = async || {
        update_all(&store).await;
        let mut updates = Vec::new();
        for instance in &nodes {
            updates.push(available_update(&store, tenant, instance).await);
        }
        updates
    };
    // An image without an architecture fits all machines.
    assert_eq!(available().await, ["edge 1.2", "edge 1.2", ""]);
    create_image_for(&store, tenant, ("edge", "2"), "amd64").await;
    create_image_for(&store, tenant, ("edge", "3"), "aarch64").await;
    assert_eq!(available().await, ["edge 2", "edge 3", "edge 3"]);
}

#[tokio::test]
async fn an_image_changed_to_another_architecture_is_no_longer_available() {
    let (store, tenant) = store_with_project().await;
    let old = create_image(&store, tenant, "edge", "1").await;
    let new = create_image(&store, tenant, "edge", "2").await;
    let instance = create_node_with_image(&store, tenant, 1, old).await;
    assert_eq!(update_all(&store).await, 1);
    for (architecture, changed, newest) in [("arm64", 1, ""), ("arm64", 0, ""), ("", 1, "edge 2")] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut spec = os_profiles::find(&tx, new).await.expect("an image").spec;
        let is_another = spec.architecture != architecture;
        spec.architecture = architecture.to_owned();
        let result = os_profiles::change(&tx, new, &spec, NOON).await;
        tx.commit().await.expect("committed");
        result.expect("changed");
        assert_eq!(list_outdated(&store).await.len(), usize::from(is_another));
        assert_eq!(update_all(&store).await, changed, "{architecture}");
        assert_eq!(available_update(&store, tenant, &instance).await, newest);
    }
}

#[tokio::test]
async fn nodes_of_a_series_are_updated_in_batches() {
    let (store, tenant) = store_with_project().await;
    let old = create_image(&store, tenant, "edge", "1").await;
    let mut nodes = Vec::new();
    for n in 1..=5 {
        nodes.push(create_node_with_image(&store, tenant, n, old).await);
    }
    nodes.sort_by_key(|instance| instance.id.bits().cast_signed());
    create_image(&store, tenant, "edge", "2").await;
    let series = only_outdated(&store).await;
    let (mut after, mut pieces) = (None, Vec::new());
    loop {
        let followed = update_nodes(&store, &series, after, 2).await.expect("no other replica");
        pieces.push((followed.checked_nodes, followed.changed_nodes));
        after = followed.last;
        if after.is_none() {
            break;
        }
        let expected = nodes[..pieces.len() * 2].last().map(|node| node.id);
        assert_eq!(after, expected, "in the order of the database");
    }
    assert_eq!(pieces, [(2, 2), (2, 2), (1, 1)]);
    assert_eq!(list_outdated(&store).await.len(), 1, "it is not marked as followed");
    // Unchanged nodes are not written again.
    let again = update_nodes(&store, &series, None, 5).await.expect("no other replica");
    assert_eq!((again.checked_nodes, again.changed_nodes), (5, 0));
    let rest = update_nodes(&store, &series, again.last, 5).await.expect("no other replica");
    assert_eq!((rest.checked_nodes, rest.changed_nodes, rest.last), (0, 0, None));
    assert!(mark_followed(&store, &series).await);
    assert!(!mark_followed(&store, &series).await, "it is already marked");
    assert_eq!(list_outdated(&store).await, []);
}

#[tokio::test]
async fn a_series_that_changes_while_it_is_followed_is_outdated_again() {
    let (store, tenant) = store_with_project().await;
    let old = create_image(&store, tenant, "edge", "1").await;
    let instance = create_node_with_image(&store, tenant, 1, old).await;
    let first = only_outdated(&store).await;
    update_nodes(&store, &first, None, 100).await.expect("no other replica");
    create_image(&store, tenant, "edge", "2").await;
    assert!(mark_followed(&store, &first).await);
    let second = only_outdated(&store).await;
    assert!(second.version > first.version);
    assert!(!mark_followed(&store, &first).await, "an older version of the series");
    assert_eq!(update_all(&store).await, 1);
    assert_eq!(available_update(&store, tenant, &instance).await, "edge 2");
    assert_eq!(list_outdated(&store).await, []);
}

#[tokio::test]
async fn two_replicas_follow_different_series() {
    let (store, tenant) = store_with_project().await;
    create_image(&store, tenant, "edge", "1").await;
    create_image(&store, tenant, "other", "1").await;
    let theirs = create_project(&store, "theirs").await;
    create_image(&store, theirs, "edge", "1").await;
    let outdated = list_outdated(&store).await;
    assert_eq!(outdated.len(), 3);
    let (locked, free): (Vec<_>, Vec<_>) = outdated
        .into_iter()
        .partition(|series| series.tenant == tenant && series.profile_name == "edge");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let first = image_series::update_nodes(&tx, &locked[0], None, 100).await;
    assert!(first.expect("followed").is_some());
    assert_eq!(update_nodes(&store, &locked[0], None, 100).await, None);
    for series in &free {
        assert!(update_nodes(&store, series, None, 100).await.is_some(), "{series:?}");
    }
    tx.commit().await.expect("committed");
    assert!(update_nodes(&store, &locked[0], None, 100).await.is_some());
}

#[tokio::test]
async fn a_deleted_image_is_no_longer_available() {
    let (store, tenant) = store_with_project().await;
    let old = create_image(&store, tenant, "edge", "1").await;
    let new = create_image(&store, tenant, "edge", "2").await;
    let lonely = create_image(&store, tenant, "other", "1").await;
    let instance = create_node_with_image(&store, tenant, 1, old).await;
    assert_eq!(update_all(&store).await, 1);
    let delete = async |os| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        os_profiles::delete(&tx, os).await.expect("deleted");
        tx.commit().await.expect("committed");
    };
    delete(new).await;
    assert_eq!(update_all(&store).await, 1);
    assert_eq!(available_update(&store, tenant, &instance).await, "");
    // The last image of a series that no node runs.
    delete(lonely).await;
    assert_eq!(only_outdated(&store).await.profile_name, "other");
    assert_eq!(update_all(&store).await, 0);
    assert_eq!(list_outdated(&store).await, []);
}

#[tokio::test]
async fn a_profile_updated_by_packages_is_no_series() {
    let (store, tenant) = store_with_project().await;
    create_node(&store, tenant, 1).await;
    assert_eq!(list_outdated(&store).await, []);
}

#[tokio::test]
async fn series_of_a_project_are_deleted_with_it() {
    let (store, ours, theirs) = store_with_two_projects().await;
    for tenant in [ours, theirs] {
        let os = create_image(&store, tenant, "edge", "1").await;
        create_node_with_image(&store, tenant, 1, os).await;
    }
    update_all(&store).await;
    create_image(&store, ours, "edge", "2").await;
    let series = only_outdated(&store).await;
    let tx = store.fleet().await.expect("a transaction");
    projects::delete(&tx, ours, true, NOON).await.expect("deleted");
    tx.commit().await.expect("committed");
    remove_deleted_projects(&store, 100).await;
    assert_eq!(list_outdated(&store).await, []);
    // A replica that listed the series before has nothing to do.
    let followed = update_nodes(&store, &series, None, 100).await.expect("no other replica");
    assert_eq!((followed.checked_nodes, followed.last), (0, None));
    assert!(!mark_followed(&store, &series).await);
    create_image(&store, theirs, "edge", "2").await;
    assert_eq!(update_all(&store).await, 1, "the other project stays");
}

#[tokio::test]
async fn the_available_update_is_computed_after_the_row_is_locked() {
    let (store, tenant) = store_with_project().await;
    let old = create_image(&store, tenant, "edge", "1").await;
    let instance = create_node_with_image(&store, tenant, 1, old).await;
    create_image(&store, tenant, "edge", "2").await;
    assert_eq!(update_all(&store).await, 1);
    create_image(&store, tenant, "edge", "1.5").await;
    let series = only_outdated(&store).await;

    // A concurrent writer saves an update computed from older images while the series is followed.
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, instance.host).await.expect("locked");
    node.os_update_available = "edge 1.5".to_owned();
    nodes::save(&tx, &node).await.expect("saved");
    let written = async {
        wait_for_blocked_transaction(&store).await;
        tx.commit().await.expect("committed");
    };
    let (followed, ()) = join(update_nodes(&store, &series, None, 100), written).await;
    assert_eq!(followed.expect("no other replica").changed_nodes, 1);
    assert_eq!(available_update(&store, tenant, &instance).await, "edge 2");
}
