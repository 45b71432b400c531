//! Defects of EIM's server in the evaluation of samples, which Evenkeel must not repeat.

use super::*;
use crate::decide::{Reason, resolve_target};
use crate::id::HostId;
use crate::run::FailureKind;
use crate::schedule::{
    ScheduleFilter, ScheduleStatus, ScheduleTarget, SingleSchedule, SingleSpec, WindowQuery,
};
use crate::text::Name;
use SampleKind::{Downloaded, Downloading, Failed, Started, UpToDate, Updated};

/// A detail with `count` packages that differs in each round.
fn package_detail(round: u32, count: u32) -> String {
    let one = |n| format!(r#"{{"package_name":"p{n}","status":"installed","version":"{round}"}}"#);
    let entries: Vec<_> = (0..count).map(one).collect();
    format!(r#"{{"update_log":[{}]}}"#, entries.join(","))
}

/// EIM's server changed the displayed text in place for the whole process, so it grew with each update.
#[test]
fn the_status_text_never_grows() {
    let mut story = Story::at_rest(true);
    for round in 0..30 {
        story.receive(&sample(Started));
        let proof = story.receive(&sample_with_detail(Updated, &package_detail(round, 3)));
        assert_eq!(proof.status, None, "the run is displayed");
        let ended = &story.runs.last().expect("a run").1;
        assert_eq!(ended.status().0, "Update completed");
        story.receive(&sample_with_detail(UpToDate, &package_detail(round, 3)));
        assert_eq!(story.status, "No new updates available");
    }
    assert_eq!(Updated.status().0, "Update completed");
    assert_eq!(Detail::parse(&package_detail(1, 3)).changed_count, 3, "packages are counted");
}

/// In EIM an update with packages never ended, and the next one was merged into it.
#[test]
fn an_update_with_packages_ends_and_the_next_one_is_its_own_run() {
    let mut story = Story::at_rest(true);
    for round in 0..2 {
        let detail = package_detail(round, 2);
        story.receive_all(&[sample(Started), sample_with_detail(Updated, &detail)]);
        let (_, state) = story.runs.last().expect("a run");
        assert_eq!(state.name(), "succeeded");
        assert_eq!(state.ended_at(), Some(story.now - TICK));
        story.receive(&sample_with_detail(UpToDate, &detail));
    }
    assert_eq!(story.runs.len(), 2);
    assert_eq!(story.logs, [package_detail(0, 2), package_detail(1, 2)]);
}

/// EIM's server did not understand the format of its own agents, so no failure had a reason.
#[test]
fn the_failure_reason_of_an_eim_agent_is_stored() {
    let detail =
        r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"signaturecheck"}]}"#;
    let mut story = Story::at_rest(true);
    story.receive_all(&[sample(Started), sample_with_detail(Failed, detail)]);
    assert_eq!(story.failure(0), "signaturecheck");
    assert_eq!(story.logs, [detail]);
    // The same failure with the same detail in the next night is confirmed, with its reason, when it persists.
    story.receive_all(&[
        sample_with_detail(Started, detail),
        sample_with_detail(Failed, detail),
        sample_with_detail(Failed, detail),
    ]);
    assert_eq!(story.failure(1), "signaturecheck");
    let RunState::Failed { failure, .. } = &story.runs[1].1 else {
        panic!("it failed");
    };
    assert_eq!(failure.kind, FailureKind::Signature);
}

/// EIM's server ignored an end without a beginning.
#[test]
fn an_update_whose_start_was_missed_is_recorded() {
    assert_eq!(transitions_of(&[Updated, UpToDate]), "finished->succeeded");
    let mut story = Story::at_rest(false);
    let transitions = story.receive_all(&[sample_with_detail(Failed, "cannot download: 404")]);
    assert_eq!(transitions, "failed->failed");
    // The run is for the delivered target, not for the one that applies now.
    let mut story = Story::new(node(OsKind::Immutable));
    story.delivered.policy = Some(PolicyId::nth(1));
    story.delivered.image = Some(image(2, "3.0.2"));
    story.receive_all(&[sample(UpToDate), sample_of_image(Updated, "edge", "3.0.2")]);
    let of = policy(1, DesiredUpdate::Latest);
    assert_eq!(story.runs[0].0, story.delivered.target(&of));
    assert_eq!(story.delivered.target(&policy(2, DesiredUpdate::Latest)), None);
}

/// EIM's server dropped an end with an image that it could not record, and answered as if it had stored it.
#[test]
fn an_end_is_recorded_for_any_image_it_names() {
    for (what, profile, image_id) in [
        ("an unknown image", "edge", "9.9"),
        ("another profile", "desktop", "3.0.2"),
        ("the image that runs already", "edge", "3.0.1"),
        ("a profile without an image", "edge", ""),
    ] {
        for kinds in [vec![], vec![Started], vec![Downloading, Downloaded]] {
            let mut story = Story::new(node(OsKind::Immutable));
            story.delivered.image = Some(image(2, "3.0.2"));
            story.delivered.policy = Some(PolicyId::nth(1));
            story.receive(&sample(UpToDate));
            for kind in kinds {
                story.receive(&sample(kind));
            }
            story.receive(&sample_of_image(Updated, profile, image_id));
            assert_eq!(story.runs.len(), 1, "{what}");
            assert_eq!(story.runs[0].1.name(), "succeeded", "{what}");
            assert_eq!(story.facts.running, image(1, "3.0.1"), "{what}");
            assert!(story.conditions().contains(&ConditionKind::OtherImage), "{what}");
        }
    }
}

/// The common case of the same defect: an update of the kernel command line names no image.
#[test]
fn an_update_without_an_image_is_recorded() {
    let mut story = Story::new(node(OsKind::Immutable));
    story.delivered.kernel = true;
    story.delivered.policy = Some(PolicyId::nth(1));
    story.receive_all(&[sample(UpToDate), sample(Started), sample(Updated)]);
    assert_eq!(story.runs.len(), 1);
    assert_eq!(story.runs[0].1.name(), "succeeded");
    assert_eq!(story.facts.running, image(1, "3.0.1"));
    assert_eq!(story.conditions(), []);
}

/// EIM's server stored "nothing changed" as "nothing is available", so the value came and went.
#[test]
fn the_available_update_is_only_replaced_by_known_values() {
    let edge = node(OsKind::Immutable);
    assert_eq!(available_update(&edge, &[], ""), None);
    let images = [image(1, "3.0.1"), image(2, "3.0.2")];
    for reported in ["", "[]"] {
        assert_eq!(available_update(&edge, &images, reported).as_deref(), Some("Edge 3.0.2"));
    }
}

/// EIM's server offered an older or unreadable image as an update.
#[test]
fn an_older_or_unreadable_image_is_no_update() {
    let mut edge = node(OsKind::Immutable);
    edge.running = image(5, "3.0.20260602.2200");
    for other in ["3.0.20260602", "3.0.20260602.0732", "main", "3.0.x"] {
        let images = [image(6, other)];
        assert_eq!(available_update(&edge, &images, "").as_deref(), Some(""), "{other}");
        let images = [image(6, other), edge.running.clone()];
        assert_eq!(available_update(&edge, &images, "").as_deref(), Some(""), "{other}");
    }
}

/// In EIM builds before ten o'clock won over later ones of the day, and an unreadable version won over all.
#[test]
fn the_newest_image_has_the_greatest_version_numbers() {
    let mut desired = desired_state(policy(1, DesiredUpdate::Latest), &[]);
    let facts = node(OsKind::Immutable);
    for (versions, newest) in [
        (["3.0.20250717.0732", "3.0.20250717.2200"], "3.0.20250717.2200"),
        (["3.0.20260602", "3.0.20260602.2200"], "3.0.20260602.2200"),
        (["main", "3.0.20250504-2200"], "3.0.20250504-2200"),
        (["3.0.20250504-2200", "3.0.20250504-0732"], "3.0.20250504-2200"),
    ] {
        desired.images = vec![image(7, versions[0]), image(8, versions[1])];
        let kind = resolve_target(&facts, &desired).expect("an image").kind;
        let TargetKind::Image(image) = kind else {
            panic!("an image");
        };
        assert_eq!(image.image_id, newest);
    }
}

/// In EIM a run that was given up stayed open for ever, and later updates were written into it.
#[test]
fn an_update_is_never_merged_into_an_open_run() {
    for kinds in [vec![Downloading], vec![Downloaded], vec![Started]] {
        let mut story = Story::at_rest(false);
        for kind in &kinds {
            story.receive(&sample(*kind));
        }
        story.receive(&sample(UpToDate));
        assert!(story.open_run().is_none(), "{kinds:?}");
        story.receive_all(&[sample(Downloading), sample(Started), sample(Updated)]);
        assert_eq!(story.runs.len(), 2, "{kinds:?}");
        assert!(story.runs.iter().all(|(_, state)| state.is_final()), "{kinds:?}");
    }
    // Both its end and the rest after it were missed.
    assert_eq!(
        transitions_of(&[Started, Downloading, Updated]),
        "began->applying superseded->abandoned downloading->downloading finished->succeeded"
    );
    // A run that an earlier server left open.
    let mut story = Story::at_rest(true);
    story.runs.push((None, RunState::Staged { since: NOON }));
    story.logs.push(String::new());
    assert_eq!(story.receive_all(&[sample(Started)]), "superseded->abandoned began->applying");
}

/// EIM's server opened a run with the detail of the previous update. The agent does not clear a detail, and often writes
/// the same one at the next success.
#[test]
fn a_detail_belongs_to_a_success_and_not_to_the_start_of_the_next_update() {
    let old = package_detail(1, 1);
    let mut story = Story::at_rest(true);
    story.receive_all(&[
        sample(Started),
        sample_with_detail(Updated, &old),
        sample_with_detail(UpToDate, &old),
    ]);
    let transitions = story.receive_all(&[
        sample_with_detail(Downloading, &old),
        sample_with_detail(Started, &old),
        sample_with_detail(Updated, &old),
    ]);
    assert_eq!(transitions, "downloading->downloading began->applying finished->succeeded");
    assert_eq!(story.logs, [old.as_str(), old.as_str()], "equal details are kept");
    // A detail of a success does not explain the next failure.
    story.receive_all(&[
        sample_with_detail(UpToDate, &old),
        sample_with_detail(Failed, &old),
        sample_with_detail(Failed, &old),
    ]);
    assert_eq!(story.failure(2), "the node gave no reason");
    assert_eq!(story.logs[2], "");
}

/// In EIM windows for maintenance, shipping and the like caused updates.
#[test]
fn only_update_schedules_open_windows() {
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
        schedule.windows_from(&WindowQuery {
            now: NOON,
            until: NOON + hours(24),
            limit: 10,
            max_window: hours(24),
            filter: ScheduleFilter::default(),
        })
    };
    for status in ScheduleStatus::ALL {
        let story = delivery::Node::packages(&windows(*status));
        let is_for_updates = *status == ScheduleStatus::OsUpdate;
        assert_eq!(story.answer_at(NOON).single.is_some(), is_for_updates, "{status}");
    }
}

/// EIM's server chose the window with the nearest start, so later ones hid open ones, and open-ended ones hid all.
#[test]
fn an_open_window_comes_first_and_an_endless_one_hides_none() {
    for (what, windows, chosen) in [
        ("an open one that began long ago", [(-3, 1), (1, 2)], span(-3, 1)),
        ("an endless one began a while ago", [(-1, 23), (0, 2)], span(0, 2)),
        ("two that are to come", [(5, 6), (2, 9)], span(2, 9)),
    ] {
        let windows = windows.map(|(from, to)| window(from, to));
        let node = delivery::Node::packages(&windows);
        assert_eq!(node.answer_at(NOON).single, Some(chosen), "{what}");
    }
}

/// In EIM a target that does not fit a node failed its whole call.
#[test]
fn an_unusable_policy_gives_an_empty_answer() {
    let desired_image =
        DesiredUpdate::parse_target(Some(OsId::nth(9)), "", &[], "").expect("an image");
    for (desired, os_kind) in [
        (desired_image.clone(), OsKind::Mutable),
        (desired_image, OsKind::Immutable),
        (DesiredUpdate::Latest, OsKind::Immutable),
        (DesiredUpdate::parse_target(None, "jq", &[], "").expect("packages"), OsKind::Immutable),
    ] {
        let node = delivery::Node {
            facts: node(os_kind),
            desired: desired_state(policy(1, desired), &[window(-1, 1)]),
            ..delivery::Node::packages(&[])
        };
        assert_eq!(node.answer_at(NOON), Answer::default());
    }
}

/// EIM's server delivered a policy's image whatever its profile and version.
#[test]
fn an_image_that_is_not_newer_or_of_another_profile_is_not_delivered() {
    let desired_image =
        DesiredUpdate::parse_target(Some(OsId::nth(9)), "", &[], "").expect("an image");
    let desktop = Image { profile_name: "desktop".to_owned(), ..image(9, "3.0.2") };
    for (other, reason) in [
        (image(9, "3.0.0"), "not_newer"),
        (image(9, "main"), "not_newer"),
        (image(9, "3.0.1"), "not_newer"),
        (desktop, "policy_does_not_fit"),
    ] {
        let mut desired = desired_state(policy(1, desired_image.clone()), &[window(-1, 1)]);
        desired.policies[0].image = Some(other);
        let facts = node(OsKind::Immutable);
        let refused = resolve_target(&facts, &desired).err();
        assert_eq!(refused.as_ref().map(Reason::code), Some(reason));
        assert!(refused.and_then(|reason| reason.condition()).is_some(), "a condition is raised");
        let node = delivery::Node { facts, desired, ..delivery::Node::packages(&[]) };
        assert_eq!(node.answer_at(NOON), Answer::default());
    }
}

/// In EIM a detail that was too large lost the outcome as well.
#[test]
fn an_oversized_detail_is_cut_and_its_outcome_is_stored() {
    let large = "x".repeat(10 << 20);
    let mut story = Story::at_rest(true);
    story.receive_all(&[sample(Started), sample_with_detail(Failed, &large)]);
    assert_eq!(story.runs[0].1.name(), "failed");
    assert_eq!(story.logs[0].len(), MAX_DETAIL_BYTES);
    assert_eq!(story.conditions(), [ConditionKind::DetailCut]);
    // A later end with a short detail clears the condition.
    story.receive_all(&[sample(Started), sample(Updated)]);
    assert_eq!(story.conditions(), []);
    let available = available_update(&node(OsKind::Mutable), &[], &"x".repeat(500_001));
    assert!(available.is_some_and(|text| text.len() <= MAX_AVAILABLE_BYTES));
}
