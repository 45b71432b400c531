//! `evenkeel audit --watch`: changes as they happen.

use std::collections::HashSet;
use std::time::Duration;

use evenkeel_api::change::ChangeResource;
use tokio::time::sleep;

use super::{ChangeSource, QueryParams, actor, object, what};
use crate::Failure;
use crate::output::Printer;
use crate::time::format_time;

/// Pause before the first attempt to connect again. It doubles with each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);

const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Prints changes, newest last, and then follows the stream from a cursor until it is refused.
pub async fn run(
    params: QueryParams,
    (mut changes, cursor): (Vec<ChangeResource>, String),
    source: &ChangeSource<'_>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    changes.reverse();
    for change in &changes {
        print_change(change, printer)?;
    }
    let shown = changes.into_iter().map(|change| change.change_id).collect();
    let mut watch = ChangeWatch { params, cursor, shown, retry_delay: MIN_RETRY_DELAY };
    loop {
        match watch.follow(source, printer).await {
            Ok(()) | Err(Failure::Unreachable { .. } | Failure::Refused { status: 503, .. }) => {}
            Err(error) => return Err(error),
        }
        sleep(watch.retry_delay).await;
        watch.retry_delay = (watch.retry_delay * 2).min(MAX_RETRY_DELAY);
    }
}

struct ChangeWatch {
    params: QueryParams,
    /// Position after the last event.
    cursor: String,
    /// The changes of the list. The stream may begin with some of them.
    shown: HashSet<String>,
    retry_delay: Duration,
}

impl ChangeWatch {
    /// Prints the changes of one connection. Ends without an error when the connection is lost.
    async fn follow(
        &mut self,
        source: &ChangeSource<'_>,
        printer: &mut Printer<'_>,
    ) -> Result<(), Failure> {
        let mut params = self.params.clone();
        params.extend([("watch", "true".to_owned()), ("cursor", self.cursor.clone())]);
        let mut stream = source.open_stream(&params).await?;
        while let Some(event) = stream.next().await {
            if event.name != "end" {
                // Otherwise a server that ends each stream at once would get a request every 100 ms.
                self.retry_delay = MIN_RETRY_DELAY;
            }
            if event.name == "change" {
                let change: ChangeResource = serde_json::from_str(&event.data)
                    .map_err(|error| source.client.unreadable_response(error))?;
                if !self.shown.contains(&change.change_id) {
                    print_change(&change, printer)?;
                }
            }
            if !event.id.is_empty() {
                self.cursor = event.id;
            }
        }
        Ok(())
    }
}

fn print_change(change: &ChangeResource, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if printer.is_ids_only() {
        return printer.print_text(&change.change_id);
    }
    if printer.is_human_readable() {
        return printer.print_line(&format!(
            "{}  {}  {}  {}  {}",
            format_time(change.time),
            actor(change),
            what(change),
            object(change),
            change.request_id
        ));
    }
    printer.print_document(change)
}
