//! Pages are parts of their list, wherever they begin and however they are read.

use evenkeel_domain::filter::Resource;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::testing::fresh_store;

use crate::fixtures::parse_listing;
use crate::listing_fixture::create_listing_project;

/// Filters that match everything: counted by tally, by an index and by a wide search.
const MATCH_ALL_FILTERS: [&str; 3] = ["", "NOT name == 'nothing'", "NOT name = 'nothing'"];

/// Orders with many equal and many missing values.
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
    (Resource::Run, &["", "endTime desc", "status, name desc", "startTime"]),
    (Resource::Site, &["name desc", "siteLat"]),
];

/// Reads pages from every offset and compares each with the same part of the list.
async fn assert_pages_are_parts(tx: &Tx, listing: &Listing, all_ids: &[u32], label: &str) {
    for offset in 0..=all_ids.len() + 2 {
        let rest = all_ids.get(offset..).unwrap_or_default();
        for limit in [3, 50] {
            let from = listing::PageStart::Offset(offset as u64);
            let chosen = listing::page(tx, listing, &from, limit as u64).await;
            let chosen = chosen.unwrap_or_else(|error| panic!("{label}: {error:?}"));
            let (expected, behind) = rest.split_at(rest.len().min(limit));
            assert_eq!(chosen.ids, expected, "{label}: {limit} from {offset}");
            assert_eq!(chosen.total, all_ids.len() as u64, "{label}");
            let Some(key) = chosen.next else {
                assert!(behind.is_empty(), "{label}: {limit} from {offset}");
                continue;
            };
            let from = listing::PageStart::After(key);
            let next = listing::page(tx, listing, &from, 3).await;
            let next = next.unwrap_or_else(|error| panic!("{label}: {error:?}"));
            let expected = &behind[..behind.len().min(3)];
            assert_eq!(next.ids, expected, "{label}: after {limit} from {offset}");
            assert_eq!(next.total, all_ids.len() as u64, "{label}");
            assert_eq!(next.next.is_none(), behind.len() <= 3, "{label}");
        }
    }
}

#[tokio::test]
async fn a_page_is_the_same_part_of_its_list_from_either_end() {
    let store = fresh_store().await;
    let (tenant, oracle) = create_listing_project(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for (resource, orders) in ORDERS {
        for order in orders {
            for filter in MATCH_ALL_FILTERS {
                let listing = parse_listing(resource, filter, order);
                let all_ids = oracle.list(resource, listing.filter.as_ref(), &listing.order);
                assert!(all_ids.len() > 10, "{resource:?}");
                let label = format!("{resource:?} {filter} by {order}");
                assert_pages_are_parts(&tx, &listing, &all_ids, &label).await;
            }
        }
    }
}

/// A search without a match, and a page after the end of a list.
#[tokio::test]
async fn an_empty_page_has_the_total_of_its_list() {
    let store = fresh_store().await;
    let (tenant, oracle) = create_listing_project(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for filter in ["name = 'no such name'", "name = 'edge'"] {
        let listing = parse_listing(Resource::Host, filter, "name");
        let all_ids = oracle.list(Resource::Host, listing.filter.as_ref(), &listing.order);
        let from = listing::PageStart::Offset(100);
        let chosen = listing::page(&tx, &listing, &from, 10).await;
        let chosen = chosen.expect("a page");
        assert_eq!((chosen.ids.len(), chosen.next), (0, None));
        assert_eq!(chosen.total, all_ids.len() as u64, "{filter}");
    }
}
