//! What resources refer to, read in one statement for any number of them.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use evenkeel_domain::custom_config::CustomConfig;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{
    CustomConfigId, LocalAccountId, OsId, PolicyId, ProviderId, RegionId, SiteId,
};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::place::{Region, Site};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::provider::Provider;
use sea_orm::{QueryResult, Value};
use serde::de::DeserializeOwned;

use crate::error::StoreError;
use crate::rows::{
    Kept, custom_config, local_account, os_profile, provider, region, site, update_policy,
};
use crate::tx::{Tx, ids_in, one};

/// What is wanted, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Operating systems.
    pub oses: BTreeSet<OsId>,
    /// Policies.
    pub policies: BTreeSet<PolicyId>,
    /// Policies, with the operating systems that they wish for.
    pub wishes: BTreeSet<PolicyId>,
    /// Sites, with the regions that they lie in, up to the top.
    pub sites: BTreeSet<SiteId>,
    /// Regions, with those that they lie in, up to the top.
    pub regions: BTreeSet<RegionId>,
    /// Who brings machines.
    pub providers: BTreeSet<ProviderId>,
    /// Accounts that may log in to nodes.
    pub local_accounts: BTreeSet<LocalAccountId>,
    /// Configuration of first starts.
    pub custom_configs: BTreeSet<CustomConfigId>,
}

impl Wanted {
    /// Adds where a host stands and who brought it.
    pub fn add_host(&mut self, host: &Host) {
        self.sites.extend(host.site);
        self.providers.extend(host.provider);
    }

    /// Adds what an instance runs and what is assigned to itself.
    pub fn add_instance(&mut self, instance: &Instance) {
        self.oses.insert(instance.summary.os);
        self.policies.extend(instance.policy);
    }
}

/// What of it there is, by id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Related {
    /// Operating systems.
    pub oses: HashMap<OsId, OsProfile>,
    /// Policies.
    pub policies: HashMap<PolicyId, UpdatePolicy>,
    /// Sites.
    pub sites: HashMap<SiteId, Site>,
    /// Regions.
    pub regions: HashMap<RegionId, Region>,
    /// Who brings machines.
    pub providers: HashMap<ProviderId, Provider>,
    /// Accounts that may log in to nodes.
    pub local_accounts: HashMap<LocalAccountId, LocalAccount>,
    /// Configuration of first starts.
    pub custom_configs: HashMap<CustomConfigId, CustomConfig>,
}

/// Reads what is wanted: one statement, and none if nothing is. What nobody wants is not looked for.
///
/// # Errors
/// The database cannot be reached.
pub async fn read(tx: &Tx, wanted: &Wanted) -> Result<Related, StoreError> {
    if *wanted == Wanted::default() {
        return Ok(Related::default());
    }
    let mut asked = Parameters(vec![tx.tenant().uuid().into()]);
    let sql = format!("SELECT {}", asked.sought(wanted).columns());
    match one(tx.conn(), sql, asked.0).await? {
        Some(row) => from_row(&row),
        None => Ok(Related::default()),
    }
}

/// What is wanted, as arrays of ids in SQL: parameters, or columns of the thing that it is read with. None where nothing is.
#[derive(Debug, Default)]
pub(crate) struct Sought {
    /// Operating systems.
    pub oses: Option<String>,
    /// Policies, also those that wish.
    pub policies: Option<String>,
    /// Of them those whose operating systems are wanted as well.
    pub wishes: Option<String>,
    /// Sites, with the regions that they lie in.
    pub sites: Option<String>,
    /// Regions, with those that they lie in.
    pub regions: Option<String>,
    /// Who brings machines.
    pub providers: Option<String>,
    /// Accounts that may log in to nodes.
    pub local_accounts: Option<String>,
    /// Configuration of first starts.
    pub custom_configs: Option<String>,
}

impl Sought {
    /// What [`Wanted::add_host`] and [`Wanted::add_instance`] want, of a host `h` and of what runs on it in a statement with
    /// [`crate::instances::JOINED`].
    pub(crate) fn of_node() -> Self {
        Self {
            oses: Some("ARRAY[n.os_id]".to_owned()),
            policies: Some("ARRAY[a.policy_id]".to_owned()),
            sites: Some("ARRAY[h.site_id]".to_owned()),
            providers: Some("ARRAY[h.provider_id]".to_owned()),
            ..Self::default()
        }
    }

    /// One column for each kind, for [`from_row`]. The first parameter of the statement is the project.
    pub(crate) fn columns(self) -> String {
        let above = above(self.sites.as_deref(), self.regions.as_deref());
        let oses = with_wished(self.oses, self.wishes);
        let columns = [
            rows("os_profiles", oses),
            rows("update_policies", self.policies),
            rows("sites", self.sites),
            rows("regions", above),
            rows("providers", self.providers),
            rows("local_accounts", self.local_accounts),
            rows("custom_configs", self.custom_configs),
        ];
        columns.join(", ")
    }
}

/// What the [`Sought::columns`] of a row hold.
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

/// The values of a statement. The first one is the project.
struct Parameters(Vec<Value>);

impl Parameters {
    /// What is wanted, as parameters.
    fn sought(&mut self, wanted: &Wanted) -> Sought {
        let policies = wanted.policies.union(&wanted.wishes);
        Sought {
            oses: self.ids(wanted.oses.iter().map(|id| id.bits())),
            policies: self.ids(policies.map(|id| id.bits())),
            wishes: self.ids(wanted.wishes.iter().map(|id| id.bits())),
            sites: self.ids(wanted.sites.iter().map(|id| id.bits())),
            regions: self.ids(wanted.regions.iter().map(|id| id.bits())),
            providers: self.ids(wanted.providers.iter().map(|id| id.bits())),
            local_accounts: self.ids(wanted.local_accounts.iter().map(|id| id.bits())),
            custom_configs: self.ids(wanted.custom_configs.iter().map(|id| id.bits())),
        }
    }

    /// An array of ids; none if there are none.
    fn ids(&mut self, ids: impl Iterator<Item = u32>) -> Option<String> {
        let ids: Vec<i32> = ids.map(u32::cast_signed).collect();
        if ids.is_empty() {
            return None;
        }
        self.0.push(ids.into());
        Some(ids_in(self.0.len()))
    }
}

/// The rows of a table with the ids of an array, as a column.
fn rows(table: &str, ids: Option<String>) -> String {
    let rows = match ids {
        None => "NULL::json".to_owned(),
        Some(ids) => format!(
            "(SELECT json_agg(t) FROM {table} t WHERE t.tenant_id = $1 AND t.id = ANY ({ids}))"
        ),
    };
    format!("{rows} AS all_{table}")
}

/// The operating systems of an array, and those that the policies of another one wish for.
fn with_wished(oses: Option<String>, policies: Option<String>) -> Option<String> {
    let wished = policies.map(|ids| {
        format!(
            "ARRAY(SELECT p.target_os_id FROM update_policies p WHERE p.tenant_id = $1 AND p.id = ANY ({ids}))"
        )
    });
    match (oses, wished) {
        (Some(oses), Some(wished)) => Some(format!("{oses} || {wished}")),
        (oses, wished) => oses.or(wished),
    }
}

/// The regions of an array and those of the sites of another one, with all that they lie in.
fn above(sites: Option<&str>, regions: Option<&str>) -> Option<String> {
    let of_sites = sites.map(|ids| {
        format!("SELECT s.region_id FROM sites s WHERE s.tenant_id = $1 AND s.id = ANY ({ids})")
    });
    let given = regions.map(|ids| format!("SELECT unnest({ids})"));
    let nearest: Vec<String> = of_sites.into_iter().chain(given).collect();
    if nearest.is_empty() {
        return None;
    }
    // One by one, by their ids: to the planner it could be many, and then it would read all regions of the project.
    Some(format!(
        "ARRAY(WITH RECURSIVE up (id) AS (({}) UNION \
         SELECT (SELECT r.parent_id FROM regions r WHERE r.tenant_id = $1 AND r.id = up.id) \
         FROM up WHERE up.id IS NOT NULL) SELECT id FROM up)",
        nearest.join(" UNION ")
    ))
}

/// The things of a column, by id.
fn by_id<M, T, K>(
    row: &QueryResult,
    column: &str,
    id: fn(&T) -> K,
) -> Result<HashMap<K, T>, StoreError>
where
    M: DeserializeOwned,
    T: TryFrom<M, Error = StoreError>,
    K: Eq + Hash,
{
    let rows: Option<Kept<Vec<M>>> = row.try_get("", column)?;
    let rows = rows.map(|kept| kept.0).unwrap_or_default();
    let thing = |row: M| -> Result<(K, T), StoreError> {
        let thing = T::try_from(row)?;
        Ok((id(&thing), thing))
    };
    rows.into_iter().map(thing).collect()
}
