//! Comparison of the clock of the process with the clock of the database.
//!
//! What deletes rows or ends runs goes by the time of the database, which all replicas share, and
//! only while the clock of the process agrees: if one of the two is wrong, the process cannot know
//! which one.

use std::fmt;

use chrono::{SecondsFormat, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_kit::clock::Clock;
use sea_orm::{ConnectionTrait, DbBackend, Statement};

use crate::bounded::with_timeout;
use crate::error::StoreError;
use crate::pool::Store;

/// Maximum difference between the clocks of the process and of the database.
const MAX_CLOCK_OFFSET: TimeDelta = TimeDelta::minutes(1);

/// Times that were read one after the other. Printed as the reason why the process is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Clock of the process before the query.
    pub before: Time,
    /// Clock of the database.
    pub database: Time,
    /// Clock of the process after the answer.
    pub after: Time,
}

/// Result of a comparison of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockAgreement {
    Agrees,
    Differs,
    /// The answer took too long, or the clock of the process was set meanwhile.
    Unknown,
}

impl ClockReading {
    /// How far the clock of the process is ahead. The database is assumed to read its clock in the
    /// middle of the query.
    #[must_use]
    pub fn offset(&self) -> TimeDelta {
        self.before + self.round_trip() / 2 - self.database
    }

    /// Whether the clocks agree, whenever during the query the database read its clock.
    #[must_use]
    pub fn agreement(&self) -> ClockAgreement {
        let (offset, uncertainty) = (self.offset().abs(), self.round_trip().abs() / 2);
        if offset + uncertainty <= MAX_CLOCK_OFFSET {
            ClockAgreement::Agrees
        } else if offset - uncertainty > MAX_CLOCK_OFFSET {
            ClockAgreement::Differs
        } else {
            ClockAgreement::Unknown
        }
    }

    fn round_trip(&self) -> TimeDelta {
        self.after - self.before
    }
}

impl fmt::Display for ClockReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |time: Time| time.to_rfc3339_opts(SecondsFormat::Secs, true);
        write!(
            f,
            "the clock of this process differs from the clock of the database by {} seconds: the process has {}, \
             the database {}; synchronize the clocks of both machines",
            self.offset().abs().num_seconds(),
            text(self.before),
            text(self.database),
        )
    }
}

impl Store {
    /// Reads the clock of the process and the clock of the database.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn read_clocks(&self, clock: &dyn Clock) -> Result<ClockReading, StoreError> {
        let before = clock.now();
        let database = self.database_time().await?;
        Ok(ClockReading { before, database, after: clock.now() })
    }

    /// The time by which rows may be deleted and runs may end: that of the database. None while the
    /// clock of the process does not agree.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn trusted_time(&self, clock: &dyn Clock) -> Result<Option<Time>, StoreError> {
        let reading = self.read_clocks(clock).await?;
        Ok((reading.agreement() == ClockAgreement::Agrees).then_some(reading.database))
    }

    /// The current time of the database.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn database_time(&self) -> Result<Time, StoreError> {
        #[cfg(feature = "testing")]
        if let Some(clock) = &self.database_clock {
            return Ok(clock.now());
        }
        let query = Statement::from_string(DbBackend::Postgres, "SELECT clock_timestamp()");
        let row = with_timeout(self.answer_timeout, self.db().query_one_raw(query)).await?;
        let row = row.ok_or_else(|| sea_orm::DbErr::RecordNotFound("the time".to_owned()))?;
        Ok(row.try_get_by_index(0)?)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use ClockAgreement::{Agrees, Differs, Unknown};

    const DATABASE: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

    /// A reading that began and ended this number of seconds after the time of the database.
    fn reading(before: i64, after: i64) -> ClockReading {
        let at = |seconds| DATABASE + TimeDelta::seconds(seconds);
        ClockReading { before: at(before), database: DATABASE, after: at(after) }
    }

    #[test]
    fn clocks_agree_within_a_minute_and_half_a_round_trip_is_uncertain() {
        const YEAR: i64 = 365 * 24 * 3_600;
        for (before, after, offset, expected) in [
            (0, 0, 0, Agrees),
            (-5, 5, 0, Agrees),
            (60, 60, 60, Agrees),
            (-60, -60, -60, Agrees),
            (61, 61, 61, Differs),
            (-61, -61, -61, Differs),
            (YEAR, YEAR, YEAR, Differs),
            (-YEAR, -YEAR + 2, -YEAR + 1, Differs),
            // The answer took long: the database may have read its clock at either end.
            (-70, 70, 0, Unknown),
            (50, 70, 60, Unknown),
            (56, 60, 58, Agrees),
            (60, 64, 62, Unknown),
            (62, 66, 64, Differs),
            // The clock of the process was set during the query.
            (0, YEAR, YEAR / 2, Unknown),
            (YEAR, 0, YEAR / 2, Unknown),
            (0, -YEAR, -YEAR / 2, Unknown),
        ] {
            let reading = reading(before, after);
            assert_eq!(reading.offset().num_seconds(), offset, "{before} {after}");
            assert_eq!(reading.agreement(), expected, "{before} {after}");
        }
    }

    #[test]
    fn a_difference_is_described_with_both_times() {
        let text = reading(-3_600, -3_600).to_string();
        assert!(text.contains("by 3600 seconds"), "{text}");
        assert!(text.contains("2027-01-15T07:00:00Z") && text.contains("2027-01-15T08:00:00Z"));
    }
}
