//! A large project that is made quickly is like one that the store makes.

use std::collections::HashSet;

use evenkeel_domain::filter::Resource;
use evenkeel_store::testing::fill::{self, Size};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{hardware, hosts, instances, runs, sites};

use crate::house::{NOON, count, project};

#[tokio::test]
async fn the_others_are_like_the_first() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let size = Size {
        hosts: 25,
        sites: 4,
    };
    let filled = fill::project(&store, tenant, size, NOON).await;
    let filled = filled.expect("a project");
    let tx = store.tenant(tenant).await.expect("a transaction");

    assert_eq!(count(&tx, Resource::Region, "").await, 25);
    let there = sites::find_many(&tx, &filled.sites).await.expect("sites");
    assert!(there.len() == 4 && there.iter().all(|site| site.spec.region.is_some()));

    let there = hosts::find_many(&tx, &filled.hosts).await.expect("hosts");
    let names: HashSet<_> = there.iter().map(|host| host.name.to_string()).collect();
    assert!(names.len() == 25 && names.contains(&fill::host_name(24)));
    let at = format!("site.resourceId = \"{}\"", filled.sites[1]);
    assert_eq!(count(&tx, Resource::Host, &at).await, 6);

    let made_of = hardware::of_hosts(&tx, &filled.hosts)
        .await
        .expect("hardware");
    let addresses = made_of
        .values()
        .flat_map(|hardware| &hardware.nics)
        .flat_map(|nic| &nic.ipaddresses);
    let addresses: HashSet<_> = addresses.map(|address| address.resource_id).collect();
    assert_eq!(addresses.len(), 50);

    let there = instances::find_many(&tx, &filled.instances).await;
    let there = there.expect("instances");
    assert!(there.len() == 25 && there.iter().all(|on| on.summary.provisioned));
}

#[tokio::test]
async fn each_instance_has_its_own_runs() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let size = Size { hosts: 6, sites: 1 };
    let filled = fill::project(&store, tenant, size, NOON).await;
    let filled = filled.expect("a project");
    let tx = store.tenant(tenant).await.expect("a transaction");

    let there = runs::find_many(&tx, &filled.runs).await.expect("runs");
    assert_eq!(there.len(), 12);
    assert!(there.iter().all(|run| run.ended_at().is_some()));
    let failed = there.iter().filter(|run| run.state.name() == "failed");
    assert_eq!(failed.count(), 1);
    for instance in &filled.instances {
        let of_it = format!("instance.resourceId = \"{instance}\"");
        assert_eq!(count(&tx, Resource::Run, &of_it).await, 2);
    }
    let told = runs::events(&tx, filled.runs[11]).await.expect("a history");
    assert_eq!(told.len(), 2);
}
