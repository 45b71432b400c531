//! Closed-loop load: nodes poll over a few connections, each poll as soon as the previous one is
//! answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_simulator::connection::{authorize, tls_endpoint};
use futures_util::future::join_all;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use crate::histogram::Histogram;

#[derive(Clone, Debug)]
pub struct PollingNode {
    /// The value of the `authorization` header.
    pub authorization: MetadataValue<Ascii>,
    pub request: PollRequest,
}

/// Parameters of the load.
#[derive(Clone, Copy, Debug)]
pub struct LoadShape {
    /// Concurrent polls per connection.
    pub at_once: usize,
    pub length: Duration,
}

/// Result of the load.
#[derive(Debug, Default)]
pub struct LoadOutcome {
    /// Latencies of answered polls.
    pub latencies: Histogram,
    /// Failed polls.
    pub errors: u64,
    /// Actual duration.
    pub elapsed: Duration,
}

/// Opens connections over TLS, including their handshakes.
pub async fn open_channels(address: &str, ca: &str, count: usize) -> anyhow::Result<Vec<Channel>> {
    let endpoint = tls_endpoint(address, ca)?;
    let opened = join_all((0..count).map(|_| endpoint.connect())).await;
    opened.into_iter().collect::<Result<_, _>>().context("cannot connect to the server")
}

/// Polls until the duration has passed. The nodes take turns.
pub async fn run(
    channels: &[Channel],
    nodes: &Arc<Vec<PollingNode>>,
    shape: LoadShape,
) -> LoadOutcome {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let end = started + shape.length;
    let mut tasks = tokio::task::JoinSet::new();
    for channel in channels {
        for _ in 0..shape.at_once {
            let client = AgentServiceClient::new(channel.clone());
            tasks.spawn(poll_until(end, client, Arc::clone(nodes), Arc::clone(&next)));
        }
    }
    let mut outcome = LoadOutcome::default();
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok((latencies, errors)) => {
                outcome.latencies.merge(&latencies);
                outcome.errors += errors;
            }
            Err(_) => outcome.errors += 1,
        }
    }
    outcome.elapsed = started.elapsed();
    outcome
}

async fn poll_until(
    end: Instant,
    mut client: AgentServiceClient<Channel>,
    nodes: Arc<Vec<PollingNode>>,
    next: Arc<AtomicUsize>,
) -> (Histogram, u64) {
    let (mut latencies, mut errors) = (Histogram::default(), 0);
    while Instant::now() < end {
        let node = &nodes[next.fetch_add(1, Ordering::Relaxed) % nodes.len()];
        let request = authorize(node.request.clone(), &node.authorization);
        let sent_at = Instant::now();
        match client.poll(request).await {
            Ok(answer) if !answer.get_ref().facts_required => latencies.record(sent_at.elapsed()),
            Ok(_) | Err(_) => errors += 1,
        }
    }
    (latencies, errors)
}

impl LoadOutcome {
    /// The latency that this share of polls did not exceed.
    pub fn percentile(&self, share: f64) -> Duration {
        self.latencies.percentile(share).unwrap_or_default()
    }
}
