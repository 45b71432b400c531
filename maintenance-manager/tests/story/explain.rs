//! The explanation says that a node may start exactly if its next request to begin is granted.

use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::Act;
use evenkeel_domain::id::PolicyId;
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::pause::PauseScope;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Facts, Failed, FailureKind};
use evenkeel_store::decisions::{self, PlanningLimits, ReadMode};
use evenkeel_store::nodes::{self, MachineKey};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::image_nodes::{facts_after_boot, with_failed_image};
use crate::test_server::{TestNode, TestServer, began, downloaded, downloading, facts, finished};

/// A generated situation.
#[derive(Clone, Debug)]
struct Scenario {
    /// The scope of the assignment.
    assigned: AssignedScope,
    max_at_once: Option<u32>,
    max_failures: Option<u32>,
    /// Windows: start in minutes from now, and duration in minutes.
    windows: Vec<(i64, i64)>,
    paused: Option<bool>,
    order: Option<(OrderKind, i64)>,
    /// The progress of the node, and of another node of the project.
    node: Stage,
    other: Stage,
    has_module: bool,
    update: UpdateKind,
    /// Whether the node downloaded something else than is desired now.
    replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssignedScope {
    Nothing,
    Instance,
    Project,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateKind {
    Packages,
    Image,
    /// An image that failed on the node, and the minutes from the failure to a possible order.
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
        AssignedScope::Nothing,
        AssignedScope::Instance,
        AssignedScope::Instance,
        AssignedScope::Project,
        AssignedScope::Project,
        AssignedScope::Project,
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
    let settings = (
        assigned,
        prop::option::weighted(0.5, 1_u32..3),
        prop::option::weighted(0.5, 1_u32..3),
        windows,
        prop::option::weighted(0.1, any::<bool>()),
        prop::option::weighted(0.3, (order, 0_i64..90)),
    );
    let update = prop_oneof![
        4 => Just(UpdateKind::Packages),
        2 => Just(UpdateKind::Image),
        2 => (0_i64..3).prop_map(UpdateKind::BadImage),
    ];
    let nodes = (node, other, prop::bool::weighted(0.95), update, prop::bool::weighted(0.05));
    (settings, nodes).prop_map(|(settings, nodes)| Scenario {
        assigned: settings.0,
        max_at_once: settings.1,
        max_failures: settings.2,
        windows: settings.3,
        paused: settings.4,
        order: settings.5,
        node: nodes.0,
        other: nodes.1,
        has_module: nodes.2,
        update: nodes.3,
        replaced: nodes.4,
    })
}

impl TestServer {
    /// The input from which the REST explanation is made.
    pub async fn decision_input(&self, node: &TestNode) -> decisions::DecisionInput {
        let tx = self.tx().await;
        let read = nodes::find_with_host(&tx, MachineKey::Host(node.host)).await;
        let (host, state) = read.expect("known");
        let (limits, reading) = (PlanningLimits::default(), ReadMode::Preview(self.now()));
        let input = decisions::load_decision_input(&tx, &host, &state, &limits, reading).await;
        input.expect("an input")
    }

    /// Brings a node to a stage, as if everything was allowed when it began.
    async fn advance_node(&self, node: &TestNode, attempt: u128, digest: &str, stage: Stage) {
        let failed = Kind::Failed(Failed {
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
        self.report_for(node, attempt, digest, &fetched).await;
        if let Some(end) = end {
            self.begin_for(node, attempt, digest, 2).await;
            self.report_for(node, attempt, digest, &end).await;
        }
    }

    /// A policy for a kind of update, and the target digest that attempts report. `is_other`
    /// selects a different update of the kind.
    async fn create_policy_of_kind(
        &self,
        update: UpdateKind,
        is_other: bool,
    ) -> (PolicyId, String) {
        if update == UpdateKind::Packages {
            let packages = if is_other { "demo-bad=1.1" } else { "demo-hello=1.1" };
            let policy = self.create_policy(packages).await;
            return (policy, policy.to_string());
        }
        let image = self.add_image(if is_other { "3.0.3" } else { "3.0.2" }).await;
        let policy = self.image_policy(image).await;
        (policy, format!("{policy}/{image}"))
    }

    /// A node that supports a kind of update, and its facts.
    async fn capable_node(&self, machine: u8, update: UpdateKind) -> (TestNode, Facts) {
        if update == UpdateKind::Packages {
            return (self.nth_node(machine).await, facts());
        }
        (self.image_node(machine, "3.0.1").await, facts_after_boot("3.0.1"))
    }

    /// Builds the situation.
    async fn build(&self, scenario: &Scenario) -> TestNode {
        let update = scenario.update;
        if update != UpdateKind::Packages {
            self.add_image("3.0.1").await;
        }
        let (node, mut reported) = self.capable_node(1, update).await;
        let (other, _) = self.capable_node(2, update).await;
        let (policy, digest) = self.create_policy_of_kind(update, false).await;
        let scope = match scenario.assigned {
            AssignedScope::Nothing => None,
            AssignedScope::Instance => Some(Scope::Instance(node.instance)),
            AssignedScope::Project => Some(Scope::Project),
        };
        if let Some(scope) = scope {
            self.assign(scope, policy, scenario.max_at_once, scenario.max_failures).await;
        }
        for node in [&node, &other] {
            for (opens, long) in &scenario.windows {
                self.window(node.host, *opens, opens + long).await;
            }
        }
        // The other node has an order, so that it can take a slot or fail in any case.
        self.order(other.instance, OrderKind::Now).await;
        self.advance_node(&other, 2, &digest, scenario.other).await;
        let fetched_for = if scenario.replaced {
            self.create_policy_of_kind(update, true).await.1
        } else {
            digest
        };
        self.advance_node(&node, 1, &fetched_for, scenario.node).await;
        if let UpdateKind::BadImage(minutes) = update {
            reported = with_failed_image(reported, "3.0.2", "it never got healthy");
            self.report_facts(&node, reported.clone()).await;
            self.advance_minutes(minutes);
        }
        self.pause_or_order(&node, policy, scenario).await;
        if !scenario.has_module {
            reported.modules.clear();
            self.report_facts(&node, reported).await;
        }
        node
    }

    /// Applies the pause and the order of the scenario.
    async fn pause_or_order(&self, node: &TestNode, policy: PolicyId, scenario: &Scenario) {
        if let Some(whole_project) = scenario.paused {
            self.pause(if whole_project {
                PauseScope::Project
            } else {
                PauseScope::Policy(policy)
            })
            .await;
        }
        if let Some((kind, minutes)) = scenario.order {
            self.order(node.instance, kind).await;
            self.advance_minutes(minutes);
        }
    }
}

/// Compares the explanation with the answer to a start request. Returns whether the start was
/// granted.
async fn check_explanation(
    server: &TestServer,
    scenario: &Scenario,
) -> Result<bool, TestCaseError> {
    let node = server.build(scenario).await;
    let input = server.decision_input(&node).await;
    let decision = input.decide(server.now());
    let may = matches!(decision.act, Act::Apply { .. });
    let open = input.run.as_ref().and_then(|run| run.origin.target.clone());
    let (attempt, digest, last) = match (open, &decision.act) {
        // The attempt that the node has.
        (Some(target), _) => (1, target.digest(), input.run.as_ref().map_or(0, |run| run.sequence)),
        // The attempt that the node would download first.
        (None, Act::Apply { target, .. }) => {
            let digest = target.digest();
            server.report_for(&node, 7, &digest, &[(1, downloading())]).await;
            (7, digest, 1)
        }
        (None, _) => (7, PolicyId::nth(1).to_string(), 0),
    };
    let answer = server.begin_for(&node, attempt, &digest, last).await;
    let granted = matches!(answer, Answer::Granted(_));
    prop_assert_eq!(may, granted, "{:?}: {:?}", decision.reason, answer);
    if let Answer::Refused(refused) = answer
        && attempt == 1
    {
        prop_assert_eq!(refused.reason, decision.reason.to_string());
    }
    Ok(granted)
}

#[test]
fn a_start_is_explained_exactly_if_the_next_start_request_is_granted() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(TestServer::new());
    let config =
        Config { cases: 100, max_shrink_iters: 20, failure_persistence: None, ..Config::default() };
    let (counter, granted) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let mut runner = TestRunner::new(config);
    let tried = runner.run(&scenario(), |scenario| {
        counter.set(counter.get() + 1);
        let name = format!("scenario-{}", counter.get());
        runtime.block_on(async {
            let server = server.in_new_project(&name).await;
            if check_explanation(&server, &scenario).await? {
                granted.set(granted.get() + 1);
            }
            Ok(())
        })
    });
    tried.expect("they agree");
    assert!(granted.get() >= 5, "only {} of 100 may start", granted.get());
}
