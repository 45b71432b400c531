//! Data that comes with the events of a run.

use crate::package::{PackageChange, PackageResult, record_results};
use crate::run::{ImageChange, RunReport, UpdateRun};

/// Data that came with an event. It is stored with the run, not with its state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// The planned changes, known before anything changes.
    pub plan: Option<Vec<PackageChange>>,
    /// The planned image.
    pub image: Option<ImageChange>,
    /// Version of the image that was booted at the end; `None` if not reported.
    pub booted: Option<String>,
    /// States of the packages after the run.
    pub results: Vec<PackageResult>,
    /// Last lines of output of the tool that failed.
    pub log: String,
    /// Report of the run; `None` if not sent.
    pub report: Option<RunReport>,
}

impl Evidence {
    /// Whether it can change the packages of its run.
    #[must_use]
    pub fn affects_packages(&self) -> bool {
        self.plan.is_some() || !self.results.is_empty()
    }

    /// Whether it can change the image of its run.
    #[must_use]
    pub fn affects_image(&self) -> bool {
        self.image.is_some() || self.booted.is_some()
    }
}

impl UpdateRun {
    /// Adds the evidence of events, oldest first. Goes through the planned packages once and not for each event, because
    /// a report has many events and a plan has many packages.
    pub fn add_evidence<'a>(&mut self, events: impl IntoIterator<Item = &'a Evidence>) {
        let (mut plan, mut results) = (None, Vec::new());
        for evidence in events {
            if let Some(newer) = &evidence.plan {
                plan = Some(newer);
                results.clear();
            }
            results.push(&evidence.results);
            if !evidence.log.is_empty() {
                self.log.clone_from(&evidence.log);
            }
            if let Some(report) = &evidence.report {
                self.report.clone_from(report);
            }
            if evidence.image.is_some() {
                self.image.clone_from(&evidence.image);
            }
            // The booted image is reported with the end, the planned image with the plan.
            if let Some(image) = &mut self.image
                && evidence.booted.is_some()
            {
                image.booted.clone_from(&evidence.booted);
            }
        }
        if let Some(plan) = plan {
            self.packages.clone_from(plan);
        }
        // The newest result of a package comes first.
        record_results(&mut self.packages, results.into_iter().rev().flatten());
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;
    use crate::Time;
    use crate::id::{InstanceId, RunId};
    use crate::package::ObservedPackage;
    use crate::run::{Origin, RunState};

    const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

    fn new_run() -> UpdateRun {
        UpdateRun {
            id: RunId::nth(1),
            instance: InstanceId::nth(1),
            name: String::new(),
            description: String::new(),
            attempt: None,
            origin: Origin { target: None, policy: None, order: None },
            state: RunState::Downloading { since: NOON },
            packages: Vec::new(),
            image: None,
            log: String::new(),
            report: RunReport::default(),
            sequence: 0,
            generation: 1,
            granted_at: None,
            started_at: NOON,
        }
    }

    fn any_change() -> impl Strategy<Value = PackageChange> {
        ("[ab]", "[xy]", prop::option::of("[1-3]")).prop_map(|(name, architecture, desired)| {
            PackageChange { name, architecture, desired, ..PackageChange::default() }
        })
    }

    fn any_result() -> impl Strategy<Value = PackageResult> {
        ("[abc]", "[xy]", "[a-d]").prop_map(|(name, architecture, state)| PackageResult {
            name,
            architecture,
            observed: ObservedPackage { version: None, state },
        })
    }

    prop_compose! {
        fn any_evidence()(
            plan in prop::option::of(prop::collection::vec(any_change(), 0..5)),
            results in prop::collection::vec(any_result(), 0..5),
            image in prop::option::of("[1-3]"),
            booted in prop::option::of("[1-3]"),
            log in "[a-c]?",
            remark in prop::option::of("[a-c]"),
        ) -> Evidence {
            let report = |remark| RunReport { remarks: vec![remark], ..RunReport::default() };
            Evidence {
                plan,
                image: image.map(|desired| ImageChange { desired, ..ImageChange::default() }),
                booted,
                results,
                log,
                report: remark.map(report),
            }
        }
    }

    /// The definition: one event after the other, with a search through its results for each planned package.
    fn add_naively(run: &mut UpdateRun, evidence: &Evidence) {
        if let Some(plan) = &evidence.plan {
            run.packages.clone_from(plan);
        }
        for change in &mut run.packages {
            let result = evidence.results.iter().find(|result| {
                result.name == change.name && result.architecture == change.architecture
            });
            if let Some(result) = result {
                change.observed = Some(result.observed.clone());
            }
        }
        if !evidence.log.is_empty() {
            run.log.clone_from(&evidence.log);
        }
        if let Some(report) = &evidence.report {
            run.report.clone_from(report);
        }
        if let Some(image) = &evidence.image {
            run.image = Some(image.clone());
        }
        if let (Some(image), Some(booted)) = (&mut run.image, &evidence.booted) {
            image.booted = Some(booted.clone());
        }
    }

    proptest! {
        #[test]
        fn the_evidence_of_a_report_is_that_of_its_events_one_by_one(
            reports in prop::collection::vec(prop::collection::vec(any_evidence(), 0..4), 0..3),
        ) {
            let (mut run, mut naive) = (new_run(), new_run());
            for events in &reports {
                run.add_evidence(events);
                for evidence in events {
                    add_naively(&mut naive, evidence);
                }
            }
            prop_assert_eq!(run, naive);
        }

        #[test]
        fn evidence_changes_only_what_it_affects(evidence in any_evidence()) {
            let mut run = new_run();
            run.image = Some(ImageChange::default());
            let before = run.clone();
            run.add_evidence([&evidence]);
            prop_assert!(evidence.affects_packages() || run.packages == before.packages);
            prop_assert!(evidence.affects_image() || run.image == before.image);
        }
    }
}
