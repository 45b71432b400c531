//! What of nodes is looked at at each poll: the same as in the whole, read for many at once and without what is long.

use chrono::TimeDelta;
use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::{KnownBad, LastEnd, Protocol, Verdict};
use evenkeel_domain::eim::Seen;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, RunId};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::nodes::{self, Brief, Machine, NodeState, briefs, digest_of};
use evenkeel_store::testing::{counting, fresh_store};
use evenkeel_store::{Store, StoreError, Tx, changes, contents, hosts};
use serde_json::json;
use uuid::Uuid;

use crate::house::{NOON, by_hand, node, project, registration};
use crate::worlds::Fleet;

/// Something of everything that a node may say, another choice of it for each number.
fn say(node: &mut NodeState, n: u32) {
    let has = |bit: u32| (n >> bit) & 1 == 1;
    let at = NOON + TimeDelta::minutes(n.into());
    node.provisioned = has(0);
    node.protocol = match n % 3 {
        0 => Protocol::Unknown,
        1 => Protocol::Eim,
        _ => Protocol::Own {
            modules: vec!["packages".into(), format!("module {n}")],
        },
    };
    node.facts_digest = vec![n.to_le_bytes()[0]; 32];
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
            kind: ConditionKind::AgentTrouble,
            text: format!("trouble {nth}"),
            since: at,
        })
        .collect();
    node.bad_images = (0..n % 4)
        .map(|nth| KnownBad {
            sha256: Sha256::parse("sha256", &format!("{nth:064x}")).expect("a digest"),
            since: at,
        })
        .collect();
    let entries = usize::try_from(n % 5 * 400).expect("a number");
    node.os_update_available = "[{\"name\": \"größer\"}]".repeat(entries);
    node.last_end = has(3).then(|| LastEnd {
        run: RunId::nth(n + 1),
        target: has(1).then(|| "a digest".into()),
        at,
        verdict: if has(0) { Verdict::Good } else { Verdict::Open },
    });
    let waits = if has(1) { "a backup runs" } else { "" };
    node.waiting = waits.into();
    node.seen = has(2).then(|| {
        let sample = json!({"kind": "started", "detail_digest": format!("{n}")});
        serde_json::from_value::<Seen>(sample).expect("a sample")
    });
    node.delivered.single = has(3).then_some((NOON, at));
    node.delivered.last_word = has(0).then_some(at);
}

/// As many nodes that have said something.
async fn talkative(store: &Store, count: u32) -> (TenantId, Vec<HostId>) {
    let tenant = project(store, "ours").await;
    let mut hosts = Vec::new();
    for n in 0..count {
        let (host, _) = node(store, tenant, u128::from(n) + 1).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let kept = contents::put(&tx, &[7; 32], "bash 5.2", NOON).await;
        kept.expect("kept");
        let mut known = nodes::lock(&tx, host.id).await.expect("locked");
        say(&mut known, n);
        nodes::save(&tx, &known).await.expect("saved");
        tx.commit().await.expect("committed");
        hosts.push(host.id);
    }
    (tenant, hosts)
}

/// What the whole says of it; none if there is no such node.
async fn in_whole(tx: &Tx, machine: Machine) -> Option<(Host, Brief)> {
    match nodes::read(tx, machine).await {
        Ok((host, node)) => Some((host, node.brief())),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

async fn are_as_in_whole(tx: &Tx, machines: &[Machine]) {
    let found = briefs(tx, machines).await.expect("read");
    assert_eq!(found.len(), machines.len());
    for (machine, found) in machines.iter().zip(found) {
        let found = found.expect("it makes sense");
        assert_eq!(found, in_whole(tx, *machine).await, "{machine:?}");
    }
}

#[tokio::test]
async fn a_brief_says_what_the_whole_says() {
    let store = fresh_store().await;
    let (tenant, hosts) = talkative(&store, 60).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let machines: Vec<_> = hosts.into_iter().map(Machine::Host).collect();
    are_as_in_whole(&tx, &machines).await;
    let found = briefs(&tx, &machines).await.expect("read");
    let said = found.into_iter().filter_map(|found| {
        let (_, brief) = found.expect("it makes sense").expect("it is there");
        brief.said_packages
    });
    assert_eq!(said.count(), 15);
}

#[tokio::test]
async fn nodes_are_told_in_the_order_in_which_they_are_asked_for() {
    let store = fresh_store().await;
    let fleet = Fleet::furnished(&store).await;
    let tx = fleet.tx(&store).await;
    let bare = hosts::register(&tx, &registration(50), NOON).await;
    let bare = bare.expect("a host").id;
    let mut machines: Vec<_> = fleet.hosts().rev().map(Machine::Host).collect();
    let uuids = fleet.nodes.iter().filter_map(|(host, _)| host.uuid);
    machines.extend(uuids.map(Machine::Uuid));
    machines.extend([
        Machine::Host(bare),
        Machine::Host(HostId::nth(99)),
        Machine::Uuid(Uuid::nil()),
        machines[3],
        machines[3],
    ]);
    are_as_in_whole(&tx, &machines).await;
    // Of another project nothing is told.
    let theirs = project(&store, "theirs").await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    for found in briefs(&tx, &machines).await.expect("read") {
        assert_eq!(found.expect("it makes sense"), None);
    }
}

#[tokio::test]
async fn many_are_read_in_one_statement_and_nobody_in_none() {
    let store = fresh_store().await;
    let (tenant, hosts) = talkative(&store, 5).await;
    let machines: Vec<_> = hosts.into_iter().map(Machine::Host).collect();
    let (counted, counts) = counting(&store);
    assert_eq!(counts.both(), (0, 0));
    let tx = counted.tenant(tenant).await.expect("a transaction");
    for (of, statements) in [(&machines[..0], 1), (&machines[..1], 2), (&machines[..], 3)] {
        let found = briefs(&tx, of).await.expect("read");
        assert_eq!(found.len(), of.len());
        assert_eq!(counts.both(), (statements, 1));
    }
}

#[tokio::test]
async fn a_node_of_which_something_makes_no_sense_hides_no_other() {
    let store = fresh_store().await;
    let (tenant, hosts) = talkative(&store, 3).await;
    let machines: Vec<_> = hosts.iter().copied().map(Machine::Host).collect();
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
        by_hand(&store, &put).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let found = briefs(&tx, &machines).await.expect("the others are read");
        let [Ok(Some(_)), Err(error), Ok(Some(_))] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
        drop(tx);
        let sane = "UPDATE node_states SET delivered = '{}', conditions = '[]', bad_images = '[]', sample = NULL";
        by_hand(&store, sane).await;
    }
}

#[test]
fn what_could_be_updated_is_known_by_its_digest() {
    assert_eq!(digest_of("a"), digest_of("a"));
    assert_ne!(digest_of("a"), digest_of("a "));
    // SHA-256 of nothing, as the schema has it for a node that said nothing.
    assert_eq!(digest_of("")[..4], [0xe3, 0xb0, 0xc4, 0x42]);
}

/// A database of the last release, whose nodes have said something.
#[tokio::test]
async fn what_was_said_before_there_were_digests_is_known_by_them() {
    let store = fresh_store().await;
    let (tenant, hosts) = talkative(&store, 20).await;
    let machines: Vec<_> = hosts.into_iter().map(Machine::Host).collect();
    let logged = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut logged = 0;
        for machine in &machines {
            let (_, node) = nodes::read(&tx, *machine).await.expect("a node");
            let changes = changes::of(&tx, "instance", node.instance.bits()).await;
            logged += changes.expect("read").len();
        }
        logged
    };
    let before = logged().await;
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    let step = steps.chunks(2).nth(21).expect("the twenty-second step");
    by_hand(&store, step[1]).await;
    by_hand(&store, step[0]).await;
    assert_eq!(logged().await, before, "nothing has changed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    are_as_in_whole(&tx, &machines).await;
    drop(tx);
    // A server of the last release may still write beside this one.
    let said = json!({"packagesDigest": "Ab".repeat(32)});
    let said = format!("facts = '{said}'");
    for written in [
        "os_update_available = 'größer'",
        said.as_str(),
        "facts = '{\"packagesDigest\": 5}', os_update_available = ''",
    ] {
        by_hand(&store, &format!("UPDATE node_states SET {written}")).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        are_as_in_whole(&tx, &machines).await;
    }
    assert!(before < logged().await, "what is written is a change");
}
