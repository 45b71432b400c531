//! Time zones: converts between instants and local times.

use std::fmt;

use chrono::{Datelike, LocalResult, NaiveDateTime, TimeZone};
use chrono_tz::{GapInfo, Tz};

use crate::Time;
use crate::invalid::Invalid;
use crate::text::cut;

/// A time zone of the IANA database, such as `Europe/Berlin`; UTC by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Zone(Tz);

impl Default for Zone {
    fn default() -> Self {
        Self::UTC
    }
}

impl Zone {
    /// The zone that EIM agents use.
    pub const UTC: Self = Self(Tz::UTC);

    /// Parses a name; case-sensitive, and the empty text is UTC.
    ///
    /// # Errors
    /// There is no such zone.
    pub fn parse(name: &str) -> Result<Self, Invalid> {
        if name.is_empty() {
            return Ok(Self::UTC);
        }
        let zone = name.parse().map(Self);
        zone.map_err(|_| {
            let why = format!(
                "{:?} is not a time zone of the IANA database, such as Europe/Berlin",
                cut(name, 60)
            );
            Invalid::new("timeZone", why)
        })
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Whether it is UTC under one of its names: EIM agents understand a cron expression only in UTC.
    #[must_use]
    pub fn is_utc(self) -> bool {
        let name = self.name();
        let name = name.strip_prefix("Etc/").unwrap_or(name);
        let names =
            ["UTC", "UCT", "Universal", "Zulu", "GMT", "GMT0", "GMT+0", "GMT-0", "Greenwich"];
        names.contains(&name)
    }

    /// The local time at an instant; `None` in years outside the range of schedules.
    pub(super) fn local_time(self, at: Time) -> Option<NaiveDateTime> {
        let is_for_schedules = (1970..=9990).contains(&at.year());
        is_for_schedules.then(|| self.0.from_utc_datetime(&at.naive_utc()).naive_local())
    }

    /// The first and the last instant of a local time. For a skipped local time both are the instant of the change.
    pub(super) fn instants_of(self, local_time: NaiveDateTime) -> Option<(Time, Time)> {
        let (first, last) = match self.0.from_local_datetime(&local_time) {
            LocalResult::Single(at) => (at, at),
            LocalResult::Ambiguous(first, last) => (first, last),
            LocalResult::None => {
                let goes_on = GapInfo::new(&local_time, &self.0)?.end?;
                (goes_on, goes_on)
            }
        };
        Some((first.to_utc(), last.to_utc()))
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Offset, TimeDelta};
    use chrono_tz::TZ_VARIANTS;

    use super::*;

    #[test]
    fn every_zone_is_read_by_its_name() {
        for zone in TZ_VARIANTS {
            assert_eq!(Zone::parse(zone.name()), Ok(Zone(zone)));
        }
        assert_eq!(Zone::parse(""), Ok(Zone::UTC));
        for name in ["europe/berlin", "Europe/Atlantis", "+02:00", " UTC", "UTC\0"] {
            assert_eq!(Zone::parse(name).expect_err("bad").field, "timeZone");
        }
    }

    #[test]
    fn a_zone_that_never_differs_from_utc_is_utc() {
        let days = |n| DateTime::UNIX_EPOCH + TimeDelta::days(n);
        for zone in TZ_VARIANTS {
            // From the year 1900: before that, cities had local times of their own.
            let never_differs = (-25_567..25_000).step_by(20).all(|day| {
                let at = days(day).naive_utc();
                zone.offset_from_utc_datetime(&at).fix().local_minus_utc() == 0
            });
            assert_eq!(Zone(zone).is_utc(), never_differs, "{zone}");
        }
    }
}
