//! The tables as sea-orm entities. The module of each aggregate interprets its rows. The migrations
//! describe the columns.

/// Defines the model and the entity of a table of a project. The first column is the tenant. With a
/// `resource`, which errors name, the second one is the number of the resource.
macro_rules! table {
    (
        $table:tt, resource $resource:literal;
        $(#[$attribute:meta])*
        pub struct Model { $($columns:tt)* }
    ) => {
        $crate::rows::table! {
            $table;
            $(#[$attribute])*
            pub struct Model {
                #[sea_orm(primary_key, auto_increment = false)]
                pub id: i32,
                $($columns)*
            }
        }

        impl $crate::keyed::KeyedEntity for Entity {
            const ID: Column = Column::Id;
            const RESOURCE: &'static str = $resource;
        }
    };
    (
        $table:tt;
        $(#[$attribute:meta])*
        pub struct Model { $($columns:tt)* }
    ) => {
        #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
        $(#[$attribute])*
        #[sea_orm(table_name = $table)]
        pub struct Model {
            #[sea_orm(primary_key, auto_increment = false)]
            pub tenant_id: Uuid,
            $($columns)*
        }

        #[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
        pub enum Relation {}

        impl ActiveModelBehavior for ActiveModel {}

        impl $crate::tx::Scoped for Entity {
            const TENANT: Column = Column::TenantId;
        }

        $crate::rows::table!(@fields { $($columns)* });
    };
    (@fields { $($(#[$attribute:meta])* pub $column:ident: $type:ty),* $(,)? }) => {
        $crate::fields::fields!(Model { tenant_id, $($column),* });
    };
}
pub(crate) use table;

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
use crate::unreadable_log::LoggedErrors;

/// The value of a JSON column, decoded without an intermediate `serde_json::Value`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct JsonColumn<T>(pub T);

impl<T: DeserializeOwned> TryGetableFromJson for JsonColumn<T> {}

impl<T: Serialize> From<JsonColumn<T>> for Value {
    fn from(column: JsonColumn<T>) -> Self {
        // Keys of maps in the domain are texts, so the conversion to JSON cannot fail.
        let json = serde_json::to_value(column.0).unwrap_or_default();
        Self::Json(Some(Box::new(json)))
    }
}

impl<T: DeserializeOwned> ValueType for JsonColumn<T> {
    fn try_from(value: Value) -> Result<Self, ValueTypeErr> {
        match value {
            Value::Json(Some(json)) => serde_json::from_value(*json).map_err(|_| ValueTypeErr),
            _ => Err(ValueTypeErr),
        }
    }

    fn type_name() -> String {
        "JsonColumn".to_owned()
    }

    fn array_type() -> ArrayType {
        ArrayType::Json
    }

    fn column_type() -> ColumnType {
        ColumnType::Json
    }
}

impl<T> Nullable for JsonColumn<T> {
    fn null() -> Value {
        Value::Json(None)
    }
}

/// The value of a row of a list. A row that this release cannot read, because a newer one wrote it,
/// must not hide the others: it is logged and left out. The list says how many rows are missing.
pub fn readable<T>(table: &'static str, row: Result<T, StoreError>) -> Option<T> {
    static LOGGED_ERRORS: LoggedErrors = LoggedErrors::new();
    row.inspect_err(|error| {
        if let Some(error) = LOGGED_ERRORS.insert(error) {
            tracing::error!(table, %error, "a stored row cannot be read; lists leave it out");
        }
    })
    .ok()
}

/// Returns the decoded value of a column, or [`StoreError::Corrupt`] if it could not be decoded.
pub fn or_corrupt<T>(
    value: Option<T>,
    table: &'static str,
    row: i32,
    column: &'static str,
) -> Result<T, StoreError> {
    value.ok_or(StoreError::Corrupt { table, row, column })
}
