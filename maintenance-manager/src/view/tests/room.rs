//! How much memory the view takes.

use super::*;

#[test]
fn nodes_that_are_told_the_same_share_an_answer() {
    let view = view();
    let told = |n| view.learn(found(&view, n), NOW).answer;
    let answers: Vec<_> = (1..=100).map(told).collect();
    assert!(
        answers
            .iter()
            .all(|one| std::sync::Arc::ptr_eq(one, &answers[0]))
    );
    let sizes = view.sizes();
    assert_eq!((sizes.nodes, sizes.answers, sizes.grounds), (100, 1, 1));
}

#[test]
fn a_million_nodes_take_up_128_bytes_each() {
    const NODES: u32 = 1_000_000;
    let view = view();
    let (asked, as_of) = (asked(&view), view.pass());
    for n in 0..NODES {
        let learnt = Learnt {
            who: Who::Uuid(project(1), Uuid::from_u128(n.into())),
            host: HostId::nth(n),
            instance: InstanceId::nth(n),
            site: Some(SiteId::nth(n / 1_000)),
            regions: vec![RegionId::nth(n / 100_000)],
            asked,
            answer: answer(u64::from(n % 100)),
            until: None,
            as_of,
        };
        assert!(learn(&view, learnt));
    }
    let sizes = view.sizes();
    assert_eq!(sizes.nodes, 1_000_000);
    assert_eq!((sizes.answers, sizes.grounds), (100, 1_000));
    assert!(sizes.bytes / sizes.nodes <= 128, "{sizes:?}");
    let who = Who::Uuid(project(1), Uuid::from_u128(777_777));
    assert_eq!(recalled(&view, &who).expect("known").answer.tag, 77);
}
