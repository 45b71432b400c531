//! Available images of nodes.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::id::{InstanceId, OsId};
use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{ImageWatch, Settings};
use evenkeel_proto::agent::{BootedImage, Facts};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::{StatementCounts, counting_store};
use evenkeel_store::{nodes, os_profiles};
use futures_util::future::join_all;
use tokio::sync::Notify;

use crate::fleet::{EimTestNode, sample};
use crate::test_server::{TestNode, TestServer, facts};

impl TestServer {
    fn image_watch(&self) -> ImageWatch {
        ImageWatch::new(self.store.clone(), &Settings::default())
    }

    /// Runs a pass. Returns the number of nodes whose available update changed.
    async fn run_image_pass(&self) -> u64 {
        self.image_watch().pass().await.expect("a pass")
    }

    async fn available_update(&self, instance: InstanceId) -> String {
        self.state(instance).await.os_update_available
    }

    /// An EIM node with an image, after two samples without changes.
    async fn reported_eim_node(&self, n: u8, os: OsId) -> EimTestNode {
        let node = self.eim_node_with_os(n, os).await;
        for _ in 0..2 {
            self.send_status(&node, sample(S::UpToDate)).await;
        }
        node
    }

    /// An own node with the image 3.0.1 of the series `edge`, after it reported its facts.
    async fn own_image_node(&self, n: u8, os: OsId) -> TestNode {
        let registered = self.eim_node_with_os(n, os).await;
        let node = self.take_over(&registered).await;
        self.report_facts(&node, image_facts()).await;
        self.poll(&node).await;
        node
    }

    /// Waits until an image is available for a node.
    async fn wait_for_available_update(&self, node: &EimTestNode, new: &str) {
        let updated = async { while self.available_update(node.instance).await != new {} };
        let updated = tokio::time::timeout(Duration::from_mins(1), updated).await;
        updated.expect("the image is available");
    }

    async fn remove_image(&self, os: OsId) {
        let tx = self.tx().await;
        os_profiles::delete(&tx, os).await.expect("removed");
        tx.commit().await.expect("committed");
    }
}

fn hourly_checks() -> Settings {
    Settings { image_check_interval: Duration::from_hours(1), ..Settings::default() }
}

/// Starts a watch that is signalled through `hinted`.
fn start_watch(watch: ImageWatch, hinted: &Arc<Notify>) -> Lifecycle {
    let life = Lifecycle::new();
    let (hinted, stopping) = (Arc::clone(hinted), life.stopping());
    life.spawn("images", async move {
        watch.run(hinted, stopping).await;
        Ok(())
    });
    life
}

/// Waits until enough statements and transactions were sent.
async fn wait_for_queries(counts: &StatementCounts, is_enough: impl Fn((u64, u64)) -> bool) {
    let sent = async {
        while !is_enough(counts.totals()) {
            tokio::task::yield_now().await;
        }
    };
    let sent = tokio::time::timeout(Duration::from_mins(1), sent).await;
    sent.expect("they are sent");
}

fn image_facts() -> Facts {
    Facts {
        modules: vec!["image".into()],
        booted_image: Some(BootedImage { profile_name: "edge".into(), image_id: "3.0.1".into() }),
        ..facts()
    }
}

#[tokio::test]
async fn a_newer_image_is_available_to_older_nodes_of_its_series() {
    let server = TestServer::new().await;
    let (early, late) = (server.add_image("3.0.8").await, server.add_image("3.0.9").await);
    let other = server.add_image_of_profile("other", "3.0.1").await;
    let nodes = [
        server.eim_node_with_os(1, early).await.instance,
        server.eim_node_with_os(2, late).await.instance,
        server.eim_node_with_os(3, other).await.instance,
        server.eim_node(4).await.instance,
    ];
    let available = async || join_all(nodes.map(|node| server.available_update(node))).await;
    assert_eq!(server.run_image_pass().await, 1);
    assert_eq!(available().await, ["edge 3.0.9", "", "", ""]);

    let newest = server.add_image("3.0.10").await;
    assert_eq!(server.run_image_pass().await, 2);
    assert_eq!(available().await, ["edge 3.0.10", "edge 3.0.10", "", ""]);
    server.add_image("3.0.2").await;
    server.add_image("main").await;
    assert_eq!(server.run_image_pass().await, 0);
    assert_eq!(available().await, ["edge 3.0.10", "edge 3.0.10", "", ""]);

    server.remove_image(newest).await;
    assert_eq!(server.run_image_pass().await, 2);
    assert_eq!(available().await, ["edge 3.0.9", "", "", ""]);
    assert_eq!(server.run_image_pass().await, 0, "there is nothing new");
}

/// A sync adds a newer image for a whole fleet: polls stay as cheap as before, and the watch
/// updates the nodes.
#[tokio::test]
async fn a_newer_image_causes_no_writes_by_unchanged_polls() {
    let server = TestServer::new().await;
    let running = server.add_image("3.0.1").await;
    let eim = server.reported_eim_node(1, running).await;
    let ours = server.own_image_node(2, running).await;
    let available = async || {
        (server.available_update(eim.instance).await, server.available_update(ours.instance).await)
    };
    let neither = (String::new(), String::new());
    server.add_image("3.0.2").await;
    for _ in 0..2 {
        server.send_status(&eim, sample(S::UpToDate)).await;
        server.poll(&ours).await;
        assert_eq!(available().await, neither, "nothing was written");
    }
    assert_eq!(server.run_image_pass().await, 2);
    let both = ("edge 3.0.2".to_owned(), "edge 3.0.2".to_owned());
    assert_eq!(available().await, both);

    server.add_image("3.0.3").await;
    server.send_status(&eim, sample(S::Failed)).await;
    server.report_facts(&ours, image_facts()).await;
    let both = ("edge 3.0.3".to_owned(), "edge 3.0.3".to_owned());
    assert_eq!(available().await, both, "a write for another reason updates it, too");
    assert_eq!(server.run_image_pass().await, 0);
}

#[tokio::test]
async fn a_pass_without_changes_costs_few_queries() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    server.add_image("3.0.1").await;
    assert_eq!(server.run_image_pass().await, 0);
    let (store, counts) = counting_store(&server.store);
    let watch = ImageWatch::new(store, &Settings::default());
    let before = counts.totals();
    assert_eq!(watch.pass().await.expect("a pass"), 0);
    let (statements, transactions) = counts.totals();
    assert_eq!(transactions - before.1, 1);
    assert!(statements - before.0 <= 3, "{statements}");
}

#[tokio::test]
async fn replicas_update_each_node_once() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let running = server.add_image("3.0.1").await;
    let mut nodes = Vec::new();
    for n in 1..=5 {
        nodes.push(server.eim_node_with_os(n, running).await);
    }
    server.add_image("3.0.2").await;
    let watch = server.image_watch();
    let changed = join_all((0..4).map(|_| watch.pass())).await;
    let changed: u64 = changed.into_iter().map(|changed| changed.expect("a pass")).sum();
    assert_eq!(changed, 5);
    for node in nodes {
        assert_eq!(server.available_update(node.instance).await, "edge 3.0.2");
    }
}

#[tokio::test]
async fn a_locked_node_blocks_only_its_own_series() {
    let server = TestServer::new().await;
    let edge = server.add_image_of_profile("edge", "3.0.1").await;
    let other = server.add_image_of_profile("other", "3.0.1").await;
    let (one, two) =
        (server.eim_node_with_os(1, edge).await, server.eim_node_with_os(2, other).await);
    server.add_image_of_profile("edge", "3.0.2").await;
    server.add_image_of_profile("other", "3.0.2").await;
    let (_, impatient) = server.replica_with_short_lock_timeout().await;
    let watch = ImageWatch::new(impatient.clone(), &Settings::default());
    let busy = server.tx().await;
    nodes::lock(&busy, one.host).await.expect("a lock");
    assert_eq!(watch.pass().await.expect("a pass"), 1);
    assert_eq!(server.available_update(one.instance).await, "");
    assert_eq!(server.available_update(two.instance).await, "other 3.0.2");
    drop(busy);
    assert_eq!(watch.pass().await.expect("a pass"), 1);
    assert_eq!(server.available_update(one.instance).await, "edge 3.0.2");
    impatient.close().await;
    watch.pass().await.expect_err("the database is away");
}

#[tokio::test]
async fn a_server_updates_its_nodes_without_a_call() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let running = server.add_image("3.0.1").await;
    let node = server.eim_node_with_os(1, running).await;
    let life = Lifecycle::new();
    let replica = server.new_manager(server.store.clone(), Settings::default());
    replica.start_tasks(&life);
    server.add_image("3.0.2").await;
    server.wait_for_available_update(&node, "edge 3.0.2").await;
    life.stop();
}

/// Without a signal it would check an hour later.
#[tokio::test]
async fn an_idle_watch_runs_as_soon_as_a_change_is_signalled() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let running = server.add_image("3.0.1").await;
    let node = server.eim_node_with_os(1, running).await;
    server.run_image_pass().await;
    let (store, counts) = counting_store(&server.store);
    let hinted = Arc::new(Notify::new());
    let life = start_watch(ImageWatch::new(store, &hourly_checks()), &hinted);
    // Its first pass has found nothing.
    wait_for_queries(&counts, |(statements, _)| 2 <= statements).await;
    server.add_image("3.0.2").await;
    hinted.notify_one();
    server.wait_for_available_update(&node, "edge 3.0.2").await;
    life.stop();
}

#[tokio::test]
async fn a_watch_without_change_signals_still_updates_nodes() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let running = server.add_image("3.0.1").await;
    let node = server.eim_node_with_os(1, running).await;
    let settings = Settings { image_check_interval: Duration::ZERO, ..Settings::default() };
    let watch = ImageWatch::new(server.store.clone(), &settings);
    let life = start_watch(watch, &Arc::default());
    for version in ["3.0.2", "3.0.3"] {
        server.add_image(version).await;
        server.wait_for_available_update(&node, &format!("edge {version}")).await;
    }
    life.stop();
}

#[tokio::test]
async fn a_skipped_node_is_retried_without_a_signal() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let running = server.add_image("3.0.1").await;
    let node = server.eim_node_with_os(1, running).await;
    server.add_image("3.0.2").await;
    let (_, impatient) = server.replica_with_short_lock_timeout().await;
    let busy = server.tx().await;
    nodes::lock(&busy, node.host).await.expect("a lock");
    let (store, counts) = counting_store(&impatient);
    let life = start_watch(ImageWatch::new(store, &hourly_checks()), &Arc::default());
    // The third transaction belongs to a second pass, so the first pass found the node locked.
    wait_for_queries(&counts, |(_, transactions)| 3 <= transactions).await;
    drop(busy);
    server.wait_for_available_update(&node, "edge 3.0.2").await;
    life.stop();
}
