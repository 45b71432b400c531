//! Messages between the benchmark and its drivers: one JSON object per line.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// The first message to a driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverPlan {
    /// Address of the server.
    pub address: SocketAddr,
    /// CA certificate of the server, in PEM.
    pub authority: String,
    /// File with the nodes of the driver, one per line ([`super::node_list`]).
    pub nodes_file: PathBuf,
    /// Number of the driver, from 0.
    pub driver_number: u32,
    /// Planned interval between two calls of a node, in milliseconds.
    pub interval_millis: u64,
    /// Number of shared connections.
    pub multiplexed: u32,
    /// Number of dedicated connections; the first nodes have them.
    pub dedicated_connections: u32,
    /// Number of connections of the drivers with lower numbers.
    pub connections_before: u32,
    /// Number of calls with changed content, per thousand.
    pub changes_per_mille: u16,
    /// Whether nodes use the interval that the server requests.
    pub follow_server_interval: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverCommand {
    /// Start to call at an instant.
    Begin {
        /// The instant, in milliseconds since 1970. Seconds are counted from it.
        at: i64,
        /// Period over which the first calls are spread, in milliseconds.
        within: u64,
    },
    /// Open the dedicated connections, and let their nodes use them.
    OpenDedicated,
    /// Let own nodes use long polls.
    AllowLongPolls {
        /// Maximum duration of a long poll, in milliseconds.
        millis: u32,
    },
    /// Send no more changes, and use no long polls.
    StopChanges,
    /// Send no calls.
    Pause,
    /// Continue as if no time had passed since the pause.
    Resume,
    /// Record when each own node receives another decision than it had at an instant.
    WatchDecisions {
        /// The instant, in milliseconds since 1970.
        since: i64,
    },
    /// Inject faults into calls, with rates per thousand calls. Long polls are not affected.
    InjectFaults {
        /// The request or its answer is lost.
        lose: u16,
        /// The request arrives twice at the same time.
        duplicate: u16,
        /// The request arrives after the next message of its node.
        late: u16,
    },
    /// Disconnect every other node, and close its dedicated connection.
    Disconnect,
    /// Bring all disconnected nodes back within a second.
    Reconnect {
        /// Start of that second, in milliseconds since 1970.
        at: i64,
    },
    /// Inject no more faults, and count returned nodes like all others.
    ClearFaults,
    /// Let own nodes report an attempt that they began and finished.
    Storm {
        /// Start of the first report, in milliseconds since 1970.
        at: i64,
        /// Period over which the reports are spread, in milliseconds.
        within_millis: u64,
        /// Whether the clocks of the nodes are wrong.
        wrong_clocks: bool,
        /// Number of nodes: the first own ones of the driver.
        count: u32,
        /// Target digest of the attempts.
        target: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverMessage {
    /// The requested connections are open.
    Opened,
    /// The counts of a second.
    Second {
        /// Number of the second, from 0.
        number: u32,
        /// Long polls in flight at the end of the second.
        open_long_polls: u32,
        counts: Box<SecondCounts>,
    },
}

/// Counts and latencies of calls.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CallCounts {
    /// Answered calls.
    pub ok: u64,
    /// Calls that were refused with a retry hint.
    pub refused: u64,
    pub failed: u64,
    /// Latencies of answered calls, from the planned instant on. Long polls do not count.
    pub latencies: Histogram,
}

impl CallCounts {
    /// Adds the counts of another driver or second.
    pub fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        self.refused += other.refused;
        self.failed += other.failed;
        self.latencies.merge(&other.latencies);
    }

    /// Whether a call failed or was refused.
    pub const fn has_failures(&self) -> bool {
        0 < self.refused + self.failed
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedFaults {
    /// The request or its answer was lost. Such a call is not counted elsewhere.
    pub lost: u64,
    /// The request arrived twice. Such a call is also counted elsewhere, without its latency.
    pub duplicated: u64,
    /// The request arrived after its node gave up the call. Such a call is counted elsewhere only
    /// if it fails.
    pub late: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SecondCounts {
    /// Calls of nodes that have not been disconnected.
    pub calls: CallCounts,
    /// Calls of nodes that came back.
    pub returned: CallCounts,
    /// Calls with injected faults.
    pub injected: InjectedFaults,
    /// Nodes that disconnected.
    pub disconnected: u64,
    /// Nodes that received their first answer after coming back.
    pub reconnected: u64,
    /// Answered calls with changed content.
    pub changes: u64,
    /// Sum of the requested intervals until the next poll, in milliseconds.
    pub next_poll_millis_sum: u64,
    /// Number of answers with a requested interval.
    pub next_poll_count: u64,
    /// Time from a change until a node had its new decision.
    pub decision_latencies: Histogram,
    /// Latencies of reports, from the planned instant until all events were acknowledged.
    pub report_latencies: Histogram,
}

impl SecondCounts {
    /// Adds the counts of another driver or second.
    pub fn merge(&mut self, other: &Self) {
        self.calls.merge(&other.calls);
        self.returned.merge(&other.returned);
        self.injected.lost += other.injected.lost;
        self.injected.duplicated += other.injected.duplicated;
        self.injected.late += other.injected.late;
        self.disconnected += other.disconnected;
        self.reconnected += other.reconnected;
        self.changes += other.changes;
        self.next_poll_millis_sum += other.next_poll_millis_sum;
        self.next_poll_count += other.next_poll_count;
        self.decision_latencies.merge(&other.decision_latencies);
        self.report_latencies.merge(&other.report_latencies);
    }
}
