//! Empty response.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Empty object: the request succeeded, and there is nothing to return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Empty {}
