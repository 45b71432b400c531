//! The door for our own agent: `evenkeel.agent.v1`.

mod account;
mod ages;
mod begin;
mod enroll;
mod facts;
mod held;
mod packages;
mod poll;
pub(crate) mod quiet;
mod report;
mod slots;
mod waiting;
mod wire;

use std::time::Instant;

use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::{
    BeginRequest, BeginResponse, EnrollRequest, EnrollResponse, PollRequest, PollResponse,
    ReportRequest, ReportResponse,
};
use tonic::{Code, Request, Response, Status};

use crate::carried::Carried;
use crate::desk::Door;
use crate::manager::MaintenanceManager;
use crate::peer::Peer;
use crate::status;

/// The call of which there are the most, as it is told and counted.
const POLL: &str = "poll";

#[tonic::async_trait]
impl AgentService for MaintenanceManager {
    async fn enroll(
        &self,
        request: Request<EnrollRequest>,
    ) -> Result<Response<EnrollResponse>, Status> {
        let peer = Peer::of(&request);
        // A join token proves nothing before the database was asked, and who made it up may not ask for ever.
        let answer = match self.flood.may_pass(&peer, Instant::now()) {
            Ok(()) => Box::pin(enroll::enroll(self, &peer, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        if answer.as_ref().is_err_and(is_its_own_fault) {
            // Those that were under way meanwhile are past it.
            let _ = self.flood.admit(&peer, Instant::now());
        }
        self.ended("enroll", peer, answer)
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        let since = Instant::now();
        let (peer, node) = self.node(&request);
        let carried = request.extensions().get::<Carried>().cloned();
        let read = node.and_then(|node| {
            let told = poll::read(request.into_inner(), carried, since)?;
            Ok((node, told))
        });
        let answer = match read {
            Ok((node, told)) => Box::pin(poll::poll(self, &node, told)).await,
            Err(refused) => Err(refused),
        };
        self.ended(POLL, peer, answer)
    }

    async fn begin(
        &self,
        request: Request<BeginRequest>,
    ) -> Result<Response<BeginResponse>, Status> {
        let (peer, node) = self.node(&request);
        let answer = match node {
            Ok(node) => Box::pin(begin::begin(self, &node, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        self.ended("begin", peer, answer)
    }

    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let (peer, node) = self.node(&request);
        let answer = match node {
            Ok(node) => Box::pin(report::report(self, &node, request.into_inner())).await,
            Err(refused) => Err(refused),
        };
        self.ended("report", peer, answer)
    }
}

/// Whether a call was refused for what it said, and not for what goes on here.
fn is_its_own_fault(refused: &Status) -> bool {
    let ours = [Code::Unavailable, Code::Internal, Code::ResourceExhausted];
    !ours.contains(&refused.code())
}

impl MaintenanceManager {
    /// Counts a call, and notes in the log what it was refused for.
    fn ended<T>(
        &self,
        call: &'static str,
        peer: Peer,
        answer: Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        if call == POLL && answer.is_ok() {
            self.desk.polls(Door::Own).ok.increment(1);
        } else {
            let outcome = status::outcome(&answer);
            metrics::counter!("evenkeel_agent_calls_total", "call" => call, "outcome" => outcome)
                .increment(1);
        }
        self.note(&peer, call, &answer);
        answer.map(Response::new)
    }
}
