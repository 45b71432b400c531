//! `evenkeel-agent plan`: what an update would change now. Thinks exactly as the agent does, and then forgets it.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use evenkeel_kit::telemetry;

use super::workshop::Workshop;
use super::{runtime, settle, text};
use crate::agent::Planning;
use crate::cli::{self, Output};
use crate::journal::FileJournal;
use crate::model::{
    Change, Failure, PackageMode, PackageWish, Plan, Target, WantedPackage, Wish, Withheld,
    WithheldCause,
};

/// Shows what an update would change now.
pub fn plan(arguments: &cli::Plan, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (config, place) = settle(&arguments.place)?;
    telemetry::init(&config.log)?;
    place.prepare()?;
    let wish = wish(&arguments.packages)?;
    let plan = runtime()?.block_on(think(&Workshop::new(&config, &place), wish))?;
    match arguments.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &plan)?;
            writeln!(out)?;
        }
        Output::Text => print(&plan, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The wish that the command line means: each `NAME` or `NAME=VERSION`, or everything.
pub fn wish(packages: &[String]) -> anyhow::Result<PackageWish> {
    if packages.is_empty() {
        return Ok(PackageWish::new(PackageMode::Latest));
    }
    let wanted = packages.iter().map(|package| {
        let (name, version) = match package.split_once('=') {
            None => (package.as_str(), None),
            Some((name, version)) => (name, Some(version.to_owned())),
        };
        let is_one = !name.is_empty() && version.as_ref().is_none_or(|text| !text.is_empty());
        ensure!(is_one, "{package:?} is neither NAME nor NAME=VERSION");
        Ok(WantedPackage {
            name: name.to_owned(),
            version,
        })
    });
    let wanted: anyhow::Result<Vec<_>> = wanted.collect();
    Ok(PackageWish::new(PackageMode::Exactly(wanted?)))
}

/// Plans a wish. Nothing of it stays. Fails beside an update that is open, and beside an agent that plans one.
pub async fn think(workshop: &Workshop<'_>, wish: PackageWish) -> anyhow::Result<Plan> {
    let place = workshop.place;
    let planning = Planning::begin(place)?;
    let _planning =
        planning.context("the agent plans an update just now; try again in a minute")?;
    // What it has prepared lies where this would put its own, and what it changes changes the answer.
    let journal = place.journal();
    ensure!(
        !journal.exists(),
        "an update is open on this node; `evenkeel-agent status` shows it"
    );
    if let Err(failure) = workshop.owner.allows(&wish) {
        bail!(in_words(&failure));
    }
    let target = Target {
        digest: String::new(),
        wish: Wish::Packages(wish),
    };
    let engine = workshop.engine(Box::new(FileJournal::at(journal)));
    let planned = engine.plan(&target).await;
    engine.tidy();
    match planned {
        Ok(draft) => Ok(draft.plan()),
        Err(failure) => bail!(in_words(&failure)),
    }
}

fn in_words(failure: &Failure) -> String {
    let log = failure.log.trim_end();
    let colon = if log.is_empty() { "" } else { ":\n" };
    format!("{}{colon}{log}", failure.reason)
}

fn print(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    if plan.changes.is_empty() {
        writeln!(out, "nothing would be changed")?;
    } else {
        let heading = ["", "PACKAGE", "NOW", "THEN", "FROM", "FETCH"].map(str::to_owned);
        let rows = plan.changes.iter().map(|change| row(change).to_vec());
        let rows: Vec<_> = std::iter::once(heading.to_vec()).chain(rows).collect();
        text::table(&rows, out)?;
        writeln!(out, "{}", summary(plan))?;
    }
    if !plan.withheld.is_empty() {
        writeln!(out, "\nstay as they are:")?;
        let rows = plan.withheld.iter().map(|one| stays(one).to_vec());
        text::table(&rows.collect::<Vec<_>>(), out)?;
    }
    Ok(())
}

fn row(change: &Change) -> [String; 6] {
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "-".to_owned());
    let what = match (&change.before, &change.after) {
        (None, _) => "install",
        (_, None) => "remove",
        (before, after) if before == after => "repair",
        _ => "update",
    };
    let fetch = match change.download_bytes {
        0 => String::new(),
        bytes => text::bytes(bytes),
    };
    [
        what.to_owned(),
        format!("{}:{}", change.name, change.architecture),
        version(&change.before),
        version(&change.after),
        change.suite.clone(),
        fetch,
    ]
}

fn summary(plan: &Plan) -> String {
    let changed = text::count(plan.changes.len(), "package", "packages");
    let fetched = text::bytes(plan.download_bytes);
    let disk = text::bytes(plan.disk_bytes.unsigned_abs());
    let disk = match plan.disk_bytes {
        0 => "the disk as full as before".to_owned(),
        1.. => format!("{disk} more on the disk"),
        _ => format!("{disk} less on the disk"),
    };
    let reboot = if plan.reboot_expected {
        ", probably a reboot"
    } else {
        ""
    };
    format!("{changed}, {fetched} to fetch, {disk}{reboot}")
}

fn stays(withheld: &Withheld) -> [String; 4] {
    let why = match withheld.cause {
        WithheldCause::Hold => "a person marked it to stay",
        WithheldCause::KeptBack => "its dependencies cannot be met",
        WithheldCause::Phased => "its publisher lets it out step by step",
        WithheldCause::Pinned => "this machine's preferences pin it",
        WithheldCause::Limits => "the machine's owner does not allow it",
        WithheldCause::Policy => "the policy leaves it out",
    };
    [
        format!("{}:{}", withheld.name, withheld.architecture),
        withheld.installed.clone(),
        format!("({})", withheld.available),
        why.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, before: Option<&str>, after: Option<&str>) -> Change {
        Change {
            name: name.into(),
            architecture: "all".into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            suite: "stable".into(),
            download_bytes: 1_500,
        }
    }

    #[test]
    fn the_plan_is_a_table_and_says_what_it_takes_and_what_stays() {
        let plan = Plan {
            changes: vec![
                change("app", Some("1"), Some("2")),
                change("lib", None, Some("1")),
                change("old", Some("1"), None),
            ],
            download_bytes: 3_000,
            disk_bytes: -2_000,
            reboot_expected: true,
            withheld: vec![Withheld {
                name: "x".into(),
                architecture: "all".into(),
                installed: "1".into(),
                available: "2".into(),
                cause: WithheldCause::Hold,
            }],
            image: None,
        };
        let mut out = Vec::new();
        print(&plan, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "         PACKAGE  NOW  THEN  FROM    FETCH\n\
             update   app:all  1    2     stable  1.5 kB\n\
             install  lib:all  -    1     stable  1.5 kB\n\
             remove   old:all  1    -     stable  1.5 kB\n\
             3 packages, 3.0 kB to fetch, 2.0 kB less on the disk, probably a reboot\n\
             \n\
             stay as they are:\n\
             x:all  1  (2)  a person marked it to stay\n"
        );
        let mut out = Vec::new();
        print(&Plan::default(), &mut out).unwrap();
        assert_eq!(out, b"nothing would be changed\n");
    }

    #[test]
    fn the_command_line_names_packages_with_and_without_a_version() {
        let named = ["app".to_owned(), "lib=1:2-3".to_owned()];
        let PackageMode::Exactly(wanted) = wish(&named).unwrap().mode else {
            panic!("these packages")
        };
        assert_eq!(wanted[0].version, None);
        assert_eq!(wanted[1].name, "lib");
        assert_eq!(wanted[1].version.as_deref(), Some("1:2-3"));
        assert_eq!(wish(&[]).unwrap().mode, PackageMode::Latest);
        for bad in ["", "=1", "app="] {
            wish(&[bad.to_owned()]).unwrap_err();
        }
    }
}
