//! The first answer of a server after its start, and its answers to unchanged polls.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use evenkeel_simulator::polling::{CallOutcome, PollPace};
use evenkeel_simulator::rng::Rng;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::call::send_directly;
use super::connect::Dialer;
use super::node_list::NodeEntry;
use crate::bench_harness::BenchHarness;
use crate::echo::EchoAnswers;

const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_mins(5);

/// Polls without changes.
const UNCHANGED: PollPace = PollPace {
    interval: FIRST_ANSWER_TIMEOUT,
    changes_per_mille: 0,
    follow_server_interval: false,
    max_long_poll_millis: 0,
};

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
    let nodes = [some(true), some(false)];
    let authority = harness.authority()?;
    let started_at = Instant::now();
    harness.restart_servers().await?;
    let address = harness.address("southbound")?.parse()?;
    let dialer = Dialer::new(address, authority.certificate_pem())?;
    let channel = dialer.dial(0).await?;
    let mut first = None;
    let mut answers = EchoAnswers::default();
    for entry in nodes.into_iter().flatten() {
        // The server may write something for the first poll.
        poll_until_answered(started_at, &channel, entry).await?;
        first.get_or_insert(started_at.elapsed());
        match poll_until_answered(started_at, &channel, entry).await? {
            CallOutcome::Own(answer) => answers.own = *answer,
            CallOutcome::Eim(answer) => answers.eim = *answer,
            CallOutcome::Refused(_) | CallOutcome::Failed => {}
        }
    }
    ensure!(!answers.own.facts_required, "the facts of a node differ from the seeded facts");
    Ok((first.context("the fleet has no node")?, answers))
}

/// Repeats a poll until it is answered.
async fn poll_until_answered(
    started_at: Instant,
    channel: &Channel,
    entry: &NodeEntry,
) -> anyhow::Result<CallOutcome> {
    loop {
        let mut node = entry.create_node(started_at);
        let poll = node.prepare_poll(&UNCHANGED, &mut Rng::new(0, 0));
        let call = send_directly(channel.clone(), Some(&entry.authorization), poll.payload);
        match call.await {
            Ok(answer) => return Ok(answer),
            Err(status) if FIRST_ANSWER_TIMEOUT < started_at.elapsed() => return Err(status.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
