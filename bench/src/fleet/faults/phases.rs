//! One fault after the other: some time without it, and as long with it.

use std::time::Duration;

use anyhow::Context as _;

use super::super::curve;
use super::super::drivers::{Drivers, Slice};
use super::super::plan::{Order, Second};
use super::super::storm::{self, Tale};
use super::super::{Bench, connect};
use super::Fault;
use super::figures::{Found, Healthy, Returned};
use super::strangers::{Manner, Strangers};
use crate::report::{millis, remark, tidy};

/// How long after a fault its last consequences are waited for. A request is two seconds late at most.
const AFTER: Duration = Duration::from_secs(5);

/// How many seconds before a return belong to its curve.
const BEFORE: u32 = 5;

impl Bench<'_> {
    /// Lets everything go wrong that was asked for.
    pub async fn suffer(&mut self) -> anyhow::Result<()> {
        let args = &self.args.faults;
        for fault in &args.faults {
            remark(&format!("what goes wrong on purpose: {}", fault.name()));
            let found = match fault {
                Fault::Loss | Fault::Duplication | Fault::Reorder => {
                    self.lead_astray(*fault).await?
                }
                Fault::Skew => self.mistime().await?,
                Fault::HalfOpen => self.bother(*fault, Manner::SILENT).await?,
                Fault::SlowReaders => self.bother(*fault, Manner::SLOW).await?,
                Fault::Return => self.send_away().await?,
            };
            found.check()?;
            self.report.faults.push(found);
        }
        Ok(())
    }

    /// Calls go astray.
    async fn lead_astray(&mut self, fault: Fault) -> anyhow::Result<Found> {
        let args = &self.args.faults;
        let before = self.without(fault).await?;
        self.drivers.order(&args.astray(fault)).await?;
        let with = self.slice(args.faults_for).await?;
        self.drivers.order(&Order::Calm).await?;
        let astray = with.all.astray;
        let injected = match fault {
            Fault::Loss => astray.lost,
            Fault::Duplication => astray.duplicated,
            _ => astray.late,
        };
        self.after(before, injected, &with).await
    }

    /// Nodes with wrong clocks tell of attempts.
    async fn mistime(&mut self) -> anyhow::Result<Found> {
        let args = &self.args.faults;
        let own = u32::try_from(self.roster.own().count())?;
        let tale = Tale {
            count: args.some(own),
            within: args.faults_for,
            wrong_clocks: true,
        };
        let before = self.without(Fault::Skew).await?;
        storm::begin(&self.station, &mut self.drivers, &self.roster, tale).await?;
        let with = self.slice(args.faults_for).await?;
        let told = storm::end(&self.station, &mut self.drivers, &self.roster, tale).await?;
        let found = self.after(before, tale.count.into(), &with).await?;
        Ok(Found {
            lost: Some(told.records.lost),
            misdated: Some(told.records.misdated),
            ..found
        })
    }

    /// Strangers come beside the fleet.
    async fn bother(&mut self, fault: Fault, manners: &'static [Manner]) -> anyhow::Result<Found> {
        let args = &self.args.faults;
        let count = usize::try_from(args.strangers(fault))?;
        let mut credentials = self.roster.spare_credentials(&self.station)?;
        credentials.truncate(count);
        let address = self.station.address("southbound")?.parse()?;
        let authority = self.station.authority()?;
        let dialer = connect::Dialer::new(address, authority.certificate_pem())?;
        let before = self.without(fault).await?;
        let first = self.args.connections();
        let mut strangers = None;
        // What they do when they come is the most of what they do.
        let come = || {
            strangers = Some(Strangers::come(manners, dialer.wire(), first, credentials));
            Vec::new()
        };
        let with = self.drivers.measure(args.faults_for, come).await?;
        let mut strangers = strangers.context("nobody came")?;
        let connections = strangers.seen();
        drop(strangers);
        let injected = connections.iter().map(|strays| strays.stood).sum();
        let found = self.after(before, injected, &with).await?;
        Ok(Found {
            connections,
            ..found
        })
    }

    /// Half of the fleet leaves, and comes back within a second.
    async fn send_away(&mut self) -> anyhow::Result<Found> {
        let args = &self.args.faults;
        let before = self.without(Fault::Return).await?;
        let from = before.until;
        self.drivers.order(&Order::Leave).await?;
        self.drivers.listen(args.away).await?;
        let zero = self.drivers.present() + 2;
        let at = self.drivers.beginning_of(zero);
        self.drivers.order(&Order::Return { at }).await?;
        let left = move |drivers: &Drivers| count(drivers, from, |second| second.left);
        let are_all_back =
            |drivers: &Drivers| left(drivers) <= count(drivers, zero, |second| second.back);
        let is_bad = |second: &Second| curve::has_failures(second) || 0 < second.back;
        let interval = self.args.interval;
        let recovered =
            curve::recovered(&mut self.drivers, zero, interval, is_bad, are_all_back).await?;
        self.drivers.order(&Order::Calm).await?;
        let end = recovered.unwrap_or_else(|| self.drivers.present());
        let during = self.drivers.sum(zero..end);
        let seconds = f64::from(end.saturating_sub(zero));
        let mut all = during.calls.clone();
        all.merge(&during.returned);
        let shown = zero.saturating_sub(BEFORE)..self.drivers.present();
        let returned = Returned {
            away_s: tidy(args.away.as_secs_f64()),
            recovered_s: recovered.map(|second| f64::from(second - zero)),
            calls: Healthy::of(&during.returned, seconds),
            p99_ms: all.latencies.percentile(0.99).map(millis),
            curve: curve::curve(&self.drivers, shown, zero),
        };
        let injected = left(&self.drivers);
        let with = Healthy::of(&during.calls, seconds);
        let found = self.found(before, injected, with).await?;
        Ok(Found {
            returned: Some(returned),
            ..found
        })
    }

    /// Measures without a fault that is to come.
    async fn without(&mut self, fault: Fault) -> anyhow::Result<Before> {
        let slice = self.slice(self.args.faults.faults_for).await?;
        self.station.reset_peak()?;
        Ok(Before {
            fault,
            without: Healthy::of(&slice.all.calls, slice.length()),
            until: slice.seconds.end,
            mib: self.station.rss_mib(),
        })
    }

    /// What came of a fault with which some time was measured.
    async fn after(
        &mut self,
        before: Before,
        injected: u64,
        with: &Slice,
    ) -> anyhow::Result<Found> {
        let with = Healthy::of(&with.all.calls, with.length());
        self.found(before, injected, with).await
    }

    async fn found(
        &mut self,
        before: Before,
        injected: u64,
        with: Healthy,
    ) -> anyhow::Result<Found> {
        let grown = self.station.peak_mib() - before.mib;
        self.drivers.listen(AFTER).await?;
        let since = before.until..self.drivers.present();
        let whole = self.drivers.sum(since).calls;
        Ok(Found {
            fault: before.fault,
            injected,
            without: before.without,
            with: Healthy {
                errors: whole.failed,
                refused: whole.refused,
                ..with
            },
            grown_mib_server: tidy(grown.max(0.0)),
            connections: Vec::new(),
            lost: None,
            misdated: None,
            returned: None,
        })
    }
}

/// How it was before a fault.
struct Before {
    fault: Fault,
    without: Healthy,
    /// The first second after that. What fails from then on is put down to the fault.
    until: u32,
    /// Memory of the server.
    mib: f64,
}

/// How many nodes did something, from a second on.
fn count(drivers: &Drivers, from: u32, of: impl Fn(&Second) -> u64) -> u64 {
    let seconds = drivers.seconds(from..drivers.present().saturating_add(1));
    seconds.map(|(_, second)| of(second)).sum()
}
