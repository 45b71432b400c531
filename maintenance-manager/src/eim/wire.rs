//! The ancestor's words into ours and back. The generated types of `maintmgr.v1` end here.

use evenkeel_domain::Time;
use evenkeel_domain::eim::{Answer, Sample, SampleKind};
use evenkeel_domain::os::OsKind;
use evenkeel_domain::text::storable;
use evenkeel_proto::maintmgr::platform_update_status_response::OsType;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_proto::maintmgr::{
    OsProfileUpdateSource, PlatformUpdateStatusResponse, SingleSchedule, UpdateSchedule,
    UpdateSource, UpdateStatus,
};

/// The most that is kept of a node's list of packages, in bytes (northbound section 1.3).
const MAX_AVAILABLE: usize = 500_000;

/// The sample that a status is.
pub fn sample(said: &UpdateStatus) -> Sample {
    let kind = match said.status_type() {
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
        detail: storable(&said.status_detail),
    }
}

/// What the node says could be updated; none if it says more than can be kept, so that nothing is lost for it.
pub fn available(said: UpdateStatus) -> Option<String> {
    let text = storable(&said.os_update_available);
    (text.len() <= MAX_AVAILABLE).then_some(text)
}

/// The answer, with every part present.
pub fn answer(answer: Answer, kind: OsKind) -> PlatformUpdateStatusResponse {
    let os_type = match kind {
        OsKind::Mutable => OsType::Mutable,
        OsKind::Immutable => OsType::Immutable,
    };
    PlatformUpdateStatusResponse {
        update_source: Some(UpdateSource {
            kernel_command: answer.kernel_command,
            custom_repos: answer.custom_repos,
            ..UpdateSource::default()
        }),
        update_schedule: Some(UpdateSchedule {
            single_schedule: answer.single.map(|(start, end)| SingleSchedule {
                start_seconds: seconds(start),
                end_seconds: seconds(end),
            }),
            ..UpdateSchedule::default()
        }),
        installed_packages: answer.installed_packages,
        os_type: os_type.into(),
        os_profile_update_source: Some(OsProfileUpdateSource::default()),
    }
}

fn seconds(time: Time) -> u64 {
    u64::try_from(time.timestamp()).unwrap_or(0)
}
