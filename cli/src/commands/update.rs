//! `evenkeel update`: updates outside of the plan, or not in it.

mod nodes;

use std::time::Duration;

use clap::{Args, Subcommand};
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::order::{OrderInput, OrderKind, OrderResource};
use serde::Serialize;

use self::nodes::{Node, Selection};
use crate::Failure;
use crate::client::Client;
use crate::resource::Resource;
use crate::time::{duration, show};
use crate::view::{Cell, Printer, Tone};

/// Update nodes outside of the plan, or keep them from it.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Let nodes update now, outside of their windows.
    ///
    /// It opens a window for each of them. Pauses, limits and the policy hold as ever.
    Now {
        #[command(flatten)]
        order: Order,
        /// How long they may begin, a day at most.
        #[arg(long = "for", value_parser = order_length, default_value = "1h", value_name = "SPAN")]
        length: Duration,
    },
    /// Let nodes not update in the windows that are open now, and give up what has changed nothing yet.
    ///
    /// Windows that open later count again.
    Cancel {
        #[command(flatten)]
        order: Order,
    },
}

/// Of which nodes, and why.
#[derive(Debug, Args)]
pub struct Order {
    #[command(flatten)]
    selection: Selection,
    /// Why, for people. It is kept and shown.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

fn order_length(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    let most = Duration::from_secs(OrderInput::MAX_SECONDS.into());
    if length < Duration::from_secs(1) || length > most {
        return Err("give a span between `1s` and `24h`".to_owned());
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
            OrderKind::Now => "let {} update now",
            OrderKind::Cancel => "keep {} from updating in the windows that are open",
        };
        let nodes = order.selection.concerned(client, printer, question).await?;
        let body = OrderInput {
            kind,
            seconds,
            reason: order.reason,
        };
        give(&body, nodes, client, printer).await
    }
}

/// How an order was taken.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    instance_id: String,
    node: String,
    /// The order as it is kept; null if it was not taken.
    order: Option<OrderResource>,
    /// Why it was not taken; null if it was.
    error: Option<String>,
}

/// Gives an order to each of the nodes, one after the other, and says how each took it.
async fn give(
    body: &OrderInput,
    nodes: Vec<Node>,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let mut taken = Vec::new();
    let mut end = Ok(());
    for node in nodes {
        let path = format!("{}/order", InstanceResource::address(&node.instance));
        let answer = client.replace::<OrderResource>(&path, body).await;
        let (order, error) = match answer {
            Ok(order) => (Some(order), None),
            Err(failure) if failure.is_about_the_thing() => (None, Some(failure.to_string())),
            // The others would fare no better.
            Err(failure) => {
                end = Err(failure);
                break;
            }
        };
        taken.push(Taken {
            instance_id: node.instance,
            node: node.label,
            order,
            error,
        });
    }
    if end.is_ok() || !taken.is_empty() {
        show_taken(&taken, printer)?;
    }
    end?;
    let failed = taken.iter().filter(|taken| taken.order.is_none()).count();
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::Partly {
        failed,
        all: taken.len(),
    })
}

fn show_taken(taken: &[Taken], printer: &mut Printer<'_>) -> Result<(), Failure> {
    let rows = taken.iter().map(|taken| {
        let result = match (&taken.order, &taken.error) {
            (Some(order), _) if order.kind == "now" => {
                let text = format!("may update until {}", show(order.until));
                Cell::toned(text, Tone::Good)
            }
            (Some(_), _) => Cell::toned("not in the windows that are open", Tone::Good),
            (None, error) => Cell::toned(error.clone().unwrap_or_default(), Tone::Bad),
        };
        vec![
            Cell::from(taken.node.clone()),
            taken.instance_id.clone().into(),
            result,
        ]
    });
    let ids = taken.iter().filter(|taken| taken.order.is_some());
    let ids: Vec<_> = ids.map(|taken| taken.instance_id.as_str()).collect();
    printer.rows(
        &taken,
        &ids,
        &["NODE", "INSTANCE", "RESULT"],
        rows.collect(),
    )
}
