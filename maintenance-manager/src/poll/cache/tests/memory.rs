//! The memory that the cache uses.

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
