//! Which schedules of a list are asked for.

use std::iter;

use axum::response::Response;
use chrono::{DateTime, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::filter::{Comparison, Condition, Filter, Resource, Test};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_store::listing::{self as stored, Listing};
use evenkeel_store::related;
use evenkeel_store::{StoreError, Tx, hosts};

use super::{repeated, target};
use crate::App;
use crate::call::Call;
use crate::extract::Params;
use crate::listing::{Rows, Wanted};
use crate::places::Places;
use crate::problem::Problem;

/// How many schedules are asked at once whether they are open.
const PIECE: u64 = 1_000;

/// Answers with lists of schedules.
pub async fn answer(
    lists: Vec<Box<dyn Rows>>,
    app: &App,
    call: &Call,
    params: &Params,
) -> Result<Response, Problem> {
    let mut wanted = Wanted::of(lists, params)?;
    let asked = Asked::of(params)?;
    let tx = app.snapshot(call).await?;
    if let Some(targets) = asked.upwards(&tx).await? {
        wanted.narrow(|resource| Some(meant_for(resource, &targets)));
    }
    if let Some(at) = asked.at {
        let mut open = Vec::new();
        for part in wanted.parts() {
            open.push((
                part.listing.resource,
                open_at(&tx, &part.listing, at).await?,
            ));
        }
        wanted.narrow(|resource| {
            let (_, filter) = open.iter().find(|(of, _)| *of == resource)?;
            Some(filter.clone())
        });
    }
    wanted.answer(app, call, tx).await
}

/// Which schedules are asked for.
struct Asked {
    of: Option<ScheduleTarget>,
    at: Option<Time>,
}

impl Asked {
    fn of(params: &Params) -> Result<Self, Problem> {
        let names = ["hostId", "siteId", "regionId"];
        let texts = names.map(|name| params.text(name).unwrap_or_default());
        let at = params.number("unixEpoch", 0, u32::MAX)?;
        Ok(Self {
            of: target(names, texts).map_err(Problem::of_parameter)?,
            at: at.map(|at| DateTime::UNIX_EPOCH + TimeDelta::seconds(at.into())),
        })
    }

    /// What is asked for and everything above it, from which it inherits schedules.
    async fn upwards(&self, tx: &Tx) -> Result<Option<Vec<ScheduleTarget>>, StoreError> {
        let Some(of) = self.of else {
            return Ok(None);
        };
        let host_site = match of {
            ScheduleTarget::Host(id) => hosts::find_many(tx, &[id])
                .await?
                .first()
                .and_then(|h| h.site),
            _ => None,
        };
        let (site, region) = match of {
            ScheduleTarget::Host(_) => (host_site, None),
            ScheduleTarget::Site(id) => (Some(id), None),
            ScheduleTarget::Region(id) => (None, Some(id)),
        };
        let wanted = related::Wanted {
            sites: site.into_iter().collect(),
            regions: region.into_iter().collect(),
            ..related::Wanted::default()
        };
        let related = related::read(tx, &wanted).await?;
        let places = Places::of(&related);
        let within = region.or_else(|| site.and_then(|id| places.region_of(id)));
        let above = places
            .upwards(within)
            .map(|region| ScheduleTarget::Region(region.id));
        let mut targets: Vec<_> = iter::once(of)
            .chain(site.map(ScheduleTarget::Site))
            .chain(above)
            .collect();
        targets.dedup();
        Ok(Some(targets))
    }
}

/// Schedules that are meant for one of these.
fn meant_for(resource: Resource, targets: &[ScheduleTarget]) -> Filter {
    let of = targets.iter().filter_map(|target| {
        let edge = match target {
            ScheduleTarget::Host(_) => "target_host",
            ScheduleTarget::Site(_) => "target_site",
            ScheduleTarget::Region(_) => "target_region",
        };
        Some(Filter::id_in(resource, &[resource.edge(edge)?], [target]))
    });
    Filter::Any(of.collect())
}

/// Of what a list has, those that are open at an instant.
async fn open_at(tx: &Tx, listing: &Listing, at: Time) -> Result<Filter, Problem> {
    if listing.resource == Resource::SingleSchedule {
        return between(listing.resource, at).ok_or_else(Problem::internal);
    }
    // The database cannot read a cron.
    let (mut open, mut from) = (Vec::new(), stored::From::Offset(0));
    loop {
        let chosen = stored::page(tx, listing, &from, PIECE).await?;
        open.extend(repeated::open_at(tx, &chosen.ids, at).await?);
        match chosen.next {
            Some(key) => from = stored::From::After(key),
            None => return Ok(Filter::id_in(listing.resource, &[], open)),
        }
    }
}

/// Schedules that open once, and are open at an instant: begun, and not over before it.
fn between(resource: Resource, at: Time) -> Option<Filter> {
    let (start, end) = (
        resource.field("start_seconds")?,
        resource.field("end_seconds")?,
    );
    let test = |field, condition| {
        Filter::Test(Test {
            path: Vec::new(),
            field,
            condition,
        })
    };
    Some(Filter::All(vec![
        test(start, Condition::Time(Comparison::LessOrEqual, at)),
        Filter::Any(vec![
            test(end, Condition::Unset),
            test(end, Condition::Time(Comparison::GreaterOrEqual, at)),
        ]),
    ]))
}
