//! `providers`: sources of machines. They can be created and deleted, not changed.

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::provider::{self as wire, ProviderInput, ProviderList, ProviderResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::ProviderId;
use evenkeel_domain::provider::{Provider, ProviderKind, ProviderSpec, ProviderVendor};
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, providers};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::providers::resource;
use crate::shape::{Answer, InProject, Item};

const RESOURCE_KIND: &str = "provider_resource";

/// List providers
///
/// Returns each provider with its credentials, which are not fields of filters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/providers", tag = "day zero", params(InProject, ListParams),
    responses((status = 200, description = "The providers.", body = ProviderList), Problem),
)]
pub async fn list_providers(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(Providers, &call, &params).await
}

struct Providers;

impl Listable for Providers {
    const RESOURCE: Resource = Resource::Provider;
    const KEY: &'static str = "providers";
    type Item = ProviderResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<ProviderResource>, Problem> {
        let provider_ids: Vec<_> = ids.iter().copied().map(ProviderId::from_bits).collect();
        let providers = providers::find_many(tx, &provider_ids).await?;
        let providers = in_order(ids, providers, |provider: &Provider| provider.id.bits());
        Ok(providers.iter().map(resource).collect())
    }
}

/// Create a provider
///
/// A provider cannot be changed later. The server stores the credentials and the configuration for
/// EIM's clients, and does not use them.
///
/// The server refuses a name that exists (`failed-precondition`), and an unspecified `providerKind`
/// and an empty `apiEndpoint` (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/providers", tag = "day zero", params(InProject),
    request_body = ProviderInput,
    responses((status = 200, description = "The provider.", body = ProviderResource), Problem),
)]
pub async fn create_provider(
    call: Call,
    Json(body): Json<ProviderInput>,
) -> Answer<ProviderResource> {
    let tx = call.write().await?;
    let provider = providers::create(&tx, &parse_spec(body)?, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(resource(&provider)))
}

/// Get a provider
///
/// Returns the provider with its credentials.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/providers/{resourceId}", tag = "day zero", params(Item),
    responses((status = 200, description = "The provider.", body = ProviderResource), Problem),
)]
pub async fn get_provider(call: Call, Path(path): Path<Item>) -> Answer<ProviderResource> {
    let tx = call.read().await?;
    let id: ProviderId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let provider = providers::find(&tx, id).await?;
    Ok(Json(resource(&provider)))
}

/// Delete a provider
///
/// Deletes the provider with its credentials.
///
/// The server refuses a provider that a host refers to (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/providers/{resourceId}", tag = "day zero", params(Item),
    responses((status = 200, description = "The provider is deleted.", body = Empty), Problem),
)]
pub async fn delete_provider(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: ProviderId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    providers::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_spec(body: ProviderInput) -> Result<ProviderSpec, Problem> {
    let kind = match body.provider_kind {
        wire::ProviderKind::Unspecified => ProviderKind::Unspecified,
        wire::ProviderKind::Baremetal => ProviderKind::Baremetal,
    };
    let vendor = match body.provider_vendor {
        wire::ProviderVendor::Unspecified => ProviderVendor::Unspecified,
        wire::ProviderVendor::LenovoLxca => ProviderVendor::LenovoLxca,
        wire::ProviderVendor::LenovoLoca => ProviderVendor::LenovoLoca,
    };
    Ok(ProviderSpec::parse(
        (kind, vendor),
        &body.name,
        &body.api_endpoint,
        body.api_credentials,
        &body.config,
    )?)
}
