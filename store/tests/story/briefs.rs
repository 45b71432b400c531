//! Briefs: the part of a node that every poll reads. A brief equals the one computed from the
//! complete node, but many are read at once and without long values.

use chrono::TimeDelta;
use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::{AgentProtocol, LastRun, QuarantinedImage, Verdict};
use evenkeel_domain::eim::LastSample;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, RunId};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::nodes::{
    self, MachineKey, NodeBrief, NodeState, available_digest, load_briefs,
};
use evenkeel_store::testing::{counting_store, fresh_store};
use evenkeel_store::{Store, StoreError, Tx, contents, hosts};
use serde_json::json;
use uuid::Uuid;

use crate::decision_inputs::Fleet;
use crate::fixtures::{NOON, create_node, create_project, execute_sql, registration};

/// Sets every kind of value that a node may report; `n` selects the variant.
fn set_reported_values(node: &mut NodeState, n: u32) {
    let has = |bit: u32| (n >> bit) & 1 == 1;
    let at = NOON + TimeDelta::minutes(n.into());
    node.provisioned = has(0);
    node.protocol = match n % 3 {
        0 => AgentProtocol::Unknown,
        1 => AgentProtocol::Eim,
        _ => AgentProtocol::Own { modules: vec!["packages".into(), format!("module {n}")] },
    };
    node.facts_digest = vec![n.to_le_bytes()[0]; 32];
    node.facts_summary.version = i16::from(has(1));
    node.facts = match n % 4 {
        0 => json!({}),
        1 => json!({"packagesDigest": ""}),
        2 => json!({"packagesDigest": format!("{n:064x}"), "kernelRelease": "6.1"}),
        _ => json!({"packagesDigest": "nonsense", "limits": "x".repeat(2_000)}),
    };
    node.packages_digest = has(1).then_some([7; 32]);
    let text = if has(2) { "Updating" } else { "Running" };
    node.status = Status::new(text, Indication::InProgress, at);
    node.update_status = Status::new("Update completed", Indication::Idle, at);
    node.conditions = (0..n % 3)
        .map(|nth| Condition {
            kind: ConditionKind::AgentError.into(),
            text: format!("error {nth}"),
            since: at,
        })
        .collect();
    node.bad_images = (0..n % 4)
        .map(|nth| QuarantinedImage {
            sha256: Sha256::parse("sha256", &format!("{nth:064x}")).expect("a digest"),
            since: at,
        })
        .collect();
    let entries = usize::try_from(n % 5 * 400).expect("a number");
    node.os_update_available = "[{\"name\": \"größer\"}]".repeat(entries);
    node.last_end = has(3).then(|| LastRun {
        run: RunId::nth(n + 1),
        target: has(1).then(|| "a digest".into()),
        at,
        verdict: if has(0) { Verdict::Good } else { Verdict::Inconclusive },
    });
    let waits = if has(1) { "a backup runs" } else { "" };
    node.waiting = waits.into();
    node.last_sample = has(2).then(|| {
        let sample = json!({"kind": "started", "detail_digest": format!("{n}")});
        serde_json::from_value::<LastSample>(sample).expect("a sample")
    });
    node.delivered.single = has(3).then_some((NOON, at));
    node.delivered.last_heard_at = has(0).then_some(at);
}

/// Creates `count` nodes that have reported.
async fn create_reporting_nodes(store: &Store, count: u32) -> (TenantId, Vec<HostId>) {
    let tenant = create_project(store, "ours").await;
    let mut hosts = Vec::new();
    for n in 0..count {
        let (host, _) = create_node(store, tenant, u128::from(n) + 1).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let stored = contents::insert_if_missing(&tx, &[7; 32], "bash 5.2", NOON).await;
        stored.expect("stored");
        let mut locked_node = nodes::lock(&tx, host.id).await.expect("locked");
        set_reported_values(&mut locked_node, n);
        nodes::save(&tx, &locked_node).await.expect("saved");
        tx.commit().await.expect("committed");
        hosts.push(host.id);
    }
    (tenant, hosts)
}

/// The brief computed from the complete node, if the node exists.
async fn brief_from_node(tx: &Tx, machine: MachineKey) -> Option<(Host, NodeBrief)> {
    match nodes::find_with_host(tx, machine).await {
        Ok((host, node)) => Some((host, node.brief())),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

async fn assert_briefs_match_nodes(tx: &Tx, machines: &[MachineKey]) {
    let results = load_briefs(tx, machines).await.expect("read");
    assert_eq!(results.len(), machines.len());
    for (machine, result) in machines.iter().zip(results) {
        let brief = result.expect("valid");
        assert_eq!(brief, brief_from_node(tx, *machine).await, "{machine:?}");
    }
}

#[tokio::test]
async fn a_brief_equals_the_brief_of_the_complete_node() {
    let store = fresh_store().await;
    let (tenant, hosts) = create_reporting_nodes(&store, 60).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let machines: Vec<_> = hosts.into_iter().map(MachineKey::Host).collect();
    assert_briefs_match_nodes(&tx, &machines).await;
    let results = load_briefs(&tx, &machines).await.expect("read");
    let reported = results.into_iter().filter_map(|result| {
        let (_, brief) = result.expect("valid").expect("found");
        brief.reported_packages
    });
    assert_eq!(reported.count(), 15);
}

#[tokio::test]
async fn briefs_follow_the_order_of_the_requested_nodes() {
    let store = fresh_store().await;
    let fleet = Fleet::create_seeded(&store).await;
    let tx = fleet.tx(&store).await;
    let bare = hosts::register(&tx, &registration(50), NOON).await;
    let bare = bare.expect("a host").id;
    let mut machines: Vec<_> = fleet.hosts().rev().map(MachineKey::Host).collect();
    let uuids = fleet.nodes.iter().filter_map(|(host, _)| host.uuid);
    machines.extend(uuids.map(MachineKey::Uuid));
    machines.extend([
        MachineKey::Host(bare),
        MachineKey::Host(HostId::nth(99)),
        MachineKey::Uuid(Uuid::nil()),
        machines[3],
        machines[3],
    ]);
    assert_briefs_match_nodes(&tx, &machines).await;
    // Nodes of another project are not visible.
    let theirs = create_project(&store, "theirs").await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    for result in load_briefs(&tx, &machines).await.expect("read") {
        assert_eq!(result.expect("valid"), None);
    }
}

#[tokio::test]
async fn many_briefs_take_one_statement_and_none_takes_no_statement() {
    let store = fresh_store().await;
    let (tenant, hosts) = create_reporting_nodes(&store, 5).await;
    let machines: Vec<_> = hosts.into_iter().map(MachineKey::Host).collect();
    let (counted, counts) = counting_store(&store);
    assert_eq!(counts.totals(), (0, 0));
    let tx = counted.tenant(tenant).await.expect("a transaction");
    for (of, statements) in [(&machines[..0], 1), (&machines[..1], 2), (&machines[..], 3)] {
        let results = load_briefs(&tx, of).await.expect("read");
        assert_eq!(results.len(), of.len());
        assert_eq!(counts.totals(), (statements, 1));
    }
}

#[tokio::test]
async fn a_corrupt_node_does_not_hide_the_others() {
    let store = fresh_store().await;
    let (tenant, hosts) = create_reporting_nodes(&store, 3).await;
    let machines: Vec<_> = hosts.iter().copied().map(MachineKey::Host).collect();
    let tx = store.tenant(tenant).await.expect("a transaction");
    let bad = nodes::find_by_host(&tx, hosts[1]).await.expect("a node");
    drop(tx);
    let bad = bad.instance.bits().cast_signed();
    for (column, value) in [
        ("delivered", "{\"single\": 5}"),
        ("conditions", "[5]"),
        ("bad_images", "[5]"),
        ("sample", "{}"),
    ] {
        let put = format!("UPDATE node_states SET {column} = '{value}' WHERE instance_id = {bad}");
        execute_sql(&store, &put).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let results = load_briefs(&tx, &machines).await.expect("results");
        let [Ok(Some(_)), Err(error), Ok(Some(_))] = &results[..] else {
            panic!("{results:?}");
        };
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
        drop(tx);
        let sane = "UPDATE node_states SET delivered = '{}', conditions = '[]', bad_images = '[]', sample = NULL";
        execute_sql(&store, sane).await;
    }
}

#[test]
fn available_updates_are_compared_by_digest() {
    assert_eq!(available_digest("a"), available_digest("a"));
    assert_ne!(available_digest("a"), available_digest("a "));
    // SHA-256 of the empty text: the default of the schema for a node that has reported nothing.
    assert_eq!(available_digest("")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
}
