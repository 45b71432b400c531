//! Cron texts and names of time zones.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::schedule::{Cron, RepeatedSpec, ScheduleStatus, Zone};
use evenkeel_domain::text::Name;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::driver::{fuzz, text};

const FIELDS: [(&str, &[&str]); 5] = [
    ("cronMinutes", &["*", "0", "*/15", "0,30", "5-59/6", "1,2,3,58-59", "*/1"]),
    ("cronHours", &["*", "2", "22,23,0", "8-18/2", "0-23", "*/5,7"]),
    ("cronDayMonth", &["*", "1", "L", "L,15", "29", "30,31", "1-7", "*/1"]),
    ("cronMonth", &["*", "2", "1-12", "*/3", "4,6,9,11"]),
    ("cronDayWeek", &["*", "0", "1-5", "0,6", "*/1", "6"]),
];

const ZONES: &[&str] =
    &["UTC", "", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Etc/GMT+5"];

#[test]
fn any_cron_text_is_parsed_or_refused() {
    fuzz("cron", |rng| {
        let letters = "0123456789*,-/L ?W#";
        // Mostly unchanged samples, so that many inputs are a valid cron.
        let texts = FIELDS.map(|(_, samples)| match samples.choose(rng) {
            Some(sample) if rng.random_ratio(2, 3) => (*sample).to_owned(),
            _ => text(rng, samples, letters),
        });
        let Some(cron) = parse(&texts) else {
            return;
        };
        let printed = cron.to_string();
        let fields: Vec<_> = printed.split(' ').map(str::to_owned).collect();
        assert_eq!(fields, texts, "a parsed cron is written as it was given");
        assert_eq!(parse(&texts).as_ref(), Some(&cron));
        if let Some(lists) = cron.as_lists() {
            let again = parse(&lists).expect("lists are a cron");
            assert_eq!(again.as_lists(), Some(lists));
        }
        check_windows(rng, cron);
    });
}

#[test]
fn any_zone_name_is_parsed_or_refused() {
    fuzz("time zone", |rng| {
        let name = text(rng, ZONES, "/_+-EGU0");
        match Zone::parse(&name) {
            Ok(zone) if name.is_empty() => assert_eq!(zone, Zone::UTC),
            Ok(zone) => assert_eq!(zone.name(), name),
            Err(invalid) => {
                assert_eq!(invalid.field, "timeZone");
                assert!(invalid.to_string().len() < 2_000, "{invalid}");
            }
        }
    });
}

/// Parses five fields. An error must name the first field that is invalid on its own.
fn parse(texts: &[String; 5]) -> Option<Cron> {
    let read = |texts: [&str; 5]| Cron::parse(texts[0], texts[1], texts[2], texts[3], texts[4]);
    let alone = |n: usize| {
        let mut fields = ["*"; 5];
        fields[n] = &texts[n];
        read(fields).is_ok()
    };
    match read([0, 1, 2, 3, 4].map(|n| texts[n].as_str())) {
        Ok(cron) => {
            assert!((0..5).all(alone));
            Some(cron)
        }
        Err(invalid) => {
            let bad = (0..5).find(|n| !alone(*n)).expect("one of them is bad");
            assert_eq!(invalid.field, FIELDS[bad].0);
            assert!(invalid.to_string().len() < 2_000, "{invalid}");
            None
        }
    }
}

/// Windows are found in order and without a search over years; the driver limits the time.
fn check_windows(rng: &mut StdRng, cron: Cron) {
    let zone = ZONES.choose(rng).expect("there are some");
    let spec = RepeatedSpec {
        name: Name::default(),
        status: ScheduleStatus::OsUpdate,
        duration: TimeDelta::seconds(rng.random_range(1..=86_400)),
        cron,
        zone: Zone::parse(zone).expect("a zone"),
        target: None,
    };
    let second = rng.random_range(0..253_402_300_799);
    let now =
        DateTime::from_timestamp(second, rng.random_range(0..1_000_000_000)).expect("in range");
    if let Some((start, end)) = spec.open_span(now) {
        assert!(start <= now && now < end);
    }
    let starts: Vec<_> = spec.spans_after(now).take(20).map(|(start, _)| start).collect();
    assert!(starts.first().is_none_or(|first| now < *first));
    assert!(starts.is_sorted_by(|a, b| a < b));
}
