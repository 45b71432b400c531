//! A mail server in the process of the test.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_auth::CertificateAuthority;
use evenkeel_kit::{Clock as _, Lifecycle, SystemClock};
use evenkeel_maintenance_manager::{SmtpSettings, SmtpTls};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// What a mail server does with the recipients of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailBehavior {
    Accept,
    /// Accepts the first one and answers with this status to the others.
    RefuseOthers(u16),
    /// Never answers.
    Hang,
}

/// A message that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceivedMail {
    pub is_encrypted: bool,
    /// User and password.
    pub login: String,
    pub sender: String,
    pub recipients: Vec<String>,
    pub text: String,
}

/// A mail server on this machine, with a certificate of its own authority. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MailServer {
    port: u16,
    tls: SmtpTls,
    folder: Arc<TempDir>,
    config: Arc<ServerConfig>,
    state: Arc<Mutex<(MailBehavior, Vec<ReceivedMail>)>>,
}

impl MailServer {
    pub async fn start(tls: SmtpTls, behavior: MailBehavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let now = SystemClock.now();
        let ca = CertificateAuthority::open(folder.path(), now).expect("an authority");
        let issued = ca.issue_server(&["localhost".to_owned()], now).expect("a certificate");
        let chain = CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.reveal().as_bytes());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key.expect("a key"))
            .expect("a certificate");
        let server = Self {
            port: listener.local_addr().expect("an address").port(),
            tls,
            folder: Arc::new(folder),
            config: Arc::new(config),
            state: Arc::new(Mutex::new((behavior, Vec::new()))),
        };
        let serving = server.clone();
        Lifecycle::detach(async move {
            while let Ok((connection, _)) = listener.accept().await {
                Lifecycle::detach(serving.clone().serve(connection));
            }
        });
        server
    }

    /// Settings for this mail server.
    pub fn settings(&self) -> SmtpSettings {
        SmtpSettings {
            host: Some("localhost".to_owned()),
            port: self.port,
            tls: self.tls,
            ca: Some(self.folder.path().join("ca.pem")),
            from: Some("evenkeel@example.org".to_owned()),
            ..SmtpSettings::default()
        }
    }

    /// The same with a login. The file ends with a line break, as editors write it.
    pub fn settings_with_login(&self) -> SmtpSettings {
        let file = self.folder.path().join("password");
        std::fs::write(&file, "open sesame\n").expect("written");
        SmtpSettings {
            user: Some("evenkeel".to_owned()),
            password_file: Some(file),
            ..self.settings()
        }
    }

    pub fn set_behavior(&self, behavior: MailBehavior) {
        self.state.lock().expect("the state").0 = behavior;
    }

    fn behavior(&self) -> MailBehavior {
        self.state.lock().expect("the state").0
    }

    pub fn received(&self) -> Vec<ReceivedMail> {
        self.state.lock().expect("the state").1.clone()
    }

    /// Serves a connection until the client or an error ends it.
    async fn serve(self, connection: TcpStream) {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
        if self.tls == SmtpTls::Implicit {
            if let Ok(stream) = acceptor.accept(connection).await {
                let mut stream = BufStream::new(stream);
                _ = send(&mut stream, "220 mail.example ESMTP").await;
                self.converse(&mut stream, true).await;
            }
            return;
        }
        let mut stream = BufStream::new(connection);
        _ = send(&mut stream, "220 mail.example ESMTP").await;
        if self.converse(&mut stream, false).await != Some(StartTls) {
            return;
        }
        if let Ok(stream) = acceptor.accept(stream.into_inner()).await {
            self.converse(&mut BufStream::new(stream), true).await;
        }
    }

    /// Answers commands. None at the end of the connection.
    async fn converse(
        &self,
        stream: &mut (impl AsyncBufRead + AsyncWrite + Unpin),
        is_encrypted: bool,
    ) -> Option<StartTls> {
        let offer = match self.tls {
            SmtpTls::Starttls if !is_encrypted => "STARTTLS",
            _ => "AUTH PLAIN",
        };
        let mut mail = ReceivedMail { is_encrypted, ..ReceivedMail::default() };
        loop {
            let line = read_line(stream).await?;
            let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
            let answer = match verb {
                "EHLO" => format!("250-mail.example\r\n250 {offer}"),
                "STARTTLS" => {
                    send(stream, "220 begin").await?;
                    return Some(StartTls);
                }
                "AUTH" => {
                    let login = STANDARD.decode(rest.trim_start_matches("PLAIN ")).ok()?;
                    mail.login = String::from_utf8(login).ok()?;
                    "235 welcome".to_owned()
                }
                "MAIL" => {
                    rest.clone_into(&mut mail.sender);
                    "250 go on".to_owned()
                }
                "RCPT" => match self.behavior() {
                    MailBehavior::RefuseOthers(status) if !mail.recipients.is_empty() => {
                        format!("{status} machine 10.0.0.1 refuses")
                    }
                    MailBehavior::Hang => {
                        // Waits until the client closes the connection.
                        _ = stream.read(&mut [0; 1]).await;
                        return None;
                    }
                    _ => {
                        mail.recipients.push(rest.to_owned());
                        "250 go on".to_owned()
                    }
                },
                "DATA" => {
                    send(stream, "354 go on").await?;
                    mail.text = read_text(stream).await?;
                    self.state.lock().expect("the state").1.push(mail.clone());
                    "250 taken".to_owned()
                }
                "QUIT" => "221 bye".to_owned(),
                _ => "502 unknown".to_owned(),
            };
            send(stream, &answer).await?;
        }
    }
}

/// The client wants to continue with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StartTls;

async fn send(stream: &mut (impl AsyncWrite + Unpin), answer: &str) -> Option<()> {
    stream.write_all(format!("{answer}\r\n").as_bytes()).await.ok()?;
    stream.flush().await.ok()
}

async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = String::new();
    let length = stream.read_line(&mut line).await.ok()?;
    (length > 0).then(|| line.trim_end().to_owned())
}

/// Reads a message up to the line with a dot.
async fn read_text(stream: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut text = String::new();
    loop {
        let line = read_line(stream).await?;
        if line == "." {
            return Some(text);
        }
        text.push_str(line.strip_prefix('.').unwrap_or(&line));
        text.push('\n');
    }
}
