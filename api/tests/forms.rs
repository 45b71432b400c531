//! The forms that the ancestor's clients depend on.

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

fn json_of(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("our types are JSON")
}

fn read<T: Input>(body: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(T::without_read_only(body))
}

#[test]
fn an_empty_host_carries_every_field() {
    let host = json_of(&HostResource::default());
    insta::assert_snapshot!(serde_json::to_string(&host).expect("JSON"));
}

#[test]
fn an_empty_instance_carries_every_field() {
    let instance = json_of(&InstanceResource::default());
    insta::assert_snapshot!(serde_json::to_string(&instance).expect("JSON"));
}

#[test]
fn what_is_null_and_what_is_an_object_without_content() {
    let run = json_of(&OsUpdateRun::default());
    assert_eq!(run["appliedPolicy"]["resourceId"], "");
    assert_eq!(run["appliedPolicy"]["timestamps"], Value::Null);
    assert_eq!(run["instance"]["resourceId"], "");
    assert_eq!(run["instance"]["workloadMembers"], json!([]));
    assert_eq!(run["endTime"], 0);

    let policy = json_of(&OsUpdatePolicy::default());
    assert_eq!(policy["targetOs"], Value::Null);
    assert_eq!(policy["targetOsId"], "");

    let schedule = json_of(&SingleScheduleResource::default());
    for null in ["targetHost", "targetSite", "targetRegion"] {
        assert_eq!(schedule[null], Value::Null, "{null}");
    }

    let site = json_of(&evenkeel_api::site::SiteResource::default());
    assert!(site["region"].is_object());
    assert_eq!(site["region"]["parentRegion"], Value::Null);
}

/// Clients read a thing, change a field and write the whole back.
fn written_back<T: Input>(answer: &impl serde::Serialize) {
    let read = read::<T>(json_of(answer));
    assert!(read.is_ok(), "{:?}", read.err());
}

#[test]
fn what_is_read_can_be_written_back() {
    written_back::<RegionInput>(&RegionResource::default());
    written_back::<SiteInput>(&SiteResource::default());
    written_back::<HostInput>(&HostResource::default());
    written_back::<InstancePatch>(&InstanceResource::default());
    written_back::<OperatingSystemPatch>(&OperatingSystemResource::default());
    written_back::<OsUpdatePolicyInput>(&OsUpdatePolicy::default());
    written_back::<AssignmentInput>(&AssignmentResource::default());
    written_back::<PauseInput>(&PauseResource::default());
    written_back::<ProjectSettingsInput>(&ProjectSettings::default());
    written_back::<SingleScheduleInput>(&SingleScheduleResource::default());
    written_back::<RepeatedScheduleInput>(&RepeatedScheduleResource::default());
    let order = OrderResource {
        kind: OrderKind::Now.to_string(),
        ..OrderResource::default()
    };
    written_back::<OrderInput>(&order);
}

#[test]
fn a_repeated_schedule_counts_in_utc_unless_it_says_otherwise() {
    let body = json!({
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "durationSeconds": 60, "cronMinutes": "0", "cronHours": "2",
        "cronDayMonth": "*", "cronMonth": "*", "cronDayWeek": "*",
    });
    let schedule = read::<RepeatedScheduleInput>(body).expect("as the ancestor's clients send it");
    assert_eq!(schedule.time_zone, "UTC");
}

#[test]
fn an_unknown_key_is_an_error_that_names_it() {
    let error = read::<HostRegister>(json!({"name": "a", "colour": "red"})).expect_err("unknown");
    assert!(error.to_string().contains("`colour`"), "{error}");
}

#[test]
fn a_key_that_only_answers_have_is_ignored() {
    let body = json!({"resourceId": "os-00000001", "sha256": "a", "timestamps": null, "name": "n"});
    let os = read::<OperatingSystemInput>(body).expect("read-only keys do no harm");
    assert_eq!(os.name, "n");
}

#[test]
fn an_enumeration_has_only_its_own_texts() {
    let body = |status: &str| json!({"scheduleStatus": status, "startSeconds": 1});
    let good = read::<SingleScheduleInput>(body("SCHEDULE_STATUS_OS_UPDATE")).expect("known");
    assert_eq!(good.schedule_status, ScheduleStatus::OsUpdate);
    assert!(read::<SingleScheduleInput>(body("OS_UPDATE")).is_err());
    for kind in UpdatePolicyKind::ALL {
        assert_eq!(json_of(kind), json!(kind.as_str()));
    }
}

#[test]
fn the_document_has_the_texts_of_the_wire() {
    let schema = json_of(&UpdatePolicyKind::schema());
    let texts: Vec<_> = UpdatePolicyKind::ALL.iter().map(json_of).collect();
    assert_eq!(schema["enum"], json!(texts));
    assert_eq!(
        schema["description"],
        "What a policy wishes for: whatever is newest, or exactly what it names."
    );
}

#[test]
fn an_answer_is_read_back_and_a_newer_server_may_say_more() {
    let mut host = json_of(&HostResource {
        name: "edge-01".to_owned(),
        ..HostResource::default()
    });
    host["aFieldOfTomorrow"] = json!(1);
    let back: HostResource = serde_json::from_value(host).expect("readable");
    assert_eq!(back.name, "edge-01");
}

#[test]
fn the_features_are_those_that_the_clients_ask_for() {
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&OrchestratorInfo::of_version("0.1.0")).expect("JSON")
    );
}

#[test]
fn a_problem_begins_with_what_old_clients_search_for() {
    let problem = Problem {
        code: "FailedPrecondition".to_owned(),
        message: "a host with this uuid is already there".to_owned(),
        ..Problem::default()
    };
    let text = serde_json::to_string(&problem).expect("JSON");
    assert!(
        text.starts_with(r#"{"code":"FailedPrecondition","message":"a host"#),
        "{text}"
    );
}
