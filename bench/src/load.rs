//! Many nodes that poll one after another over a few connections, as fast as they are answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use futures_util::future::join_all;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// A node that polls.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value of its header `authorization`.
    pub authorization: MetadataValue<Ascii>,
    /// What it says.
    pub request: PollRequest,
}

/// How to poll.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Polls under way at once on each.
    pub at_once: usize,
    /// For how long.
    pub length: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How long each answered poll took, ascending.
    pub latencies: Vec<Duration>,
    /// Polls that failed.
    pub errors: u64,
    /// How long it went on.
    pub elapsed: Duration,
}

/// Opens connections over TLS, each with its handshake done.
pub async fn connect(address: &str, ca: &str, count: usize) -> anyhow::Result<Vec<Channel>> {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?;
    let opened = join_all((0..count).map(|_| endpoint.connect())).await;
    opened
        .into_iter()
        .collect::<Result<_, _>>()
        .context("connect to the server")
}

/// Polls until the time is over. Each poll is that of the next node.
pub async fn run(channels: &[Channel], nodes: &Arc<Vec<Node>>, shape: Shape) -> Outcome {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let end = started + shape.length;
    let mut tasks = tokio::task::JoinSet::new();
    for channel in channels {
        for _ in 0..shape.at_once {
            let client = AgentServiceClient::new(channel.clone());
            tasks.spawn(poll_until(
                end,
                client,
                Arc::clone(nodes),
                Arc::clone(&next),
            ));
        }
    }
    let mut outcome = Outcome::default();
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok((latencies, errors)) => {
                outcome.latencies.extend(latencies);
                outcome.errors += errors;
            }
            Err(_) => outcome.errors += 1,
        }
    }
    outcome.elapsed = started.elapsed();
    outcome.latencies.sort_unstable();
    outcome
}

async fn poll_until(
    end: Instant,
    mut client: AgentServiceClient<Channel>,
    nodes: Arc<Vec<Node>>,
    next: Arc<AtomicUsize>,
) -> (Vec<Duration>, u64) {
    let (mut latencies, mut errors) = (Vec::new(), 0);
    while Instant::now() < end {
        let node = &nodes[next.fetch_add(1, Ordering::Relaxed) % nodes.len()];
        let mut request = Request::new(node.request.clone());
        request
            .metadata_mut()
            .insert("authorization", node.authorization.clone());
        let asked = Instant::now();
        match client.poll(request).await {
            Ok(answer) if !answer.get_ref().want_facts => latencies.push(asked.elapsed()),
            Ok(_) | Err(_) => errors += 1,
        }
    }
    (latencies, errors)
}

impl Outcome {
    /// The latency that this share of the polls did not exceed.
    pub fn percentile(&self, share: f64) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "an index into a list that fits into memory"
        )]
        let index = ((self.latencies.len() as f64 * share) as usize)
            .min(self.latencies.len().saturating_sub(1));
        self.latencies.get(index).copied().unwrap_or_default()
    }
}
