//! Times as people give and read them. Always UTC.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use evenkeel_api::timestamps::from_unix_seconds;

/// An instant as a person gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// As soon as it can be.
    Now,
    /// This long from now.
    In(Duration),
    /// This very instant.
    At(DateTime<Utc>),
}

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "now" {
            return Ok(Self::Now);
        }
        if let Some(rest) = text.strip_prefix('+') {
            return duration(rest).map(Self::In);
        }
        DateTime::parse_from_rfc3339(text)
            .map(|time| Self::At(time.to_utc()))
            .map_err(|_| {
                "give `now`, a span such as `+30m`, or a time such as `2026-01-31T22:00:00Z`"
                    .to_owned()
            })
    }
}

impl Moment {
    /// The instant. `Now` is two seconds ahead: the server takes only what is still to come.
    #[must_use]
    pub fn instant(self, now: DateTime<Utc>) -> DateTime<Utc> {
        let ahead = |by: Duration| {
            let by = TimeDelta::from_std(by).unwrap_or(TimeDelta::MAX);
            now.checked_add_signed(by)
                .unwrap_or(DateTime::<Utc>::MAX_UTC)
        };
        match self {
            Self::Now => ahead(Duration::from_secs(2)),
            Self::In(by) => ahead(by),
            Self::At(time) => time,
        }
    }
}

/// No span is longer: a hundred years, which can be added to every time there is.
const LONGEST: Duration = Duration::from_hours(100 * 8_766);

/// Reads a span such as `90s` or `2h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a span such as `90s`, `2h` or `7days`"))?;
    if span > LONGEST {
        return Err(format!("`{text}` is longer than 100 years"));
    }
    Ok(span)
}

/// An instant to the second.
pub fn show(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An instant that may be missing.
pub fn show_option(time: Option<DateTime<Utc>>) -> String {
    time.map_or_else(|| "-".to_owned(), show)
}

/// A field with Unix seconds, where 0 is none.
pub fn show_seconds(seconds: u32) -> String {
    show_option(from_unix_seconds(seconds))
}

/// How far an instant is away, roughly.
pub fn distance(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    let seconds = (to - from).num_seconds().unsigned_abs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_given_in_three_ways() {
        let now = DateTime::UNIX_EPOCH;
        let at = |text: &str| {
            text.parse::<Moment>()
                .map(|moment| show(moment.instant(now)))
        };
        assert_eq!(at("now"), Ok("1970-01-01T00:00:02Z".to_owned()));
        assert_eq!(at("+1h 30m"), Ok("1970-01-01T01:30:00Z".to_owned()));
        assert_eq!(
            at("2026-01-31T23:00:00+01:00"),
            Ok("2026-01-31T22:00:00Z".to_owned())
        );
        assert!(at("tomorrow").is_err());
        assert!(at("+soon").is_err());
    }

    #[test]
    fn a_span_is_a_hundred_years_at_most() {
        assert!(duration("100years").is_ok());
        assert_eq!(
            duration("101years"),
            Err("`101years` is longer than 100 years".to_owned())
        );
        assert!(duration("500000000000years").is_err());
    }

    #[test]
    fn a_distance_is_shown_in_two_units_at_most() {
        let from = DateTime::UNIX_EPOCH;
        let after = |seconds| distance(from, from + TimeDelta::seconds(seconds));
        assert_eq!(after(59), "59s");
        assert_eq!(after(150), "2m");
        assert_eq!(after(7_500), "2h 5m");
        assert_eq!(after(200_000), "2d 7h");
    }
}
