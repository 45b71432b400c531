//! A call to the server, optionally with injected faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_simulator::connection::{Faults, Network, NodeConnection};
use evenkeel_simulator::rng::Rng;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::connect::Dialer;
use super::simulated_node::{CallOutcome, PollPayload};

/// Prefix of a credential in the `authorization` header.
const BEARER_PREFIX: &str = "Bearer ";

/// Effect of fault injection on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFate {
    /// No fault was injected.
    Normal,
    /// The request or its answer was lost.
    Lost,
    /// The request arrived twice.
    Duplicated,
    /// The request arrives after the node has given up the call.
    Late,
}

/// The connection of a call.
#[derive(Debug)]
pub enum CallConnection {
    /// An open connection.
    Open(Channel),
    /// A connection that is opened for the call: its dialer and its number.
    Dial(Box<Dialer>, u32),
}

/// Injects faults into calls.
#[derive(Clone, Debug)]
pub struct FaultInjector {
    network: Network,
    late_failures: Arc<AtomicU64>,
}

/// A call to send.
#[derive(Debug)]
pub struct OutgoingCall {
    /// The connection to use.
    pub connection: CallConnection,
    /// The value of the `authorization` header.
    pub authorization: MetadataValue<Ascii>,
    /// The message to send.
    pub payload: PollPayload,
    /// Deadline of the call.
    pub timeout: Duration,
    /// Fault injection, and the random numbers that select the fault; `None` for no faults.
    pub fault_injection: Option<(FaultInjector, Rng)>,
}

/// Result of a call.
#[derive(Debug)]
pub struct CallResult {
    /// The answer.
    pub answer: Result<CallOutcome, Status>,
    /// Effect of fault injection.
    pub fate: CallFate,
    /// The connection that was opened for the call.
    pub opened_channel: Option<Channel>,
}

impl OutgoingCall {
    /// Sends the call, and waits for the answer.
    pub async fn run(self) -> CallResult {
        let result = tokio::time::timeout(self.timeout, self.send()).await;
        result.unwrap_or_else(|_| {
            CallResult::from_status(Status::deadline_exceeded("no answer in time"))
        })
    }

    async fn send(self) -> CallResult {
        let (channel, opened_channel) = match self.connection {
            CallConnection::Open(channel) => (channel, None),
            CallConnection::Dial(dialer, number) => match Box::pin(dialer.dial(number)).await {
                Ok(channel) => (channel.clone(), Some(channel)),
                Err(error) => {
                    return CallResult::from_status(Status::unavailable(format!(
                        "cannot connect: {error}"
                    )));
                }
            },
        };
        let (answer, fate) = match self.fault_injection {
            None => {
                let answer = send_directly(channel, self.authorization, self.payload).await;
                (answer, CallFate::Normal)
            }
            Some((injector, rng)) => {
                let connection = injector.open_connection(channel, &self.authorization);
                Box::pin(injector.send_with_faults(connection, rng, self.payload)).await
            }
        };
        CallResult { answer, fate, opened_channel }
    }
}

impl CallResult {
    fn from_status(status: Status) -> Self {
        Self { answer: Err(status), fate: CallFate::Normal, opened_channel: None }
    }
}

async fn send_directly(
    channel: Channel,
    authorization: MetadataValue<Ascii>,
    payload: PollPayload,
) -> Result<CallOutcome, Status> {
    match payload {
        PollPayload::Own(message) => {
            let mut request = Request::new(*message);
            request.metadata_mut().insert("authorization", authorization);
            let answer = AgentServiceClient::new(channel).poll(request).await?;
            Ok(CallOutcome::Own(Box::new(answer.into_inner())))
        }
        PollPayload::Eim(message) => {
            let mut request = Request::new(message);
            request.metadata_mut().insert("authorization", authorization);
            let mut client = MaintmgrServiceClient::new(channel);
            client.platform_update_status(request).await?;
            Ok(CallOutcome::Eim)
        }
    }
}

impl FaultInjector {
    /// Injects these faults. Late requests that fail are counted in `late_failures`.
    pub fn new(faults: Faults, late_failures: &Arc<AtomicU64>) -> Self {
        Self { network: Network::new(faults), late_failures: Arc::clone(late_failures) }
    }

    /// The simulated connection of a node; `None` if the credential is not a valid header.
    fn open_connection(
        &self,
        channel: Channel,
        authorization: &MetadataValue<Ascii>,
    ) -> Option<NodeConnection> {
        let credential = authorization.to_str().ok()?.strip_prefix(BEARER_PREFIX)?;
        NodeConnection::new(vec![channel], credential, &self.network)
    }

    async fn send_with_faults(
        self,
        connection: Option<NodeConnection>,
        mut rng: Rng,
        payload: PollPayload,
    ) -> (Result<CallOutcome, Status>, CallFate) {
        let Some(connection) = connection else {
            return (Err(Status::internal("the credential is invalid")), CallFate::Normal);
        };
        let counters = Arc::new(RequestCounters::new(self.late_failures));
        let watcher = Arc::clone(&counters);
        let answer = match payload {
            PollPayload::Own(message) => {
                let send = move |channel: Channel, request: Request<PollRequest>| {
                    let mut client = AgentServiceClient::new(channel);
                    let call = async move { client.poll(request).await };
                    observe_request(Arc::clone(&watcher), call)
                };
                let answer = connection.call(&mut rng, *message, send).await;
                answer.map(|answer| CallOutcome::Own(Box::new(answer)))
            }
            PollPayload::Eim(message) => {
                let send =
                    move |channel: Channel, request: Request<PlatformUpdateStatusRequest>| {
                        let mut client = MaintmgrServiceClient::new(channel);
                        let call = async move { client.platform_update_status(request).await };
                        observe_request(Arc::clone(&watcher), call)
                    };
                let answer = connection.call(&mut rng, message, send).await;
                answer.map(|_| CallOutcome::Eim)
            }
        };
        counters.finish(answer)
    }
}

/// Counts the requests of one call. The simulated connection does not say which fault it injected,
/// so the fault is derived from these counters.
#[derive(Debug)]
struct RequestCounters {
    /// Requests that were created.
    created: AtomicU32,
    /// Requests that were sent.
    sent: AtomicU32,
    /// Requests that the server answered.
    answered: AtomicU32,
    /// Requests that failed.
    failed: AtomicU32,
    /// The call has ended; later answers are ignored by the node.
    is_finished: AtomicBool,
    /// Requests of all calls that failed after the end of their call.
    late_failures: Arc<AtomicU64>,
}

impl RequestCounters {
    fn new(late_failures: Arc<AtomicU64>) -> Self {
        Self {
            created: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            is_finished: AtomicBool::new(false),
            late_failures,
        }
    }

    /// Records the result of a request.
    fn record(&self, error: Option<&Status>) {
        match error.map(CallOutcome::from_status) {
            None => {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            Some(CallOutcome::Failed) if self.is_finished.load(Ordering::Relaxed) => {
                self.late_failures.fetch_add(1, Ordering::Relaxed);
            }
            Some(CallOutcome::Failed) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
            // A refusal with a retry hint is not a failure.
            Some(_) => {}
        }
    }

    /// Ends the call. Returns its answer and the injected fault.
    fn finish(
        &self,
        answer: Result<CallOutcome, Status>,
    ) -> (Result<CallOutcome, Status>, CallFate) {
        self.is_finished.store(true, Ordering::Relaxed);
        let count = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let fate = match (count(&self.created), count(&self.sent)) {
            (0, _) => CallFate::Lost,
            (1, 0) => CallFate::Late,
            (1, _) if 0 < count(&self.answered) && answer.is_err() => CallFate::Lost,
            (1, _) => CallFate::Normal,
            _ => CallFate::Duplicated,
        };
        if 0 < count(&self.failed) && answer.is_ok() {
            return (Err(Status::unknown("one of two requests failed")), fate);
        }
        (answer, fate)
    }
}

/// Counts a request and its result.
fn observe_request<A, C>(
    counters: Arc<RequestCounters>,
    call: C,
) -> impl Future<Output = Result<Response<A>, Status>> + Send + 'static
where
    A: Send + 'static,
    C: Future<Output = Result<Response<A>, Status>> + Send + 'static,
{
    counters.created.fetch_add(1, Ordering::Relaxed);
    async move {
        counters.sent.fetch_add(1, Ordering::Relaxed);
        let answer = call.await;
        counters.record(answer.as_ref().err());
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_counters() -> Arc<RequestCounters> {
        Arc::new(RequestCounters::new(Arc::default()))
    }

    fn lost_call() -> Result<CallOutcome, Status> {
        Err(Status::unavailable("injected loss"))
    }

    async fn observe_answer(counters: &Arc<RequestCounters>, answer: Result<(), Status>) {
        let call = async move { answer.map(Response::new) };
        observe_request(Arc::clone(counters), call).await.ok();
    }

    #[tokio::test]
    async fn a_server_error_is_not_counted_as_a_lost_call() {
        assert_eq!(new_counters().finish(lost_call()).1, CallFate::Lost, "the request is lost");
        let answered = new_counters();
        observe_answer(&answered, Ok(())).await;
        assert_eq!(answered.finish(lost_call()).1, CallFate::Lost, "the answer is lost");
        let failed = new_counters();
        observe_answer(&failed, Err(Status::internal("a server error"))).await;
        assert_eq!(failed.finish(lost_call()).1, CallFate::Normal);
        let fine = new_counters();
        observe_answer(&fine, Ok(())).await;
        assert_eq!(fine.finish(Ok(CallOutcome::Eim)).1, CallFate::Normal);
    }

    #[tokio::test]
    async fn a_duplicated_call_fails_if_either_request_fails() {
        let counters = new_counters();
        observe_answer(&counters, Ok(())).await;
        observe_answer(&counters, Err(Status::internal("a server error"))).await;
        let (answer, fate) = counters.finish(Ok(CallOutcome::Eim));
        assert!(answer.is_err() && fate == CallFate::Duplicated);
    }

    #[tokio::test]
    async fn a_late_request_that_fails_is_counted() {
        let counters = new_counters();
        let call = async { Err::<Response<()>, _>(Status::internal("a server error")) };
        let late = observe_request(Arc::clone(&counters), call);
        assert_eq!(counters.finish(lost_call()).1, CallFate::Late);
        late.await.expect_err("it fails");
        assert_eq!(counters.late_failures.load(Ordering::Relaxed), 1);
    }
}
