//! Nodes that do what a test says, as many at once as it wants.

use std::time::{Duration, Instant};

use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    BeginRequest, Downloaded, Downloading, Event, Facts, PollRequest, ReportRequest, ReportResponse,
};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::line::is_lost;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::book::Member;
use super::desk::Desk;
use super::door::Door;
use super::replicas::Replicas;

/// How long a node asks again before the test gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// A node that does what a test says.
#[derive(Clone, Debug)]
pub struct Racer {
    /// Where it is.
    pub member: Member,
    /// Its GUID.
    pub uuid: Uuid,
    credential: String,
    /// Connections to the servers in turn.
    pub channels: Vec<Channel>,
    /// The attempt that is ready to begin.
    pub attempt: Uuid,
}

impl Racer {
    /// A node of our own agent.
    pub async fn own(door: &mut Door, replicas: &Replicas, chance: &mut Chance) -> Self {
        door.connect(replicas);
        let uuid = chance.uuid();
        let (member, credential) = door.enroll(uuid, None, chance).await;
        Self {
            member,
            uuid,
            credential,
            channels: door.channels.clone(),
            attempt: Uuid::nil(),
        }
    }

    /// A node of the ancestor's agent.
    pub async fn eim(
        door: &mut Door,
        replicas: &Replicas,
        desk: &Desk,
        chance: &mut Chance,
    ) -> Self {
        door.connect(replicas);
        let uuid = chance.uuid();
        let (member, credential) = door.register(desk, uuid).await;
        Self {
            member,
            uuid,
            credential,
            channels: door.channels.clone(),
            attempt: Uuid::nil(),
        }
    }

    /// A message with its credential.
    ///
    /// # Panics
    /// The credential is no header.
    pub fn with<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let header = format!("Bearer {}", self.credential)
            .parse()
            .expect("a header");
        request.metadata_mut().insert("authorization", header);
        request
    }

    /// More connections, because a server takes only so many calls over one at the same time.
    pub fn widen(&mut self, door: &mut Door, replicas: &Replicas) {
        for _ in 0..4 {
            door.connect(replicas);
            self.channels.extend(door.channels.iter().cloned());
        }
    }

    /// Says what it is, so that it may be told something.
    ///
    /// # Panics
    /// It is not heard.
    pub async fn introduce(&self) {
        let facts = Facts {
            agent_version: "0.1.0".to_owned(),
            modules: vec!["packages".to_owned()],
            ..Facts::default()
        };
        let request = PollRequest {
            facts: Some(facts),
            ..PollRequest::default()
        };
        let mut client = AgentServiceClient::new(self.channels[0].clone());
        client.poll(self.with(request)).await.expect("a poll");
    }

    /// Gets an attempt ready to begin, under a new name.
    pub async fn stage(&mut self, policy: &str, chance: &mut Chance) {
        self.attempt = chance.uuid();
        let news = [
            News::Downloading(Downloading::default()),
            News::Downloaded(Downloaded {}),
        ];
        self.tell(policy, 1, &news).await;
    }

    /// Tells what happened until it is acknowledged.
    ///
    /// # Panics
    /// It is not, for a long time.
    pub async fn tell(&self, policy: &str, first: u32, news: &[News]) {
        let request = self.report(policy, first, news);
        let last = request.events.last().map_or(0, |event| event.sequence);
        assert_eq!(self.deliver(0, &request).await.acknowledged, last);
    }

    /// Delivers a report, and repeats it until there is an answer.
    ///
    /// # Panics
    /// There is none, for a long time.
    pub async fn deliver(&self, server: usize, request: &ReportRequest) -> ReportResponse {
        self.ask(server, request, async |channel, request| {
            AgentServiceClient::new(channel).report(request).await
        })
        .await
    }

    /// A report of what happened.
    pub fn report(&self, policy: &str, first: u32, news: &[News]) -> ReportRequest {
        let event = |(sequence, news): (u32, &News)| Event {
            sequence,
            node_time: None,
            boot_id: "boot".to_owned(),
            news: Some(news.clone()),
            account: None,
        };
        ReportRequest {
            attempt_id: self.attempt.to_string(),
            target_digest: policy.to_owned(),
            events: (first..).zip(news).map(event).collect(),
        }
    }

    /// Asks for leave until there is an answer. Returns whether it was given.
    ///
    /// # Panics
    /// There is none, for a long time.
    pub async fn may_begin(&self, policy: &str, server: usize) -> bool {
        let request = BeginRequest {
            attempt_id: self.attempt.to_string(),
            target_digest: policy.to_owned(),
            last_sequence: 2,
        };
        let answer = self
            .ask(server, &request, async |channel, request| {
                AgentServiceClient::new(channel).begin(request).await
            })
            .await;
        matches!(answer.answer, Some(Answer::Granted(_)))
    }

    /// Shows a sample until there is an answer, and returns whether that has a window.
    ///
    /// # Panics
    /// There is none, for a long time.
    pub async fn show(&self, server: usize, kind: StatusType, detail: &str) -> bool {
        let request = PlatformUpdateStatusRequest {
            host_guid: self.uuid.to_string(),
            update_status: Some(UpdateStatus {
                status_type: kind.into(),
                status_detail: detail.to_owned(),
                ..UpdateStatus::default()
            }),
        };
        let answer = self
            .ask(server, &request, async |channel, request| {
                let mut client = MaintmgrServiceClient::new(channel);
                client.platform_update_status(request).await
            })
            .await;
        let schedule = answer.update_schedule;
        schedule.is_some_and(|schedule| schedule.single_schedule.is_some())
    }

    /// Asks one server after the other, from this one on, until there is an answer: a call that may have been lost on
    /// the way is repeated, as agents do.
    async fn ask<Q: Clone, A>(
        &self,
        first: usize,
        request: &Q,
        call: impl AsyncFn(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> A {
        let begun = Instant::now();
        for server in first.. {
            let channel = self.channels[server % self.channels.len()].clone();
            match call(channel, self.with(request.clone())).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => self.wait(&status, begun).await,
            }
        }
        unreachable!("one could count for ever")
    }

    async fn wait(&self, status: &Status, begun: Instant) {
        assert!(
            is_lost(status),
            "{} was refused: {status:?}",
            self.member.host
        );
        assert!(
            begun.elapsed() < PATIENCE,
            "{} has no answer: {status:?}",
            self.member.host
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
