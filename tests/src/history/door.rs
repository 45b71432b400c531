//! The way in for new nodes.

use chrono::TimeDelta;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{BootedImage, EnrollRequest, Identity, OsRelease};
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::line;
use reqwest::Method;
use serde_json::json;
use tonic::transport::Channel;
use uuid::Uuid;

use super::book::Member;
use super::desk::Desk;
use super::replicas::{Replicas, machine_time};

/// The way in for new nodes.
#[derive(Debug)]
pub struct Door {
    /// A connection to each server, for the nodes that join next.
    pub channels: Vec<Channel>,
    ca: String,
    token: String,
    project: Uuid,
    os: String,
    authority: evenkeel_auth::Authority,
}

impl Door {
    /// A way into the project `default`.
    ///
    /// # Panics
    /// There is none.
    pub async fn open(replicas: &Replicas, desk: &Desk) -> Self {
        let token = desk
            .ask(0, Method::POST, "/join-tokens", Some(&json!({})))
            .await;
        let token = token.expect("a join token");
        let project = desk.get("").await;
        let os = json!({
            "name": "Ubuntu 24.04", "osType": "OS_TYPE_MUTABLE", "profileName": "ubuntu-24.04",
            "sha256": "0".repeat(64),
        });
        Self {
            channels: Vec::new(),
            ca: replicas.ca(),
            token: token["token"].as_str().expect("a token").to_owned(),
            project: project["status"]["projectStatus"]["uID"]
                .as_str()
                .and_then(|id| id.parse().ok())
                .expect("a project"),
            os: desk.make("/compute/os", &os).await,
            authority: replicas.authority(),
        }
    }

    /// Makes new connections, for the nodes that join next.
    ///
    /// # Panics
    /// An address makes no sense.
    pub fn connect(&mut self, replicas: &Replicas) {
        let addresses = replicas.southbound();
        let open = addresses
            .iter()
            .map(|address| line::server(address, &self.ca).expect("a line"));
        self.channels = open.collect();
    }

    /// Our own agent joins, on a system that is updated by images if it names one. Returns where it is and its
    /// credential.
    ///
    /// # Panics
    /// It is not let in.
    pub async fn enroll(
        &self,
        uuid: Uuid,
        image: Option<BootedImage>,
        chance: &mut Chance,
    ) -> (Member, String) {
        let is_image = image.is_some();
        let key = [chance.uuid(), chance.uuid(), chance.uuid()];
        let request = EnrollRequest {
            join_token: self.token.clone(),
            identity: Some(Identity {
                uuid: uuid.to_string(),
                serial_number: String::new(),
                host_name: "edge".to_owned(),
            }),
            os_release: Some(OsRelease {
                id: "debian".to_owned(),
                version_id: "12".to_owned(),
                pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
                version_codename: "bookworm".to_owned(),
            }),
            architecture: "amd64".to_owned(),
            public_key: key.iter().flat_map(|part| *part.as_bytes()).collect(),
            agent_version: "0.1.0".to_owned(),
            booted_image: image,
        };
        let mut client = AgentServiceClient::new(self.channels[0].clone());
        let answer = client
            .enroll(request)
            .await
            .expect("a node joins")
            .into_inner();
        let member = Member {
            host: answer.host_id,
            instance: answer.instance_id,
            site: String::new(),
            is_eim: false,
            is_image,
        };
        (member, answer.credential)
    }

    /// A node of the ancestor's is registered, and has a token from elsewhere. Returns where it is and that token.
    ///
    /// # Panics
    /// It cannot be registered.
    pub async fn register(&self, desk: &Desk, uuid: Uuid) -> (Member, String) {
        self.register_with(desk, uuid, &self.os).await
    }

    /// The same with another system than the usual one.
    ///
    /// # Panics
    /// It cannot be registered.
    pub async fn register_with(&self, desk: &Desk, uuid: Uuid, os: &str) -> (Member, String) {
        let host = json!({ "name": "edge", "uuid": uuid.to_string(), "autoOnboard": true });
        let host = desk.make("/compute/hosts/register", &host).await;
        let instance = json!({ "hostID": host, "osID": os, "name": "edge" });
        let instance = desk.make("/compute/instances", &instance).await;
        let lifetime = TimeDelta::days(1);
        let issued = self
            .authority
            .issue_node(self.project, &host, lifetime, machine_time());
        let credential = issued.expect("a token").token.reveal().to_owned();
        let member = Member {
            host,
            instance,
            site: String::new(),
            is_eim: true,
            is_image: os != self.os,
        };
        (member, credential)
    }
}
