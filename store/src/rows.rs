//! The tables as sea-orm sees them. Private and dull: what a row means is said in the file of its aggregate.
//! The columns are described in the migrations.

pub mod assignment;
pub mod change;
pub mod custom_config;
pub mod host;
pub mod host_hardware;
pub mod instance;
pub mod join_token;
pub mod local_account;
pub mod node_state;
pub mod node_token;
pub mod os_profile;
pub mod pause;
pub mod project;
pub mod project_settings;
pub mod provider;
pub mod region;
pub mod repeated_schedule;
pub mod run_event;
pub mod single_schedule;
pub mod site;
pub mod update_order;
pub mod update_policy;
pub mod update_run;

use sea_orm::sea_query::{ArrayType, ColumnType, Nullable, ValueType, ValueTypeErr};
use sea_orm::{TryGetableFromJson, Value};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// What a column of JSON holds. It is read as what it means, without a tree of values between.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Kept<T>(pub T);

impl<T: DeserializeOwned> TryGetableFromJson for Kept<T> {}

impl<T: Serialize> From<Kept<T>> for Value {
    fn from(kept: Kept<T>) -> Self {
        // What the domain keeps has only texts for keys, so it always is JSON.
        let json = serde_json::to_value(kept.0).unwrap_or_default();
        Self::Json(Some(Box::new(json)))
    }
}

impl<T: DeserializeOwned> ValueType for Kept<T> {
    fn try_from(value: Value) -> Result<Self, ValueTypeErr> {
        match value {
            Value::Json(Some(json)) => serde_json::from_value(*json).map_err(|_| ValueTypeErr),
            _ => Err(ValueTypeErr),
        }
    }

    fn type_name() -> String {
        "Kept".to_owned()
    }

    fn array_type() -> ArrayType {
        ArrayType::Json
    }

    fn column_type() -> ColumnType {
        ColumnType::Json
    }
}

impl<T> Nullable for Kept<T> {
    fn null() -> Value {
        Value::Json(None)
    }
}

/// A value of the domain that a column names. What it cannot mean is reported, never guessed.
pub fn named<T>(
    found: Option<T>,
    table: &'static str,
    row: i32,
    column: &'static str,
) -> Result<T, StoreError> {
    found.ok_or(StoreError::Corrupt { table, row, column })
}
