//! What only shows on the wire: sizes and codes, over real gRPC on the loopback address.

use evenkeel_domain::tenant::TenantId;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{AvailablePackage, Facts};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_client::HostmgrClient;
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
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

/// A text on the wire is UTF-8, or the message cannot be read; Go's gRPC says the same.
#[tokio::test]
async fn what_is_not_utf_8_is_refused_and_the_next_is_answered() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let channel = channel(&house).await;
    let mut raw = Grpc::new(channel.clone());
    raw.ready().await.expect("a connection");
    // On the wire, bytes with number 1 are what a text with number 1 is.
    let request = with(&house.old_token(), b"\xff\xfe".to_vec());
    let path = PathAndQuery::from_static("/maintmgr.v1.MaintmgrService/PlatformUpdateStatus");
    let codec = tonic_prost::ProstCodec::<Vec<u8>, PlatformUpdateStatusResponse>::default();
    let refused = raw.unary(request, path, codec).await;
    assert_eq!(refused.expect_err("no text").code(), Code::Internal);

    let mut ancestors = MaintmgrServiceClient::new(channel);
    let request = PlatformUpdateStatusRequest {
        host_guid: node.guid,
        ..sample(0)
    };
    let answer = ancestors
        .platform_update_status(with(&house.old_token(), request))
        .await;
    answer.expect("an answer");
}

#[tokio::test]
async fn the_heart_beats_on_the_same_listener() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let mut client = HostmgrClient::new(channel(&house).await);
    let beat = |guid: &str| UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: guid.to_owned(),
        instance_status: 6,
        instance_state: 3,
        provider_status_detail: "all is well".into(),
    };
    let request = with(&house.old_token(), beat(&node.guid));
    let answer = client.update_instance_state_status_by_host_guid(request);
    answer.await.expect("heard");
    assert_eq!(house.host_status(node.host).await, "Running");
    let nobody = tonic::Request::new(beat(&node.guid));
    let refused = client.update_instance_state_status_by_host_guid(nobody);
    assert_eq!(
        refused.await.expect_err("nobody").code(),
        Code::Unauthenticated
    );
}
