//! The first answer of a server that was just started, and what it answers when it has nothing new to say.

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
use super::drive::FILLED;
use super::roster::Card;
use crate::echo::Answers;
use crate::station::Station;

/// How long the first answer is waited for.
const PATIENCE: Duration = Duration::from_mins(5);

/// Starts the server, and asks it as one of the nodes of a file until it answers. Returns after how long it did, and what
/// it answers to nodes that say nothing new.
pub async fn answer(station: &mut Station, nodes: &Path) -> anyhow::Result<(Duration, Answers)> {
    let cards = Card::read(nodes)?;
    // Some node of each kind, and not the one that was made first.
    let some = |is_own| {
        let mut of_kind = cards.iter().filter(|card| card.uuid.is_none() == is_own);
        let count = of_kind.clone().count();
        of_kind.nth(count / 2)
    };
    let (own, eim) = (some(true), some(false));
    let authority = station.authority()?;
    let begun = Instant::now();
    station.resume().await?;
    let address = station.address("southbound")?.parse()?;
    let dialer = Dialer::new(address, authority.certificate_pem())?;
    let channel = dialer.dial(0).await?;
    let mut first = None;
    let mut answers = Answers::default();
    if let Some(card) = own {
        answers.own = again(begun, async || asked_own(&channel, card).await).await?;
        first.get_or_insert(begun.elapsed());
        ensure!(
            !answers.own.want_facts,
            "the facts of a node are not those that were filled in"
        );
        // The first answer may have come with something to write.
        answers.own = again(begun, async || asked_own(&channel, card).await).await?;
    }
    if let Some(card) = eim {
        answers.eim = again(begun, async || asked_eim(&channel, card).await).await?;
        first.get_or_insert(begun.elapsed());
        answers.eim = again(begun, async || asked_eim(&channel, card).await).await?;
    }
    Ok((first.context("there is no node")?, answers))
}

/// Asks until there is an answer.
async fn again<A>(begun: Instant, ask: impl AsyncFn() -> Result<A, Status>) -> anyhow::Result<A> {
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(status) if PATIENCE < begun.elapsed() => return Err(status.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn asked_own(channel: &Channel, card: &Card) -> Result<PollResponse, Status> {
    let mut request = Request::new(PollRequest {
        facts_digest: FILLED.to_vec(),
        ..PollRequest::default()
    });
    let headers = request.metadata_mut();
    headers.insert("authorization", card.authorization.clone());
    let answer = AgentServiceClient::new(channel.clone())
        .poll(request)
        .await?;
    Ok(answer.into_inner())
}

async fn asked_eim(channel: &Channel, card: &Card) -> Result<PlatformUpdateStatusResponse, Status> {
    let mut request = Request::new(PlatformUpdateStatusRequest {
        host_guid: card.uuid.clone().unwrap_or_default(),
        update_status: Some(UpdateStatus {
            status_type: StatusType::UpToDate.into(),
            ..UpdateStatus::default()
        }),
    });
    let headers = request.metadata_mut();
    headers.insert("authorization", card.authorization.clone());
    let mut client = MaintmgrServiceClient::new(channel.clone());
    Ok(client.platform_update_status(request).await?.into_inner())
}
