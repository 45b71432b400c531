//! The first answer of a server after its start, and its answers to unchanged polls.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::{PollRequest, PollResponse};
use evenkeel_proto::maintmgr::maintmgr_service_client::MaintmgrServiceClient;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    PlatformUpdateStatusRequest, PlatformUpdateStatusResponse, UpdateStatus,
};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::connect::Dialer;
use super::node_driver::SEEDED_FACTS_DIGEST;
use super::node_list::NodeEntry;
use crate::bench_harness::BenchHarness;
use crate::echo::EchoAnswers;

/// Timeout for the first answer.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_mins(5);

/// Starts the servers, and polls as a node of the file until it is answered. Returns the time until
/// the first answer, and the answers to unchanged polls.
pub async fn wait_for_first_answer(
    harness: &mut BenchHarness,
    nodes: &Path,
) -> anyhow::Result<(Duration, EchoAnswers)> {
    let entries = NodeEntry::read_file(nodes)?;
    // One node of each kind from the middle of the file, not the one that was created first.
    let some = |is_own| {
        let mut of_kind = entries.iter().filter(|entry| entry.uuid.is_none() == is_own);
        let count = of_kind.clone().count();
        of_kind.nth(count / 2)
    };
    let (own, eim) = (some(true), some(false));
    let authority = harness.authority()?;
    let started_at = Instant::now();
    harness.restart_servers().await?;
    let address = harness.address("southbound")?.parse()?;
    let dialer = Dialer::new(address, authority.certificate_pem())?;
    let channel = dialer.dial(0).await?;
    let mut first = None;
    let mut answers = EchoAnswers::default();
    if let Some(entry) = own {
        answers.own =
            retry_until_answered(started_at, async || poll_own(&channel, entry).await).await?;
        first.get_or_insert(started_at.elapsed());
        ensure!(!answers.own.facts_required, "the facts of a node differ from the seeded facts");
        // The server may have written something for the first poll.
        answers.own =
            retry_until_answered(started_at, async || poll_own(&channel, entry).await).await?;
    }
    if let Some(entry) = eim {
        answers.eim =
            retry_until_answered(started_at, async || poll_eim(&channel, entry).await).await?;
        first.get_or_insert(started_at.elapsed());
        answers.eim =
            retry_until_answered(started_at, async || poll_eim(&channel, entry).await).await?;
    }
    Ok((first.context("the fleet has no node")?, answers))
}

/// Repeats a call until it is answered.
async fn retry_until_answered<A>(
    started_at: Instant,
    call: impl AsyncFn() -> Result<A, Status>,
) -> anyhow::Result<A> {
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(status) if FIRST_ANSWER_TIMEOUT < started_at.elapsed() => return Err(status.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn poll_own(channel: &Channel, entry: &NodeEntry) -> Result<PollResponse, Status> {
    let mut request = Request::new(PollRequest {
        facts_digest: SEEDED_FACTS_DIGEST.to_vec(),
        ..PollRequest::default()
    });
    let headers = request.metadata_mut();
    headers.insert("authorization", entry.authorization.clone());
    let answer = AgentServiceClient::new(channel.clone()).poll(request).await?;
    Ok(answer.into_inner())
}

async fn poll_eim(
    channel: &Channel,
    entry: &NodeEntry,
) -> Result<PlatformUpdateStatusResponse, Status> {
    let mut request = Request::new(PlatformUpdateStatusRequest {
        host_guid: entry.uuid.clone().unwrap_or_default(),
        update_status: Some(UpdateStatus {
            status_type: StatusType::UpToDate.into(),
            ..UpdateStatus::default()
        }),
    });
    let headers = request.metadata_mut();
    headers.insert("authorization", entry.authorization.clone());
    let mut client = MaintmgrServiceClient::new(channel.clone());
    Ok(client.platform_update_status(request).await?.into_inner())
}
