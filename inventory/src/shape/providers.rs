//! REST form of providers.

use evenkeel_api::Timestamps;
use evenkeel_api::provider::{self as wire, ProviderResource};
use evenkeel_domain::provider::{Provider, ProviderKind, ProviderVendor};

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
