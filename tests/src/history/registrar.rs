//! Registration and enrolment of new nodes.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{BootedImage, EnrollRequest, EnrollResponse, Identity};
use evenkeel_simulator::connection::retry_pushback;
use evenkeel_simulator::rng::Rng;
use evenkeel_simulator::{connection, own};
use evenkeel_test_support::{certificate_request, node_key_from_secret};
use reqwest::Method;
use serde_json::json;
use tonic::transport::Channel;
use uuid::Uuid;

use super::operator_client::OperatorClient;
use super::operator_log::SimulatedMember;
use super::replicas::{Replicas, machine_time};

/// How long an overloaded server may refuse an enrolment.
const ENROLMENT_TIMEOUT: Duration = Duration::from_mins(1);

/// Registers and enrolls new nodes.
#[derive(Debug)]
pub struct NodeRegistrar {
    /// A connection to each server, for the nodes that join next.
    pub channels: Vec<Channel>,
    ca: String,
    token: String,
    project: Uuid,
    os: String,
    authority: evenkeel_auth::Authority,
}

impl NodeRegistrar {
    /// Prepares registrations in the project `default`.
    ///
    /// # Panics
    /// A join token or an operating system cannot be created.
    pub async fn open(replicas: &Replicas, client: &OperatorClient) -> Self {
        let project = client.get("").await;
        let os = json!({
            "name": "Ubuntu 24.04", "osType": "OS_TYPE_MUTABLE", "profileName": "ubuntu-24.04",
            "sha256": "0".repeat(64),
        });
        Self {
            channels: Vec::new(),
            ca: replicas.ca_certificate(),
            token: create_join_token(client).await,
            project: project["status"]["projectStatus"]["uID"]
                .as_str()
                .and_then(|id| id.parse().ok())
                .expect("a project"),
            os: client.create("compute/os", &os).await,
            authority: replicas.authority(),
        }
    }

    /// Creates a new join token, because the other one has expired: it is valid for an hour.
    ///
    /// # Panics
    /// The token cannot be created.
    pub async fn renew_join_token(&mut self, client: &OperatorClient) {
        self.token = create_join_token(client).await;
    }

    /// Opens new connections, for the nodes that join next.
    ///
    /// # Panics
    /// An address is invalid.
    pub fn connect(&mut self, replicas: &Replicas) {
        self.connect_to(&replicas.southbound_addresses());
    }

    /// Opens new connections to these addresses, for the nodes that join next.
    ///
    /// # Panics
    /// An address is invalid.
    pub fn connect_to(&mut self, addresses: &[String]) {
        let channels = addresses
            .iter()
            .map(|address| connection::connect_lazily(address, &self.ca).expect("a connection"));
        self.channels = channels.collect();
    }

    /// Enrolls a node with our own agent, as an image node if it has an image. Returns its IDs and its credential.
    ///
    /// # Panics
    /// The server rejects the enrolment.
    pub async fn enroll(
        &self,
        uuid: Uuid,
        image: Option<BootedImage>,
        rng: &mut Rng,
    ) -> (SimulatedMember, String) {
        let is_image = image.is_some();
        let mut secret = [0; 32];
        secret[..16].copy_from_slice(rng.uuid().as_bytes());
        secret[16..].copy_from_slice(rng.uuid().as_bytes());
        let key = node_key_from_secret(secret);
        let identity = Identity {
            uuid: uuid.to_string(),
            serial_number: String::new(),
            host_name: "edge".to_owned(),
        };
        let request = own::enroll_request(&self.token, identity, certificate_request(&key), image);
        let answer = self.send_enrolment(request).await;
        let member = SimulatedMember {
            host: answer.host_id,
            instance: answer.instance_id,
            site: String::new(),
            is_eim: false,
            is_image,
        };
        (member, answer.credential)
    }

    /// Repeats the request while the server is overloaded, as an agent does.
    async fn send_enrolment(&self, request: EnrollRequest) -> EnrollResponse {
        let mut client = AgentServiceClient::new(self.channels[0].clone());
        let deadline = Instant::now() + ENROLMENT_TIMEOUT;
        loop {
            let status = match client.enroll(request.clone()).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => status,
            };
            let delay = retry_pushback(&status).filter(|_| Instant::now() < deadline);
            tokio::time::sleep(delay.unwrap_or_else(|| panic!("a node joins: {status}"))).await;
        }
    }

    /// Registers a node with EIM's agent and issues a token for it. Returns its IDs and the token.
    ///
    /// # Panics
    /// The node cannot be registered.
    pub async fn register(&self, client: &OperatorClient, uuid: Uuid) -> (SimulatedMember, String) {
        self.register_with(client, uuid, &self.os).await
    }

    /// Registers a node like [`NodeRegistrar::register`], with another operating system.
    ///
    /// # Panics
    /// The node cannot be registered.
    pub async fn register_with(
        &self,
        client: &OperatorClient,
        uuid: Uuid,
        os: &str,
    ) -> (SimulatedMember, String) {
        let host = json!({ "name": "edge", "uuid": uuid.to_string(), "autoOnboard": true });
        let host = client.create("compute/hosts/register", &host).await;
        let instance = json!({ "hostID": host, "osID": os, "name": "edge" });
        let instance = client.create("compute/instances", &instance).await;
        let lifetime = TimeDelta::days(1);
        let issued = self.authority.issue_node(self.project, &host, lifetime, machine_time());
        let credential = issued.expect("a token").token.reveal().to_owned();
        let member = SimulatedMember {
            host,
            instance,
            site: String::new(),
            is_eim: true,
            is_image: os != self.os,
        };
        (member, credential)
    }
}

async fn create_join_token(client: &OperatorClient) -> String {
    let created = client.send(0, Method::POST, "join-tokens", Some(&json!({}))).await;
    let created = created.expect("a join token");
    created["token"].as_str().expect("a token").to_owned()
}
