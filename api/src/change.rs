//! Changes: who changed what, in a project and outside of projects.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Change of an object of a project, or of an object outside of projects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeResource {
    /// ID of the change.
    pub change_id: String,
    /// Time of the change.
    pub time: DateTime<Utc>,
    /// Who made the change: the subject of the token, with its issuer if that is not the server. For
    /// the enrolment of a node, `enrolment of` and the UUID of the machine. Empty for changes of the
    /// server itself.
    pub actor: String,
    /// Kind of the object, such as `host`, `policy` or `update_order`.
    pub kind: String,
    /// ID of the object. For an assignment, a pause or a slot, the ID of its scope. `project` for what
    /// exists once per project, and for projects themselves. The name of a user, and the `tokenId` of a
    /// token; empty if the change has no rows.
    pub object_id: String,
    /// Name of the object at the time of the change, and the subject of a token without a name; empty
    /// if it has none or the change has no rows.
    pub object_name: String,
    /// `create`, `update` or `delete`; `record` for an event, such as a refused request or a login.
    pub operation: String,
    /// Row of the database before the change; null for `create`, for changes of the server itself, and
    /// if `rowsOmitted` is true. Secrets are replaced by `(hidden)`.
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// Row of the database after the change; null for `delete`, otherwise as `before`.
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
    /// Whether a row is left out because it is too long: more than 16,384 bytes in a list or a stream,
    /// and more than 1,048,576 bytes in a single change.
    pub rows_omitted: bool,
    /// ID of the request that made the change; empty if there was none.
    pub request_id: String,
    /// IP address of the client; empty if it is not known.
    pub client_address: String,
}

/// A page of changes, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeList {
    /// Changes on this page.
    pub changes: Vec<ChangeResource>,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Value of `cursor` to watch what follows. The stream begins at or shortly before the newest
    /// change of the project, so it may repeat changes of this list: compare `changeId`.
    pub cursor: String,
}
