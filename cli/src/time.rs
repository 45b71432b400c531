//! Parses and formats times (UTC) and durations.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use evenkeel_api::operator_token::OperatorTokenInput;
use evenkeel_api::timestamps::from_unix_seconds;

/// A time option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// `now`.
    Now,
    /// An offset from now, such as `+30m`.
    In(Duration),
    /// An absolute time.
    At(DateTime<Utc>),
}

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "now" {
            return Ok(Self::Now);
        }
        if let Some(rest) = text.strip_prefix('+') {
            return parse_duration(rest).map(Self::In);
        }
        DateTime::parse_from_rfc3339(text).map(|time| Self::At(time.to_utc())).map_err(|_| {
            "give `now`, an offset such as `+30m`, or a time such as `2026-01-31T22:00:00Z`"
                .to_owned()
        })
    }
}

impl Moment {
    /// The absolute time. `now` is two seconds ahead, because the server rejects times in the past.
    #[must_use]
    pub fn instant(self, now: DateTime<Utc>) -> DateTime<Utc> {
        let ahead = |by: Duration| {
            let by = TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
            now.checked_add_signed(by).unwrap_or(DateTime::<Utc>::MAX_UTC)
        };
        match self {
            Self::Now => ahead(Duration::from_secs(2)),
            Self::In(by) => ahead(by),
            Self::At(time) => time,
        }
    }
}

/// A time in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastTime {
    /// This long ago.
    Ago(Duration),
    /// An absolute time.
    At(DateTime<Utc>),
}

impl std::str::FromStr for PastTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self::At(time.to_utc()));
        }
        parse_duration(text).map(Self::Ago).map_err(|_| {
            "give an age such as `2h`, or a time such as `2026-01-31T22:00:00Z`".to_owned()
        })
    }
}

impl PastTime {
    /// The absolute time.
    #[must_use]
    pub fn instant(self, now: DateTime<Utc>) -> DateTime<Utc> {
        match self {
            Self::Ago(by) => {
                let by = TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
                now.checked_sub_signed(by).unwrap_or(DateTime::<Utc>::MIN_UTC)
            }
            Self::At(time) => time,
        }
    }
}

/// Maximum duration of 100 years, which can be added to every time.
const MAX_DURATION: Duration = Duration::from_hours(100 * 8_766);

/// Parses a duration such as `90s` or `2h 30m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration such as `90s`, `2h` or `7days`"))?;
    if span > MAX_DURATION {
        return Err(format!("`{text}` is longer than 100 years"));
    }
    Ok(span)
}

/// Reads the lifetime of a token.
pub fn parse_token_lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = parse_duration(text)?;
    let longest = u64::from(OperatorTokenInput::MAX_LIFETIME_SECONDS);
    if (1..=longest).contains(&lifetime.as_secs()) {
        return Ok(lifetime);
    }
    Err(format!("`{text}` is not from 1s to {}d", longest / 86_400))
}

/// Formats a time to the second.
pub fn format_time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Formats an optional time.
pub fn format_optional_time(time: Option<DateTime<Utc>>) -> String {
    time.map_or_else(|| "-".to_owned(), format_time)
}

/// Formats Unix seconds, where 0 means none.
pub fn format_unix_seconds(seconds: u32) -> String {
    format_optional_time(from_unix_seconds(seconds))
}

/// Formats the distance of two times in at most two units.
pub fn format_distance(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    let seconds = (to - from).num_seconds().unsigned_abs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// Formats an age in one unit, so that columns stay narrow.
pub fn format_age(since: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = (now - since).num_seconds().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (minutes, hours, days) {
        (0..2, _, _) => format!("{seconds}s"),
        (_, 0..2, _) => format!("{minutes}m"),
        (_, 0..48, _) => format!("{hours}h"),
        (_, _, 0..730) => format!("{days}d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_three_forms() {
        let now = DateTime::UNIX_EPOCH;
        let at = |text: &str| text.parse::<Moment>().map(|moment| format_time(moment.instant(now)));
        assert_eq!(at("now"), Ok("1970-01-01T00:00:02Z".to_owned()));
        assert_eq!(at("+1h 30m"), Ok("1970-01-01T01:30:00Z".to_owned()));
        assert_eq!(at("2026-01-31T23:00:00+01:00"), Ok("2026-01-31T22:00:00Z".to_owned()));
        assert!(at("tomorrow").is_err());
        assert!(at("+soon").is_err());
    }

    #[test]
    fn a_past_time_has_two_forms() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(1);
        let at = |text: &str| text.parse::<PastTime>().map(|time| format_time(time.instant(now)));
        assert_eq!(at("2h"), Ok("1970-01-01T22:00:00Z".to_owned()));
        assert_eq!(at("2026-01-31T23:00:00+01:00"), Ok("2026-01-31T22:00:00Z".to_owned()));
        assert!(at("yesterday").is_err());
    }

    #[test]
    fn a_duration_is_at_most_a_hundred_years() {
        assert!(parse_duration("100years").is_ok());
        assert_eq!(
            parse_duration("101years"),
            Err("`101years` is longer than 100 years".to_owned())
        );
        assert!(parse_duration("500000000000years").is_err());
    }

    #[test]
    fn a_distance_is_shown_in_two_units_at_most() {
        let from = DateTime::UNIX_EPOCH;
        let after = |seconds| format_distance(from, from + TimeDelta::seconds(seconds));
        assert_eq!(after(59), "59s");
        assert_eq!(after(150), "2m");
        assert_eq!(after(7_500), "2h 5m");
        assert_eq!(after(200_000), "2d 7h");
    }
    #[test]
    fn an_age_is_shown_in_one_unit() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(36_500);
        let age = |seconds| format_age(now - TimeDelta::seconds(seconds), now);
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }
}
