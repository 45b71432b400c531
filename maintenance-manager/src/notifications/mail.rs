//! Sends one message by e-mail. The only module of this crate with an SMTP client.
//!
//! The operator of the server chooses the mail server, so its address is not checked. Users choose
//! only the recipients. A message goes to all recipients of a target or to none: if the mail server
//! refuses one of them, the attempt fails.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use evenkeel_domain::Time;
use evenkeel_domain::notification::{EmailAddresses, is_email_address};
use evenkeel_kit::chain;
use evenkeel_store::notifications::queue::PendingDelivery;
use lettre::message::Mailbox;
use lettre::message::header::{ContentType, HeaderName, HeaderValue, MIME_VERSION_1_0};
use lettre::transport::smtp::AsyncSmtpTransportBuilder;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};

use super::mail_text::MailText;
use crate::settings::{SmtpSettings, SmtpTls};

/// Why a message was not accepted. Users see these texts, so they have no text of the mail server,
/// which may name machines of its network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MailError {
    #[error("the server sends no e-mail; set maintenance_manager.smtp.host")]
    NotConfigured,
    #[error("the server sends no e-mail: {0}")]
    Setting(String),
    #[error("an address of the target is not valid")]
    Address,
    #[error("the mail server answered with {0}")]
    Refused(String),
    #[error("the mail server did not answer in time")]
    Timeout,
    #[error("the mail server cannot be reached: {0}")]
    Unreachable(String),
}

/// Sends messages. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct MailSender {
    transport: AsyncSmtpTransportBuilder,
    /// User name, and file with the password.
    login: Option<(String, PathBuf)>,
    from: Address,
    timeout: Duration,
}

impl MailSender {
    /// A sender with these settings. The time-out is that of a whole attempt.
    ///
    /// # Errors
    /// There is no mail server, or a setting or its file is invalid.
    pub(crate) fn new(settings: &SmtpSettings, timeout: Duration) -> Result<Self, MailError> {
        settings.check().map_err(|error| MailError::Setting(error.to_string()))?;
        let (Some(host), Some(from)) = (&settings.host, &settings.from) else {
            return Err(MailError::NotConfigured);
        };
        let from: Address = from.parse().map_err(|_| MailError::Address)?;
        let tls = match settings.tls {
            SmtpTls::Starttls => Tls::Required(tls_parameters(settings, host)?),
            SmtpTls::Implicit => Tls::Wrapper(tls_parameters(settings, host)?),
            SmtpTls::None => Tls::None,
        };
        let transport = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host.clone())
            .port(settings.port)
            .tls(tls)
            .timeout(Some(timeout))
            .hello_name(ClientId::Domain(from.domain().to_owned()));
        let login = settings.user.clone().zip(settings.password_file.clone());
        Ok(Self { transport, login, from, timeout })
    }

    /// Sends a message. The mail server has accepted it if this succeeds.
    pub(crate) async fn send(
        &self,
        recipients: &EmailAddresses,
        delivery: &PendingDelivery,
        now: Time,
    ) -> Result<(), MailError> {
        let message = self.compose(recipients, delivery, now)?;
        let mut transport = self.transport.clone();
        if let Some((user, file)) = &self.login {
            let password = tokio::fs::read_to_string(file).await.map_err(|error| {
                tracing::warn!(%error, file = %file.display(), "cannot read the password of the mail server");
                MailError::Setting("the password of the mail server cannot be read".to_owned())
            })?;
            let password = password.trim_end_matches(['\r', '\n']).to_owned();
            transport = transport.credentials(Credentials::new(user.clone(), password));
        }
        let transport: AsyncSmtpTransport<Tokio1Executor> = transport.build();
        match tokio::time::timeout(self.timeout, transport.send(message)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.is_timeout() => Err(MailError::Timeout),
            Ok(Err(error)) => Err(describe(&error)),
            Err(_) => Err(MailError::Timeout),
        }
    }

    /// The message of a delivery. All its attempts have the same `Message-ID`.
    fn compose(
        &self,
        recipients: &EmailAddresses,
        delivery: &PendingDelivery,
        now: Time,
    ) -> Result<Message, MailError> {
        let text = MailText::new(delivery);
        // Programs that answer e-mails leave out such messages.
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        let mut message = Message::builder()
            .from(Mailbox::new(Some("Evenkeel".to_owned()), self.from.clone()))
            .subject(text.subject)
            .message_id(Some(format!("<{}@{}>", delivery.id, self.from.domain())))
            .date(SystemTime::from(now))
            .raw_header(HeaderValue::new(automatic, "auto-generated".to_owned()))
            .header(MIME_VERSION_1_0)
            .header(ContentType::TEXT_PLAIN);
        for recipient in recipients.as_slice() {
            let address = recipient.parse::<Address>().ok().filter(|_| is_email_address(recipient));
            message = message.to(Mailbox::new(None, address.ok_or(MailError::Address)?));
        }
        message.body(text.body).map_err(|_| MailError::Address)
    }
}

fn tls_parameters(settings: &SmtpSettings, host: &str) -> Result<TlsParameters, MailError> {
    let mut builder = TlsParameters::builder(host.to_owned());
    if let Some(path) = &settings.ca {
        let bad = |why: String| {
            MailError::Setting(format!("maintenance_manager.smtp.ca: {}: {why}", path.display()))
        };
        let pem = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
        let certificates = Certificate::from_pem(&pem).map_err(|error| bad(error.to_string()))?;
        builder =
            builder.certificate_store(CertificateStore::None).add_root_certificate(certificates);
    }
    builder.build_rustls().map_err(|error| MailError::Setting(chain(&error).to_string()))
}

/// What users see of an error. The log has all of it.
fn describe(error: &lettre::transport::smtp::Error) -> MailError {
    let all = chain(error).to_string();
    tracing::debug!(error = %all, "the mail server did not take a message");
    match error.status() {
        Some(code) => MailError::Refused(code.to_string()),
        None => MailError::Unreachable(all),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_domain::notification::{TargetAddress, WebhookSecret};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn sender() -> MailSender {
        let settings = SmtpSettings {
            host: Some("127.0.0.1".to_owned()),
            tls: SmtpTls::None,
            from: Some("evenkeel@example.org".to_owned()),
            ..SmtpSettings::default()
        };
        MailSender::new(&settings, Duration::from_secs(1)).expect("a sender")
    }

    /// The head of a message for these recipients, about a host with this name.
    fn head(recipients: &str, text: &str) -> Result<String, MailError> {
        let at = Time::from_timestamp_nanos(1_800_000_000_000_000_000);
        let address = TargetAddress::from_stored(format!("mailto:{recipients}"));
        let delivery = PendingDelivery {
            number: 1,
            id: Uuid::from_u128(7),
            event: "node-silent".to_owned(),
            event_at: at,
            details: json!({"hostName": text}),
            project: text.to_owned(),
            address: address.clone(),
            secret: WebhookSecret::from_bytes(vec![1; 32]),
            failures: 0,
        };
        let TargetAddress::Email(recipients) = address else { panic!("e-mail addresses") };
        let message = sender().compose(&recipients, &delivery, at)?.formatted();
        let message = String::from_utf8(message).expect("text");
        let (head, _) = message.split_once("\r\n\r\n").expect("a head");
        Ok(head.to_owned())
    }

    #[test]
    fn no_text_adds_a_header() {
        let expected = [
            "Auto-Submitted",
            "Content-Transfer-Encoding",
            "Content-Type",
            "Date",
            "From",
            "MIME-Version",
            "Message-ID",
            "Subject",
            "To",
        ];
        for text in [
            "edge-01",
            "a\r\nBcc: all@example.org",
            "a\nBcc: all@example.org",
            "a\rBcc: all@example.org",
            "a\r\n\r\nanother body",
            "a\0b",
            "a\u{85}Bcc: x\u{2028}Bcc: y",
            "=?utf-8?q?=0D=0ABcc:_all@example.org?=",
            "ä\r\nBcc: all@example.org",
            &"x ".repeat(500),
            &"ü".repeat(500),
        ] {
            let head = head("ops@example.org", text).expect("a message");
            let lines = head.split("\r\n").filter(|line| !line.starts_with([' ', '\t']));
            let names = lines.map(|line| line.split(':').next().unwrap_or_default());
            let mut names: Vec<&str> = names.collect();
            names.sort_unstable();
            assert_eq!(names, expected, "{text:?}\n{head}");
            assert!(!head.replace("\r\n", "").contains(['\r', '\n', '\0']), "{text:?}");
        }
    }

    #[test]
    fn a_stored_recipient_that_is_no_address_is_refused() {
        for recipients in
            ["", "ops", "ops@example.org\r\nBcc: x@example.org", "a@b.c>,d@e.f", "a b@c.d"]
        {
            assert_eq!(head(recipients, "edge-01"), Err(MailError::Address), "{recipients:?}");
        }
        let head = head("ops@example.org,boss@example.org", "edge-01").expect("a message");
        assert!(head.contains("To: ops@example.org, boss@example.org"), "{head}");
        assert!(head.contains("Message-ID: <00000000-0000-0000-0000-000000000007@example.org>"));
    }

    #[test]
    fn without_a_mail_server_there_is_no_sender() {
        let none = MailSender::new(&SmtpSettings::default(), Duration::from_secs(1));
        assert_eq!(none.expect_err("no sender"), MailError::NotConfigured);
        let settings = SmtpSettings {
            host: Some("mail.example.org".to_owned()),
            from: Some("evenkeel@example.org".to_owned()),
            ca: Some("/no/such/file".into()),
            ..SmtpSettings::default()
        };
        let error = MailSender::new(&settings, Duration::from_secs(1)).expect_err("no file");
        assert!(error.to_string().contains("maintenance_manager.smtp.ca"), "{error}");
    }
}
