//! The stored state of a node.

use super::*;

#[tokio::test]
async fn the_state_of_a_node_is_stored() {
    use evenkeel_domain::agent_start::AgentStart;
    use evenkeel_domain::condition::{Condition, ConditionKind};
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    save_as_own_agent(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.conditions = vec![Condition {
        kind: ConditionKind::TwoMachines.into(),
        text: "two boots at once".into(),
        since: NOON,
    }];
    node.previous_boot_id = "b-1".into();
    let start = AgentStart { boot_id: "b-2".into(), session: "s-1".into() };
    node.recent_starts.record(start, NOON);
    node.booted =
        Some(nodes::BootedImage { profile_name: "edge".into(), image_id: "3.0.9".into() });
    node.delivered.single = Some((NOON, NOON + TimeDelta::hours(1)));
    nodes::save(&tx, &node).await.expect("saved");
    let uuid = host.uuid.expect("a UUID");
    let (read_host, read) =
        nodes::find_with_host(&tx, nodes::MachineKey::Uuid(uuid)).await.expect("found");
    assert_eq!((read_host.id, &read), (host.id, &node));
    let (_, locked) =
        nodes::lock_with_host(&tx, nodes::MachineKey::Uuid(uuid)).await.expect("found");
    assert_eq!(locked, node);
    let stored_instance = instances::find(&tx, instance.id).await.expect("found");
    assert_eq!(stored_instance.summary.conditions, node.conditions);
    let missing = nodes::find_with_host(&tx, nodes::MachineKey::Host(HostId::nth(99))).await;
    let Err(StoreError::NotFound { what }) = missing else {
        panic!("{missing:?}");
    };
    assert_eq!(what, "host_resource");
}

/// With the begin and the end of the transaction, a poll sends six statements.
#[tokio::test]
async fn an_unchanged_poll_takes_four_statements() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    save_as_own_agent(&store, tenant, &host).await;
    let region = create_region(&store, tenant, "europe", None).await;
    let site = create_site(&store, tenant, Some(region.id)).await;
    move_to_site(&store, tenant, &host, site.id).await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Region(region.id), policy.id, (None, None)).await;
    let (counting, sent) = counting_store(&store);
    let tx = counting.tenant(tenant).await.expect("a transaction");
    let input = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
    assert_eq!(input.applicable_policy().map(|assigned| assigned.policy.id), Some(policy.id));
    tx.commit().await.expect("committed");
    assert_eq!(
        sent.statements.load(Ordering::Relaxed),
        4,
        "scope, node, node inputs and project inputs"
    );
}
