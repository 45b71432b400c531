use chrono::NaiveDateTime;

use super::Cron;

fn cron(text: &str) -> Cron {
    parse(text).expect("a cron")
}

fn parse(text: &str) -> Result<Cron, crate::invalid::Invalid> {
    let fields: Vec<_> = text.split(' ').collect();
    let [minutes, hours, day_month, month, day_week] = fields[..] else {
        panic!("five fields: {text}");
    };
    Cron::parse(minutes, hours, day_month, month, day_week)
}

/// The first matching local times from one on, up to five.
fn readings(text: &str, from: &str) -> Vec<String> {
    let (cron, mut readings) = (cron(text), Vec::new());
    let mut from: NaiveDateTime = from.parse().expect("a local time");
    while let Some(next) = cron.next_local_time(from).filter(|_| readings.len() < 5) {
        readings.push(next.format("%F %R %a").to_string());
        from = next + chrono::TimeDelta::seconds(1);
    }
    readings
}

#[test]
fn the_fields_are_stored_as_given() {
    let cron = cron("*/15,7,7 8-18/2 L,1 * 1-5");
    assert_eq!(cron.minutes(), "*/15,7,7");
    assert_eq!(cron.hours(), "8-18/2");
    assert_eq!(cron.day_month(), "L,1");
    assert_eq!(cron.month(), "*");
    assert_eq!(cron.day_week(), "1-5");
    assert_eq!(cron.to_string(), "*/15,7,7 8-18/2 L,1 * 1-5");
}

#[test]
fn an_invalid_field_is_named_as_in_the_api() {
    let bad = [
        "",
        "**",
        "60",
        "07",
        "00",
        "-1",
        "+1",
        "1,",
        ",1",
        "1,,2",
        "*,1",
        "1-",
        "-",
        "5-1",
        "1/2",
        "*/0",
        "*/60",
        "*/",
        "/5",
        "*/5/5",
        "1-2-3",
        "L",
        "?",
        "JAN",
        "1 2",
        "\u{0661}",
        "1\0",
        "999999999999",
    ];
    for text in bad {
        let error = Cron::parse(text, "*", "*", "*", "*").expect_err(text);
        assert_eq!(error.field, "cronMinutes", "{text}");
    }
    let field = |text: &str| parse(text).expect_err(text).field;
    assert_eq!(field("* 24 * * *"), "cronHours");
    assert_eq!(field("* * 0 * *"), "cronDayMonth");
    assert_eq!(field("* * 32 * *"), "cronDayMonth");
    assert_eq!(field("* * L-3 * *"), "cronDayMonth");
    assert_eq!(field("* * L/2 * *"), "cronDayMonth");
    assert_eq!(field("* * 15W * *"), "cronDayMonth");
    assert_eq!(field("* * * 13 *"), "cronMonth");
    assert_eq!(field("* * * * 7"), "cronDayWeek");
    assert_eq!(field("* * * * 5L"), "cronDayWeek");
}

#[test]
fn months_and_weekdays_may_be_named() {
    for (named, numbered) in [
        ("0 2 * * SUN", "0 2 * * 0"),
        ("0 2 * * mon-Fri", "0 2 * * 1-5"),
        ("0 2 * JAN,jul SAT,1-3/2,TUE-THU/2", "0 2 * 1,7 6,1-3/2,2-4/2"),
        ("0 2 1 FEB-DEC/3 *", "0 2 1 2-12/3 *"),
    ] {
        assert_eq!(cron(named), cron(numbered), "{named}");
        assert_eq!(cron(named).to_string(), numbered, "{named}");
    }
    for (text, field) in [
        ("MON * * * *", "cronMinutes"),
        ("* * SUN * *", "cronDayMonth"),
        ("* * * MON *", "cronMonth"),
        ("* * * * JAN", "cronDayWeek"),
        ("* * * * MONDAY", "cronDayWeek"),
        ("* * * * MON-", "cronDayWeek"),
        ("* * * * SAT-SUN", "cronDayWeek"),
        ("* * * * */MON", "cronDayWeek"),
    ] {
        assert!(parse(text).is_err_and(|error| error.field == field), "{text}");
    }
}

#[test]
fn an_expression_without_a_day_is_found() {
    for (text, occurs) in [
        ("0 2 30 2 *", false),
        ("0 2 31 APR,JUN,SEP,NOV *", false),
        ("0 2 30,31 FEB */1", false),
        ("0 2 29 2 *", true),
        ("0 2 L 2 *", true),
        ("0 2 31 2-4 *", true),
        ("0 2 30 2 MON", true),
        ("* * * * *", true),
    ] {
        let checked = cron(text).check_occurs();
        assert_eq!(checked.is_ok(), occurs, "{text}");
        let never = cron(text).next_local_time("2026-01-01T00:00:00".parse().expect("a time"));
        assert_eq!(never.is_some(), occurs, "{text}");
        let error = checked.err();
        assert!(error.as_ref().is_none_or(|error| error.field == "cronDayMonth"), "{text}");
        // The command line names its own options instead of the fields.
        assert!(error.is_none_or(|error| !error.why.contains("cron")), "{text}");
    }
}

#[test]
fn an_error_names_the_accepted_values() {
    let why = |text: &str| parse(text).expect_err(text).to_string();
    insta::assert_snapshot!([
        why("60 * * * *"),
        why("* * L-3 * *"),
        why("* 5-1 * * *"),
        why("* * * */13 *"),
        why("* * * * 1/2"),
        why("* * * * 7"),
        why(&format!("{} * * * *", "1,".repeat(200))),
    ].join("\n"), @r#"
    cronMinutes: "60" is not a number from 0 to 59 without leading zeros; `*`, lists, ranges (1-5) and steps (*/5) can be given
    cronDayMonth: "L" is not a number from 1 to 31 without leading zeros; `*`, lists, ranges (1-5), steps (*/5) and L for the last day can be given
    cronHours: "5-1": a range cannot end before it begins
    cronMonth: "*/13": a step is a number from 1 to 12, without leading zeros
    cronDayWeek: "1/2": a step needs `*` or a range before it
    cronDayWeek: "7" is not a number from 0 to 6 without leading zeros; `*`, names such as SUN, lists, ranges (1-5) and steps (*/5) can be given
    cronMinutes: longer than 200 bytes
    "#);
}

#[test]
fn every_minute_as_a_list_is_not_too_long() {
    let all: Vec<_> = (0..60).map(|minute| minute.to_string()).collect();
    let cron = Cron::parse(&all.join(","), "*", "*", "*", "*").expect("a cron");
    assert_eq!(cron.as_lists().expect("lists")[0], "*");
}

#[test]
fn readings_come_in_order() {
    assert_eq!(
        readings("30,0 2-3 * * *", "2026-12-31T02:15:01"),
        [
            "2026-12-31 02:30 Thu",
            "2026-12-31 03:00 Thu",
            "2026-12-31 03:30 Thu",
            "2027-01-01 02:00 Fri",
            "2027-01-01 02:30 Fri"
        ]
    );
    assert_eq!(readings("0 0 * * *", "2026-01-01T00:00:00")[0], "2026-01-01 00:00 Thu");
    assert_eq!(readings("0 0 * * *", "2026-01-01T00:00:00.5")[0], "2026-01-02 00:00 Fri");
}

#[test]
fn one_of_two_restricted_days_is_enough() {
    assert_eq!(
        readings("0 0 13 * 5", "2026-02-01T00:00:00"),
        [
            "2026-02-06 00:00 Fri",
            "2026-02-13 00:00 Fri",
            "2026-02-20 00:00 Fri",
            "2026-02-27 00:00 Fri",
            "2026-03-06 00:00 Fri"
        ]
    );
    assert_eq!(
        readings("0 0 */2 2 3", "2026-02-01T00:00:00"),
        [
            "2026-02-01 00:00 Sun",
            "2026-02-03 00:00 Tue",
            "2026-02-04 00:00 Wed",
            "2026-02-05 00:00 Thu",
            "2026-02-07 00:00 Sat"
        ]
    );
    // A list of every day restricts; `*` and `*/1` do not.
    assert_eq!(readings("0 0 13 * 0-6", "2026-02-01T00:00:00")[0], "2026-02-01 00:00 Sun");
    assert_eq!(readings("0 0 13 * */1", "2026-02-01T00:00:00")[0], "2026-02-13 00:00 Fri");
}

#[test]
fn the_last_day_of_a_month_is_found() {
    assert_eq!(
        readings("0 3 L 1-4 *", "2028-01-31T04:00:00"),
        [
            "2028-02-29 03:00 Tue",
            "2028-03-31 03:00 Fri",
            "2028-04-30 03:00 Sun",
            "2029-01-31 03:00 Wed",
            "2029-02-28 03:00 Wed"
        ]
    );
}

#[test]
fn a_leap_day_is_awaited_for_eight_years_and_another_day_never() {
    let leap = readings("0 0 29 2 *", "2096-02-29T00:01:00");
    assert_eq!(leap[0], "2104-02-29 00:00 Fri");
    for never in ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "* * 30,31 2 */1"] {
        assert_eq!(readings(never, "2026-01-01T00:00:00"), [""; 0], "{never}");
    }
    assert_eq!(readings("0 0 30 2 1", "2026-02-01T00:00:00")[0], "2026-02-02 00:00 Mon");
}

#[test]
fn fields_that_eim_cannot_express_become_lists() {
    let lists = |text: &str| cron(text).as_lists().map(|lists| lists.join(" "));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(lists("* * * * *"), some("* * * * *"));
    assert_eq!(lists("0-59 */1 */1 1-12 */1"), some("* * * * *"));
    assert_eq!(
        lists("*/20,5 8-18/5 10-12 */6 0-6"),
        some("0,5,20,40 8,13,18 10,11,12 1,7 0,1,2,3,4,5,6")
    );
    assert_eq!(lists("0 0 L * *"), None);
    assert_eq!(lists("0 0 L 2 *"), None);
    assert_eq!(lists("0 0 L 1,3,12 *"), some("0 0 31 1,3,12 *"));
    assert_eq!(lists("0 0 L,1 4,11 5"), some("0 0 1,30 4,11 5"));
    assert_eq!(lists("0 0 28-31,L * *"), some("0 0 28,29,30,31 * *"));
}
