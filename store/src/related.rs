//! Resources that other resources refer to, read in one statement for any number of them.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use evenkeel_domain::custom_config::CustomConfig;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{
    CustomConfigId, LocalAccountId, OsId, PolicyId, ProviderId, RegionId, SiteId,
};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_domain::location::{Region, Site};
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::provider::Provider;
use sea_orm::{DbErr, QueryResult, Value};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::StoreError;
use crate::rows::{
    JsonColumn, custom_config, local_account, os_profile, provider, readable, region, site,
    update_policy,
};
use crate::tx::{Tx, ids_in, query_one};

/// The ids of resources to load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelatedIds {
    /// Operating systems.
    pub oses: BTreeSet<OsId>,
    pub policies: BTreeSet<PolicyId>,
    /// Policies to load together with the operating systems that they target.
    pub policies_with_os: BTreeSet<PolicyId>,
    /// Sites to load with all regions that contain them.
    pub sites: BTreeSet<SiteId>,
    /// Regions to load with all regions that contain them.
    pub regions: BTreeSet<RegionId>,
    pub providers: BTreeSet<ProviderId>,
    pub local_accounts: BTreeSet<LocalAccountId>,
    /// Configurations for the first start.
    pub custom_configs: BTreeSet<CustomConfigId>,
}

impl RelatedIds {
    /// Adds the site and the provider of a host.
    pub fn add_host(&mut self, host: &Host) {
        self.sites.extend(host.site);
        self.providers.extend(host.provider);
    }

    /// Adds the operating system and the directly assigned policy of an instance.
    pub fn add_instance(&mut self, instance: &Instance) {
        self.oses.insert(instance.summary.os);
        self.policies.extend(instance.policy);
    }
}

/// The loaded resources, by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Related {
    /// Operating systems.
    pub oses: HashMap<OsId, OsProfile>,
    pub policies: HashMap<PolicyId, UpdatePolicy>,
    pub sites: HashMap<SiteId, Site>,
    pub regions: HashMap<RegionId, Region>,
    pub providers: HashMap<ProviderId, Provider>,
    pub local_accounts: HashMap<LocalAccountId, LocalAccount>,
    /// Configurations for the first start.
    pub custom_configs: HashMap<CustomConfigId, CustomConfig>,
}

/// Loads the resources that exist: one statement, or none if there are no ids.
pub async fn load(tx: &Tx, ids: &RelatedIds) -> Result<Related, StoreError> {
    if *ids == RelatedIds::default() {
        return Ok(Related::default());
    }
    let mut parameters = Parameters(vec![tx.tenant().uuid().into()]);
    let sql = format!("SELECT {}", parameters.bind_ids(ids).columns());
    match query_one(tx.conn(), sql, parameters.0).await? {
        Some(row) => from_row(&row),
        None => Ok(Related::default()),
    }
}

/// The ids to load as SQL arrays: parameters, or columns of the statement that contains them. None
/// for a kind of which nothing is loaded.
#[derive(Debug, Default)]
pub(crate) struct RelatedIdsSql {
    /// Operating systems.
    pub oses: Option<String>,
    /// All policies, including `policies_with_os`.
    pub policies: Option<String>,
    /// The policies whose target operating systems are loaded as well.
    pub policies_with_os: Option<String>,
    /// Sites, with the regions that contain them.
    pub sites: Option<String>,
    /// Regions, with the regions that contain them.
    pub regions: Option<String>,
    pub providers: Option<String>,
    pub local_accounts: Option<String>,
    /// Configurations for the first start.
    pub custom_configs: Option<String>,
}

impl RelatedIdsSql {
    /// The ids of [`RelatedIds::add_host`] and [`RelatedIds::add_instance`] for a host `h` and its
    /// instance, in a statement with [`crate::instances::JOINS_SQL`].
    pub(crate) fn for_node() -> Self {
        Self {
            oses: Some("ARRAY[n.os_id]".to_owned()),
            policies: Some("ARRAY[a.policy_id]".to_owned()),
            sites: Some("ARRAY[h.site_id]".to_owned()),
            providers: Some("ARRAY[h.provider_id]".to_owned()),
            ..Self::default()
        }
    }

    /// One column per kind, for [`from_row`]. The first parameter of the statement is the project.
    pub(crate) fn columns(self) -> String {
        let enclosing = enclosing_regions(self.sites.as_deref(), self.regions.as_deref());
        let oses = with_target_oses(self.oses, self.policies_with_os);
        let columns = [
            rows_column("os_profiles", oses),
            rows_column("update_policies", self.policies),
            rows_column("sites", self.sites),
            rows_column("regions", enclosing),
            rows_column("providers", self.providers),
            rows_column("local_accounts", self.local_accounts),
            rows_column("custom_configs", self.custom_configs),
        ];
        columns.join(", ")
    }
}

/// Reads the [`RelatedIdsSql::columns`] of a row.
pub(crate) fn from_row(row: &QueryResult) -> Result<Related, StoreError> {
    Ok(Related {
        oses: by_id::<os_profile::Model, _, _>(row, "all_os_profiles", |os: &OsProfile| os.id)?,
        policies: by_id::<update_policy::Model, _, _>(
            row,
            "all_update_policies",
            |policy: &UpdatePolicy| policy.id,
        )?,
        sites: by_id::<site::Model, _, _>(row, "all_sites", |site: &Site| site.id)?,
        regions: by_id::<region::Model, _, _>(row, "all_regions", |region: &Region| region.id)?,
        providers: by_id::<provider::Model, _, _>(row, "all_providers", |provider: &Provider| {
            provider.id
        })?,
        local_accounts: by_id::<local_account::Model, _, _>(
            row,
            "all_local_accounts",
            |account: &LocalAccount| account.id,
        )?,
        custom_configs: by_id::<custom_config::Model, _, _>(
            row,
            "all_custom_configs",
            |config: &CustomConfig| config.id,
        )?,
    })
}

/// The values of a statement. The first value is the project.
struct Parameters(Vec<Value>);

impl Parameters {
    /// Adds ids as parameters.
    fn bind_ids(&mut self, ids: &RelatedIds) -> RelatedIdsSql {
        let policies = ids.policies.union(&ids.policies_with_os);
        RelatedIdsSql {
            oses: self.ids(ids.oses.iter().map(|id| id.bits())),
            policies: self.ids(policies.map(|id| id.bits())),
            policies_with_os: self.ids(ids.policies_with_os.iter().map(|id| id.bits())),
            sites: self.ids(ids.sites.iter().map(|id| id.bits())),
            regions: self.ids(ids.regions.iter().map(|id| id.bits())),
            providers: self.ids(ids.providers.iter().map(|id| id.bits())),
            local_accounts: self.ids(ids.local_accounts.iter().map(|id| id.bits())),
            custom_configs: self.ids(ids.custom_configs.iter().map(|id| id.bits())),
        }
    }

    /// Adds an array of ids; none for an empty array.
    fn ids(&mut self, ids: impl Iterator<Item = u32>) -> Option<String> {
        let ids: Vec<i32> = ids.map(u32::cast_signed).collect();
        if ids.is_empty() {
            return None;
        }
        self.0.push(ids.into());
        Some(ids_in(self.0.len()))
    }
}

/// The rows of a table with the ids of an array, as a JSON column.
fn rows_column(table: &str, ids: Option<String>) -> String {
    let rows = match ids {
        None => "NULL::json".to_owned(),
        Some(ids) => format!(
            "(SELECT json_agg(t) FROM {table} t WHERE t.tenant_id = $1 AND t.id = ANY ({ids}))"
        ),
    };
    format!("{rows} AS all_{table}")
}

/// The operating systems of an array, and the targets of the policies of another one.
fn with_target_oses(oses: Option<String>, policies: Option<String>) -> Option<String> {
    let targets = policies.map(|ids| {
        format!(
            "ARRAY(SELECT p.target_os_id FROM update_policies p WHERE p.tenant_id = $1 AND p.id = ANY ({ids}))"
        )
    });
    match (oses, targets) {
        (Some(oses), Some(targets)) => Some(format!("{oses} || {targets}")),
        (oses, targets) => oses.or(targets),
    }
}

/// The regions of an array and those of the sites of another one, with all regions that contain
/// them.
fn enclosing_regions(sites: Option<&str>, regions: Option<&str>) -> Option<String> {
    let site_regions = sites.map(|ids| {
        format!("SELECT s.region_id FROM sites s WHERE s.tenant_id = $1 AND s.id = ANY ({ids})")
    });
    let explicit = regions.map(|ids| format!("SELECT unnest({ids})"));
    let nearest: Vec<String> = site_regions.into_iter().chain(explicit).collect();
    if nearest.is_empty() {
        return None;
    }
    // Parent regions are looked up one by one: otherwise the planner expects many and reads all
    // regions.
    Some(format!(
        "ARRAY(WITH RECURSIVE up (id) AS (({}) UNION \
         SELECT (SELECT r.parent_id FROM regions r WHERE r.tenant_id = $1 AND r.id = up.id) \
         FROM up WHERE up.id IS NOT NULL) SELECT id FROM up)",
        nearest.join(" UNION ")
    ))
}

/// The resources of a JSON column, by id. Leaves out those that cannot be read.
fn by_id<M, T, K>(
    row: &QueryResult,
    column: &'static str,
    id: fn(&T) -> K,
) -> Result<HashMap<K, T>, StoreError>
where
    M: DeserializeOwned,
    T: TryFrom<M, Error = StoreError>,
    K: Eq + Hash,
{
    let rows: Option<JsonColumn<Vec<Box<RawValue>>>> = row.try_get("", column)?;
    let resources = rows.map(|json| json.0).unwrap_or_default().into_iter().filter_map(|row| {
        let model = serde_json::from_str::<M>(row.get());
        let model = model.map_err(|error| DbErr::Json(error.to_string()).into());
        let resource = readable(column, model.and_then(T::try_from))?;
        Some((id(&resource), resource))
    });
    Ok(resources.collect())
}
