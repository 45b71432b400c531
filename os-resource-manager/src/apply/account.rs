//! What is said in the end of what was brought into a project.

use std::collections::HashMap;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::{Finding, FindingKind};
use evenkeel_store::Conflict;
use evenkeel_store::os_inside::{Kept, Made};
use evenkeel_store::os_reports::{MAX_FINDINGS, Row};

use crate::plan::{Gone, Plan, Told, is_remark};

/// What became of a plan in a project.
#[derive(Debug)]
pub(super) struct Account<'a> {
    /// How many operating systems are new.
    pub made: u32,
    /// How many say something else now.
    pub refreshed: u32,
    /// How many said that already.
    pub same: u32,
    /// How many revisions were not taken.
    pub refused: u32,
    plan: &'a Plan,
    /// What was found in the project besides what the plan tells.
    found: Vec<(Told, Option<OsId>)>,
    /// Which operating system a revision is, by repository and tag.
    known: HashMap<(&'a str, &'a str), OsId>,
}

impl<'a> Account<'a> {
    /// One of a plan of which nothing was brought yet.
    pub fn of(plan: &'a Plan) -> Self {
        Self {
            made: 0,
            refreshed: 0,
            same: 0,
            refused: plan.refused,
            plan,
            found: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// Notes what became of an operating system.
    pub fn note(&mut self, made: &'a Made, kept: Kept) {
        let os = match kept {
            Kept::Made { os, renamed } => {
                self.made += 1;
                if renamed {
                    let why = format!(
                        "another operating system is called {:?}, so this one has another name",
                        made.spec.name
                    );
                    self.find(made, FindingKind::NameTaken, &why, Some(os));
                }
                os
            }
            Kept::Refreshed(os) => {
                self.refreshed += 1;
                os
            }
            Kept::Same(os) => {
                self.same += 1;
                os
            }
            Kept::OtherImage(os) => {
                self.refused += 1;
                let why = format!(
                    "{os} has the version {} of the image, but another digest, kind or address of it; it stays as it is",
                    made.spec.image_id
                );
                self.find(made, FindingKind::SameImageOtherDigest, &why, Some(os));
                return;
            }
        };
        let inside = &made.inside;
        self.known
            .insert((&inside.repository, &inside.revision), os);
    }

    /// Notes that the database does not take an operating system.
    pub fn refuse(&mut self, made: &Made, why: &Conflict) {
        self.refused += 1;
        let kind = match why {
            Conflict::Taken { .. } => FindingKind::NameTaken,
            _ => FindingKind::BadField,
        };
        self.find(made, kind, &why.to_string(), None);
    }

    /// Notes that the revision of an operating system that is here is gone.
    pub fn note_gone(&mut self, gone: &Gone, os: OsId) {
        let why = format!("the tag is not there any more; {os} stays");
        let told = Told {
            repository: gone.repository.clone(),
            tag: gone.tag.clone(),
            finding: Finding::new(FindingKind::Gone, why),
        };
        self.found.push((told, Some(os)));
    }

    /// Whether all that was wanted is there.
    pub fn outcome(&self) -> CycleOutcome {
        let told = self.plan.told.iter().map(|told| told.finding.kind);
        let found = self.found.iter().map(|(told, _)| told.finding.kind);
        if self.refused == 0 && told.chain(found).all(is_remark) {
            CycleOutcome::Good
        } else {
            CycleOutcome::Partly
        }
    }

    /// What people are told. What has no room is left out, from the end.
    pub fn rows(&self, now: Time) -> Vec<Row> {
        let os = |told: &Told| self.known.get(&(&*told.repository, &*told.tag)).copied();
        let told = self.plan.told.iter().map(|told| (told, os(told)));
        let found = self.found.iter().map(|(told, os)| (told, *os));
        let mut all: Vec<(&Told, Option<OsId>)> = told.chain(found).collect();
        all.sort_by(|(one, _), (other, _)| place(one).cmp(&place(other)));
        let row = |(told, os): &(&Told, Option<OsId>)| row_of(told, *os, now);
        let mut rows: Vec<Row> = all.iter().take(MAX_FINDINGS).map(row).collect();
        if all.len() > MAX_FINDINGS {
            let more = all.len() - MAX_FINDINGS + 1;
            let why = format!("{more} more findings have no room here");
            let last = Told {
                repository: String::new(),
                tag: String::new(),
                finding: Finding::new(FindingKind::TooLarge, why),
            };
            rows.truncate(MAX_FINDINGS - 1);
            rows.push(row_of(&last, None, now));
        }
        rows
    }

    fn find(&mut self, made: &Made, kind: FindingKind, why: &str, os: Option<OsId>) {
        let told = Told {
            repository: made.inside.repository.clone(),
            tag: made.inside.revision.clone(),
            finding: Finding::new(kind, why),
        };
        self.found.push((told, os));
    }
}

/// Where something that is told stands: what is merely odd comes last.
fn place(told: &Told) -> (bool, &str, &str) {
    let is_odd = told.finding.kind == FindingKind::UnknownKey;
    (is_odd, &told.repository, &told.tag)
}

fn row_of(told: &Told, os: Option<OsId>, now: Time) -> Row {
    Row {
        repository: told.repository.clone(),
        tag: told.tag.clone(),
        kind: told.finding.kind.name().to_owned(),
        field: told.finding.field.clone(),
        message: told.finding.message.clone(),
        os,
        since: now,
    }
}
