//! Progress of long operations.

use evenkeel_registry::ProgressReporter;
use tokio::sync::watch;

use crate::Failure;
use crate::output::Printer;
use crate::page::sanitize_text;

/// Receives steps from any thread; [`with_progress`] shows the last one.
struct ProgressSender(watch::Sender<String>);

impl ProgressReporter for ProgressSender {
    fn report(&mut self, what: &str, done: u64, of: u64) {
        self.0.send_replace(format!("{done} of {of}: {what}"));
    }
}

/// Runs a long operation and shows its progress on a terminal.
///
/// # Errors
/// The progress cannot be written. The operation is then cancelled.
pub async fn with_progress<T>(
    printer: &mut Printer<'_>,
    work: impl AsyncFnOnce(&mut dyn ProgressReporter) -> T,
) -> Result<T, Failure> {
    let (sender, mut updates) = watch::channel(String::new());
    let mut steps = ProgressSender(sender);
    let mut work = Box::pin(work(&mut steps));
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            Ok(()) = updates.changed() => {
                let step = sanitize_text(&updates.borrow_and_update());
                printer.show_progress(&step)?;
            }
        }
    };
    printer.show_progress("")?;
    Ok(done)
}

/// Formats a number of bytes in decimal units.
pub fn format_size(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_uses_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (12_345_678, "12.3 MB"),
            (1_999_999_999, "1.9 GB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
