//! Syncing a registry into projects: what is taken, what is not, and what the report says.

mod attachments;

use std::time::Duration;

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::testing::{AccessRule, Fault, FaultKind, RegistryOptions, TestRegistry};
use evenkeel_store::os_details;

use crate::test_server::{
    PROFILE_PREFIX, REGISTRY_NAME, TestServer, finding_kinds, list_systems, profile_yaml,
    report_text, select_profiles,
};

#[tokio::test]
async fn a_project_gets_its_selection_and_later_patches() {
    let server = TestServer::new("~0.3.1", &["edge", "edge-rt"]).await;
    for (tag, image) in [("0.3.0", "3.0.0"), ("0.3.1", "3.0.1"), ("main", "3.0.9")] {
        server.publish("edge", tag, image);
    }
    server.publish("edge-rt", "0.3.1", "3.0.1");
    server.publish("other", "0.3.1", "3.0.1");
    let first = server.sync().await;
    assert_eq!(
        server.report_text(&first),
        "succeeded: 2 created, 0 updated, 0 unchanged, 0 refused"
    );
    assert_eq!((first.registry.as_str(), first.revision.as_str()), (REGISTRY_NAME, "~0.3.1"));
    assert_eq!(server.os_names().await, ["edge 3.0.1", "edge-rt 3.0.1"]);

    // A patch is taken, a minor release is not.
    server.publish("edge", "0.3.2", "3.0.2");
    server.publish("edge", "0.4.0", "4.0.0");
    server.registry.forget_requests();
    let second = server.sync().await;
    assert_eq!(report_text(&second), "succeeded: 1 created, 0 updated, 2 unchanged, 0 refused");
    assert!(second.cycle > first.cycle);
    assert_eq!(server.os_names().await, ["edge 3.0.1", "edge 3.0.2", "edge-rt 3.0.1"]);
    // Known revisions are not fetched again.
    let blobs = server.registry.requests().into_iter();
    assert_eq!(blobs.filter(|line| line.contains("/blobs/")).count(), 1);
}

#[tokio::test]
async fn an_os_profile_has_the_fields_of_its_document() {
    let server = TestServer::new("0.3.1", &["edge"]).await;
    let manifest = server.publish("edge", "0.3.1", "3.0.1");
    server.sync().await;
    let systems = server.list_systems().await;
    let os = &systems[0];
    assert_eq!(os.spec.name, "edge 3.0.1");
    assert_eq!(os.spec.image_url, "images/edge-3.0.1.raw");
    let tx = server.store.tenant(server.tenant).await.expect("a transaction");
    let details = os_details::find_many(&tx, &[os.id]).await.expect("details");
    let details = &details[&os.id];
    assert_eq!(details.repository, format!("{PROFILE_PREFIX}edge"));
    assert_eq!((details.registry.as_str(), details.revision.as_str()), (REGISTRY_NAME, "0.3.1"));
    assert_eq!(&details.artifact, manifest.digest.bytes());
}

#[tokio::test]
async fn a_moved_tag_is_reported_and_its_image_stays() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.publish("edge", "0.3.2", "3.0.2");
    server.sync().await;
    // The same image with another description and a signature.
    let signature = format!("{}:MEUCIQ+/aQ==", "1".repeat(64));
    let more = format!("  description: better\n  osImageSignatures:\n    - {signature}\n");
    let text = profile_yaml("edge", "3.0.1", &more);
    server.publish_text("edge", "0.3.1", &text);
    let moved = server.sync().await;
    assert_eq!((moved.updated, moved.unchanged, moved.outcome), (1, 1, CycleOutcome::Good));
    assert_eq!(finding_kinds(&moved), [("0.3.1", "tag_moved")]);
    assert!(moved.findings[0].os.is_some());
    let spec = &server.list_systems().await[0].spec;
    assert_eq!(spec.description, "better");
    assert_eq!(spec.image_signatures, [signature]);
    // The same image version with another content: it must not change, because nodes that run it rely on it.
    let text = profile_yaml("edge", "3.0.2", "").replace("edge-3.0.2.raw", "other.raw");
    server.publish_text("edge", "0.3.2", &text);
    let other = server.sync().await;
    assert_eq!((other.refused, other.outcome), (1, CycleOutcome::Partial));
    let expected =
        [("0.3.1", "tag_moved"), ("0.3.2", "tag_moved"), ("0.3.2", "same_image_other_digest")];
    assert_eq!(finding_kinds(&other), expected);
    assert_eq!(server.list_systems().await[1].spec.image_url, "images/edge-3.0.2.raw");
    // An earlier finding keeps its time.
    assert_eq!(other.findings[0].since, moved.findings[0].since);
}

#[tokio::test]
async fn a_gone_tag_is_reported_and_its_os_profile_stays() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.publish("edge", "0.3.2", "3.0.2");
    server.sync().await;
    let before = server.list_systems().await;
    server.registry.remove_tag(&format!("{PROFILE_PREFIX}edge"), "0.3.1");
    let report = server.sync().await;
    assert_eq!(finding_kinds(&report), [("0.3.1", "gone")]);
    assert_eq!(report.findings[0].os, Some(before[0].id));
    assert_eq!((report.unchanged, report.outcome), (1, CycleOutcome::Good));
    assert_eq!(server.list_systems().await, before);
    // A project that comes later neither gets the revision nor a finding about it.
    let other = server.create_project("other").await;
    select_profiles(&server.store, other, "~0.3", &["edge"]).await;
    server.manager.run_pass().await.expect("a pass");
    let tx = server.store.tenant(other).await.expect("a transaction");
    let other_report = evenkeel_store::os_reports::find(&tx).await;
    let other_report = other_report.expect("a report").expect("it is stored");
    assert_eq!((finding_kinds(&other_report), other_report.outcome), (vec![], CycleOutcome::Good));
    assert_eq!(list_systems(&server.store, other).await.len(), 1);
    // The tag comes back.
    server.publish("edge", "0.3.1", "3.0.1");
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 0 created, 0 updated, 2 unchanged, 0 refused");
}

#[tokio::test]
async fn of_a_thousand_tags_only_the_selected_are_read() {
    let registry = TestRegistry::with_options(RegistryOptions {
        page_size: 150,
        ..RegistryOptions::default()
    });
    let server = TestServer::with_registry(registry, |_| {}).await;
    server.select_profiles("~0.3.990", &["edge"]).await;
    for number in 0..1_000 {
        server.publish("edge", &format!("0.3.{number:04}"), &format!("3.0.{number}"));
    }
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 10 created, 0 updated, 0 unchanged, 0 refused");
    let count = |what: &str| {
        server.registry.count_requests(&format!("GET /v2/{PROFILE_PREFIX}edge/{what}"))
    };
    assert_eq!(count("tags/list"), 7);
    assert_eq!(count("manifests/0."), 10);
    assert_eq!(count("blobs/"), 10);
}

#[tokio::test]
async fn two_hundred_profiles_are_synced_at_once() {
    let names: Vec<String> = (0..200).map(|number| format!("edge-{number:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let server = TestServer::new("0.3.1", &names).await;
    for name in &names {
        server.publish(name, "0.3.1", "3.0.1");
    }
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 200 created, 0 updated, 0 unchanged, 0 refused");
    assert_eq!(server.list_systems().await.len(), 200);
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 0 created, 0 updated, 200 unchanged, 0 refused");
}

#[tokio::test]
async fn registry_credentials_come_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let password = folder.path().join("password");
    let basic = AccessRule::Basic("fleet".to_owned(), "open sesame".to_owned());
    for entry in [AccessRule::tokens("fleet", "open sesame"), basic] {
        std::fs::write(&password, "wrong\n").expect("a file");
        let registry = TestRegistry::with_options(RegistryOptions {
            access: entry,
            ..RegistryOptions::default()
        });
        let server = TestServer::with_registry(registry, |settings| {
            settings.username = Some("fleet".to_owned());
            settings.password_file = Some(password.clone());
        })
        .await;
        server.select_profiles("0.3.1", &["edge"]).await;
        server.publish("edge", "0.3.1", "3.0.1");
        let refused = server.sync().await;
        assert_eq!(refused.outcome, CycleOutcome::Failed, "{refused:?}");
        assert!(refused.message.contains("access denied"), "{refused:?}");
        // The file is read again for each sync.
        std::fs::write(&password, "open sesame\n").expect("a file");
        let report = server.sync().await;
        assert_eq!(report_text(&report), "succeeded: 1 created, 0 updated, 0 unchanged, 0 refused");
    }
}

#[tokio::test]
async fn profiles_stay_while_the_registry_is_unreachable() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.sync().await;
    server.publish("edge", "0.3.2", "3.0.2");
    for fault in [FaultKind::Status(503), FaultKind::Silent, FaultKind::Stall] {
        server.registry.add_fault(Fault::always("/v2/", fault.clone()));
        let report = server.sync().await;
        assert_ne!(report.outcome, CycleOutcome::Good, "{fault:?}");
        let is_explained = !report.message.is_empty() || !report.findings.is_empty();
        assert!(is_explained, "{fault:?}: {report:?}");
        assert_eq!(server.os_names().await, ["edge 3.0.1"], "{fault:?}");
        assert!(finding_kinds(&report).iter().all(|(_, kind)| *kind != "gone"), "{fault:?}");
        server.registry.clear_faults();
    }
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 1 created, 0 updated, 1 unchanged, 0 refused");
}

#[tokio::test]
async fn an_os_profile_without_a_free_name_is_reported() {
    let server = TestServer::new("0.3.1", &["edge", "good"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.publish("good", "0.3.1", "3.0.1");
    let text = profile_yaml("taken", "3.0.1", "");
    let parsed = evenkeel_registry::read_profile("taken.yaml", text.as_bytes());
    let base_spec = parsed.expect("a profile").spec;
    let tx = server.store.tenant(server.tenant).await.expect("a transaction");
    for (number, name) in ["edge 3.0.1", "edge 3.0.1 (edge 3.0.1)"].into_iter().enumerate() {
        let spec = evenkeel_domain::os::OsSpec {
            name: name.to_owned(),
            image_id: number.to_string(),
            ..base_spec.clone()
        };
        let now = chrono::DateTime::UNIX_EPOCH;
        let created = evenkeel_store::os_profiles::create(&tx, &spec, now).await;
        created.expect("an operating system");
    }
    tx.commit().await.expect("committed");
    let report = server.sync().await;
    assert_eq!(finding_kinds(&report), [("0.3.1", "name_taken")]);
    assert_eq!((report.created, report.refused), (1, 1));
    assert_eq!(report.outcome, CycleOutcome::Partial);
}

#[tokio::test]
async fn a_slow_or_busy_registry_is_tolerated() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.registry.add_fault(Fault::always("/v2/", FaultKind::Slow));
    let report = server.sync().await;
    assert_eq!(report_text(&report), "succeeded: 1 created, 0 updated, 0 unchanged, 0 refused");
    server.registry.clear_faults();
    let busy =
        |status, after: &str| FaultKind::Busy { status, retry_after: after.to_owned(), date: None };
    for status in [429, 503] {
        server.registry.add_fault(Fault::times("/tags/", 2, busy(status, "0")));
        let report = server.sync().await;
        assert_eq!(report_text(&report), "succeeded: 0 created, 0 updated, 1 unchanged, 0 refused");
        server.registry.clear_faults();
    }
    // If the registry asks for half an hour, it is not contacted for that long.
    server.registry.add_fault(Fault::always("/v2/", busy(429, "1800")));
    let report = server.sync().await;
    assert_eq!(report.outcome, CycleOutcome::Failed);
    let again = server.cycle_state().await.not_before.expect("a time");
    let ended = server.cycle_state().await.ended_at.expect("a time");
    let wait = (again - ended).to_std().expect("later");
    assert!((1_700..1_900).contains(&wait.as_secs()), "{wait:?}");
    server.registry.clear_faults();
    server.registry.forget_requests();
    server.request_cycle().await;
    server.manager.run_pass().await.expect("a pass");
    assert!(server.registry.requests().is_empty());
    assert!(wait > Duration::ZERO);
}

#[tokio::test]
async fn corrupt_content_is_refused_and_the_rest_is_taken() {
    let server = TestServer::new("0.3.1", &["corrupt", "edge", "wrong"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    let corrupt = server.publish("corrupt", "0.3.1", "3.0.1");
    let fault = Fault::always(
        &format!("corrupt/blobs/{}", corrupt.layers[0].blob.digest),
        FaultKind::Corrupt,
    );
    server.registry.add_fault(fault);
    let wrong = server.publish("wrong", "0.3.1", "3.0.1");
    let other = profile_yaml("wrong", "3.0.2", "");
    let repository = format!("{PROFILE_PREFIX}wrong");
    server.registry.put_blob_as(&repository, &wrong.layers[0].blob.digest, other);
    let report = server.sync().await;
    assert_eq!((report.created, report.refused, report.outcome), (1, 2, CycleOutcome::Partial));
    let expected = [("0.3.1", "wrong_digest"), ("0.3.1", "wrong_digest")];
    assert_eq!(finding_kinds(&report), expected);
    // It is fetched again, although the tag has not moved.
    server.registry.clear_faults();
    let report = server.sync().await;
    assert_eq!((report.created, report.unchanged, report.refused), (1, 1, 1));
}

#[tokio::test]
async fn an_unknown_registry_is_reported() {
    let server = TestServer::new("0.3.1", &["edge"]).await;
    let tx = server.store.tenant(server.tenant).await.expect("a transaction");
    let selection = evenkeel_domain::os::catalogue::CatalogSelection {
        registry: Some("nowhere".to_owned()),
        revision: Some("0.3.1".to_owned()),
        ..Default::default()
    };
    evenkeel_store::os_settings::set(&tx, &selection).await.expect("settings");
    tx.commit().await.expect("committed");
    server.manager.run_pass().await.expect("a pass");
    let report = server.report().await.expect("a report");
    let why = "failed: 0 created, 0 updated, 0 unchanged, 0 refused: the server has no registry called nowhere";
    assert_eq!(report_text(&report), why);
}
