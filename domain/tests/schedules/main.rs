//! Windows of repeated schedules: stories, and two judges that count in their own way.
//!
//! What is made at random is made from a number that is shown; `EVENKEEL_FUZZ_SEED=<number>` makes it again.

mod calendar;
mod oracle;
mod random;
mod stories;
mod zones;

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, RepeatedScheduleId};
use evenkeel_domain::schedule::{
    Ahead, Cron, Opens, RepeatedSchedule, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone,
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

fn ahead(now: Time, until: Time, limit: usize) -> Ahead {
    Ahead {
        now,
        until,
        limit,
        max_window: TimeDelta::hours(24),
        opens: Opens::OsUpdate,
    }
}

/// Where randomness begins.
#[expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test has no configuration to load, and says how to do it again"
)]
fn seed() -> u64 {
    let given = std::env::var("EVENKEEL_FUZZ_SEED").ok();
    let seed = given.map_or_else(
        || rand::random::<u64>() >> 16,
        |seed| seed.parse().expect("a number"),
    );
    println!("EVENKEEL_FUZZ_SEED={seed}");
    seed
}
