//! Races between two servers on one Postgres.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_RACE_ROUNDS` | how often 200 nodes race for the slots of an assignment |
//! | `EVENKEEL_RACE_SEED` | which servers are asked and killed |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to be tested |

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{Began, Cancelled, Downloaded, Downloading, Finished};
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_simulator::chance::Chance;
use evenkeel_tests::history::{
    Desk, Door, Member, Racer, Replicas, Run, machine_time, number, read_runs, say,
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// How many nodes race, each with a socket of its own to each server.
const SOCKETS: usize = 200;

/// Two servers, and a window that is open, for a day and for everybody.
struct Course {
    replicas: Replicas,
    desk: Desk,
    chance: Chance,
    site: String,
}

/// A window, and the wait until it is open: a schedule begins in the future, and a busy machine may be too late for the
/// next second. Where nodes are counted, nobody is told of a window before it opens, so a fast machine must not be early.
async fn open_window(desk: &Desk, site: &str) {
    for ahead in [2, 4, 8] {
        let start = machine_time().timestamp() + ahead;
        let window = json!({
            "name": "open", "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start, "endSeconds": start + 86_400, "targetSiteId": site,
        });
        let path = "/schedules/single";
        if desk.ask(0, Method::POST, path, Some(&window)).await.is_ok() {
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
        say(&format!("EVENKEEL_RACE_SEED={seed}"));
        let replicas = Replicas::start(2, "").await;
        let desk = Desk::new(&replicas.rest(), &replicas.token());
        let site = desk.make("/sites", &json!({ "name": "course" })).await;
        open_window(&desk, &site).await;
        Self {
            replicas,
            desk,
            chance: Chance::new(seed, 0),
            site,
        }
    }

    async fn place(&self, member: &Member) {
        let path = format!("/compute/hosts/{}", member.host);
        let body = json!({ "siteId": self.site });
        let patched = self.desk.ask(0, Method::PATCH, &path, Some(&body)).await;
        patched.expect("a host is put into the site");
    }

    async fn policy(&self, name: &str) -> String {
        let policy = json!({
            "name": name, "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "demo-hello",
        });
        self.desk.make("/os-update-policies", &policy).await
    }

    async fn limit(&self, policy: &str, limit: usize) {
        let body = json!({ "osUpdatePolicyId": policy, "maxConcurrent": limit });
        let (answer, _) = self
            .desk
            .until_done(Method::PUT, "/assignments/project", Some(&body))
            .await;
        answer.expect("an assignment");
    }

    async fn slots_in_use(&self) -> Value {
        self.desk.get("/assignments/project").await["slotsInUse"].clone()
    }

    async fn runs_of(&self, member: &Member) -> Vec<Run> {
        let mut runs = read_runs(&self.desk).await;
        runs.retain(|run| run.instance == member.instance);
        runs
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_never_exceeded_by_one() {
    let rounds = number("EVENKEEL_RACE_ROUNDS", 6);
    let mut course = Course::open().await;
    let mut door = Door::open(&course.replicas, &course.desk).await;
    let mut racers = Vec::new();
    for _ in 0..SOCKETS {
        let racer = Racer::own(&mut door, &course.replicas, &mut course.chance).await;
        course.place(&racer.member).await;
        racer.introduce().await;
        racers.push(racer);
    }
    let begun = Instant::now();
    let mut policy = String::new();
    for round in 0..rounds {
        let limit = if round % 2 == 0 { 1 } else { 10 };
        if round % 100 == 0 {
            // Who was seen through does not begin again for the same wish.
            policy = course.policy(&format!("wish-{round}")).await;
            course.limit(&policy, limit).await;
            for racer in &mut racers {
                racer.stage(&policy, &mut course.chance).await;
            }
        }
        course.limit(&policy, limit).await;
        let is_killing = round % 3 == 2;
        let granted = race(&mut course, &racers, &policy, is_killing).await;
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
                let news = [News::Began(Began {}), News::Finished(Finished::default())];
                racer.tell(&policy, 3, &news).await;
            } else {
                let cause = "refused".to_owned();
                racer
                    .tell(&policy, 3, &[News::Cancelled(Cancelled { cause })])
                    .await;
                racer.stage(&policy, &mut course.chance).await;
            }
        }
    }
    say(&format!(
        "{rounds} rounds of {SOCKETS} sockets in {:.0?}",
        begun.elapsed()
    ));
    course.replicas.stop().await;
}

/// All ask at once. Returns who was granted leave.
async fn race(course: &mut Course, racers: &[Racer], policy: &str, is_killing: bool) -> Vec<usize> {
    let line = Arc::new(Barrier::new(racers.len() + 1));
    let mut tasks = JoinSet::new();
    for (at, racer) in racers.iter().cloned().enumerate() {
        let (line, policy) = (Arc::clone(&line), policy.to_owned());
        let server = usize::from(course.chance.hits(500));
        tasks.spawn(async move {
            line.wait().await;
            (at, racer.may_begin(&policy, server).await)
        });
    }
    line.wait().await;
    if is_killing {
        tokio::time::sleep(Duration::from_millis(course.chance.between(0, 300))).await;
        let at = usize::from(course.chance.hits(500));
        let server = &mut course.replicas.servers()[at];
        server.kill().await;
        server.start().await;
    }
    let answers = tasks.join_all().await;
    let mut granted: Vec<_> = answers
        .into_iter()
        .filter(|(_, is)| *is)
        .map(|(at, _)| at)
        .collect();
    granted.sort_unstable();
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_of_the_ancestors_agents_are_told_the_window() {
    let mut course = Course::open().await;
    let mut door = Door::open(&course.replicas, &course.desk).await;
    let mut racers = Vec::new();
    for _ in 0..60 {
        let racer = Racer::eim(
            &mut door,
            &course.replicas,
            &course.desk,
            &mut course.chance,
        )
        .await;
        course.place(&racer.member).await;
        racer.show(0, StatusType::UpToDate, "").await;
        racers.push(racer);
    }
    let policy = course.policy("wish").await;
    course.limit(&policy, 3).await;
    let mut told = Vec::new();
    for _ in 0..3 {
        let mut tasks = JoinSet::new();
        for (at, racer) in racers.iter().cloned().enumerate() {
            let server = usize::from(course.chance.hits(500));
            tasks.spawn(async move { (at, racer.show(server, StatusType::UpToDate, "").await) });
        }
        let answers = tasks.join_all().await;
        told = answers
            .into_iter()
            .filter(|(_, is)| *is)
            .map(|(at, _)| at)
            .collect();
        told.sort_unstable();
        assert_eq!(told.len(), 3, "told to {told:?}");
    }
    // One ends, and its slot is the next one's.
    let first = &racers[told[0]];
    for kind in [
        StatusType::Started,
        StatusType::Updated,
        StatusType::UpToDate,
    ] {
        first.show(0, kind, "").await;
    }
    let mut others = 0;
    for racer in &racers {
        others += usize::from(racer.show(1, StatusType::UpToDate, "").await);
    }
    assert!((2..=4).contains(&others), "{others} are told the window");
    assert_eq!(course.slots_in_use().await, 3);
    course.replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_end_told_a_hundred_times_at_once_is_one_run_with_one_end() {
    let mut course = Course::open().await;
    let mut door = Door::open(&course.replicas, &course.desk).await;
    let policy = course.policy("wish").await;
    let whole = [
        News::Downloading(Downloading::default()),
        News::Downloaded(Downloaded {}),
        News::Began(Began {}),
        News::Finished(Finished::default()),
    ];
    for told_before in [0, 3] {
        let mut racer = Racer::own(&mut door, &course.replicas, &mut course.chance).await;
        racer.widen(&mut door, &course.replicas);
        racer.attempt = course.chance.uuid();
        racer.tell(&policy, 1, &whole[..told_before]).await;
        let mut tasks = JoinSet::new();
        for server in 0..100 {
            let racer = racer.clone();
            let request = racer.report(&policy, 1, &whole);
            tasks.spawn(async move {
                let answer = racer.deliver(server, &request).await;
                (answer.acknowledged, answer.run_id)
            });
        }
        let answers = tasks.join_all().await;
        let runs = course.runs_of(&racer.member).await;
        assert_eq!(runs.len(), 1, "{runs:#?}");
        assert_eq!(runs[0].state, "succeeded");
        let events: Vec<_> = runs[0]
            .events
            .iter()
            .map(|entry| entry.event.as_str())
            .collect();
        assert_eq!(events, ["downloading", "downloaded", "began", "finished"]);
        assert!(
            answers
                .iter()
                .all(|answer| *answer == (4, runs[0].id.clone())),
            "{answers:?}"
        );
    }
    course.replicas.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_sample_shown_a_hundred_times_at_once_is_one_run_with_one_end() {
    let mut course = Course::open().await;
    let mut door = Door::open(&course.replicas, &course.desk).await;
    let failure = r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"download"}]}"#;
    for (kind, detail, is_started, state) in [
        (StatusType::Updated, "", false, "succeeded"),
        (StatusType::Updated, "", true, "succeeded"),
        (StatusType::Failed, failure, false, "failed"),
        (StatusType::Failed, failure, true, "failed"),
    ] {
        let mut racer = Racer::eim(
            &mut door,
            &course.replicas,
            &course.desk,
            &mut course.chance,
        )
        .await;
        racer.widen(&mut door, &course.replicas);
        racer.show(0, StatusType::UpToDate, "").await;
        if is_started {
            racer.show(1, StatusType::Started, "").await;
        }
        let mut tasks = JoinSet::new();
        for server in 0..100 {
            let racer = racer.clone();
            let detail = detail.to_owned();
            tasks.spawn(async move {
                racer.show(server, kind, &detail).await;
            });
        }
        tasks.join_all().await;
        let runs = course.runs_of(&racer.member).await;
        assert_eq!(runs.len(), 1, "{runs:#?}");
        assert_eq!(runs[0].state, state);
        let ends = runs[0]
            .events
            .iter()
            .filter(|entry| entry.event != "began")
            .count();
        assert_eq!(ends, 1, "{runs:#?}");
    }
    course.replicas.stop().await;
}
