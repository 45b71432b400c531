//! `evenkeel update`: orders to update nodes now, or to skip their open windows.

mod nodes;

use std::time::Duration;

use clap::{Args, Subcommand};
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::order::{OrderInput, OrderKind, OrderResource};
use serde::Serialize;

use self::nodes::{Node, Selection};
use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::{Cell, Tone, cells};
use crate::resource::Resource;
use crate::time::{format_time, parse_duration};

/// Update nodes now, or skip their open windows.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Let nodes update now, outside of their windows.
    ///
    /// The order opens a window for each node. Pauses, limits and the policy still apply.
    Now {
        #[command(flatten)]
        order: Order,
        /// How long the nodes may start the update, at most 24h. A window that an earlier order opened is not
        /// shortened.
        #[arg(long = "for", value_parser = parse_order_length, default_value = "1h", value_name = "DURATION")]
        length: Duration,
    },
    /// Skip the open windows of nodes, and cancel runs that have changed nothing yet.
    ///
    /// Later windows are not affected.
    Cancel {
        #[command(flatten)]
        order: Order,
    },
}

/// Options of an order.
#[derive(Debug, Args)]
pub struct Order {
    #[command(flatten)]
    selection: Selection,
    /// Reason, stored with the order.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

fn parse_order_length(text: &str) -> Result<Duration, String> {
    let length = parse_duration(text)?;
    let most = Duration::from_secs(OrderInput::MAX_SECONDS.into());
    if length < Duration::from_secs(1) || length > most {
        return Err("give a duration between `1s` and `24h`".to_owned());
    }
    Ok(length)
}

impl UpdateCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let (kind, order, seconds) = match self {
            Self::Now { order, length } => {
                let seconds = u32::try_from(length.as_secs()).unwrap_or(OrderInput::MAX_SECONDS);
                (OrderKind::Now, order, seconds)
            }
            Self::Cancel { order } => (OrderKind::Cancel, order, OrderInput::default_seconds()),
        };
        let question = match kind {
            OrderKind::Now => "update {} now",
            OrderKind::Cancel => "skip the open windows of {}",
        };
        let nodes = order.selection.resolve(client, printer, question).await?;
        let body = OrderInput { kind, seconds, reason: order.reason };
        send_orders(&body, nodes, client, printer).await
    }
}

/// Result of an order for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OrderResult {
    instance_id: String,
    node: String,
    /// The stored order; null if the server rejected it.
    order: Option<OrderResource>,
    /// Why the server rejected the order; null if it did not.
    error: Option<String>,
}

/// Sends the order for each node, one after the other, and prints the results.
async fn send_orders(
    body: &OrderInput,
    nodes: Vec<Node>,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let mut results = Vec::new();
    let mut end = Ok(());
    for node in nodes {
        let path = format!("{}/order", InstanceResource::address(&node.instance));
        let answer = client.replace::<OrderResource>(&path, body).await;
        let (order, error) = match answer {
            Ok(order) => (Some(order), None),
            Err(failure) if failure.is_specific_to_resource() => (None, Some(failure.to_string())),
            // The same error is to be expected for the other nodes.
            Err(failure) => {
                end = Err(failure);
                break;
            }
        };
        results.push(OrderResult { instance_id: node.instance, node: node.label, order, error });
    }
    if end.is_ok() || !results.is_empty() {
        print_results(&results, printer)?;
    }
    end?;
    let failed = results.iter().filter(|order_result| order_result.order.is_none()).count();
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::OrdersFailed { failed, all: results.len() })
}

fn print_results(results: &[OrderResult], printer: &mut Printer<'_>) -> Result<(), Failure> {
    let rows = results.iter().map(|order_result| {
        let result = match (&order_result.order, &order_result.error) {
            (Some(order), _) if order.kind == "now" => {
                let text = format!("may update until {}", format_time(order.until));
                Cell::toned(text, Tone::Good)
            }
            (Some(_), _) => Cell::toned("skips the open windows", Tone::Good),
            (None, error) => Cell::toned(error.clone().unwrap_or_default(), Tone::Bad),
        };
        cells![&order_result.node, &order_result.instance_id, result]
    });
    let ids = results.iter().filter(|order_result| order_result.order.is_some());
    let ids: Vec<_> = ids.map(|order_result| order_result.instance_id.as_str()).collect();
    printer.print_rows(&results, &ids, &["NODE", "INSTANCE", "RESULT"], rows)
}
