//! Lists: all fields and edges, filters of clients, pages, page tokens and query plans.

use evenkeel_domain::filter::{
    Comparison, Edge, FieldCondition, FieldKind, FieldTest, Filter, FilterField, LabelCondition,
    OrderKey, Pattern, Resource, VersionNumbers,
};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::listing::{self, Listing, PageKey};
use evenkeel_store::testing::counting_store;
use evenkeel_store::testing::fill::{self, ProjectSize};
use evenkeel_store::{Conflict, Store, StoreError, Tx};

use crate::fixtures::{NOON, count, create_node, create_region, parse_listing, store_with_project};
use crate::listing_fixture::LISTED_RESOURCES;

/// Every condition that a field of this kind can have.
fn conditions(kind: FieldKind) -> Vec<FieldCondition> {
    let text = || "a_%\\".to_owned();
    let pattern = || Pattern::new([text(), text()]).expect("a pattern");
    let compared = |f: fn(Comparison) -> FieldCondition| Comparison::ALL.iter().map(move |c| f(*c));
    let mut conditions = vec![FieldCondition::Unset];
    match kind {
        FieldKind::Id(prefix) => conditions.extend([
            FieldCondition::Contains(Pattern::new(["a1".to_owned()]).expect("a pattern")),
            FieldCondition::Exactly(format!("{prefix}-0a1b2c3d")),
            FieldCondition::Not(format!("{prefix}-0a1b2c3d")),
            FieldCondition::Exactly(text()),
        ]),
        FieldKind::Text => conditions.extend([
            FieldCondition::Contains(pattern()),
            FieldCondition::Exactly(text()),
            FieldCondition::Not(text()),
            FieldCondition::Exactly("01234567-89ab-cdef-0123-456789abcdef".to_owned()),
        ]),
        FieldKind::Version => {
            let version = VersionNumbers::parse("0.10.2").expect("a version");
            conditions.extend([
                FieldCondition::Contains(pattern()),
                FieldCondition::Exactly(text()),
                FieldCondition::Not(text()),
            ]);
            let all = Comparison::ALL.iter();
            conditions.extend(all.map(|c| FieldCondition::Version(*c, version.clone())));
        }
        FieldKind::Enumeration(values) => {
            let both =
                |name: &&'static str| [FieldCondition::Is(name), FieldCondition::IsNot(name)];
            conditions.extend(values.names.iter().flat_map(both));
        }
        FieldKind::Number => conditions.extend(compared(|c| FieldCondition::Number(c, i64::MAX))),
        FieldKind::Bool => conditions.extend([true, false].map(FieldCondition::Bool)),
        FieldKind::UnixSeconds | FieldKind::Rfc3339Time => {
            conditions.extend(compared(|c| FieldCondition::Time(c, NOON)));
        }
    }
    conditions
}

/// Every filter on the resource at the end of a path.
fn all_filters(path: &[&'static Edge], end: Resource) -> Vec<Filter> {
    let field_filters = |field: &'static FilterField| {
        conditions(field.kind)
            .into_iter()
            .map(move |condition| Filter::Test(FieldTest { path: path.to_vec(), field, condition }))
    };
    let mut filters: Vec<_> = end.fields().iter().flat_map(field_filters).collect();
    if !path.is_empty() {
        filters.push(Filter::Exists(path.to_vec()));
    }
    if end.has_labels() {
        let value = || "ulm".to_owned();
        let label_conditions =
            [LabelCondition::Present, LabelCondition::Is(value()), LabelCondition::IsNot(value())];
        filters.extend(label_conditions.map(|condition| Filter::Label {
            path: path.to_vec(),
            key: "city".to_owned(),
            condition,
        }));
    }
    filters
}

/// Fails unless the database accepts all filters, several in one statement.
async fn assert_accepted(tx: &Tx, resource: Resource, filters: Vec<Filter>) {
    for batch in filters.chunks(20) {
        let turned = batch.iter().cloned().map(|q| Filter::Not(Box::new(q)));
        let all = batch.iter().cloned().chain(turned).collect();
        let listing =
            Listing { resource, filter: Some(Filter::Any(all)), within: None, order: Vec::new() };
        let answer = listing::count(tx, &listing).await;
        assert!(answer.is_ok(), "{:?}: {answer:?}", listing.filter);
    }
}

#[tokio::test]
async fn every_field_and_edge_is_accepted_by_the_database() {
    let (store, tenant) = store_with_project().await;
    create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for resource in LISTED_RESOURCES {
        assert_accepted(&tx, *resource, all_filters(&[], *resource)).await;
        for edge in resource.edges() {
            assert_accepted(&tx, *resource, all_filters(&[edge], edge.to)).await;
            for next in edge.to.edges() {
                assert_accepted(&tx, *resource, all_filters(&[edge, next], next.to)).await;
            }
        }
    }
}

#[tokio::test]
async fn every_field_orders_up_and_down() {
    let (store, tenant) = store_with_project().await;
    create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for resource in LISTED_RESOURCES {
        for field in resource.fields().iter().chain(resource.references()) {
            for descending in [false, true] {
                let listing = Listing {
                    resource: *resource,
                    filter: None,
                    within: None,
                    order: vec![OrderKey { field, descending }],
                };
                let chosen = listing::page(&tx, &listing, &listing::PageStart::Offset(0), 10).await;
                assert!(chosen.is_ok(), "{resource:?} by {}: {chosen:?}", field.name);
            }
        }
    }
}

/// Filters that EIM's clients send.
const CLIENT_FILTERS: &[(Resource, &str)] = &[
    (Resource::Host, r#"name="X""#),
    (Resource::Host, "serialNumber='S' AND uuid='U'"),
    (Resource::Host, "hostStatus='onboarded'"),
    (Resource::Host, "hostStatus=''"),
    (Resource::Region, "resource_id='region-00000000'"),
    (Resource::Region, "parent_region.resource_id='region-00000000'"),
    (Resource::Region, "NOT has(parent_region)"),
    (
        Resource::Site,
        "region.resource_id='region-00000000' OR region.parent_region.resource_id='region-00000000' \
         OR region.parent_region.parent_region.resource_id='region-00000000' \
         OR region.parent_region.parent_region.parent_region.resource_id='region-00000000'",
    ),
    (Resource::Host, "site.resourceId='site-00000000' OR site.resourceId='site-00000001'"),
    (
        Resource::Host,
        "(currentState=HOST_STATE_ONBOARDED AND has(instance) AND instance.currentState=INSTANCE_STATE_RUNNING)",
    ),
    (Resource::Host, "(currentState=HOST_STATE_ONBOARDED AND NOT has(instance))"),
    (
        Resource::Host,
        r#"(name="t" OR uuid="t" OR serialNumber="t" OR resourceId="t" OR note="t" OR site.name="t" OR instance.os.name="t")"#,
    ),
    (Resource::Host, r#"(instance.os.profileName="p1" OR instance.os.profileName="p2")"#),
    (Resource::Host, "NOT has(instance.workloadMembers)"),
    (Resource::Site, r#"metadata = '{"key":"city","value":"ulm"}'"#),
    (Resource::Run, r#"instance.resourceId="inst-00000000""#),
    (Resource::Instance, "runtimePackages=''"),
    (Resource::Policy, "updateSources='deb'"),
    (
        Resource::Instance,
        r#"has(localaccount) AND localaccount.resourceId="localaccount-00000000""#,
    ),
];

#[tokio::test]
async fn filters_of_clients_are_answered() {
    let (store, tenant) = store_with_project().await;
    create_region(&store, tenant, "europe", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (resource, filter) in CLIENT_FILTERS {
        count(&tx, *resource, filter).await;
    }
    assert_eq!(count(&tx, Resource::Region, "NOT has(parent_region)").await, 1);
}

/// One statement counts and one finds; a search for a part of a text does both in one.
#[tokio::test]
async fn a_page_takes_as_many_statements_at_any_length() {
    let (store, tenant) = store_with_project().await;
    for n in 0..5 {
        create_region(&store, tenant, &format!("region {n}"), None).await;
    }
    let (counted, sent) = counting_store(&store);
    let tx = counted.snapshot(tenant).await.expect("a snapshot");
    for (filter, cost) in [("", 2), ("NOT name == 'a'", 2), ("name = 'region'", 1)] {
        let listing = parse_listing(Resource::Region, filter, "name desc");
        for (limit, offset) in [(1, 0), (3, 0), (100, 0), (1, 4)] {
            let before = sent.statements.load(std::sync::atomic::Ordering::Relaxed);
            let from = listing::PageStart::Offset(offset);
            let chosen = listing::page(&tx, &listing, &from, limit).await;
            let chosen = chosen.expect("a page");
            let after = sent.statements.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!((chosen.total, after - before), (5, cost), "{filter}");
        }
    }
}

#[tokio::test]
async fn a_key_is_valid_only_for_its_list() {
    let (store, tenant) = store_with_project().await;
    for n in 0..3 {
        create_region(&store, tenant, &format!("region {n}"), None).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let by_name = parse_listing(Resource::Region, "name = 'region'", "name");
    let chosen = listing::page(&tx, &by_name, &listing::PageStart::Offset(0), 2).await;
    let key = chosen.expect("a page").next.expect("another page");
    assert!(listing::key_matches(&tx, &by_name, &key).expect("an answer"));
    for (filter, order) in [("", "name"), ("name = 'region'", ""), ("name = 'region'", "name desc")]
    {
        let other = parse_listing(Resource::Region, filter, order);
        assert!(!listing::key_matches(&tx, &other, &key).expect("an answer"), "{filter} {order}");
        let refused = listing::page(&tx, &other, &listing::PageStart::After(key.clone()), 2).await;
        assert!(matches!(refused, Err(StoreError::Conflict(Conflict::Rule { .. }))));
    }
    assert_eq!(PageKey::parse("no token"), None);
}

#[tokio::test]
async fn a_key_does_not_depend_on_the_enclosing_filter() {
    let (store, tenant) = store_with_project().await;
    for n in 0..4 {
        create_region(&store, tenant, &format!("region {n}"), None).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let some = |within: &str| Listing {
        within: parse_listing(Resource::Region, within, "").filter,
        ..parse_listing(Resource::Region, "name = 'region'", "name")
    };
    let start = listing::PageStart::Offset(0);
    let before = some("name == 'region 0' OR name == 'region 1'");
    let first = listing::page(&tx, &before, &start, 1).await;
    let first = first.expect("a page");
    assert_eq!((first.ids.len(), first.total), (1, 2));
    let key = first.next.expect("another page");

    let after = some("NOT name == 'region 0'");
    assert!(listing::key_matches(&tx, &after, &key).expect("an answer"));
    let next = listing::page(&tx, &after, &listing::PageStart::After(key), 10).await;
    let next = next.expect("a page");
    assert_eq!((next.ids.len(), next.total), (3, 3));
    assert!(!next.ids.contains(&first.ids[0]));
}

#[tokio::test]
async fn a_snapshot_is_read_only_and_sees_no_later_changes() {
    let (store, tenant) = store_with_project().await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(count(&tx, Resource::Region, "").await, 0);
    create_region(&store, tenant, "europe", None).await;
    assert_eq!(count(&tx, Resource::Region, "").await, 0);
    let id = evenkeel_domain::id::RegionId::nth(1);
    let refused = evenkeel_store::regions::delete(&tx, id).await;
    assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
    drop(tx);
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(count(&tx, Resource::Region, "").await, 1);
}

/// Creates 20,000 hosts at 200 sites.
async fn create_many_hosts(store: &Store, tenant: TenantId) {
    let sql = format!(
        "BEGIN; SET LOCAL evenkeel.tenant = '{tenant}'; \
         INSERT INTO sites (tenant_id, id, name, latitude, longitude, metadata, created_at, updated_at) \
         SELECT '{tenant}', n, 'site ' || n, 0, 0, '[]', now(), now() FROM generate_series(1, 200) AS n; \
         INSERT INTO hosts (tenant_id, id, name, uuid, hostname, desired_state, current_state, note, public_key, status, \
         status_indication, status_at, created_at, updated_at, site_id, metadata, user_lvm_size) \
         SELECT '{tenant}', (n::bigint * 2654435 % 4294967296 - 2147483648)::integer, 'edge ' || n, gen_random_uuid(), '', \
         'onboarded', 'onboarded', '', '', 'Running', 'idle', now(), now(), now(), 1 + n % 200, '[]', 0 \
         FROM generate_series(1, 20000) AS n; COMMIT"
    );
    store.execute_unprepared(&sql).await.expect("created");
    store.analyze().await.expect("analyzed");
}

#[tokio::test]
async fn an_exact_filter_uses_an_index() {
    let (store, tenant) = store_with_project().await;
    create_many_hosts(&store, tenant).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let start = listing::PageStart::Offset(0);
    for filter in [
        "resourceId = 'host-80019919'",
        "resourceId == 'host-80019919'",
        "site.resourceId = 'site-00000007'",
        "site.resourceId = 'site-00000007' OR site.resourceId = 'site-00000008'",
        "name == 'edge 7'",
        "uuid = '01234567-89ab-cdef-0123-456789abcdef'",
    ] {
        let listing = parse_listing(Resource::Host, filter, "");
        let plan = listing::explain(&tx, &listing, &start, 100).await.expect("a plan");
        assert!(!plan.contains("Seq Scan on hosts"), "{filter}: {plan}");
    }
    // By id and by name, from the start and from a key: an index gives the order.
    for (order, index) in [("", "hosts_order"), ("name", "hosts_by_letter")] {
        let all = parse_listing(Resource::Host, "", order);
        let first = listing::page(&tx, &all, &start, 100).await.expect("a page");
        let key = listing::PageStart::After(first.next.expect("another page"));
        for from in [&start, &key] {
            let plan = listing::explain(&tx, &all, from, 100).await.expect("a plan");
            assert!(plan.contains(index) && !plan.contains("Sort"), "{plan}");
        }
        // From a key, the index scan begins at the key.
        let plan = listing::explain(&tx, &all, &key, 100).await.expect("a plan");
        let mut lines = plan.lines();
        let begins = lines.any(|line| line.contains("Index Cond") && line.contains("ROW("));
        assert!(begins, "{plan}");
    }
}

#[tokio::test]
async fn a_list_of_hosts_reads_only_the_tables_whose_columns_it_uses() {
    const TABLES: [&str; 4] = ["host_hardware", "instances", "node_states", "last_contacts"];
    let (store, tenant) = store_with_project().await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let start = listing::PageStart::Offset(0);
    for (filter, order, used) in [
        ("name = 'edge'", "", vec![]),
        ("cpuModel = 'Xeon'", "", vec!["host_hardware"]),
        ("", "productVendor", vec!["host_hardware"]),
        ("agentVersion < '0.10'", "", vec!["instances", "node_states"]),
        ("lastContact = null", "", vec!["instances", "last_contacts"]),
        ("cpuModel = 'Xeon'", "bootTime", vec!["host_hardware", "instances", "node_states"]),
    ] {
        let listing = parse_listing(Resource::Host, filter, order);
        let plan = listing::explain(&tx, &listing, &start, 100).await.expect("a plan");
        let read = TABLES.into_iter().filter(|table| plan.contains(&format!(" on {table}")));
        assert_eq!(read.collect::<Vec<_>>(), used, "{filter} {order}: {plan}");
    }
}

/// A row of a run is long and the index entry with its name is short, so the scan must read nothing
/// but the index. This test only shows that such a plan exists; the planner may choose another one.
#[tokio::test]
async fn a_part_of_the_name_of_a_run_is_found_in_an_index_alone() {
    let (store, tenant) = store_with_project().await;
    let size = ProjectSize { hosts: 20, sites: 1 };
    fill::seed_project(&store, tenant, size, NOON).await.expect("a project");
    // Without VACUUM, Postgres visits each row to check its visibility.
    let cleaned = store.execute_unprepared("VACUUM ANALYZE update_runs").await;
    cleaned.expect("cleaned");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for other in ["enable_seqscan", "enable_bitmapscan"] {
        tx.set(other, "off").await.expect("a setting");
    }
    let start = listing::PageStart::Offset(0);
    let listing = parse_listing(Resource::Run, "name = 'OF EDGE-00000'", "");
    let chosen = listing::page(&tx, &listing, &start, 10).await;
    let chosen = chosen.expect("a page");
    assert_eq!((chosen.ids.len(), chosen.total), (10, 20));
    for from in [start, listing::PageStart::After(chosen.next.expect("another page"))] {
        let plan = listing::explain(&tx, &listing, &from, 10).await;
        let plan = plan.expect("a plan");
        let alone = "Index Only Scan using update_runs_order";
        assert!(plan.contains(alone), "{plan}");
    }
}

/// Rows of resources at a site are not read before the page is known.
#[tokio::test]
async fn resources_at_a_site_are_found_in_indexes_alone() {
    let (store, tenant) = store_with_project().await;
    let project_size = ProjectSize { hosts: 200, sites: 20 };
    let filled = fill::seed_project(&store, tenant, project_size, NOON).await;
    let site = filled.expect("a project").sites[0];
    store.analyze().await.expect("analyzed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for other in ["seqscan", "bitmapscan", "hashjoin", "mergejoin"] {
        let setting = format!("enable_{other}");
        tx.set(&setting, "off").await.expect("a setting");
    }
    let start = listing::PageStart::Offset(0);
    let indexes = ["hosts_by_site", "instances_host", "update_runs_instance"];
    for (resource, path, read) in [
        (Resource::Host, "site", 1),
        (Resource::Instance, "host.site", 2),
        (Resource::Run, "instance.host.site", 3),
    ] {
        let listing = parse_listing(resource, &format!("{path}.resourceId = '{site}'"), "");
        let plan = listing::explain(&tx, &listing, &start, 100).await;
        let plan = plan.expect("a plan");
        for index in &indexes[..read] {
            let alone = format!("Index Only Scan using {index}");
            assert!(plan.contains(&alone), "{plan}");
        }
    }
}
