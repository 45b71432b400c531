//! What only shows on the wire: sizes and codes, over real gRPC on the loopback address.

use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{AvailablePackage, Facts};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Server};

use crate::house::{House, facts, with};

/// Serves the house until the test's runtime ends.
async fn channel(house: &House) -> Channel {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = Server::builder()
        .add_routes(house.manager.services())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(server);
    tasks.detach_all();
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect()
        .await
        .expect("a connection")
}

fn sample(bytes: usize) -> PlatformUpdateStatusRequest {
    PlatformUpdateStatusRequest {
        host_guid: "a1b2c3d4-0000-4000-8000-0000000000ff".into(),
        update_status: Some(UpdateStatus {
            status_detail: "x".repeat(bytes),
            ..UpdateStatus::default()
        }),
    }
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_by_its_name_and_the_next_is_answered() {
    let house = House::new().await;
    let node = house.node().await;
    let channel = channel(&house).await;
    let mut ancestors = MaintmgrServiceClient::new(channel.clone());
    let token = node.credential.as_str();
    let refused = ancestors
        .platform_update_status(with(token, sample(17 << 20)))
        .await;
    assert_eq!(
        refused.expect_err("too large").code(),
        Code::ResourceExhausted
    );
    // 10 MiB are read: the host of this GUID is just not known.
    let unknown = ancestors
        .platform_update_status(with(token, sample(10 << 20)))
        .await;
    assert_eq!(unknown.expect_err("unknown").code(), Code::NotFound);

    let mut ours = AgentServiceClient::new(channel);
    ours.poll(with(token, PollRequest::default()))
        .await
        .expect("the others are served");
}

#[tokio::test]
async fn facts_beyond_all_measure_are_refused_and_nothing_is_lost() {
    let house = House::new().await;
    let node = house.node().await;
    let mut client = AgentServiceClient::new(channel(&house).await);
    let package = AvailablePackage {
        name: "x".into(),
        ..AvailablePackage::default()
    };
    let many = Facts {
        available: vec![package; 100_001],
        ..facts()
    };
    let long = Facts {
        kernel_release: "x".repeat(5_000),
        ..facts()
    };
    let zero = Facts {
        boot_id: "a\0b".into(),
        ..facts()
    };
    for bad in [many, long, zero] {
        let request = PollRequest {
            facts: Some(bad),
            ..PollRequest::default()
        };
        let refused = client
            .poll(with(&node.credential, request))
            .await
            .expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    let known = house.known(&node).await;
    assert_eq!(known.facts["architecture"], "amd64", "what was known stays");
}

#[tokio::test]
async fn a_token_for_another_project_finds_no_host_of_this_one() {
    let house = House::new().await;
    house.node().await;
    let stranger = TenantId::new(uuid::Uuid::from_u128(99));
    let (now, hour) = (crate::house::NOON, chrono::TimeDelta::hours(1));
    let role = [evenkeel_auth::Role::Node(stranger.uuid())];
    let token = house
        .authority
        .issue_operator("agent", &role, hour, now)
        .expect("a token");
    let mut client = MaintmgrServiceClient::new(channel(&house).await);
    let request = PlatformUpdateStatusRequest {
        host_guid: uuid::Uuid::from_u128(1).to_string(),
        ..sample(0)
    };
    let answer = client
        .platform_update_status(with(token.token.reveal(), request))
        .await;
    assert_eq!(answer.expect_err("foreign").code(), Code::NotFound);
}
