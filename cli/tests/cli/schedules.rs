//! Single and repeated schedules.

use clap::Parser;
use evenkeel_cli::args::Cli;
use serde_json::{Value, json};

use crate::TestCli;

fn nightly() -> Value {
    json!({
        "resourceId": "repeatedsche-00000001", "repeatedScheduleID": "repeatedsche-00000001", "name": "nightly",
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 9_000, "cronMinutes": "30", "cronHours": "22",
        "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "1-5", "timeZone": "Europe/Berlin",
        "targetSiteId": "site-00000001", "targetSite": {"resourceId": "site-00000001", "name": "Mitte"},
    })
}

fn both() -> Value {
    json!({
        "singleSchedules": [{
            "resourceId": "singlesche-00000001", "name": "tonight", "scheduleStatus": "SCHEDULE_STATUS_MAINTENANCE",
            "startSeconds": 1_772_366_430, "endSeconds": 0, "targetRegionId": "region-00000001",
        }],
        "repeatedSchedules": [nightly()],
        "totalElements": 2, "hasNext": false,
    })
}

#[tokio::test]
async fn schedules_of_both_kinds_are_listed() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/schedules", both());
    insta::assert_snapshot!(cli.run("evenkeel schedule list").await, @r"
    ID                     NAME     FOR          OPENS                        CLOSES        TARGET                  AGE
    singlesche-00000001    tonight  maintenance  2026-03-01T12:00:30Z         -             region region-00000001  -
    repeatedsche-00000001  nightly  update       30 22 * * 1-5 Europe/Berlin  after 2h 30m  site Mitte              -
    ");
    let json = cli.run("evenkeel schedule list -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[0]["startSeconds"], 1_772_366_430);
    assert_eq!(json[1]["cronDayWeek"], "1-5");
}

#[tokio::test]
async fn a_schedule_is_created_from_cron() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("POST schedules/repeated", nightly());
    let line = "evenkeel schedule create nightly --site site-00000001 --cron \"30 22 * * 1-5\" --duration 2h30m \
                --time-zone Europe/Berlin";
    insta::assert_snapshot!(cli.run(line).await, @r"
    id         repeatedsche-00000001
    name       nightly
    for        update
    cron       30 22 * * 1-5
    time zone  Europe/Berlin
    duration   2h 30m
    target     site Mitte
    created    -
    ");
    let line = "evenkeel schedule create monthly --region region-00000001 --hours 2 --days L --duration 1h \
                --for maintenance";
    cli.run(line).await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    POST schedules/repeated {"name":"nightly","scheduleStatus":"SCHEDULE_STATUS_OS_UPDATE","durationSeconds":9000,"cronMinutes":"30","cronHours":"22","cronDayMonth":"*","cronMonth":"*","cronDayWeek":"1-5","timeZone":"Europe/Berlin","targetSiteId":"site-00000001"}
    POST schedules/repeated {"name":"monthly","scheduleStatus":"SCHEDULE_STATUS_MAINTENANCE","durationSeconds":3600,"cronMinutes":"0","cronHours":"2","cronDayMonth":"L","cronMonth":"*","cronDayWeek":"*","timeZone":"UTC","targetRegionId":"region-00000001"}
    "#);
}

#[tokio::test]
async fn a_schedule_of_either_kind_is_found_by_its_name() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/schedules", both())
        .answer("GET schedules/repeated/repeatedsche-00000001", nightly())
        .answer("DELETE schedules/repeated/repeatedsche-00000001", json!({}))
        .answer("DELETE schedules/single/singlesche-00000001", json!({}));
    let text = cli.run("evenkeel schedule get nightly").await;
    assert!(text.contains("30 22 * * 1-5"), "{text}");
    for name in ["nightly", "tonight"] {
        cli.run(&format!("evenkeel schedule delete {name}")).await;
    }
    let message = cli.fail("evenkeel schedule get weekly").await;
    assert!(message.starts_with("there is no schedule `weekly`\n"), "{message}");
}

#[tokio::test]
async fn a_repeated_schedule_stays_open_for_a_day_at_most() {
    let cli = TestCli::new().await;
    let line = "evenkeel schedule create s --host host-00000001 --hours 2 --duration";
    for bad in ["25h", "500ms"] {
        let message = cli.fail(&format!("{line} {bad}")).await;
        assert!(message.contains("at least one second and at most one day"), "{message}");
    }
    assert_eq!(cli.fake_server.requests(), "");
}

#[tokio::test]
async fn an_error_names_the_option_that_was_given() {
    let create = "evenkeel schedule create s --site site-00000001 --duration 1h";
    let set = "evenkeel schedule set repeatedsche-00000001";
    for (line, field, option) in [
        (format!("{create} --cron \"0 2 30 2 *\""), "cronDayMonth", "--cron, days of the month"),
        (format!("{create} --cron \"0 2 * * SUNDAY\""), "cronDayWeek", "--cron, days of the week"),
        (format!("{create} --weekdays SUNDAY"), "cronDayWeek", "--weekdays"),
        (format!("{create} --hours 2 --time-zone x"), "timeZone", "--time-zone"),
        (format!("{set} --cron \"61 * * * *\""), "cronMinutes", "--cron, minutes"),
    ] {
        let cli = TestCli::new().await;
        let message = format!("{field}: it is wrong");
        let problem = json!({"code": "InvalidArgument", "message": message, "field": field});
        cli.fake_server.answer_with("POST schedules/repeated", 400, problem.clone()).answer_with(
            "PATCH schedules/repeated/repeatedsche-00000001",
            400,
            problem,
        );
        let expected = format!("{option}: it is wrong\nhint: --help describes the option");
        assert_eq!(cli.fail(&line).await, expected);
    }
}

#[test]
fn cron_has_five_fields() {
    let line = ["evenkeel", "schedule", "create", "s", "--site", "s", "--duration", "1h", "--cron"];
    let parse = |cron| Cli::try_parse_from(line.iter().copied().chain([cron]));
    assert!(parse(" 30  22 * *\t1-5 ").is_ok());
    let error = parse("30 22 * *").expect_err("four fields").to_string();
    assert!(error.contains("4 fields, expected five"), "{error}");
}

#[tokio::test]
async fn a_schedule_is_patched() {
    let cli = TestCli::new().await;
    let single = both()["singleSchedules"][0].clone();
    cli.fake_server
        .answer("GET compute/schedules", both())
        .answer("GET schedules/single/singlesche-00000001", single.clone())
        .answer("PATCH schedules/single/singlesche-00000001", single)
        .answer("PATCH schedules/repeated/repeatedsche-00000001", nightly());
    for line in [
        "evenkeel schedule set nightly --name weekly --cron \"0 2 * * 0\" --duration 1h --time-zone UTC",
        "evenkeel schedule set repeatedsche-00000001 --for maintenance",
        "evenkeel schedule set tonight --duration 2h",
        "evenkeel schedule set singlesche-00000001 --start +1h --end +3h",
        "evenkeel schedule set singlesche-00000001 --no-end",
    ] {
        cli.run(&format!("{line} -q")).await;
    }
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET compute/schedules?filter=name == "nightly"
    GET compute/schedules?filter=name == "weekly"
    PATCH schedules/repeated/repeatedsche-00000001 {"cronDayMonth":"*","cronDayWeek":"0","cronHours":"2","cronMinutes":"0","cronMonth":"*","durationSeconds":3600,"name":"weekly","timeZone":"UTC"}
    PATCH schedules/repeated/repeatedsche-00000001 {"scheduleStatus":"SCHEDULE_STATUS_MAINTENANCE"}
    GET compute/schedules?filter=name == "tonight"
    GET schedules/single/singlesche-00000001
    PATCH schedules/single/singlesche-00000001 {"endSeconds":1772373630}
    PATCH schedules/single/singlesche-00000001 {"endSeconds":1772377200,"startSeconds":1772370000}
    PATCH schedules/single/singlesche-00000001 {"endSeconds":null}
    "#);
}

#[tokio::test]
async fn the_kind_of_a_schedule_never_changes() {
    let cli = TestCli::new().await;
    insta::assert_snapshot!(cli.fail("evenkeel schedule set repeatedsche-00000001 --start now").await, @r"
    `repeatedsche-00000001` is a repeated schedule
    hint: change its times with --cron and --duration
    ");
    insta::assert_snapshot!(cli.fail("evenkeel schedule set singlesche-00000001 --time-zone UTC").await, @r"
    `singlesche-00000001` is a single schedule
    hint: change its times with --start, and with --end or --duration
    ");
    assert_eq!(cli.fake_server.requests(), "");
}
