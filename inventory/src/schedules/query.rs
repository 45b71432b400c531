//! Query parameters of lists of schedules.

use std::iter;

use axum::response::Response;
use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::filter::{Comparison, FieldCondition, FieldTest, Filter, Resource};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_store::listing::{self as stored, Listing};
use evenkeel_store::related;
use evenkeel_store::{StoreError, Tx, hosts};

use super::{parse_target, repeated};
use crate::call::Call;
use crate::extract::Params;
use crate::listing::{ListRequest, ListSource};
use crate::location_tree::LocationTree;
use crate::problem::Problem;

/// Number of repeated schedules whose cron expression is evaluated at once.
const CRON_CHECK_BATCH_SIZE: u64 = 1_000;

/// Responds with lists of schedules.
pub async fn answer_schedules(
    lists: Vec<Box<dyn ListSource>>,
    call: &Call,
    params: &Params,
) -> Result<Response, Problem> {
    let mut request = ListRequest::from_params(lists, params)?;
    let query = ScheduleQuery::from_params(params)?;
    let tx = request.open(call).await?;
    if let Some(targets) = query.target_chain(&tx).await? {
        request.narrow(|resource| Some(target_filter(resource, &targets)));
    }
    if let Some(at) = query.at {
        let mut open = Vec::new();
        for part in request.parts() {
            open.push((part.listing.resource, open_filter(&tx, &part.listing, at).await?));
        }
        request.narrow(|resource| {
            let (_, filter) = open.iter().find(|(of, _)| *of == resource)?;
            Some(filter.clone())
        });
    }
    request.answer(call, tx).await
}

/// Selects schedules by target and time.
struct ScheduleQuery {
    target: Option<ScheduleTarget>,
    at: Option<Time>,
}

impl ScheduleQuery {
    fn from_params(params: &Params) -> Result<Self, Problem> {
        let names = ["hostId", "siteId", "regionId"];
        let texts = names.map(|name| params.text(name).unwrap_or_default());
        let at = params.number("unixEpoch", 0, u32::MAX)?;
        Ok(Self {
            target: parse_target(names, texts).map_err(Problem::into_parameter)?,
            at: at.map(|at| DateTime::UNIX_EPOCH + TimeDelta::seconds(at.into())),
        })
    }

    /// The target and everything above it, from which it inherits schedules.
    async fn target_chain(&self, tx: &Tx) -> Result<Option<Vec<ScheduleTarget>>, StoreError> {
        let Some(queried) = self.target else {
            return Ok(None);
        };
        let host_site = match queried {
            ScheduleTarget::Host(id) => {
                hosts::find_many(tx, &[id]).await?.first().and_then(|h| h.site)
            }
            _ => None,
        };
        let (site, region) = match queried {
            ScheduleTarget::Host(_) => (host_site, None),
            ScheduleTarget::Site(id) => (Some(id), None),
            ScheduleTarget::Region(id) => (None, Some(id)),
        };
        let related_ids = related::RelatedIds {
            sites: site.into_iter().collect(),
            regions: region.into_iter().collect(),
            ..related::RelatedIds::default()
        };
        let related = related::load(tx, &related_ids).await?;
        let locations = LocationTree::from_related(&related);
        let within = region.or_else(|| site.and_then(|id| locations.region_of(id)));
        let above = locations.region_chain(within).map(|region| ScheduleTarget::Region(region.id));
        let mut targets: Vec<_> =
            iter::once(queried).chain(site.map(ScheduleTarget::Site)).chain(above).collect();
        targets.dedup();
        Ok(Some(targets))
    }
}

/// Filter for schedules with one of these targets.
fn target_filter(resource: Resource, targets: &[ScheduleTarget]) -> Filter {
    let filters = targets.iter().filter_map(|target| {
        let edge = match target {
            ScheduleTarget::Host(_) => "target_host",
            ScheduleTarget::Site(_) => "target_site",
            ScheduleTarget::Region(_) => "target_region",
        };
        Some(Filter::id_in(resource, &[resource.edge(edge)?], [target]))
    });
    Filter::Any(filters.collect())
}

/// Filter for the schedules of a list that are open at a time.
async fn open_filter(tx: &Tx, listing: &Listing, at: Time) -> Result<Filter, Problem> {
    if listing.resource == Resource::SingleSchedule {
        return single_open_filter(listing.resource, at).ok_or_else(Problem::internal);
    }
    // The database cannot evaluate cron expressions.
    let (mut open, mut from) = (Vec::new(), stored::PageStart::Offset(0));
    loop {
        let chosen = stored::page(tx, listing, &from, CRON_CHECK_BATCH_SIZE).await?;
        open.extend(repeated::find_open(tx, &chosen.ids, at).await?);
        match chosen.next {
            Some(key) => from = stored::PageStart::After(key),
            None => return Ok(Filter::id_in(listing.resource, &[], open)),
        }
    }
}

/// Filter for single schedules that are open at a time: started, and not ended before it.
fn single_open_filter(resource: Resource, at: Time) -> Option<Filter> {
    let (start, end) = (resource.field("start_seconds")?, resource.field("end_seconds")?);
    let test = |field, condition| Filter::Test(FieldTest { path: Vec::new(), field, condition });
    Some(Filter::All(vec![
        test(start, FieldCondition::Time(Comparison::LessOrEqual, at)),
        Filter::Any(vec![
            test(end, FieldCondition::Unset),
            test(end, FieldCondition::Time(Comparison::GreaterOrEqual, at)),
        ]),
    ]))
}
