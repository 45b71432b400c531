//! The expiry of cached answers.

use super::*;

#[test]
fn an_expired_answer_is_not_cached() {
    let cache = cache();
    let new_answer = NewAnswer { valid_until: Some(NOW), ..fresh_answer(&cache, 1) };
    let hit = cache.insert(new_answer, NOW);
    assert!(!hit.is_cached);
    assert_eq!((hit.answer.tag, hit.valid_until), (7, NOW));
}

#[test]
fn answers_cached_together_expire_apart() {
    let cache = cache();
    let end = |n| cache.insert(fresh_answer(&cache, n), NOW).valid_until;
    let ends: std::collections::BTreeSet<Time> = (1..=1_000).map(end).collect();
    assert!(ends.len() > 990, "{}", ends.len());
    let max_age = crate::durations::to_time_delta(AnswerCacheSettings::default().max_age);
    let (first, last) = (ends.first().expect("some"), ends.last().expect("some"));
    assert!(*first >= NOW + max_age * 3 / 4, "{first}");
    assert!(*last <= NOW + max_age, "{last}");
}

#[test]
fn a_clock_set_back_extends_no_answer() {
    let (cache, mut table) = (cache(), CacheTable::new(0));
    let new_answer = NewAnswer { as_of: Some(Pass(0)), ..fresh_answer(&cache, 1) };
    let hit = table.insert(CacheEntry {
        uuid_hash: 0,
        answer_hash: answers::answer_hash(&new_answer.answer, &cache.0.hashers),
        valid_until: later(1_800_000),
        valid_until_millis: later(1_800_000).timestamp_millis(),
        expires_at_second: 100 + 1_800,
        is_cacheable: true,
        new_answer,
    });
    assert!(hit.is_cached);
    let tenant = table.scopes.find_tenant(project(1)).expect("the project has an index");
    let at = |millis, seconds| {
        let moment = CacheTime { millis: later(millis).timestamp_millis(), seconds };
        let key = SlotKey::Host(HostId::nth(1).bits());
        table.lookup(tenant, key, &cache_key(&cache), moment)
    };
    assert!(matches!(at(0, 1_899), Lookup::Hit(_)));
    assert!(matches!(at(-3_600_000, 1_900), Lookup::Miss));
    assert!(matches!(at(1_800_000, 200), Lookup::Miss));
}
