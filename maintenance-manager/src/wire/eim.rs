//! Converts between the types of `maintmgr.v1` and the domain. Other modules do not build the
//! generated types.

use evenkeel_domain::Time;
use evenkeel_domain::eim::{Answer, Sample, SampleKind, WireRepeatedSchedule};
use evenkeel_domain::os::{Image, OsKind};
use evenkeel_proto::maintmgr::platform_update_status_response::OsType;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    OsProfileUpdateSource, PlatformUpdateStatusResponse, RepeatedSchedule, SingleSchedule,
    UpdateSchedule, UpdateSource, UpdateStatus,
};

pub fn decode_sample(update_status: &UpdateStatus) -> Sample {
    let kind = match update_status.status_type() {
        StatusType::Unspecified => SampleKind::Unspecified,
        StatusType::UpToDate => SampleKind::UpToDate,
        StatusType::Started => SampleKind::Started,
        StatusType::Updated => SampleKind::Updated,
        StatusType::Failed => SampleKind::Failed,
        StatusType::Downloading => SampleKind::Downloading,
        StatusType::Downloaded => SampleKind::Downloaded,
    };
    Sample {
        kind,
        detail: update_status.status_detail.as_str().into(),
        profile_name: update_status.profile_name.clone(),
        os_image_id: update_status.os_image_id.clone(),
    }
}

/// Encodes the answer. Every part is present.
pub fn encode_answer(answer: Answer, kind: OsKind) -> PlatformUpdateStatusResponse {
    let os_type = match kind {
        OsKind::Mutable => OsType::Mutable,
        OsKind::Immutable => OsType::Immutable,
    };
    let repeated: Vec<_> = answer.repeated.into_iter().map(encode_repeated).collect();
    #[expect(deprecated, reason = "very old agents read nothing else")]
    let schedule = UpdateSchedule {
        single_schedule: answer.single.map(|(start, end)| SingleSchedule {
            start_seconds: seconds(start),
            end_seconds: seconds(end),
        }),
        repeated_schedule: repeated.first().cloned(),
        repeated_schedules: repeated,
    };
    PlatformUpdateStatusResponse {
        update_source: Some(UpdateSource {
            kernel_command: answer.kernel_command,
            custom_repos: answer.custom_repos,
            ..UpdateSource::default()
        }),
        update_schedule: Some(schedule),
        installed_packages: answer.installed_packages,
        os_type: os_type.into(),
        os_profile_update_source: Some(answer.image.map(encode_image).unwrap_or_default()),
    }
}

fn encode_image(image: Image) -> OsProfileUpdateSource {
    OsProfileUpdateSource {
        os_image_url: image.url,
        os_image_id: image.image_id,
        os_image_sha: image.sha256.as_str().to_owned(),
        profile_name: image.profile_name,
        profile_version: String::new(),
    }
}

fn encode_repeated(schedule: WireRepeatedSchedule) -> RepeatedSchedule {
    RepeatedSchedule {
        duration_seconds: schedule.duration_seconds,
        cron_minutes: schedule.cron_minutes,
        cron_hours: schedule.cron_hours,
        cron_day_month: schedule.cron_day_month,
        cron_month: schedule.cron_month,
        cron_day_week: schedule.cron_day_week,
    }
}

fn seconds(time: Time) -> u64 {
    u64::try_from(time.timestamp()).unwrap_or(0)
}
