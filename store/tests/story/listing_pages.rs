//! Pages are parts of their list, wherever they begin and however they are read.

use evenkeel_domain::filter::Resource;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::testing::fresh_store;

use crate::house::list;
use crate::listing_world::world;

/// Lists of everything there is: one that is tallied, one that is counted, one that is looked through.
const EVERYTHING: [&str; 3] = ["", "NOT name == 'nothing'", "NOT name = 'nothing'"];

/// Orders with much that is alike and much that is not there.
const ORDERS: [(Resource, &[&str]); 3] = [
    (
        Resource::Host,
        &[
            "",
            "resourceId desc",
            "name",
            "serialNumber, name desc",
            "memoryBytes desc",
            "bmcKind, createdAt desc",
        ],
    ),
    (
        Resource::Run,
        &["", "endTime desc", "status, name desc", "startTime"],
    ),
    (Resource::Site, &["name desc", "siteLat"]),
];

/// Reads pages from everywhere and holds each against the same part of the list.
async fn pages_are_parts(tx: &Tx, listing: &Listing, whole: &[u32], what: &str) {
    for offset in 0..=whole.len() + 2 {
        let rest = whole.get(offset..).unwrap_or_default();
        for limit in [3, 50] {
            let from = listing::From::Offset(offset as u64);
            let chosen = listing::page(tx, listing, &from, limit as u64).await;
            let chosen = chosen.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let (wanted, behind) = rest.split_at(rest.len().min(limit));
            assert_eq!(chosen.ids, wanted, "{what}: {limit} from {offset}");
            assert_eq!(chosen.total, whole.len() as u64, "{what}");
            let Some(key) = chosen.next else {
                assert!(behind.is_empty(), "{what}: {limit} from {offset}");
                continue;
            };
            let from = listing::From::After(key);
            let next = listing::page(tx, listing, &from, 3).await;
            let next = next.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let wanted = &behind[..behind.len().min(3)];
            assert_eq!(next.ids, wanted, "{what}: after {limit} from {offset}");
            assert_eq!(next.total, whole.len() as u64, "{what}");
            assert_eq!(next.next.is_none(), behind.len() <= 3, "{what}");
        }
    }
}

#[tokio::test]
async fn a_page_is_the_same_part_of_its_list_from_either_end() {
    let store = fresh_store().await;
    let (tenant, model) = world(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for (resource, orders) in ORDERS {
        for order in orders {
            for filter in EVERYTHING {
                let listing = list(resource, filter, order);
                let whole = model.list(resource, listing.filter.as_ref(), &listing.order);
                assert!(whole.len() > 10, "{resource:?}");
                let what = format!("{resource:?} {filter} by {order}");
                pages_are_parts(&tx, &listing, &whole, &what).await;
            }
        }
    }
}

/// A part of a text that nothing has, and a page behind the end of what has one.
#[tokio::test]
async fn an_empty_page_knows_how_long_its_list_is() {
    let store = fresh_store().await;
    let (tenant, model) = world(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for filter in ["name = 'no such name'", "name = 'edge'"] {
        let listing = list(Resource::Host, filter, "name");
        let whole = model.list(Resource::Host, listing.filter.as_ref(), &listing.order);
        let from = listing::From::Offset(100);
        let chosen = listing::page(&tx, &listing, &from, 10).await;
        let chosen = chosen.expect("a page");
        assert_eq!((chosen.ids.len(), chosen.next), (0, None));
        assert_eq!(chosen.total, whole.len() as u64, "{filter}");
    }
}
