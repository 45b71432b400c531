//! Builds the sync report of one project.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::{Finding, FindingKind};
use evenkeel_store::Conflict;
use evenkeel_store::os_details::{ImportOutcome, ImportedOs};
use evenkeel_store::os_reports::{MAX_FINDINGS, SyncFinding};

use crate::plan::{GoneRevision, Plan, RevisionFinding, is_remark};

/// Result of importing a plan into a project.
#[derive(Debug)]
pub(super) struct ReportBuilder<'a> {
    /// New OS profiles.
    pub created: u32,
    /// OS profiles with changed content.
    pub updated: u32,
    /// OS profiles without changes.
    pub unchanged: u32,
    /// Revisions that were not taken.
    pub refused: u32,
    plan: &'a Plan,
    /// Findings of this project, in addition to those of the plan.
    extra_findings: Vec<(RevisionFinding, Option<OsId>)>,
    /// OS profile of each revision, by repository and tag.
    os_ids: HashMap<(&'a str, &'a str), OsId>,
}

impl<'a> ReportBuilder<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        Self {
            created: 0,
            updated: 0,
            unchanged: 0,
            refused: plan.refused,
            plan,
            extra_findings: Vec::new(),
            os_ids: HashMap::new(),
        }
    }

    /// Adds the result of an import.
    pub fn add_outcome(&mut self, profile: &'a ImportedOs, outcome: ImportOutcome) {
        let os = match outcome {
            ImportOutcome::Created { os, renamed } => {
                self.created += 1;
                if renamed {
                    let why = format!(
                        "another operating system is called {:?}, so this one got another name",
                        profile.spec.name
                    );
                    self.add_finding(profile, FindingKind::NameTaken, &why, Some(os));
                }
                os
            }
            ImportOutcome::Updated(os) => {
                self.updated += 1;
                os
            }
            ImportOutcome::Unchanged(os) => {
                self.unchanged += 1;
                os
            }
            ImportOutcome::OtherImage(os) => {
                self.refused += 1;
                let why = format!(
                    "{os} has the version {} of the image with another digest, kind or address; it is not changed",
                    profile.spec.image_id
                );
                self.add_finding(profile, FindingKind::SameImageOtherDigest, &why, Some(os));
                return;
            }
        };
        let details = &profile.details;
        self.os_ids.insert((&details.repository, &details.revision), os);
    }

    /// Adds an OS profile that the database rejected.
    pub fn add_conflict(&mut self, profile: &ImportedOs, why: &Conflict) {
        self.refused += 1;
        let kind = match why {
            Conflict::AlreadyExists { .. } => FindingKind::NameTaken,
            _ => FindingKind::BadField,
        };
        self.add_finding(profile, kind, &why.to_string(), None);
    }

    /// Adds the finding that the revision of an existing OS profile is gone.
    pub fn add_gone(&mut self, revision: &GoneRevision, os: OsId) {
        let why = format!("the tag is gone from the registry; {os} stays");
        let entry = RevisionFinding {
            repository: revision.repository.clone(),
            tag: revision.tag.clone(),
            finding: Finding::new(FindingKind::Gone, why),
        };
        self.extra_findings.push((entry, Some(os)));
    }

    /// Whether everything that was selected is present.
    pub fn outcome(&self) -> CycleOutcome {
        let planned = self.plan.findings.iter().map(|entry| entry.finding.kind);
        let extra = self.extra_findings.iter().map(|(entry, _)| entry.finding.kind);
        if self.refused == 0 && planned.chain(extra).all(is_remark) {
            CycleOutcome::Good
        } else {
            CycleOutcome::Partial
        }
    }

    /// The findings for the report, at most [`MAX_FINDINGS`]. Unknown keys come last, so they are cut off first.
    pub fn findings(&self, now: Time) -> Vec<SyncFinding> {
        let os =
            |entry: &RevisionFinding| self.os_ids.get(&(&*entry.repository, &*entry.tag)).copied();
        let planned = self.plan.findings.iter().map(|entry| (entry, os(entry)));
        let extra = self.extra_findings.iter().map(|(entry, os)| (entry, *os));
        let mut all: Vec<(&RevisionFinding, Option<OsId>)> = planned.chain(extra).collect();
        all.sort_by(|(one, _), (other, _)| sort_key(one).cmp(&sort_key(other)));
        let row = |(entry, os): &(&RevisionFinding, Option<OsId>)| to_sync_finding(entry, *os, now);
        let mut findings: Vec<SyncFinding> = all.iter().take(MAX_FINDINGS).map(row).collect();
        if all.len() > MAX_FINDINGS {
            let more = all.len() - MAX_FINDINGS + 1;
            let why = format!("{more} more findings are not listed");
            let last = RevisionFinding {
                repository: String::new(),
                tag: String::new(),
                finding: Finding::new(FindingKind::TooLarge, why),
            };
            findings.truncate(MAX_FINDINGS - 1);
            findings.push(to_sync_finding(&last, None, now));
        }
        findings
    }

    fn add_finding(
        &mut self,
        profile: &ImportedOs,
        kind: FindingKind,
        why: &str,
        os: Option<OsId>,
    ) {
        let entry = RevisionFinding {
            repository: profile.details.repository.clone(),
            tag: profile.details.revision.clone(),
            finding: Finding::new(kind, why),
        };
        self.extra_findings.push((entry, os));
    }
}

/// Sort key of a finding: unknown keys come last.
fn sort_key(entry: &RevisionFinding) -> (bool, &str, &str) {
    let is_odd = entry.finding.kind == FindingKind::UnknownKey;
    (is_odd, &entry.repository, &entry.tag)
}

fn to_sync_finding(entry: &RevisionFinding, os: Option<OsId>, now: Time) -> SyncFinding {
    SyncFinding {
        repository: entry.repository.clone(),
        tag: entry.tag.clone(),
        kind: entry.finding.kind.name().to_owned(),
        field: entry.finding.field.clone(),
        message: entry.finding.message.clone(),
        os,
        since: now,
    }
}
