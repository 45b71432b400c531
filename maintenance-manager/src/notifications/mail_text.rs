//! What an e-mail says about an event: one line as the subject, and the details of the event, each on
//! a line of its own. Nodes and users choose parts of these texts, so each part is made one line
//! without control characters, and without links that a mail program would open.

use chrono::SecondsFormat;
use evenkeel_domain::notification::NotificationEvent;
use evenkeel_domain::text::cut;
use evenkeel_store::notifications::queue::PendingDelivery;
use serde_json::Value;

/// Maximum length of a subject in bytes.
const MAX_SUBJECT_BYTES: usize = 200;

/// Maximum length of a detail in bytes.
const MAX_DETAIL_BYTES: usize = 1_000;

/// The text of an e-mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MailText {
    pub(crate) subject: String,
    pub(crate) body: String,
}

impl MailText {
    pub(crate) fn new(delivery: &PendingDelivery) -> Self {
        let summary = one_line(&summarize(delivery), MAX_SUBJECT_BYTES);
        let subject = format!("[Evenkeel {}] {summary}", one_line(&delivery.project, 80));
        let time = delivery.event_at.to_rfc3339_opts(SecondsFormat::Secs, true);
        let mut body = format!("{summary}\n\n");
        let id = delivery.id.to_string();
        let known = [("event", &delivery.event), ("time", &time), ("project", &delivery.project)];
        let details = delivery.details.as_object().into_iter().flatten();
        let details = details.map(|(name, value)| (name.as_str(), detail_text(value)));
        let known = known.into_iter().map(|(name, text)| (name, text.clone()));
        for (name, text) in known.chain(details).chain([("id", id)]) {
            let text = one_line(&text, MAX_DETAIL_BYTES);
            if !text.is_empty() {
                body.push_str(&format_line(name, &text));
            }
        }
        Self { subject: cut(&subject, MAX_SUBJECT_BYTES), body }
    }
}

fn format_line(name: &str, text: &str) -> String {
    format!("{name}: {text}\n")
}

/// The event in a few words.
fn summarize(delivery: &PendingDelivery) -> String {
    let detail = |name: &str| delivery.details.get(name).map(detail_text).unwrap_or_default();
    let node = || match detail("hostName") {
        name if name.is_empty() => detail("hostId"),
        name => name,
    };
    match NotificationEvent::from_name(&delivery.event) {
        Some(NotificationEvent::RunFailed) => {
            format!("Run {} of {} failed: {}", detail("runId"), node(), detail("state"))
        }
        Some(NotificationEvent::AssignmentStopped) => {
            format!("Assignment of {} stopped after failures", detail("assignment"))
        }
        Some(NotificationEvent::NodeSilent) => format!("Node {} makes no contact", node()),
        Some(NotificationEvent::SyncFailed) => {
            format!("Sync with the registry {} failed", detail("registry"))
        }
        Some(NotificationEvent::SecurityUpdatePending) => {
            format!("New security updates for {}: {}", node(), detail("updates"))
        }
        Some(NotificationEvent::CertificateExpiry) => {
            let (certificate, end) = (detail("certificate"), detail("expiresAt"));
            format!("Certificate {certificate} of the server expires at {end}")
        }
        Some(NotificationEvent::Test) => "Test".to_owned(),
        None => delivery.event.clone(),
    }
}

fn detail_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(detail_text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The text without line breaks, control characters, signs that change the direction of writing, and
/// links.
fn one_line(text: &str, max: usize) -> String {
    let is_invisible = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let visible: String = text.chars().map(|c| if is_invisible(c) { ' ' } else { c }).collect();
    cut(visible.replace("://", "[:]//").trim(), max)
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::Time;
    use evenkeel_domain::notification::{TargetAddress, WebhookSecret};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn delivery(event: &str, details: Value) -> PendingDelivery {
        PendingDelivery {
            number: 1,
            id: Uuid::from_u128(7),
            event: event.to_owned(),
            event_at: Time::from_timestamp_nanos(1_800_000_000_000_000_000),
            details,
            project: "shops".to_owned(),
            address: TargetAddress::from_stored("mailto:ops@example.org".to_owned()),
            secret: WebhookSecret::from_bytes(vec![1; 32]),
            failures: 0,
        }
    }

    #[test]
    fn each_event_has_a_subject() {
        for event in NotificationEvent::ALL {
            let text = MailText::new(&delivery(event.name(), json!({"hostName": "edge-01"})));
            assert!(text.subject.starts_with("[Evenkeel shops] "), "{text:?}");
            assert!(!text.subject.contains(event.name()), "{text:?}");
            assert!(text.body.contains(&format!("event: {event}\n")), "{text:?}");
        }
    }

    #[test]
    fn the_details_are_lines_of_the_text() {
        let details =
            json!({"hostName": "edge-01", "updates": 2, "packages": ["curl 8", "openssl 3"]});
        let text = MailText::new(&delivery("security-update-pending", details));
        assert_eq!(text.subject, "[Evenkeel shops] New security updates for edge-01: 2");
        let expected = "New security updates for edge-01: 2\n\n\
                        event: security-update-pending\ntime: 2027-01-15T08:00:00Z\nproject: shops\n\
                        hostName: edge-01\npackages: curl 8, openssl 3\nupdates: 2\n\
                        id: 00000000-0000-0000-0000-000000000007\n";
        assert_eq!(text.body, expected);
    }

    #[test]
    fn parts_of_nodes_stay_one_line_without_links() {
        let reason = "apt\r\nevent: none\u{2028}see https://evil.example \u{202e}";
        let details = json!({"hostName": "a\nb", "reason": reason, "state": "x".repeat(5_000)});
        let text = MailText::new(&delivery("run-failed", details));
        assert!(text.subject.len() <= MAX_SUBJECT_BYTES, "{}", text.subject.len());
        assert!(!text.subject.contains(char::is_control), "{text:?}");
        assert_eq!(text.body.matches("event: ").count(), 2, "{text:?}");
        assert_eq!(text.body.matches("\nevent: ").count(), 1, "{text:?}");
        assert!(
            text.body.contains("reason: apt  event: none see https[:]//evil.example\n"),
            "{text:?}"
        );
    }
}
