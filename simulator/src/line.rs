//! The line between a node and the servers, with everything that can go wrong on it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use crate::chance::Chance;

/// How long a call may take before the node gives it up.
const DEADLINE: Duration = Duration::from_secs(20);

/// A server that names a later time is asked after this one.
const LONGEST_PUSHBACK: Duration = Duration::from_hours(1);

/// How often each fault happens in a thousand calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The request never arrives.
    pub lose_request: u16,
    /// The request arrives, its answer does not.
    pub lose_answer: u16,
    /// The request arrives twice, at any of the servers, at the same time.
    pub duplicate: u16,
    /// The node gives the call up and goes on, and the request arrives after that: behind what the node says next.
    pub straggle: u16,
    /// The request is slow.
    pub delay: u16,
}

/// What happened on all lines together.
#[derive(Debug, Default)]
pub struct Tally {
    /// Polls that were answered.
    pub polls: AtomicU64,
    /// Other calls that were answered.
    pub others: AtomicU64,
    /// Calls that failed on the way, by a fault or because a server was gone.
    pub lost: AtomicU64,
    /// Calls that a server refused.
    pub refused: AtomicU64,
    /// Requests that arrived more than once.
    pub duplicated: AtomicU64,
    /// Requests that arrived after the node had given them up.
    pub straggled: AtomicU64,
}

/// What all lines share.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// How often what happens.
    pub faults: Faults,
    /// What happened.
    pub tally: Arc<Tally>,
    calm: Arc<AtomicBool>,
    late: TaskTracker,
}

impl Weather {
    /// A weather with these faults.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            ..Self::default()
        }
    }

    /// Ends all faults, and waits until the last request that was late has arrived.
    pub async fn calm_down(&self) {
        self.calm.store(true, Ordering::SeqCst);
        self.late.close();
        self.late.wait().await;
    }

    /// Whether the faults are over.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::SeqCst)
    }
}

/// A line of one node. Each call goes to any of the servers.
#[derive(Clone, Debug)]
pub struct Line {
    servers: Vec<Channel>,
    authorization: MetadataValue<Ascii>,
    weather: Weather,
    faults: Faults,
}

/// A call that can be made now or later.
type Call<A> = Pin<Box<dyn Future<Output = Result<Response<A>, Status>> + Send>>;

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Slow,
    RequestLost,
    AnswerLost,
    Twice,
    Late,
}

impl Line {
    /// A line to these servers for a node with this credential. None if the credential is no header.
    #[must_use]
    pub fn new(servers: Vec<Channel>, credential: &str, weather: &Weather) -> Option<Self> {
        Some(Self {
            servers,
            authorization: format!("Bearer {credential}").parse().ok()?,
            faults: weather.faults,
            weather: weather.clone(),
        })
    }

    /// The same line with other faults.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// What is shared with the other lines.
    #[must_use]
    pub const fn weather(&self) -> &Weather {
        &self.weather
    }

    /// Replaces the credential by a new one of the server.
    pub fn renew(&mut self, credential: &str) {
        if let Ok(value) = format!("Bearer {credential}").parse() {
            self.authorization = value;
        }
    }

    /// Makes a call.
    ///
    /// # Errors
    /// The server refused, or the call failed on the way.
    pub async fn call<Q, A, S, F>(
        &self,
        chance: &mut Chance,
        message: Q,
        send: S,
    ) -> Result<A, Status>
    where
        Q: Clone + Send + 'static,
        A: Send + 'static,
        S: Fn(Channel, Request<Q>) -> F + Send + 'static,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'static,
    {
        let fate = self.fate(chance);
        let send = |chance: &mut Chance| -> Call<A> {
            let mut request = Request::new(message.clone());
            request.set_timeout(DEADLINE);
            request
                .metadata_mut()
                .insert("authorization", self.authorization.clone());
            Box::pin(within(send(chance.pick(&self.servers).clone(), request)))
        };
        let answer = match fate {
            Fate::Arrives => send(chance).await,
            Fate::Slow => {
                tokio::time::sleep(Duration::from_millis(chance.between(5, 250))).await;
                send(chance).await
            }
            Fate::RequestLost => Err(lost()),
            Fate::AnswerLost => send(chance).await.and_then(|_| Err(lost())),
            Fate::Twice => {
                count(&self.weather.tally.duplicated);
                let (left, right) = tokio::join!(send(chance), send(chance));
                if chance.hits(500) { left } else { right }
            }
            Fate::Late => {
                count(&self.weather.tally.straggled);
                let wait = Duration::from_millis(chance.between(10, 2_000));
                let call = send(chance);
                self.weather.late.spawn(async move {
                    tokio::time::sleep(wait).await;
                    // Nobody waits for what it says.
                    drop(call.await);
                });
                Err(lost())
            }
        };
        match answer {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => {
                let tally = &self.weather.tally;
                count(if is_lost(&status) && pushback(&status).is_none() {
                    &tally.lost
                } else {
                    &tally.refused
                });
                Err(status)
            }
        }
    }

    fn fate(&self, chance: &mut Chance) -> Fate {
        if self.weather.is_calm() {
            return Fate::Arrives;
        }
        let faults = self.faults;
        let all = [
            (faults.lose_request, Fate::RequestLost),
            (faults.lose_answer, Fate::AnswerLost),
            (faults.duplicate, Fate::Twice),
            (faults.straggle, Fate::Late),
            (faults.delay, Fate::Slow),
        ];
        let mut drawn = chance.between(0, 999);
        for (often, fate) in all {
            if drawn < u64::from(often) {
                return fate;
            }
            drawn -= u64::from(often);
        }
        Fate::Arrives
    }
}

/// Opens a line to a server over TLS, lazily: a server that is away is tried again with each call.
///
/// # Errors
/// The address or the certificate cannot be understood.
pub fn server(address: &str, ca: &str) -> Result<Channel, tonic::transport::Error> {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name("localhost");
    Ok(Endpoint::from_shared(format!("https://{address}"))?
        .tls_config(tls)?
        .connect_timeout(Duration::from_secs(5))
        .tcp_nodelay(true)
        .connect_lazy())
}

/// After what time a server that has too much to do wants to be asked again; none if that is not why it refused.
#[must_use]
pub fn pushback(status: &Status) -> Option<Duration> {
    use tonic::Code;
    if !matches!(status.code(), Code::Unavailable | Code::ResourceExhausted) {
        return None;
    }
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    let millis = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis).min(LONGEST_PUSHBACK))
}

/// Whether a call failed on the way and not at the server's will.
#[must_use]
pub fn is_lost(status: &Status) -> bool {
    use tonic::Code;
    matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    )
}

fn lost() -> Status {
    Status::unavailable("lost on the way")
}

async fn within<A>(
    call: impl Future<Output = Result<Response<A>, Status>>,
) -> Result<Response<A>, Status> {
    let done = tokio::time::timeout(DEADLINE, call).await;
    done.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
