//! What is recalled, and what is not.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId};
use evenkeel_domain::run::AttemptId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusResponse, UpdateStatus};
use evenkeel_store::log::{Change, Kind, Operation, Position, Tail};
use uuid::Uuid;

use super::table::{Entry, Moment, Named, Table};
use super::{
    Answer, Asked, Hit, Learnt, Pass, Recall, Said, Touched, View, ViewSettings, Who, answers,
};

mod model;
mod room;

const NOW: Time = Time::from_timestamp_nanos(1_800_000_000_000_000_000);

fn later(millis: i64) -> Time {
    NOW + TimeDelta::milliseconds(millis)
}

fn project(n: u128) -> TenantId {
    TenantId::new(Uuid::from_u128(n))
}

/// A view that was just brought up to date, and stays so as long as a test takes.
fn view() -> View {
    let view = View::new(ViewSettings {
        max_staleness: Duration::from_hours(1),
        ..ViewSettings::default()
    });
    catch_up(&view);
    view
}

fn catch_up(view: &View) {
    let tail = Tail {
        changes: Vec::new(),
        limit: 1,
        xmax: 1,
        more: false,
    };
    view.0.reached.passed(Instant::now(), &tail);
}

fn answer(tag: u64) -> Answer {
    Answer {
        said: Said::Eim(PlatformUpdateStatusResponse::default()),
        tag,
        fresh: false,
        counted: None,
        in_line: false,
    }
}

fn own(n: u32) -> Who {
    Who::Host(project(1), HostId::nth(n))
}

fn asked(view: &View) -> Asked {
    view.asked_own(b"facts", None, "")
}

/// What is found out now about the nth node, which stands nowhere.
fn found(view: &View, n: u32) -> Learnt {
    Learnt {
        who: own(n),
        host: HostId::nth(n),
        instance: InstanceId::nth(n),
        site: None,
        regions: Vec::new(),
        asked: asked(view),
        answer: answer(7),
        until: None,
        as_of: view.pass(),
    }
}

/// The same of one that stands at a site in a region.
fn found_at(view: &View, n: u32, site: u32, region: u32) -> Learnt {
    Learnt {
        site: Some(SiteId::nth(site)),
        regions: vec![RegionId::nth(region)],
        ..found(view, n)
    }
}

fn learn(view: &View, learnt: Learnt) -> bool {
    view.learn(learnt, NOW).kept
}

fn recalled(view: &View, who: &Who) -> Option<Hit> {
    match view.recall(who, &asked(view), NOW) {
        Recall::Hit(hit) => Some(hit),
        Recall::OtherWords { .. } | Recall::Unknown => None,
    }
}

/// Which of the first nodes are remembered.
fn remembered(view: &View) -> Vec<u32> {
    let is_there = |n: &u32| recalled(view, &own(*n)).is_some();
    (1..=9).filter(is_there).collect()
}

fn changed(kind: Kind, scope: Option<Scope>) -> Change {
    Change {
        tenant: project(1),
        kind,
        id: 1,
        operation: Operation::Update,
        scope,
        at: Position {
            epoch: 1,
            xid: 1,
            seq: 1,
        },
    }
}

fn wished(scope: Scope) -> Change {
    changed(Kind::Assignment, Some(scope))
}

#[test]
fn an_answer_is_recalled_until_time_could_change_it() {
    let view = view();
    let learnt = Learnt {
        until: Some(later(10_000) + TimeDelta::microseconds(700)),
        ..found(&view, 1)
    };
    let hit = view.learn(learnt, NOW);
    assert!(hit.kept);
    assert_eq!(hit.until, later(10_000));
    let at = |millis| view.recall(&own(1), &asked(&view), later(millis));
    let Recall::Hit(again) = at(9_999) else {
        panic!("it holds");
    };
    assert_eq!((again.answer.tag, again.until), (7, hit.until));
    assert_eq!((again.host, again.instance), (hit.host, hit.instance));
    assert_eq!(again.ground, hit.ground);
    assert!(matches!(at(10_000), Recall::Unknown));
}

#[test]
fn what_is_over_already_is_not_remembered() {
    let view = view();
    let learnt = Learnt {
        until: Some(NOW),
        ..found(&view, 1)
    };
    let hit = view.learn(learnt, NOW);
    assert!(!hit.kept);
    assert_eq!((hit.answer.tag, hit.until), (7, NOW));
}

#[test]
fn answers_that_were_learnt_together_do_not_end_together() {
    let view = view();
    let end = |n| view.learn(found(&view, n), NOW).until;
    let ends: std::collections::BTreeSet<Time> = (1..=1_000).map(end).collect();
    assert!(ends.len() > 990, "{}", ends.len());
    let longest = crate::settings::delta(ViewSettings::default().longest);
    let (first, last) = (ends.first().expect("some"), ends.last().expect("some"));
    assert!(*first >= NOW + longest * 3 / 4, "{first}");
    assert!(*last <= NOW + longest, "{last}");
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_hold_longer() {
    let (view, mut table) = (view(), Table::default());
    let learnt = Learnt {
        as_of: Some(Pass(0)),
        ..found(&view, 1)
    };
    let hit = table.learn(Entry {
        uuid: 0,
        likeness: answers::likeness(&learnt.answer, &view.0.hashers),
        until: later(1_800_000),
        millis: later(1_800_000).timestamp_millis(),
        ends: 100 + 1_800,
        may_keep: true,
        learnt,
    });
    assert!(hit.kept);
    let tenant = table.grounds.known(project(1)).expect("it is known");
    let at = |millis, seconds| {
        let moment = Moment {
            millis: later(millis).timestamp_millis(),
            seconds,
        };
        let named = Named::Host(HostId::nth(1).bits());
        table.recall(tenant, named, &asked(&view), moment)
    };
    assert!(matches!(at(0, 1_899), Recall::Hit(_)));
    assert!(matches!(at(-3_600_000, 1_900), Recall::Unknown));
    assert!(matches!(at(1_800_000, 200), Recall::Unknown));
}

#[test]
fn nothing_is_recalled_or_learnt_while_nobody_follows_or_the_view_is_too_old() {
    let view = view();
    assert!(learn(&view, found(&view, 1)));
    let learnt = found(&view, 2);
    let touched = view.rebuild("test");
    assert!(touched.all);
    assert_eq!((view.pass(), view.age()), (None, None));
    assert!(!learn(&view, learnt));
    assert!(remembered(&view).is_empty());
    let late = found(&view, 3);
    catch_up(&view);
    assert!(remembered(&view).is_empty(), "all of it is of before");
    assert!(!learn(&view, late));
    assert!(learn(&view, found(&view, 1)));

    let old = View::new(ViewSettings {
        max_staleness: Duration::ZERO,
        ..ViewSettings::default()
    });
    catch_up(&old);
    let learnt = Learnt {
        as_of: Some(Pass(0)),
        ..found(&old, 1)
    };
    assert!(!learn(&old, learnt));
    assert_eq!((old.pass(), remembered(&old)), (None, vec![]));
}

#[test]
fn other_words_are_another_question() {
    let view = view();
    assert!(learn(&view, found(&view, 1)));
    let waits = |asked: &Asked| match view.recall(&own(1), asked, NOW) {
        Recall::OtherWords { waits } => waits,
        other => panic!("{other:?}"),
    };
    assert!(waits(&view.asked_own(b"facts", None, "for a lock")));
    assert!(!waits(&view.asked_own(b"other", None, "")));
    let attempt = Some(AttemptId(Uuid::from_u128(1)));
    assert!(!waits(&view.asked_own(b"facts", attempt, "")));
    assert!(matches!(
        view.recall(&own(2), &asked(&view), NOW),
        Recall::Unknown
    ));
}

#[test]
fn everything_that_one_of_the_ancestors_agents_says_is_part_of_its_question() {
    let view = view();
    let uuid = Uuid::from_u128(1);
    let said = UpdateStatus::default();
    let text = || "x".to_owned();
    let others = [
        UpdateStatus {
            status_type: 1,
            ..said.clone()
        },
        UpdateStatus {
            status_detail: text(),
            ..said.clone()
        },
        UpdateStatus {
            profile_name: text(),
            ..said.clone()
        },
        UpdateStatus {
            profile_version: text(),
            ..said.clone()
        },
        UpdateStatus {
            os_image_id: text(),
            ..said.clone()
        },
        UpdateStatus {
            os_update_available: text(),
            ..said.clone()
        },
    ];
    let one = view.asked_eim(uuid, &said);
    assert_eq!(view.asked_eim(uuid, &said.clone()), one);
    assert_ne!(view.asked_eim(Uuid::from_u128(2), &said), one);
    assert!(
        others
            .iter()
            .all(|other| view.asked_eim(uuid, other) != one)
    );
    assert_ne!(
        View::new(ViewSettings::default()).asked_eim(uuid, &said),
        one
    );
}

#[test]
fn a_host_is_remembered_by_the_agent_that_spoke_last() {
    let view = view();
    let uuid = Who::Uuid(project(1), Uuid::from_u128(1));
    let old = Learnt {
        who: uuid,
        ..found(&view, 1)
    };
    assert!(learn(&view, old.clone()));
    assert!(recalled(&view, &uuid).is_some());
    assert!(recalled(&view, &own(1)).is_none());
    let elsewhere = Who::Uuid(project(2), Uuid::from_u128(1));
    assert!(recalled(&view, &elsewhere).is_none());
    assert!(learn(&view, found(&view, 1)));
    assert!(recalled(&view, &uuid).is_none());
    assert!(recalled(&view, &own(1)).is_some());
    assert_eq!(view.sizes().nodes, 1);

    // The UUID turns up with another host, and the instance with a third one.
    assert!(learn(&view, old.clone()));
    let moved = Learnt {
        host: HostId::nth(2),
        instance: InstanceId::nth(2),
        ..old
    };
    assert!(learn(&view, moved));
    assert_eq!(recalled(&view, &uuid).expect("known").host, HostId::nth(2));
    let third = Learnt {
        instance: InstanceId::nth(2),
        ..found(&view, 3)
    };
    assert!(learn(&view, third));
    assert!(recalled(&view, &uuid).is_none());
    assert_eq!(remembered(&view), [3]);
    assert_eq!(view.sizes().nodes, 1);
}

#[test]
fn a_change_of_one_node_is_forgotten_of_that_one_only() {
    let view = view();
    for n in 1..=3 {
        assert!(learn(&view, found_at(&view, n, 1, 1)));
    }
    let run = changed(Kind::Run, Some(Scope::Instance(InstanceId::nth(1))));
    let host = changed(Kind::Host, Some(Scope::Host(HostId::nth(3))));
    let touched = view.apply(&[run, host, run]);
    let expected = Touched {
        hosts: vec![(project(1), HostId::nth(3))],
        instances: vec![(project(1), InstanceId::nth(1))],
        ..Touched::default()
    };
    assert_eq!(touched, expected);
    assert_eq!(remembered(&view), [2]);
    assert_eq!(view.sizes().nodes, 1);
    assert!(learn(&view, found(&view, 1)), "it is looked for anew");
    assert_eq!(remembered(&view), [1, 2]);
}

#[test]
fn a_change_of_a_site_leaves_the_others_alone() {
    let view = view();
    for (n, site, region) in [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 3, 2)] {
        assert!(learn(&view, found_at(&view, n, site, region)));
    }
    assert!(learn(&view, found(&view, 5)));
    let ground = recalled(&view, &own(1)).expect("known").ground;
    let touched = view.apply(&[wished(Scope::Site(SiteId::nth(1)))]);
    assert_eq!(touched.grounds, [ground]);
    assert_eq!(remembered(&view), [3, 4, 5]);
    assert!(learn(&view, found_at(&view, 1, 1, 1)));
    let touched = view.apply(&[wished(Scope::Region(RegionId::nth(1)))]);
    assert_eq!(touched.grounds.len(), 2);
    assert_eq!(remembered(&view), [4, 5]);
    let nowhere = wished(Scope::Region(RegionId::nth(9)));
    assert_eq!(view.apply(&[nowhere]), Touched::default());
    assert_eq!(remembered(&view), [4, 5]);
}

#[test]
fn while_a_site_is_being_moved_the_regions_of_before_and_after_are_its() {
    let view = view();
    assert!(learn(&view, found_at(&view, 1, 1, 1)));
    assert!(learn(&view, found_at(&view, 2, 1, 2)));
    view.apply(&[wished(Scope::Region(RegionId::nth(1)))]);
    assert!(remembered(&view).is_empty());
    assert!(learn(&view, found_at(&view, 2, 1, 2)));
    view.apply(&[wished(Scope::Region(RegionId::nth(1)))]);
    assert_eq!(remembered(&view), [2], "it does not lie there any more");
    view.apply(&[wished(Scope::Region(RegionId::nth(2)))]);
    assert!(remembered(&view).is_empty());
}

#[test]
fn a_change_of_a_project_leaves_other_projects_alone() {
    let view = view();
    let other = Who::Host(project(2), HostId::nth(1));
    let elsewhere = Learnt {
        who: other,
        ..found(&view, 1)
    };
    assert!(learn(&view, elsewhere));
    assert!(learn(&view, found(&view, 1)));
    assert!(learn(&view, found_at(&view, 2, 1, 1)));
    let touched = view.apply(&[changed(Kind::Settings, None), changed(Kind::Os, None)]);
    assert_eq!(touched.tenants, [project(1)]);
    assert!(remembered(&view).is_empty());
    assert!(recalled(&view, &other).is_some());
    view.rebuild("test");
    catch_up(&view);
    assert!(recalled(&view, &other).is_none());
}

#[test]
fn a_slot_concerns_those_who_are_counted_with_it() {
    let view = view();
    let counted = |n, scope| Learnt {
        answer: Answer {
            counted: scope,
            ..answer(7)
        },
        ..found_at(&view, n, 1, 1)
    };
    let (site, project_wide) = (Scope::Site(SiteId::nth(1)), Scope::Project);
    let all = [Some(site), Some(project_wide), None];
    for (n, scope) in (1..).zip(all) {
        assert!(learn(&view, counted(n, scope)));
    }
    let late = counted(4, Some(site));
    let touched = view.apply(&[changed(Kind::Slot, Some(site))]);
    assert_eq!(touched.counted, [(project(1), site)]);
    assert_eq!(remembered(&view), [2, 3]);
    assert!(!learn(&view, late), "it was counted before");
    assert!(learn(&view, counted(1, Some(site))));
}

#[test]
fn who_was_looked_for_while_it_was_changed_is_not_remembered() {
    let changes = [
        wished(Scope::Instance(InstanceId::nth(1))),
        wished(Scope::Host(HostId::nth(1))),
        wished(Scope::Site(SiteId::nth(1))),
        wished(Scope::Region(RegionId::nth(1))),
        wished(Scope::Project),
    ];
    for change in changes {
        let view = view();
        let (late, other) = (found_at(&view, 1, 1, 1), found_at(&view, 2, 2, 2));
        view.apply(&[change]);
        assert!(!learn(&view, late), "{change:?}");
        let is_alone = change.scope != Some(Scope::Project);
        assert_eq!(learn(&view, other), is_alone, "{change:?}");
        assert!(learn(&view, found_at(&view, 1, 1, 1)));
        assert!(remembered(&view).contains(&1));
    }
}

#[test]
fn what_was_committed_here_is_forgotten_and_not_learnt_from_before() {
    let view = view();
    assert!(learn(&view, found(&view, 1)));
    let (late, other) = (found(&view, 1), found(&view, 2));
    view.forget(project(1), HostId::nth(1), InstanceId::nth(1));
    assert!(remembered(&view).is_empty());
    assert!(!learn(&view, late.clone()));
    assert!(learn(&view, other), "the others are as they were");
    // The pass may have read the log before that was committed.
    view.apply(&[]);
    assert!(!learn(&view, late));
    assert!(learn(&view, found(&view, 1)));
    view.apply(&[]);
    assert_eq!(remembered(&view), [1, 2]);
}

#[test]
fn passes_without_a_change_use_up_no_numbers() {
    let view = view();
    let before = view.pass();
    for _ in 0..1_000 {
        view.apply(&[]);
    }
    assert_eq!(view.pass(), before);
    view.apply(&[changed(Kind::Other, None)]);
    assert!(view.pass() > before);
}
