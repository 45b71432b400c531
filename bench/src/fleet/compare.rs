//! What a poll without news costs beside a bare echo. The processor of a machine that others use as well is now faster and
//! now slower, within seconds: so both take turns, some seconds each.
//! What the servers do every now and then, such as writing when nodes were heard, counts only if it falls into a turn.

use std::time::Duration;

use evenkeel_auth::CertificateAuthority;

use super::drivers::{Drivers, Slice};
use super::plan::{Calls, Order, Plan};
use crate::children::Measured;
use crate::echo::{self, Answers};
use crate::measure::{Meter, as_f64};
use crate::report::{EchoFigures, each, millis, tidy};
use crate::station::Station;

/// How long each has its turn.
const TURN: Duration = Duration::from_secs(5);

/// How often each has its turn at least and at most.
const TURNS: (u32, u32) = (1, 6);

/// How often each has its turn if something is measured for so long.
pub fn turns(length: Duration) -> u32 {
    let turns = length.as_secs() / TURN.as_secs();
    u32::try_from(turns).map_or(TURNS.1, |turns| turns.clamp(TURNS.0, TURNS.1))
}

/// The echo, one for each server, and drivers of the same nodes over as many connections.
pub struct Echo {
    processes: Vec<Measured>,
    drivers: Drivers,
}

/// What some turns came to.
#[derive(Debug, Default)]
struct Tally {
    calls: Calls,
    spent: Duration,
    seconds: f64,
}

impl Tally {
    fn add(&mut self, slice: &Slice) {
        self.calls.merge(&slice.all.calls);
        self.spent += slice.spent(0);
        self.seconds += slice.length();
    }

    /// Microseconds of processor time for each answered call.
    fn each(&self) -> f64 {
        each(
            self.spent,
            usize::try_from(self.calls.ok.max(1)).unwrap_or(usize::MAX),
        )
    }
}

/// What was found.
pub struct Compared {
    /// Microseconds of processor time of the servers for a poll without news.
    pub quiet: f64,
    /// The echo.
    pub echo: EchoFigures,
}

impl Echo {
    /// Starts an echo for each server of a station. `plans` makes the plans of the drivers for their addresses.
    pub async fn start(
        station: &Station,
        (ca, answers): (&CertificateAuthority, &Answers),
        servers: u16,
        plans: impl FnOnce(&[&str]) -> anyhow::Result<Vec<Plan>>,
    ) -> anyhow::Result<Self> {
        let (mut processes, mut addresses) = (Vec::new(), Vec::new());
        for number in 0..servers {
            let (echo, address) = echo::start(station.folder(), number, ca, answers).await?;
            processes.push(echo);
            addresses.push(address);
        }
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut drivers = Drivers::start(&plans(&addresses)?).await?;
        drivers.keep().await?;
        Ok(Self { processes, drivers })
    }

    /// Every node calls it once.
    pub async fn warm_up(&mut self, interval: Duration, round: Duration) -> anyhow::Result<()> {
        self.drivers.begin(interval).await?;
        self.drivers.listen(round).await?;
        self.drivers.order(&Order::Pause).await
    }

    /// Lets the servers of a station, whose nodes are paused, and the echo have so many turns; then all nodes are paused.
    pub async fn compare(
        mut self,
        station: &Station,
        drivers: &mut Drivers,
        turns: u32,
    ) -> anyhow::Result<Compared> {
        let (mut ours, mut bare) = (Tally::default(), Tally::default());
        let pids: Vec<_> = self.processes.iter().map(Measured::pid).collect();
        for _ in 0..turns {
            ours.add(&turn(drivers, || vec![station.meters().0]).await?);
            let meter = || vec![Meter::start(pids.clone())];
            bare.add(&turn(&mut self.drivers, meter).await?);
        }
        let latency = |share| bare.calls.latencies.percentile(share).map_or(0.0, millis);
        let echo = EchoFigures {
            polls_per_second: tidy(as_f64(bare.calls.ok) / bare.seconds),
            p50_ms: latency(0.5),
            p99_ms: latency(0.99),
            errors: bare.calls.failed + bare.calls.refused,
            cpu_us_per_poll_server: bare.each(),
            rss_mib_server: tidy(Meter::start(pids).rss_mib()),
        };
        Ok(Compared {
            quiet: ours.each(),
            echo,
        })
    }
}

/// Lets paused nodes call for one turn.
async fn turn(drivers: &mut Drivers, begin: impl FnOnce() -> Vec<Meter>) -> anyhow::Result<Slice> {
    drivers.order(&Order::Resume).await?;
    let slice = drivers.measure(TURN, begin).await?;
    drivers.order(&Order::Pause).await?;
    Ok(slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_for_longer_has_more_turns_up_to_a_limit() {
        let of = |seconds| turns(Duration::from_secs(seconds));
        assert_eq!([of(1), of(12), of(30), of(3_600)], [1, 2, 6, 6]);
    }
}
