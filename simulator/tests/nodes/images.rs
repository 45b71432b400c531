//! Schedules that repeat themselves, and images.

use evenkeel_proto::agent::Image;
use evenkeel_proto::agent::target::Wish;
use evenkeel_simulator::eim::Picture;
use evenkeel_simulator::truth::Attempt;

use super::*;

#[tokio::test]
async fn the_ancestors_agent_repeats_a_schedule_by_its_own_cron() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let mut node = eim_node(&puppet, &clock, TimeDelta::seconds(30)).await;
    puppet.state().minutes = Some("1,3,4");
    // Five minutes, by its clock from half a minute on.
    ticks(&mut node, &clock, 30).await;
    let truth = node.into_truth();
    let began: Vec<_> = truth
        .updates
        .iter()
        .filter_map(|update| Some(update.began?.truth.timestamp()))
        .collect();
    assert_eq!(began, [30, 150, 210]);
    assert_eq!(truth.delivered.len(), 1, "{:?}", truth.delivered);
    assert_eq!(truth.delivered[0].answers.len(), 30);
}

#[tokio::test]
async fn the_ancestors_agent_fetches_an_image_before_its_window_and_boots_it_in_it() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let node = eim_node(&puppet, &clock, TimeDelta::zero()).await;
    let mut node = node.with_image(Picture {
        profile: "edge".to_owned(),
        image: "3.0.1".to_owned(),
        sha: "sha of 3.0.1".to_owned(),
    });
    puppet.state().window = Some((35, 100));
    puppet.state().image = Some("3.0.2");
    ticks(&mut node, &clock, 3).await;
    // The wish changes before anything has begun.
    puppet.state().image = Some("3.0.3");
    puppet.state().window = None;
    ticks(&mut node, &clock, 1).await;
    let heard = puppet.heard("sample");
    let heard: Vec<_> = heard.iter().map(String::as_str).collect();
    let fetched = ["sample UpToDate", "sample Downloaded", "sample Downloaded"];
    assert_eq!(heard[..3], fetched, "{heard:?}");
    puppet.state().window = Some((55, 100));
    ticks(&mut node, &clock, 4).await;
    let heard = puppet.heard("sample");
    assert!(
        heard.contains(&"sample Updated 3.0.3".to_owned()),
        "{heard:?}"
    );
    let truth = node.into_truth();
    let booted: Vec<_> = truth
        .updates
        .iter()
        .map(|update| {
            (
                update.image.clone().map(|image| image.to),
                update.began.is_some(),
            )
        })
        .collect();
    let once = (Some("3.0.2".to_owned()), false);
    assert_eq!(booted, [once, (Some("3.0.3".to_owned()), true)]);
    let told: Vec<_> = truth
        .targets
        .iter()
        .map(|told| told.image.as_str())
        .collect();
    assert_eq!(told, ["3.0.2", "3.0.3"]);
}

#[tokio::test]
async fn our_own_agent_boots_an_image_and_says_so() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let node = own_node(&puppet, &clock, TimeDelta::zero()).await;
    let mut node = node.with_image("edge", "3.0.1");
    puppet.state().act = Some(apply(false));
    turns(&mut node, &clock, 8).await;
    let truth = node.into_truth();
    let first = truth.attempts[0].events.iter();
    let reboots = first.filter(|told| told.news == "reboot_begun");
    assert_eq!(reboots.count(), 1, "{:?}", truth.attempts[0]);
    let images: Vec<_> = truth
        .attempts
        .iter()
        .filter_map(|attempt| attempt.image.clone())
        .map(|image| (image.from, image.to))
        .collect();
    assert_eq!(images[0], ("3.0.1".to_owned(), "3.0.2".to_owned()));
    assert!(
        images[1..].iter().all(|(from, _)| from == "3.0.2"),
        "{images:?}"
    );
    let told = puppet.state().versions.clone();
    assert_eq!(told[0], ["3.0.1", "3.0.2", "3.0.2"]);
    assert_eq!(truth.attempts[0].booted.as_deref(), Some("3.0.2"));
}

#[tokio::test]
async fn our_own_agent_falls_back_and_tries_the_same_image_again_only_by_order() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let habits = own::Habits {
        fail: 800,
        ..quiet()
    };
    let node = own_node_with(&puppet, &clock, TimeDelta::zero(), habits).await;
    let mut node = node.with_image("edge", "3.0.1");
    puppet.state().act = Some(apply(false));
    until(&mut node, &clock, || !puppet.state().bad.is_empty()).await;
    assert_eq!(puppet.state().bad, ["3.0.2"]);
    let asked = puppet.heard("begin").len();
    turns(&mut node, &clock, 20).await;
    assert_eq!(puppet.heard("begin").len(), asked, "it is refused here");
    puppet.state().act = Some(apply(true));
    until(&mut node, &clock, || puppet.state().bad.is_empty()).await;

    let attempts = node.into_truth().attempts;
    let is_begun = |attempt: &&Attempt| attempt.began().is_some();
    let ends = attempts.iter().filter(is_begun).map(|attempt| {
        let last = attempt.events.last().map_or("", |told| told.news);
        (last, attempt.again, attempt.booted.as_deref().unwrap_or(""))
    });
    let ends: Vec<_> = ends.collect();
    let (first, last) = (("reverted", false, "3.0.1"), ("finished", true, "3.0.2"));
    assert_eq!((ends[0], ends[ends.len() - 1]), (first, last), "{ends:?}");
    let between = &ends[1..ends.len() - 1];
    assert!(
        between
            .iter()
            .all(|end| *end == ("reverted", true, "3.0.1")),
        "{ends:?}"
    );
    let told = puppet.state().versions.clone();
    assert_eq!(told[told.len() - 1], ["3.0.1", "3.0.2", "3.0.2"]);
}

/// An order to boot the image 3.0.2, and whether also if it failed.
fn apply(again: bool) -> Act {
    let wish = Wish::Image(Image {
        image_id: "3.0.2".to_owned(),
        sha256: "0".repeat(64),
        again,
        ..Image::default()
    });
    Act::Apply(Apply {
        target: Some(Target {
            digest: "osupdatepolicy-00000001/os-00000002".to_owned(),
            wish: Some(wish),
        }),
        before: None,
    })
}

async fn until(node: &mut OwnNode, clock: &TestClock, is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        turns(node, clock, 1).await;
    }
    panic!("it never comes to that");
}

/// Takes note of the images that an event names.
pub fn note(versions: &mut Vec<[String; 3]>, news: News) {
    match news {
        News::Downloading(said) => {
            let image = said.plan.and_then(|plan| plan.image).unwrap_or_default();
            versions.push([image.before, image.wanted, String::new()]);
        }
        News::Finished(said) => booted(versions, said.booted_image_id),
        News::Failed(said) => booted(versions, said.booted_image_id),
        News::Reverted(said) => booted(versions, said.booted_image_id),
        _ => {}
    }
}

fn booted(versions: &mut [[String; 3]], image: String) {
    if let Some([_, _, booted]) = versions.last_mut() {
        *booted = image;
    }
}
