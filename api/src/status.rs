//! Status indications and labels.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

wire_enum! {
    /// Indication of a status.
    StatusIndication {
        Unspecified = "STATUS_INDICATION_UNSPECIFIED",
        Error = "STATUS_INDICATION_ERROR",
        InProgress = "STATUS_INDICATION_IN_PROGRESS",
        Idle = "STATUS_INDICATION_IDLE",
    }
}

/// Label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MetadataItem {
    /// Key, optionally with a `prefix/`.
    #[schema(
        pattern = "^([a-z.]{1,253}/([a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?)?|[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?)$"
    )]
    pub key: String,
    /// Value; may be empty.
    #[schema(pattern = "^([a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?)?$")]
    pub value: String,
}
