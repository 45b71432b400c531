//! The drill of a restore: the dump is an hour old by the clocks of the servers and of Postgres, and the fleet has gone
//! on since then. Hosts have enrolled, and nodes have made updates of which the restored database knows nothing, or only
//! the beginning. Then all nodes go on.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Began, Downloaded, Downloading, Finished, NothingToDo};
use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::check::restored::{
    MachineHistory, ReportedAttempt, check_convergence, check_restored,
};
use evenkeel_tests::history::{Replicas, ScriptedNode, print_progress};
use reqwest::Method;
use serde_json::json;

use super::read_parameters;
use super::restore::{RestoreTest, assert_unknown, start_history};

/// Machines of each kind: one, and one more per this number of polls of the whole history.
const POLLS_PER_MACHINE: u64 = 100_000;

/// Age of the dump when it is restored.
const AGE: TimeDelta = TimeDelta::hours(1);

/// How long an order lets nodes start their update: longer than [`AGE`], so that the server that has forgotten an update
/// asks for it again.
const ORDER_SECONDS: u32 = 4 * 3_600;

/// The version that the policy requests.
const VERSION: &str = "1.1";

/// Time within which a node has nothing left to do, on a busy machine.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(1);

const TURN_INTERVAL: Duration = Duration::from_millis(50);

/// How far the open attempt of a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// There is none.
    Idle,
    /// It is downloaded.
    Staged,
    /// It changes the machine.
    Begun,
}

/// A machine whose agent installs the version of the policy.
struct DrillMachine {
    node: ScriptedNode,
    history: MachineHistory,
    step: Step,
    /// Digest of the target of the last attempt.
    target: String,
}

impl DrillMachine {
    /// Takes turns until the open attempt is at this step.
    async fn advance_to(&mut self, step: Step, rng: &mut Rng) {
        let begun = Instant::now();
        while self.step != step {
            self.take_turn(rng).await;
            assert!(begun.elapsed() < SETTLE_TIMEOUT, "{} is not {step:?}", self.node.member.host);
            tokio::time::sleep(TURN_INTERVAL).await;
        }
    }

    /// Takes turns until there is nothing left to do.
    async fn settle(&mut self, rng: &mut Rng) {
        let begun = Instant::now();
        while !self.take_turn(rng).await {
            let host = &self.node.member.host;
            assert!(begun.elapsed() < SETTLE_TIMEOUT, "{host} is not settled: {:?}", self.step);
            tokio::time::sleep(TURN_INTERVAL).await;
        }
    }

    /// Does the next step. Returns whether there is nothing left to do.
    async fn take_turn(&mut self, rng: &mut Rng) -> bool {
        match self.step {
            Step::Idle => return self.poll(rng).await,
            Step::Staged => {
                if self.node.request_start(&self.target, 0).await {
                    self.report(&[Kind::Began(Began {})]).await;
                    self.step = Step::Begun;
                }
            }
            Step::Begun => {
                self.history.installed.push(VERSION.to_owned());
                self.report(&[Kind::Finished(Finished::default())]).await;
                self.step = Step::Idle;
            }
        }
        false
    }

    /// Polls. If there is an update, begins an attempt: as an agent does, it finds nothing to do if the version is
    /// installed. Returns whether there is nothing left to do.
    async fn poll(&mut self, rng: &mut Rng) -> bool {
        let answer = self.node.try_poll().await.expect("the servers know the node");
        let decision = answer.decision.expect("a decision");
        let apply = match decision.act {
            Some(Act::Apply(apply)) => apply,
            // The answer may be older than the order, so only a node with a reported attempt is done.
            Some(Act::Idle(_)) | None => return self.has_reported(),
            // The server knows an attempt that the node has ended. It ends the run if the last event is five minutes old.
            Some(Act::Continue(_) | Act::Fetch(_)) => return false,
            Some(act) => panic!("{act:?}: {}", decision.reason),
        };
        self.target = apply.target.expect("a target").digest;
        self.history.attempts.push(ReportedAttempt { id: rng.uuid(), acknowledged: 0 });
        if self.history.installed.iter().any(|installed| installed == VERSION) {
            self.report(&[Kind::NothingToDo(NothingToDo {})]).await;
        } else {
            let kinds =
                [Kind::Downloading(Downloading::default()), Kind::Downloaded(Downloaded {})];
            self.report(&kinds).await;
            self.step = Step::Staged;
        }
        false
    }

    /// Whether the servers have events of the last attempt.
    fn has_reported(&self) -> bool {
        self.history.attempts.last().is_some_and(|last| last.acknowledged > 0)
    }

    /// Reports the next events of the last attempt.
    async fn report(&mut self, kinds: &[Kind]) {
        let attempt = self.history.attempts.last_mut().expect("an attempt");
        let first = u32::try_from(attempt.acknowledged + 1).expect("a small number");
        self.node.attempt = attempt.id;
        attempt.acknowledged += kinds.len();
        self.node.report_until_acknowledged(&self.target, first, kinds).await;
    }

    /// What the servers acknowledged after a dump need not be recorded after its restore.
    fn forget_since(&mut self, dumped: &MachineHistory) {
        for (at, attempt) in self.history.attempts.iter_mut().enumerate() {
            attempt.acknowledged = dumped.attempts.get(at).map_or(0, |known| known.acknowledged);
        }
    }
}

/// Enrols machines and orders their update.
async fn enroll(test: &mut RestoreTest, count: u64) -> Vec<DrillMachine> {
    let mut machines = Vec::new();
    for _ in 0..count {
        let node = test.enroll_node().await;
        order_update(test, &node).await;
        let history = start_history(&node);
        machines.push(DrillMachine { node, history, step: Step::Idle, target: String::new() });
    }
    machines
}

async fn order_update(test: &RestoreTest, node: &ScriptedNode) {
    let path = format!("compute/instances/{}/order", node.member.instance);
    let body = json!({ "kind": "now", "seconds": ORDER_SECONDS, "reason": "drill" });
    let (answer, _) = test.client.until_done(Method::PUT, &path, Some(&body)).await;
    answer.expect("an order");
}

async fn settle_all(machines: &mut [DrillMachine], rng: &mut Rng) {
    for machine in machines {
        machine.settle(rng).await;
    }
}

/// Enrols machines, some for each state of an update: it has ended, it is downloaded, it changes the machine (twice, see
/// below), and nothing has been done.
async fn enroll_in_all_states(test: &mut RestoreTest, count: u64) -> [Vec<DrillMachine>; 5] {
    let mut updated = enroll(test, count).await;
    settle_all(&mut updated, &mut test.rng).await;
    let mut staged = enroll(test, count).await;
    for machine in &mut staged {
        machine.advance_to(Step::Staged, &mut test.rng).await;
    }
    let (mut begun, mut interrupted) = (enroll(test, count).await, enroll(test, count).await);
    for machine in begun.iter_mut().chain(&mut interrupted) {
        machine.advance_to(Step::Begun, &mut test.rng).await;
    }
    let untouched = enroll(test, count).await;
    [updated, staged, begun, interrupted, untouched]
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_restore_of_an_hour_old_dump_nothing_is_repeated_and_all_nodes_converge() {
    let (seed, polls) = read_parameters();
    let count = polls / POLLS_PER_MACHINE + 1;
    let replicas = Replicas::start_with_clock(2, "", -AGE).await;
    let mut test = RestoreTest::open(replicas, seed).await;
    let assignment = json!({ "osUpdatePolicyId": test.policy });
    let path = "assignments/project";
    let (assigned, _) = test.client.until_done(Method::PUT, path, Some(&assignment)).await;
    assigned.expect("an assignment");
    let [updated, mut staged, mut begun, interrupted, mut untouched] =
        enroll_in_all_states(&mut test, count).await;
    let dumped_at = test.replicas.database_time().await;
    let dump = test.replicas.dump_database().await;
    let all = [&updated, &staged, &begun, &interrupted, &untouched].into_iter().flatten();
    let dumped: Vec<_> = all.map(|machine| machine.history.clone()).collect();

    // Hosts enrol, and all updates end but those that an interruption stops.
    test.replicas.shift_clock(-AGE / 2).await;
    let mut late = enroll(&mut test, count).await;
    for machines in [&mut staged, &mut begun, &mut untouched, &mut late] {
        settle_all(machines, &mut test.rng).await;
    }
    test.replicas.shift_clock(TimeDelta::zero()).await;
    test.replicas.restore_database(&dump).await;
    let age = test.replicas.database_time().await - dumped_at;
    assert!(age >= AGE, "the dump is {age} old");

    test.renew_join_token().await;
    // Other hosts enrol first. They must not get the IDs of the late ones.
    let mut others = enroll(&mut test, count).await;
    settle_all(&mut others, &mut test.rng).await;
    for machine in &mut late {
        assert_unknown(&machine.node, &test.policy).await;
        machine.forget_since(&MachineHistory::default());
        machine.node = test.enroll_again(&mut machine.history).await;
        order_update(&test, &machine.node).await;
    }
    let kept = [updated, staged, begun, interrupted, untouched].into_iter().flatten();
    let mut machines: Vec<_> = kept.collect();
    for (machine, dumped) in machines.iter_mut().zip(&dumped) {
        machine.forget_since(dumped);
    }
    machines.extend(late.into_iter().chain(others));
    settle_all(&mut machines, &mut test.rng).await;
    print_progress(&format!("{} machines have converged", machines.len()));

    let histories: Vec<_> = machines.into_iter().map(|machine| machine.history).collect();
    let records = test.read_records().await;
    assert_eq!(records.machines.len(), histories.len(), "a machine has two instances, or none");
    let mut violations = check_restored(&histories, &records);
    violations.extend(check_convergence(&histories, &records, VERSION));
    test.assert_none("after the drill", &violations);
    test.replicas.stop().await;
}
