//! Lists of packages and CVE lists that OS profiles name.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_kit::TestClock;
use evenkeel_registry::testing::{Fault, FaultKind};
use evenkeel_store::testing::tenant_rows;
use evenkeel_store::{os_catalogue, os_details};

use crate::test_server::{
    PROFILE_PREFIX, REGISTRY_NAME, TestServer, finding_kinds, profile_yaml, report_text,
};

/// Lines below `spec` that name a list of packages and a CVE list.
const ATTACHMENT_FIELDS: &str =
    "  osPackageManifestURL: lists/packages.json\n  osExistingCvesURL: lists/cves.json\n";

/// Housekeeping decides by these times, and other processes by the pause for the registry.
#[tokio::test]
async fn a_sync_of_a_process_with_a_wrong_clock_stores_only_times_of_the_database() {
    for offset in [TimeDelta::hours(-23), TimeDelta::days(20)] {
        let server = TestServer::new("0.3.1", &["edge"]).await;
        server.publish_text("edge", "0.3.1", &profile_yaml("edge", "3.0.1", ATTACHMENT_FIELDS));
        let packages = r#"{"repo": [{"name": "bash", "version": "5.2"}]}"#;
        server.registry.put_file("/lists/packages.json", packages);
        server.registry.put_file("/lists/cves.json", "[]");
        let wrong = server.now() + offset;
        let manager = server.replica_with_clock(TestClock::new(wrong)).await;
        server.sync_with(&manager).await;
        assert_eq!(attached_lists(&server).await, [Some(packages.to_owned()), Some("[]".into())]);

        let tx = server.store.fleet().await.expect("a transaction");
        let attachments = os_catalogue::list_attachments(&tx, REGISTRY_NAME).await;
        for attachment in attachments.expect("a list") {
            assert_eq!(attachment.fetched_at.timestamp(), server.now().timestamp(), "{offset}");
        }
        drop(tx);
        let hour = wrong.format("%Y-%m-%dT%H:").to_string();
        let rows = tenant_rows(&server.store, server.tenant).await;
        let wrong_rows: Vec<_> = rows.iter().filter(|row| row.contains(&hour)).collect();
        assert!(wrong_rows.is_empty(), "{offset}: {wrong_rows:#?}");

        let busy = FaultKind::Busy { status: 429, retry_after: "1800".to_owned(), date: None };
        server.registry.add_fault(Fault::always("/v2/", busy));
        server.sync_with(&manager).await;
        let wait = server.cycle_state().await.not_before.expect("a time") - server.now();
        assert!((29..=31).contains(&wait.num_minutes()), "{offset}: {wait}");
    }
}

#[tokio::test]
async fn attachments_are_fetched_and_updated() {
    let server = TestServer::new("0.3.1", &["edge"]).await;
    server.publish_text("edge", "0.3.1", &profile_yaml("edge", "3.0.1", ATTACHMENT_FIELDS));
    let packages = r#"{"repo": [ {"name": "bash", "version": "5.2 "} ]}"#;
    let cves =
        r#"[ {"cve_id": "CVE-2026-0001", "priority": "high", "affected_packages": ["bash"]} ]"#;
    server.registry.put_file("/lists/packages.json", packages);
    server.registry.put_file("/lists/cves.json", cves);
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 1 created, 0 updated, 0 unchanged, 0 refused");
    assert_eq!(attached_lists(&server).await, [Some(packages.to_owned()), Some(cves.to_owned())]);
    let again = server.sync().await;
    assert_eq!(report_text(&again), "succeeded: 0 created, 0 updated, 1 unchanged, 0 refused");

    // A valid new list replaces the old one; an invalid one does not.
    server.registry.put_file("/lists/cves.json", "[]");
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 0 created, 1 updated, 0 unchanged, 0 refused");
    server.registry.put_file("/lists/cves.json", "<html>Sign in</html>");
    let report = server.sync().await;
    assert_eq!((report.unchanged, report.outcome), (1, CycleOutcome::Partial));
    assert_eq!(finding_kinds(&report), [("0.3.1", "cves")]);
    let field = report.findings[0].field.as_deref();
    assert_eq!(field, Some("spec.osExistingCvesURL"));
    assert_eq!(count_attachments(&server).await, 2);
    assert_eq!(attached_lists(&server).await, [Some(packages.to_owned()), Some("[]".to_owned())]);
}

/// Number of stored attachments.
async fn count_attachments(server: &TestServer) -> usize {
    let tx = server.store.fleet().await.expect("a transaction");
    let attachments = evenkeel_store::os_catalogue::list_attachments(&tx, REGISTRY_NAME).await;
    attachments.expect("documents").len()
}

#[tokio::test]
async fn attachments_without_a_tag_are_deleted() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server
        .registry
        .put_file("/lists/packages.json", r#"{"repo": [{"name": "bash", "version": "5.2"}]}"#);
    server.registry.put_file("/lists/cves.json", "[]");
    let text = profile_yaml("edge", "3.0.1", ATTACHMENT_FIELDS);
    server.publish_text("edge", "0.3.1", &text);
    server.sync().await;
    assert_eq!(count_attachments(&server).await, 2);
    // With another list of packages, the CVE list is filtered by that one.
    server
        .registry
        .put_file("/lists/packages.json", r#"{"repo": [{"name": "zsh", "version": "5.9"}]}"#);
    server.sync().await;
    assert_eq!(count_attachments(&server).await, 2);
    let lists = attached_lists(&server).await;
    server.registry.remove_tag(&format!("{PROFILE_PREFIX}edge"), "0.3.1");
    server.sync().await;
    assert_eq!(count_attachments(&server).await, 0);
    // Projects that have the OS profile keep its lists.
    assert!(lists[0].as_deref().is_some_and(|list| list.contains("zsh")));
    assert_eq!(attached_lists(&server).await, lists);
}

/// The lists of the only OS profile.
async fn attached_lists(server: &TestServer) -> [Option<String>; 2] {
    let systems = server.list_systems().await;
    let [os] = &systems[..] else {
        panic!("{systems:?}");
    };
    let tx = server.store.tenant(server.tenant).await.expect("a transaction");
    let mut lists =
        os_details::find_many_with_lists(&tx, &[os.id], 1_000_000).await.expect("lists");
    let lists = lists.remove(&os.id).expect("it is from the registry");
    [lists.packages, lists.existing_cves]
}
