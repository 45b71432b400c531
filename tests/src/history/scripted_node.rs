//! Nodes that do exactly what a test requests, many at once.

use std::time::{Duration, Instant};

use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    BeginRequest, Downloaded, Downloading, Facts, PollRequest, PollResponse, ReportRequest,
    ReportResponse,
};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_simulator::connection::{authorize, is_network_error};
use evenkeel_simulator::own;
use evenkeel_simulator::rng::Rng;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::operator_client::OperatorClient;
use super::operator_log::SimulatedMember;
use super::registrar::NodeRegistrar;
use super::replicas::Replicas;

/// How long a call is repeated before the test fails.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Default of the delay before a call is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Digest of the facts of every node, which a server stores and does not check.
const FACTS_DIGEST: [u8; 32] = [1; 32];

/// A node that does exactly what a test requests.
#[derive(Clone, Debug)]
pub struct ScriptedNode {
    /// IDs of the node.
    pub member: SimulatedMember,
    pub uuid: Uuid,
    credential: String,
    /// Connections, one server after the other.
    pub channels: Vec<Channel>,
    /// The attempt that is ready to start.
    pub attempt: Uuid,
    /// Delay before a call is repeated.
    pub retry_interval: Duration,
}

impl ScriptedNode {
    /// Enrolls a node with our own agent.
    pub async fn enroll_own(
        registrar: &mut NodeRegistrar,
        replicas: &Replicas,
        rng: &mut Rng,
    ) -> Self {
        let uuid = rng.uuid();
        Self::enroll_machine(registrar, replicas, uuid, rng).await
    }

    /// Enrolls the machine with this UUID, with our own agent.
    pub async fn enroll_machine(
        registrar: &mut NodeRegistrar,
        replicas: &Replicas,
        uuid: Uuid,
        rng: &mut Rng,
    ) -> Self {
        registrar.connect(replicas);
        Self::enroll_connected(registrar, uuid, rng).await
    }

    /// Enrolls a node with our own agent over a connection to this address, which it keeps.
    pub async fn enroll_at(registrar: &mut NodeRegistrar, address: &str, rng: &mut Rng) -> Self {
        registrar.connect_to(&[address.to_owned()]);
        let uuid = rng.uuid();
        Self::enroll_connected(registrar, uuid, rng).await
    }

    /// Enrolls a machine over the connections that are open.
    async fn enroll_connected(registrar: &NodeRegistrar, uuid: Uuid, rng: &mut Rng) -> Self {
        let (member, credential) = registrar.enroll(uuid, None, rng).await;
        Self {
            member,
            uuid,
            credential,
            channels: registrar.channels.clone(),
            attempt: Uuid::nil(),
            retry_interval: RETRY_INTERVAL,
        }
    }

    /// Registers a node with EIM's agent.
    pub async fn register_eim(
        registrar: &mut NodeRegistrar,
        replicas: &Replicas,
        client: &OperatorClient,
        rng: &mut Rng,
    ) -> Self {
        registrar.connect(replicas);
        let uuid = rng.uuid();
        let (member, credential) = registrar.register(client, uuid).await;
        Self {
            member,
            uuid,
            credential,
            channels: registrar.channels.clone(),
            attempt: Uuid::nil(),
            retry_interval: RETRY_INTERVAL,
        }
    }

    /// Adds the credential to a message.
    ///
    /// # Panics
    /// The credential is not a valid header.
    pub fn with_credential<T>(&self, message: T) -> Request<T> {
        let header = format!("Bearer {}", self.credential).parse().expect("a header");
        authorize(message, &header)
    }

    /// Opens more connections, because a server limits the number of concurrent calls on one connection.
    pub fn add_connections(&mut self, registrar: &mut NodeRegistrar, replicas: &Replicas) {
        for _ in 0..4 {
            registrar.connect(replicas);
            self.channels.extend(registrar.channels.iter().cloned());
        }
    }

    /// Polls with facts, so that the server may send a decision.
    ///
    /// # Panics
    /// The poll fails.
    pub async fn send_facts(&self) {
        self.try_poll().await.expect("a poll");
    }

    /// Polls with facts until a server accepts or refuses the poll.
    ///
    /// # Errors
    /// The server refuses the poll.
    ///
    /// # Panics
    /// There is no answer in time.
    pub async fn try_poll(&self) -> Result<PollResponse, Status> {
        let facts = Facts {
            agent_version: "0.1.0".to_owned(),
            modules: vec!["packages".to_owned()],
            ..Facts::default()
        };
        let request = PollRequest {
            facts: Some(facts),
            facts_digest: FACTS_DIGEST.to_vec(),
            ..PollRequest::default()
        };
        self.call_until_settled(0, &request, async |channel, request| {
            AgentServiceClient::new(channel).poll(request).await
        })
        .await
    }

    /// Polls once with these facts.
    ///
    /// # Errors
    /// The server does not answer, or refuses the poll.
    pub async fn poll(&self, server: usize, facts: Facts) -> Result<PollResponse, Status> {
        let request = PollRequest { facts: Some(facts), ..PollRequest::default() };
        self.send_poll(server, request).await
    }

    /// Polls once without a change since [`Self::send_facts`], as an idle node does.
    ///
    /// # Errors
    /// The server does not answer, or refuses the poll.
    pub async fn poll_unchanged(&self) -> Result<PollResponse, Status> {
        let facts_digest = FACTS_DIGEST.to_vec();
        self.send_poll(0, PollRequest { facts_digest, ..PollRequest::default() }).await
    }

    async fn send_poll(&self, server: usize, request: PollRequest) -> Result<PollResponse, Status> {
        let channel = self.channels[server % self.channels.len()].clone();
        let mut client = AgentServiceClient::new(channel);
        Ok(client.poll(self.with_credential(request)).await?.into_inner())
    }

    /// Reports a new attempt that has downloaded and is ready to start.
    pub async fn stage(&mut self, policy: &str, rng: &mut Rng) {
        self.attempt = rng.uuid();
        let kinds = [Kind::Downloading(Downloading::default()), Kind::Downloaded(Downloaded {})];
        self.report_until_acknowledged(policy, 1, &kinds).await;
    }

    /// Reports events until they are acknowledged.
    ///
    /// # Panics
    /// They are not acknowledged in time.
    pub async fn report_until_acknowledged(&self, policy: &str, first: u32, kinds: &[Kind]) {
        let request = self.build_report(policy, first, kinds);
        let last = request.events.last().map_or(0, |event| event.sequence);
        assert_eq!(self.send_report(0, &request).await.acknowledged, last);
    }

    /// Sends a report, and repeats it until there is an answer.
    ///
    /// # Panics
    /// There is no answer in time, or the server refuses the report.
    pub async fn send_report(&self, server: usize, request: &ReportRequest) -> ReportResponse {
        self.try_send_report(server, request)
            .await
            .unwrap_or_else(|status| panic!("{} was refused: {status:?}", self.member.host))
    }

    /// Sends a report, and repeats it until a server accepts or refuses it.
    ///
    /// # Errors
    /// The server refuses the report.
    ///
    /// # Panics
    /// There is no answer in time.
    pub async fn try_send_report(
        &self,
        server: usize,
        request: &ReportRequest,
    ) -> Result<ReportResponse, Status> {
        self.call_until_settled(server, request, async |channel, request| {
            AgentServiceClient::new(channel).report(request).await
        })
        .await
    }

    /// Builds a report of events.
    pub fn build_report(&self, policy: &str, first: u32, kinds: &[Kind]) -> ReportRequest {
        own::report_request(self.attempt, policy, first, kinds)
    }

    /// Requests a start until there is an answer. Returns whether the start was granted.
    ///
    /// # Panics
    /// There is no answer in time.
    pub async fn request_start(&self, policy: &str, server: usize) -> bool {
        let request = BeginRequest {
            attempt_id: self.attempt.to_string(),
            target_digest: policy.to_owned(),
            last_sequence: 2,
        };
        let answer = self
            .call_until_answered(server, &request, async |channel, request| {
                AgentServiceClient::new(channel).begin(request).await
            })
            .await;
        matches!(answer.answer, Some(Answer::Granted(_)))
    }

    /// Sends a status of EIM's agent until there is an answer. Returns whether the answer has a window.
    ///
    /// # Panics
    /// There is no answer in time.
    pub async fn send_status(&self, server: usize, kind: StatusType, detail: &str) -> bool {
        let request = PlatformUpdateStatusRequest {
            host_guid: self.uuid.to_string(),
            update_status: Some(UpdateStatus {
                status_type: kind.into(),
                status_detail: detail.to_owned(),
                ..UpdateStatus::default()
            }),
        };
        let answer = self
            .call_until_answered(server, &request, async |channel, request| {
                let mut client = MaintmgrServiceClient::new(channel);
                client.platform_update_status(request).await
            })
            .await;
        let schedule = answer.update_schedule;
        schedule.is_some_and(|schedule| schedule.single_schedule.is_some())
    }

    /// Calls one server after the other as [`Self::call_until_settled`] does, until there is an answer.
    async fn call_until_answered<Q: Clone, A>(
        &self,
        first: usize,
        request: &Q,
        call: impl AsyncFn(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> A {
        let answer = self.call_until_settled(first, request, call).await;
        answer.unwrap_or_else(|status| panic!("{} was refused: {status:?}", self.member.host))
    }

    /// Calls one server after the other, starting with `first`, until there is an answer or a refusal. Agents repeat a
    /// call that may have been lost in the same way.
    async fn call_until_settled<Q: Clone, A>(
        &self,
        first: usize,
        request: &Q,
        call: impl AsyncFn(Channel, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Status> {
        let begun = Instant::now();
        for server in first.. {
            let channel = self.channels[server % self.channels.len()].clone();
            match call(channel, self.with_credential(request.clone())).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if !is_network_error(&status) => return Err(status),
                Err(status) => self.wait_before_retry(&status, begun).await,
            }
        }
        unreachable!("the loop has no end")
    }

    async fn wait_before_retry(&self, status: &Status, begun: Instant) {
        assert!(begun.elapsed() < ANSWER_TIMEOUT, "{} has no answer: {status:?}", self.member.host);
        tokio::time::sleep(self.retry_interval).await;
    }
}
