//! What one client does too often, or only half, costs the others nothing.

use std::fs;
use std::net::TcpStream;

use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{EnrollRequest, Identity, OsRelease, PollRequest, PollResponse};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use uuid::Uuid;

use crate::house::{House, Server, eventually};

/// A node of the project `default`.
struct Node {
    client: AgentServiceClient<Channel>,
    credential: String,
}

impl Node {
    async fn enroll(house: &House, server: &Server, number: u8) -> Self {
        let mut client = connect(house, server).await;
        let request = EnrollRequest {
            join_token: join_token(house, server),
            identity: Some(Identity {
                uuid: Uuid::from_u128(u128::from(number)).to_string(),
                host_name: format!("node-{number}"),
                ..Identity::default()
            }),
            os_release: Some(OsRelease {
                id: "debian".to_owned(),
                version_id: "12".to_owned(),
                pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
                version_codename: "bookworm".to_owned(),
            }),
            architecture: "amd64".to_owned(),
            public_key: vec![number; 44],
            agent_version: "1".to_owned(),
            booted_image: None,
        };
        let enrolled = client.enroll(request).await.unwrap().into_inner();
        Self {
            client,
            credential: format!("Bearer {}", enrolled.credential),
        }
    }

    /// The same node over another connection.
    fn over(&self, channel: Channel) -> Self {
        Self {
            client: AgentServiceClient::new(channel),
            credential: self.credential.clone(),
        }
    }

    async fn poll(&mut self) -> Result<PollResponse, Status> {
        let mut request = Request::new(PollRequest {
            facts_digest: vec![0; 32],
            ..PollRequest::default()
        });
        let credential = self.credential.parse().unwrap();
        request.metadata_mut().insert("authorization", credential);
        let answer = self.client.poll(request).await?;
        Ok(answer.into_inner())
    }
}

async fn connect(house: &House, server: &Server) -> AgentServiceClient<Channel> {
    let channel = endpoint(house, server).connect().await.unwrap();
    AgentServiceClient::new(channel)
}

fn endpoint(house: &House, server: &Server) -> Endpoint {
    let ca = fs::read(house.data_dir().join("ca/ca.pem")).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name("localhost");
    let address = format!("https://{}", server.address("southbound"));
    let endpoint = Endpoint::from_shared(address).unwrap();
    endpoint.tls_config(tls).unwrap()
}

fn join_token(house: &House, server: &Server) -> String {
    let (status, body) = server.send(
        "rest",
        &format!(
            "POST /v1/projects/default/join-tokens HTTP/1.0\r\nhost: localhost\r\n\
             authorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}",
            house.operator_token()
        ),
    );
    assert_eq!(status, 200, "{body}");
    let made: serde_json::Value = serde_json::from_str(&body).unwrap();
    made["token"].as_str().unwrap().to_owned()
}

/// Lets this process, and the servers that it starts, have as many files as the system allows. How many connections that
/// is enough for, up to a number.
fn room_for(connections: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let files = match setrlimit(Resource::Nofile, most) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap());
    connections.min(files / 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_floods_is_told_when_to_come_back_and_another_is_served() {
    let house = House::new()
        .with(
            "EVENKEELD_MAINTENANCE_MANAGER__FLOOD__CALLS_PER_SECOND",
            "1",
        )
        .with("EVENKEELD_MAINTENANCE_MANAGER__FLOOD__BURST", "5");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let mut loud = Node::enroll(&house, &server, 1).await;
    let mut calm = Node::enroll(&house, &server, 2).await;

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
async fn half_handshakes_keep_nobody_from_being_served() {
    let many = room_for(2_000);
    let house = House::new().with("EVENKEELD_SOUTHBOUND__HANDSHAKE_WITHIN", "2m");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let ca = house.data_dir().join("ca/ca.pem");
    let silent = || TcpStream::connect(server.address("southbound"));
    let half: Vec<TcpStream> = (0..many)
        .map(|n| match n % 2 {
            0 => server.begin_to_shake_hands(&ca, "localhost").unwrap(),
            _ => silent().unwrap(),
        })
        .collect();

    let mut good = Node::enroll(&house, &server, 1).await;
    good.poll().await.unwrap();

    let (_, metrics) = server.get("admin", "/metrics", None);
    let counted = "evenkeel_handshakes_total{outcome=\"slow\"} 0";
    assert!(
        metrics.contains(counted),
        "none was given up so far: {metrics}"
    );
    server.stop();
    drop(half);
}

#[test]
fn an_address_has_no_more_connections_than_it_may() {
    let house = House::new()
        .with("EVENKEELD_SOUTHBOUND__HANDSHAKE_WITHIN", "2m")
        .with("EVENKEELD_SOUTHBOUND__CONNECTIONS_PER_ADDRESS", "2");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let ca = house.data_dir().join("ca/ca.pem");
    let connect = || server.connect_securely(&ca, "localhost");
    let first = connect().unwrap();
    let second = connect().unwrap();
    assert!(connect().is_err(), "one too many");
    drop(first);
    eventually("there is room again", || connect().is_ok());
    drop(second);
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_which_nothing_is_known_is_ended_and_that_of_a_node_is_not() {
    const OPEN: &str = "evenkeel_connections{listener=\"southbound\"}";
    const GREETED: &str = "evenkeel_handshakes_total{outcome=\"ok\"}";
    let house = House::new().with("EVENKEELD_SOUTHBOUND__KNOWN_WITHIN", "5s");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let mut node = Node::enroll(&house, &server, 1).await;
    node.poll().await.unwrap();
    let mut stranger = node.over(endpoint(&house, &server).connect().await.unwrap());
    stranger.credential = "Bearer made-up".to_owned();
    let refused = stranger.poll().await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    let silent = endpoint(&house, &server).connect().await.unwrap();

    eventually("the node is alone", || metric(&server, OPEN) < 2.0);
    let ended = metric(&server, "evenkeel_connections_unknown_total");
    assert!((1.5..2.5).contains(&ended), "{ended}");
    let greeted = metric(&server, GREETED);
    node.poll().await.unwrap();
    let by_now = metric(&server, GREETED);
    assert!(by_now <= greeted, "over the same as before");
    drop((stranger, silent));
    server.stop();
}

/// A number among the metrics of a server.
fn metric(server: &Server, name: &str) -> f64 {
    let (_, metrics) = server.get("admin", "/metrics", None);
    let line = metrics.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn when_memory_is_short_newcomers_are_told_when_to_come_again_and_the_others_are_served() {
    const SOME: f64 = 12e6;
    let house = House::new()
        .with(
            "EVENKEELD_MAINTENANCE_MANAGER__FLOOD__CALLS_PER_SECOND",
            "10000",
        )
        .with("EVENKEELD_MAINTENANCE_MANAGER__FLOOD__BURST", "10000");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    drop(Node::enroll(&house, &server, 1).await);
    let needed = metric(&server, "process_resident_memory_bytes");
    server.stop();

    let limit = format!("{:.0}", (needed + SOME) / 0.9);
    let house = house.with("EVENKEELD_SOUTHBOUND__MEMORY_LIMIT", &limit);
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let mut calm = Node::enroll(&house, &server, 2).await;
    let mut crowd = Vec::new();
    let refused = loop {
        assert!(crowd.len() < room_for(8_000), "none was turned away");
        let mut newcomer = calm.over(endpoint(&house, &server).connect().await.unwrap());
        match newcomer.poll().await {
            Ok(_) => crowd.push(newcomer),
            Err(status) => break status,
        }
    };

    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(
        refused.metadata().contains_key("grpc-retry-pushback-ms"),
        "{refused:?}"
    );
    calm.poll().await.unwrap();
    for one in crowd.iter_mut().take(10) {
        one.poll().await.unwrap();
    }
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_no_answer_keeps_nobody_from_being_served() {
    const CONNECTIONS: u32 = 8;
    const CALLS: u32 = 30;
    const POLLS: &str =
        "evenkeel_grpc_calls_total{method=\"/evenkeel.agent.v1.AgentService/Poll\",code=\"0\"}";
    let house = House::new()
        .with(
            "EVENKEELD_MAINTENANCE_MANAGER__FLOOD__CALLS_PER_SECOND",
            "10000",
        )
        .with("EVENKEELD_MAINTENANCE_MANAGER__FLOOD__BURST", "10000")
        // All that wait for an answer to be taken are more than may be under way, and those of one connection fewer
        // than may be at the database.
        .with("EVENKEELD_MAINTENANCE_MANAGER__LOAD__CALLS", "80")
        .with(
            "EVENKEELD_MAINTENANCE_MANAGER__LOAD__CALLS_OF_ANY_KIND",
            "80",
        );
    let mut server = house.start(&["all"]);
    server.wait_until_ready();
    let mut node = Node::enroll(&house, &server, 1).await;
    node.poll().await.unwrap();
    let mut calls = JoinSet::new();
    for connection in 1..=CONNECTIONS {
        let takes_nothing = endpoint(&house, &server).initial_stream_window_size(0);
        let channel = takes_nothing.connect().await.unwrap();
        for _ in 0..CALLS {
            let mut node = node.over(channel.clone());
            calls.spawn(async move { node.poll().await });
        }
        let answered = f64::from(1 + connection * CALLS);
        eventually("all of them are answered", || {
            answered <= metric(&server, POLLS)
        });
    }

    let mut good = Node::enroll(&house, &server, 2).await;
    good.poll().await.unwrap();
    assert!(
        calls.try_join_next().is_none(),
        "nobody has taken an answer"
    );
    drop(calls);
    server.stop();
}
