//! The explanation says that a node may start exactly if its next request to begin is granted.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::Act;
use evenkeel_domain::id::PolicyId;
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::pause::PauseScope;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{Facts, Failed, FailureKind};
use evenkeel_store::decisions::{self, Horizon, Reading};
use evenkeel_store::nodes::{self, Machine};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::house::{House, TestNode, began, downloaded, downloading, facts, finished};
use crate::image_nodes::{booted, failed_on};

/// A world in a few words.
#[derive(Clone, Debug)]
struct Scenario {
    /// What is assigned, and to what.
    assigned: Assigned,
    at_once: Option<u32>,
    failures: Option<u32>,
    /// Windows as minutes from now, and how long.
    windows: Vec<(i64, i64)>,
    paused: Option<bool>,
    order: Option<(OrderKind, i64)>,
    /// How far the node is, and how far another one of the project is.
    node: Stage,
    other: Stage,
    has_module: bool,
    wished: Wished,
    /// Whether what the node has fetched was for something else.
    replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Assigned {
    Nothing,
    Instance,
    Project,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wished {
    Packages,
    Image,
    /// One that failed on the node before, and these minutes before anybody ordered anything.
    BadImage(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Nothing,
    Fetched,
    Begun,
    Succeeded,
    Failed,
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let assigned = prop::sample::select(vec![
        Assigned::Nothing,
        Assigned::Instance,
        Assigned::Instance,
        Assigned::Project,
        Assigned::Project,
        Assigned::Project,
    ]);
    let other = prop::sample::select(vec![Stage::Fetched, Stage::Begun, Stage::Failed]);
    let node = {
        prop::sample::select(vec![
            Stage::Nothing,
            Stage::Fetched,
            Stage::Fetched,
            Stage::Fetched,
            Stage::Fetched,
            Stage::Begun,
            Stage::Succeeded,
            Stage::Failed,
        ])
    };
    let windows = prop::collection::vec((-120_i64..60, 30_i64..480), 0..4);
    let order = prop::sample::select(vec![OrderKind::Now, OrderKind::Cancel]);
    let wanted = (
        assigned,
        prop::option::weighted(0.5, 1_u32..3),
        prop::option::weighted(0.5, 1_u32..3),
        windows,
        prop::option::weighted(0.1, any::<bool>()),
        prop::option::weighted(0.3, (order, 0_i64..90)),
    );
    let wished = prop_oneof![
        4 => Just(Wished::Packages),
        2 => Just(Wished::Image),
        2 => (0_i64..3).prop_map(Wished::BadImage),
    ];
    let known = (
        node,
        other,
        prop::bool::weighted(0.95),
        wished,
        prop::bool::weighted(0.05),
    );
    (wanted, known).prop_map(|(wanted, known)| Scenario {
        assigned: wanted.0,
        at_once: wanted.1,
        failures: wanted.2,
        windows: wanted.3,
        paused: wanted.4,
        order: wanted.5,
        node: known.0,
        other: known.1,
        has_module: known.2,
        wished: known.3,
        replaced: known.4,
    })
}

impl House {
    /// What the explanation over REST is made from.
    pub async fn explained(&self, node: &TestNode) -> decisions::World {
        let tx = self.tx().await;
        let read = nodes::read(&tx, Machine::Host(node.host)).await;
        let (host, known) = read.expect("known");
        let (horizon, reading) = (Horizon::default(), Reading::Look(self.time()));
        let world = decisions::world(&tx, &host, &known, &horizon, reading).await;
        world.expect("a world")
    }

    /// Brings a node to a stage, as if all had been allowed when it began.
    async fn bring(&self, node: &TestNode, attempt: u128, wish: &str, stage: Stage) {
        let failed = News::Failed(Failed {
            kind: FailureKind::Apply.into(),
            reason: "apt-get ended with 100".into(),
            ..Failed::default()
        });
        let end = match stage {
            Stage::Nothing => return,
            Stage::Fetched => None,
            Stage::Begun => Some(vec![(3, began())]),
            Stage::Succeeded => Some(vec![(3, began()), (4, finished())]),
            Stage::Failed => Some(vec![(3, began()), (4, failed)]),
        };
        let fetched = [(1, downloading()), (2, downloaded())];
        self.report_for(node, attempt, wish, &fetched).await;
        if let Some(end) = end {
            self.begin_for(node, attempt, wish, 2).await;
            self.report_for(node, attempt, wish, &end).await;
        }
    }

    /// A policy for what is wished for, and how attempts name that wish. Another policy wishes for something else.
    async fn wish_of(&self, wished: Wished, is_other: bool) -> (PolicyId, String) {
        if wished == Wished::Packages {
            let packages = if is_other {
                "demo-bad=1.1"
            } else {
                "demo-hello=1.1"
            };
            let policy = self.wish(packages).await;
            return (policy, policy.to_string());
        }
        let image = self
            .catalogue(if is_other { "3.0.3" } else { "3.0.2" })
            .await;
        let policy = self.image_policy(image).await;
        (policy, format!("{policy}/{image}"))
    }

    /// A node that can do what is wished for, and what it says of itself.
    async fn able(&self, machine: u8, wished: Wished) -> (TestNode, Facts) {
        if wished == Wished::Packages {
            return (self.nth_node(machine).await, facts());
        }
        (self.image_node(machine, "3.0.1").await, booted("3.0.1"))
    }

    /// Builds a world.
    async fn build(&self, scenario: &Scenario) -> TestNode {
        let wished = scenario.wished;
        if wished != Wished::Packages {
            self.catalogue("3.0.1").await;
        }
        let (node, mut known) = self.able(1, wished).await;
        let (other, _) = self.able(2, wished).await;
        let (policy, wish) = self.wish_of(wished, false).await;
        let scope = match scenario.assigned {
            Assigned::Nothing => None,
            Assigned::Instance => Some(Scope::Instance(node.instance)),
            Assigned::Project => Some(Scope::Project),
        };
        if let Some(scope) = scope {
            self.assign(scope, policy, scenario.at_once, scenario.failures)
                .await;
        }
        for node in [&node, &other] {
            for (opens, long) in &scenario.windows {
                self.window(node.host, *opens, opens + long).await;
            }
        }
        // The other one may begin in any case, so that it takes slots and fails.
        self.order(other.instance, OrderKind::Now).await;
        self.bring(&other, 2, &wish, scenario.other).await;
        let fetched_for = if scenario.replaced {
            self.wish_of(wished, true).await.1
        } else {
            wish
        };
        self.bring(&node, 1, &fetched_for, scenario.node).await;
        if let Wished::BadImage(minutes) = wished {
            known = failed_on(known, "3.0.2", "it never got healthy");
            self.tell(&node, known.clone()).await;
            self.pass(minutes);
        }
        self.hold_or_order(&node, policy, scenario).await;
        if !scenario.has_module {
            known.modules.clear();
            self.tell(&node, known).await;
        }
        node
    }

    /// What people say beside their policies.
    async fn hold_or_order(&self, node: &TestNode, policy: PolicyId, scenario: &Scenario) {
        if let Some(whole) = scenario.paused {
            self.pause(if whole {
                PauseScope::Project
            } else {
                PauseScope::Policy(policy)
            })
            .await;
        }
        if let Some((kind, minutes)) = scenario.order {
            self.order(node.instance, kind).await;
            self.pass(minutes);
        }
    }
}

/// Asks what would be, then asks to begin. Says whether the two agree, and whether it began.
async fn agrees(house: &House, scenario: &Scenario) -> Result<bool, TestCaseError> {
    let node = house.build(scenario).await;
    let world = house.explained(&node).await;
    let decision = world.decide(house.time());
    let may = matches!(decision.act, Act::Apply { .. });
    let open = world.run.as_ref().and_then(|run| run.origin.target.clone());
    let (attempt, digest, last) = match (open, &decision.act) {
        // What it holds.
        (Some(target), _) => (
            1,
            target.digest(),
            world.run.as_ref().map_or(0, |run| run.sequence),
        ),
        // What it would fetch first.
        (None, Act::Apply { target, .. }) => {
            let digest = target.digest();
            house
                .report_for(&node, 7, &digest, &[(1, downloading())])
                .await;
            (7, digest, 1)
        }
        (None, _) => (7, PolicyId::nth(1).to_string(), 0),
    };
    let answer = house.begin_for(&node, attempt, &digest, last).await;
    let granted = matches!(answer, Answer::Granted(_));
    prop_assert_eq!(may, granted, "{:?}: {:?}", decision.because, answer);
    if let Answer::Refused(refused) = answer
        && attempt == 1
    {
        prop_assert_eq!(refused.reason, decision.because.to_string());
    }
    Ok(granted)
}

#[test]
fn explain_says_may_start_exactly_if_the_next_request_to_begin_is_granted() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let house = runtime.block_on(House::new());
    let config = Config {
        cases: 100,
        max_shrink_iters: 20,
        failure_persistence: None,
        ..Config::default()
    };
    let (counter, granted) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let mut runner = TestRunner::new(config);
    let tried = runner.run(&scenario(), |scenario| {
        counter.set(counter.get() + 1);
        let name = format!("world-{}", counter.get());
        runtime.block_on(async {
            let house = house.beside(&name).await;
            if agrees(&house, &scenario).await? {
                granted.set(granted.get() + 1);
            }
            Ok(())
        })
    });
    tried.expect("they agree");
    assert!(
        granted.get() >= 5,
        "only {} of 100 may start",
        granted.get()
    );
}
