//! `localAccounts`: accounts that may log in to nodes. They can be created and deleted, not
//! changed.

use axum::response::Response;
use evenkeel_api::local_account::{LocalAccountInput, LocalAccountList, LocalAccountResource};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::LocalAccountId;
use evenkeel_domain::local_account::{LocalAccount, LocalAccountSpec};
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, local_accounts};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

const RESOURCE_KIND: &str = "local_account_resource";

/// List local accounts
///
/// Returns each account with its public SSH key.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/localAccounts", tag = "day zero", params(InProject, ListParams),
    responses((status = 200, description = "The accounts.", body = LocalAccountList), Problem),
)]
pub async fn list_local_accounts(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(LocalAccounts, &call, &params).await
}

struct LocalAccounts;

impl Listable for LocalAccounts {
    const RESOURCE: Resource = Resource::LocalAccount;
    const KEY: &'static str = "localAccounts";
    type Item = LocalAccountResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<LocalAccountResource>, Problem> {
        let account_ids: Vec<_> = ids.iter().copied().map(LocalAccountId::from_bits).collect();
        let accounts = local_accounts::find_many(tx, &account_ids).await?;
        let accounts = in_order(ids, accounts, |account: &LocalAccount| account.id.bits());
        Ok(accounts.iter().map(resource).collect())
    }
}

/// Create a local account
///
/// The account may log in to nodes with its SSH key. An account cannot be changed later.
///
/// The server refuses a user name that exists (`failed-precondition`), and a key of another type
/// than `ssh-ed25519` or `ecdsa-sha2-nistp521` (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/localAccounts", tag = "day zero", params(InProject),
    request_body = LocalAccountInput,
    responses((status = 200, description = "The account.", body = LocalAccountResource), Problem),
)]
pub async fn create_local_account(
    call: Call,
    Json(body): Json<LocalAccountInput>,
) -> Answer<LocalAccountResource> {
    let tx = call.write().await?;
    let spec = LocalAccountSpec::parse(&body.username, &body.ssh_key)?;
    let account = local_accounts::create(&tx, &spec, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(resource(&account)))
}

/// Get a local account
///
/// Returns the account with its public SSH key.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/localAccounts/{resourceId}", tag = "day zero", params(Item),
    responses((status = 200, description = "The account.", body = LocalAccountResource), Problem),
)]
pub async fn get_local_account(call: Call, Path(path): Path<Item>) -> Answer<LocalAccountResource> {
    let tx = call.read().await?;
    let id: LocalAccountId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let account = local_accounts::find(&tx, id).await?;
    Ok(Json(resource(&account)))
}

/// Delete a local account
///
/// Deletes the account.
///
/// The server refuses an account that an instance has (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/localAccounts/{resourceId}", tag = "day zero", params(Item),
    responses((status = 200, description = "The account is deleted.", body = Empty), Problem),
)]
pub async fn delete_local_account(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: LocalAccountId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    local_accounts::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// REST form of a local account.
pub fn resource(account: &LocalAccount) -> LocalAccountResource {
    LocalAccountResource {
        resource_id: account.id.to_string(),
        local_account_id: account.id.to_string(),
        username: account.spec.username.clone(),
        ssh_key: account.spec.ssh_key.clone(),
        timestamps: Some(Timestamps::new(account.created_at, account.updated_at)),
    }
}
