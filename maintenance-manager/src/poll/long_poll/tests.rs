use chrono::DateTime;
use evenkeel_auth::KeyFingerprint;
use evenkeel_domain::id::SiteId;
use evenkeel_proto::agent::Decision;
use futures_util::FutureExt;
use uuid::Uuid;

use super::*;
use crate::evaluate::{Answer, AnswerPayload, OwnAnswer};
use crate::poll::cache::{AnswerCache, AnswerCacheSettings, NewAnswer, NodeKey};

const TENANT: TenantId = TenantId::new(Uuid::nil());

struct LongPollFixture {
    cache: AnswerCache,
    memory: MemoryPressure,
    long_polls: LongPolls,
}

impl LongPollFixture {
    fn new(settings: LongPollSettings) -> Self {
        let memory = MemoryPressure::default();
        Self {
            cache: AnswerCache::new(AnswerCacheSettings::default()),
            long_polls: LongPolls::new(settings, memory.clone()),
            memory,
        }
    }

    /// The cached answer of a node at a site.
    fn cached_answer(&self, node: u32, site: u32, limit_scope: Option<Scope>) -> CachedAnswer {
        let idle = OwnAnswer {
            decision: Decision::default(),
            next: None,
            want_facts: false,
            want_packages: false,
        };
        let new_answer = NewAnswer {
            node: NodeKey::Host(TENANT, HostId::nth(node)),
            host: HostId::nth(node),
            instance: InstanceId::nth(node),
            site: Some(SiteId::nth(site)),
            regions: Vec::new(),
            cache_key: self.cache_key(),
            answer: Answer {
                payload: AnswerPayload::Own(idle),
                tag: 1,
                requires_fence: false,
                limit_scope,
                waits_for_slot: limit_scope.is_some(),
            },
            valid_until: None,
            as_of: self.cache.last_pass(),
        };
        CachedAnswer { is_cached: true, ..self.cache.insert(new_answer, DateTime::UNIX_EPOCH) }
    }

    /// Registers the poll of a node at a site of its own.
    fn register(&self, node: u32) -> Option<LongPollHandle> {
        self.register_over(node, None)
    }

    fn register_over(
        &self,
        node: u32,
        connection: Option<&ConnectionState>,
    ) -> Option<LongPollHandle> {
        let cached = self.cached_answer(node, node, None);
        self.long_polls.register(self.key(node), &cached, connection)
    }

    fn register_waiting_for_slot(&self, node: u32, scope: Scope) -> LongPollHandle {
        let cached = self.cached_answer(node, 1, Some(scope));
        self.long_polls.register(self.key(node), &cached, None).expect("held")
    }

    fn cache_key(&self) -> CacheKey {
        let node_key = KeyFingerprint::from_public_key(b"key");
        self.cache.key_for_own_poll(&node_key, &[], None, "")
    }

    fn key(&self, node: u32) -> ((TenantId, HostId), CacheKey) {
        (node_key(node), self.cache_key())
    }
}

fn node_key(node: u32) -> (TenantId, HostId) {
    (TENANT, HostId::nth(node))
}

/// The reason of the pending wake-up, if there is one.
fn wake_reason(handle: &mut LongPollHandle) -> Option<WakeReason> {
    handle.next_wake().now_or_never()
}

fn host_invalidation(node: u32) -> Invalidation {
    Invalidation { hosts: vec![node_key(node)], ..Invalidation::default() }
}

#[test]
fn a_change_wakes_only_affected_polls() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let scope = fixture.cached_answer(1, 1, None).scope;
    let of_the_first = [
        host_invalidation(1),
        Invalidation { instances: vec![(TENANT, InstanceId::nth(1))], ..Invalidation::default() },
        Invalidation { scopes: vec![scope], ..Invalidation::default() },
    ];
    let mut first = fixture.register(1).expect("held");
    let mut second = fixture.register(2).expect("held");
    for invalidation in &of_the_first {
        fixture.long_polls.wake(invalidation);
        assert_eq!(wake_reason(&mut first), Some(WakeReason::Recheck), "{invalidation:?}");
        assert_eq!(wake_reason(&mut second), None, "{invalidation:?}");
    }
    let of_others = [
        Invalidation::default(),
        host_invalidation(3),
        Invalidation {
            hosts: vec![(TenantId::new(Uuid::max()), HostId::nth(1))],
            tenants: vec![TenantId::new(Uuid::max())],
            ..slot_invalidation(1, 0)
        },
    ];
    for invalidation in &of_others {
        fixture.long_polls.wake(invalidation);
        assert_eq!(wake_reason(&mut first), None, "{invalidation:?}");
    }
    let of_all = [
        Invalidation { tenants: vec![TENANT], ..Invalidation::default() },
        Invalidation { all: true, ..Invalidation::default() },
    ];
    for invalidation in &of_all {
        fixture.long_polls.wake(invalidation);
        assert_eq!(wake_reason(&mut first), Some(WakeReason::Recheck), "{invalidation:?}");
        assert_eq!(wake_reason(&mut second), Some(WakeReason::Recheck), "{invalidation:?}");
    }
}

#[test]
fn no_wake_is_lost_between_two_waits() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut handle = fixture.register(1).expect("held");
    fixture.long_polls.wake(&host_invalidation(1));
    fixture.long_polls.wake(&host_invalidation(1));
    assert_eq!(wake_reason(&mut handle), Some(WakeReason::Recheck), "it was pending");
    assert_eq!(wake_reason(&mut handle), None, "both changes are one wake-up");
    {
        let mut given_up = Box::pin(handle.next_wake());
        assert_eq!(given_up.as_mut().now_or_never(), None);
        fixture.long_polls.wake(&host_invalidation(1));
    }
    assert_eq!(wake_reason(&mut handle), Some(WakeReason::Recheck));
    assert_eq!(wake_reason(&mut handle), None);
}

#[tokio::test]
async fn a_waiting_poll_is_woken() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut handle = fixture.register(1).expect("held");
    let change = async { fixture.long_polls.wake(&host_invalidation(1)) };
    let (reason, ()) = tokio::join!(handle.next_wake(), change);
    assert_eq!(reason, WakeReason::Recheck);
}

#[test]
fn a_newer_poll_of_a_node_supersedes_the_older_one() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut older = fixture.register(1).expect("held");
    let mut newer = fixture.register(1).expect("held");
    assert_eq!(fixture.long_polls.len(), 1);
    fixture.long_polls.wake(&host_invalidation(1));
    assert_eq!(wake_reason(&mut older), Some(WakeReason::Superseded));
    assert_eq!(wake_reason(&mut newer), Some(WakeReason::Recheck));
    drop(older);
    assert_eq!(fixture.long_polls.len(), 1, "the newer one is still there");
    fixture.long_polls.wake(&host_invalidation(1));
    assert_eq!(wake_reason(&mut newer), Some(WakeReason::Recheck));
}

#[test]
fn polls_beyond_the_limit_are_not_held() {
    let fixture =
        LongPollFixture::new(LongPollSettings { max_polls: 2, ..LongPollSettings::default() });
    let first = fixture.register(1).expect("held");
    let _second = fixture.register(2).expect("held");
    assert!(fixture.register(3).is_none());
    let _again = fixture.register(1).expect("it replaces the older one");
    drop(first);
    assert!(fixture.register(3).is_none());
    assert_eq!(fixture.long_polls.len(), 2);
}

#[test]
fn a_connection_has_its_own_limit() {
    let fixture = LongPollFixture::new(LongPollSettings {
        max_per_connection: 2,
        ..LongPollSettings::default()
    });
    let (proxy, other) = (ConnectionState::default(), ConnectionState::default());
    let first = fixture.register_over(1, Some(&proxy)).expect("held");
    let _second = fixture.register_over(2, Some(&proxy)).expect("held");
    assert!(fixture.register_over(3, Some(&proxy)).is_none());
    let _third = fixture.register_over(3, Some(&other)).expect("held");
    let again = fixture.register_over(1, Some(&proxy)).expect("it replaces the older one");
    assert_eq!(proxy.long_polls(), 2);
    drop(first);
    assert_eq!(proxy.long_polls(), 2);
    drop(again);
    assert_eq!(proxy.long_polls(), 1);
    let _fourth = fixture.register_over(4, Some(&proxy)).expect("held");
}

#[test]
fn no_further_poll_is_held_while_memory_is_short() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut first = fixture.register(1).expect("held");
    fixture.memory.set_short(true);
    assert!(fixture.register(2).is_none());
    assert_eq!(fixture.long_polls.len(), 1, "a registered poll stays");
    fixture.long_polls.wake(&host_invalidation(1));
    assert_eq!(wake_reason(&mut first), Some(WakeReason::Recheck));
    fixture.memory.set_short(false);
    assert!(fixture.register(2).is_some());
}

#[test]
fn draining_wakes_all_polls_and_accepts_no_more() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let connection = ConnectionState::default();
    let mut first = fixture.register_over(1, Some(&connection)).expect("held");
    let mut second = fixture.register(2).expect("held");
    fixture.long_polls.wake(&host_invalidation(1));
    fixture.long_polls.drain();
    assert_eq!(fixture.long_polls.len(), 0);
    assert_eq!(wake_reason(&mut first), Some(WakeReason::Draining), "despite the change");
    assert_eq!(wake_reason(&mut second), Some(WakeReason::Draining));
    assert_eq!(connection.long_polls(), 0);
    assert!(fixture.register(3).is_none());
    drop(first);
    assert_eq!(fixture.long_polls.len(), 0);
}

#[test]
fn a_poll_with_an_uncached_answer_is_not_held() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let cached = CachedAnswer { is_cached: false, ..fixture.cached_answer(1, 1, None) };
    assert!(fixture.long_polls.register(fixture.key(1), &cached, None).is_none());
}

/// Changes in the change log to slots of the project's assignment.
fn slot_invalidation(freed: usize, taken: usize) -> Invalidation {
    let scope = (TENANT, Scope::Project);
    Invalidation {
        limit_scopes: vec![scope],
        freed_slots: vec![scope; freed],
        taken_slots: vec![scope; taken],
        ..Invalidation::default()
    }
}

/// The polls of these nodes that were woken since the last call.
fn woken_nodes(handles: &mut [LongPollHandle]) -> Vec<usize> {
    let woken = handles.iter_mut().enumerate();
    woken.filter_map(|(node, handle)| wake_reason(handle).map(|_| node)).collect()
}

#[test]
fn as_many_slot_waiters_are_woken_as_slots_are_freed_in_turn() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut handles: Vec<_> =
        (0..40).map(|node| fixture.register_waiting_for_slot(node, Scope::Project)).collect();
    fixture.long_polls.wake(&slot_invalidation(0, 1));
    assert_eq!(woken_nodes(&mut handles), [0; 0], "a taken slot changes nothing for them");
    for (freed, expected) in [(1, 0_usize..1), (3, 1..4), (2, 4..6)] {
        fixture.long_polls.wake(&slot_invalidation(freed, 0));
        assert_eq!(woken_nodes(&mut handles), expected.collect::<Vec<_>>());
        fixture.long_polls.wake(&slot_invalidation(0, freed));
    }
    fixture.long_polls.wake(&slot_invalidation(1_000, 0));
    assert_eq!(woken_nodes(&mut handles), (6..22).collect::<Vec<_>>(), "not the whole fleet");
}

/// A node that was woken may have lost its connection.
#[test]
fn further_slot_waiters_are_woken_until_the_slot_is_taken() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut handles: Vec<_> =
        (0..40).map(|node| fixture.register_waiting_for_slot(node, Scope::Project)).collect();
    let mut next_woken = || {
        fixture.long_polls.recheck(240, |_, _| true);
        woken_nodes(&mut handles)
    };
    fixture.long_polls.wake(&slot_invalidation(1, 0));
    assert_eq!(next_woken(), [0, 1, 2]);
    assert_eq!(next_woken(), [3, 4, 5, 6]);
    fixture.long_polls.wake(&slot_invalidation(0, 1));
    assert_eq!(next_woken(), [0; 0]);
    // No node takes the next slot: each poll is woken once.
    fixture.long_polls.wake(&slot_invalidation(1, 0));
    let rounds: Vec<_> = (0..8).map(|_| next_woken().len()).collect();
    assert_eq!(rounds, [1 + 2, 4, 8, 16, 9, 0, 0, 0]);
}

#[test]
fn an_updated_poll_depends_on_its_new_answer() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut handle = fixture.register(1).expect("held");
    let before = fixture.cached_answer(1, 1, None);
    let after = fixture.cached_answer(1, 2, Some(Scope::Project));
    fixture.long_polls.wake(&host_invalidation(1));
    handle.update(&after);
    assert_eq!(wake_reason(&mut handle), Some(WakeReason::Recheck), "the wake-up is not lost");
    let invalidation = |scope| Invalidation { scopes: vec![scope], ..Invalidation::default() };
    fixture.long_polls.wake(&invalidation(before.scope));
    assert_eq!(wake_reason(&mut handle), None);
    fixture.long_polls.wake(&invalidation(after.scope));
    assert_eq!(wake_reason(&mut handle), Some(WakeReason::Recheck));
    fixture.long_polls.wake(&slot_invalidation(1, 0));
    assert_eq!(wake_reason(&mut handle), Some(WakeReason::Recheck));
    assert_eq!(fixture.long_polls.len(), 1);
}

#[test]
fn dropped_polls_are_fully_removed() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let connection = ConnectionState::default();
    let cached = fixture.cached_answer(1, 1, Some(Scope::Project));
    for _ in 0..10 {
        let register = || fixture.long_polls.register(fixture.key(1), &cached, Some(&connection));
        let (older, mut newer) = (register(), register().expect("held"));
        newer.update(&fixture.cached_answer(1, 2, None));
        drop((older, newer));
    }
    let all = fixture.long_polls.lock();
    let by_one = [all.polls.len(), all.hosts.len(), all.instances.len()];
    let by_many = [all.scopes.len(), all.tenants.len(), all.slot_waiters.len()];
    assert_eq!((by_one, by_many), ([0; 3], [0; 3]));
    assert_eq!(connection.long_polls(), 0);
}

#[test]
fn every_poll_is_rechecked_in_turn_and_woken_if_invalid() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let mut all: Vec<_> = (1..=7).map(|n| fixture.register(n).expect("held")).collect();
    let mut rounds = Vec::new();
    for _ in 0..4 {
        let checked = std::cell::RefCell::new(Vec::new());
        fixture.long_polls.recheck(3, |checked_node, _| {
            checked.borrow_mut().push(checked_node);
            checked_node != self::node_key(5)
        });
        rounds.push(checked.into_inner());
    }
    let sizes: Vec<_> = rounds.iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 3, 1, 3], "the fourth starts a new round");
    let nodes = rounds[..3].concat();
    assert_eq!(nodes, (1..=7).map(node_key).collect::<Vec<_>>());
    let reasons: Vec<_> = all.iter_mut().map(wake_reason).collect();
    let only_the_fifth = (1..=7).map(|n| (n == 5).then_some(WakeReason::Recheck));
    assert_eq!(reasons, only_the_fifth.collect::<Vec<_>>());
}

#[test]
fn short_lived_polls_do_not_delay_the_recheck_of_others() {
    let fixture = LongPollFixture::new(LongPollSettings::default());
    let _stays = fixture.register(1).expect("held");
    let checked = std::cell::Cell::new(0);
    for node in 2..=50 {
        let _comes = fixture.register(node);
        fixture.long_polls.recheck(240, |checked_node, _| {
            checked.set(checked.get() + u32::from(checked_node == self::node_key(1)));
            true
        });
    }
    assert!(checked.get() >= 10, "{}", checked.get());
}
