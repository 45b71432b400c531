//! The gRPC service for our own agent: `evenkeel.agent.v1`.

mod begin;
mod certificates;
mod credentials;
mod enroll;
mod facts;
mod long_poll;
mod packages;
mod poll;
mod renew;
mod report;
mod run_report;
mod slots;
mod waiting;

use std::time::Instant;

use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::{
    BeginRequest, BeginResponse, EnrollRequest, EnrollResponse, PollRequest, PollResponse,
    RenewRequest, RenewResponse, ReportRequest, ReportResponse,
};
use tonic::{Code, Request, Response, Status};

use crate::admission::connection::ConnectionState;
use crate::admission::peer::Peer;
use crate::manager::MaintenanceManager;
use crate::poll::batch::PollProtocol;
use crate::status;

/// The name of the poll call in metrics and log. Polls are by far the most frequent calls.
const POLL_CALL: &str = "poll";

#[tonic::async_trait]
impl AgentService for MaintenanceManager {
    async fn enroll(
        &self,
        request: Request<EnrollRequest>,
    ) -> Result<Response<EnrollResponse>, Status> {
        let peer = Peer::from_request(&request);
        let address = request.remote_addr().map(|address| address.ip().to_canonical());
        // Verifying a join token costs a database query, so callers without a valid one are
        // limited.
        let answer = match self.rate_limiter.check(&peer) {
            Ok(()) => Box::pin(enroll::enroll(self, &peer, address, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        if answer.as_ref().is_err_and(is_caller_fault) {
            // Calls that run at the same time have already passed the check, so the result is
            // ignored.
            let _ = self.rate_limiter.admit(&peer);
        }
        self.finish_call("enroll", peer, answer)
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        let (peer, node) = self.authenticate_renewal(&request);
        let answer = match node {
            Ok(node) => Box::pin(renew::renew(self, &node, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        self.protect_ids_of_lost_host(&peer, &answer).await;
        self.finish_call("renew", peer, answer)
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        let since = Instant::now();
        let (peer, node) = self.authenticate_node(&request);
        let connection = request.extensions().get::<ConnectionState>().cloned();
        let parsed = node.and_then(|node| {
            let input = poll::parse(request.into_inner(), &node.key, connection, since)?;
            Ok((node, input))
        });
        let answer = match parsed {
            Ok((node, input)) => Box::pin(poll::poll(self, &node, input)).await,
            Err(refused) => Err(refused),
        };
        self.show_daily_limits(&answer).await;
        self.protect_ids_of_lost_host(&peer, &answer).await;
        self.finish_call(POLL_CALL, peer, answer)
    }

    async fn begin(
        &self,
        request: Request<BeginRequest>,
    ) -> Result<Response<BeginResponse>, Status> {
        let (peer, node) = self.authenticate_node(&request);
        let answer = match node {
            Ok(node) => Box::pin(begin::begin(self, &node, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        self.protect_ids_of_lost_host(&peer, &answer).await;
        self.finish_call("begin", peer, answer)
    }

    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let (peer, node) = self.authenticate_node(&request);
        let answer = match node {
            Ok(node) => Box::pin(report::report(self, &node, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        self.show_daily_limits(&answer).await;
        self.protect_ids_of_lost_host(&peer, &answer).await;
        self.finish_call("report", peer, answer)
    }
}

/// Whether the call failed because of the caller's input and not because of a problem of the
/// server.
fn is_caller_fault(refused: &Status) -> bool {
    let ours = [Code::Unavailable, Code::Internal, Code::ResourceExhausted];
    !ours.contains(&refused.code())
}

impl MaintenanceManager {
    /// Counts a call and records a refusal in the log.
    fn finish_call<T>(
        &self,
        call: &'static str,
        peer: Peer,
        answer: Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        if call == POLL_CALL && answer.is_ok() {
            self.poll_answers.counters(PollProtocol::Own).ok.increment(1);
        } else {
            let outcome = status::outcome(&answer);
            metrics::counter!("evenkeel_agent_calls_total", "call" => call, "outcome" => outcome)
                .increment(1);
        }
        self.note(&peer, call, &answer);
        answer.map(Response::new)
    }
}
