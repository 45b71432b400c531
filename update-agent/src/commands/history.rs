//! `evenkeel-agent history`.

use std::io::Write;
use std::process::ExitCode;

use super::{settle, text};
use crate::cli::{self, Output};
use crate::history::{self, Record};

/// Shows the updates that ended here.
pub fn history(arguments: &cli::History, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (_, place) = settle(&arguments.place)?;
    let records = history::read(&place.history())?;
    match arguments.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &records)?;
            writeln!(out)?;
        }
        Output::Text if records.is_empty() => writeln!(out, "no update has ended here")?,
        Output::Text => print(&records, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(records: &[Record], out: &mut impl Write) -> std::io::Result<()> {
    for record in records {
        let changed = match &record.image {
            Some(image) => text::image(image),
            None => text::count(record.changed, "package", "packages"),
        };
        writeln!(
            out,
            "{}  {}, {changed}  {}",
            text::instant(Some(record.ended)),
            record.outcome,
            record.attempt
        )?;
        for line in details(record) {
            writeln!(out, "    {line}")?;
        }
    }
    Ok(())
}

fn details(record: &Record) -> Vec<String> {
    let account = &record.account;
    let mut lines = Vec::new();
    if !record.reason.is_empty() {
        lines.push(record.reason.clone());
    }
    if let Some(booted) = &record.booted {
        lines.push(format!("the image {booted} ran afterwards"));
    }
    let phases = account.phases.iter().map(|span| {
        let fetched = match span.bytes {
            0 => String::new(),
            bytes => format!(" ({})", text::bytes(bytes)),
        };
        format!("{} {}{fetched}", span.phase, text::millis(span.millis))
    });
    let phases: Vec<_> = phases.collect();
    if !phases.is_empty() {
        lines.push(phases.join(", "));
    }
    let kept = account.kept_conffiles.iter();
    lines.extend(kept.map(|file| format!("kept as it was changed here: {file}")));
    if !account.restarted_services.is_empty() {
        let services = account.restarted_services.join(", ");
        lines.push(format!("restarted: {services}"));
    }
    if account.reboot_required {
        lines.push("a reboot was still required".to_owned());
    }
    lines.extend(account.remarks.iter().cloned());
    // What a tool said has several lines.
    let lines = lines.iter().flat_map(|line| line.lines());
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::cli::Where;
    use crate::history::HistoryFile;
    use crate::model::{Account, FailureKind, ImageChange, PhaseSpan};
    use crate::place::Place;

    fn said(root: &std::path::Path, output: Output) -> String {
        let place = Where {
            root: Some(root.to_owned()),
            ..Where::default()
        };
        let mut out = Vec::new();
        history(&cli::History { place, output }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_updates_that_ended_are_told_with_how_they_went() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(
            said(root.path(), Output::Text),
            "no update has ended here\n"
        );
        assert_eq!(said(root.path(), Output::Json), "[]\n");
        let place = Place::new(root.path(), None);
        place.prepare().unwrap();
        let span = |phase: &str, millis, bytes| PhaseSpan {
            phase: phase.into(),
            millis,
            bytes,
        };
        let record = Record {
            attempt: Uuid::from_u128(7),
            target: "d".into(),
            outcome: "failed".into(),
            kind: Some(FailureKind::Apply),
            reason: "app is half-configured".into(),
            log: "words".into(),
            opened: None,
            began: None,
            ended: DateTime::UNIX_EPOCH,
            changes: Vec::new(),
            changed: 2,
            download_bytes: 1_500_000,
            account: Account {
                phases: vec![span("download", 61_000, 1_500_000), span("apply", 90, 0)],
                remarks: vec!["mark:\nno".into()],
                kept_conffiles: vec!["/etc/app.conf".into()],
                restarted_services: vec!["app.service".into()],
                reboot_required: true,
            },
            image: None,
            booted: None,
        };
        HistoryFile::at(place.history()).add(record).unwrap();
        assert_eq!(
            said(root.path(), Output::Text),
            "1970-01-01T00:00:00Z  failed, 2 packages  00000000-0000-0000-0000-000000000007\n    \
             app is half-configured\n    \
             download 1 min 1 s (1.5 MB), apply 90 ms\n    \
             kept as it was changed here: /etc/app.conf\n    \
             restarted: app.service\n    \
             a reboot was still required\n    \
             mark:\n    \
             no\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&said(root.path(), Output::Json)).unwrap();
        assert_eq!(json[0]["kind"], "apply");
        assert_eq!(json[0].get("image"), None);
    }

    #[test]
    fn an_image_is_told_with_what_ran_afterwards() {
        let record = Record {
            attempt: Uuid::from_u128(7),
            target: "d".into(),
            outcome: "reverted".into(),
            kind: Some(FailureKind::Verify),
            reason: "it hung".into(),
            log: String::new(),
            opened: None,
            began: None,
            ended: DateTime::UNIX_EPOCH,
            changes: Vec::new(),
            changed: 0,
            download_bytes: 0,
            account: Account::default(),
            image: Some(ImageChange {
                profile_name: "demo".into(),
                before: "1.0".into(),
                wanted: "1.1".into(),
            }),
            booted: Some("1.0".into()),
        };
        let mut out = Vec::new();
        print(&[record], &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "1970-01-01T00:00:00Z  reverted, demo 1.0 -> 1.1  00000000-0000-0000-0000-000000000007\n    \
             it hung\n    \
             the image 1.0 ran afterwards\n"
        );
    }
}
