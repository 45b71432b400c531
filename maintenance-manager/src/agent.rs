//! The door for our own agent: `evenkeel.agent.v1`.

mod begin;
mod enroll;
mod facts;
mod poll;
mod report;
mod wire;

use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::{
    BeginRequest, BeginResponse, EnrollRequest, EnrollResponse, PollRequest, PollResponse,
    ReportRequest, ReportResponse,
};
use tonic::{Request, Response, Status};

use crate::caller::{self, Node};
use crate::manager::MaintenanceManager;
use crate::status;

#[tonic::async_trait]
impl AgentService for MaintenanceManager {
    async fn enroll(
        &self,
        request: Request<EnrollRequest>,
    ) -> Result<Response<EnrollResponse>, Status> {
        let answer = enroll::enroll(self, request.into_inner()).await;
        counted("enroll", answer)
    }

    async fn poll(&self, request: Request<PollRequest>) -> Result<Response<PollResponse>, Status> {
        let node = self.node(&request)?;
        counted("poll", poll::poll(self, &node, request.into_inner()).await)
    }

    async fn begin(
        &self,
        request: Request<BeginRequest>,
    ) -> Result<Response<BeginResponse>, Status> {
        let node = self.node(&request)?;
        counted(
            "begin",
            begin::begin(self, &node, request.into_inner()).await,
        )
    }

    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let node = self.node(&request)?;
        counted(
            "report",
            report::report(self, &node, request.into_inner()).await,
        )
    }
}

impl MaintenanceManager {
    fn node<T>(&self, request: &Request<T>) -> Result<Node, Status> {
        caller::node(&self.authority, request.metadata(), self.now())
    }
}

fn counted<T>(call: &'static str, answer: Result<T, Status>) -> Result<Response<T>, Status> {
    let outcome = status::outcome(&answer);
    metrics::counter!("evenkeel_agent_calls_total", "call" => call, "outcome" => outcome)
        .increment(1);
    answer.map(Response::new)
}
