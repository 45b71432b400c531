//! A call on its way to the server, on which things may go wrong on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_simulator::chance::Chance;
use evenkeel_simulator::line::{Faults, Line, Weather};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::connect::Dialer;
use super::node::{Heard, Words};

/// What stands before a credential in the header `authorization`.
const BEARER: &str = "Bearer ";

/// What became of a call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing went wrong on purpose.
    Plain,
    /// The request did not arrive, or its answer did not.
    Lost,
    /// The request arrived twice.
    Twice,
    /// The request arrives when the node has given it up.
    Late,
}

/// The connection over which a call goes.
#[derive(Debug)]
pub enum Way {
    /// One that is open.
    Open(Channel),
    /// The one with this number, which is opened for it.
    Opens(Box<Dialer>, u32),
}

/// What calls go through while some of them go astray on purpose.
#[derive(Clone, Debug)]
pub struct Passage {
    weather: Weather,
    late_failures: Arc<AtomicU64>,
}

/// A call that is to be made.
#[derive(Debug)]
pub struct Errand {
    /// Over which connection.
    pub way: Way,
    /// The value of the header `authorization`.
    pub authorization: MetadataValue<Ascii>,
    /// What is said.
    pub words: Words,
    /// How long it may take.
    pub within: Duration,
    /// What it goes through, and what draws its fate; none if nothing is to go wrong.
    pub passage: Option<(Passage, Chance)>,
}

/// What came back.
#[derive(Debug)]
pub struct Came {
    /// The answer.
    pub answer: Result<Heard, Status>,
    /// What became of the call.
    pub fate: Fate,
    /// The connection that was opened for it.
    pub opened: Option<Channel>,
}

impl Errand {
    /// Makes the call.
    pub async fn run(self) -> Came {
        let made = tokio::time::timeout(self.within, self.make()).await;
        made.unwrap_or_else(|_| Came::failed(Status::deadline_exceeded("no answer")))
    }

    async fn make(self) -> Came {
        let (channel, opened) = match self.way {
            Way::Open(channel) => (channel, None),
            Way::Opens(dialer, number) => match Box::pin(dialer.dial(number)).await {
                Ok(channel) => (channel.clone(), Some(channel)),
                Err(error) => {
                    return Came::failed(Status::unavailable(format!("cannot connect: {error}")));
                }
            },
        };
        let (answer, fate) = match self.passage {
            None => {
                let answer = straight(channel, self.authorization, self.words).await;
                (answer, Fate::Plain)
            }
            Some((passage, chance)) => {
                let line = passage.line(channel, &self.authorization);
                Box::pin(passage.carry(line, chance, self.words)).await
            }
        };
        Came {
            answer,
            fate,
            opened,
        }
    }
}

impl Came {
    fn failed(status: Status) -> Self {
        Self {
            answer: Err(status),
            fate: Fate::Plain,
            opened: None,
        }
    }
}

async fn straight(
    channel: Channel,
    authorization: MetadataValue<Ascii>,
    words: Words,
) -> Result<Heard, Status> {
    match words {
        Words::Own(message) => {
            let mut request = Request::new(*message);
            request
                .metadata_mut()
                .insert("authorization", authorization);
            let answer = AgentServiceClient::new(channel).poll(request).await?;
            Ok(Heard::Own(Box::new(answer.into_inner())))
        }
        Words::Eim(message) => {
            let mut request = Request::new(message);
            request
                .metadata_mut()
                .insert("authorization", authorization);
            let mut client = MaintmgrServiceClient::new(channel);
            client.platform_update_status(request).await?;
            Ok(Heard::Eim)
        }
    }
}

impl Passage {
    /// With these faults. Requests that arrive late and fail are counted in `late_failures`.
    pub fn new(faults: Faults, late_failures: &Arc<AtomicU64>) -> Self {
        Self {
            weather: Weather::new(faults),
            late_failures: Arc::clone(late_failures),
        }
    }

    /// The line of a node; none if its credential is no header.
    fn line(&self, channel: Channel, authorization: &MetadataValue<Ascii>) -> Option<Line> {
        let credential = authorization.to_str().ok()?.strip_prefix(BEARER)?;
        Line::new(vec![channel], credential, &self.weather)
    }

    async fn carry(
        self,
        line: Option<Line>,
        mut chance: Chance,
        words: Words,
    ) -> (Result<Heard, Status>, Fate) {
        let Some(line) = line else {
            return (Err(Status::internal("no credential")), Fate::Plain);
        };
        let seen = Arc::new(Seen::new(self.late_failures));
        let watcher = Arc::clone(&seen);
        let answer = match words {
            Words::Own(message) => {
                let send = move |channel: Channel, request: Request<PollRequest>| {
                    let mut client = AgentServiceClient::new(channel);
                    let call = async move { client.poll(request).await };
                    watched(Arc::clone(&watcher), call)
                };
                let answer = line.call(&mut chance, *message, send).await;
                answer.map(|answer| Heard::Own(Box::new(answer)))
            }
            Words::Eim(message) => {
                let send =
                    move |channel: Channel, request: Request<PlatformUpdateStatusRequest>| {
                        let mut client = MaintmgrServiceClient::new(channel);
                        let call = async move { client.platform_update_status(request).await };
                        watched(Arc::clone(&watcher), call)
                    };
                let answer = line.call(&mut chance, message, send).await;
                answer.map(|_| Heard::Eim)
            }
        };
        seen.end(answer)
    }
}

/// What was really seen of the requests of one call: the line does not say what it did.
#[derive(Debug)]
struct Seen {
    /// Requests that were made.
    made: AtomicU32,
    /// Those of them that went off.
    begun: AtomicU32,
    /// Those of them that the server answered.
    answered: AtomicU32,
    /// Those of them that failed.
    failed: AtomicU32,
    /// Nobody waits any more.
    is_over: AtomicBool,
    /// Those that failed after that, of all calls.
    late_failures: Arc<AtomicU64>,
}

impl Seen {
    fn new(late_failures: Arc<AtomicU64>) -> Self {
        Self {
            made: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            late_failures,
        }
    }

    /// Takes in what came of a request.
    fn note(&self, error: Option<&Status>) {
        match error.map(Heard::status) {
            None => {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            Some(Heard::Failed) if self.is_over.load(Ordering::Relaxed) => {
                self.late_failures.fetch_add(1, Ordering::Relaxed);
            }
            Some(Heard::Failed) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
            // It said when to come back.
            Some(_) => {}
        }
    }

    /// The call is over: what it comes to, and what its fate was.
    fn end(&self, answer: Result<Heard, Status>) -> (Result<Heard, Status>, Fate) {
        self.is_over.store(true, Ordering::Relaxed);
        let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let fate = match (count(&self.made), count(&self.begun)) {
            (0, _) => Fate::Lost,
            (1, 0) => Fate::Late,
            (1, _) if 0 < count(&self.answered) && answer.is_err() => Fate::Lost,
            (1, _) => Fate::Plain,
            _ => Fate::Twice,
        };
        if 0 < count(&self.failed) && answer.is_ok() {
            return (Err(Status::unknown("one of two requests failed")), fate);
        }
        (answer, fate)
    }
}

/// Watches what comes of a request.
fn watched<A, C>(
    seen: Arc<Seen>,
    call: C,
) -> impl Future<Output = Result<Response<A>, Status>> + Send + 'static
where
    A: Send + 'static,
    C: Future<Output = Result<Response<A>, Status>> + Send + 'static,
{
    seen.made.fetch_add(1, Ordering::Relaxed);
    async move {
        seen.begun.fetch_add(1, Ordering::Relaxed);
        let answer = call.await;
        seen.note(answer.as_ref().err());
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Arc<Seen> {
        Arc::new(Seen::new(Arc::default()))
    }

    fn lost() -> Result<Heard, Status> {
        Err(Status::unavailable("lost on the way"))
    }

    async fn ask(seen: &Arc<Seen>, answer: Result<(), Status>) {
        let call = async move { answer.map(Response::new) };
        watched(Arc::clone(seen), call).await.ok();
    }

    #[tokio::test]
    async fn a_call_is_lost_on_its_way_and_not_where_the_server_fails_it() {
        assert_eq!(seen().end(lost()).1, Fate::Lost, "the request");
        let answered = seen();
        ask(&answered, Ok(())).await;
        assert_eq!(answered.end(lost()).1, Fate::Lost, "the answer");
        let failed = seen();
        ask(&failed, Err(Status::internal("a fault of the server"))).await;
        assert_eq!(failed.end(lost()).1, Fate::Plain);
        let fine = seen();
        ask(&fine, Ok(())).await;
        assert_eq!(fine.end(Ok(Heard::Eim)).1, Fate::Plain);
    }

    #[tokio::test]
    async fn a_call_that_is_made_twice_fails_if_one_of_both_does() {
        let seen = seen();
        ask(&seen, Ok(())).await;
        ask(&seen, Err(Status::internal("a fault of the server"))).await;
        let (answer, fate) = seen.end(Ok(Heard::Eim));
        assert!(answer.is_err() && fate == Fate::Twice);
    }

    #[tokio::test]
    async fn what_fails_when_nobody_waits_any_more_is_counted_all_the_same() {
        let seen = seen();
        let call = async { Err::<Response<()>, _>(Status::internal("a fault of the server")) };
        let late = watched(Arc::clone(&seen), call);
        assert_eq!(seen.end(lost()).1, Fate::Late);
        late.await.expect_err("it fails");
        assert_eq!(seen.late_failures.load(Ordering::Relaxed), 1);
    }
}
