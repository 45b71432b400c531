//! The nodes against a server that does what a test says. Their clocks move only when a test moves them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::TestClock;
use evenkeel_proto::agent::agent_service_server::{AgentService, AgentServiceServer};
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    Apply, BeginRequest, BeginResponse, Decision, EnrollRequest, EnrollResponse, Fetch, Grant,
    Granted, Idle, PollRequest, PollResponse, Refused, ReportRequest, ReportResponse, Target,
    Window, begin_response,
};
use evenkeel_proto::maintmgr::maintmgr_service_server::{MaintmgrService, MaintmgrServiceServer};
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    OsProfileUpdateSource, PlatformUpdateStatusRequest, PlatformUpdateStatusResponse,
    RepeatedSchedule, SingleSchedule, UpdateSchedule, UpdateSource,
};
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::clock::NodeClock;
use evenkeel_simulator::eim::{self, EimNode};
use evenkeel_simulator::line::{Faults, Line, Weather};
use evenkeel_simulator::own::{self, OwnNode};
use evenkeel_simulator::truth::Leave;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

#[path = "nodes/holds.rs"]
mod holds;
#[path = "nodes/images.rs"]
mod images;

const NOON: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// What the server was told, and what it says.
#[derive(Debug, Default)]
struct State {
    is_away: bool,
    refuses: u32,
    act: Option<Act>,
    grant: Option<Grant>,
    /// Names of the calls and what they said, in the order of their arrival.
    heard: Vec<String>,
    window: Option<(u64, u64)>,
    /// Minutes of each hour in which a window of 40 seconds opens.
    minutes: Option<&'static str>,
    image: Option<&'static str>,
    /// When it wants to be asked again, in milliseconds: it has too much to do.
    pushback: Option<u64>,
    /// The tag of its decision.
    tag: u64,
    /// The tag of each poll, and whether it might be held.
    holds: Vec<(u64, bool)>,
    /// The images that failed, by the facts that were told last.
    bad: Vec<String>,
    /// The image that an attempt was to replace, the wanted one, and the one that ran in the end, as they were told.
    versions: Vec<[String; 3]>,
}

#[derive(Clone, Debug, Default)]
struct Puppet(Arc<Mutex<State>>);

impl Puppet {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, what: String) -> Result<MutexGuard<'_, State>, Status> {
        let mut state = self.state();
        if state.is_away {
            return Err(Status::unavailable("away"));
        }
        state.heard.push(what);
        Ok(state)
    }

    fn heard(&self, begins: &str) -> Vec<String> {
        let state = self.state();
        let heard = state.heard.iter().filter(|what| what.starts_with(begins));
        heard.cloned().collect()
    }

    async fn channel(&self) -> Channel {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = Server::builder()
            .add_service(AgentServiceServer::new(self.clone()))
            .add_service(MaintmgrServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(server);
        tasks.detach_all();
        Endpoint::from_shared(format!("http://{address}"))
            .expect("an address")
            .connect_lazy()
    }

    async fn line(&self, faults: Faults) -> Line {
        Line::new(vec![self.channel().await], "token", &Weather::new(faults)).expect("a credential")
    }
}

#[tonic::async_trait]
impl AgentService for Puppet {
    async fn enroll(&self, _: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        Err(Status::unimplemented("nobody joins"))
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        let said = request.into_inner();
        let mut state = self.hear(format!("poll {}", said.attempt.is_some()))?;
        state
            .holds
            .push((said.decision_tag, said.may_hold_millis > 0));
        if let Some(facts) = said.facts.clone() {
            let bad = facts.bad_images.into_iter();
            state.bad = bad.map(|bad| bad.image_id).collect();
        }
        if let Some(again) = state.pushback {
            let mut status = Status::unavailable("too much to do");
            status
                .metadata_mut()
                .insert("grpc-retry-pushback-ms", again.into());
            return Err(status);
        }
        let decision = Decision {
            act: state.act.clone(),
            grant: state.grant.clone(),
            ..Decision::default()
        };
        Ok(Response::new(PollResponse {
            want_facts: said.facts.is_none() && state.heard.len() < 2,
            now: Some(prost_types::Timestamp::default()),
            decision: Some(decision),
            decision_tag: state.tag,
            hold_millis: 60_000,
            ..PollResponse::default()
        }))
    }

    async fn begin(&self, _: Request<BeginRequest>) -> Result<Response<BeginResponse>, Status> {
        let mut state = self.hear("begin".to_owned())?;
        let answer = if state.refuses > 0 {
            state.refuses -= 1;
            begin_response::Answer::Refused(Refused::default())
        } else {
            let before = Some(prost_types::Timestamp {
                seconds: 60,
                nanos: 0,
            });
            begin_response::Answer::Granted(Granted { before })
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
            let mut state = self.hear(format!("event {}", event.sequence))?;
            if let Some(news) = event.news {
                images::note(&mut state.versions, news);
            }
        }
        Ok(Response::new(ReportResponse {
            acknowledged,
            ..ReportResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl MaintmgrService for Puppet {
    async fn platform_update_status(
        &self,
        request: Request<PlatformUpdateStatusRequest>,
    ) -> Result<Response<PlatformUpdateStatusResponse>, Status> {
        let said = request.into_inner().update_status.unwrap_or_default();
        let kind = said.status_type();
        let state = self.hear(
            format!("sample {kind:?} {}", said.os_image_id)
                .trim()
                .to_owned(),
        )?;
        let single = state
            .window
            .map(|(start_seconds, end_seconds)| SingleSchedule {
                start_seconds,
                end_seconds,
            });
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
    Target {
        digest: "osupdatepolicy-00000001".to_owned(),
        wish: None,
    }
}

/// A node of our own agent to which nothing happens by chance.
async fn own_node(puppet: &Puppet, clock: &TestClock, skew: TimeDelta) -> OwnNode {
    own_node_with(puppet, clock, skew, quiet()).await
}

/// The habits of a node to which nothing happens by chance.
fn quiet() -> own::Habits {
    own::Habits {
        crash: 0,
        cut_off: 0,
        nothing: 0,
        fail: 0,
        news: 0,
        ..own::Habits::default()
    }
}

async fn own_node_with(
    puppet: &Puppet,
    clock: &TestClock,
    skew: TimeDelta,
    habits: own::Habits,
) -> OwnNode {
    let clock = NodeClock::new(Arc::new(clock.clone()), skew);
    OwnNode::new(
        clock,
        Chance::new(1, 1),
        puppet.line(Faults::default()).await,
        habits,
    )
}

async fn turns(node: &mut OwnNode, clock: &TestClock, count: usize) {
    for _ in 0..count {
        clock.advance(TimeDelta::seconds(2));
        node.turn().await;
    }
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let call = async |faults: Faults| {
        let puppet = Puppet::default();
        let line = puppet.line(faults).await;
        let send = |channel, request| async move {
            evenkeel_proto::agent::agent_service_client::AgentServiceClient::new(channel)
                .poll(request)
                .await
        };
        let answer = line
            .call(&mut Chance::new(1, 1), PollRequest::default(), send)
            .await;
        let at_once = puppet.heard("poll").len();
        line.weather().calm_down().await;
        (answer.is_ok(), at_once, puppet.heard("poll").len())
    };
    let none = Faults::default();
    assert_eq!(call(none).await, (true, 1, 1));
    assert_eq!(
        call(Faults {
            lose_request: 1_000,
            ..none
        })
        .await,
        (false, 0, 0)
    );
    assert_eq!(
        call(Faults {
            lose_answer: 1_000,
            ..none
        })
        .await,
        (false, 1, 1)
    );
    assert_eq!(
        call(Faults {
            duplicate: 1_000,
            ..none
        })
        .await,
        (true, 2, 2)
    );
    assert_eq!(
        call(Faults {
            straggle: 1_000,
            ..none
        })
        .await,
        (false, 0, 1)
    );
    assert_eq!(
        call(Faults {
            delay: 1_000,
            ..none
        })
        .await,
        (true, 1, 1)
    );
}

#[tokio::test]
async fn our_own_agent_fetches_asks_until_it_may_and_tells_everything_in_order() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let mut node = own_node(&puppet, &clock, TimeDelta::zero()).await;
    puppet.state().act = Some(Act::Fetch(Fetch {
        target: Some(target()),
    }));
    turns(&mut node, &clock, 4).await;
    assert_eq!(puppet.heard("event"), ["event 1", "event 2"]);
    puppet.state().act = Some(Act::Apply(Apply {
        target: Some(target()),
        before: None,
    }));
    puppet.state().refuses = 2;
    turns(&mut node, &clock, 3).await;
    puppet.state().act = Some(Act::Idle(Idle {}));
    turns(&mut node, &clock, 8).await;
    assert_eq!(puppet.heard("begin").len(), 3);
    assert!(node.is_idle());
    let truth = node.into_truth();
    let [attempt] = truth.attempts.as_slice() else {
        panic!("{truth:#?}");
    };
    let last = attempt.events.len();
    assert_eq!(
        attempt.events.last().map(|told| told.news),
        Some("finished")
    );
    assert_eq!(usize::try_from(attempt.acknowledged), Ok(last));
    let all: Vec<_> = (1..=last).map(|number| format!("event {number}")).collect();
    assert_eq!(puppet.heard("event"), all);
    assert!(matches!(attempt.leave, Some(Leave::Asked { .. })));
}

#[tokio::test]
async fn our_own_agent_begins_unasked_only_in_a_window_by_its_own_clock_and_out_of_reach() {
    for (skew, may_begin) in [(300, true), (0, false), (-300, false)] {
        let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
        let mut node = own_node(&puppet, &clock, TimeDelta::seconds(skew)).await;
        puppet.state().act = Some(Act::Fetch(Fetch {
            target: Some(target()),
        }));
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        puppet.state().grant = Some(Grant {
            target_digest: target().digest,
            windows: vec![Window {
                start: at(300),
                end: at(400),
            }],
            expires: at(1_000),
        });
        turns(&mut node, &clock, 5).await;
        puppet.state().is_away = true;
        turns(&mut node, &clock, 5).await;
        let attempts = node.into_truth().attempts;
        let leave = attempts.first().and_then(|attempt| attempt.leave.clone());
        assert_eq!(
            matches!(leave, Some(Leave::Ahead { .. })),
            may_begin,
            "{skew} s ahead: {attempts:#?}"
        );
    }
}

/// A node of the ancestor's to which nothing happens by chance; its updates are over at once.
async fn eim_node(puppet: &Puppet, clock: &TestClock, skew: TimeDelta) -> EimNode {
    let none = (std::time::Duration::ZERO, std::time::Duration::ZERO);
    let habits = eim::Habits {
        fetching: none,
        working: none,
        rebooting: none,
        crash: 0,
        fail: 0,
        nothing: 0,
        stuck: 0,
        unreadable: 0,
        ..eim::Habits::default()
    };
    let clock = NodeClock::new(Arc::new(clock.clone()), skew);
    let line = puppet.line(Faults::default()).await;
    EimNode::new(
        "a1b2c3d4-0000-4000-8000-0000000000ff",
        clock,
        Chance::new(1, 1),
        line,
    )
    .living(eim::Pace::BRISK, habits)
}

async fn ticks(node: &mut EimNode, clock: &TestClock, count: usize) {
    for _ in 0..count {
        node.turn().await;
        clock.advance(TimeDelta::seconds(10));
    }
}

#[tokio::test]
async fn the_ancestors_agent_shows_an_end_until_it_was_acknowledged() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let mut node = eim_node(&puppet, &clock, TimeDelta::zero()).await;
    puppet.state().window = Some((15, 100));
    ticks(&mut node, &clock, 2).await;
    puppet.state().is_away = true;
    ticks(&mut node, &clock, 2).await;
    puppet.state().is_away = false;
    ticks(&mut node, &clock, 3).await;
    let all = [
        StatusType::UpToDate,
        StatusType::UpToDate,
        StatusType::Updated,
        StatusType::UpToDate,
        StatusType::UpToDate,
    ];
    assert_eq!(
        puppet.heard("sample"),
        all.map(|kind| format!("sample {kind:?}"))
    );
    let truth = node.into_truth();
    assert_eq!(truth.updates.len(), 1, "{truth:#?}");
    let shown = truth.said.iter().find(|said| said.kind == "updated");
    assert_eq!(shown.map(|said| said.acknowledged), Some(1));
}

#[tokio::test]
async fn the_ancestors_agent_begins_by_its_own_clock() {
    for (skew, begins) in [(300, 1), (0, 0), (-300, 0)] {
        let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
        let mut node = eim_node(&puppet, &clock, TimeDelta::seconds(skew)).await;
        puppet.state().window = Some((310, 400));
        ticks(&mut node, &clock, 4).await;
        assert_eq!(node.into_truth().updates.len(), begins, "{skew} s ahead");
    }
}
