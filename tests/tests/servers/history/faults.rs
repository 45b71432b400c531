//! Faults while the nodes live: servers are killed, the database cannot be written for a while, and
//! the clock of a server jumps and comes back: by a year, or by a time at which nodes and operators
//! still call it.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_simulator::ground_truth::Span;
use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{Replicas, ShiftedServer};
use tokio_util::sync::CancellationToken;

use super::{POLLS_METRIC, PollCounts};

/// By how much the clock jumps. No node and no operator calls the server while it is a year ahead.
const CLOCK_SHIFTS: [TimeDelta; 4] =
    [TimeDelta::days(365), TimeDelta::days(-365), TimeDelta::days(20), TimeDelta::hours(-23)];

/// How long the clock stays shifted: the server tries to clean up every second.
const SHIFT_MILLIS: (u64, u64) = (2_500, 4_000);

/// How long the database stays read-only after every server has noticed it.
const READ_ONLY_MILLIS: (u64, u64) = (1_500, 3_000);

/// Connections of servers begin to refuse writes one after the other. After this time all do.
const READ_ONLY_MARGIN: TimeDelta = TimeDelta::seconds(1);

/// The faults of the servers.
#[derive(Debug, Default)]
pub struct InjectedFaults {
    kills: usize,
    clock_shifts: usize,
    /// Number of events that the server stored while its clock was shifted.
    shifted_events: u64,
    read_only_count: usize,
    /// When the database was read-only.
    pub read_only: Vec<Span>,
    /// The counters of the killed processes.
    pub answered: PollCounts,
}

impl InjectedFaults {
    /// Fails if too few faults happened to show anything.
    pub fn assert_sufficient(&self) {
        let Self { kills, clock_shifts, read_only_count, shifted_events, .. } = self;
        assert!(
            *kills > 1 && *clock_shifts > 0 && *read_only_count > 0,
            "too few faults: {kills} kills, {clock_shifts} shifts of a clock, {read_only_count} times read-only"
        );
        // In one of four shifts no node and no operator calls the server.
        assert!(
            *shifted_events > 0 || *clock_shifts < 5,
            "the server with the shifted clock stored no event in {clock_shifts} shifts"
        );
    }
}

/// Kills a server every few seconds and restarts it. The database becomes read-only after the first
/// kill, the clock is shifted after the second one, and then both at random. All servers run at the
/// end, with the right time.
pub async fn inject_faults(
    replicas: &mut Replicas,
    shifted: &ShiftedServer,
    mut rng: Rng,
    stop: CancellationToken,
) -> InjectedFaults {
    let mut faults = InjectedFaults::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return faults,
            () = tokio::time::sleep(draw(&mut rng, (1_500, 5_000))) => {}
        }
        kill_servers(replicas, &mut rng, &mut faults).await;
        if faults.kills == 1 || rng.happens(80) {
            let length = draw(&mut rng, READ_ONLY_MILLIS);
            let (from, until) = replicas.make_read_only(length).await;
            faults.read_only.push((from + READ_ONLY_MARGIN, until));
            faults.read_only_count += 1;
        }
        if faults.kills == 2 || rng.happens(80) {
            shifted.shift_clock(*rng.pick(&CLOCK_SHIFTS)).await;
            let stored = shifted.count_stored_events().await;
            tokio::time::sleep(draw(&mut rng, SHIFT_MILLIS)).await;
            faults.shifted_events += shifted.count_stored_events().await - stored;
            shifted.shift_clock(TimeDelta::zero()).await;
            faults.clock_shifts += 1;
        }
    }
}

fn draw(rng: &mut Rng, (least, most): (u64, u64)) -> Duration {
    Duration::from_millis(rng.between(least, most))
}

/// Kills one server, sometimes all, and starts them again.
async fn kill_servers(replicas: &mut Replicas, rng: &mut Rng, faults: &mut InjectedFaults) {
    let counted = replicas.metric_lines(POLLS_METRIC).await;
    let servers = replicas.servers();
    let at = usize::from(rng.happens(500)) % servers.len();
    let both = rng.happens(100);
    servers[at].kill();
    if both {
        let other = (at + 1) % servers.len();
        servers[other].kill();
    }
    faults.kills += 1;
    // All servers ran, and each has the same metrics.
    let share = counted.len() / servers.len();
    let each = servers.iter().zip(counted.chunks(share));
    for (_, counted) in each.filter(|(server, _)| !server.is_started()) {
        faults.answered.add(counted);
    }
    tokio::time::sleep(Duration::from_millis(rng.between(0, 800))).await;
    for server in servers.iter_mut().filter(|server| !server.is_started()) {
        server.start_and_wait().await;
    }
}
