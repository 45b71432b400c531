//! Races between two servers on one Postgres.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_RACE_ROUNDS` | number of races of 200 nodes for the slots of an assignment |
//! | `EVENKEEL_RACE_SEED` | seed that decides which servers are called and killed |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Began, Cancelled, Downloaded, Downloading, Finished};
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{
    NodeRegistrar, OperatorClient, Replicas, Run, ScriptedNode, SimulatedMember, machine_time,
    number, print_progress, read_runs,
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Number of nodes, each with its own connection to each server.
const NODE_COUNT: usize = 200;

/// Two servers, and a window that is open for a day for all nodes.
struct Course {
    replicas: Replicas,
    client: OperatorClient,
    rng: Rng,
    site: String,
}

/// Creates a window and waits until it is open. A schedule must start in the future, and a busy machine
/// may be too late for the next second. With limits, no node gets a window before it opens, so the
/// nodes must not be early.
async fn open_window(client: &OperatorClient, site: &str) {
    for ahead in [2, 4, 8] {
        let start = machine_time().timestamp() + ahead;
        let window = json!({
            "name": "open", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start, "endSeconds": start + 86_400, "targetSiteId": site,
        });
        let path = "schedules/single";
        if client.send(0, Method::POST, path, Some(&window)).await.is_ok() {
            while machine_time().timestamp() < start {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            return;
        }
    }
    panic!("no window can be opened");
}

impl Course {
    async fn open() -> Self {
        let seed = number("EVENKEEL_RACE_SEED", u64::from(std::process::id()) * 7_919);
        print_progress(&format!("EVENKEEL_RACE_SEED={seed}"));
        let replicas = Replicas::start(2, "").await;
        let client = OperatorClient::new(&replicas.rest_addresses(), &replicas.operator_token());
        let site = client.create("sites", &json!({ "name": "course" })).await;
        open_window(&client, &site).await;
        Self { replicas, client, rng: Rng::new(seed, 0), site }
    }

    async fn move_to_site(&self, member: &SimulatedMember) {
        let path = format!("compute/hosts/{}", member.host);
        let body = json!({ "siteId": self.site });
        let patched = self.client.send(0, Method::PATCH, &path, Some(&body)).await;
        patched.expect("the host is moved to the site");
    }

    async fn create_policy(&self, name: &str) -> String {
        let policy = json!({
            "name": name, "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "demo-hello",
        });
        self.client.create("os-update-policies", &policy).await
    }

    async fn set_limit(&self, policy: &str, limit: usize) {
        let body = json!({ "osUpdatePolicyId": policy, "maxConcurrent": limit });
        let (answer, _) =
            self.client.until_done(Method::PUT, "assignments/project", Some(&body)).await;
        answer.expect("an assignment");
    }

    async fn slots_in_use(&self) -> Value {
        self.client.get("assignments/project").await["slotsInUse"].clone()
    }

    async fn runs_of(&self, member: &SimulatedMember) -> Vec<Run> {
        let mut runs = read_runs(&self.client).await;
        runs.retain(|run| run.instance == member.instance);
        runs
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_concurrent_updates_is_never_exceeded() {
    let rounds = number("EVENKEEL_RACE_ROUNDS", 6);
    let mut course = Course::open().await;
    let mut registrar = NodeRegistrar::open(&course.replicas, &course.client).await;
    let mut racers = Vec::new();
    for _ in 0..NODE_COUNT {
        let racer =
            ScriptedNode::enroll_own(&mut registrar, &course.replicas, &mut course.rng).await;
        course.move_to_site(&racer.member).await;
        racer.send_facts().await;
        racers.push(racer);
    }
    let begun = Instant::now();
    let mut policy = String::new();
    for round in 0..rounds {
        let limit = if round % 2 == 0 { 1 } else { 10 };
        if round % 100 == 0 {
            // A node that finished an update does not start it again for the same policy.
            policy = course.create_policy(&format!("policy-{round}")).await;
            course.set_limit(&policy, limit).await;
            for racer in &mut racers {
                racer.stage(&policy, &mut course.rng).await;
            }
        }
        course.set_limit(&policy, limit).await;
        let is_killing = round % 3 == 2;
        let granted = run_race(&mut course, &racers, &policy, is_killing).await;
        let slots = course.slots_in_use().await;
        assert_eq!(
            granted.len(),
            limit,
            "round {round}: granted to {granted:?}, {slots} slots in use"
        );
        assert_eq!(slots, limit, "round {round}");
        for at in granted {
            let racer = &mut racers[at];
            if round % 10 == 0 {
                let kinds = [Kind::Began(Began {}), Kind::Finished(Finished::default())];
                racer.report_until_acknowledged(&policy, 3, &kinds).await;
            } else {
                let cause = "refused".to_owned();
                racer
                    .report_until_acknowledged(&policy, 3, &[Kind::Cancelled(Cancelled { cause })])
                    .await;
                racer.stage(&policy, &mut course.rng).await;
            }
        }
    }
    print_progress(&format!("{rounds} rounds of {NODE_COUNT} nodes in {:.0?}", begun.elapsed()));
    course.replicas.stop().await;
}

/// All nodes request permission at the same time. Returns the nodes that got it.
async fn run_race(
    course: &mut Course,
    racers: &[ScriptedNode],
    policy: &str,
    is_killing: bool,
) -> Vec<usize> {
    let line = Arc::new(Barrier::new(racers.len() + 1));
    let mut tasks = JoinSet::new();
    for (at, racer) in racers.iter().cloned().enumerate() {
        let (line, policy) = (Arc::clone(&line), policy.to_owned());
        let server = usize::from(course.rng.happens(500));
        tasks.spawn(async move {
            line.wait().await;
            (at, racer.request_start(&policy, server).await)
        });
    }
    line.wait().await;
    if is_killing {
        tokio::time::sleep(Duration::from_millis(course.rng.between(0, 300))).await;
        let at = usize::from(course.rng.happens(500));
        let server = &mut course.replicas.servers()[at];
        server.kill();
        server.start_and_wait().await;
    }
    let answers = tasks.join_all().await;
    let mut granted: Vec<_> = answers.into_iter().filter(|(_, is)| *is).map(|(at, _)| at).collect();
    granted.sort_unstable();
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn only_as_many_eim_agents_as_the_limit_allows_get_the_window() {
    let mut course = Course::open().await;
    let mut registrar = NodeRegistrar::open(&course.replicas, &course.client).await;
    let mut racers = Vec::new();
    for _ in 0..60 {
        let racer = ScriptedNode::register_eim(
            &mut registrar,
            &course.replicas,
            &course.client,
            &mut course.rng,
        )
        .await;
        course.move_to_site(&racer.member).await;
        racer.send_status(0, StatusType::UpToDate, "").await;
        racers.push(racer);
    }
    let policy = course.create_policy("policy").await;
    course.set_limit(&policy, 3).await;
    let mut notified = Vec::new();
    for _ in 0..3 {
        let mut tasks = JoinSet::new();
        for (at, racer) in racers.iter().cloned().enumerate() {
            let server = usize::from(course.rng.happens(500));
            tasks.spawn(
                async move { (at, racer.send_status(server, StatusType::UpToDate, "").await) },
            );
        }
        let answers = tasks.join_all().await;
        notified = answers.into_iter().filter(|(_, is)| *is).map(|(at, _)| at).collect();
        notified.sort_unstable();
        assert_eq!(notified.len(), 3, "the window was sent to {notified:?}");
    }
    // One update ends, and another node gets its slot.
    let first = &racers[notified[0]];
    for kind in [StatusType::Started, StatusType::Updated, StatusType::UpToDate] {
        first.send_status(0, kind, "").await;
    }
    let mut others = 0;
    for racer in &racers {
        others += usize::from(racer.send_status(1, StatusType::UpToDate, "").await);
    }
    assert!((2..=4).contains(&others), "{others} nodes get the window");
    assert_eq!(course.slots_in_use().await, 3);
    course.replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_end_reported_a_hundred_times_at_once_is_one_run_with_one_end() {
    let mut course = Course::open().await;
    let mut registrar = NodeRegistrar::open(&course.replicas, &course.client).await;
    let policy = course.create_policy("policy").await;
    let all_kinds = [
        Kind::Downloading(Downloading::default()),
        Kind::Downloaded(Downloaded {}),
        Kind::Began(Began {}),
        Kind::Finished(Finished::default()),
    ];
    for reported_before in [0, 3] {
        let mut racer =
            ScriptedNode::enroll_own(&mut registrar, &course.replicas, &mut course.rng).await;
        racer.add_connections(&mut registrar, &course.replicas);
        racer.attempt = course.rng.uuid();
        racer.report_until_acknowledged(&policy, 1, &all_kinds[..reported_before]).await;
        let mut tasks = JoinSet::new();
        for server in 0..100 {
            let racer = racer.clone();
            let request = racer.build_report(&policy, 1, &all_kinds);
            tasks.spawn(async move {
                let answer = racer.send_report(server, &request).await;
                (answer.acknowledged, answer.run_id)
            });
        }
        let answers = tasks.join_all().await;
        let runs = course.runs_of(&racer.member).await;
        assert_eq!(runs.len(), 1, "{runs:#?}");
        assert_eq!(runs[0].state, "succeeded");
        let events: Vec<_> = runs[0].events.iter().map(|entry| entry.event.as_str()).collect();
        assert_eq!(events, ["downloading", "downloaded", "began", "finished"]);
        assert!(answers.iter().all(|answer| *answer == (4, runs[0].id.clone())), "{answers:?}");
    }
    course.replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_status_sent_a_hundred_times_at_once_is_one_run_with_one_end() {
    let mut course = Course::open().await;
    let mut registrar = NodeRegistrar::open(&course.replicas, &course.client).await;
    let failure = r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"download"}]}"#;
    for (kind, detail, is_started, state) in [
        (StatusType::Updated, "", false, "succeeded"),
        (StatusType::Updated, "", true, "succeeded"),
        (StatusType::Failed, failure, false, "failed"),
        (StatusType::Failed, failure, true, "failed"),
    ] {
        let mut racer = ScriptedNode::register_eim(
            &mut registrar,
            &course.replicas,
            &course.client,
            &mut course.rng,
        )
        .await;
        racer.add_connections(&mut registrar, &course.replicas);
        racer.send_status(0, StatusType::UpToDate, "").await;
        if is_started {
            racer.send_status(1, StatusType::Started, "").await;
        }
        let mut tasks = JoinSet::new();
        for server in 0..100 {
            let racer = racer.clone();
            let detail = detail.to_owned();
            tasks.spawn(async move {
                racer.send_status(server, kind, &detail).await;
            });
        }
        tasks.join_all().await;
        let runs = course.runs_of(&racer.member).await;
        assert_eq!(runs.len(), 1, "{runs:#?}");
        assert_eq!(runs[0].state, state);
        let ends = runs[0].events.iter().filter(|entry| entry.event != "began").count();
        assert_eq!(ends, 1, "{runs:#?}");
    }
    course.replicas.stop().await;
}
