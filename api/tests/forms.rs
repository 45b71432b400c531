//! The JSON forms that EIM clients depend on.

use evenkeel_api::assignment::{AssignmentInput, AssignmentResource};
use evenkeel_api::host::{HostInput, HostRegister, HostResource};
use evenkeel_api::instance::{InstancePatch, InstanceResource};
use evenkeel_api::orchestrator::OrchestratorInfo;
use evenkeel_api::order::{OrderInput, OrderKind, OrderResource};
use evenkeel_api::os::{OperatingSystemInput, OperatingSystemPatch, OperatingSystemResource};
use evenkeel_api::pause::{PauseInput, PauseResource};
use evenkeel_api::policy::{OsUpdatePolicy, OsUpdatePolicyInput, UpdatePolicyKind};
use evenkeel_api::region::{RegionInput, RegionResource};
use evenkeel_api::schedule::{
    RepeatedScheduleInput, RepeatedScheduleResource, ScheduleStatus, SingleScheduleInput,
    SingleScheduleResource,
};
use evenkeel_api::settings::{ProjectSettings, ProjectSettingsInput};
use evenkeel_api::site::{SiteInput, SiteResource};
use evenkeel_api::update_run::OsUpdateRun;
use evenkeel_api::{Input, Problem};
use serde_json::{Value, json};
use utoipa::PartialSchema;

fn to_json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("our types are JSON")
}

fn parse_input<T: Input>(body: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(T::without_read_only(body))
}

#[test]
fn an_empty_host_carries_every_field() {
    let host = to_json(&HostResource::default());
    insta::assert_snapshot!(serde_json::to_string(&host).expect("JSON"));
}

#[test]
fn an_empty_instance_carries_every_field() {
    let instance = to_json(&InstanceResource::default());
    insta::assert_snapshot!(serde_json::to_string(&instance).expect("JSON"));
}

#[test]
fn absent_objects_are_null_or_empty_as_clients_expect() {
    let run = to_json(&OsUpdateRun::default());
    assert_eq!(run["appliedPolicy"]["resourceId"], "");
    assert_eq!(run["appliedPolicy"]["timestamps"], Value::Null);
    assert_eq!(run["instance"]["resourceId"], "");
    assert_eq!(run["instance"]["workloadMembers"], json!([]));
    assert_eq!(run["endTime"], 0);

    let policy = to_json(&OsUpdatePolicy::default());
    assert_eq!(policy["targetOs"], Value::Null);
    assert_eq!(policy["targetOsId"], "");

    let schedule = to_json(&SingleScheduleResource::default());
    for null in ["targetHost", "targetSite", "targetRegion"] {
        assert_eq!(schedule[null], Value::Null, "{null}");
    }

    let site = to_json(&evenkeel_api::site::SiteResource::default());
    assert!(site["region"].is_object());
    assert_eq!(site["region"]["parentRegion"], Value::Null);
}

/// Clients read a resource, change a field and send the whole resource back.
fn assert_can_be_written_back<T: Input>(answer: &impl serde::Serialize) {
    let read = parse_input::<T>(to_json(answer));
    assert!(read.is_ok(), "{:?}", read.err());
}

#[test]
fn a_response_can_be_written_back() {
    assert_can_be_written_back::<RegionInput>(&RegionResource::default());
    assert_can_be_written_back::<SiteInput>(&SiteResource::default());
    assert_can_be_written_back::<HostInput>(&HostResource::default());
    assert_can_be_written_back::<InstancePatch>(&InstanceResource::default());
    assert_can_be_written_back::<OperatingSystemPatch>(&OperatingSystemResource::default());
    assert_can_be_written_back::<OsUpdatePolicyInput>(&OsUpdatePolicy::default());
    assert_can_be_written_back::<AssignmentInput>(&AssignmentResource::default());
    assert_can_be_written_back::<PauseInput>(&PauseResource::default());
    assert_can_be_written_back::<ProjectSettingsInput>(&ProjectSettings::default());
    assert_can_be_written_back::<SingleScheduleInput>(&SingleScheduleResource::default());
    assert_can_be_written_back::<RepeatedScheduleInput>(&RepeatedScheduleResource::default());
    let order = OrderResource { kind: OrderKind::Now.to_string(), ..OrderResource::default() };
    assert_can_be_written_back::<OrderInput>(&order);
}

#[test]
fn a_repeated_schedule_uses_utc_by_default() {
    let body = json!({
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 60, "cronMinutes": "0", "cronHours": "2",
        "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "*",
    });
    let schedule =
        parse_input::<RepeatedScheduleInput>(body).expect("the form that EIM clients send");
    assert_eq!(schedule.time_zone, "UTC");
}

#[test]
fn an_unknown_key_is_an_error_that_names_it() {
    let error =
        parse_input::<HostRegister>(json!({"name": "a", "colour": "red"})).expect_err("unknown");
    assert!(error.to_string().contains("`colour`"), "{error}");
}

#[test]
fn a_read_only_key_is_ignored() {
    let body = json!({"resourceId": "os-00000001", "sha256": "a", "timestamps": null, "name": "n"});
    let os = parse_input::<OperatingSystemInput>(body).expect("read-only keys are ignored");
    assert_eq!(os.name, "n");
}

#[test]
fn an_enumeration_accepts_only_its_own_texts() {
    let body = |status: &str| json!({"scheduleStatus": status, "startSeconds": 1});
    let good =
        parse_input::<SingleScheduleInput>(body("SCHEDULE_STATUS_OS_UPDATE")).expect("known");
    assert_eq!(good.schedule_status, ScheduleStatus::OsUpdate);
    assert!(parse_input::<SingleScheduleInput>(body("OS_UPDATE")).is_err());
    for kind in UpdatePolicyKind::ALL {
        assert_eq!(to_json(kind), json!(kind.as_str()));
    }
}

#[test]
fn the_openapi_schema_lists_the_wire_texts() {
    let schema = to_json(&UpdatePolicyKind::schema());
    let texts: Vec<_> = UpdatePolicyKind::ALL.iter().map(to_json).collect();
    assert_eq!(schema["enum"], json!(texts));
    assert_eq!(
        schema["description"],
        "Kind of a policy: the latest versions, or exactly the listed target."
    );
}

#[test]
fn a_response_with_unknown_fields_is_readable() {
    let mut host = to_json(&HostResource { name: "edge-01".to_owned(), ..HostResource::default() });
    host["aFieldOfTomorrow"] = json!(1);
    let back: HostResource = serde_json::from_value(host).expect("readable");
    assert_eq!(back.name, "edge-01");
}

#[test]
fn the_features_match_what_clients_query() {
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&OrchestratorInfo::for_version("0.1.0")).expect("JSON")
    );
}

#[test]
fn a_problem_starts_with_the_members_that_eim_clients_search_for() {
    let problem = Problem {
        code: "FailedPrecondition".to_owned(),
        message: "a host with this uuid already exists".to_owned(),
        ..Problem::default()
    };
    let text = serde_json::to_string(&problem).expect("JSON");
    assert!(text.starts_with(r#"{"code":"FailedPrecondition","message":"a host"#), "{text}");
}
