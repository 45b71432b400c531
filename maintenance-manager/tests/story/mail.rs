//! Notifications by e-mail, with a real mail server, and the events that are reported once.

use std::time::Duration;

use evenkeel_domain::notification::NotificationState;
use evenkeel_maintenance_manager::{
    NotificationDeliveries, NotificationSettings, SmtpSettings, SmtpTls,
};
use evenkeel_proto::agent::{AvailablePackage, Facts};
use evenkeel_store::notifications::{self, ReplaySelection};

use crate::mail_server::{MailBehavior, MailServer};
use crate::test_server::{TestServer, facts};
use crate::webhook_target::{ReceivedMessage, WebhookBehavior, WebhookTarget};

const ADDRESS: &str = "mailto:ops@example.org";
const BOTH: &str = "mailto:ops@example.org,boss@example.org";

impl TestServer {
    /// Runs a pass with this mail server and time-out. Returns the number of accepted messages.
    async fn deliver_by_mail(&self, smtp: &SmtpSettings, attempt_timeout: Duration) -> usize {
        let settings = NotificationSettings { attempt_timeout, ..NotificationSettings::default() };
        let (store, clock) = (self.store.clone(), self.shared_clock());
        let deliveries = NotificationDeliveries::new(store, clock, &settings, smtp);
        deliveries.pass().await.expect("a pass")
    }

    /// Queues a test for an address. Returns its ID, and why its first attempt failed.
    async fn fail_by_mail(&self, address: &str, smtp: &SmtpSettings) -> (String, String) {
        let target = self.notify(address).await;
        let ids = self.queue_tests(target, 1).await;
        let id = ids.into_iter().next().expect("a delivery");
        assert_eq!(self.deliver_by_mail(smtp, LONG).await, 0);
        let pending = self.notifications(NotificationState::Pending).await;
        let delivery = pending.iter().find(|delivery| delivery.id.to_string() == id);
        (id, delivery.expect("it waits").last_error.clone())
    }
}

/// Longer than an attempt takes on a slow machine.
const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn an_e_mail_is_encrypted_and_has_the_same_message_id_when_it_is_repeated() {
    let server = TestServer::new().await;
    for tls in [SmtpTls::Starttls, SmtpTls::Implicit, SmtpTls::None] {
        let mail = MailServer::start(tls, MailBehavior::Accept).await;
        let target = server.notify(BOTH).await;
        let queued = server.queue_tests(target, 1).await;
        let smtp = mail.settings_with_login();
        assert_eq!(server.deliver_by_mail(&smtp, LONG).await, 1, "{tls:?}");
        let tx = server.tx().await;
        let one = ReplaySelection::One(queued[0].parse().expect("a UUID"));
        notifications::replay(&tx, target, one, server.now()).await.expect("replayed");
        tx.commit().await.expect("committed");
        assert_eq!(server.deliver_by_mail(&smtp, LONG).await, 1, "{tls:?}");
        let received = mail.received();
        assert_eq!(received.len(), 2, "{tls:?}");
        for message in received {
            assert_eq!(message.is_encrypted, tls != SmtpTls::None, "{tls:?}");
            assert_eq!(message.login, "\0evenkeel\0open sesame");
            assert_eq!(message.sender, "FROM:<evenkeel@example.org>");
            assert_eq!(message.recipients, ["TO:<ops@example.org>", "TO:<boss@example.org>"]);
            let id = format!("Message-ID: <{}@example.org>\n", queued[0]);
            for part in
                [id.as_str(), "Subject: [Evenkeel default] Test\n", "\n\nTest\n\nevent: test\n"]
            {
                assert!(message.text.contains(part), "{part} in {}", message.text);
            }
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_mail_server_that_is_not_the_right_one() {
    let server = TestServer::new().await;
    let (mail, other) = (
        MailServer::start(SmtpTls::Starttls, MailBehavior::Accept).await,
        MailServer::start(SmtpTls::Starttls, MailBehavior::Accept).await,
    );
    let wrong_ca = SmtpSettings { ca: other.settings().ca, ..mail.settings_with_login() };
    // The certificate is for `localhost`.
    let wrong_name = SmtpSettings { host: Some("127.0.0.1".into()), ..mail.settings_with_login() };
    let open = MailServer::start(SmtpTls::None, MailBehavior::Accept).await;
    let without_tls = SmtpSettings { tls: SmtpTls::Starttls, ..open.settings_with_login() };
    for (smtp, why) in
        [(wrong_ca, "certificate"), (wrong_name, "certificate"), (without_tls, "STARTTLS")]
    {
        let (_, error) = server.fail_by_mail(ADDRESS, &smtp).await;
        assert!(error.starts_with("the mail server cannot be reached: "), "{error}");
        assert!(error.contains(why), "{error}");
    }
    assert!(mail.received().is_empty() && open.received().is_empty());
}

#[tokio::test]
async fn a_message_that_the_mail_server_refuses_is_repeated_for_all_recipients() {
    let server = TestServer::new().await;
    for status in [450, 550] {
        let mail = MailServer::start(SmtpTls::Starttls, MailBehavior::RefuseOthers(status)).await;
        let smtp = mail.settings();
        let (id, error) = server.fail_by_mail(BOTH, &smtp).await;
        assert_eq!(error, format!("the mail server answered with {status}"));
        assert_eq!(server.deliver_by_mail(&smtp, LONG).await, 0, "it waits after a failure");
        mail.set_behavior(MailBehavior::Accept);
        server.advance_minutes(1);
        assert_eq!(server.deliver_by_mail(&smtp, LONG).await, 1);
        let received = mail.received();
        assert_eq!(received.len(), 1, "{status}");
        assert_eq!(received[0].recipients.len(), 2);
        assert!(received[0].text.contains(&id), "{}", received[0].text);
    }
}

#[tokio::test]
async fn an_attempt_ends_if_the_mail_server_hangs_is_away_or_is_not_set() {
    let server = TestServer::new().await;
    let mail = MailServer::start(SmtpTls::Starttls, MailBehavior::Hang).await;
    let target = server.notify(ADDRESS).await;
    server.queue_tests(target, 1).await;
    let short = Duration::from_secs(1);
    assert_eq!(server.deliver_by_mail(&mail.settings(), short).await, 0);
    let pending = server.notifications(NotificationState::Pending).await;
    assert_eq!(pending[0].last_error, "the mail server did not answer in time");
    let unset = server.fail_by_mail(ADDRESS, &SmtpSettings::default()).await;
    assert_eq!(unset.1, "the server sends no e-mail; set maintenance_manager.smtp.host");
    // Port 1 has no listener.
    let away = SmtpSettings { port: 1, ..mail.settings() };
    let (_, error) = server.fail_by_mail(ADDRESS, &away).await;
    assert!(error.contains("refused"), "{error}");
    let no_file =
        SmtpSettings { password_file: Some("/no/such".into()), ..mail.settings_with_login() };
    let (_, error) = server.fail_by_mail(ADDRESS, &no_file).await;
    assert_eq!(error, "the server sends no e-mail: the password of the mail server cannot be read");
}

fn update(name: &str, version: &str, suite: &str) -> AvailablePackage {
    AvailablePackage {
        name: name.into(),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: version.into(),
        suites: vec![suite.into()],
        ..AvailablePackage::default()
    }
}

#[tokio::test]
async fn each_security_update_of_a_node_is_reported_once() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(WebhookBehavior::Status(204)).await;
    let (one, two) = (server.nth_node(1).await, server.nth_node(2).await);
    let old = update("bash", "5", "stable-security");
    let with = |available: Vec<AvailablePackage>| Facts {
        modules: vec!["packages".into()],
        available,
        ..facts()
    };
    server.report_facts(&one, with(vec![old.clone()])).await;
    server.notify(&target.url).await;
    let (curl, newer, other) = (
        update("curl", "8", "stable-security"),
        update("curl", "9", "stable-security"),
        update("vim", "9", "stable"),
    );
    for (node, available, count) in [
        (&two, vec![other.clone()], 0),
        (&two, vec![old.clone(), curl.clone(), other.clone()], 1),
        (&two, vec![old.clone(), curl.clone()], 0),
        (&one, vec![old.clone(), curl.clone()], 1),
        (&two, vec![old.clone()], 0),
        (&two, vec![newer.clone(), old.clone()], 1),
        (&two, vec![other.clone()], 0),
    ] {
        server.advance_minutes(1);
        for _ in 0..2 {
            server.report_facts(node, with(available.clone())).await;
            server.poll(node).await;
        }
        assert_eq!(server.deliver().await, count, "{available:?}");
        assert_eq!(server.deliver().await, 0);
    }
    let messages = target.received();
    let bodies: Vec<_> = messages.iter().map(ReceivedMessage::json).collect();
    let packages = bodies.iter().map(|body| body["data"]["packages"].to_string());
    let packages: Vec<_> = packages.collect();
    // A target that is created later learns of all updates with the next one.
    let expected = [r#"["bash 5","curl 8"]"#, r#"["bash 5","curl 8"]"#, r#"["curl 9"]"#];
    assert_eq!(packages, expected);
    assert_eq!(bodies[0]["type"], "security-update-pending");
    assert_eq!(bodies[0]["data"]["hostId"], two.host.to_string());
    assert_eq!(bodies[0]["data"]["updates"], 2);
}
