//! What goes wrong on purpose, beside a fleet with which nothing is wrong: one thing after the other, each measured
//! without and with it in the same run.

mod figures;
mod frames;
mod phases;
mod returners;
mod strangers;

use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

pub use figures::{Found, table};
pub use returners::Returners;

use super::per_mille;
use super::plan::Order;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Polls that do not arrive, or whose answers do not.
    Loss,
    /// Polls that arrive twice at the same time.
    Duplication,
    /// Polls that arrive behind what the node says next.
    Reorder,
    /// Nodes whose clocks are hours or years wrong, which tell of an attempt in their own time.
    Skew,
    /// Connections that fall silent: before or after the handshake, or in the middle of a call.
    HalfOpen,
    /// Clients that ask and ask, and read a byte at a time or nothing at all.
    SlowReaders,
    /// Half of the fleet is away for a time, and comes back within a second.
    Return,
}

impl Fault {
    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether it happens to calls on their way.
    const fn is_on_the_way(self) -> bool {
        matches!(self, Self::Loss | Self::Duplication | Self::Reorder)
    }
}

/// Which faults there are, and how many.
#[derive(Clone, Debug, clap::Args)]
pub struct FaultArgs {
    /// What goes wrong on purpose, one after the other; each is measured without and then with it. A run fails if a
    /// call fails of a node with which nothing is wrong, or if a fault did not happen at all.
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// In how many of a hundred calls something goes wrong on their way (loss, duplication, reorder), in tenths, and
    /// how many of a hundred nodes of ours have a wrong clock (skew).
    #[arg(long, default_value_t = 1.0)]
    fault_share: f64,
    /// How long is measured without a fault, and again with it, in whole seconds.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    faults_for: Duration,
    /// Connections that fall silent, in four manners by turns.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(4..=20_000))]
    half_open: u32,
    /// Clients that do not read as they should, in two manners by turns.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    slow_readers: u32,
    /// How long half of the fleet is away.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    away: Duration,
}

impl FaultArgs {
    /// Fails if something was asked for that cannot be.
    pub fn check(&self, are_held: bool) -> anyhow::Result<()> {
        ensure!(
            (0.1..=50.0).contains(&self.fault_share),
            "--fault-share: from 0.1 to 50"
        );
        let second = Duration::from_secs(1);
        ensure!(second <= self.faults_for, "--faults-for: less than 1s");
        ensure!(second <= self.away, "--away: less than 1s");
        let on_the_way = self.faults.iter().find(|fault| fault.is_on_the_way());
        if let Some(fault) = on_the_way {
            ensure!(
                !are_held,
                "--faults {}: not with --held, because only short calls go astray",
                fault.name()
            );
        }
        Ok(())
    }

    /// Nodes that are registered besides, so that nobody else has their credentials.
    pub fn spare(&self) -> u32 {
        let each = self.faults.iter().map(|fault| self.strangers(*fault));
        each.max().unwrap_or(0)
    }

    /// How many strangers a fault takes.
    fn strangers(&self, fault: Fault) -> u32 {
        match fault {
            Fault::HalfOpen => self.half_open,
            Fault::SlowReaders => self.slow_readers,
            _ => 0,
        }
    }

    /// What lets calls go astray with a fault, and only with that.
    fn astray(&self, fault: Fault) -> Order {
        let share = per_mille(self.fault_share);
        let only = |one| if one == fault { share } else { 0 };
        Order::Astray {
            lose: only(Fault::Loss),
            duplicate: only(Fault::Duplication),
            late: only(Fault::Reorder),
        }
    }

    /// How many of so many nodes are hit: at least one, if there is any.
    fn some(&self, of: u32) -> u32 {
        let some = u64::from(of) * u64::from(per_mille(self.fault_share));
        u32::try_from(some.div_ceil(1_000)).unwrap_or(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> FaultArgs {
        FaultArgs {
            faults: vec![Fault::HalfOpen, Fault::Loss],
            fault_share: 1.0,
            faults_for: Duration::from_secs(30),
            half_open: 200,
            slow_readers: 300,
            away: Duration::from_secs(30),
        }
    }

    #[test]
    fn strangers_have_credentials_that_no_node_has() {
        let mut args = args();
        assert_eq!(args.spare(), 200, "nobody asked for slow readers");
        args.faults.push(Fault::SlowReaders);
        assert_eq!(args.spare(), 300, "one fault follows the other");
        args.faults.clear();
        assert_eq!(args.spare(), 0);
    }

    #[test]
    fn a_fault_on_the_way_comes_alone_and_not_to_calls_that_are_held() {
        let Order::Astray {
            lose,
            duplicate,
            late,
        } = args().astray(Fault::Reorder)
        else {
            panic!("calls are to go astray");
        };
        assert_eq!((lose, duplicate, late), (0, 0, 10));
        assert!(args().check(false).is_ok() && args().check(true).is_err());
    }

    #[test]
    fn a_share_of_a_small_fleet_is_one_node() {
        let args = args();
        assert_eq!((args.some(0), args.some(7), args.some(10_000)), (0, 1, 100));
    }

    #[test]
    fn faults_have_the_names_that_they_are_asked_for_by() {
        for fault in Fault::value_variants() {
            let told = serde_json::to_value(fault).expect("JSON");
            assert_eq!(told, fault.name());
        }
    }
}
