//! The messages of notifications for webhooks, as Standard Webhooks defines them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::SecondsFormat;
use evenkeel_domain::Time;
use evenkeel_domain::notification::WebhookSecret;
use evenkeel_store::notifications::queue::PendingDelivery;
use ring::hmac;
use serde_json::json;

/// A message with its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedMessage {
    /// The header `webhook-id`: the same in all attempts.
    pub(crate) id: String,
    /// The header `webhook-timestamp`: the time of the attempt in seconds since 1970.
    pub(crate) timestamp: i64,
    /// The header `webhook-signature`.
    pub(crate) signature: String,
    pub(crate) body: String,
}

impl SignedMessage {
    /// The message of a delivery for an attempt at this time.
    pub(crate) fn new(delivery: &PendingDelivery, now: Time) -> Self {
        let mut data = delivery.details.clone();
        if let Some(members) = data.as_object_mut() {
            members.insert("project".to_owned(), delivery.project.as_str().into());
        }
        let body = json!({
            "type": delivery.event,
            "timestamp": delivery.event_at.to_rfc3339_opts(SecondsFormat::Micros, true),
            "data": data,
        });
        let (id, timestamp, body) = (delivery.id.to_string(), now.timestamp(), body.to_string());
        let signature = sign(&delivery.secret, &id, timestamp, &body);
        Self { id, timestamp, signature, body }
    }
}

/// The header `webhook-signature` of a message.
fn sign(secret: &WebhookSecret, id: &str, timestamp: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal());
    let tag = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(tag.as_ref()))
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::notification::TargetAddress;
    use uuid::Uuid;

    use super::*;

    /// The example that the libraries of Standard Webhooks test.
    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = sign(
            &WebhookSecret::from_bytes(key),
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_message_names_its_event_and_its_project() {
        let at = Time::from_timestamp_nanos(1_800_000_000_000_000_000);
        let delivery = PendingDelivery {
            number: 1,
            id: Uuid::from_u128(7),
            event: "run-failed".to_owned(),
            event_at: at,
            details: json!({"runId": "osupdaterun-0a1b2c3d"}),
            project: "shops".to_owned(),
            address: TargetAddress::from_stored("https://hooks.example/".to_owned()),
            secret: WebhookSecret::from_bytes(vec![1; 32]),
            failures: 0,
        };
        let first = SignedMessage::new(&delivery, at);
        let body: serde_json::Value = serde_json::from_str(&first.body).unwrap();
        let data = json!({"runId": "osupdaterun-0a1b2c3d", "project": "shops"});
        let timestamp = "2027-01-15T08:00:00.000000Z";
        assert_eq!(body, json!({"type": "run-failed", "timestamp": timestamp, "data": data}));
        let second = SignedMessage::new(&delivery, at + chrono::TimeDelta::seconds(5));
        assert_eq!((&second.id, &second.body), (&first.id, &first.body));
        assert_ne!(second.signature, first.signature, "the time of the attempt is signed");
    }
}
