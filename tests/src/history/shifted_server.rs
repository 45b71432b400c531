//! A server with a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_simulator::connection::{ReportServer, connect_lazily};
use evenkeel_test_support::{RestClient, ServerProcess};

use super::replicas::{Replicas, read_metric_lines, wait_for_readiness};
use super::shifted_clock::ShiftedClock;

/// Number of the server, which distinguishes its files from those of the replicas.
const NUMBER: usize = 100;

/// Nodes and operators do not call the server while its clock is further ahead: it refuses their credentials and
/// tokens, which have expired by its clock.
const MAX_LEAD: TimeDelta = TimeDelta::days(20);

/// How long calls may be under way after the server is closed: nodes send late requests within this time.
const CALLS_UNDER_WAY: Duration = Duration::from_secs(3);

/// Counts the events of runs that a server stored.
const STORED_EVENTS_METRIC: &str = "evenkeel_run_events_total";

/// A server on the database of replicas. A test shifts its clock with libfaketime.
///
/// Also while its clock is wrong, it gets a share of the reports of nodes with our own agent and of the requests of
/// operators. It must store them with the time of the database, or not at all: it may refuse a token that was issued
/// in its future, and the caller then tries another server. It gets no polls and no reports of EIM's agents: their
/// answers contain windows that are open by its clock.
#[derive(Debug)]
pub struct ShiftedServer {
    server: ServerProcess,
    clock: ShiftedClock,
    is_open: Arc<AtomicBool>,
    /// The token for its metrics.
    token: String,
}

impl ShiftedServer {
    /// Starts the server with the right time. `settings` is appended to its configuration.
    ///
    /// # Panics
    /// libfaketime is not installed, or the server does not start.
    pub async fn start(replicas: &Replicas, settings: &str) -> Self {
        let clock = ShiftedClock::new(replicas.folder().join("clock-shift"), TimeDelta::zero());
        let mut server = clock.apply(replicas.new_server(NUMBER, settings).await);
        server.start_and_wait().await;
        let is_open = Arc::new(AtomicBool::new(true));
        Self { server, clock, is_open, token: replicas.operator_token() }
    }

    /// The server as nodes call it.
    ///
    /// # Panics
    /// Its address is invalid.
    pub fn report_server(&self, replicas: &Replicas) -> ReportServer {
        let address = self.server.address("southbound");
        let channel = connect_lazily(&address, &replicas.ca_certificate());
        ReportServer { channel: channel.expect("a connection"), is_open: Arc::clone(&self.is_open) }
    }

    /// A session of an operator with the server, and whether the server may be called now.
    pub fn operator_session(&self) -> (RestClient, Arc<AtomicBool>) {
        let session = RestClient::connect(&self.server.address("rest"), "default", &self.token);
        (session, Arc::clone(&self.is_open))
    }

    /// Shifts the clock to this time after the right one, and waits until the server says that it is not ready, or
    /// with the right time that it is ready.
    ///
    /// # Panics
    /// The server does not notice it in time.
    pub async fn shift_clock(&self, by: TimeDelta) {
        if by > MAX_LEAD && self.is_open.swap(false, Ordering::SeqCst) {
            tokio::time::sleep(CALLS_UNDER_WAY).await;
        }
        self.clock.shift(by);
        wait_for_readiness(&self.server, by.is_zero()).await;
        self.is_open.store(by <= MAX_LEAD, Ordering::SeqCst);
    }

    /// The number of events of runs that it has stored.
    ///
    /// # Panics
    /// The server does not answer.
    pub async fn count_stored_events(&self) -> u64 {
        let lines = read_metric_lines(&self.server, &self.token, STORED_EVENTS_METRIC).await;
        let counts = lines.iter().filter_map(|line| line.rsplit_once(' '));
        counts.map(|(_, count)| count.parse::<u64>().expect("a whole number")).sum()
    }

    /// Its log.
    pub fn log(&self) -> String {
        format!("-- server with a shifted clock\n{}", self.server.log())
    }
}
