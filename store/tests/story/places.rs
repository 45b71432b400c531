//! Regions, sites, and hosts that stand there.

use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::place::{Metadata, RegionSpec, SiteSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, StoreError, hosts, regions, sites};
use futures_util::future::join_all;

use crate::house::{NOON, at, count, node, project, region, site, stands_at};

fn named(name: &str, parent: Option<RegionId>) -> RegionSpec {
    RegionSpec {
        name: Name::parse("name", name).expect("a name"),
        parent,
        metadata: Metadata::parse([("tier".to_owned(), "gold".to_owned())]).expect("labels"),
    }
}

#[track_caller]
fn conflict<T: std::fmt::Debug>(result: Result<T, StoreError>) -> Conflict {
    match result {
        Err(StoreError::Conflict(conflict)) => conflict,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_region_reads_as_it_was_written() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let world = region(&store, tenant, "world", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = named("europe", Some(world.id));
    let europe = regions::create(&tx, &spec, NOON).await.expect("a region");
    assert_eq!(europe.spec, spec);
    let spec = named("europa", None);
    let europe = regions::change(&tx, europe.id, &spec, NOON)
        .await
        .expect("changed");
    assert_eq!(
        regions::find(&tx, europe.id).await.expect("there").spec,
        spec
    );
    let inside = format!("parentRegion.resourceId = '{}'", world.id);
    assert_eq!(count(&tx, Resource::Region, &inside).await, 0);
}

#[tokio::test]
async fn a_site_reads_as_it_was_written() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let region = region(&store, tenant, "europe", None).await;
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
    let moved = SiteSpec {
        region: None,
        ..spec
    };
    let site = sites::change(&tx, site.id, &moved, NOON)
        .await
        .expect("changed");
    assert_eq!(site.spec, moved);
}

#[tokio::test]
async fn no_region_lies_in_itself() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let outer = region(&store, tenant, "outer", None).await;
    let middle = region(&store, tenant, "middle", Some(outer.id)).await;
    let inner = region(&store, tenant, "inner", Some(middle.id)).await;
    for parent in [outer.id, middle.id, inner.id] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let moved = regions::change(&tx, outer.id, &named("outer", Some(parent)), NOON).await;
        let Conflict::InItself { .. } = conflict(moved) else {
            panic!("outer lies in {parent}");
        };
    }
}

/// Two moves that are harmless one by one would make a ring together.
#[tokio::test]
async fn two_regions_that_are_moved_at_once_do_not_come_to_lie_in_each_other() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let one = region(&store, tenant, "one", None).await;
    let other = region(&store, tenant, "other", None).await;
    let moves = [(one.id, other.id), (other.id, one.id)].map(|(id, parent)| {
        let store = &store;
        async move {
            let tx = store.tenant(tenant).await?;
            regions::change(&tx, id, &named("moved", Some(parent)), NOON).await?;
            tx.commit().await
        }
    });
    let answers = join_all(moves).await;
    let done = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(done, 1, "{answers:?}");
}

#[tokio::test]
async fn regions_lie_five_deep_at_most() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut chain = vec![region(&store, tenant, "1", None).await];
    for depth in 2..=5 {
        let parent = chain.last().map(|region| region.id);
        chain.push(region(&store, tenant, &depth.to_string(), parent).await);
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let sixth = regions::create(&tx, &named("6", Some(chain[4].id)), NOON).await;
    assert_eq!(
        conflict(sixth).to_string(),
        "at most 5 of region_resource may lie in each other"
    );
    drop(tx);
    // Not by way of a move either: what lies in it goes with it.
    let top = region(&store, tenant, "top", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let moved = regions::change(&tx, chain[0].id, &named("1", Some(top.id)), NOON).await;
    assert!(matches!(
        conflict(moved),
        Conflict::TooDeep { limit: 5, .. }
    ));
    drop(tx);
    let tx = store.tenant(tenant).await.expect("a transaction");
    regions::change(&tx, chain[1].id, &named("2", Some(top.id)), NOON)
        .await
        .expect("four in one");
}

#[tokio::test]
async fn what_something_lies_in_stays() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let outer = region(&store, tenant, "outer", None).await;
    let inner = region(&store, tenant, "inner", Some(outer.id)).await;
    let site = site(&store, tenant, Some(inner.id)).await;
    let (host, _) = node(&store, tenant, 1).await;
    stands_at(&store, tenant, &host, site.id).await;

    for (region, by) in [(outer.id, "a region that lies in it"), (inner.id, "a site")] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let refused = conflict(regions::delete(&tx, region).await);
        let what = "region_resource";
        assert_eq!(refused, Conflict::InUse { what, by });
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = conflict(sites::delete(&tx, site.id).await);
    assert_eq!(refused.to_string(), "site_resource is in use by a host");
    drop(tx);

    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::change(&tx, host.id, &at(None), NOON)
        .await
        .expect("moved away");
    assert_eq!(host.site, None);
    sites::delete(&tx, site.id).await.expect("empty");
    regions::delete(&tx, inner.id).await.expect("empty");
    regions::delete(&tx, outer.id).await.expect("empty");
}

#[tokio::test]
async fn a_place_is_in_its_own_project() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let region = region(&store, ours, "ours", None).await;
    let site = site(&store, ours, None).await;
    let (host, _) = node(&store, theirs, 1).await;
    let dangling = |field| Conflict::Dangling {
        what: if field == "siteId" {
            "site_resource"
        } else {
            "region_resource"
        },
        field,
    };

    let tx = store.tenant(theirs).await.expect("a transaction");
    assert!(matches!(
        regions::find(&tx, region.id).await,
        Err(StoreError::NotFound { .. })
    ));
    let inside = regions::create(&tx, &named("inside", Some(region.id)), NOON).await;
    assert_eq!(conflict(inside), dangling("parentId"));
    drop(tx);
    let tx = store.tenant(theirs).await.expect("a transaction");
    let spec = SiteSpec {
        region: Some(region.id),
        ..SiteSpec::default()
    };
    let inside = sites::create(&tx, &spec, NOON).await;
    assert_eq!(conflict(inside), dangling("regionId"));
    drop(tx);
    let tx = store.tenant(theirs).await.expect("a transaction");
    let placed = hosts::change(&tx, host.id, &at(Some(site.id)), NOON).await;
    assert_eq!(conflict(placed), dangling("siteId"));
    drop(tx);
    let tx = store.tenant(theirs).await.expect("a transaction");
    let nowhere = hosts::change(&tx, host.id, &at(Some(SiteId::nth(99))), NOON).await;
    assert_eq!(conflict(nowhere), dangling("siteId"));
}

#[tokio::test]
async fn sites_are_counted_in_all_that_lies_in_a_region() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let outer = region(&store, tenant, "outer", None).await;
    let inner = region(&store, tenant, "inner", Some(outer.id)).await;
    let empty = region(&store, tenant, "empty", None).await;
    for region in [outer.id, inner.id, inner.id] {
        site(&store, tenant, Some(region)).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let counts = regions::count_sites(&tx, &[outer.id, inner.id, empty.id])
        .await
        .expect("counts");
    assert_eq!(counts.get(&outer.id), Some(&3));
    assert_eq!(counts.get(&inner.id), Some(&2));
    assert_eq!(counts.get(&empty.id), None);
}
