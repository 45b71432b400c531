//! Behaviour on the wire: message sizes and status codes, over real gRPC on the loopback address.

use evenkeel_domain::tenant::TenantId;
use evenkeel_maintenance_manager::MAX_MESSAGE_BYTES;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{AvailablePackage, Facts};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_client::HostmgrClient;
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use prost::Message as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Server};

use crate::test_server::{TestServer, facts, with_credential};

/// Serves the test server until the runtime of the test ends.
async fn channel(server: &TestServer) -> Channel {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serve = Server::builder()
        .add_routes(server.manager.services())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(serve);
    tasks.detach_all();
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect()
        .await
        .expect("a connection")
}

fn status_request(bytes: usize) -> PlatformUpdateStatusRequest {
    PlatformUpdateStatusRequest {
        host_guid: "a1b2c3d4-0000-4000-8000-0000000000ff".into(),
        update_status: Some(UpdateStatus {
            status_detail: "x".repeat(bytes),
            ..UpdateStatus::default()
        }),
    }
}

#[tokio::test]
async fn an_oversized_message_is_refused_with_its_code_and_the_next_is_answered() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let channel = channel(&server).await;
    let mut eim_client = MaintmgrServiceClient::new(channel.clone());
    let token = server.eim_token();
    let token = token.as_str();
    let refused =
        eim_client.platform_update_status(with_credential(token, status_request(17 << 20))).await;
    assert_eq!(refused.expect_err("too large").code(), Code::ResourceExhausted);
    // 10 MiB are accepted: only the host of this GUID is unknown.
    let unknown =
        eim_client.platform_update_status(with_credential(token, status_request(10 << 20))).await;
    assert_eq!(unknown.expect_err("unknown").code(), Code::NotFound);

    let mut ours = AgentServiceClient::new(channel);
    let token = node.credential.as_str();
    ours.poll(with_credential(token, PollRequest::default())).await.expect("the others are served");
}

/// A poll with this encoded length.
fn poll_request(bytes: usize) -> PollRequest {
    let mut request = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    // The tag and the length of a text of many megabytes take five bytes.
    request.waiting = "x".repeat(bytes - request.encoded_len() - 5);
    assert_eq!(request.encoded_len(), bytes);
    request
}

/// The other tests of long messages call the services without a connection, and so without its
/// limit.
#[tokio::test]
async fn the_largest_message_is_answered_and_a_longer_one_is_refused() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let mut client = AgentServiceClient::new(channel(&server).await);
    let token = node.credential.as_str();
    let longer = client.poll(with_credential(token, poll_request(MAX_MESSAGE_BYTES + 1))).await;
    assert_eq!(longer.expect_err("too large").code(), Code::ResourceExhausted);
    let largest = client.poll(with_credential(token, poll_request(MAX_MESSAGE_BYTES))).await;
    largest.expect("an answer");
    assert!(server.node_state(&node).await.waiting.starts_with("xxx"), "it is stored in part");
}

#[tokio::test]
async fn oversized_facts_are_refused_and_nothing_is_lost() {
    let server = TestServer::new().await;
    let node = server.node().await;
    let mut client = AgentServiceClient::new(channel(&server).await);
    let package = AvailablePackage { name: "x".into(), ..AvailablePackage::default() };
    let many = Facts { available: vec![package; 100_001], ..facts() };
    let long = Facts { kernel_release: "x".repeat(5_000), ..facts() };
    let zero = Facts { boot_id: "a\0b".into(), ..facts() };
    for bad in [many, long, zero] {
        let request = PollRequest { facts: Some(bad), ..PollRequest::default() };
        let refused =
            client.poll(with_credential(&node.credential, request)).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
    let state = server.node_state(&node).await;
    assert_eq!(state.facts["architecture"], "amd64", "the stored facts stay");
}

#[tokio::test]
async fn a_token_for_another_project_finds_no_host_of_this_one() {
    let server = TestServer::new().await;
    server.node().await;
    let foreign_tenant = TenantId::new(uuid::Uuid::from_u128(99));
    let token = server.token("agent", &[evenkeel_auth::Role::Node(foreign_tenant.uuid())]);
    let mut client = MaintmgrServiceClient::new(channel(&server).await);
    let request = PlatformUpdateStatusRequest {
        host_guid: uuid::Uuid::from_u128(1).to_string(),
        ..status_request(0)
    };
    let answer = client.platform_update_status(with_credential(&token, request)).await;
    assert_eq!(answer.expect_err("foreign").code(), Code::NotFound);
}

/// Texts on the wire must be UTF-8, or the message cannot be decoded; gRPC for Go does the same.
#[tokio::test]
async fn text_that_is_not_utf_8_is_refused_and_the_next_call_is_answered() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let channel = channel(&server).await;
    let mut raw = Grpc::new(channel.clone());
    raw.ready().await.expect("a connection");
    // On the wire, bytes and a text with the same field number look the same.
    let request = with_credential(&server.eim_token(), b"\xff\xfe".to_vec());
    let path = PathAndQuery::from_static("/maintmgr.v1.MaintmgrService/PlatformUpdateStatus");
    let codec = tonic_prost::ProstCodec::<Vec<u8>, PlatformUpdateStatusResponse>::default();
    let refused = raw.unary(request, path, codec).await;
    assert_eq!(refused.expect_err("no text").code(), Code::Internal);

    let mut eim_client = MaintmgrServiceClient::new(channel);
    let request = PlatformUpdateStatusRequest { host_guid: node.guid, ..status_request(0) };
    let answer =
        eim_client.platform_update_status(with_credential(&server.eim_token(), request)).await;
    answer.expect("an answer");
}

#[tokio::test]
async fn heartbeats_arrive_on_the_same_listener() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let mut client = HostmgrClient::new(channel(&server).await);
    let heartbeat = |guid: &str| UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: guid.to_owned(),
        instance_status: 6,
        instance_state: 3,
        provider_status_detail: "all is well".into(),
    };
    let request = with_credential(&server.eim_token(), heartbeat(&node.guid));
    let answer = client.update_instance_state_status_by_host_guid(request);
    answer.await.expect("heard");
    assert_eq!(server.host_status(node.host).await, "Running");
    let unauthenticated = tonic::Request::new(heartbeat(&node.guid));
    let refused = client.update_instance_state_status_by_host_guid(unauthenticated);
    assert_eq!(refused.await.expect_err("no token").code(), Code::Unauthenticated);
}
