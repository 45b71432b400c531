//! Lists: every field and edge there is, what clients send, pages, keys, and how the database reads them.

use evenkeel_domain::filter::{
    Comparison, Condition, Edge, Field, FieldKind, Filter, LabelCondition, OrderKey, Pattern,
    Resource, Test,
};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::listing::{self, Key, Listing};
use evenkeel_store::testing::fill::{self, Size};
use evenkeel_store::testing::{counting, fresh_store};
use evenkeel_store::{Conflict, Store, StoreError, Tx};

use crate::house::{NOON, count, list, node, project, region};
use crate::listing_world::LISTED;

/// One condition of each kind that a field can have.
fn conditions(kind: FieldKind) -> Vec<Condition> {
    let text = || "a_%\\".to_owned();
    let pattern = || Pattern::new([text(), text()]).expect("a pattern");
    let compared = |f: fn(Comparison) -> Condition| Comparison::ALL.iter().map(move |c| f(*c));
    let mut conditions = vec![Condition::Unset];
    match kind {
        FieldKind::Id(prefix) => conditions.extend([
            Condition::Contains(Pattern::new(["a1".to_owned()]).expect("a pattern")),
            Condition::Exactly(format!("{prefix}-0a1b2c3d")),
            Condition::Not(format!("{prefix}-0a1b2c3d")),
            Condition::Exactly(text()),
        ]),
        FieldKind::Text => conditions.extend([
            Condition::Contains(pattern()),
            Condition::Exactly(text()),
            Condition::Not(text()),
            Condition::Exactly("01234567-89ab-cdef-0123-456789abcdef".to_owned()),
        ]),
        FieldKind::Enumeration(values) => {
            let both = |name: &&'static str| [Condition::Is(name), Condition::IsNot(name)];
            conditions.extend(values.names.iter().flat_map(both));
        }
        FieldKind::Number => conditions.extend(compared(|c| Condition::Number(c, i64::MAX))),
        FieldKind::Truth => conditions.extend([true, false].map(Condition::Truth)),
        FieldKind::Seconds | FieldKind::Moment => {
            conditions.extend(compared(|c| Condition::Time(c, NOON)));
        }
    }
    conditions
}

/// Everything that can be asked at the end of a path.
fn questions(path: &[&'static Edge], end: Resource) -> Vec<Filter> {
    let asked = |field: &'static Field| {
        conditions(field.kind).into_iter().map(move |condition| {
            Filter::Test(Test {
                path: path.to_vec(),
                field,
                condition,
            })
        })
    };
    let mut questions: Vec<_> = end.fields().iter().flat_map(asked).collect();
    if !path.is_empty() {
        questions.push(Filter::Exists(path.to_vec()));
    }
    if end.has_labels() {
        let value = || "ulm".to_owned();
        let wanted = [
            LabelCondition::Present,
            LabelCondition::Is(value()),
            LabelCondition::IsNot(value()),
        ];
        questions.extend(wanted.map(|condition| Filter::Label {
            path: path.to_vec(),
            key: "city".to_owned(),
            condition,
        }));
    }
    questions
}

/// Many questions in one statement: the database reads each of them.
async fn ask(tx: &Tx, resource: Resource, questions: Vec<Filter>) {
    for some in questions.chunks(20) {
        let turned = some.iter().cloned().map(|q| Filter::Not(Box::new(q)));
        let all = some.iter().cloned().chain(turned).collect();
        let listing = Listing {
            resource,
            filter: Some(Filter::Any(all)),
            within: None,
            order: Vec::new(),
        };
        let answer = listing::count(tx, &listing).await;
        assert!(answer.is_ok(), "{:?}: {answer:?}", listing.filter);
    }
}

#[tokio::test]
async fn every_field_and_edge_is_understood_by_the_database() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for resource in LISTED {
        ask(&tx, *resource, questions(&[], *resource)).await;
        for edge in resource.edges() {
            ask(&tx, *resource, questions(&[edge], edge.to)).await;
            for next in edge.to.edges() {
                ask(&tx, *resource, questions(&[edge, next], next.to)).await;
            }
        }
    }
}

#[tokio::test]
async fn every_field_orders_up_and_down() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for resource in LISTED {
        for field in resource.fields() {
            for descending in [false, true] {
                let listing = Listing {
                    resource: *resource,
                    filter: None,
                    within: None,
                    order: vec![OrderKey { field, descending }],
                };
                let chosen = listing::page(&tx, &listing, &listing::From::Offset(0), 10).await;
                assert!(chosen.is_ok(), "{resource:?} by {}: {chosen:?}", field.name);
            }
        }
    }
}

/// What the ancestor's clients send (northbound section 2.3).
const CORPUS: &[(Resource, &str)] = &[
    (Resource::Host, r#"name="X""#),
    (Resource::Host, "serialNumber='S' AND uuid='U'"),
    (Resource::Host, "hostStatus='onboarded'"),
    (Resource::Host, "hostStatus=''"),
    (Resource::Region, "resource_id='region-00000000'"),
    (
        Resource::Region,
        "parent_region.resource_id='region-00000000'",
    ),
    (Resource::Region, "NOT has(parent_region)"),
    (
        Resource::Site,
        "region.resource_id='region-00000000' OR region.parent_region.resource_id='region-00000000' \
         OR region.parent_region.parent_region.resource_id='region-00000000' \
         OR region.parent_region.parent_region.parent_region.resource_id='region-00000000'",
    ),
    (
        Resource::Host,
        "site.resourceId='site-00000000' OR site.resourceId='site-00000001'",
    ),
    (
        Resource::Host,
        "(currentState=HOST_STATE_ONBOARDED AND has(instance) AND instance.currentState=INSTANCE_STATE_RUNNING)",
    ),
    (
        Resource::Host,
        "(currentState=HOST_STATE_ONBOARDED AND NOT has(instance))",
    ),
    (
        Resource::Host,
        r#"(name="t" OR uuid="t" OR serialNumber="t" OR resourceId="t" OR note="t" OR site.name="t" OR instance.os.name="t")"#,
    ),
    (
        Resource::Host,
        r#"(instance.os.profileName="p1" OR instance.os.profileName="p2")"#,
    ),
    (Resource::Host, "NOT has(instance.workloadMembers)"),
    (
        Resource::Site,
        r#"metadata = '{"key":"city","value":"ulm"}'"#,
    ),
    (Resource::Run, r#"instance.resourceId="inst-00000000""#),
    (Resource::Instance, "runtimePackages=''"),
    (Resource::Policy, "updateSources='deb'"),
    (
        Resource::Instance,
        r#"has(localaccount) AND localaccount.resourceId="localaccount-00000000""#,
    ),
];

#[tokio::test]
async fn what_clients_send_is_answered() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    region(&store, tenant, "europe", None).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (resource, filter) in CORPUS {
        count(&tx, *resource, filter).await;
    }
    assert_eq!(
        count(&tx, Resource::Region, "NOT has(parent_region)").await,
        1
    );
}

/// One that counts and one that finds; where a part of a text is looked for, one does both.
#[tokio::test]
async fn a_page_costs_as_many_statements_however_long_it_is() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    for n in 0..5 {
        region(&store, tenant, &format!("region {n}"), None).await;
    }
    let (counted, sent) = counting(&store);
    let tx = counted.snapshot(tenant).await.expect("a snapshot");
    for (filter, cost) in [("", 2), ("NOT name == 'a'", 2), ("name = 'region'", 1)] {
        let listing = list(Resource::Region, filter, "name desc");
        for (limit, offset) in [(1, 0), (3, 0), (100, 0), (1, 4)] {
            let before = sent.statements.load(std::sync::atomic::Ordering::Relaxed);
            let from = listing::From::Offset(offset);
            let chosen = listing::page(&tx, &listing, &from, limit).await;
            let chosen = chosen.expect("a page");
            let after = sent.statements.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!((chosen.total, after - before), (5, cost), "{filter}");
        }
    }
}

#[tokio::test]
async fn a_key_is_for_its_own_list() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    for n in 0..3 {
        region(&store, tenant, &format!("region {n}"), None).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let by_name = list(Resource::Region, "name = 'region'", "name");
    let chosen = listing::page(&tx, &by_name, &listing::From::Offset(0), 2).await;
    let key = chosen.expect("a page").next.expect("there is more");
    assert!(listing::is_of(&tx, &by_name, &key).expect("an answer"));
    for (filter, order) in [
        ("", "name"),
        ("name = 'region'", ""),
        ("name = 'region'", "name desc"),
    ] {
        let other = list(Resource::Region, filter, order);
        assert!(
            !listing::is_of(&tx, &other, &key).expect("an answer"),
            "{filter} {order}"
        );
        let refused = listing::page(&tx, &other, &listing::From::After(key.clone()), 2).await;
        assert!(matches!(
            refused,
            Err(StoreError::Conflict(Conflict::Rule { .. }))
        ));
    }
    assert_eq!(Key::parse("no token"), None);
}

#[tokio::test]
async fn a_key_does_not_know_what_its_list_is_within() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    for n in 0..4 {
        region(&store, tenant, &format!("region {n}"), None).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let some = |within: &str| Listing {
        within: list(Resource::Region, within, "").filter,
        ..list(Resource::Region, "name = 'region'", "name")
    };
    let start = listing::From::Offset(0);
    let before = some("name == 'region 0' OR name == 'region 1'");
    let first = listing::page(&tx, &before, &start, 1).await;
    let first = first.expect("a page");
    assert_eq!((first.ids.len(), first.total), (1, 2));
    let key = first.next.expect("there is more");

    let after = some("NOT name == 'region 0'");
    assert!(listing::is_of(&tx, &after, &key).expect("an answer"));
    let next = listing::page(&tx, &after, &listing::From::After(key), 10).await;
    let next = next.expect("a page");
    assert_eq!((next.ids.len(), next.total), (3, 3));
    assert!(!next.ids.contains(&first.ids[0]));
}

#[tokio::test]
async fn a_snapshot_sees_what_was_there_and_changes_nothing() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(count(&tx, Resource::Region, "").await, 0);
    region(&store, tenant, "europe", None).await;
    assert_eq!(count(&tx, Resource::Region, "").await, 0);
    let id = evenkeel_domain::id::RegionId::nth(1);
    let refused = evenkeel_store::regions::delete(&tx, id).await;
    assert!(
        matches!(refused, Err(StoreError::Database(_))),
        "{refused:?}"
    );
    drop(tx);
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(count(&tx, Resource::Region, "").await, 1);
}

/// Twenty thousand hosts at two hundred sites.
async fn crowd(store: &Store, tenant: TenantId) {
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
    store.unprepared(&sql).await.expect("made");
    store.analyze().await.expect("analyzed");
}

#[tokio::test]
async fn what_is_named_exactly_is_not_looked_for_everywhere() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    crowd(&store, tenant).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let start = listing::From::Offset(0);
    for filter in [
        "resourceId = 'host-80019919'",
        "resourceId == 'host-80019919'",
        "site.resourceId = 'site-00000007'",
        "site.resourceId = 'site-00000007' OR site.resourceId = 'site-00000008'",
        "name == 'edge 7'",
        "uuid = '01234567-89ab-cdef-0123-456789abcdef'",
    ] {
        let listing = list(Resource::Host, filter, "");
        let plan = listing::plan(&tx, &listing, &start, 100)
            .await
            .expect("a plan");
        assert!(!plan.contains("Seq Scan on hosts"), "{filter}: {plan}");
    }
    // By id and by name, from the beginning and from a key: an index gives the order.
    for (order, index) in [("", "hosts_order"), ("name", "hosts_by_letter")] {
        let all = list(Resource::Host, "", order);
        let first = listing::page(&tx, &all, &start, 100).await.expect("a page");
        let key = listing::From::After(first.next.expect("there is more"));
        for from in [&start, &key] {
            let plan = listing::plan(&tx, &all, from, 100).await.expect("a plan");
            assert!(plan.contains(index) && !plan.contains("Sort"), "{plan}");
        }
        // And from a key it begins where that is.
        let plan = listing::plan(&tx, &all, &key, 100).await.expect("a plan");
        let mut lines = plan.lines();
        let begins = lines.any(|line| line.contains("Index Cond") && line.contains("ROW("));
        assert!(begins, "{plan}");
    }
}

/// A row of a run is long, the part of an index that knows its name is short: nothing else is needed. Whether that is
/// worth it is left to the planner, which is not asked here.
#[tokio::test]
async fn a_part_of_the_name_of_a_run_can_be_found_in_an_index_alone() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let size = Size {
        hosts: 20,
        sites: 1,
    };
    fill::project(&store, tenant, size, NOON)
        .await
        .expect("a project");
    // Or else a row would be visited to see whether it is still there.
    let cleaned = store.unprepared("VACUUM ANALYZE update_runs").await;
    cleaned.expect("cleaned");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for other in ["enable_seqscan", "enable_bitmapscan"] {
        tx.set(other, "off").await.expect("a setting");
    }
    let start = listing::From::Offset(0);
    let listing = list(Resource::Run, "name = 'OF EDGE-00000'", "");
    let chosen = listing::page(&tx, &listing, &start, 10).await;
    let chosen = chosen.expect("a page");
    assert_eq!((chosen.ids.len(), chosen.total), (10, 20));
    for from in [start, listing::From::After(chosen.next.expect("more"))] {
        let plan = listing::plan(&tx, &listing, &from, 10).await;
        let plan = plan.expect("a plan");
        let alone = "Index Only Scan using update_runs_order";
        assert!(plan.contains(alone), "{plan}");
    }
}

/// Nor is a row read of what is at a site, before it is known which are told.
#[tokio::test]
async fn what_is_at_a_site_can_be_found_in_indexes_alone() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let asked = Size {
        hosts: 200,
        sites: 20,
    };
    let filled = fill::project(&store, tenant, asked, NOON).await;
    let site = filled.expect("a project").sites[0];
    store.analyze().await.expect("analyzed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for other in ["seqscan", "bitmapscan", "hashjoin", "mergejoin"] {
        let setting = format!("enable_{other}");
        tx.set(&setting, "off").await.expect("a setting");
    }
    let start = listing::From::Offset(0);
    let indexes = ["hosts_by_site", "instances_host", "update_runs_instance"];
    for (resource, path, read) in [
        (Resource::Host, "site", 1),
        (Resource::Instance, "host.site", 2),
        (Resource::Run, "instance.host.site", 3),
    ] {
        let listing = list(resource, &format!("{path}.resourceId = '{site}'"), "");
        let plan = listing::plan(&tx, &listing, &start, 100).await;
        let plan = plan.expect("a plan");
        for index in &indexes[..read] {
            let alone = format!("Index Only Scan using {index}");
            assert!(plan.contains(&alone), "{plan}");
        }
    }
}
