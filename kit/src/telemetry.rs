//! The log: one line per event on standard error, as text for people or as JSON for machines.

use std::io::{self, IsTerminal};

use serde::{Deserialize, Deserializer, Serialize, de};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// Format and level of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Format of a log line.
    pub format: LogFormat,
    /// Lowest level that is logged (`error`, `warn`, `info`, `debug` or `trace`), optionally with
    /// other levels for modules: `info,hyper=debug`.
    #[serde(deserialize_with = "deserialize_level")]
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people, coloured on a terminal.
    Text,
    /// One JSON object per line.
    Json,
}

/// The levels, for error messages.
const LEVELS: &str = "the levels are error, warn, info, debug, trace and off";

/// The log cannot be set up.
#[derive(Debug)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The level is neither a level nor a list of directives.
    Level(tracing_subscriber::filter::ParseError),
    /// A word in the level is not a level.
    UnknownLevel(String),
    /// The process has a log already.
    AlreadyInitialized(tracing_subscriber::util::TryInitError),
}

impl std::fmt::Display for TelemetryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Level(_) => write!(f, "the log level is not understood; {LEVELS}"),
            Self::UnknownLevel(word) => write!(f, "`{word}` is not a log level; {LEVELS}"),
            Self::AlreadyInitialized(_) => f.write_str("the log was set up already"),
        }
    }
}

impl std::error::Error for TelemetryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Level(error) => Some(error),
            Self::UnknownLevel(_) => None,
            Self::AlreadyInitialized(error) => Some(error),
        }
    }
}

/// Sets up the log of the process. Call it once, before anything else is started.
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    let colours = io::stderr().is_terminal();
    subscriber(config, colours, io::stderr)?.try_init().map_err(TelemetryError::AlreadyInitialized)
}

type Subscriber = Box<dyn tracing::Subscriber + Send + Sync>;

fn subscriber<W>(config: &LogConfig, colours: bool, writer: W) -> Result<Subscriber, TelemetryError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = parse_level(&config.level)?;
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(writer);
    Ok(match config.format {
        LogFormat::Text => Box::new(builder.finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).finish()),
    })
}

/// Reads a level with levels of modules. A word alone must be a level: [`EnvFilter`] takes any other word for the name
/// of a module, and then logs nothing of all other modules.
fn parse_level(text: &str) -> Result<EnvFilter, TelemetryError> {
    let filter = EnvFilter::try_new(text).map_err(TelemetryError::Level)?;
    let mut words = text.split(',').filter(|part| !part.contains(['=', '[', '{', '}', ']']));
    match words.find(|word| word.parse::<LevelFilter>().is_err()) {
        Some(word) => Err(TelemetryError::UnknownLevel(word.to_owned())),
        None => Ok(filter),
    }
}

/// Reads the setting, so that a wrong level is found together with the other faults of the configuration.
fn deserialize_level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_level(&text).map_err(de::Error::custom)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, level: &str) -> String {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let config = LogConfig { format, level: level.to_owned() };
        let subscriber = subscriber(&config, false, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(host = "host-00000001", "the node connected");
            tracing::debug!("a detail");
        });
        String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_json_line_has_its_fields_at_the_top() {
        let text = logged(LogFormat::Json, "info");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(r#""message":"the node connected""#), "{text}");
        assert!(text.contains(r#""host":"host-00000001""#), "{text}");
    }

    #[test]
    fn a_text_line_has_its_message_and_fields() {
        let text = logged(LogFormat::Text, "evenkeel_kit=debug");
        assert!(text.contains("the node connected host=\"host-00000001\""), "{text}");
        assert!(text.contains("a detail"), "{text}");
    }

    #[test]
    fn an_unknown_level_is_refused() {
        let config = LogConfig { level: "loud=extremely".to_owned(), ..LogConfig::default() };
        let error = subscriber(&config, false, io::sink).err().expect("an error");
        assert!(error.to_string().starts_with("the log level is not understood"), "{error}");
    }

    #[test]
    fn a_word_that_is_not_a_level_is_refused() {
        for level in ["inof", "info,hyper", "hyper=debug,inof"] {
            let Err(error) = parse_level(level) else { panic!("{level} is accepted") };
            let error = error.to_string();
            assert!(error.contains("is not a log level; the levels are error, warn"), "{error}");
        }
        for level in ["info", "INFO", "off", "info,hyper=debug", "hyper=debug", "[span]=debug"] {
            assert!(parse_level(level).is_ok(), "{level}");
        }
    }
}
