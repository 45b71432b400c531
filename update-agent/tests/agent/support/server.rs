//! A server as small as the protocol allows: real gRPC over real TLS on the loopback, one node, one target.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use evenkeel_proto::agent as pb;
use pb::agent_service_server::{AgentService, AgentServiceServer};
use pb::event::Kind;
use rcgen::SanType;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

use super::authority::ServerAuthority;

/// The secret of every join token of this server.
pub const TOKEN_SECRET: &str = "c2VjcmV0";

/// The state and the decisions of the server.
#[derive(Debug)]
pub struct ServerState {
    /// The target that it offers to the node.
    pub target: Option<pb::Target>,
    pub window_open: bool,
    /// The bearer token that the server issues and accepts; empty for none.
    pub credential: String,
    /// A bearer token that has expired: it is accepted for its renewal only. Empty for none.
    pub expired_credential: String,
    /// A proxy terminates TLS, so the server sees no client certificate.
    pub is_behind_proxy: bool,
    /// The client certificates that the server issued.
    pub issued: Vec<Vec<u8>>,
    /// The certificate requests of the last renewal.
    pub renew_request: Option<pb::RenewRequest>,
    /// This many of the issued certificates, the oldest ones, should be renewed.
    pub aged: usize,
    /// This many of the issued certificates, the oldest ones, have expired.
    pub expired: usize,
    /// The server does not renew certificates, with this status.
    pub renewal_refusal: Option<Code>,
    /// The client certificate of each call.
    pub shown: Vec<Option<Vec<u8>>>,
    /// The new credential in the answer to the next poll.
    pub renewal: String,
    /// The reported events, by attempt.
    pub reported_events: BTreeMap<String, Vec<pb::Event>>,
    /// The reported facts.
    pub facts: Option<pb::Facts>,
    /// The digest that the node sent with them.
    facts_digest: Option<Vec<u8>>,
    /// The reported package list.
    pub packages: String,
    /// The offline grant that the server gives.
    pub grant: Option<pb::OfflineGrant>,
    /// The last reported reason why the node does not start.
    pub waiting_reason: String,
    /// The last enrolment request.
    pub enroll_request: Option<pb::EnrollRequest>,
    /// This many calls fail with UNAVAILABLE.
    pub unavailable_calls: u32,
    /// Milliseconds in the retry pushback of these calls.
    pub pushback: Option<&'static str>,
    /// The decision tag and the maximum hold in milliseconds of each poll.
    pub long_polls: Vec<(u64, u32)>,
    /// The long poll fields of an answer: the tag, and in milliseconds the maximum hold and the reconnect spread.
    pub long_poll_options: (u64, u32, u32),
    /// Calls get no answer.
    pub mute: bool,
    /// The name of a call that gets no answer.
    pub muted_call: Option<&'static str>,
    /// The names of all calls.
    pub calls: Vec<&'static str>,
}

impl Default for ServerState {
    fn default() -> Self {
        Self {
            target: None,
            window_open: false,
            credential: "first-credential".into(),
            expired_credential: String::new(),
            is_behind_proxy: false,
            issued: Vec::new(),
            renew_request: None,
            aged: 0,
            expired: 0,
            renewal_refusal: None,
            shown: Vec::new(),
            renewal: String::new(),
            reported_events: BTreeMap::new(),
            facts: None,
            facts_digest: None,
            packages: String::new(),
            grant: None,
            waiting_reason: String::new(),
            enroll_request: None,
            unavailable_calls: 0,
            pushback: None,
            long_polls: Vec::new(),
            long_poll_options: (0, 0, 0),
            mute: false,
            muted_call: None,
            calls: Vec::new(),
        }
    }
}

fn has_ended(events: &[pb::Event]) -> bool {
    let last = events.last().and_then(|event| event.kind.as_ref());
    last.is_some_and(|kind| {
        matches!(
            kind,
            Kind::Finished(_)
                | Kind::Failed(_)
                | Kind::Reverted(_)
                | Kind::NothingToDo(_)
                | Kind::Cancelled(_)
        )
    })
}

impl ServerState {
    /// The client certificate of a call.
    fn shown_certificate<T>(&self, request: &Request<T>) -> Option<Vec<u8>> {
        let shown = request.peer_certs().filter(|_| !self.is_behind_proxy);
        shown.map(|chain| chain[0].to_vec())
    }

    /// Position of a certificate among the issued ones.
    fn index_of(&self, certificate: Option<Vec<u8>>) -> Option<usize> {
        let certificate = certificate?;
        self.issued.iter().position(|issued| *issued == certificate)
    }

    fn decide(&self, attempt: Option<&pb::Attempt>) -> pb::decision::Act {
        use pb::decision::Act;
        let idle = Act::Idle(pb::Idle {});
        let open = attempt
            .map(|attempt| self.reported_events.get(&attempt.id).map_or(&[][..], Vec::as_slice));
        let has_begun = open.is_some_and(|events| {
            let mut kinds = events.iter().filter_map(|event| event.kind.as_ref());
            kinds.any(|kind| matches!(kind, Kind::Began(_)))
        });
        let go_on = Act::Continue(pb::Continue { run_id: "osupdaterun-00000001".into() });
        match (&self.target, open) {
            (_, Some(_)) if has_begun => go_on,
            (None, Some(_)) => Act::Cancel(pb::Cancel {
                run_id: "osupdaterun-00000001".into(),
                cause: "withdrawn".into(),
            }),
            (None, None) => idle,
            (Some(_), None) if self.reported_events.values().any(|events| has_ended(events)) => {
                idle
            }
            (Some(target), _) if self.window_open => Act::Apply(pb::Apply {
                target: Some(target.clone()),
                start_deadline: Some(later()),
            }),
            (Some(_), Some(_)) => go_on,
            (Some(target), None) => Act::Fetch(pb::Fetch { target: Some(target.clone()) }),
        }
    }
}

fn now() -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }
}

fn later() -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: now().seconds + 3600, nanos: 0 }
}

struct TestAgentService {
    state: Arc<Mutex<ServerState>>,
    authority: ServerAuthority,
}

/// Whether a call has this bearer token.
fn has_credential<T>(request: &Request<T>, credential: &str) -> bool {
    let value = request.metadata().get("authorization");
    value.is_some_and(|value| value.as_bytes() == format!("Bearer {credential}").as_bytes())
}

impl TestAgentService {
    async fn record_call<T>(&self, call: &'static str, request: &Request<T>) -> Result<(), Status> {
        let mute = {
            let mut state = self.state.lock().unwrap();
            state.calls.push(call);
            let shown = state.shown_certificate(request);
            state.shown.push(shown);
            if state.unavailable_calls > 0 {
                state.unavailable_calls -= 1;
                let mut status = Status::unavailable("not just now");
                if let Some(again) = state.pushback {
                    let again = again.parse().unwrap();
                    status.metadata_mut().insert("grpc-retry-pushback-ms", again);
                }
                return Err(status);
            }
            state.mute || state.muted_call == Some(call)
        };
        if mute {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn record_node_call<T>(
        &self,
        call: &'static str,
        request: Request<T>,
    ) -> Result<T, Status> {
        self.record_call(call, &request).await?;
        let state = self.state.lock().unwrap();
        if let Some(index) = state.index_of(state.shown_certificate(&request)) {
            if index < state.expired {
                return Err(Status::unauthenticated("the certificate expired 60 days ago"));
            }
            drop(state);
            return Ok(request.into_inner());
        }
        if has_credential(&request, &state.credential) {
            drop(state);
            return Ok(request.into_inner());
        }
        Err(Status::unauthenticated("the credential is not valid"))
    }
}

#[tonic::async_trait]
impl AgentService for TestAgentService {
    async fn enroll(
        &self,
        request: Request<pb::EnrollRequest>,
    ) -> Result<Response<pb::EnrollResponse>, Status> {
        self.record_call("enroll", &request).await?;
        let request = request.into_inner();
        if !request.join_token.ends_with(&format!(".{TOKEN_SECRET}")) {
            return Err(Status::permission_denied("the join token is not valid"));
        }
        let certificate = self.authority.issue(&request.certificate_request);
        let decryption_certificate = self.authority.issue(&request.decryption_certificate_request);
        let mut state = self.state.lock().unwrap();
        state.enroll_request = Some(request);
        state.issued.push(certificate.clone());
        Ok(Response::new(pb::EnrollResponse {
            credential: state.credential.clone(),
            credential_expires: Some(later()),
            certificate,
            decryption_certificate,
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            now: Some(now()),
        }))
    }

    async fn renew(
        &self,
        request: Request<pb::RenewRequest>,
    ) -> Result<Response<pb::RenewResponse>, Status> {
        self.record_call("renew", &request).await?;
        let mut state = self.state.lock().unwrap();
        let mut credential = String::new();
        if state.index_of(state.shown_certificate(&request)).is_none() {
            if !has_credential(&request, &state.expired_credential) {
                return Err(Status::unauthenticated("the connection shows no certificate"));
            }
            credential.clone_from(&state.credential);
        }
        if let Some(code) = state.renewal_refusal {
            return Err(Status::new(code, "the host is not trusted"));
        }
        let request = request.into_inner();
        let certificate = self.authority.issue(&request.certificate_request);
        let decryption_certificate = self.authority.issue(&request.decryption_certificate_request);
        state.renew_request = Some(request);
        state.issued.push(certificate.clone());
        Ok(Response::new(pb::RenewResponse { certificate, decryption_certificate, credential }))
    }

    async fn poll(
        &self,
        request: Request<pb::PollRequest>,
    ) -> Result<Response<pb::PollResponse>, Status> {
        let shown = self.state.lock().unwrap().shown_certificate(&request);
        let request = self.record_node_call("poll", request).await?;
        let mut state = self.state.lock().unwrap();
        state.waiting_reason = request.waiting;
        state.long_polls.push((request.decision_tag, request.long_poll_millis));
        let (decision_tag, hold_millis, spread_millis) = state.long_poll_options;
        if let Some(facts) = request.facts {
            state.facts = Some(facts);
            state.facts_digest = Some(request.facts_digest.clone());
        }
        if !request.packages.is_empty() {
            state.packages = request.packages;
        }
        let reported = state.facts.as_ref().map(|facts| &facts.packages_digest);
        let has = Sha256::digest(&state.packages).to_vec();
        let want_packages =
            reported.is_some_and(|reported| !reported.is_empty() && *reported != has);
        let credential = std::mem::take(&mut state.renewal);
        if !credential.is_empty() {
            state.credential.clone_from(&credential);
        }
        Ok(Response::new(pb::PollResponse {
            facts_required: state.facts_digest != Some(request.facts_digest),
            next_poll_millis: 1000,
            now: Some(now()),
            decision: Some(pb::Decision {
                act: Some(state.decide(request.attempt.as_ref())),
                reason: "as set by the test".into(),
                next_change: None,
                offline_grant: state.grant.clone(),
            }),
            credential,
            packages_required: want_packages,
            decision_tag,
            next_long_poll_millis: hold_millis,
            reconnect_spread_millis: spread_millis,
            renew_certificate: state.index_of(shown).is_some_and(|index| index < state.aged),
        }))
    }

    async fn begin(
        &self,
        request: Request<pb::BeginRequest>,
    ) -> Result<Response<pb::BeginResponse>, Status> {
        use pb::begin_response::Answer;
        let request = self.record_node_call("begin", request).await?;
        let state = self.state.lock().unwrap();
        let reported = state.reported_events.get(&request.attempt_id);
        let stored = reported.and_then(|events| events.last()).map(|event| event.sequence);
        let target_digest = state.target.as_ref().map(|target| &target.digest);
        let fits =
            stored == Some(request.last_sequence) && target_digest == Some(&request.target_digest);
        let answer = if state.window_open && fits {
            Answer::Granted(pb::Granted { start_deadline: Some(later()) })
        } else {
            Answer::Refused(pb::Refused { reason: "the window is closed".into(), retry_at: None })
        };
        Ok(Response::new(pb::BeginResponse { answer: Some(answer), now: Some(now()) }))
    }

    async fn report(
        &self,
        request: Request<pb::ReportRequest>,
    ) -> Result<Response<pb::ReportResponse>, Status> {
        let request = self.record_node_call("report", request).await?;
        let mut state = self.state.lock().unwrap();
        let events = state.reported_events.entry(request.attempt_id).or_default();
        for event in request.events {
            let next = u32::try_from(events.len()).unwrap() + 1;
            if event.sequence == next {
                events.push(event);
            }
        }
        Ok(Response::new(pb::ReportResponse {
            acknowledged: u32::try_from(events.len()).unwrap(),
            run_id: "osupdaterun-00000001".into(),
            now: Some(now()),
        }))
    }
}

/// A running server, and what a client needs to find and trust it.
pub struct TestServer {
    pub address: SocketAddr,
    pub state: Arc<Mutex<ServerState>>,
    /// Certificate of the CA.
    pub ca_pem: String,
    /// SHA-256 of the CA certificate's DER form, hexadecimal.
    pub ca_digest: String,
}

impl TestServer {
    /// Starts a server with a certificate for `host`.
    pub async fn start(host: SanType) -> Self {
        Self::start_at(host, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Starts a server with a certificate for 127.0.0.1.
    pub async fn start_on_loopback() -> Self {
        Self::start(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))).await
    }

    pub async fn start_at(host: SanType, address: SocketAddr) -> Self {
        let authority = ServerAuthority::new();
        let tls = authority.server_tls(host);
        Self::start_with_tls(authority, tls, address).await
    }

    /// Starts a server on 127.0.0.1 whose certificate is valid only in the future.
    pub async fn start_with_future_certificate() -> Self {
        let host = SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let authority = ServerAuthority::new();
        let tls = authority.future_server_tls(host);
        Self::start_with_tls(authority, tls, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    #[expect(clippy::disallowed_methods, reason = "a test has no lifecycle")]
    async fn start_with_tls(
        authority: ServerAuthority,
        tls: ServerTlsConfig,
        address: SocketAddr,
    ) -> Self {
        let ca_pem = authority.pem();
        let ca_digest =
            evenkeel_update_agent::modules::packages::hex(&Sha256::digest(authority.der()));
        let state = Arc::new(Mutex::new(ServerState::default()));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TestAgentService { state: Arc::clone(&state), authority };
        let router = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(AgentServiceServer::new(service));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, state, ca_pem, ca_digest }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn token(&self) -> String {
        format!("ekj1.{}.{TOKEN_SECRET}", self.ca_digest)
    }
}
