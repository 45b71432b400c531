//! `customConfigs`: configuration for the first boot of a machine. It can be created and deleted,
//! not changed.

use axum::response::Response;
use evenkeel_api::custom_config::{CustomConfigInput, CustomConfigList, CustomConfigResource};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::custom_config::{CustomConfig, CustomConfigSpec};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::CustomConfigId;
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, custom_configs};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

const RESOURCE_KIND: &str = "custom_config_resource";

/// List custom configs
///
/// Returns each configuration with its complete text.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/customConfigs", tag = "day zero", params(InProject, ListParams),
    responses((status = 200, description = "The configurations.", body = CustomConfigList), Problem),
)]
pub async fn list_custom_configs(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(CustomConfigs, &call, &params).await
}

struct CustomConfigs;

impl Listable for CustomConfigs {
    const RESOURCE: Resource = Resource::CustomConfig;
    const KEY: &'static str = "customConfigs";
    type Item = CustomConfigResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<CustomConfigResource>, Problem> {
        let config_ids: Vec<_> = ids.iter().copied().map(CustomConfigId::from_bits).collect();
        let configs = custom_configs::find_many(tx, &config_ids).await?;
        let configs = in_order(ids, configs, |config: &CustomConfig| config.id.bits());
        Ok(configs.iter().map(resource).collect())
    }
}

/// Create a custom config
///
/// A configuration cannot be changed later. Instances refer to it when they are created.
///
/// The server refuses a name that exists (`failed-precondition`), and an empty configuration
/// (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/customConfigs", tag = "day zero", params(InProject),
    request_body = CustomConfigInput,
    responses((status = 200, description = "The configuration.", body = CustomConfigResource), Problem),
)]
pub async fn create_custom_config(
    call: Call,
    Json(body): Json<CustomConfigInput>,
) -> Answer<CustomConfigResource> {
    let tx = call.write().await?;
    let spec = CustomConfigSpec::parse(&body.name, &body.description, &body.config)?;
    let config = custom_configs::create(&tx, &spec, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(resource(&config)))
}

/// Get a custom config
///
/// Returns the configuration with its complete text.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/customConfigs/{resourceId}", tag = "day zero", params(Item),
    responses((status = 200, description = "The configuration.", body = CustomConfigResource), Problem),
)]
pub async fn get_custom_config(call: Call, Path(path): Path<Item>) -> Answer<CustomConfigResource> {
    let tx = call.read().await?;
    let id: CustomConfigId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let config = custom_configs::find(&tx, id).await?;
    Ok(Json(resource(&config)))
}

/// Delete a custom config
///
/// Deletes the configuration.
///
/// The server refuses a configuration that an instance was created with (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/customConfigs/{resourceId}", tag = "day zero", params(Item),
    responses((status = 200, description = "The configuration is deleted.", body = Empty), Problem),
)]
pub async fn delete_custom_config(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: CustomConfigId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    custom_configs::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// REST form of a custom config.
pub fn resource(config: &CustomConfig) -> CustomConfigResource {
    CustomConfigResource {
        resource_id: config.id.to_string(),
        name: config.spec.name.clone(),
        description: config.spec.description.clone(),
        config: config.spec.config.clone(),
        timestamps: Some(Timestamps::new(config.created_at, config.updated_at)),
    }
}
