//! Projects that are created, or change their selection, at any time.

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::testing::{Fault, FaultKind};

use crate::test_server::{PROFILE_PREFIX, TestServer, list_systems, report_text, select_profiles};

#[tokio::test]
async fn a_new_project_gets_known_profiles_while_the_registry_is_down() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.sync().await;
    server.registry.add_fault(Fault::always("/v2/", FaultKind::Status(500)));
    let late = server.create_project("late").await;
    select_profiles(&server.store, late, "~0.3", &["edge"]).await;
    let requested = server.cycle_state().await.requested;
    server.manager.run_pass().await.expect("a pass");
    assert_eq!(list_systems(&server.store, late).await.len(), 1);
    // A cycle is requested for it.
    assert!(server.cycle_state().await.requested > requested);
}

#[tokio::test]
async fn a_changed_selection_is_applied_without_a_request() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.publish("edge", "0.4.0", "4.0.0");
    server.sync().await;
    server.select_profiles("~0.4", &["edge"]).await;
    assert!(server.report().await.is_none());
    while server.os_names().await.len() < 2 {
        server.manager.run_pass().await.expect("a pass");
        assert!(server.cycle_state().await.done <= 5, "{:?}", server.cycle_state().await);
    }
    let report = server.report().await.expect("a report");
    assert_eq!(report.revision, "~0.4");
    // Earlier OS profiles stay.
    assert_eq!(server.os_names().await, ["edge 3.0.1", "edge 4.0.0"]);
}

#[tokio::test]
async fn a_selection_changed_during_a_cycle_is_not_reported_as_missing() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    server.publish("other", "0.3.1", "4.0.0");
    let blobs = format!("{PROFILE_PREFIX}edge/blobs/");
    server.registry.add_fault(Fault::always(&blobs, FaultKind::Slow));
    let number = server.request_cycle().await;
    let changed = async {
        while server.registry.count_requests(&format!("GET /v2/{blobs}")) == 0 {
            tokio::task::yield_now().await;
        }
        server.select_profiles("~0.3", &["other"]).await;
    };
    let (result, ()) = tokio::join!(server.manager.run_pass(), changed);
    result.expect("a pass");
    assert_eq!(server.cycle_state().await.done, number);
    assert!(server.report().await.is_none());
    assert!(server.os_names().await.is_empty());
    // The next pass requests its new selection.
    server.manager.run_pass().await.expect("a pass");
    assert_eq!(server.os_names().await, ["other 4.0.0"]);
    let report = server.report().await.expect("a report");
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", report_text(&report));
}

#[tokio::test]
async fn a_failing_project_does_not_affect_others_and_causes_no_requests() {
    let server = TestServer::new("~0.3", &["edge"]).await;
    server.publish("edge", "0.3.1", "3.0.1");
    let names = ["zero", "first", "second"];
    let mut others = Vec::new();
    for name in names {
        let other = server.create_project(name).await;
        select_profiles(&server.store, other, "~0.3", &["edge"]).await;
        others.push(other);
    }
    // Whatever the order of the projects, at least one comes after the first of these.
    others.sort_unstable();
    let refusing = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; \
         CREATE TRIGGER refuse BEFORE INSERT ON os_sync_reports FOR EACH ROW WHEN (NEW.tenant_id = '{}') \
         EXECUTE FUNCTION refuse()",
        others[0]
    );
    server.store.execute_unprepared(&refusing).await.expect("a trigger");
    let report = server.sync().await;
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", report_text(&report));
    for other in &others[1..] {
        assert_eq!(list_systems(&server.store, *other).await.len(), 1);
    }
    let requested = server.cycle_state().await.requested;
    for _ in 0..3 {
        server.manager.run_pass().await.expect("a pass");
    }
    assert_eq!(server.cycle_state().await.requested, requested);
}
