//! Regions, sites, and hosts at sites.

use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::location::{Metadata, RegionSpec, SiteSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::{Conflict, StoreError, hosts, regions, sites};
use futures_util::future::join_all;

use crate::fixtures::{
    NOON, count, create_node, create_region, create_site, move_to_site, site_change,
    store_with_project, store_with_two_projects,
};

fn region_spec(name: &str, parent: Option<RegionId>) -> RegionSpec {
    RegionSpec {
        name: Name::parse("name", name).expect("a name"),
        parent,
        metadata: Metadata::parse([("tier".to_owned(), "gold".to_owned())]).expect("labels"),
    }
}

#[track_caller]
fn expect_conflict<T: std::fmt::Debug>(result: Result<T, StoreError>) -> Conflict {
    match result {
        Err(StoreError::Conflict(conflict)) => conflict,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_region_reads_as_it_was_written() {
    let (store, tenant) = store_with_project().await;
    let parent = create_region(&store, tenant, "world", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = region_spec("europe", Some(parent.id));
    let europe = regions::create(&tx, &spec, NOON).await.expect("a region");
    assert_eq!(europe.spec, spec);
    let spec = region_spec("europa", None);
    let europe = regions::change(&tx, europe.id, &spec, NOON).await.expect("changed");
    assert_eq!(regions::find(&tx, europe.id).await.expect("found").spec, spec);
    let inside = format!("parentRegion.resourceId = '{}'", parent.id);
    assert_eq!(count(&tx, Resource::Region, &inside).await, 0);
}

#[tokio::test]
async fn a_site_reads_as_it_was_written() {
    let (store, tenant) = store_with_project().await;
    let region = create_region(&store, tenant, "europe", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = SiteSpec {
        name: Name::parse("name", "shop 1").expect("a name"),
        region: Some(region.id),
        latitude: 525_200_000,
        longitude: -134_050_000,
        metadata: Metadata::parse([("kind".to_owned(), "shop".to_owned())]).expect("labels"),
    };
    let site = sites::create(&tx, &spec, NOON).await.expect("a site");
    assert_eq!(site.spec, spec);
    let moved = SiteSpec { region: None, ..spec };
    let site = sites::change(&tx, site.id, &moved, NOON).await.expect("changed");
    assert_eq!(site.spec, moved);
}

#[tokio::test]
async fn a_region_cannot_contain_itself() {
    let (store, tenant) = store_with_project().await;
    let outer = create_region(&store, tenant, "outer", None).await;
    let middle = create_region(&store, tenant, "middle", Some(outer.id)).await;
    let inner = create_region(&store, tenant, "inner", Some(middle.id)).await;
    for parent in [outer.id, middle.id, inner.id] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let moved = regions::change(&tx, outer.id, &region_spec("outer", Some(parent)), NOON).await;
        let Conflict::Cyclic { .. } = expect_conflict(moved) else {
            panic!("outer lies in {parent}");
        };
    }
}

/// Each move is valid alone; together they would form a cycle.
#[tokio::test]
async fn two_concurrent_moves_cannot_create_a_cycle() {
    let (store, tenant) = store_with_project().await;
    let one = create_region(&store, tenant, "one", None).await;
    let other = create_region(&store, tenant, "other", None).await;
    let moves = [(one.id, other.id), (other.id, one.id)].map(|(id, parent)| {
        let store = &store;
        async move {
            let tx = store.tenant(tenant).await?;
            regions::change(&tx, id, &region_spec("moved", Some(parent)), NOON).await?;
            tx.commit().await
        }
    });
    let answers = join_all(moves).await;
    let done = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(done, 1, "{answers:?}");
}

#[tokio::test]
async fn regions_nest_at_most_five_levels() {
    let (store, tenant) = store_with_project().await;
    let mut chain = vec![create_region(&store, tenant, "1", None).await];
    for depth in 2..=5 {
        let parent = chain.last().map(|region| region.id);
        chain.push(create_region(&store, tenant, &depth.to_string(), parent).await);
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let sixth = regions::create(&tx, &region_spec("6", Some(chain[4].id)), NOON).await;
    assert_eq!(
        expect_conflict(sixth).to_string(),
        "region_resource can be nested at most 5 levels deep"
    );
    drop(tx);
    // A move is checked as well: nested regions move along.
    let top = create_region(&store, tenant, "top", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let moved = regions::change(&tx, chain[0].id, &region_spec("1", Some(top.id)), NOON).await;
    assert!(matches!(expect_conflict(moved), Conflict::TooDeep { limit: 5, .. }));
    drop(tx);
    let tx = store.tenant(tenant).await.expect("a transaction");
    regions::change(&tx, chain[1].id, &region_spec("2", Some(top.id)), NOON)
        .await
        .expect("four nested regions");
}

#[tokio::test]
async fn a_location_in_use_cannot_be_deleted() {
    let (store, tenant) = store_with_project().await;
    let outer = create_region(&store, tenant, "outer", None).await;
    let inner = create_region(&store, tenant, "inner", Some(outer.id)).await;
    let site = create_site(&store, tenant, Some(inner.id)).await;
    let (host, _) = create_node(&store, tenant, 1).await;
    move_to_site(&store, tenant, &host, site.id).await;

    for (region, by) in [(outer.id, "a region that lies in it"), (inner.id, "a site")] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let refused = expect_conflict(regions::delete(&tx, region).await);
        let what = "region_resource";
        assert_eq!(refused, Conflict::InUse { what, by });
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = expect_conflict(sites::delete(&tx, site.id).await);
    assert_eq!(refused.to_string(), "site_resource is in use by a host");
    drop(tx);

    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::change(&tx, host.id, &site_change(None), NOON).await.expect("moved away");
    assert_eq!(host.site, None);
    sites::delete(&tx, site.id).await.expect("empty");
    regions::delete(&tx, inner.id).await.expect("empty");
    regions::delete(&tx, outer.id).await.expect("empty");
}

#[tokio::test]
async fn a_location_belongs_to_its_project() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let region = create_region(&store, ours, "ours", None).await;
    let site = create_site(&store, ours, None).await;
    let (host, _) = create_node(&store, theirs, 1).await;
    let dangling = |field| Conflict::MissingReference {
        what: if field == "siteId" { "site_resource" } else { "region_resource" },
        field,
    };

    let tx = store.tenant(theirs).await.expect("a transaction");
    assert!(matches!(regions::find(&tx, region.id).await, Err(StoreError::NotFound { .. })));
    let inside = regions::create(&tx, &region_spec("inside", Some(region.id)), NOON).await;
    assert_eq!(expect_conflict(inside), dangling("parentId"));
    drop(tx);
    let tx = store.tenant(theirs).await.expect("a transaction");
    let spec = SiteSpec { region: Some(region.id), ..SiteSpec::default() };
    let inside = sites::create(&tx, &spec, NOON).await;
    assert_eq!(expect_conflict(inside), dangling("regionId"));
    drop(tx);
    let tx = store.tenant(theirs).await.expect("a transaction");
    let moved = hosts::change(&tx, host.id, &site_change(Some(site.id)), NOON).await;
    assert_eq!(expect_conflict(moved), dangling("siteId"));
    drop(tx);
    let tx = store.tenant(theirs).await.expect("a transaction");
    let nowhere = hosts::change(&tx, host.id, &site_change(Some(SiteId::nth(99))), NOON).await;
    assert_eq!(expect_conflict(nowhere), dangling("siteId"));
}

#[tokio::test]
async fn sites_are_counted_in_all_nested_regions() {
    let (store, tenant) = store_with_project().await;
    let outer = create_region(&store, tenant, "outer", None).await;
    let inner = create_region(&store, tenant, "inner", Some(outer.id)).await;
    let empty = create_region(&store, tenant, "empty", None).await;
    for region in [outer.id, inner.id, inner.id] {
        create_site(&store, tenant, Some(region)).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let counts = regions::count_sites(&tx, &[outer.id, inner.id, empty.id]).await.expect("counts");
    assert_eq!(counts.get(&outer.id), Some(&3));
    assert_eq!(counts.get(&inner.id), Some(&2));
    assert_eq!(counts.get(&empty.id), None);
}
