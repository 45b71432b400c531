//! Shows how far something long is.

use evenkeel_registry::Tell;
use tokio::sync::watch;

use crate::Failure;
use crate::view::{Printer, harmless};

/// Remembers the step that was told last. It may be told from anywhere; who watches shows it.
struct Steps(watch::Sender<String>);

impl Tell for Steps {
    fn step(&mut self, what: &str, done: u64, of: u64) {
        self.0.send_replace(format!("{done} of {of}: {what}"));
    }
}

/// Does something long and shows on a terminal how far it is.
///
/// # Errors
/// That cannot be shown. Then the work is given up.
pub async fn watched<T>(
    printer: &mut Printer<'_>,
    work: impl AsyncFnOnce(&mut dyn Tell) -> T,
) -> Result<T, Failure> {
    let (sender, mut told) = watch::channel(String::new());
    let mut steps = Steps(sender);
    let mut work = Box::pin(work(&mut steps));
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            Ok(()) = told.changed() => {
                let step = harmless(&told.borrow_and_update());
                printer.progress(&step)?;
            }
        }
    };
    printer.progress("")?;
    Ok(done)
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
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
    fn a_size_is_told_in_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (12_345_678, "12.3 MB"),
            (1_999_999_999, "1.9 GB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
