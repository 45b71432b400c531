//! Repeated schedules, and images.

use evenkeel_proto::agent::Image;
use evenkeel_proto::agent::target::Spec;
use evenkeel_simulator::eim::EimImage;
use evenkeel_simulator::ground_truth::Attempt;

use super::*;

#[tokio::test]
async fn the_eim_agent_repeats_a_schedule_by_its_own_cron() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let mut node = eim_node(&server, &clock, TimeDelta::seconds(30)).await;
    server.state().minutes = Some("1,3,4");
    // Five minutes; the node's clock is half a minute ahead.
    run_ticks(&mut node, &clock, 30).await;
    let ground_truth = node.into_ground_truth();
    let began: Vec<_> = ground_truth
        .updates
        .iter()
        .filter_map(|update| Some(update.began?.true_time.timestamp()))
        .collect();
    assert_eq!(began, [30, 150, 210]);
    assert_eq!(ground_truth.delivered.len(), 1, "{:?}", ground_truth.delivered);
    assert_eq!(ground_truth.delivered[0].answers.len(), 30);
}

#[tokio::test]
async fn the_eim_agent_downloads_an_image_before_its_window_and_boots_it_in_it() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let node = eim_node(&server, &clock, TimeDelta::zero()).await;
    let mut node = node.with_image(EimImage {
        profile: "edge".to_owned(),
        version: "3.0.1".to_owned(),
        sha: "sha of 3.0.1".to_owned(),
    });
    server.state().window = Some((35, 100));
    server.state().image = Some("3.0.2");
    run_ticks(&mut node, &clock, 3).await;
    // The desired image changes before anything has begun.
    server.state().image = Some("3.0.3");
    server.state().window = None;
    run_ticks(&mut node, &clock, 1).await;
    let heard = server.calls_with_prefix("sample");
    let heard: Vec<_> = heard.iter().map(String::as_str).collect();
    let fetched = ["sample UpToDate", "sample Downloaded", "sample Downloaded"];
    assert_eq!(heard[..3], fetched, "{heard:?}");
    server.state().window = Some((55, 100));
    run_ticks(&mut node, &clock, 4).await;
    let heard = server.calls_with_prefix("sample");
    assert!(heard.contains(&"sample Updated 3.0.3".to_owned()), "{heard:?}");
    let ground_truth = node.into_ground_truth();
    let booted: Vec<_> = ground_truth
        .updates
        .iter()
        .map(|update| (update.image.clone().map(|image| image.to), update.began.is_some()))
        .collect();
    let once = (Some("3.0.2".to_owned()), false);
    assert_eq!(booted, [once, (Some("3.0.3".to_owned()), true)]);
    let versions: Vec<_> =
        ground_truth.images.iter().map(|delivered| delivered.version.as_str()).collect();
    assert_eq!(versions, ["3.0.2", "3.0.3"]);
}

#[tokio::test]
async fn our_own_agent_boots_an_image_and_reports_it() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let node = own_node(&server, &clock, TimeDelta::zero()).await;
    let mut node = node.with_image("edge", "3.0.1");
    server.state().act = Some(apply(false));
    run_turns(&mut node, &clock, 8).await;
    let ground_truth = node.into_ground_truth();
    let first = ground_truth.attempts[0].events.iter();
    let reboots = first.filter(|event| event.name == "reboot_begun");
    assert_eq!(reboots.count(), 1, "{:?}", ground_truth.attempts[0]);
    let images: Vec<_> = ground_truth
        .attempts
        .iter()
        .filter_map(|attempt| attempt.image.clone())
        .map(|image| (image.from, image.to))
        .collect();
    assert_eq!(images[0], ("3.0.1".to_owned(), "3.0.2".to_owned()));
    assert!(images[1..].iter().all(|(from, _)| from == "3.0.2"), "{images:?}");
    let versions = server.state().versions.clone();
    assert_eq!(versions[0], ["3.0.1", "3.0.2", "3.0.2"]);
    assert_eq!(ground_truth.attempts[0].booted.as_deref(), Some("3.0.2"));
}

#[tokio::test]
async fn our_own_agent_falls_back_and_tries_the_same_image_again_only_by_order() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let habits = own::OwnHabits { failure_per_mille: 800, ..without_faults() };
    let node = own_node_with(&server, &clock, TimeDelta::zero(), habits).await;
    let mut node = node.with_image("edge", "3.0.1");
    server.state().act = Some(apply(false));
    turn_until(&mut node, &clock, || !server.state().failed_images.is_empty()).await;
    assert_eq!(server.state().failed_images, ["3.0.2"]);
    let start_requests = server.calls_with_prefix("begin").len();
    run_turns(&mut node, &clock, 20).await;
    assert_eq!(server.calls_with_prefix("begin").len(), start_requests, "the node refuses it");
    server.state().act = Some(apply(true));
    turn_until(&mut node, &clock, || server.state().failed_images.is_empty()).await;

    let attempts = node.into_ground_truth().attempts;
    let is_begun = |attempt: &&Attempt| attempt.began().is_some();
    let ends = attempts.iter().filter(is_begun).map(|attempt| {
        let last = attempt.events.last().map_or("", |event| event.name);
        (last, attempt.again, attempt.booted.as_deref().unwrap_or(""))
    });
    let ends: Vec<_> = ends.collect();
    let (first, last) = (("reverted", false, "3.0.1"), ("finished", true, "3.0.2"));
    assert_eq!((ends[0], ends[ends.len() - 1]), (first, last), "{ends:?}");
    let between = &ends[1..ends.len() - 1];
    assert!(between.iter().all(|end| *end == ("reverted", true, "3.0.1")), "{ends:?}");
    let versions = server.state().versions.clone();
    assert_eq!(versions[versions.len() - 1], ["3.0.1", "3.0.2", "3.0.2"]);
}

/// An act that boots the image 3.0.2; `again` allows it although it failed.
fn apply(again: bool) -> Act {
    let spec = Spec::Image(Image {
        image_id: "3.0.2".to_owned(),
        sha256: "0".repeat(64),
        is_retry: again,
        ..Image::default()
    });
    Act::Apply(Apply {
        target: Some(Target {
            digest: "osupdatepolicy-00000001/os-00000002".to_owned(),
            spec: Some(spec),
        }),
        start_deadline: None,
    })
}

async fn turn_until(node: &mut OwnNode, clock: &TestClock, is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        run_turns(node, clock, 1).await;
    }
    panic!("the condition was never met");
}

/// Records the images that an event names.
pub fn record_images(versions: &mut Vec<[String; 3]>, event: Kind) {
    match event {
        Kind::Downloading(details) => {
            let image = details.plan.and_then(|plan| plan.image).unwrap_or_default();
            versions.push([image.before, image.desired, String::new()]);
        }
        Kind::Finished(details) => record_booted(versions, details.booted_image_id),
        Kind::Failed(details) => record_booted(versions, details.booted_image_id),
        Kind::Reverted(details) => record_booted(versions, details.booted_image_id),
        _ => {}
    }
}

fn record_booted(versions: &mut [[String; 3]], image: String) {
    if let Some([_, _, booted]) = versions.last_mut() {
        *booted = image;
    }
}
