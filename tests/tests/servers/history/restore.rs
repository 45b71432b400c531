//! The database is replaced by an older dump of it, while nodes are ahead of the dump and some of
//! them enrolled after it. [`super::restore_drill`] restores a dump that is an hour old.

use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Began, Downloaded, Downloading, Finished};
use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::check::Violation;
use evenkeel_tests::history::check::restored::{
    MachineHistory, MachineRecords, ReportedAttempt, check_restored,
};
use evenkeel_tests::history::{
    NodeRegistrar, OperatorClient, Replicas, ScriptedNode, print_progress, read_runs,
};
use serde_json::json;

use super::read_parameters;

/// Number of machines of each kind.
const MACHINES: usize = 5;

/// One round per this number of polls of the whole history, and one more.
const POLLS_PER_ROUND: u64 = 100_000;

/// A machine, and what it did.
struct RestoredMachine {
    node: ScriptedNode,
    history: MachineHistory,
}

/// Two servers, and what is needed to enrol machines.
pub struct RestoreTest {
    pub replicas: Replicas,
    pub client: OperatorClient,
    pub rng: Rng,
    pub policy: String,
    registrar: NodeRegistrar,
}

/// All events of an attempt.
fn all_kinds() -> [Kind; 4] {
    [
        Kind::Downloading(Downloading::default()),
        Kind::Downloaded(Downloaded {}),
        Kind::Began(Began {}),
        Kind::Finished(Finished::default()),
    ]
}

impl RestoredMachine {
    fn new(node: ScriptedNode) -> Self {
        Self { history: start_history(&node), node }
    }

    /// Begins an attempt and reports its first events.
    async fn begin_attempt(&mut self, test: &mut RestoreTest, event_count: usize) {
        let attempt = ReportedAttempt { id: test.rng.uuid(), acknowledged: 0 };
        self.history.attempts.push(attempt);
        self.continue_attempt(&test.policy, event_count).await;
    }

    /// Reports the next events of the last attempt, up to a number. The node goes on where the
    /// server has ended, as an agent does.
    async fn continue_attempt(&mut self, policy: &str, event_count: usize) {
        let attempt = self.history.attempts.last_mut().expect("an attempt");
        self.node.attempt = attempt.id;
        // A server that forgot events gets them with the second report.
        for _ in 0..2 {
            let first = u32::try_from(attempt.acknowledged + 1).expect("a small number");
            let kinds = &all_kinds()[attempt.acknowledged..event_count];
            let request = self.node.build_report(policy, first, kinds);
            let stored = self.node.send_report(0, &request).await.acknowledged;
            attempt.acknowledged = usize::try_from(stored).expect("a small number");
            if attempt.acknowledged == event_count {
                return;
            }
        }
        panic!("{} stored only {} events", self.node.member.host, attempt.acknowledged);
    }
}

/// The history of a machine that has just enrolled.
pub fn start_history(node: &ScriptedNode) -> MachineHistory {
    let mut history = MachineHistory { uuid: node.uuid, ..MachineHistory::default() };
    add_ids(&mut history, node);
    history
}

/// Adds the IDs that a server has given to a machine.
fn add_ids(history: &mut MachineHistory, node: &ScriptedNode) {
    history.ids.extend([node.member.host.clone(), node.member.instance.clone()]);
}

impl RestoreTest {
    /// Creates a policy on these servers.
    pub async fn open(replicas: Replicas, seed: u64) -> Self {
        let client = OperatorClient::new(&replicas.rest_addresses(), &replicas.operator_token());
        let policy = json!({
            "name": "policy", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "demo-hello",
        });
        let policy = client.create("os-update-policies", &policy).await;
        let registrar = NodeRegistrar::open(&replicas, &client).await;
        Self { replicas, client, rng: Rng::new(seed, 3), policy, registrar }
    }

    /// Enrols a new machine.
    pub async fn enroll_node(&mut self) -> ScriptedNode {
        let (registrar, rng) = (&mut self.registrar, &mut self.rng);
        ScriptedNode::enroll_own(registrar, &self.replicas, rng).await
    }

    /// Creates a new join token, because that of the beginning has expired.
    pub async fn renew_join_token(&mut self) {
        self.registrar.renew_join_token(&self.client).await;
    }

    /// Enrols a machine again, and adds its new IDs to its history.
    pub async fn enroll_again(&mut self, history: &mut MachineHistory) -> ScriptedNode {
        let (registrar, rng, uuid) = (&mut self.registrar, &mut self.rng, history.uuid);
        let node = ScriptedNode::enroll_machine(registrar, &self.replicas, uuid, rng).await;
        add_ids(history, &node);
        node
    }

    async fn enroll(&mut self) -> Vec<RestoredMachine> {
        let mut machines = Vec::new();
        for _ in 0..MACHINES {
            machines.push(RestoredMachine::new(self.enroll_node().await));
        }
        machines
    }

    /// Reads the machines and the runs that the servers have recorded.
    pub async fn read_records(&self) -> MachineRecords {
        let mut records =
            MachineRecords { runs: read_runs(&self.client).await, ..MachineRecords::default() };
        let hosts = self.client.get("compute/hosts").await;
        for host in hosts["hosts"].as_array().into_iter().flatten() {
            let instance = host["instance"]["resourceId"].as_str().unwrap_or_default();
            let uuid = host["uuid"].as_str().unwrap_or_default();
            let uuid = uuid.parse().expect("the UUID of a machine");
            records.machines.insert(instance.to_owned(), uuid);
        }
        records
    }

    /// Fails if the records break a rule.
    async fn check(&self, when: &str, histories: &[MachineHistory]) {
        self.assert_none(when, &check_restored(histories, &self.read_records().await));
    }

    /// Fails if there is a violation.
    pub fn assert_none(&self, when: &str, violations: &[Violation]) {
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{when}:\n{}\n{}", lines.join("\n"), self.replicas.logs());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_no_run_is_lost_or_doubled_and_no_machines_are_confused() {
    let (seed, polls) = read_parameters();
    let mut test = RestoreTest::open(Replicas::start(2, "").await, seed).await;
    let mut known = Vec::new();
    let rounds = polls / POLLS_PER_ROUND + 1;
    for _ in 0..rounds {
        let new = go_back_to_a_dump(&mut test, &known).await;
        known.extend(new);
    }
    print_progress(&format!("{rounds} restores"));
    test.replicas.stop().await;
}

/// Lets machines enrol and work before and after a dump, restores the dump, and checks the records.
/// `known` are the histories of earlier machines, which are silent. Returns those of the new ones.
async fn go_back_to_a_dump(
    test: &mut RestoreTest,
    known: &[MachineHistory],
) -> Vec<MachineHistory> {
    let mut kept = test.enroll().await;
    for machine in &mut kept {
        machine.begin_attempt(test, 4).await;
        machine.begin_attempt(test, 2).await;
    }
    let dump = test.replicas.dump_database().await;
    let in_dump = kept.iter().map(|machine| machine.history.clone());
    let in_dump: Vec<_> = known.iter().cloned().chain(in_dump).collect();

    // The end of the second attempt, the third attempt and the late machines are not in the dump.
    for machine in &mut kept {
        machine.continue_attempt(&test.policy, 4).await;
        machine.begin_attempt(test, 2).await;
    }
    let mut late = test.enroll().await;
    for machine in &mut late {
        machine.begin_attempt(test, 3).await;
    }
    test.replicas.restore_database(&dump).await;
    test.check("after the restore", &in_dump).await;

    // Other machines must not get the IDs that the late ones had.
    let mut others = test.enroll().await;
    for machine in &mut others {
        machine.begin_attempt(test, 3).await;
    }
    for machine in &late {
        assert_unknown(&machine.node, &test.policy).await;
    }
    for machine in &mut kept {
        // The server lost the end of the second attempt, and no agent reports an attempt that ended.
        machine.history.attempts[1].acknowledged = 2;
        machine.continue_attempt(&test.policy, 4).await;
    }
    for machine in &mut late {
        machine.node = test.enroll_again(&mut machine.history).await;
        machine.history.attempts[0].acknowledged = 0;
        machine.continue_attempt(&test.policy, 4).await;
    }
    for machine in &mut others {
        machine.continue_attempt(&test.policy, 4).await;
    }
    let all = kept.into_iter().chain(late).chain(others).map(|machine| machine.history);
    let all: Vec<_> = all.collect();
    let checked: Vec<_> = known.iter().chain(&all).cloned().collect();
    test.check("at the end", &checked).await;
    all
}

/// Fails if the servers still accept the credential of a node that they forgot.
pub async fn assert_unknown(node: &ScriptedNode, policy: &str) {
    let polled = node.try_poll().await;
    assert!(polled.is_err(), "the poll of {} was accepted", node.member.host);
    let report = node.build_report(policy, 4, &all_kinds()[3..]);
    let reported = node.try_send_report(1, &report).await;
    assert!(reported.is_err(), "the report of {} was accepted: {reported:?}", node.member.host);
}
