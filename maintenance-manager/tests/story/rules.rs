//! How packages may be brought to a policy, on the way to a node.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::policy::{PackageRules, PolicySpec, RebootRule, ServiceRule, Wish};
use evenkeel_proto::agent as wire;
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::target::Wish as Told;
use evenkeel_store::policies;

use crate::house::{House, NOON, TestNode};

/// What a node is to fetch.
fn told(answer: PollResponse) -> wire::Packages {
    let target = match answer.decision.and_then(|decision| decision.act) {
        Some(Act::Fetch(fetch)) => fetch.target,
        other => panic!("nothing is to be fetched: {other:?}"),
    };
    match target.and_then(|target| target.wish) {
        Some(Told::Packages(packages)) => packages,
        other => panic!("no packages: {other:?}"),
    }
}

/// A node that may fetch what is newest, by these rules.
async fn ruled(house: &House, rules: PackageRules, allow_downgrade: bool) -> TestNode {
    let node = house.node().await;
    let spec = PolicySpec::parse("policy", "", Wish::Latest).expect("a policy");
    let spec = PolicySpec {
        allow_downgrade,
        ..spec.ruled(rules).expect("rules")
    };
    let tx = house.store.tenant(house.tenant).await;
    let tx = tx.expect("a transaction");
    let policy = policies::create(&tx, &spec, NOON).await.expect("a policy");
    tx.commit().await.expect("committed");
    let scope = Scope::Instance(node.instance);
    house.assign(scope, policy.id, None, None).await;
    house.window(node.host, 10, 60).await;
    node
}

#[tokio::test]
async fn a_node_is_told_the_rules_of_its_policy() {
    let house = House::new().await;
    let rules = PackageRules {
        suites: vec!["bookworm-security".into()],
        exclude: vec!["linux-*".into()],
        allow_removals: true,
        reboot: RebootRule::Never,
        services: ServiceRule::Restart,
        download_bytes_per_second: 1 << 20,
        min_age_days: 7,
    };
    let node = ruled(&house, rules, true).await;
    let packages = told(house.poll(&node).await);
    assert!(packages.settled.is_empty(), "nothing was ever seen");
    let expected = wire::PackageRules {
        suites: vec!["bookworm-security".into()],
        exclude: vec!["linux-*".into()],
        allow_removals: true,
        allow_downgrades: true,
        reboot: wire::RebootRule::Never.into(),
        services: wire::ServiceRule::Restart.into(),
        download_bytes_per_second: 1 << 20,
        min_age_days: 7,
    };
    assert_eq!(packages.rules, Some(expected));
}

#[tokio::test]
async fn the_usual_rules_leave_everything_to_the_node() {
    let house = House::new().await;
    let node = ruled(&house, PackageRules::default(), false).await;
    let packages = told(house.poll(&node).await);
    let usual = wire::PackageRules {
        reboot: wire::RebootRule::IfRequired.into(),
        services: wire::ServiceRule::Leave.into(),
        ..wire::PackageRules::default()
    };
    assert_eq!(packages.rules, Some(usual));
}
