//! The loops: silence, housekeeping; and the signs of life that end a silence.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{Housekeeping, Settings, SilenceWatch, Swept, Tracker};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::{Facts, PollRequest};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::nodes;
use evenkeel_store::settings::{self, ProjectSettings};
use futures_util::future::join_all;
use tonic::Code;

use crate::fleet::sample;
use crate::house::{House, downloading, facts, finished, with};

impl House {
    pub async fn sweep(&self, settings: Settings) -> Swept {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let housekeeping = Housekeeping::new(self.store.clone(), clock, &settings);
        housekeeping.pass().await.expect("a pass")
    }
}

#[tokio::test]
async fn a_node_that_falls_silent_is_shown_so_and_comes_back_by_itself() {
    let house = House::new().await;
    let (ours, old) = (house.node().await, house.old_node(2).await);
    house.say(&old, sample(S::UpToDate)).await;
    assert_eq!(house.host_status(ours.host).await, "Running");
    for (host, instance) in [(ours.host, ours.instance), (old.host, old.instance)] {
        assert_eq!(house.silent_for(instance, 4).await, 0, "not yet");
        assert_eq!(house.silent_for(instance, 6).await, 1);
        assert_eq!(house.host_status(host).await, "No Connection");
    }
    house.poll(&ours).await;
    house.say(&old, sample(S::UpToDate)).await;
    for (host, instance) in [(ours.host, ours.instance), (old.host, old.instance)] {
        assert_eq!(house.host_status(host).await, "Running");
        assert_eq!(house.state(instance).await.status.text, "Running");
    }
}

#[tokio::test]
async fn a_node_that_comes_and_goes_is_shown_as_it_is_and_called_silent_once_each_time() {
    let house = House::new().await;
    let node = house.node().await;
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let watch = SilenceWatch::new(house.store.clone(), clock, &Settings::default());
    for _ in 0..3 {
        assert_eq!(house.silent_for(node.instance, 6).await, 1);
        assert_eq!(watch.pass().await.expect("a pass"), 0, "it is shown");
        assert_eq!(house.host_status(node.host).await, "No Connection");
        house.pass(1);
        house.poll(&node).await;
        assert_eq!(house.host_status(node.host).await, "Running");
        // When it was heard is written in batches: until then it counts that it is shown as running.
        assert_eq!(watch.pass().await.expect("a pass"), 0);
        let shown = house.state(node.instance).await.status;
        assert_eq!((shown.text.as_str(), shown.at), ("Running", house.time()));
    }
}

#[tokio::test]
async fn two_replicas_call_a_node_silent_once() {
    let house = House::new().await;
    let nodes = [house.old_node(1).await, house.old_node(2).await];
    for node in &nodes {
        house.say(node, sample(S::UpToDate)).await;
    }
    house.silent_for(nodes[0].instance, 0).await;
    house.silent_for(nodes[1].instance, 0).await;
    house.pass(10);
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let watch = SilenceWatch::new(house.store.clone(), clock, &Settings::default());
    let found = join_all((0..4).map(|_| watch.pass())).await;
    let found: usize = found.into_iter().map(|found| found.expect("a pass")).sum();
    assert_eq!(found, 2);
}

/// It looks every half minute at every run that is open, and must not hold up what their nodes say.
#[tokio::test]
async fn the_tracker_locks_no_node_whose_run_has_time() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 0, 600).await;
    let begun = [(1, downloading()), (2, crate::house::began())];
    house.report(&node, 1, policy, &begun).await;
    house.pass(60);
    let (_, impatient) = house.impatient_replica().await;
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let tracker = Tracker::new(impatient, clock, &Settings::default());
    let busy = house.tx().await;
    nodes::lock(&busy, node.host).await.expect("a lock");
    assert_eq!(tracker.pass().await.expect("nothing is due"), 0);
    house.pass(24 * 60);
    assert_eq!(tracker.pass().await.expect("a pass"), 0, "it is locked");
    drop(busy);
    assert_eq!(tracker.pass().await.expect("a pass"), 1);
}

#[tokio::test]
async fn a_node_that_is_locked_holds_up_no_run_but_its_own() {
    let house = House::new().await;
    let (one, other) = (house.nth_node(1).await, house.nth_node(2).await);
    for node in [&one, &other] {
        let policy = house.policy(node, "demo-hello=1.1").await;
        let begun = [(1, downloading()), (2, crate::house::began())];
        house.report(node, 1, policy, &begun).await;
        house.pass(1);
    }
    house.pass(25 * 60);
    let (away, impatient) = house.impatient_replica().await;
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let tracker = Tracker::new(impatient.clone(), clock, &Settings::default());
    let busy = house.tx().await;
    nodes::lock(&busy, one.host).await.expect("a lock");
    assert_eq!(tracker.pass().await.expect("a pass"), 1);
    assert_eq!(house.runs(&other).await[0].state.name(), "abandoned");
    assert_eq!(house.runs(&one).await[0].state.name(), "applying");
    // A call of the node waits in vain as well, which says nothing about the database.
    let request = PollRequest {
        facts: Some(facts()),
        ..PollRequest::default()
    };
    let refused = away.poll(with(&one.credential, request)).await;
    let refused = refused.expect_err("it is locked");
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("busy"), "{}", refused.message());
    drop(busy);
    impatient.close().await;
    tracker.pass().await.expect_err("the database is away");
}

#[tokio::test]
async fn a_heartbeat_of_the_host_manager_is_a_sign_of_life() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let (guid, shout) = (node.guid.clone(), node.guid.to_uppercase());
    house.beat(&shout).await.expect("heard");
    assert_eq!(house.host_status(node.host).await, "Running");
    house.say(&node, sample(S::UpToDate)).await;
    assert_eq!(house.silent_for(node.instance, 10).await, 1);
    house.beat(&guid).await.expect("heard");
    assert_eq!(house.host_status(node.host).await, "Running");
    assert_eq!(house.state(node.instance).await.status.text, "Running");
    for (guid, code) in [
        ("", Code::InvalidArgument),
        ("nobody", Code::InvalidArgument),
        ("a1b2c3d4-0000-4000-8000-000000000000", Code::NotFound),
    ] {
        assert_eq!(house.beat(guid).await.expect_err(guid).code(), code);
    }
}

#[tokio::test]
async fn runs_are_kept_as_long_as_their_project_or_else_the_server_says() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let ends = async |attempt| {
        let events = [
            (1, downloading()),
            (2, crate::house::began()),
            (3, finished()),
        ];
        house.report(&node, attempt, policy, &events).await;
    };
    ends(1).await;
    house.pass(20 * 24 * 60);
    ends(2).await;
    house.report(&node, 3, policy, &[(1, downloading())]).await;
    house.pass(11 * 24 * 60);
    let kept = async || house.runs(&node).await.len();

    let never = Settings {
        retention: Duration::ZERO,
        ..Settings::default()
    };
    assert_eq!(house.sweep(never).await.runs, 0);
    assert_eq!(kept().await, 3);
    let write = async |retention_days| {
        let tx = house.tx().await;
        let settings = ProjectSettings {
            retention_days,
            ..ProjectSettings::default()
        };
        settings::set(&tx, &settings).await.expect("written");
        tx.commit().await.expect("committed");
    };
    write(Some(0)).await;
    assert_eq!(house.sweep(Settings::default()).await.runs, 0);
    write(None).await;
    assert_eq!(house.sweep(Settings::default()).await.runs, 1, "30 days");
    write(Some(1)).await;
    let swept = join_all((0..4).map(|_| house.sweep(Settings::default()))).await;
    assert_eq!(swept.iter().map(|swept| swept.runs).sum::<u64>(), 1);
    assert_eq!(kept().await, 1, "what is not over stays");
}

#[tokio::test]
async fn the_change_log_is_kept_as_long_as_the_server_says() {
    let house = House::new().await;
    house.node().await;
    // The log goes by the clock of the database.
    house.pass(50 * 365 * 24 * 60);
    let never = Settings {
        log_kept: Duration::ZERO,
        ..Settings::default()
    };
    assert_eq!(house.sweep(never).await.changes, 0);
    assert!(house.sweep(Settings::default()).await.changes > 0);
    assert_eq!(house.sweep(Settings::default()).await.changes, 0);
}

#[tokio::test]
async fn the_calendar_strikes_and_a_stop_is_orderly() {
    let settings = Settings {
        housekeeping: "* * * * * *".into(),
        ..Settings::default()
    };
    let house = House::at_rest(settings).await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let events = [(1, downloading()), (2, finished())];
    house.report(&node, 1, policy, &events).await;
    house.pass(31 * 24 * 60);
    let life = Lifecycle::new();
    house.manager.start_loops(&life);
    let swept = async {
        while !house.runs(&node).await.is_empty() {
            house.pass(1);
        }
    };
    let within = Duration::from_mins(1);
    tokio::time::timeout(within, swept)
        .await
        .expect("the second strikes");
    life.stop();
    let exit = life.run_until_stopped(within).await;
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::SUCCESS));
}

#[tokio::test]
async fn a_calendar_that_is_none_stops_the_process_at_once() {
    let settings = Settings {
        housekeeping: "now and then".into(),
        ..Settings::default()
    };
    let house = House::at_rest(settings).await;
    let life = Lifecycle::new();
    house.manager.start_loops(&life);
    let exit = life.run_until_stopped(Duration::from_mins(1)).await;
    assert_eq!(format!("{exit:?}"), format!("{:?}", ExitCode::FAILURE));
}

#[tokio::test]
async fn a_list_of_packages_stays_as_long_as_anybody_has_it() {
    let house = House::new().await;
    let node = house.node().await;
    let lists = [
        r#"{"repo":[]}"#,
        r#"{"repo":[{"name":"apt","version":"1"}]}"#,
    ];
    for text in lists {
        let digest = <sha2::Sha256 as sha2::Digest>::digest(text).to_vec();
        let said = Facts {
            packages_digest: digest,
            ..facts()
        };
        let request = PollRequest {
            facts: Some(said),
            packages: text.into(),
            ..PollRequest::default()
        };
        assert!(!house.ask(&node, request).await.want_packages);
    }
    assert_eq!(
        house.sweep(Settings::default()).await.contents,
        0,
        "not yet"
    );
    house.pass(3 * 24 * 60);
    assert_eq!(house.sweep(Settings::default()).await.contents, 1);
    house.pass(30 * 24 * 60);
    assert_eq!(house.sweep(Settings::default()).await.contents, 0);
    assert!(house.known(&node).await.packages_digest.is_some());
}
