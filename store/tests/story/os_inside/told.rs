//! What is told of operating systems that came from a registry.

use evenkeel_domain::host::Host;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::os::catalogue::{File, FileRole};
use evenkeel_domain::os::{Image, OsKind, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::os_inside::{Kept, Made, Offer};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, instances, os_inside};

use super::{edge, keep, list, make};
use crate::house::{NOON, node, project};

/// A document beside a profile.
fn beside(role: FileRole, sha256: Option<Sha256>) -> File {
    File {
        role,
        path: format!("files/{role}.json"),
        place: format!("web:https://files.example/{role}.json"),
        sha256,
        size: None,
    }
}

/// A version of another line.
fn other_line(version: &str) -> Made {
    let mut made = edge(version);
    made.spec.name = format!("Other {version}");
    made.spec.profile_name = "other".into();
    made
}

/// A node that runs this operating system.
async fn running(store: &Store, tenant: TenantId, n: u128, made: &Made) -> (Host, InstanceId) {
    let (host, instance) = node(store, tenant, n).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let os = os_inside::default_of(&tx, &made.spec.profile_name).await;
    let change = InstanceChange {
        os: os.expect("an answer"),
        ..InstanceChange::default()
    };
    instances::change(&tx, instance.id, &change, NOON)
        .await
        .expect("changed");
    tx.commit().await.expect("committed");
    (host, instance.id)
}

#[tokio::test]
async fn lists_are_shown_up_to_a_length() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut made = edge("3.0.1");
    made.inside.packages = list(&store, tenant, 1, "12345678").await;
    made.inside.existing_cves = list(&store, tenant, 2, "äöü").await;
    let os = make(&store, tenant, &made).await;
    let plain = make(&store, tenant, &edge("3.0.2")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (longest, packages, cves) in [
        (u32::MAX, Some("12345678"), Some("äöü")),
        (8, Some("12345678"), Some("äöü")),
        (7, None, Some("äöü")),
        (6, None, Some("äöü")),
        (5, None, None),
        (0, None, None),
    ] {
        let mut shown = os_inside::shown(&tx, &[os, plain], longest)
            .await
            .expect("an answer");
        assert_eq!(shown.len(), 2);
        let shown = shown.remove(&os).expect("it came from a registry");
        assert_eq!(shown.packages.as_deref(), packages, "{longest}");
        assert_eq!(shown.existing_cves.as_deref(), cves, "{longest}");
        assert_eq!(shown.fixed_cves, None, "{longest}");
        assert_eq!(shown.inside, made.inside);
    }
    assert!(
        os_inside::shown(&tx, &[], 9)
            .await
            .expect("an answer")
            .is_empty()
    );
}

#[tokio::test]
async fn the_default_is_the_newest_of_its_line() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let default = os_inside::default_of(&tx, "edge").await.expect("an answer");
    assert_eq!(default, None);
    drop(tx);
    let mut made = Vec::new();
    for version in ["3.0.9", "3.0.10", "main", "3.0.2"] {
        made.push(make(&store, tenant, &edge(version)).await);
    }
    make(&store, tenant, &other_line("4.0.0")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let default = os_inside::default_of(&tx, "edge").await.expect("an answer");
    assert_eq!(default, Some(made[1]));
}

#[tokio::test]
async fn what_has_a_digest_is_offered_to_the_nodes_of_its_project() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let mut made = edge("3.0.1");
    let packages = beside(FileRole::Packages, Some(made.spec.sha256.clone()));
    let cves = beside(FileRole::ExistingCves, None);
    made.inside.files.extend([packages.clone(), cves]);
    make(&store, ours, &made).await;
    make(&store, theirs, &edge("3.0.2")).await;
    let tx = store.fleet().await.expect("a transaction");
    let mut offers = os_inside::offers(&tx).await.expect("an answer");
    let offer = |tenant, file: &File| Offer {
        tenant,
        registry: "release".into(),
        file: file.clone(),
    };
    let mut expected = vec![
        offer(ours, &made.inside.files[0]),
        offer(ours, &packages),
        offer(theirs, &edge("3.0.2").inside.files[0]),
    ];
    for all in [&mut offers, &mut expected] {
        all.sort_by_key(|offer| (offer.tenant, offer.file.path.clone()));
    }
    assert_eq!(offers, expected);
}

#[tokio::test]
async fn images_are_in_use_that_are_of_a_line_that_a_node_runs() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let in_use = async || {
        let tx = store.fleet().await.expect("a transaction");
        let used = os_inside::in_use(&tx).await.expect("an answer");
        let named = |(image, offer): (Image, Offer)| {
            assert_eq!(offer.file.role, FileRole::Image);
            assert_eq!(offer.file.path, image.url);
            (offer.tenant, image.name)
        };
        let mut used: Vec<_> = used.into_iter().map(named).collect();
        used.sort();
        used
    };
    let mut first = edge("3.0.1");
    let packages = beside(FileRole::Packages, Some(first.spec.sha256.clone()));
    first.inside.files.push(packages);
    for tenant in [ours, theirs] {
        make(&store, tenant, &first).await;
        make(&store, tenant, &other_line("1.0.0")).await;
    }
    let mut by_packages = edge("5.0.0");
    by_packages.spec.kind = OsKind::Mutable;
    make(&store, theirs, &by_packages).await;
    assert_eq!(in_use().await, []);

    running(&store, ours, 1, &first).await;
    running(&store, ours, 2, &first).await;
    assert_eq!(in_use().await, [(ours, "Edge 3.0.1".to_owned())]);
    make(&store, ours, &edge("3.0.2")).await;
    let both = ["Edge 3.0.1", "Edge 3.0.2"].map(|name| (ours, name.to_owned()));
    assert_eq!(in_use().await, both);
    // Packages come from elsewhere.
    running(&store, theirs, 1, &by_packages).await;
    assert_eq!(in_use().await, both);
}

#[tokio::test]
async fn an_instance_shows_what_its_operating_system_is_open_to_at_once() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut made = edge("3.0.1");
    let os = make(&store, tenant, &made).await;
    let (_, instance) = running(&store, tenant, 1, &made).await;
    let cves = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (whole, _) = instances::find_whole(&tx, instance).await.expect("one");
        assert_eq!(whole.instance.summary.os, os);
        whole.existing_cves
    };
    assert_eq!(cves().await, None);
    for (letter, body) in [(1, "[1]"), (2, "[2]")] {
        made.inside.existing_cves = list(&store, tenant, letter, body).await;
        assert_eq!(keep(&store, tenant, &made).await, Kept::Refreshed(os));
        assert_eq!(cves().await.as_deref(), Some(body));
    }
}
