//! Fault injection. The faults follow one another; each is measured without and with it in the same
//! run, on the nodes that it does not affect.

mod figures;
mod frames;
mod phases;
mod returning_nodes;
mod unknown_clients;

use std::time::Duration;

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;

pub use figures::{FaultResult, render_table};
pub use returning_nodes::ReturningNodes;

use super::driver_protocol::DriverCommand;
use super::per_mille;

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Polls or their answers are lost.
    Loss,
    /// Polls arrive twice at the same time.
    Duplication,
    /// Polls arrive after the next message of their node.
    Reorder,
    /// Nodes whose clocks are hours or years wrong report an attempt with their own times.
    Skew,
    /// Connections fall silent: before or after the handshake, or in the middle of a call.
    HalfOpen,
    /// Clients poll continuously, and read one byte at a time or nothing.
    SlowReaders,
    /// Half of the fleet disconnects for a time, and comes back within a second.
    Return,
}

impl Fault {
    /// The name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether the fault is injected into calls.
    const fn is_call_fault(self) -> bool {
        matches!(self, Self::Loss | Self::Duplication | Self::Reorder)
    }
}

/// Options of fault injection.
#[derive(Clone, Debug, clap::Args)]
pub struct FaultArgs {
    /// Faults to inject, one after the other. Each is measured without and then with the fault. The
    /// run fails if a call of an unaffected node fails, or if a fault did not happen.
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Percentage of calls to disturb (loss, duplication, reorder), and of own nodes with a wrong
    /// clock (skew), in steps of 0.1.
    #[arg(long, default_value_t = 1.0)]
    fault_share: f64,
    /// How long to measure without a fault, and again with it, in whole seconds.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    fault_duration: Duration,
    /// Number of connections that fall silent, distributed over four behaviours.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(4..=20_000))]
    half_open: u32,
    /// Number of clients that do not read properly, distributed over two behaviours.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    slow_readers: u32,
    /// How long half of the fleet is disconnected.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    away: Duration,
}

impl FaultArgs {
    /// Checks the options.
    pub fn validate(&self, has_long_polls: bool) -> anyhow::Result<()> {
        ensure!((0.1..=50.0).contains(&self.fault_share), "--fault-share must be from 0.1 to 50");
        let second = Duration::from_secs(1);
        ensure!(second <= self.fault_duration, "--fault-duration must be at least 1s");
        ensure!(second <= self.away, "--away must be at least 1s");
        let on_the_way = self.faults.iter().find(|fault| fault.is_call_fault());
        if let Some(fault) = on_the_way {
            ensure!(
                !has_long_polls,
                "--faults {} cannot be combined with --long-poll: call faults affect only short polls",
                fault.name()
            );
        }
        Ok(())
    }

    /// Number of additional registered nodes, whose credentials no other client uses.
    pub fn spare_nodes(&self) -> u32 {
        let each = self.faults.iter().map(|fault| self.unknown_client_count(*fault));
        each.max().unwrap_or(0)
    }

    /// Number of unknown clients of a fault.
    fn unknown_client_count(&self, fault: Fault) -> u32 {
        match fault {
            Fault::HalfOpen => self.half_open,
            Fault::SlowReaders => self.slow_readers,
            _ => 0,
        }
    }

    /// The command that injects a call fault, and only this one.
    fn call_fault_command(&self, fault: Fault) -> DriverCommand {
        let share = per_mille(self.fault_share);
        let only = |one| if one == fault { share } else { 0 };
        DriverCommand::InjectFaults {
            lose: only(Fault::Loss),
            duplicate: only(Fault::Duplication),
            late: only(Fault::Reorder),
        }
    }

    /// The number of affected nodes out of `of`: at least one, unless there is none.
    fn affected_nodes(&self, of: u32) -> u32 {
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
            fault_duration: Duration::from_secs(30),
            half_open: 200,
            slow_readers: 300,
            away: Duration::from_secs(30),
        }
    }

    #[test]
    fn unknown_clients_have_credentials_that_no_node_uses() {
        let mut args = args();
        assert_eq!(args.spare_nodes(), 200, "slow readers are not requested");
        args.faults.push(Fault::SlowReaders);
        assert_eq!(args.spare_nodes(), 300, "the faults follow one another");
        args.faults.clear();
        assert_eq!(args.spare_nodes(), 0);
    }

    #[test]
    fn only_the_requested_call_fault_is_injected_and_not_with_long_polls() {
        let DriverCommand::InjectFaults { lose, duplicate, late } =
            args().call_fault_command(Fault::Reorder)
        else {
            panic!("call faults are injected");
        };
        assert_eq!((lose, duplicate, late), (0, 0, 10));
        assert!(args().validate(false).is_ok() && args().validate(true).is_err());
    }

    #[test]
    fn a_share_of_a_small_fleet_is_one_node() {
        let args = args();
        assert_eq!(
            (args.affected_nodes(0), args.affected_nodes(7), args.affected_nodes(10_000)),
            (0, 1, 100)
        );
    }

    #[test]
    fn a_fault_has_the_same_name_in_json_and_on_the_command_line() {
        for fault in Fault::value_variants() {
            let json = serde_json::to_value(fault).expect("JSON");
            assert_eq!(json, fault.name());
        }
    }
}
