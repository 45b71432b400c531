//! The defects of the ancestor's server (southbound section 1.12), as far as they are ones of judgement.

use super::*;
use crate::decide::{Reason, target};
use crate::id::HostId;
use crate::run::FailureKind;
use crate::schedule::{Ahead, Opens, ScheduleStatus, ScheduleTarget, SingleSchedule, SingleSpec};
use crate::text::Name;
use SampleKind::{Downloaded, Downloading, Failed, Started, UpToDate, Updated};

/// A detail that names so many packages, each time in other words.
fn packages(round: u32, count: u32) -> String {
    let one = |n| format!(r#"{{"package_name":"p{n}","status":"installed","version":"{round}"}}"#);
    let entries: Vec<_> = (0..count).map(one).collect();
    format!(r#"{{"update_log":[{}]}}"#, entries.join(","))
}

/// M1: the shown text was changed in place for the whole process, and grew with each update.
#[test]
fn m1_the_shown_text_never_grows() {
    let mut story = Story::at_rest(true);
    for round in 0..30 {
        story.hear(&sample(Started));
        let proof = story.hear(&saying(Updated, &packages(round, 3)));
        assert_eq!(proof.shown, None, "the run is shown");
        let ended = &story.runs.last().expect("a run").1;
        assert_eq!(ended.status().0, "Update completed");
        story.hear(&saying(UpToDate, &packages(round, 3)));
        assert_eq!(story.shown, "No new updates available");
    }
    assert_eq!(Updated.status().0, "Update completed");
    assert_eq!(
        Detail::read(&packages(1, 3)).changed,
        3,
        "they are counted beside it"
    );
}

/// M2: an update with packages never ended, and the next one was merged into it.
#[test]
fn m2_an_update_with_packages_ends_and_the_next_one_is_its_own() {
    let mut story = Story::at_rest(true);
    for round in 0..2 {
        let detail = packages(round, 2);
        story.hears(&[sample(Started), saying(Updated, &detail)]);
        let (_, state) = story.runs.last().expect("a run");
        assert_eq!(state.name(), "succeeded");
        assert_eq!(state.ended_at(), Some(story.now - TICK));
        story.hear(&saying(UpToDate, &detail));
    }
    assert_eq!(story.runs.len(), 2);
    assert_eq!(story.logs, [packages(0, 2), packages(1, 2)]);
}

/// M3: what the real agents write was understood by nobody, so no failure had a reason.
#[test]
fn m3_the_reason_of_a_real_agent_is_kept() {
    let words =
        r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"signaturecheck"}]}"#;
    let mut story = Story::at_rest(true);
    story.hears(&[sample(Started), saying(Failed, words)]);
    assert_eq!(story.failure(0), "signaturecheck");
    assert_eq!(story.logs, [words]);
    // The same failure in the same words on the next night: it is believed, with its reason, when it stays.
    story.hears(&[
        saying(Started, words),
        saying(Failed, words),
        saying(Failed, words),
    ]);
    assert_eq!(story.failure(1), "signaturecheck");
    let RunState::Failed { failure, .. } = &story.runs[1].1 else {
        panic!("it failed");
    };
    assert_eq!(failure.kind, FailureKind::Signature);
}

/// M4: an end without a beginning was ignored.
#[test]
fn m4_an_update_that_was_never_seen_starting_leaves_its_history() {
    assert_eq!(proved_by(&[Updated, UpToDate]), "finished->succeeded");
    let mut story = Story::at_rest(false);
    let told = story.hears(&[saying(Failed, "cannot download: 404")]);
    assert_eq!(told, "failed->failed");
    // What it was for is what was delivered, not what is wanted by now.
    let mut story = Story::of(node(OsKind::Immutable));
    story.delivered.policy = Some(PolicyId::nth(1));
    story.delivered.image = Some(image(2, "3.0.2"));
    story.hears(&[sample(UpToDate), naming(Updated, "edge", "3.0.2")]);
    let of = policy(1, Wish::Latest);
    assert_eq!(story.runs[0].0, story.delivered.target(&of));
    assert_eq!(story.delivered.target(&policy(2, Wish::Latest)), None);
}

/// M5: an end with an image that could not be recorded was dropped, and answered as if it had been kept.
#[test]
fn m5_an_end_is_kept_whatever_image_it_names() {
    for (what, profile, image_id) in [
        ("an unknown image", "edge", "9.9"),
        ("another profile", "desktop", "3.0.2"),
        ("the image that runs already", "edge", "3.0.1"),
        ("a profile without an image", "edge", ""),
    ] {
        for kinds in [vec![], vec![Started], vec![Downloading, Downloaded]] {
            let mut story = Story::of(node(OsKind::Immutable));
            story.delivered.image = Some(image(2, "3.0.2"));
            story.delivered.policy = Some(PolicyId::nth(1));
            story.hear(&sample(UpToDate));
            for kind in kinds {
                story.hear(&sample(kind));
            }
            story.hear(&naming(Updated, profile, image_id));
            assert_eq!(story.runs.len(), 1, "{what}");
            assert_eq!(story.runs[0].1.name(), "succeeded", "{what}");
            assert_eq!(story.known.running, image(1, "3.0.1"), "{what}");
            assert!(
                story.conditions().contains(&ConditionKind::OtherImage),
                "{what}"
            );
        }
    }
}

/// M5, what always met it: an update of the kernel's command line names no image.
#[test]
fn m5_the_end_of_an_update_that_brings_no_image_is_kept() {
    let mut story = Story::of(node(OsKind::Immutable));
    story.delivered.kernel = true;
    story.delivered.policy = Some(PolicyId::nth(1));
    story.hears(&[sample(UpToDate), sample(Started), sample(Updated)]);
    assert_eq!(story.runs.len(), 1);
    assert_eq!(story.runs[0].1.name(), "succeeded");
    assert_eq!(story.known.running, image(1, "3.0.1"));
    assert_eq!(story.conditions(), []);
}

/// M8: "nothing changed" was written as "nothing is available", so the value came and went.
#[test]
fn m8_what_is_available_is_only_replaced_by_what_is_known() {
    let edge = node(OsKind::Immutable);
    assert_eq!(available(&edge, &[], ""), None);
    let images = [image(1, "3.0.1"), image(2, "3.0.2")];
    for said in ["", "[]"] {
        assert_eq!(
            available(&edge, &images, said).as_deref(),
            Some("Edge 3.0.2")
        );
    }
}

/// M9: an older or unreadable image was offered as an update.
#[test]
fn m9_an_older_or_unreadable_image_is_no_update() {
    let mut edge = node(OsKind::Immutable);
    edge.running = image(5, "3.0.20260602.2200");
    for other in ["3.0.20260602", "3.0.20260602.0732", "main", "3.0.x"] {
        let images = [image(6, other)];
        assert_eq!(
            available(&edge, &images, "").as_deref(),
            Some(""),
            "{other}"
        );
        let images = [image(6, other), edge.running.clone()];
        assert_eq!(
            available(&edge, &images, "").as_deref(),
            Some(""),
            "{other}"
        );
    }
}

/// M10: builds before ten o'clock beat the later ones of their day, and one that cannot be read beat all.
#[test]
fn m10_the_newest_image_is_the_one_with_the_greatest_numbers() {
    let mut asking = wanted(policy(1, Wish::Latest), &[]);
    let known = node(OsKind::Immutable);
    for (versions, newest) in [
        (
            ["3.0.20250717.0732", "3.0.20250717.2200"],
            "3.0.20250717.2200",
        ),
        (["3.0.20260602", "3.0.20260602.2200"], "3.0.20260602.2200"),
        (["main", "3.0.20250504-2200"], "3.0.20250504-2200"),
        (
            ["3.0.20250504-2200", "3.0.20250504-0732"],
            "3.0.20250504-2200",
        ),
    ] {
        asking.images = vec![image(7, versions[0]), image(8, versions[1])];
        let wish = target(&known, &asking).expect("an image").wish;
        let TargetKind::Image(image) = wish else {
            panic!("an image");
        };
        assert_eq!(image.image_id, newest);
    }
}

/// M12: a run that was given up stayed open for ever, and later updates were written into it.
#[test]
fn m12_the_next_update_is_never_merged_into_one_that_is_open() {
    for kinds in [vec![Downloading], vec![Downloaded], vec![Started]] {
        let mut story = Story::at_rest(false);
        for kind in &kinds {
            story.hear(&sample(*kind));
        }
        story.hear(&sample(UpToDate));
        assert!(story.open().is_none(), "{kinds:?}");
        story.hears(&[sample(Downloading), sample(Started), sample(Updated)]);
        assert_eq!(story.runs.len(), 2, "{kinds:?}");
        assert!(
            story.runs.iter().all(|(_, state)| state.is_final()),
            "{kinds:?}"
        );
    }
    // Its end and its rest were never seen.
    assert_eq!(
        proved_by(&[Started, Downloading, Updated]),
        "began->applying superseded->abandoned downloading->downloading finished->succeeded"
    );
    // A run that an earlier server left open.
    let mut story = Story::at_rest(true);
    story.runs.push((None, RunState::Staged { since: NOON }));
    story.logs.push(String::new());
    assert_eq!(
        story.hears(&[sample(Started)]),
        "superseded->abandoned began->applying"
    );
}

/// M13: a run was opened with the words of the update before.
#[test]
fn m13_the_words_of_one_update_belong_to_no_later_one() {
    let old = packages(1, 1);
    let mut story = Story::at_rest(true);
    story.hears(&[
        sample(Started),
        saying(Updated, &old),
        saying(UpToDate, &old),
    ]);
    let told = story.hears(&[
        saying(Downloading, &old),
        saying(Started, &old),
        saying(Updated, &old),
    ]);
    assert_eq!(
        told,
        "downloading->downloading began->applying finished->succeeded"
    );
    assert_eq!(story.logs, [old.as_str(), ""]);
    // Nor does the success of one explain the failure of the next.
    story.hears(&[
        saying(UpToDate, &old),
        saying(Failed, &old),
        saying(Failed, &old),
    ]);
    assert_eq!(story.failure(2), "the node gave no reason");
    assert_eq!(story.logs[2], "");
}

/// M14: windows for maintenance, shipping and the like made nodes update themselves.
#[test]
fn m14_only_schedules_for_updates_open_windows() {
    let windows = |status| {
        let schedule = SingleSchedule {
            id: SingleScheduleId::nth(1),
            spec: SingleSpec {
                name: Name::default(),
                status,
                start: NOON - hours(1),
                end: Some(NOON + hours(1)),
                target: Some(ScheduleTarget::Host(HostId::nth(1))),
            },
            created_at: NOON,
            updated_at: NOON,
        };
        schedule.windows_from(&Ahead {
            now: NOON,
            until: NOON + hours(24),
            limit: 10,
            max_window: hours(24),
            opens: Opens::default(),
        })
    };
    for status in ScheduleStatus::ALL {
        let story = delivery::Node::packages(&windows(*status));
        let is_for_updates = *status == ScheduleStatus::OsUpdate;
        assert_eq!(story.ask(NOON).single.is_some(), is_for_updates, "{status}");
    }
}

/// M15: the window whose start was nearest won, so open ones were hidden by those to come, and open-ended ones hid all.
#[test]
fn m15_an_open_window_comes_first_and_an_endless_one_hides_none() {
    for (what, windows, chosen) in [
        (
            "an open one that began long ago",
            [(-3, 1), (1, 2)],
            span(-3, 1),
        ),
        (
            "an endless one began a while ago",
            [(-1, 23), (0, 2)],
            span(0, 2),
        ),
        ("two that are to come", [(5, 6), (2, 9)], span(2, 9)),
    ] {
        let windows = windows.map(|(from, to)| window(from, to));
        let node = delivery::Node::packages(&windows);
        assert_eq!(node.ask(NOON).single, Some(chosen), "{what}");
    }
}

/// M18: a wish that cannot be meant for a node failed its whole call.
#[test]
fn m18_a_broken_wish_is_an_empty_answer() {
    let named = Wish::target(Some(OsId::nth(9)), "", &[], "").expect("an image");
    for (wish, os_kind) in [
        (named.clone(), OsKind::Mutable),
        (named, OsKind::Immutable),
        (Wish::Latest, OsKind::Immutable),
        (
            Wish::target(None, "jq", &[], "").expect("packages"),
            OsKind::Immutable,
        ),
    ] {
        let node = delivery::Node {
            known: node(os_kind),
            wanted: wanted(policy(1, wish), &[window(-1, 1)]),
            ..delivery::Node::packages(&[])
        };
        assert_eq!(node.ask(NOON), Answer::default());
    }
}

/// M24: a policy's image was delivered whatever its profile and version.
#[test]
fn m24_an_image_that_is_not_newer_or_of_another_profile_is_not_delivered() {
    let named = Wish::target(Some(OsId::nth(9)), "", &[], "").expect("an image");
    let desktop = Image {
        profile_name: "desktop".to_owned(),
        ..image(9, "3.0.2")
    };
    for (other, reason) in [
        (image(9, "3.0.0"), "not_newer"),
        (image(9, "main"), "not_newer"),
        (image(9, "3.0.1"), "not_newer"),
        (desktop, "policy_does_not_fit"),
    ] {
        let mut asking = wanted(policy(1, named.clone()), &[window(-1, 1)]);
        asking.policies[0].image = Some(other);
        let known = node(OsKind::Immutable);
        let refused = target(&known, &asking).err();
        assert_eq!(refused.as_ref().map(Reason::code), Some(reason));
        assert!(
            refused.and_then(|reason| reason.condition()).is_some(),
            "people see it"
        );
        let node = delivery::Node {
            known,
            wanted: asking,
            ..delivery::Node::packages(&[])
        };
        assert_eq!(node.ask(NOON), Answer::default());
    }
}

/// M25: a detail that was too large took the outcome with it.
#[test]
fn m25_what_is_too_large_is_cut_and_its_outcome_is_kept() {
    let large = "x".repeat(10 << 20);
    let mut story = Story::at_rest(true);
    story.hears(&[sample(Started), saying(Failed, &large)]);
    assert_eq!(story.runs[0].1.name(), "failed");
    assert_eq!(story.logs[0].len(), MAX_DETAIL);
    assert_eq!(story.conditions(), [ConditionKind::DetailCut]);
    // A later end without too many words settles it.
    story.hears(&[sample(Started), sample(Updated)]);
    assert_eq!(story.conditions(), []);
    assert_eq!(
        available(&node(OsKind::Mutable), &[], &"x".repeat(500_001)),
        None
    );
}
