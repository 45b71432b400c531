//! Spans of the trace of a run. The IDs are derived from the project, the host and the attempt, so
//! that each replica adds its spans to the same trace without stored data.

use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::HostId;
use evenkeel_domain::run::{AttemptId, RunHistoryEntry, RunState, UpdateRun};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::spans::{self, Span, SpanContext};
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::{PollResponse, begin_response::Answer};
use evenkeel_store::{StoreError, Tx, runs};

const PROJECT: &str = "evenkeel.project";
const HOST: &str = "evenkeel.host";
const ATTEMPT: &str = "evenkeel.attempt";

/// A call of a node about an attempt, from its begin.
#[derive(Debug)]
pub struct CallSpan {
    start: Time,
    tenant: TenantId,
    host: HostId,
    attempt: AttemptId,
}

impl CallSpan {
    /// Begins the span of a call. None if this process sends no spans.
    pub fn begin(
        (tenant, host): (TenantId, HostId),
        attempt: AttemptId,
        now: Time,
    ) -> Option<Self> {
        spans::are_enabled().then_some(Self { start: now, tenant, host, attempt })
    }

    /// Ends the span and sends it, as a child of the run.
    pub fn end(self, name: &str, result: (&'static str, String), is_error: bool, now: Time) {
        let root = attempt_context(self.tenant, self.host, self.attempt);
        spans::send(Span {
            context: root.random_child(),
            parent: Some(root.span_id),
            name: name.to_owned(),
            start: self.start,
            end: now,
            attributes: vec![
                (PROJECT, self.tenant.uuid().to_string()),
                (HOST, self.host.to_string()),
                (ATTEMPT, self.attempt.0.to_string()),
                result,
            ],
            link: None,
            is_error,
            http_status: None,
        });
    }
}

/// The action that a poll sends to the node.
pub fn decision_name(response: &PollResponse) -> &'static str {
    match response.decision.as_ref().and_then(|decision| decision.act.as_ref()) {
        Some(Act::Fetch(_)) => "fetch",
        Some(Act::Apply(_)) => "apply",
        Some(Act::Continue(_)) => "continue",
        Some(Act::Cancel(_)) => "cancel",
        Some(Act::Idle(_)) | None => "idle",
    }
}

/// The answer to a request to start.
pub fn permit_name(answer: Option<&Answer>) -> &'static str {
    match answer {
        Some(Answer::Granted(_)) => "granted",
        Some(Answer::Refused(_)) | None => "refused",
    }
}

/// The spans of a run that has ended: the run, and each step from its event to the next event. Empty
/// if the run is open or its trace is not sent.
pub async fn collect_spans(tx: &Tx, host: &Host, run: &UpdateRun) -> Result<Vec<Span>, StoreError> {
    let Some(end) = run.ended_at() else {
        return Ok(Vec::new());
    };
    let root = match run.attempt {
        Some(attempt) => attempt_context(tx.tenant(), host.id, attempt),
        None => SpanContext::derive(tx.tenant().uuid(), &run.id.to_string()),
    };
    if !spans::is_sampled(&root) {
        return Ok(Vec::new());
    }
    let history = runs::events(tx, run.id).await?;
    let steps = history.iter().zip(history.iter().skip(1));
    let mut collected: Vec<Span> =
        steps.map(|(event, next)| build_step_span(root, event, next)).collect();
    collected.push(build_run_span(root, tx.tenant(), host, (run, end)));
    Ok(collected)
}

fn attempt_context(tenant: TenantId, host: HostId, attempt: AttemptId) -> SpanContext {
    SpanContext::derive(tenant.uuid(), &format!("{host} {}", attempt.0))
}

fn build_run_span(
    root: SpanContext,
    tenant: TenantId,
    host: &Host,
    (run, end): (&UpdateRun, Time),
) -> Span {
    let mut attributes = vec![
        (PROJECT, tenant.uuid().to_string()),
        (HOST, host.id.to_string()),
        ("evenkeel.instance", run.instance.to_string()),
        ("evenkeel.run", run.id.to_string()),
        ("evenkeel.state", run.state.name().to_owned()),
    ];
    attributes.extend(run.attempt.map(|attempt| (ATTEMPT, attempt.0.to_string())));
    attributes.extend(run.origin.policy_id().map(|id| ("evenkeel.policy", id.to_string())));
    let order = run.origin.order.as_ref();
    Span {
        context: root,
        parent: None,
        name: "update".to_owned(),
        start: run.started_at,
        end,
        attributes,
        link: order
            .map(|order| SpanContext::derive(tenant.uuid(), &order.unique_name(run.instance))),
        is_error: !matches!(run.state, RunState::Succeeded { .. } | RunState::Cancelled { .. }),
        http_status: None,
    }
}

/// A step of the node by the clock of the node, or by the clock of the server if the event has no
/// time of the node.
fn build_step_span(root: SpanContext, event: &RunHistoryEntry, next: &RunHistoryEntry) -> Span {
    let start = event.node_time.unwrap_or(event.at);
    Span {
        context: root.child(&event.position.to_string()),
        parent: Some(root.span_id),
        name: step_name(&event.event).to_owned(),
        start,
        end: next.node_time.unwrap_or(next.at).max(start),
        attributes: vec![("evenkeel.next_event", next.event.clone())],
        link: None,
        is_error: matches!(next.event.as_str(), "failed" | "timed_out"),
        http_status: None,
    }
}

/// What the node does after an event.
fn step_name(event: &str) -> &str {
    match event {
        "downloading" => "download",
        "downloaded" => "wait for permit",
        "began" => "apply",
        "reboot_begun" => "reboot",
        "verify_begun" => "verify",
        "reverting" => "revert",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    fn entry(position: u32, event: &str, node_time: Option<Time>) -> RunHistoryEntry {
        RunHistoryEntry {
            position,
            event: event.to_owned(),
            state: "applying".to_owned(),
            sequence: Some(position),
            boot_id: String::new(),
            node_time,
            at: DateTime::UNIX_EPOCH,
            detail: String::new(),
        }
    }

    #[test]
    fn a_step_lasts_until_the_next_event_by_the_clock_of_the_node() {
        let began = DateTime::UNIX_EPOCH + TimeDelta::hours(1);
        let root = SpanContext::random();
        let end = began + TimeDelta::seconds(7);
        let found =
            build_step_span(root, &entry(3, "began", Some(began)), &entry(4, "failed", Some(end)));
        assert_eq!((found.name.as_str(), found.start, found.end), ("apply", began, end));
        assert_eq!((found.parent, found.is_error), (Some(root.span_id), true));
    }

    #[test]
    fn a_step_does_not_end_before_it_begins() {
        let began = DateTime::UNIX_EPOCH + TimeDelta::hours(1);
        let root = SpanContext::random();
        let found =
            build_step_span(root, &entry(3, "began", Some(began)), &entry(4, "timed_out", None));
        assert_eq!((found.start, found.end), (began, began));
    }
}
