//! Too many or incomplete requests of one client do not affect others.

use std::net::TcpStream;

use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{PollRequest, PollResponse};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::nodes::{endpoint, enroll_request, join_token, metric};
use crate::test_server::{ServerProcess, TestServer, eventually};

/// A server that accepts credentials, so that nodes may share connections.
pub fn harness() -> TestServer {
    TestServer::new().with_env("EVENKEELD_MAINTENANCE_MANAGER__BEARER_CREDENTIALS", "true")
}

/// Node of the project `default`.
pub struct Node {
    client: AgentServiceClient<Channel>,
    credential: String,
}

impl Node {
    pub async fn enroll(harness: &TestServer, server: &ServerProcess, number: u8) -> Self {
        let mut client = connect(harness, server).await;
        let request = enroll_request(&join_token(harness, server), number);
        let enrolled = client.enroll(request).await.unwrap().into_inner();
        Self { client, credential: format!("Bearer {}", enrolled.credential) }
    }

    /// The same node over another connection.
    fn over_channel(&self, channel: Channel) -> Self {
        Self { client: AgentServiceClient::new(channel), credential: self.credential.clone() }
    }

    pub async fn poll(&mut self) -> Result<PollResponse, Status> {
        let mut request =
            Request::new(PollRequest { facts_digest: vec![0; 32], ..PollRequest::default() });
        let credential = self.credential.parse().unwrap();
        request.metadata_mut().insert("authorization", credential);
        let answer = self.client.poll(request).await?;
        Ok(answer.into_inner())
    }
}

async fn connect(harness: &TestServer, server: &ServerProcess) -> AgentServiceClient<Channel> {
    let channel = endpoint(harness, server).connect().await.unwrap();
    AgentServiceClient::new(channel)
}

/// Raises the limit on open files of this process, and of the servers that it starts. Returns how
/// many connections the limit allows, at most `connections`.
fn connection_budget(connections: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, most) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap());
    connections.min(files / 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_above_its_rate_gets_a_retry_delay_and_others_are_served() {
    let harness = harness()
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__CALLS_PER_SECOND", "1")
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__BURST", "5");
    let server = harness.start_and_wait(&["all"]);
    let mut loud = Node::enroll(&harness, &server, 1).await;
    let mut calm = Node::enroll(&harness, &server, 2).await;

    let refused = loop {
        if let Err(status) = loud.poll().await {
            break status;
        }
    };

    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let hint = refused.metadata().get("grpc-retry-pushback-ms").unwrap();
    let millis: u64 = hint.to_str().unwrap().parse().unwrap();
    assert!((1..=1_000).contains(&millis), "{millis}");
    calm.poll().await.unwrap();
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_handshakes_do_not_block_other_clients() {
    let many = connection_budget(2_000);
    let harness = harness()
        .with_env("EVENKEELD_SOUTHBOUND__HANDSHAKE_TIMEOUT", "2m")
        .with_env("EVENKEELD_SOUTHBOUND__MAX_UNAUTHENTICATED_PER_ADDRESS", "0");
    let server = harness.start_and_wait(&["all"]);
    let ca = harness.data_dir().join("ca/ca.pem");
    let silent = || TcpStream::connect(server.address("southbound"));
    let half: Vec<TcpStream> = (0..many)
        .map(|n| match n % 2 {
            0 => server.begin_handshake(&ca, "localhost").unwrap(),
            _ => silent().unwrap(),
        })
        .collect();

    let mut good = Node::enroll(&harness, &server, 1).await;
    good.poll().await.unwrap();

    let (_, metrics) = server.get("admin", "/metrics", None);
    let counted = "evenkeel_handshakes_total{outcome=\"slow\"} 0";
    assert!(metrics.contains(counted), "no handshake has timed out yet: {metrics}");
    server.stop();
    drop(half);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unauthenticated_connection_is_closed_and_that_of_a_node_is_not() {
    const OPEN: &str = "evenkeel_connections{listener=\"southbound\"}";
    const HANDSHAKES_OK: &str = "evenkeel_handshakes_total{outcome=\"ok\"}";
    let harness = harness().with_env("EVENKEELD_SOUTHBOUND__AUTHENTICATION_TIMEOUT", "5s");
    let server = harness.start_and_wait(&["all"]);
    let mut node = Node::enroll(&harness, &server, 1).await;
    node.poll().await.unwrap();
    let mut unauthenticated =
        node.over_channel(endpoint(&harness, &server).connect().await.unwrap());
    unauthenticated.credential = "Bearer made-up".to_owned();
    let refused = unauthenticated.poll().await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let silent = endpoint(&harness, &server).connect().await.unwrap();

    eventually("only the node is connected", || metric(&server, OPEN) < 2.0);
    let ended = metric(&server, "evenkeel_connections_unauthenticated_total");
    assert!((1.5..2.5).contains(&ended), "{ended}");
    let greeted = metric(&server, HANDSHAKES_OK);
    node.poll().await.unwrap();
    let by_now = metric(&server, HANDSHAKES_OK);
    assert!(by_now <= greeted, "the node did not reconnect");
    drop((unauthenticated, silent));
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn when_memory_is_short_new_connections_are_refused_and_others_are_served() {
    const HEADROOM_BYTES: f64 = 12e6;
    let harness = harness()
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__CALLS_PER_SECOND", "10000")
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__BURST", "10000");
    let server = harness.start_and_wait(&["all"]);
    drop(Node::enroll(&harness, &server, 1).await);
    let needed = metric(&server, "process_resident_memory_bytes");
    server.stop();

    let limit = format!("{:.0}", (needed + HEADROOM_BYTES) / 0.9);
    let harness = harness.with_env("EVENKEELD_SOUTHBOUND__MEMORY_LIMIT", &limit);
    let server = harness.start_and_wait(&["all"]);
    let mut calm = Node::enroll(&harness, &server, 2).await;
    let mut newcomers = Vec::new();
    let refused = loop {
        assert!(newcomers.len() < connection_budget(8_000), "no connection was refused");
        let mut newcomer = calm.over_channel(endpoint(&harness, &server).connect().await.unwrap());
        match newcomer.poll().await {
            Ok(_) => newcomers.push(newcomer),
            Err(status) => break status,
        }
    };

    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.metadata().contains_key("grpc-retry-pushback-ms"), "{refused:?}");
    calm.poll().await.unwrap();
    for one in newcomers.iter_mut().take(10) {
        one.poll().await.unwrap();
    }
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_read_no_answer_do_not_block_others() {
    const CONNECTIONS: u32 = 8;
    const CALLS: u32 = 30;
    const POLLS: &str =
        "evenkeel_grpc_calls_total{method=\"/evenkeel.agent.v1.AgentService/Poll\",code=\"0\"}";
    let harness = harness()
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__CALLS_PER_SECOND", "10000")
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__RATE_LIMIT__BURST", "10000")
        // All calls with an unread answer exceed the call limit; those of one connection stay below
        // the limit of calls that query the database.
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__LOAD__QUERY_CALL_LIMIT", "80")
        .with_env("EVENKEELD_MAINTENANCE_MANAGER__LOAD__TOTAL_CALL_LIMIT", "80");
    let server = harness.start_and_wait(&["all"]);
    let mut node = Node::enroll(&harness, &server, 1).await;
    node.poll().await.unwrap();
    let mut calls = JoinSet::new();
    for connection in 1..=CONNECTIONS {
        let takes_nothing = endpoint(&harness, &server).initial_stream_window_size(0);
        let channel = takes_nothing.connect().await.unwrap();
        for _ in 0..CALLS {
            let mut node = node.over_channel(channel.clone());
            calls.spawn(async move { node.poll().await });
        }
        let answered = f64::from(1 + connection * CALLS);
        eventually("all of them are answered", || answered <= metric(&server, POLLS));
    }

    let mut good = Node::enroll(&harness, &server, 2).await;
    good.poll().await.unwrap();
    assert!(calls.try_join_next().is_none(), "no call has received its answer");
    drop(calls);
    server.stop();
}
