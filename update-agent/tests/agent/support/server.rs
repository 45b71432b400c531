//! A server as small as the protocol allows: real gRPC over real TLS on the loopback, one node, one wish.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use evenkeel_proto::agent as pb;
use pb::agent_service_server::{AgentService, AgentServiceServer};
use pb::event::News;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

/// The secret of every join token of this server.
pub const SECRET: &str = "c2VjcmV0";

/// What the server knows and wants.
#[derive(Debug)]
pub struct Brain {
    /// What it wants of the node.
    pub target: Option<pb::Target>,
    /// Whether a window is open.
    pub open: bool,
    /// The credential that it accepts.
    pub credential: String,
    /// The credential that it gives with the next poll.
    pub renewal: String,
    /// What it was told, by attempt.
    pub told: BTreeMap<String, Vec<pb::Event>>,
    /// The facts that it was told.
    pub facts: Option<pb::Facts>,
    /// The list of packages that it was told.
    pub packages: String,
    /// Leave for the time when it cannot be reached.
    pub grant: Option<pb::Grant>,
    /// Why the node does not begin, as it was told last.
    pub waiting: String,
    /// Who enrolled.
    pub enrolled: Option<pb::EnrollRequest>,
    /// So many calls are answered with UNAVAILABLE.
    pub unavailable: u32,
    /// The same, and with this they say when to ask again.
    pub pushback: Option<&'static str>,
    /// The tag of each poll, and for how many milliseconds it may be held.
    pub holds: Vec<(u64, u32)>,
    /// What it says of holds: the tag, and in milliseconds the next hold and the spread.
    pub terms: (u64, u32, u32),
    /// Calls are never answered.
    pub mute: bool,
    /// Every call, by name.
    pub calls: Vec<&'static str>,
}

impl Default for Brain {
    fn default() -> Self {
        Self {
            target: None,
            open: false,
            credential: "first-credential".into(),
            renewal: String::new(),
            told: BTreeMap::new(),
            facts: None,
            packages: String::new(),
            grant: None,
            waiting: String::new(),
            enrolled: None,
            unavailable: 0,
            pushback: None,
            holds: Vec::new(),
            terms: (0, 0, 0),
            mute: false,
            calls: Vec::new(),
        }
    }
}

fn is_over(events: &[pb::Event]) -> bool {
    let last = events.last().and_then(|event| event.news.as_ref());
    last.is_some_and(|news| {
        matches!(
            news,
            News::Finished(_)
                | News::Failed(_)
                | News::Reverted(_)
                | News::NothingToDo(_)
                | News::Cancelled(_)
        )
    })
}

impl Brain {
    fn decide(&self, attempt: Option<&pb::Attempt>) -> pb::decision::Act {
        use pb::decision::Act;
        let idle = Act::Idle(pb::Idle {});
        let open = attempt.map(|attempt| self.told.get(&attempt.id).map_or(&[][..], Vec::as_slice));
        let begun = open.is_some_and(|events| {
            let mut news = events.iter().filter_map(|event| event.news.as_ref());
            news.any(|news| matches!(news, News::Began(_)))
        });
        let go_on = Act::Continue(pb::Continue {
            run_id: "osupdaterun-00000001".into(),
        });
        match (&self.target, open) {
            (_, Some(_)) if begun => go_on,
            (None, Some(_)) => Act::Cancel(pb::Cancel {
                run_id: "osupdaterun-00000001".into(),
                cause: "withdrawn".into(),
            }),
            (None, None) => idle,
            (Some(_), None) if self.told.values().any(|events| is_over(events)) => idle,
            (Some(target), _) if self.open => Act::Apply(pb::Apply {
                target: Some(target.clone()),
                before: Some(later()),
            }),
            (Some(_), Some(_)) => go_on,
            (Some(target), None) => Act::Fetch(pb::Fetch {
                target: Some(target.clone()),
            }),
        }
    }
}

fn now() -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: 1_800_000_000,
        nanos: 0,
    }
}

fn later() -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: now().seconds + 3600,
        nanos: 0,
    }
}

struct Double(Arc<Mutex<Brain>>);

impl Double {
    async fn enter(&self, call: &'static str) -> Result<(), Status> {
        let mute = {
            let mut brain = self.0.lock().unwrap();
            brain.calls.push(call);
            if brain.unavailable > 0 {
                brain.unavailable -= 1;
                let mut status = Status::unavailable("not just now");
                if let Some(again) = brain.pushback {
                    let again = again.parse().unwrap();
                    status
                        .metadata_mut()
                        .insert("grpc-retry-pushback-ms", again);
                }
                return Err(status);
            }
            brain.mute
        };
        if mute {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn enter_as_node<T>(&self, call: &'static str, request: Request<T>) -> Result<T, Status> {
        self.enter(call).await?;
        let wanted = format!("Bearer {}", self.0.lock().unwrap().credential);
        match request.metadata().get("authorization") {
            Some(value) if value.as_bytes() == wanted.as_bytes() => Ok(request.into_inner()),
            _ => Err(Status::unauthenticated("the credential is not valid")),
        }
    }
}

#[tonic::async_trait]
impl AgentService for Double {
    async fn enroll(
        &self,
        request: Request<pb::EnrollRequest>,
    ) -> Result<Response<pb::EnrollResponse>, Status> {
        self.enter("enroll").await?;
        let request = request.into_inner();
        if !request.join_token.ends_with(&format!(".{SECRET}")) {
            return Err(Status::permission_denied("the join token is not valid"));
        }
        let mut brain = self.0.lock().unwrap();
        brain.enrolled = Some(request);
        Ok(Response::new(pb::EnrollResponse {
            credential: brain.credential.clone(),
            credential_expires: Some(later()),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
        }))
    }

    async fn poll(
        &self,
        request: Request<pb::PollRequest>,
    ) -> Result<Response<pb::PollResponse>, Status> {
        let request = self.enter_as_node("poll", request).await?;
        let mut brain = self.0.lock().unwrap();
        brain.waiting = request.waiting;
        brain
            .holds
            .push((request.decision_tag, request.may_hold_millis));
        let (decision_tag, hold_millis, spread_millis) = brain.terms;
        if let Some(facts) = request.facts {
            brain.facts = Some(facts);
        }
        if !request.packages.is_empty() {
            brain.packages = request.packages;
        }
        let known = brain.facts.as_ref().map(digest);
        let told = brain.facts.as_ref().map(|facts| &facts.packages_digest);
        let has = Sha256::digest(&brain.packages).to_vec();
        let want_packages = told.is_some_and(|told| !told.is_empty() && *told != has);
        let credential = std::mem::take(&mut brain.renewal);
        if !credential.is_empty() {
            brain.credential.clone_from(&credential);
        }
        Ok(Response::new(pb::PollResponse {
            want_facts: known != Some(request.facts_digest),
            next_poll_millis: 1000,
            now: Some(now()),
            decision: Some(pb::Decision {
                act: Some(brain.decide(request.attempt.as_ref())),
                reason: "the test wants it so".into(),
                next: None,
                grant: brain.grant.clone(),
            }),
            credential,
            want_packages,
            decision_tag,
            hold_millis,
            spread_millis,
        }))
    }

    async fn begin(
        &self,
        request: Request<pb::BeginRequest>,
    ) -> Result<Response<pb::BeginResponse>, Status> {
        use pb::begin_response::Answer;
        let request = self.enter_as_node("begin", request).await?;
        let brain = self.0.lock().unwrap();
        let told = brain.told.get(&request.attempt_id);
        let stored = told
            .and_then(|events| events.last())
            .map(|event| event.sequence);
        let wanted = brain.target.as_ref().map(|target| &target.digest);
        let fits = stored == Some(request.last_sequence) && wanted == Some(&request.target_digest);
        let answer = if brain.open && fits {
            Answer::Granted(pb::Granted {
                before: Some(later()),
            })
        } else {
            Answer::Refused(pb::Refused {
                reason: "the window is closed".into(),
                next: None,
            })
        };
        Ok(Response::new(pb::BeginResponse {
            answer: Some(answer),
            now: Some(now()),
        }))
    }

    async fn report(
        &self,
        request: Request<pb::ReportRequest>,
    ) -> Result<Response<pb::ReportResponse>, Status> {
        let request = self.enter_as_node("report", request).await?;
        let mut brain = self.0.lock().unwrap();
        let told = brain.told.entry(request.attempt_id).or_default();
        for event in request.events {
            let next = u32::try_from(told.len()).unwrap() + 1;
            if event.sequence == next {
                told.push(event);
            }
        }
        Ok(Response::new(pb::ReportResponse {
            acknowledged: u32::try_from(told.len()).unwrap(),
            run_id: "osupdaterun-00000001".into(),
            now: Some(now()),
        }))
    }
}

fn digest(facts: &pb::Facts) -> Vec<u8> {
    Sha256::digest(prost::Message::encode_to_vec(facts)).to_vec()
}

/// A running server and what one must know to find and trust it.
pub struct TestServer {
    pub address: SocketAddr,
    pub brain: Arc<Mutex<Brain>>,
    /// Certificate of the authority.
    pub ca_pem: String,
    /// SHA-256 of its DER, hexadecimal.
    pub ca_digest: String,
}

impl TestServer {
    /// Starts a server with a certificate for `host`.
    pub async fn start(host: SanType) -> Self {
        Self::start_at(host, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Starts a server with a certificate for 127.0.0.1.
    pub async fn on_loopback() -> Self {
        Self::start(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))).await
    }

    #[expect(clippy::disallowed_methods, reason = "a test has no lifecycle")]
    pub async fn start_at(host: SanType, address: SocketAddr) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![host];
        let certificate = params.signed_by(&key, &ca).unwrap();
        let chain = format!("{}{}", certificate.pem(), ca.pem());
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(chain, key.serialize_pem()));

        let brain = Arc::new(Mutex::new(Brain::default()));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let double = Double(Arc::clone(&brain));
        let router = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(AgentServiceServer::new(double));
        tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
        let ca_digest = evenkeel_update_agent::modules::packages::hex(&Sha256::digest(ca.der()));
        Self {
            address,
            brain,
            ca_pem: ca.pem(),
            ca_digest,
        }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn token(&self) -> String {
        format!("ekj1.{}.{SECRET}", self.ca_digest)
    }
}
