//! Nodes that make one call at a time and get refusals unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    BeginRequest, Downloaded, Downloading, EnrollResponse, Facts, Identity, PollRequest,
    PollResponse,
};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_simulator::connection::{self, authorize};
use evenkeel_simulator::own;
use evenkeel_test_support::{certificate_request, node_key};
use evenkeel_tests::history::machine_time;
use serde_json::json;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use uuid::Uuid;

use super::test_server::{CALL_TIME_LIMIT, MAX_STALENESS, TestServer, until};

/// ID of the attempt of every node; each node has one.
const ATTEMPT_ID: Uuid = Uuid::from_u128(7);

/// Delay between two polls of a node.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A node that has joined and sent its first facts or status.
#[derive(Clone, Debug)]
pub struct Node {
    /// ID of its instance.
    pub instance: String,
    uuid: Uuid,
    is_eim: bool,
    channel: Channel,
    authorization: MetadataValue<Ascii>,
    /// Number of changes of its facts.
    facts_version: Arc<AtomicU8>,
}

impl Node {
    /// Enrolls a node with our agent.
    pub async fn join_own(server: &TestServer, nth: u8) -> Self {
        let token = server.create_join_token().await;
        let channel = connection::connect_lazily(&server.southbound, &server.ca_certificate)
            .expect("a connection");
        let joined = enroll(channel.clone(), &token, nth).await;
        let joined = joined.expect("a node joins");
        let node = Self {
            instance: joined.instance_id,
            uuid: node_uuid(nth),
            is_eim: false,
            channel,
            authorization: bearer_header(&joined.credential),
            facts_version: Arc::default(),
        };
        node.send_facts().await.expect("its facts are accepted");
        node
    }

    /// Registers a node with an EIM agent and sends its first status.
    pub async fn register_eim(server: &TestServer, nth: u8) -> Self {
        let os = json!({
            "name": "Ubuntu 24.04", "osType": "OS_TYPE_MUTABLE", "profileName": "ubuntu-24.04",
            "sha256": "0".repeat(64),
        });
        let os = server.client.create("compute/os", &os).await;
        let host =
            json!({ "name": "edge", "uuid": node_uuid(nth).to_string(), "autoOnboard": true });
        let host = server.client.create("compute/hosts/register", &host).await;
        let instance = json!({ "hostID": host, "osID": os, "name": "edge" });
        let instance = server.client.create("compute/instances", &instance).await;
        let (project, day) = (server.project_id().await, TimeDelta::days(1));
        let issued = server.authority.issue_node(project, &host, day, machine_time());
        let node = Self {
            instance,
            uuid: node_uuid(nth),
            is_eim: true,
            channel: connection::connect_lazily(&server.southbound, &server.ca_certificate)
                .expect("a connection"),
            authorization: bearer_header(issued.expect("a token").token.reveal()),
            facts_version: Arc::default(),
        };
        node.send_status(StatusType::UpToDate).await.expect("its status is accepted");
        node
    }

    /// Whether the node has our agent.
    pub const fn is_own(&self) -> bool {
        !self.is_eim
    }

    /// Polls without any change. Returns the action; empty for EIM agents, which get none.
    pub async fn poll_unchanged(&self) -> Result<&'static str, Status> {
        if self.is_eim {
            return self.send_status(StatusType::UpToDate).await.map(|()| "");
        }
        self.poll(self.unchanged_poll()).await.map(|answer| action_name(&answer))
    }

    /// Polls without any change, and panics if there is no answer in time.
    pub async fn poll_in_time(&self) -> Result<&'static str, Status> {
        let answer = tokio::time::timeout(CALL_TIME_LIMIT, self.poll_unchanged()).await;
        answer.unwrap_or_else(|_| {
            panic!("{} has no answer within {CALL_TIME_LIMIT:?}", self.instance)
        })
    }

    /// Polls until there is an answer. Returns the action.
    pub async fn poll_until_answered(&self) -> &'static str {
        until("its poll is answered", async || self.poll_in_time().await.ok()).await
    }

    /// Polls until the answer is this action.
    pub async fn poll_until_action(&self, act: &str) {
        until(act, async || {
            let action = self.poll_in_time().await;
            action.is_ok_and(|action| action == act).then_some(())
        })
        .await;
    }

    /// Polls until the server refuses. Answers may be used for `MAX_STALENESS` after `since`.
    pub async fn poll_until_refused(&self, since: Instant) -> Status {
        loop {
            let age = since.elapsed();
            match self.poll_in_time().await {
                Err(refused) => return refused,
                Ok(_) => assert!(age <= MAX_STALENESS, "an answer is {age:?} old"),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends changed facts.
    pub async fn send_facts(&self) -> Result<(), Status> {
        let turn = self.facts_version.fetch_add(1, Ordering::Relaxed) + 1;
        let facts = Facts {
            agent_version: "0.1.0".to_owned(),
            kernel_release: format!("6.1.{turn}"),
            modules: vec!["packages".to_owned()],
            ..Facts::default()
        };
        let request = PollRequest { facts: Some(facts), ..self.unchanged_poll() };
        Box::pin(self.poll(request)).await.map(drop)
    }

    /// Polls until the node gets an update. Returns the digest of the target.
    pub async fn wait_for_target(&self) -> String {
        until("the node gets an update", async || {
            let answer = self.poll(self.unchanged_poll()).await.ok()?;
            match answer.decision?.act? {
                Act::Apply(apply) => Some(apply.target?.digest),
                _ => None,
            }
        })
        .await
    }

    /// Reports that the node is ready to start. Returns the last acknowledged sequence number.
    pub async fn report_staged(&self, target: &str) -> Result<u32, Status> {
        let kinds = [Kind::Downloading(Downloading::default()), Kind::Downloaded(Downloaded {})];
        let request = own::report_request(ATTEMPT_ID, target, 1, &kinds);
        let answer = self.client().report(self.with_credential(request)).await?;
        Ok(answer.into_inner().acknowledged)
    }

    /// Requests permission to start. Returns whether it was granted.
    pub async fn request_start(&self, target: &str) -> Result<bool, Status> {
        let request = BeginRequest {
            attempt_id: ATTEMPT_ID.to_string(),
            target_digest: target.to_owned(),
            last_sequence: 2,
        };
        let answer = self.client().begin(self.with_credential(request)).await?;
        Ok(matches!(answer.into_inner().answer, Some(Answer::Granted(_))))
    }

    /// Enrolls another machine over the connection of this node.
    pub async fn enroll_other(&self, token: &str, nth: u8) -> Result<(), Status> {
        enroll(self.channel.clone(), token, nth).await.map(drop)
    }

    /// Sends a status, as EIM agents do.
    pub async fn send_status(&self, kind: StatusType) -> Result<(), Status> {
        let request = PlatformUpdateStatusRequest {
            host_guid: self.uuid.to_string(),
            update_status: Some(UpdateStatus {
                status_type: kind.into(),
                ..UpdateStatus::default()
            }),
        };
        let mut client = MaintmgrServiceClient::new(self.channel.clone());
        let answer = client.platform_update_status(self.with_credential(request)).await;
        answer.map(drop)
    }

    /// A poll that contains only the digest of the current facts.
    fn unchanged_poll(&self) -> PollRequest {
        PollRequest {
            facts_digest: vec![self.facts_version.load(Ordering::Relaxed); 32],
            ..PollRequest::default()
        }
    }

    async fn poll(&self, request: PollRequest) -> Result<PollResponse, Status> {
        let answer = self.client().poll(self.with_credential(request)).await?;
        Ok(answer.into_inner())
    }

    fn client(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel.clone())
    }

    /// Adds the credential to a message. The server alone limits the duration of the call.
    fn with_credential<T>(&self, message: T) -> Request<T> {
        authorize(message, &self.authorization)
    }
}

impl TestServer {
    /// Polls with all nodes until all answers come from the cache.
    pub async fn wait_until_cached(&self, nodes: &[Node]) {
        let hits = async || self.metric_sum("evenkeel_poll_requests_total", r#"kind="hit""#).await;
        until("all answers come from the cache", async || {
            let before = hits().await;
            for node in nodes {
                node.poll_in_time().await.ok()?;
            }
            (hits().await == before + nodes.len() as u64).then_some(())
        })
        .await;
    }
}

/// End of a call, as text that can be compared.
pub async fn describe_end<T>(call: impl Future<Output = Result<T, Status>>) -> String {
    match tokio::time::timeout(CALL_TIME_LIMIT, call).await {
        Ok(Ok(_)) => "it is answered".to_owned(),
        Ok(Err(refused)) if refused.code() == Code::Unavailable => "it is refused".to_owned(),
        Ok(Err(refused)) => format!("{refused:?}"),
        Err(_) => format!("there is no answer within {CALL_TIME_LIMIT:?}"),
    }
}

async fn enroll(channel: Channel, token: &str, nth: u8) -> Result<EnrollResponse, Status> {
    let identity = Identity {
        uuid: node_uuid(nth).to_string(),
        host_name: format!("edge-{nth}"),
        ..Identity::default()
    };
    let request = certificate_request(&node_key(nth));
    let request = own::enroll_request(token, identity, request, None);
    let answer = AgentServiceClient::new(channel).enroll(request).await?;
    Ok(answer.into_inner())
}

/// Action of a decision, as the REST API names it.
fn action_name(answer: &PollResponse) -> &'static str {
    let decision = answer.decision.as_ref();
    match decision.and_then(|decision| decision.act.as_ref()) {
        None | Some(Act::Idle(_)) => "idle",
        Some(Act::Fetch(_)) => "fetch",
        Some(Act::Apply(_)) => "apply",
        Some(Act::Continue(_)) => "continue",
        Some(Act::Cancel(_)) => "cancel",
    }
}

fn bearer_header(credential: &str) -> MetadataValue<Ascii> {
    let header = format!("Bearer {credential}").parse();
    header.expect("a header")
}

fn node_uuid(nth: u8) -> Uuid {
    Uuid::from_u128(0x0001_0000_0000_4000_8000_0000_0000_0000 + u128::from(nth))
}
