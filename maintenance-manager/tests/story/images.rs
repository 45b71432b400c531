//! What is new for nodes of images.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::id::{InstanceId, OsId};
use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{ImageWatch, MaintenanceManager, Settings};
use evenkeel_proto::agent::{BootedImage, Facts};
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::{Counts, counting};
use evenkeel_store::{nodes, os_profiles};
use futures_util::future::join_all;
use tokio::sync::Notify;

use crate::fleet::{OldNode, sample};
use crate::house::{House, TestNode, facts};

impl House {
    fn images(&self) -> ImageWatch {
        ImageWatch::new(self.store.clone(), &Settings::default())
    }

    /// A pass: for how many nodes something else is new.
    async fn tells(&self) -> u64 {
        self.images().pass().await.expect("a pass")
    }

    async fn new_for(&self, instance: InstanceId) -> String {
        self.state(instance).await.os_update_available
    }

    /// A node of the ancestor's with an image, that said twice that nothing is new.
    async fn quiet_node(&self, n: u8, os: OsId) -> OldNode {
        let node = self.old_node_on(n, os).await;
        for _ in 0..2 {
            self.say(&node, sample(S::UpToDate)).await;
        }
        node
    }

    /// A node of ours with the image 3.0.1 of the line `edge`, which said what it is.
    async fn our_image_node(&self, n: u8, os: OsId) -> TestNode {
        let registered = self.old_node_on(n, os).await;
        let node = self.takes_over(&registered).await;
        self.tell(&node, with_image()).await;
        self.poll(&node).await;
        node
    }

    /// Waits until a node is told of an image.
    async fn is_told(&self, node: &OldNode, new: &str) {
        let told = async { while self.new_for(node.instance).await != new {} };
        let told = tokio::time::timeout(Duration::from_mins(1), told).await;
        told.expect("it is told");
    }

    async fn removes(&self, os: OsId) {
        let tx = self.tx().await;
        os_profiles::delete(&tx, os).await.expect("removed");
        tx.commit().await.expect("committed");
    }
}

fn seldom() -> Settings {
    Settings {
        images_every: Duration::from_hours(1),
        ..Settings::default()
    }
}

/// Starts a watch that is told of changes by whoever has `hinted`.
fn watched(watch: ImageWatch, hinted: &Arc<Notify>) -> Lifecycle {
    let life = Lifecycle::new();
    let (hinted, stopping) = (Arc::clone(hinted), life.stopping());
    life.spawn("images", async move {
        watch.run(hinted, stopping).await;
        Ok(())
    });
    life
}

/// Waits until so many statements and transactions were sent.
async fn sent(counts: &Counts, is_enough: impl Fn((u64, u64)) -> bool) {
    let sent = async {
        while !is_enough(counts.both()) {
            tokio::task::yield_now().await;
        }
    };
    let sent = tokio::time::timeout(Duration::from_mins(1), sent).await;
    sent.expect("they are sent");
}

fn with_image() -> Facts {
    Facts {
        modules: vec!["image".into()],
        booted_image: Some(BootedImage {
            profile_name: "edge".into(),
            image_id: "3.0.1".into(),
        }),
        ..facts()
    }
}

#[tokio::test]
async fn a_newer_image_is_new_for_every_node_of_its_line_and_an_older_one_for_none() {
    let house = House::new().await;
    let (early, late) = (
        house.catalogue("3.0.8").await,
        house.catalogue("3.0.9").await,
    );
    let other = house.catalogue_of("other", "3.0.1").await;
    let nodes = [
        house.old_node_on(1, early).await.instance,
        house.old_node_on(2, late).await.instance,
        house.old_node_on(3, other).await.instance,
        house.old_node(4).await.instance,
    ];
    let told = async || join_all(nodes.map(|node| house.new_for(node))).await;
    assert_eq!(house.tells().await, 1);
    assert_eq!(told().await, ["edge 3.0.9", "", "", ""]);

    let newest = house.catalogue("3.0.10").await;
    assert_eq!(house.tells().await, 2);
    assert_eq!(told().await, ["edge 3.0.10", "edge 3.0.10", "", ""]);
    house.catalogue("3.0.2").await;
    house.catalogue("main").await;
    assert_eq!(house.tells().await, 0);
    assert_eq!(told().await, ["edge 3.0.10", "edge 3.0.10", "", ""]);

    house.removes(newest).await;
    assert_eq!(house.tells().await, 2);
    assert_eq!(told().await, ["edge 3.0.9", "", "", ""]);
    assert_eq!(house.tells().await, 0, "there is nothing new");
}

/// A sync brings a newer image for a whole fleet: its polls stay as cheap as they were, and the watch tells it.
#[tokio::test]
async fn a_newer_image_wakes_no_node_that_has_nothing_to_say() {
    let house = House::new().await;
    let running = house.catalogue("3.0.1").await;
    let old = house.quiet_node(1, running).await;
    let ours = house.our_image_node(2, running).await;
    let told = async || {
        (
            house.new_for(old.instance).await,
            house.new_for(ours.instance).await,
        )
    };
    let neither = (String::new(), String::new());
    house.catalogue("3.0.2").await;
    for _ in 0..2 {
        house.say(&old, sample(S::UpToDate)).await;
        house.poll(&ours).await;
        assert_eq!(told().await, neither, "nothing was written");
    }
    assert_eq!(house.tells().await, 2);
    let both = ("edge 3.0.2".to_owned(), "edge 3.0.2".to_owned());
    assert_eq!(told().await, both);

    house.catalogue("3.0.3").await;
    house.say(&old, sample(S::Failed)).await;
    house.tell(&ours, with_image()).await;
    let both = ("edge 3.0.3".to_owned(), "edge 3.0.3".to_owned());
    assert_eq!(told().await, both, "what is written anyway tells it too");
    assert_eq!(house.tells().await, 0);
}

#[tokio::test]
async fn what_is_asked_where_nothing_is_new_is_little() {
    let house = House::at_rest(Settings::default()).await;
    house.catalogue("3.0.1").await;
    assert_eq!(house.tells().await, 0);
    let (store, counts) = counting(&house.store);
    let watch = ImageWatch::new(store, &Settings::default());
    let before = counts.both();
    assert_eq!(watch.pass().await.expect("a pass"), 0);
    let (statements, transactions) = counts.both();
    assert_eq!(transactions - before.1, 1);
    assert!(statements - before.0 <= 3, "{statements}");
}

#[tokio::test]
async fn replicas_tell_a_node_once() {
    let house = House::at_rest(Settings::default()).await;
    let running = house.catalogue("3.0.1").await;
    let mut nodes = Vec::new();
    for n in 1..=5 {
        nodes.push(house.old_node_on(n, running).await);
    }
    house.catalogue("3.0.2").await;
    let watch = house.images();
    let told = join_all((0..4).map(|_| watch.pass())).await;
    let told: u64 = told.into_iter().map(|told| told.expect("a pass")).sum();
    assert_eq!(told, 5);
    for node in nodes {
        assert_eq!(house.new_for(node.instance).await, "edge 3.0.2");
    }
}

#[tokio::test]
async fn a_node_that_is_busy_holds_up_no_line_but_its_own() {
    let house = House::new().await;
    let edge = house.catalogue_of("edge", "3.0.1").await;
    let other = house.catalogue_of("other", "3.0.1").await;
    let (one, two) = (
        house.old_node_on(1, edge).await,
        house.old_node_on(2, other).await,
    );
    house.catalogue_of("edge", "3.0.2").await;
    house.catalogue_of("other", "3.0.2").await;
    let (_, impatient) = house.impatient_replica().await;
    let watch = ImageWatch::new(impatient.clone(), &Settings::default());
    let busy = house.tx().await;
    nodes::lock(&busy, one.host).await.expect("a lock");
    assert_eq!(watch.pass().await.expect("a pass"), 1);
    assert_eq!(house.new_for(one.instance).await, "");
    assert_eq!(house.new_for(two.instance).await, "other 3.0.2");
    drop(busy);
    assert_eq!(watch.pass().await.expect("a pass"), 1);
    assert_eq!(house.new_for(one.instance).await, "edge 3.0.2");
    impatient.close().await;
    watch.pass().await.expect_err("the database is away");
}

#[tokio::test]
async fn a_server_tells_its_nodes_by_itself() {
    let house = House::at_rest(Settings::default()).await;
    let running = house.catalogue("3.0.1").await;
    let node = house.old_node_on(1, running).await;
    let life = Lifecycle::new();
    let server = MaintenanceManager::new(
        house.store.clone(),
        Arc::clone(&house.clock) as Arc<dyn Clock>,
        Arc::clone(&house.authority),
        Settings::default(),
    );
    server.start_loops(&life);
    house.catalogue("3.0.2").await;
    house.is_told(&node, "edge 3.0.2").await;
    life.stop();
}

/// It would look by itself an hour later.
#[tokio::test]
async fn a_watch_that_rests_looks_as_soon_as_it_is_told_of_a_change() {
    let house = House::at_rest(Settings::default()).await;
    let running = house.catalogue("3.0.1").await;
    let node = house.old_node_on(1, running).await;
    house.tells().await;
    let (store, counts) = counting(&house.store);
    let hinted = Arc::new(Notify::new());
    let life = watched(ImageWatch::new(store, &seldom()), &hinted);
    // Its first pass has found nothing.
    sent(&counts, |(statements, _)| 2 <= statements).await;
    house.catalogue("3.0.2").await;
    hinted.notify_one();
    house.is_told(&node, "edge 3.0.2").await;
    life.stop();
}

#[tokio::test]
async fn a_node_is_told_although_nobody_follows_the_change_log() {
    let house = House::at_rest(Settings::default()).await;
    let running = house.catalogue("3.0.1").await;
    let node = house.old_node_on(1, running).await;
    let settings = Settings {
        images_every: Duration::ZERO,
        ..Settings::default()
    };
    let watch = ImageWatch::new(house.store.clone(), &settings);
    let life = watched(watch, &Arc::default());
    for version in ["3.0.2", "3.0.3"] {
        house.catalogue(version).await;
        house.is_told(&node, &format!("edge {version}")).await;
    }
    life.stop();
}

#[tokio::test]
async fn what_was_left_is_looked_at_again_although_nobody_tells() {
    let house = House::at_rest(Settings::default()).await;
    let running = house.catalogue("3.0.1").await;
    let node = house.old_node_on(1, running).await;
    house.catalogue("3.0.2").await;
    let (_, impatient) = house.impatient_replica().await;
    let busy = house.tx().await;
    nodes::lock(&busy, node.host).await.expect("a lock");
    let (store, counts) = counting(&impatient);
    let life = watched(ImageWatch::new(store, &seldom()), &Arc::default());
    // The third transaction is one of a second pass, so the first one found the node locked.
    sent(&counts, |(_, transactions)| 3 <= transactions).await;
    drop(busy);
    house.is_told(&node, "edge 3.0.2").await;
    life.stop();
}
