//! Clients that overload the server: expensive filters, requests that the client drops, silent
//! connections, and a list that is read slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use reqwest::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Clients that request a list with the most expensive filter, each as soon as it has an answer.
const FILTER_CLIENTS: usize = 30;

/// Labels of the most expensive filter that the server accepts. Its cost is 100.
const FILTER_LABELS: usize = 20;

/// Clients that each send a request per second and give it up.
const IMPATIENT_CLIENTS: usize = 4;
const GIVE_UP_AFTER: Duration = Duration::from_millis(300);

/// Connections to the listener for nodes that send nothing.
const SILENT_CONNECTIONS: usize = 60;

/// Bytes of a list that the slow reader reads per second.
const SLOW_BYTES_PER_SECOND: usize = 1_024;

/// Pause after a connection has failed.
const RETRY_DELAY: Duration = Duration::from_millis(100);

const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// Users who may read one project, and the addresses of the server. One user would be stopped by the
/// limits of a user; several show the limits of their project.
pub struct Disturber {
    pub rest: String,
    pub southbound: String,
    /// At least one token, each of another user.
    pub tokens: Vec<String>,
}

/// One of the users.
#[derive(Clone)]
struct DisturbingUser {
    rest: String,
    token: String,
}

/// Answers that the clients got.
#[derive(Debug, Default)]
pub struct DisturbanceCounts {
    /// Answered requests with the most expensive filter.
    pub answered: AtomicU64,
    /// Requests that were refused because of the load.
    pub refused: AtomicU64,
    /// Requests that the client dropped.
    pub dropped: AtomicU64,
}

/// The running clients. Dropping it ends them.
#[derive(Debug)]
pub struct Disturbance {
    _clients: JoinSet<()>,
    pub counts: Arc<DisturbanceCounts>,
}

impl Disturber {
    /// Checks that the server accepts the filter.
    pub async fn check_filter(&self) -> anyhow::Result<()> {
        let http = reqwest::Client::builder().no_proxy().timeout(REQUEST_TIMEOUT).build()?;
        let response = self.user(0).filtered_list(&http).send().await?;
        let status = response.status();
        ensure!(status.is_success(), "the filter: {status} {}", response.text().await?);
        Ok(())
    }

    /// Starts all clients.
    pub fn start(&self) -> anyhow::Result<Disturbance> {
        let http = reqwest::Client::builder().no_proxy().timeout(REQUEST_TIMEOUT).build()?;
        let (mut clients, counts) = (JoinSet::new(), Arc::<DisturbanceCounts>::default());
        for number in 0..FILTER_CLIENTS {
            let user = self.user(number);
            clients.spawn(user.request_filtered_lists(http.clone(), Arc::clone(&counts)));
        }
        for number in 0..IMPATIENT_CLIENTS {
            let user = self.user(number);
            clients.spawn(user.give_requests_up(http.clone(), Arc::clone(&counts)));
        }
        for _ in 0..SILENT_CONNECTIONS {
            clients.spawn(keep_silent(self.southbound.clone()));
        }
        clients.spawn(self.user(0).read_slowly());
        Ok(Disturbance { _clients: clients, counts })
    }

    /// The user of a client with this number.
    fn user(&self, number: usize) -> DisturbingUser {
        let token = self.tokens[number % self.tokens.len()].clone();
        DisturbingUser { rest: self.rest.clone(), token }
    }
}

impl DisturbingUser {
    fn filtered_list(&self, http: &reqwest::Client) -> reqwest::RequestBuilder {
        let labels =
            (0..FILTER_LABELS).map(|n| format!("metadata.k{n:02} = \"*a{n}*b*c*d*e*f*g\""));
        let filter = labels.collect::<Vec<_>>().join(" OR ");
        let url = format!("http://{}/v1/projects/default/compute/hosts", self.rest);
        let request = http.get(url).bearer_auth(&self.token);
        request.query(&[("pageSize", "1"), ("filter", filter.as_str())])
    }

    async fn request_filtered_lists(self, http: reqwest::Client, counts: Arc<DisturbanceCounts>) {
        loop {
            match self.filtered_list(&http).send().await {
                Ok(response) if response.status().is_success() => {
                    counts.answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(response) if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                }
                Ok(_) | Err(_) => sleep(RETRY_DELAY).await,
            }
        }
    }

    async fn give_requests_up(self, http: reqwest::Client, counts: Arc<DisturbanceCounts>) {
        loop {
            // Dropping the request closes its connection.
            if timeout(GIVE_UP_AFTER, self.filtered_list(&http).send()).await.is_err() {
                counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
            sleep(Duration::from_secs(1).saturating_sub(GIVE_UP_AFTER)).await;
        }
    }

    async fn read_slowly(self) {
        loop {
            // An error ends one list; the next one begins.
            let _ = self.read_list_slowly().await;
            sleep(RETRY_DELAY).await;
        }
    }

    async fn read_list_slowly(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(&self.rest).await?;
        let request = format!(
            "GET /v1/projects/default/compute/hosts HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
            self.rest, self.token
        );
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = [0; SLOW_BYTES_PER_SECOND];
        while stream.read(&mut buffer).await? > 0 {
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }
}

/// Keeps a connection open that sends nothing, and opens it again when the server closes it.
async fn keep_silent(southbound: String) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(&southbound).await {
            // Returns when the server closes the connection.
            let _ = stream.read(&mut [0]).await;
        }
        sleep(RETRY_DELAY).await;
    }
}
