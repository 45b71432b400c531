//! Nodes that say one thing at a time, and hear refusals as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    BeginRequest, Downloaded, Downloading, EnrollRequest, EnrollResponse, Event, Facts, Identity,
    OsRelease, PollRequest, PollResponse, ReportRequest,
};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_simulator::line;
use evenkeel_tests::history::machine_time;
use serde_json::json;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use uuid::Uuid;

use super::house::{ANSWER, House, MAX_STALENESS, until};

/// The attempt of every node: each has but one.
const ATTEMPT: Uuid = Uuid::from_u128(7);

/// Between two questions of a node.
const PAUSE: Duration = Duration::from_millis(100);

/// A node that has joined and said what it is.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its instance.
    pub instance: String,
    uuid: Uuid,
    is_eim: bool,
    channel: Channel,
    authorization: MetadataValue<Ascii>,
    /// How often what it says of itself has changed.
    turns: Arc<AtomicU8>,
}

impl Node {
    /// A node with our agent joins.
    pub async fn own(house: &House, nth: u8) -> Self {
        let token = house.join_token().await;
        let channel = line::server(&house.southbound, &house.ca).expect("a line");
        let joined = enroll(channel.clone(), &token, nth).await;
        let joined = joined.expect("a node joins");
        let node = Self {
            instance: joined.instance_id,
            uuid: uuid(nth),
            is_eim: false,
            channel,
            authorization: bearer(&joined.credential),
            turns: Arc::default(),
        };
        node.tell_facts().await.expect("it is heard");
        node
    }

    /// A node of the ancestor's is registered and says its first word.
    pub async fn eim(house: &House, nth: u8) -> Self {
        let os = json!({
            "name": "Ubuntu 24.04", "osType": "OS_TYPE_MUTABLE", "profileName": "ubuntu-24.04",
            "sha256": "0".repeat(64),
        });
        let os = house.desk.make("/compute/os", &os).await;
        let host = json!({ "name": "edge", "uuid": uuid(nth).to_string(), "autoOnboard": true });
        let host = house.desk.make("/compute/hosts/register", &host).await;
        let instance = json!({ "hostID": host, "osID": os, "name": "edge" });
        let instance = house.desk.make("/compute/instances", &instance).await;
        let (project, day) = (house.project().await, TimeDelta::days(1));
        let issued = house
            .authority
            .issue_node(project, &host, day, machine_time());
        let node = Self {
            instance,
            uuid: uuid(nth),
            is_eim: true,
            channel: line::server(&house.southbound, &house.ca).expect("a line"),
            authorization: bearer(issued.expect("a token").token.reveal()),
            turns: Arc::default(),
        };
        node.show(StatusType::UpToDate).await.expect("it is heard");
        node
    }

    /// Whether its agent is ours.
    pub const fn is_own(&self) -> bool {
        !self.is_eim
    }

    /// Says nothing new. What it is told to do; the ancestor's agents are told no such word.
    pub async fn ask(&self) -> Result<&'static str, Status> {
        if self.is_eim {
            return self.show(StatusType::UpToDate).await.map(|()| "");
        }
        self.poll(self.nothing_new())
            .await
            .map(|answer| act(&answer))
    }

    /// The same, and an answer must come.
    pub async fn ask_in_time(&self) -> Result<&'static str, Status> {
        let answer = tokio::time::timeout(ANSWER, self.ask()).await;
        answer.unwrap_or_else(|_| panic!("{} has no answer within {ANSWER:?}", self.instance))
    }

    /// Asks until it is answered. What it is told to do.
    pub async fn ask_until_answered(&self) -> &'static str {
        until("its poll is answered", async || {
            self.ask_in_time().await.ok()
        })
        .await
    }

    /// Asks until it is told to do this.
    pub async fn ask_until_told(&self, act: &str) {
        until(act, async || {
            let told = self.ask_in_time().await;
            told.is_ok_and(|told| told == act).then_some(())
        })
        .await;
    }

    /// Asks until it is refused. What nobody has looked up since an instant may be told for so long and no longer.
    pub async fn ask_until_refused(&self, since: Instant) -> Status {
        loop {
            let age = since.elapsed();
            match self.ask_in_time().await {
                Err(refused) => return refused,
                Ok(_) => assert!(age <= MAX_STALENESS, "what is {age:?} old is told"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Says something new of itself.
    pub async fn tell_facts(&self) -> Result<(), Status> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        let facts = Facts {
            agent_version: "0.1.0".to_owned(),
            kernel_release: format!("6.1.{turn}"),
            modules: vec!["packages".to_owned()],
            ..Facts::default()
        };
        let request = PollRequest {
            facts: Some(facts),
            ..self.nothing_new()
        };
        self.poll(request).await.map(drop)
    }

    /// Asks until it is told what to reach. Its name.
    pub async fn target(&self) -> String {
        until("it is told to update", async || {
            let answer = self.poll(self.nothing_new()).await.ok()?;
            match answer.decision?.act? {
                Act::Apply(apply) => Some(apply.target?.digest),
                _ => None,
            }
        })
        .await
    }

    /// Tells that it is ready to begin. Up to where that was taken.
    pub async fn stage(&self, target: &str) -> Result<u32, Status> {
        let news = [
            News::Downloading(Downloading::default()),
            News::Downloaded(Downloaded {}),
        ];
        let event = |(sequence, news)| Event {
            sequence,
            boot_id: "boot".to_owned(),
            news: Some(news),
            ..Event::default()
        };
        let request = ReportRequest {
            attempt_id: ATTEMPT.to_string(),
            target_digest: target.to_owned(),
            events: (1..).zip(news).map(event).collect(),
        };
        let answer = self.client().report(self.with(request)).await?;
        Ok(answer.into_inner().acknowledged)
    }

    /// Asks for leave. Whether it was given.
    pub async fn begin(&self, target: &str) -> Result<bool, Status> {
        let request = BeginRequest {
            attempt_id: ATTEMPT.to_string(),
            target_digest: target.to_owned(),
            last_sequence: 2,
        };
        let answer = self.client().begin(self.with(request)).await?;
        Ok(matches!(
            answer.into_inner().answer,
            Some(Answer::Granted(_))
        ))
    }

    /// Another machine joins over its line.
    pub async fn bring(&self, token: &str, nth: u8) -> Result<(), Status> {
        enroll(self.channel.clone(), token, nth).await.map(drop)
    }

    /// Shows a sample, as the ancestor's agents do.
    pub async fn show(&self, kind: StatusType) -> Result<(), Status> {
        let request = PlatformUpdateStatusRequest {
            host_guid: self.uuid.to_string(),
            update_status: Some(UpdateStatus {
                status_type: kind.into(),
                ..UpdateStatus::default()
            }),
        };
        let mut client = MaintmgrServiceClient::new(self.channel.clone());
        let answer = client.platform_update_status(self.with(request)).await;
        answer.map(drop)
    }

    /// A poll that says nothing but which facts are true.
    fn nothing_new(&self) -> PollRequest {
        PollRequest {
            facts_digest: vec![self.turns.load(Ordering::Relaxed); 32],
            ..PollRequest::default()
        }
    }

    async fn poll(&self, request: PollRequest) -> Result<PollResponse, Status> {
        let answer = self.client().poll(self.with(request)).await?;
        Ok(answer.into_inner())
    }

    fn client(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel.clone())
    }

    /// A message with its credential. How long it may take is up to the server.
    fn with<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let authorization = self.authorization.clone();
        request
            .metadata_mut()
            .insert("authorization", authorization);
        request
    }
}

impl House {
    /// Asks for nodes until all of them are answered from memory.
    pub async fn until_remembered(&self, nodes: &[Node]) {
        let hits = async || self.counted("evenkeel_polls_total", r#"kind="hit""#).await;
        until("all are answered from memory", async || {
            let before = hits().await;
            for node in nodes {
                node.ask_in_time().await.ok()?;
            }
            (hits().await == before + nodes.len() as u64).then_some(())
        })
        .await;
    }
}

/// How a call ends, in words that can be compared.
pub async fn end<T>(call: impl Future<Output = Result<T, Status>>) -> String {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(Ok(_)) => "it is answered".to_owned(),
        Ok(Err(refused)) if refused.code() == Code::Unavailable => "it is refused".to_owned(),
        Ok(Err(refused)) => format!("{refused:?}"),
        Err(_) => format!("there is no answer within {ANSWER:?}"),
    }
}

async fn enroll(channel: Channel, token: &str, nth: u8) -> Result<EnrollResponse, Status> {
    let request = EnrollRequest {
        join_token: token.to_owned(),
        identity: Some(Identity {
            uuid: uuid(nth).to_string(),
            host_name: format!("edge-{nth}"),
            ..Identity::default()
        }),
        os_release: Some(OsRelease {
            id: "debian".to_owned(),
            version_id: "12".to_owned(),
            pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            version_codename: "bookworm".to_owned(),
        }),
        architecture: "amd64".to_owned(),
        public_key: vec![nth; 44],
        agent_version: "0.1.0".to_owned(),
        booted_image: None,
    };
    let answer = AgentServiceClient::new(channel).enroll(request).await?;
    Ok(answer.into_inner())
}

/// What a decision is called where an operator reads it.
fn act(answer: &PollResponse) -> &'static str {
    let decision = answer.decision.as_ref();
    match decision.and_then(|decision| decision.act.as_ref()) {
        None | Some(Act::Idle(_)) => "idle",
        Some(Act::Fetch(_)) => "fetch",
        Some(Act::Apply(_)) => "apply",
        Some(Act::Continue(_)) => "continue",
        Some(Act::Cancel(_)) => "cancel",
    }
}

fn bearer(credential: &str) -> MetadataValue<Ascii> {
    let header = format!("Bearer {credential}").parse();
    header.expect("a header")
}

fn uuid(nth: u8) -> Uuid {
    Uuid::from_u128(0x0001_0000_0000_4000_8000_0000_0000_0000 + u128::from(nth))
}
