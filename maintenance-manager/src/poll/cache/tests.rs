//! Which answers are cached and found, and which are not.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_auth::KeyFingerprint;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::{HostId, InstanceId, RegionId, SiteId};
use evenkeel_domain::run::AttemptId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusResponse, UpdateStatus};
use evenkeel_store::log::{ChangeKind, LoggedChange, Operation, Position, Tail};
use uuid::Uuid;

use crate::evaluate::{Answer, AnswerPayload};

use super::table::{CacheEntry, CacheTable, CacheTime, SlotKey};
use super::{
    AnswerCache, AnswerCacheSettings, CacheKey, CachedAnswer, Invalidation, Lookup, NewAnswer,
    NodeKey, Pass, answers,
};

mod expiry;
mod memory;
mod model;

const NOW: Time = Time::from_timestamp_nanos(1_800_000_000_000_000_000);

fn later(millis: i64) -> Time {
    NOW + TimeDelta::milliseconds(millis)
}

fn project(n: u128) -> TenantId {
    TenantId::new(Uuid::from_u128(n))
}

/// A cache that was just brought up to date, and stays so for the duration of a test.
fn cache() -> AnswerCache {
    let cache = AnswerCache::new(AnswerCacheSettings {
        max_staleness: Duration::from_hours(1),
        ..AnswerCacheSettings::default()
    });
    catch_up(&cache);
    cache
}

fn catch_up(cache: &AnswerCache) {
    let now = Instant::now();
    let tail = Tail { limit: 1, xmax: 1, heartbeat_at: Some(now), ..Tail::default() };
    cache.0.log_progress.record_pass(now, &tail);
}

fn answer(tag: u64) -> Answer {
    Answer {
        payload: AnswerPayload::Eim(PlatformUpdateStatusResponse::default()),
        tag,
        requires_fence: false,
        limit_scope: None,
        waits_for_slot: false,
    }
}

fn own(n: u32) -> NodeKey {
    NodeKey::Host(project(1), HostId::nth(n))
}

fn node_key() -> KeyFingerprint {
    KeyFingerprint::from_public_key(b"key")
}

fn cache_key(cache: &AnswerCache) -> CacheKey {
    cache.key_for_own_poll(&node_key(), b"facts", None, "")
}

/// A fresh answer for the nth node, which has no site.
fn fresh_answer(cache: &AnswerCache, n: u32) -> NewAnswer {
    NewAnswer {
        node: own(n),
        host: HostId::nth(n),
        instance: InstanceId::nth(n),
        site: None,
        regions: Vec::new(),
        cache_key: cache_key(cache),
        answer: answer(7),
        valid_until: None,
        as_of: cache.last_pass(),
    }
}

/// The same for a node at a site in a region.
fn fresh_answer_at(cache: &AnswerCache, n: u32, site: u32, region: u32) -> NewAnswer {
    NewAnswer {
        site: Some(SiteId::nth(site)),
        regions: vec![RegionId::nth(region)],
        ..fresh_answer(cache, n)
    }
}

fn insert(cache: &AnswerCache, new_answer: NewAnswer) -> bool {
    cache.insert(new_answer, NOW).is_cached
}

fn lookup(cache: &AnswerCache, node: &NodeKey) -> Option<CachedAnswer> {
    match cache.lookup(node, &cache_key(cache), NOW) {
        Lookup::Hit(hit) => Some(hit),
        Lookup::OtherKey { .. } | Lookup::Miss => None,
    }
}

/// Which of the first nodes have a cached answer.
fn cached_nodes(cache: &AnswerCache) -> Vec<u32> {
    let is_there = |n: &u32| lookup(cache, &own(*n)).is_some();
    (1..=9).filter(is_there).collect()
}

fn changed(kind: ChangeKind, scope: Option<Scope>) -> LoggedChange {
    LoggedChange {
        tenant: project(1),
        kind,
        id: 1,
        operation: Operation::Update,
        scope,
        is_by_user: true,
        at: Position { epoch: 1, xid: 1, seq: 1 },
    }
}

fn assigned(scope: Scope) -> LoggedChange {
    changed(ChangeKind::Assignment, Some(scope))
}

#[test]
fn an_answer_is_found_until_it_expires() {
    let cache = cache();
    let new_answer = NewAnswer {
        valid_until: Some(later(10_000) + TimeDelta::microseconds(700)),
        ..fresh_answer(&cache, 1)
    };
    let hit = cache.insert(new_answer, NOW);
    assert!(hit.is_cached);
    assert_eq!(hit.valid_until, later(10_000));
    let at = |millis| cache.lookup(&own(1), &cache_key(&cache), later(millis));
    let Lookup::Hit(again) = at(9_999) else {
        panic!("it is valid");
    };
    assert_eq!((again.answer.tag, again.valid_until), (7, hit.valid_until));
    assert_eq!((again.host, again.instance), (hit.host, hit.instance));
    assert_eq!(again.scope, hit.scope);
    assert!(matches!(at(10_000), Lookup::Miss));
}

#[test]
fn a_stale_or_unfollowed_cache_neither_finds_nor_stores() {
    let cache = cache();
    assert!(insert(&cache, fresh_answer(&cache, 1)));
    let new_answer = fresh_answer(&cache, 2);
    let invalidation = cache.invalidate_all("test");
    assert!(invalidation.all);
    assert_eq!((cache.last_pass(), cache.age()), (None, None));
    assert!(!insert(&cache, new_answer));
    assert!(cached_nodes(&cache).is_empty());
    let late = fresh_answer(&cache, 3);
    catch_up(&cache);
    assert!(cached_nodes(&cache).is_empty(), "older answers stay invalid");
    assert!(!insert(&cache, late));
    assert!(insert(&cache, fresh_answer(&cache, 1)));

    let old = AnswerCache::new(AnswerCacheSettings {
        max_staleness: Duration::ZERO,
        ..AnswerCacheSettings::default()
    });
    catch_up(&old);
    let new_answer = NewAnswer { as_of: Some(Pass(0)), ..fresh_answer(&old, 1) };
    assert!(!insert(&old, new_answer));
    assert_eq!((old.last_pass(), cached_nodes(&old)), (None, vec![]));
}

#[test]
fn another_payload_has_another_key() {
    let cache = cache();
    assert!(insert(&cache, fresh_answer(&cache, 1)));
    let waiting_changed = |cache_key: &CacheKey| match cache.lookup(&own(1), cache_key, NOW) {
        Lookup::OtherKey { waiting_changed } => waiting_changed,
        other => panic!("{other:?}"),
    };
    assert!(waiting_changed(&cache.key_for_own_poll(&node_key(), b"facts", None, "for a lock")));
    assert!(!waiting_changed(&cache.key_for_own_poll(&node_key(), b"other", None, "")));
    let attempt = Some(AttemptId(Uuid::from_u128(1)));
    assert!(!waiting_changed(&cache.key_for_own_poll(&node_key(), b"facts", attempt, "")));
    let other_machine = KeyFingerprint::from_public_key(b"other");
    assert!(!waiting_changed(&cache.key_for_own_poll(&other_machine, b"facts", None, "")));
    assert!(matches!(cache.lookup(&own(2), &cache_key(&cache), NOW), Lookup::Miss));
}

#[test]
fn the_key_of_an_eim_poll_covers_every_field() {
    let cache = cache();
    let uuid = Uuid::from_u128(1);
    let update_status = UpdateStatus::default();
    let text = || "x".to_owned();
    let others = [
        UpdateStatus { status_type: 1, ..update_status.clone() },
        UpdateStatus { status_detail: text(), ..update_status.clone() },
        UpdateStatus { profile_name: text(), ..update_status.clone() },
        UpdateStatus { profile_version: text(), ..update_status.clone() },
        UpdateStatus { os_image_id: text(), ..update_status.clone() },
        UpdateStatus { os_update_available: text(), ..update_status.clone() },
    ];
    let one = cache.key_for_eim_poll(uuid, &update_status);
    assert_eq!(cache.key_for_eim_poll(uuid, &update_status.clone()), one);
    assert_ne!(cache.key_for_eim_poll(Uuid::from_u128(2), &update_status), one);
    assert!(others.iter().all(|other| cache.key_for_eim_poll(uuid, other) != one));
    assert_ne!(
        AnswerCache::new(AnswerCacheSettings::default()).key_for_eim_poll(uuid, &update_status),
        one
    );
}

#[test]
fn a_host_is_cached_for_the_agent_that_polled_last() {
    let cache = cache();
    let uuid = NodeKey::Uuid(project(1), Uuid::from_u128(1));
    let old = NewAnswer { node: uuid, ..fresh_answer(&cache, 1) };
    assert!(insert(&cache, old.clone()));
    assert!(lookup(&cache, &uuid).is_some());
    assert!(lookup(&cache, &own(1)).is_none());
    let elsewhere = NodeKey::Uuid(project(2), Uuid::from_u128(1));
    assert!(lookup(&cache, &elsewhere).is_none());
    assert!(insert(&cache, fresh_answer(&cache, 1)));
    assert!(lookup(&cache, &uuid).is_none());
    assert!(lookup(&cache, &own(1)).is_some());
    assert_eq!(cache.sizes().nodes, 1);

    // The UUID appears with another host, and the instance with a third one.
    assert!(insert(&cache, old.clone()));
    let moved = NewAnswer { host: HostId::nth(2), instance: InstanceId::nth(2), ..old };
    assert!(insert(&cache, moved));
    assert_eq!(lookup(&cache, &uuid).expect("known").host, HostId::nth(2));
    let third = NewAnswer { instance: InstanceId::nth(2), ..fresh_answer(&cache, 3) };
    assert!(insert(&cache, third));
    assert!(lookup(&cache, &uuid).is_none());
    assert_eq!(cached_nodes(&cache), [3]);
    assert_eq!(cache.sizes().nodes, 1);
}

#[test]
fn a_change_of_one_node_invalidates_only_that_node() {
    let cache = cache();
    for n in 1..=3 {
        assert!(insert(&cache, fresh_answer_at(&cache, n, 1, 1)));
    }
    let run = changed(ChangeKind::Run, Some(Scope::Instance(InstanceId::nth(1))));
    let host = changed(ChangeKind::Host, Some(Scope::Host(HostId::nth(3))));
    let invalidation = cache.apply_changes(&[run, host, run]);
    let expected = Invalidation {
        hosts: vec![(project(1), HostId::nth(3))],
        instances: vec![(project(1), InstanceId::nth(1))],
        ..Invalidation::default()
    };
    assert_eq!(invalidation, expected);
    assert_eq!(cached_nodes(&cache), [2]);
    assert_eq!(cache.sizes().nodes, 1);
    assert!(insert(&cache, fresh_answer(&cache, 1)), "it was read again");
    assert_eq!(cached_nodes(&cache), [1, 2]);
}

#[test]
fn a_change_of_a_site_keeps_other_sites() {
    let cache = cache();
    for (n, site, region) in [(1, 1, 1), (2, 1, 1), (3, 2, 1), (4, 3, 2)] {
        assert!(insert(&cache, fresh_answer_at(&cache, n, site, region)));
    }
    assert!(insert(&cache, fresh_answer(&cache, 5)));
    let scope = lookup(&cache, &own(1)).expect("known").scope;
    let invalidation = cache.apply_changes(&[assigned(Scope::Site(SiteId::nth(1)))]);
    assert_eq!(invalidation.scopes, [scope]);
    assert_eq!(cached_nodes(&cache), [3, 4, 5]);
    assert!(insert(&cache, fresh_answer_at(&cache, 1, 1, 1)));
    let invalidation = cache.apply_changes(&[assigned(Scope::Region(RegionId::nth(1)))]);
    assert_eq!(invalidation.scopes.len(), 2);
    assert_eq!(cached_nodes(&cache), [4, 5]);
    let nowhere = assigned(Scope::Region(RegionId::nth(9)));
    assert_eq!(cache.apply_changes(&[nowhere]), Invalidation::default());
    assert_eq!(cached_nodes(&cache), [4, 5]);
}

#[test]
fn a_site_being_moved_belongs_to_both_regions() {
    let cache = cache();
    assert!(insert(&cache, fresh_answer_at(&cache, 1, 1, 1)));
    assert!(insert(&cache, fresh_answer_at(&cache, 2, 1, 2)));
    cache.apply_changes(&[assigned(Scope::Region(RegionId::nth(1)))]);
    assert!(cached_nodes(&cache).is_empty());
    assert!(insert(&cache, fresh_answer_at(&cache, 2, 1, 2)));
    cache.apply_changes(&[assigned(Scope::Region(RegionId::nth(1)))]);
    assert_eq!(cached_nodes(&cache), [2], "it left the region");
    cache.apply_changes(&[assigned(Scope::Region(RegionId::nth(2)))]);
    assert!(cached_nodes(&cache).is_empty());
}

#[test]
fn a_change_of_a_project_keeps_other_projects() {
    let cache = cache();
    let other = NodeKey::Host(project(2), HostId::nth(1));
    let elsewhere = NewAnswer { node: other, ..fresh_answer(&cache, 1) };
    assert!(insert(&cache, elsewhere));
    assert!(insert(&cache, fresh_answer(&cache, 1)));
    assert!(insert(&cache, fresh_answer_at(&cache, 2, 1, 1)));
    let invalidation =
        cache.apply_changes(&[changed(ChangeKind::Settings, None), changed(ChangeKind::Os, None)]);
    assert_eq!(invalidation.tenants, [project(1)]);
    assert!(cached_nodes(&cache).is_empty());
    assert!(lookup(&cache, &other).is_some());
    cache.invalidate_all("test");
    catch_up(&cache);
    assert!(lookup(&cache, &other).is_none());
}

#[test]
fn a_slot_invalidates_nodes_under_the_same_limits() {
    let cache = cache();
    let answer_under = |n, scope| NewAnswer {
        answer: Answer { limit_scope: scope, ..answer(7) },
        ..fresh_answer_at(&cache, n, 1, 1)
    };
    let (site, project_wide) = (Scope::Site(SiteId::nth(1)), Scope::Project);
    let all = [Some(site), Some(project_wide), None];
    for (n, scope) in (1..).zip(all) {
        assert!(insert(&cache, answer_under(n, scope)));
    }
    let late = answer_under(4, Some(site));
    let invalidation = cache.apply_changes(&[changed(ChangeKind::Slot, Some(site))]);
    assert_eq!(invalidation.limit_scopes, [(project(1), site)]);
    assert_eq!(cached_nodes(&cache), [2, 3]);
    assert!(!insert(&cache, late), "it was read before the change");
    assert!(insert(&cache, answer_under(1, Some(site))));
}

#[test]
fn an_answer_read_during_a_change_is_not_cached() {
    let changes = [
        assigned(Scope::Instance(InstanceId::nth(1))),
        assigned(Scope::Host(HostId::nth(1))),
        assigned(Scope::Site(SiteId::nth(1))),
        assigned(Scope::Region(RegionId::nth(1))),
        assigned(Scope::Project),
    ];
    for change in changes {
        let cache = cache();
        let (late, other) = (fresh_answer_at(&cache, 1, 1, 1), fresh_answer_at(&cache, 2, 2, 2));
        cache.apply_changes(&[change]);
        assert!(!insert(&cache, late), "{change:?}");
        let is_alone = change.scope != Some(Scope::Project);
        assert_eq!(insert(&cache, other), is_alone, "{change:?}");
        assert!(insert(&cache, fresh_answer_at(&cache, 1, 1, 1)));
        assert!(cached_nodes(&cache).contains(&1));
    }
}

#[test]
fn a_local_commit_invalidates_and_rejects_older_reads() {
    let cache = cache();
    assert!(insert(&cache, fresh_answer(&cache, 1)));
    let (late, other) = (fresh_answer(&cache, 1), fresh_answer(&cache, 2));
    cache.invalidate_node(project(1), HostId::nth(1), InstanceId::nth(1));
    assert!(cached_nodes(&cache).is_empty());
    assert!(!insert(&cache, late.clone()));
    assert!(insert(&cache, other), "other nodes are not affected");
    // The pass may have read the log before the commit.
    cache.apply_changes(&[]);
    assert!(!insert(&cache, late));
    assert!(insert(&cache, fresh_answer(&cache, 1)));
    cache.apply_changes(&[]);
    assert_eq!(cached_nodes(&cache), [1, 2]);
}

#[test]
fn passes_without_changes_use_no_numbers() {
    let cache = cache();
    let before = cache.last_pass();
    for _ in 0..1_000 {
        cache.apply_changes(&[]);
    }
    assert_eq!(cache.last_pass(), before);
    cache.apply_changes(&[changed(ChangeKind::Other, None)]);
    assert!(cache.last_pass() > before);
}
