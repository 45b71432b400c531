//! Queries for imported operating systems.

use evenkeel_domain::host::Host;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::os::catalogue::{CatalogFile, FileRole};
use evenkeel_domain::os::{Image, OsKind, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::instances::InstanceChange;
use evenkeel_store::os_details::{ImportOutcome, ImportedOs, Offer};
use evenkeel_store::{Store, instances, os_details};

use super::{edge, import, import_new, store_list};
use crate::fixtures::{
    NOON, create_node, execute_sql, store_with_project, store_with_two_projects,
};

/// A document attached to a profile.
fn attachment_file(role: FileRole, sha256: Option<Sha256>) -> CatalogFile {
    CatalogFile {
        role,
        path: format!("files/{role}.json"),
        source: format!("web:https://files.example/{role}.json"),
        sha256,
        size: None,
    }
}

/// A version of another series.
fn other_series(version: &str) -> ImportedOs {
    let mut imported = edge(version);
    imported.spec.name = format!("Other {version}");
    imported.spec.profile_name = "other".into();
    imported
}

/// Creates a node that runs the default operating system of the profile.
async fn create_running_node(
    store: &Store,
    tenant: TenantId,
    n: u128,
    imported: &ImportedOs,
) -> (Host, InstanceId) {
    let (host, instance) = create_node(store, tenant, n).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let os = os_details::find_default(&tx, &imported.spec.profile_name).await;
    let change = InstanceChange { os: os.expect("an answer"), ..InstanceChange::default() };
    instances::change(&tx, instance.id, &change, NOON).await.expect("changed");
    tx.commit().await.expect("committed");
    (host, instance.id)
}

#[tokio::test]
async fn lists_are_loaded_up_to_a_length() {
    let (store, tenant) = store_with_project().await;
    let mut imported = edge("3.0.1");
    imported.details.packages = store_list(&store, tenant, 1, "12345678").await;
    imported.details.existing_cves = store_list(&store, tenant, 2, "äöü").await;
    let os = import_new(&store, tenant, &imported).await;
    let plain = import_new(&store, tenant, &edge("3.0.2")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (longest, packages, cves) in [
        (u32::MAX, Some("12345678"), Some("äöü")),
        (8, Some("12345678"), Some("äöü")),
        (7, None, Some("äöü")),
        (6, None, Some("äöü")),
        (5, None, None),
        (0, None, None),
    ] {
        let mut details =
            os_details::find_many_with_lists(&tx, &[os, plain], longest).await.expect("an answer");
        assert_eq!(details.len(), 2);
        let details = details.remove(&os).expect("details");
        assert_eq!(details.packages.as_deref(), packages, "{longest}");
        assert_eq!(details.existing_cves.as_deref(), cves, "{longest}");
        assert_eq!(details.fixed_cves, None, "{longest}");
        assert_eq!(details.details, imported.details);
    }
    assert!(os_details::find_many_with_lists(&tx, &[], 9).await.expect("an answer").is_empty());
}

#[tokio::test]
async fn the_default_is_the_newest_of_its_series() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let default = os_details::find_default(&tx, "edge").await.expect("an answer");
    assert_eq!(default, None);
    drop(tx);
    let mut created = Vec::new();
    for version in ["3.0.9", "3.0.10", "main", "3.0.2"] {
        created.push(import_new(&store, tenant, &edge(version)).await);
    }
    import_new(&store, tenant, &other_series("4.0.0")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let default = os_details::find_default(&tx, "edge").await.expect("an answer");
    assert_eq!(default, Some(created[1]));
}

#[tokio::test]
async fn files_with_a_digest_are_offered_to_their_project() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let mut imported = edge("3.0.1");
    let packages = attachment_file(FileRole::Packages, Some(imported.spec.sha256.clone()));
    let cves = attachment_file(FileRole::ExistingCves, None);
    imported.details.files.extend([packages.clone(), cves]);
    import_new(&store, ours, &imported).await;
    import_new(&store, theirs, &edge("3.0.2")).await;
    let tx = store.fleet().await.expect("a transaction");
    let mut offers = os_details::list_offers(&tx).await.expect("an answer");
    let offer = |tenant, file: &CatalogFile| Offer {
        tenant,
        registry: "release".into(),
        file: file.clone(),
    };
    let mut expected = vec![
        offer(ours, &imported.details.files[0]),
        offer(ours, &packages),
        offer(theirs, &edge("3.0.2").details.files[0]),
    ];
    for all in [&mut offers, &mut expected] {
        all.sort_by_key(|offer| (offer.tenant, offer.file.path.clone()));
    }
    assert_eq!(offers, expected);
}

#[tokio::test]
async fn images_of_a_series_are_in_use_while_a_node_runs_one() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let in_use = async || {
        let tx = store.fleet().await.expect("a transaction");
        let used = os_details::list_images_in_use(&tx).await.expect("an answer");
        let describe = |(image, offer): (Image, Offer)| {
            assert_eq!(offer.file.role, FileRole::Image);
            assert_eq!(offer.file.path, image.url);
            (offer.tenant, image.name)
        };
        let mut used: Vec<_> = used.into_iter().map(describe).collect();
        used.sort();
        used
    };
    let mut first = edge("3.0.1");
    let packages = attachment_file(FileRole::Packages, Some(first.spec.sha256.clone()));
    first.details.files.push(packages);
    for tenant in [ours, theirs] {
        import_new(&store, tenant, &first).await;
        import_new(&store, tenant, &other_series("1.0.0")).await;
    }
    let mut by_packages = edge("5.0.0");
    by_packages.spec.kind = OsKind::Mutable;
    import_new(&store, theirs, &by_packages).await;
    assert_eq!(in_use().await, []);

    create_running_node(&store, ours, 1, &first).await;
    create_running_node(&store, ours, 2, &first).await;
    assert_eq!(in_use().await, [(ours, "Edge 3.0.1".to_owned())]);
    import_new(&store, ours, &edge("3.0.2")).await;
    let both = ["Edge 3.0.1", "Edge 3.0.2"].map(|name| (ours, name.to_owned()));
    assert_eq!(in_use().await, both);
    // Nodes that are updated by packages need no image.
    create_running_node(&store, theirs, 1, &by_packages).await;
    assert_eq!(in_use().await, both);
}

/// A newer server has imported an image of one project.
#[tokio::test]
async fn an_import_that_cannot_be_read_takes_no_files_from_other_projects() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let imported = edge("3.0.1");
    for tenant in [ours, theirs] {
        import_new(&store, tenant, &imported).await;
        create_running_node(&store, tenant, 1, &imported).await;
    }
    let newer = format!(
        "UPDATE os_details SET files = '[{{\"role\": \"recipe\", \"path\": 5}}]' WHERE tenant_id = '{}'",
        theirs.uuid()
    );
    execute_sql(&store, &newer).await;
    let tx = store.fleet().await.expect("a transaction");
    let offers = os_details::list_offers(&tx).await.expect("an answer");
    let offering: Vec<TenantId> = offers.iter().map(|offer| offer.tenant).collect();
    assert_eq!(offering, [ours]);
    let used = os_details::list_images_in_use(&tx).await.expect("an answer");
    let using: Vec<TenantId> = used.iter().map(|(_, offer)| offer.tenant).collect();
    assert_eq!(using, [ours]);
}

#[tokio::test]
async fn an_instance_has_the_current_cves_of_its_operating_system() {
    let (store, tenant) = store_with_project().await;
    let mut imported = edge("3.0.1");
    let os = import_new(&store, tenant, &imported).await;
    let (_, instance) = create_running_node(&store, tenant, 1, &imported).await;
    let cves = async || {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (details, _) = instances::find_details(&tx, instance).await.expect("an instance");
        assert_eq!(details.instance.summary.os, os);
        details.existing_cves
    };
    assert_eq!(cves().await, None);
    for (letter, body) in [(1, "[1]"), (2, "[2]")] {
        imported.details.existing_cves = store_list(&store, tenant, letter, body).await;
        assert_eq!(import(&store, tenant, &imported).await, ImportOutcome::Updated(os));
        assert_eq!(cves().await.as_deref(), Some(body));
    }
}
