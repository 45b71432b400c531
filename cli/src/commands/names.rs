//! Names of the resources that other resources refer to by ID.

use std::collections::HashMap;

use evenkeel_api::host::HostResource;
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::policy::OsUpdatePolicy;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, Filter, LimitOptions, Query, any_condition};
use crate::output::Printer;
use crate::page::Cell;
use crate::resource::Resource;

/// Maximum number of IDs in one filter.
const MAX_IDS_PER_FILTER: usize = 50;

/// Prints a list with the names of the resources that it refers to. `ids` returns the referenced IDs,
/// `row` the cells with the names.
pub async fn list_with_names<R: Resource>(
    limit: LimitOptions,
    ids: fn(&R) -> Vec<&str>,
    row: fn(&R, &Names) -> Vec<Cell>,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let items = listing::fetch_with_progress::<R>(client, &limit.query(), printer).await?;
    if items.is_empty() || !printer.is_human_readable() {
        return printer.print_list(&items);
    }
    let ids: Vec<_> = items.iter().flat_map(ids).collect();
    let names = Names::fetch(client, &ids).await?;
    let rows = items.iter().map(|item| row(item, &names));
    printer.print_list_rows::<R>(rows)
}

/// Names of policies, sites, regions, hosts and instances by ID.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// Fetches the names for these IDs, several per request.
    pub async fn fetch(client: &Client, ids: &[&str]) -> Result<Self, Failure> {
        let mut names = Self::default();
        names.add::<OsUpdatePolicy>(client, ids).await?;
        names.add::<SiteResource>(client, ids).await?;
        names.add::<RegionResource>(client, ids).await?;
        names.add::<HostResource>(client, ids).await?;
        names.add::<InstanceResource>(client, ids).await?;
        Ok(names)
    }

    /// Fetches the names for these IDs if people read the output.
    pub async fn fetch_if_shown(
        client: &Client,
        ids: &[&str],
        printer: &Printer<'_>,
    ) -> Result<Self, Failure> {
        if printer.is_human_readable() {
            Self::fetch(client, ids).await
        } else {
            Ok(Self::default())
        }
    }

    async fn add<R: Resource>(&mut self, client: &Client, ids: &[&str]) -> Result<(), Failure> {
        let mut ids: Vec<_> = ids.iter().filter(|id| R::is_id(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        for chunk in ids.chunks(MAX_IDS_PER_FILTER) {
            let is = |id: &&&str| format!("resourceId == \"{id}\"");
            let query = Query::from_filter(Filter::internal(any_condition(chunk.iter().map(is))));
            let all = listing::fetch_all::<R>(client, &query).await?;
            let entries = all.iter().map(|item| (item.id().to_owned(), item.name().to_owned()));
            self.0.extend(entries);
        }
        Ok(())
    }

    /// Name and ID, or only the ID if there is no name.
    pub fn label(&self, id: &str) -> String {
        match self.0.get(id).map(String::as_str) {
            None | Some("") => id.to_owned(),
            Some(name) => format!("{name} ({id})"),
        }
    }
}
