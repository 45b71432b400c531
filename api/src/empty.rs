//! The answer that says nothing.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An object without members: the thing was done, and there is nothing to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Empty {}
