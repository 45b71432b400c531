//! Windows of repeated schedules: examples, and comparisons with two independent implementations.
//!
//! Random inputs are made from a seed that is printed; `EVENKEEL_FUZZ_SEED=<number>` reproduces them.

mod calendar;
mod examples;
mod oracle;
mod random_cron;
mod zones;

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, RepeatedScheduleId};
use evenkeel_domain::schedule::{
    Cron, RepeatedSchedule, RepeatedSpec, ScheduleFilter, ScheduleStatus, ScheduleTarget,
    WindowQuery, Zone,
};
use evenkeel_domain::text::Name;

/// A schedule for updates of a host.
fn schedule(fields: [&str; 5], zone: &str, duration: TimeDelta) -> RepeatedSchedule {
    let [minutes, hours, day_month, month, day_week] = fields;
    RepeatedSchedule {
        id: RepeatedScheduleId::nth(1),
        spec: RepeatedSpec {
            name: Name::default(),
            status: ScheduleStatus::OsUpdate,
            duration,
            cron: Cron::parse(minutes, hours, day_month, month, day_week).expect("a cron"),
            zone: Zone::parse(zone).expect("a zone"),
            target: Some(ScheduleTarget::Host(HostId::nth(1))),
        },
        created_at: DateTime::UNIX_EPOCH,
        updated_at: DateTime::UNIX_EPOCH,
    }
}

fn ahead(now: Time, until: Time, limit: usize) -> WindowQuery {
    WindowQuery {
        now,
        until,
        limit,
        max_window: TimeDelta::hours(24),
        filter: ScheduleFilter::OsUpdate,
    }
}

/// The seed of the random generator.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test has no configuration to load, and prints how to reproduce a failure"
)]
fn seed() -> u64 {
    let configured = std::env::var("EVENKEEL_FUZZ_SEED").ok();
    let seed = configured
        .map_or_else(|| rand::random::<u64>() >> 16, |seed| seed.parse().expect("a number"));
    println!("EVENKEEL_FUZZ_SEED={seed}");
    seed
}
