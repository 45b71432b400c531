//! Projects that come, or want something else, at any time.

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::testing::{Fault, Way};

use crate::house::{House, PREFIX, project, systems, told, wants};

#[tokio::test]
async fn a_project_that_comes_while_the_registry_is_away_gets_what_is_known() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.sync().await;
    house.small.fail(Fault::always("/v2/", Way::Status(500)));
    let late = project(&house.store, "late").await;
    wants(&house.store, late, "~0.3", &["edge"]).await;
    let asked = house.state().await.wanted;
    house.manager.pass().await.expect("a pass");
    assert_eq!(systems(&house.store, late).await.len(), 1);
    // And the registry is asked for it.
    assert!(house.state().await.wanted > asked);
}

#[tokio::test]
async fn a_project_that_wants_something_else_gets_it_without_being_asked() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.publish("edge", "0.4.0", "4.0.0");
    house.sync().await;
    house.wants("~0.4", &["edge"]).await;
    assert!(house.report().await.is_none());
    while house.names().await.len() < 2 {
        house.manager.pass().await.expect("a pass");
        assert!(house.state().await.done <= 5, "{:?}", house.state().await);
    }
    let report = house.report().await.expect("a report");
    assert_eq!(report.revision, "~0.4");
    // What is there from before stays.
    assert_eq!(house.names().await, ["edge 3.0.1", "edge 4.0.0"]);
}

#[tokio::test]
async fn who_wants_something_else_during_a_cycle_is_not_told_that_it_is_not_there() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    house.publish("other", "0.3.1", "4.0.0");
    let blobs = format!("{PREFIX}edge/blobs/");
    house.small.fail(Fault::always(&blobs, Way::Slow));
    let wanted = house.request().await;
    let changed = async {
        while house.small.count(&format!("GET /v2/{blobs}")) == 0 {
            tokio::task::yield_now().await;
        }
        house.wants("~0.3", &["other"]).await;
    };
    let (passed, ()) = tokio::join!(house.manager.pass(), changed);
    passed.expect("a pass");
    assert_eq!(house.state().await.done, wanted);
    assert!(house.report().await.is_none());
    assert!(house.names().await.is_empty());
    // It is found without being asked.
    house.manager.pass().await.expect("a pass");
    assert_eq!(house.names().await, ["other 4.0.0"]);
    let report = house.report().await.expect("a report");
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", told(&report));
}

#[tokio::test]
async fn a_project_that_takes_nothing_in_disturbs_no_other_and_the_registry_is_left_alone() {
    let house = House::new("~0.3", &["edge"]).await;
    house.publish("edge", "0.3.1", "3.0.1");
    let names = ["zero", "first", "second"];
    let mut others = Vec::new();
    for name in names {
        let other = project(&house.store, name).await;
        wants(&house.store, other, "~0.3", &["edge"]).await;
        others.push(other);
    }
    // Whatever the order of the projects, one comes behind the first of these.
    others.sort_unstable();
    let refusing = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; \
         CREATE TRIGGER refuse BEFORE INSERT ON os_sync_reports FOR EACH ROW WHEN (NEW.tenant_id = '{}') \
         EXECUTE FUNCTION refuse()",
        others[0]
    );
    house.store.unprepared(&refusing).await.expect("a trigger");
    let report = house.sync().await;
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", told(&report));
    for other in &others[1..] {
        assert_eq!(systems(&house.store, *other).await.len(), 1);
    }
    let wanted = house.state().await.wanted;
    for _ in 0..3 {
        house.manager.pass().await.expect("a pass");
    }
    assert_eq!(house.state().await.wanted, wanted);
}
