//! The memory that the cache uses.

use evenkeel_proto::maintmgr::OsProfileUpdateSource;

use super::*;

#[test]
fn nodes_with_equal_answers_share_one() {
    let cache = cache();
    let answer_for = |n| cache.insert(fresh_answer(&cache, n), NOW).answer;
    let answers: Vec<_> = (1..=100).map(answer_for).collect();
    assert!(answers.iter().all(|one| std::sync::Arc::ptr_eq(one, &answers[0])));
    let sizes = cache.sizes();
    assert_eq!((sizes.nodes, sizes.answers, sizes.scopes), (100, 1, 1));
}

#[test]
fn a_million_nodes_take_at_most_128_bytes_each() {
    const NODES: u32 = 1_000_000;
    let cache = cache();
    let (cache_key, as_of) = (cache_key(&cache), cache.last_pass());
    for n in 0..NODES {
        let new_answer = NewAnswer {
            node: NodeKey::Uuid(project(1), Uuid::from_u128(n.into())),
            host: HostId::nth(n),
            instance: InstanceId::nth(n),
            site: Some(SiteId::nth(n / 1_000)),
            regions: vec![RegionId::nth(n / 100_000)],
            cache_key,
            answer: answer(u64::from(n % 100)),
            valid_until: None,
            as_of,
        };
        assert!(insert(&cache, new_answer));
    }
    let sizes = cache.sizes();
    assert_eq!(sizes.nodes, 1_000_000);
    assert_eq!((sizes.answers, sizes.scopes), (100, 1_000));
    assert!(sizes.bytes / sizes.nodes <= 128, "{sizes:?}");
    let node = NodeKey::Uuid(project(1), Uuid::from_u128(777_777));
    assert_eq!(lookup(&cache, &node).expect("known").answer.tag, 77);
}

#[test]
fn a_cache_over_its_memory_limit_evicts_large_answers() {
    const LIMIT: usize = 1 << 20;
    let cache = AnswerCache::new(AnswerCacheSettings {
        memory_limit: 1 << 20,
        max_staleness: Duration::from_hours(1),
        ..AnswerCacheSettings::default()
    });
    catch_up(&cache);
    let large = |n: u32, tag| NewAnswer {
        answer: Answer {
            payload: AnswerPayload::Eim(PlatformUpdateStatusResponse {
                os_profile_update_source: Some(OsProfileUpdateSource {
                    profile_name: "x".repeat(LIMIT / 4),
                    ..OsProfileUpdateSource::default()
                }),
                ..PlatformUpdateStatusResponse::default()
            }),
            ..answer(tag)
        },
        ..fresh_answer(&cache, n)
    };
    let cached = (1..=9).filter(|n| insert(&cache, large(*n, u64::from(*n)))).collect::<Vec<_>>();
    assert_eq!(cached, [1, 2, 3, 4]);
    assert!(insert(&cache, large(9, 4)), "an equal answer is already stored");
    assert!(insert(&cache, fresh_answer(&cache, 8)), "small answers are accepted");
    for n in 1..=2 {
        assert!(!insert(&cache, large(n, 100)), "the limit is reached");
    }
    assert_eq!(cached_nodes(&cache), [3, 4, 8, 9], "a replaced answer is evicted");
    let admitted = (0..10_000).find(|_| insert(&cache, large(1, 100)));
    assert!(admitted.is_some(), "the memory of evicted answers is free again");
    assert!(cache.sizes().bytes < LIMIT, "{:?}", cache.sizes());
}
