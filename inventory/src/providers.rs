//! `providers`: sources of machines. They can be created and deleted, not changed.

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::provider::{self as wire, ProviderInput, ProviderList, ProviderResource};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::ProviderId;
use evenkeel_domain::provider::{Provider, ProviderKind, ProviderSpec, ProviderVendor};
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, providers};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};
use crate::{App, Inventory};

const RESOURCE_KIND: &str = "provider_resource";

/// List providers
///
/// Returns each provider with its credentials, which are not fields of filters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/providers", tag = "day zero", params(InProject, ListParams),
    responses((status = 200, description = "The providers.", body = ProviderList), Problem),
)]
pub async fn list_providers(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(Providers, &app, &call, &params).await
}

struct Providers;

impl Listable for Providers {
    const RESOURCE: Resource = Resource::Provider;
    const KEY: &'static str = "providers";
    type Item = ProviderResource;

    async fn load(
        &self,
        _: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<ProviderResource>, Problem> {
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
/// (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/providers", tag = "day zero", params(InProject),
    request_body = ProviderInput,
    responses((status = 200, description = "The provider.", body = ProviderResource), Problem),
)]
pub async fn create_provider(
    State(app): State<App>,
    call: Call,
    Json(body): Json<ProviderInput>,
) -> Answer<ProviderResource> {
    let tx = app.write(&call).await?;
    let provider = providers::create(&tx, &parse_spec(body)?, app.clock.now()).await?;
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
pub async fn get_provider(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<ProviderResource> {
    let tx = app.read(&call).await?;
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
pub async fn delete_provider(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
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

/// REST form of a provider.
pub fn resource(provider: &Provider) -> ProviderResource {
    let spec = &provider.spec;
    ProviderResource {
        resource_id: provider.id.to_string(),
        provider_id: provider.id.to_string(),
        provider_kind: match spec.kind {
            ProviderKind::Unspecified => wire::ProviderKind::Unspecified,
            ProviderKind::Baremetal => wire::ProviderKind::Baremetal,
        },
        provider_vendor: match spec.vendor {
            ProviderVendor::Unspecified => wire::ProviderVendor::Unspecified,
            ProviderVendor::LenovoLxca => wire::ProviderVendor::LenovoLxca,
            ProviderVendor::LenovoLoca => wire::ProviderVendor::LenovoLoca,
        },
        name: spec.name.to_string(),
        api_endpoint: spec.api_endpoint.clone(),
        api_credentials: spec.api_credentials.clone(),
        config: spec.config.clone(),
        timestamps: Some(Timestamps::new(provider.created_at, provider.updated_at)),
    }
}
