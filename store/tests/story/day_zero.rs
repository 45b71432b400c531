//! Resources that exist before a node is installed: providers, configurations, accounts.

use evenkeel_domain::custom_config::CustomConfigSpec;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{CustomConfigId, LocalAccountId, ProviderId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccountSpec;
use evenkeel_domain::provider::{ProviderKind, ProviderSpec, ProviderVendor};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{
    Actor, Conflict, Store, StoreError, changes, custom_configs, hosts, instances, local_accounts,
    providers,
};

use crate::fixtures::{NOON, create_node, store_with_project, store_with_two_projects};

fn loca() -> ProviderSpec {
    ProviderSpec::parse(
        (ProviderKind::Baremetal, ProviderVendor::LenovoLoca),
        "LOCA 1",
        "https://loca/api",
        vec!["user".to_owned(), "pass|word".to_owned()],
        r#"{"autoProvision":true}"#,
    )
    .expect("a provider")
}

fn ntp() -> CustomConfigSpec {
    CustomConfigSpec::parse("ntp", "of all", "#cloud-config\nntp: {}\n").expect("a configuration")
}

fn ann() -> LocalAccountSpec {
    LocalAccountSpec::parse("ann", "ssh-ed25519 AAAAC3Nz ann@edge").expect("an account")
}

/// Creates one of each and uses them in a host and its instance.
pub async fn create_in_use(
    store: &Store,
    tenant: TenantId,
    host: &Host,
    instance: &Instance,
) -> (ProviderId, CustomConfigId, LocalAccountId) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let provider = providers::create(&tx, &loca(), NOON).await.expect("created");
    let config = custom_configs::create(&tx, &ntp(), NOON).await.expect("created");
    let account = local_accounts::create(&tx, &ann(), NOON).await.expect("created");
    tx.commit().await.expect("committed");
    let (host, instance) = (host.id.bits().cast_signed(), instance.id.bits().cast_signed());
    let used = format!(
        "BEGIN; SET LOCAL evenkeel.tenant = '{tenant}'; \
         UPDATE hosts SET provider_id = {} WHERE id = {host}; \
         UPDATE instances SET local_account_id = {} WHERE id = {instance}; \
         INSERT INTO instance_custom_configs VALUES ('{tenant}', {instance}, {}); COMMIT",
        provider.id.bits().cast_signed(),
        account.id.bits().cast_signed(),
        config.id.bits().cast_signed(),
    );
    store.execute_unprepared(&used).await.expect("in use");
    (provider.id, config.id, account.id)
}

#[tokio::test]
async fn credentials_of_a_provider_are_not_in_the_log() {
    let (store, tenant) = store_with_project().await;
    let actor = Actor {
        name: "ann".to_owned(),
        request_id: "one".to_owned(),
        client_address: String::new(),
    };
    let tx = store.tenant_as(tenant, &actor).await.expect("a transaction");
    let provider = providers::create(&tx, &loca(), NOON).await.expect("created");
    providers::delete(&tx, provider.id).await.expect("deleted");
    let logged =
        changes::list_for_resource(&tx, "provider", provider.id.bits()).await.expect("the log");
    assert_eq!(logged.len(), 2);
    for change in logged {
        let row = change.after.or(change.before).expect("the row");
        assert_eq!(row["name"], "LOCA 1");
        assert!(row.get("api_credentials").is_none(), "{row}");
    }
}

#[tokio::test]
async fn resources_read_as_they_were_written() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let provider = providers::create(&tx, &loca(), NOON).await.expect("created");
    let config = custom_configs::create(&tx, &ntp(), NOON).await.expect("created");
    let account = local_accounts::create(&tx, &ann(), NOON).await.expect("created");
    assert_eq!((&provider.spec, &config.spec, &account.spec), (&loca(), &ntp(), &ann()));
    assert_eq!((provider.created_at, account.updated_at), (NOON, NOON));

    let read = providers::find(&tx, provider.id).await.expect("found");
    assert_eq!(read, provider);
    let read = custom_configs::find(&tx, config.id).await.expect("found");
    assert_eq!(read, config);
    let read = local_accounts::find(&tx, account.id).await.expect("found");
    assert_eq!(read, account);
    let of_one = providers::find_many(&tx, &[provider.id, ProviderId::nth(99)]).await;
    assert_eq!(of_one.expect("existing entries"), [provider]);
    let of_one = custom_configs::find_many(&tx, &[config.id]).await;
    assert_eq!(of_one.expect("existing entries"), [config]);
    let of_one = local_accounts::find_many(&tx, &[account.id]).await;
    assert_eq!(of_one.expect("existing entries"), [account]);
}

#[tokio::test]
async fn a_name_is_unique_in_a_project() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let make = async |tenant: TenantId, which: &str| {
        let tx = store.tenant(tenant).await?;
        match which {
            "provider" => providers::create(&tx, &loca(), NOON).await.map(drop)?,
            "config" => custom_configs::create(&tx, &ntp(), NOON).await.map(drop)?,
            _ => local_accounts::create(&tx, &ann(), NOON).await.map(drop)?,
        }
        tx.commit().await
    };
    for (which, what, field) in [
        ("provider", "provider_resource", "name"),
        ("config", "custom_config_resource", "name"),
        ("account", "local_account_resource", "username"),
    ] {
        make(ours, which).await.expect("the first of its name");
        make(theirs, which).await.expect("the same name in another project");
        match make(ours, which).await {
            Err(StoreError::Conflict(conflict)) => {
                assert_eq!(conflict, Conflict::AlreadyExists { what, field });
            }
            other => panic!("{which}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_resource_in_use_cannot_be_deleted() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (provider, config, account) = create_in_use(&store, tenant, &host, &instance).await;
    let refused = async |which: &str| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let deleted = match which {
            "provider" => providers::delete(&tx, provider).await,
            "config" => custom_configs::delete(&tx, config).await,
            _ => local_accounts::delete(&tx, account).await,
        };
        match deleted {
            Err(StoreError::Conflict(conflict)) => conflict.to_string(),
            other => panic!("{which}: {other:?}"),
        }
    };
    let by = "is in use by";
    assert_eq!(refused("provider").await, format!("provider_resource {by} a host"));
    assert_eq!(refused("config").await, format!("custom_config_resource {by} an instance"));
    assert_eq!(refused("account").await, format!("local_account_resource {by} an instance"));

    let tx = store.tenant(tenant).await.expect("a transaction");
    instances::delete(&tx, instance.id).await.expect("deleted with its configurations");
    hosts::delete(&tx, host.id).await.expect("deleted");
    providers::delete(&tx, provider).await.expect("free");
    custom_configs::delete(&tx, config).await.expect("free");
    local_accounts::delete(&tx, account).await.expect("free");
    let again = local_accounts::delete(&tx, account).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
    let logged = changes::list_for_resource(&tx, "local_account", account.bits()).await;
    assert_eq!(logged.expect("a log").len(), 2);
}

#[tokio::test]
async fn resources_of_another_project_are_not_visible() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let (host, instance) = create_node(&store, ours, 1).await;
    let (provider, config, account) = create_in_use(&store, ours, &host, &instance).await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    let is_not_found =
        |error: Option<StoreError>| matches!(error, Some(StoreError::NotFound { .. }));
    assert!(is_not_found(providers::find(&tx, provider).await.err()));
    assert!(is_not_found(custom_configs::find(&tx, config).await.err()));
    assert!(is_not_found(local_accounts::find(&tx, account).await.err()));
    assert!(is_not_found(providers::delete(&tx, provider).await.err()));
    assert!(is_not_found(custom_configs::delete(&tx, config).await.err()));
    assert!(is_not_found(local_accounts::delete(&tx, account).await.err()));
}
