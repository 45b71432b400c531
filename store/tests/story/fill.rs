//! A seeded project resembles one that was created through the store.

use std::collections::HashSet;

use evenkeel_domain::filter::Resource;
use evenkeel_store::testing::fill::{self, ProjectSize};
use evenkeel_store::{hardware, hosts, instances, runs, sites};

use crate::fixtures::{NOON, count, store_with_project};

#[tokio::test]
async fn seeded_copies_are_complete_and_distinct() {
    let (store, tenant) = store_with_project().await;
    let size = ProjectSize { hosts: 25, sites: 4 };
    let filled = fill::seed_project(&store, tenant, size, NOON).await;
    let filled = filled.expect("a project");
    let tx = store.tenant(tenant).await.expect("a transaction");

    assert_eq!(count(&tx, Resource::Region, "").await, 25);
    let loaded = sites::find_many(&tx, &filled.sites).await.expect("sites");
    assert!(loaded.len() == 4 && loaded.iter().all(|site| site.spec.region.is_some()));

    let loaded = hosts::find_many(&tx, &filled.hosts).await.expect("hosts");
    let names: HashSet<_> = loaded.iter().map(|host| host.name.to_string()).collect();
    assert!(names.len() == 25 && names.contains(&fill::host_name(24)));
    let at = format!("site.resourceId = \"{}\"", filled.sites[1]);
    assert_eq!(count(&tx, Resource::Host, &at).await, 6);

    let made_of = hardware::find_by_hosts(&tx, &filled.hosts).await.expect("hardware");
    let addresses =
        made_of.values().flat_map(|hardware| &hardware.nics).flat_map(|nic| &nic.ipaddresses);
    let addresses: HashSet<_> = addresses.map(|address| address.resource_id).collect();
    assert_eq!(addresses.len(), 50);

    let loaded = instances::find_many(&tx, &filled.instances).await;
    let loaded = loaded.expect("instances");
    assert!(loaded.len() == 25 && loaded.iter().all(|instance| instance.summary.provisioned));
}

#[tokio::test]
async fn each_instance_has_its_own_runs() {
    let (store, tenant) = store_with_project().await;
    let size = ProjectSize { hosts: 6, sites: 1 };
    let filled = fill::seed_project(&store, tenant, size, NOON).await;
    let filled = filled.expect("a project");
    let tx = store.tenant(tenant).await.expect("a transaction");

    let loaded = runs::find_many(&tx, &filled.runs).await.expect("runs");
    assert_eq!(loaded.len(), 12);
    assert!(loaded.iter().all(|run| run.ended_at().is_some()));
    let failed = loaded.iter().filter(|run| run.state.name() == "failed");
    assert_eq!(failed.count(), 1);
    for instance in &filled.instances {
        let of_it = format!("instance.resourceId = \"{instance}\"");
        assert_eq!(count(&tx, Resource::Run, &of_it).await, 2);
    }
    let events = runs::events(&tx, filled.runs[11]).await.expect("a history");
    assert_eq!(events.len(), 2);
}
