//! Simulated nodes against a scripted server. Their clocks move only when a test moves them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::TestClock;
use evenkeel_proto::agent::agent_service_server::{AgentService, AgentServiceServer};
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    Apply, BeginRequest, BeginResponse, Decision, EnrollRequest, EnrollResponse, Fetch, Granted,
    Idle, OfflineGrant, PollRequest, PollResponse, Refused, RenewRequest, RenewResponse,
    ReportRequest, ReportResponse, Target, Window, begin_response,
};
use evenkeel_proto::maintmgr::maintmgr_service_server::{MaintmgrService, MaintmgrServiceServer};
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    OsProfileUpdateSource, PlatformUpdateStatusRequest, PlatformUpdateStatusResponse,
    RepeatedSchedule, SingleSchedule, UpdateSchedule, UpdateSource,
};
use evenkeel_simulator::clock::NodeClock;
use evenkeel_simulator::connection::{Fate, Faults, Network, NodeConnection};
use evenkeel_simulator::eim::{self, EimNode};
use evenkeel_simulator::ground_truth::StartPermit;
use evenkeel_simulator::own::{self, OwnNode};
use evenkeel_simulator::polling::{self, PollPayload};
use evenkeel_simulator::rng::Rng;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

#[path = "simulated_nodes/images.rs"]
mod images;
#[path = "simulated_nodes/long_poll.rs"]
mod long_poll;

const NOON: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// What the server received, and what it answers.
#[derive(Debug, Default)]
struct FakeState {
    is_away: bool,
    refusals_left: u32,
    act: Option<Act>,
    grant: Option<OfflineGrant>,
    /// The names of the calls and their content, in order of arrival.
    calls: Vec<String>,
    window: Option<(u64, u64)>,
    /// Minutes of each hour in which a window of 40 seconds opens.
    minutes: Option<&'static str>,
    image: Option<&'static str>,
    /// The retry hint in milliseconds, if the server is overloaded.
    pushback: Option<u64>,
    /// The tag of its decision.
    tag: u64,
    /// The tag of each poll, and whether it is a long poll.
    polls: Vec<(u64, bool)>,
    /// The failed images in the facts that were reported last.
    failed_images: Vec<String>,
    /// For each attempt: the replaced image, the desired one, and the one that ran in the end, as
    /// reported.
    versions: Vec<[String; 3]>,
}

#[derive(Clone, Debug, Default)]
struct FakeServer(Arc<Mutex<FakeState>>);

impl FakeServer {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_call(&self, what: String) -> Result<MutexGuard<'_, FakeState>, Status> {
        let mut state = self.state();
        if state.is_away {
            return Err(Status::unavailable("away"));
        }
        state.calls.push(what);
        Ok(state)
    }

    fn calls_with_prefix(&self, begins: &str) -> Vec<String> {
        let state = self.state();
        let heard = state.calls.iter().filter(|what| what.starts_with(begins));
        heard.cloned().collect()
    }

    async fn channel(&self) -> Channel {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serve = Server::builder()
            .add_service(AgentServiceServer::new(self.clone()))
            .add_service(MaintmgrServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(serve);
        tasks.detach_all();
        Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
    }

    async fn connection(&self, faults: Faults) -> NodeConnection {
        NodeConnection::new(vec![self.channel().await], "token", &Network::new(faults))
            .expect("a credential")
    }
}

#[tonic::async_trait]
impl AgentService for FakeServer {
    async fn enroll(&self, _: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        Err(Status::unimplemented("no enrolment"))
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<RenewResponse>, Status> {
        Err(Status::unimplemented("no renewal"))
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        let message = request.into_inner();
        let mut state = self.record_call(format!("poll {}", message.attempt.is_some()))?;
        state.polls.push((message.decision_tag, message.long_poll_millis > 0));
        if let Some(facts) = message.facts.clone() {
            let bad = facts.bad_images.into_iter();
            state.failed_images = bad.map(|bad| bad.image_id).collect();
        }
        if let Some(again) = state.pushback {
            let mut status = Status::unavailable("too much to do");
            status.metadata_mut().insert("grpc-retry-pushback-ms", again.into());
            return Err(status);
        }
        let decision = Decision {
            act: state.act.clone(),
            offline_grant: state.grant.clone(),
            ..Decision::default()
        };
        Ok(Response::new(PollResponse {
            facts_required: message.facts.is_none() && state.calls.len() < 2,
            now: Some(prost_types::Timestamp::default()),
            decision: Some(decision),
            decision_tag: state.tag,
            next_long_poll_millis: 60_000,
            ..PollResponse::default()
        }))
    }

    async fn begin(&self, _: Request<BeginRequest>) -> Result<Response<BeginResponse>, Status> {
        let mut state = self.record_call("begin".to_owned())?;
        let answer = if state.refusals_left > 0 {
            state.refusals_left -= 1;
            begin_response::Answer::Refused(Refused::default())
        } else {
            let before = Some(prost_types::Timestamp { seconds: 60, nanos: 0 });
            begin_response::Answer::Granted(Granted { start_deadline: before })
        };
        Ok(Response::new(BeginResponse {
            answer: Some(answer),
            now: Some(prost_types::Timestamp::default()),
        }))
    }

    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let events = request.into_inner().events;
        let acknowledged = events.last().map_or(0, |event| event.sequence);
        for event in events {
            let mut state = self.record_call(format!("event {}", event.sequence))?;
            if let Some(kind) = event.kind {
                images::record_images(&mut state.versions, kind);
            }
        }
        Ok(Response::new(ReportResponse { acknowledged, ..ReportResponse::default() }))
    }
}

#[tonic::async_trait]
impl MaintmgrService for FakeServer {
    async fn platform_update_status(
        &self,
        request: Request<PlatformUpdateStatusRequest>,
    ) -> Result<Response<PlatformUpdateStatusResponse>, Status> {
        let update_status = request.into_inner().update_status.unwrap_or_default();
        let kind = update_status.status_type();
        let state = self.record_call(
            format!("sample {kind:?} {}", update_status.os_image_id).trim().to_owned(),
        )?;
        let single = state
            .window
            .map(|(start_seconds, end_seconds)| SingleSchedule { start_seconds, end_seconds });
        let repeated = state.minutes.map(|minutes| RepeatedSchedule {
            duration_seconds: 40,
            cron_minutes: minutes.to_owned(),
            cron_hours: "*".to_owned(),
            cron_day_month: "*".to_owned(),
            cron_month: "*".to_owned(),
            cron_day_week: "*".to_owned(),
        });
        let image = state.image.map(|image| OsProfileUpdateSource {
            os_image_url: "edge.raw.gz".to_owned(),
            os_image_id: image.to_owned(),
            os_image_sha: format!("sha of {image}"),
            profile_name: "edge".to_owned(),
            ..OsProfileUpdateSource::default()
        });
        Ok(Response::new(PlatformUpdateStatusResponse {
            os_profile_update_source: Some(image.unwrap_or_default()),
            update_source: Some(UpdateSource::default()),
            update_schedule: Some(UpdateSchedule {
                single_schedule: single,
                repeated_schedules: repeated.into_iter().collect(),
                ..UpdateSchedule::default()
            }),
            ..PlatformUpdateStatusResponse::default()
        }))
    }
}

fn target() -> Target {
    Target { digest: "osupdatepolicy-00000001".to_owned(), spec: None }
}

/// A node with our own agent and without random faults.
async fn own_node(server: &FakeServer, clock: &TestClock, skew: TimeDelta) -> OwnNode {
    own_node_with(server, clock, skew, without_faults()).await
}

/// Habits without random faults.
fn without_faults() -> own::OwnHabits {
    own::OwnHabits {
        crash_per_mille: 0,
        outage_per_mille: 0,
        no_op_per_mille: 0,
        failure_per_mille: 0,
        fact_change_per_mille: 0,
        ..own::OwnHabits::default()
    }
}

async fn own_node_with(
    server: &FakeServer,
    clock: &TestClock,
    skew: TimeDelta,
    habits: own::OwnHabits,
) -> OwnNode {
    let clock = NodeClock::new(Arc::new(clock.clone()), skew);
    OwnNode::new(clock, Rng::new(1, 1), server.connection(Faults::default()).await, habits)
}

async fn run_turns(node: &mut OwnNode, clock: &TestClock, count: usize) {
    for _ in 0..count {
        clock.advance(TimeDelta::seconds(2));
        node.turn().await;
    }
}

/// Makes a call. Returns whether it was answered, its fate, how many requests had arrived when it
/// ended and in the end, and how many failures the node did not see.
async fn call_with(server: &FakeServer, faults: Faults) -> (bool, Fate, [usize; 2], u64) {
    let connection = server.connection(faults).await;
    let poll = PollPayload::Own(Box::default());
    let (answer, fate) = connection.call_with_fate(&mut Rng::new(1, 1), poll, polling::send).await;
    let at_once = server.calls_with_prefix("poll").len();
    connection.network().stop_faults().await;
    let arrived = [at_once, server.calls_with_prefix("poll").len()];
    let unseen = connection.network().counters.unseen_failures.load(Ordering::Relaxed);
    (answer.is_ok(), fate, arrived, unseen)
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let call = async |faults| call_with(&FakeServer::default(), faults).await;
    let none = Faults::default();
    assert_eq!(call(none).await, (true, Fate::Arrives, [1, 1], 0));
    let lost = Faults { lose_request: 1_000, ..none };
    assert_eq!(call(lost).await, (false, Fate::RequestLost, [0, 0], 0));
    let unanswered = Faults { lose_answer: 1_000, ..none };
    assert_eq!(call(unanswered).await, (false, Fate::AnswerLost, [1, 1], 0));
    let twice = Faults { duplicate: 1_000, ..none };
    assert_eq!(call(twice).await, (true, Fate::Twice, [2, 2], 0));
    let late = Faults { straggle: 1_000, ..none };
    assert_eq!(call(late).await, (false, Fate::Late, [0, 1], 0));
    let slow = Faults { delay: 1_000, ..none };
    assert_eq!(call(slow).await, (true, Fate::Slow, [1, 1], 0));
}

#[tokio::test]
async fn a_server_error_is_no_fault_and_is_counted_if_the_node_does_not_see_it() {
    let none = Faults::default();
    let call = async |faults, pushback: Option<u64>| {
        let server = FakeServer::default();
        server.state().is_away = pushback.is_none();
        server.state().pushback = pushback;
        let (is_answered, fate, _, unseen) = call_with(&server, faults).await;
        assert!(!is_answered);
        (fate, unseen)
    };
    let unanswered = Faults { lose_answer: 1_000, ..none };
    assert_eq!(call(unanswered, None).await, (Fate::Arrives, 0));
    let twice = Faults { duplicate: 1_000, ..none };
    assert_eq!(call(twice, None).await, (Fate::Twice, 1));
    let late = Faults { straggle: 1_000, ..none };
    assert_eq!(call(late, None).await, (Fate::Late, 1));
    assert_eq!(call(late, Some(1_000)).await, (Fate::Late, 0), "a retry hint is no failure");
}

#[tokio::test]
async fn our_own_agent_downloads_requests_a_start_and_reports_everything_in_order() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let mut node = own_node(&server, &clock, TimeDelta::zero()).await;
    server.state().act = Some(Act::Fetch(Fetch { target: Some(target()) }));
    run_turns(&mut node, &clock, 4).await;
    assert_eq!(server.calls_with_prefix("event"), ["event 1", "event 2"]);
    server.state().act = Some(Act::Apply(Apply { target: Some(target()), start_deadline: None }));
    server.state().refusals_left = 2;
    run_turns(&mut node, &clock, 3).await;
    server.state().act = Some(Act::Idle(Idle {}));
    run_turns(&mut node, &clock, 8).await;
    assert_eq!(server.calls_with_prefix("begin").len(), 3);
    assert!(node.is_idle());
    let ground_truth = node.into_ground_truth();
    let [attempt] = ground_truth.attempts.as_slice() else {
        panic!("{ground_truth:#?}");
    };
    let last = attempt.events.len();
    assert_eq!(attempt.events.last().map(|event| event.name), Some("finished"));
    assert_eq!(usize::try_from(attempt.acknowledged), Ok(last));
    let all: Vec<_> = (1..=last).map(|number| format!("event {number}")).collect();
    assert_eq!(server.calls_with_prefix("event"), all);
    assert!(matches!(attempt.permit, Some(StartPermit::Online { .. })));
}

#[tokio::test]
async fn our_own_agent_begins_offline_only_in_a_window_by_its_own_clock() {
    for (skew, may_begin) in [(300, true), (0, false), (-300, false)] {
        let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
        let mut node = own_node(&server, &clock, TimeDelta::seconds(skew)).await;
        server.state().act = Some(Act::Fetch(Fetch { target: Some(target()) }));
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        server.state().grant = Some(OfflineGrant {
            target_digest: target().digest,
            windows: vec![Window { start: at(300), end: at(400) }],
            expires_at: at(1_000),
        });
        run_turns(&mut node, &clock, 5).await;
        server.state().is_away = true;
        run_turns(&mut node, &clock, 5).await;
        let attempts = node.into_ground_truth().attempts;
        let permit = attempts.first().and_then(|attempt| attempt.permit.clone());
        assert_eq!(
            matches!(permit, Some(StartPermit::Offline { .. })),
            may_begin,
            "{skew} s ahead: {attempts:#?}"
        );
    }
}

/// An EIM node without random faults; its updates end at once.
async fn eim_node(server: &FakeServer, clock: &TestClock, skew: TimeDelta) -> EimNode {
    let none = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    let habits = eim::EimHabits {
        download_time: none,
        update_time: none,
        reboot_time: none,
        crash_per_mille: 0,
        failure_per_mille: 0,
        no_op_per_mille: 0,
        stuck_per_mille: 0,
        unreadable_per_mille: 0,
        ..eim::EimHabits::default()
    };
    let clock = NodeClock::new(Arc::new(clock.clone()), skew);
    let connection = server.connection(Faults::default()).await;
    EimNode::new("a1b2c3d4-0000-4000-8000-0000000000ff", clock, Rng::new(1, 1), connection)
        .with_habits(eim::Pace::FAST, habits)
}

async fn run_ticks(node: &mut EimNode, clock: &TestClock, count: usize) {
    for _ in 0..count {
        node.turn().await;
        clock.advance(TimeDelta::seconds(10));
    }
}

#[tokio::test]
async fn the_eim_agent_shows_an_end_until_it_was_acknowledged() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let mut node = eim_node(&server, &clock, TimeDelta::zero()).await;
    server.state().window = Some((15, 100));
    run_ticks(&mut node, &clock, 2).await;
    server.state().is_away = true;
    run_ticks(&mut node, &clock, 2).await;
    server.state().is_away = false;
    run_ticks(&mut node, &clock, 3).await;
    let all = [
        StatusType::UpToDate,
        StatusType::UpToDate,
        StatusType::Updated,
        StatusType::UpToDate,
        StatusType::UpToDate,
    ];
    assert_eq!(server.calls_with_prefix("sample"), all.map(|kind| format!("sample {kind:?}")));
    let ground_truth = node.into_ground_truth();
    assert_eq!(ground_truth.updates.len(), 1, "{ground_truth:#?}");
    let updated = ground_truth.reports.iter().find(|report| report.kind == "updated");
    assert_eq!(updated.map(|report| report.acknowledged), Some(1));
}

#[tokio::test]
async fn the_eim_agent_begins_by_its_own_clock() {
    for (skew, begins) in [(300, 1), (0, 0), (-300, 0)] {
        let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
        let mut node = eim_node(&server, &clock, TimeDelta::seconds(skew)).await;
        server.state().window = Some((310, 400));
        run_ticks(&mut node, &clock, 4).await;
        assert_eq!(node.into_ground_truth().updates.len(), begins, "{skew} s ahead");
    }
}
