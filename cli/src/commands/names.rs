//! What things are called whose ids stand in other things.

use std::collections::HashMap;

use evenkeel_api::policy::OsUpdatePolicy;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;

use crate::Failure;
use crate::client::Client;
use crate::pages::{self, Filter, Query, any};
use crate::resource::Resource;

/// How many ids fit into a filter.
const MOST: usize = 50;

/// What policies, sites and regions are called.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// Asks for the names of these things, of many of a kind at once.
    pub async fn of(client: &Client, ids: &[&str]) -> Result<Self, Failure> {
        let mut names = Self::default();
        names.add::<OsUpdatePolicy>(client, ids).await?;
        names.add::<SiteResource>(client, ids).await?;
        names.add::<RegionResource>(client, ids).await?;
        Ok(names)
    }

    async fn add<R: Resource>(&mut self, client: &Client, ids: &[&str]) -> Result<(), Failure> {
        let mut ids: Vec<_> = ids.iter().filter(|id| R::is_id(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        for some in ids.chunks(MOST) {
            let is = |id: &&&str| format!("resourceId == \"{id}\"");
            let query = Query::of(Filter::own(any(some.iter().map(is))));
            let all = pages::all::<R>(client, &query).await?;
            let named = all
                .iter()
                .map(|item| (item.id().to_owned(), item.name().to_owned()));
            self.0.extend(named);
        }
        Ok(())
    }

    /// The name and the id, as far as there is a name.
    pub fn label(&self, id: &str) -> String {
        match self.0.get(id).map(String::as_str) {
            None | Some("") => id.to_owned(),
            Some(name) => format!("{name} ({id})"),
        }
    }
}
