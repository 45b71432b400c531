//! `evenkeel configuration`: documents that describe the configuration of a node. The commands need
//! no server.

mod diff;
pub(super) mod parsed;
pub(super) mod source;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_configuration::schema::json_schema;
use evenkeel_configuration::user_data::{self, UserDataFormat};
use evenkeel_configuration::{Document, FieldError, bcfg2, native, revision};
use serde::Serialize;

use self::diff::Diff;
use self::parsed::{ParsedDocument, load_valid, to_lines};
use self::source::InputFormat;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::page::{DetailPage, sanitize_text};
use crate::{Ending, Failure, System};

/// Check, convert and compare documents that describe the configuration of a node.
#[derive(Debug, Subcommand)]
pub enum ConfigurationCommand {
    Validate(Validate),
    Export(Export),
    Render(Render),
    Diff(Diff),
    /// Print the JSON Schema of native documents. Editors use it to complete and check documents.
    #[command(after_help = "Examples:\n  \
        evenkeel configuration schema > configuration.schema.json\n  \
        evenkeel configuration schema -o yaml")]
    Schema,
}

const VALIDATE_EXAMPLES: &str = "Examples:
  evenkeel configuration validate web.yaml
  evenkeel configuration validate spec.xml --format bcfg2
  kubectl get osc worker -o yaml | evenkeel configuration validate -
  evenkeel configuration validate web.yaml -o json";

/// Check a document: print its number of entries and its revision, or each invalid field.
///
/// Exits with status 1 if the document is invalid. `-o json` and `-o yaml` print a list of the
/// invalid fields, each with `path` and `message`.
#[derive(Debug, Args)]
#[command(after_help = VALIDATE_EXAMPLES)]
pub struct Validate {
    /// File with the document, or `-` for standard input.
    file: PathBuf,
    /// Format of the document; `--format` is the same [default: by the content].
    #[arg(long, value_enum, alias = "format", value_name = "FORMAT")]
    input_format: Option<InputFormat>,
}

const EXPORT_EXAMPLES: &str = "Examples:
  evenkeel configuration export web.yaml --format bcfg2 > web.xml
  evenkeel configuration export spec.xml --format native > spec.yaml
  kubectl get osc worker -o yaml | evenkeel configuration export - --format native";

/// Convert a document to another format.
///
/// Fails if the format has no form for an entry or a field. Use `evenkeel configuration render` for
/// the user-data of a new machine.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct Export {
    /// File with the document, or `-` for standard input.
    file: PathBuf,
    /// Format to write.
    #[arg(long, value_enum)]
    format: ExportFormat,
    /// Format of the document [default: by the content].
    #[arg(long, value_enum, value_name = "FORMAT")]
    input_format: Option<InputFormat>,
}

/// Format to convert a document to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Literal `<Configuration>` of Bcfg2.
    Bcfg2,
    /// Format of Evenkeel, in YAML.
    Native,
}

const RENDER_EXAMPLES: &str = "Examples:
  evenkeel configuration render first-boot.yaml --format cloud-init > user-data
  evenkeel configuration render first-boot.yaml --format ignition > config.ign
  evenkeel configuration render first-boot.yaml --format script > setup.sh";

/// Render a document as user-data, which configures a new machine at its first boot.
///
/// The document has `purpose: provision` and only files and units. Clouds limit user-data to 16,384
/// bytes. The command fails if the document needs more.
#[derive(Debug, Args)]
#[command(after_help = RENDER_EXAMPLES)]
pub struct Render {
    /// File with the document, or `-` for standard input.
    file: PathBuf,
    /// Format to write.
    #[arg(long, value_enum)]
    format: RenderFormat,
    /// Format of the document [default: by the content].
    #[arg(long, value_enum, value_name = "FORMAT")]
    input_format: Option<InputFormat>,
}

/// Format of user-data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RenderFormat {
    /// Archive of cloud-init (`#cloud-config-archive`) with the script.
    CloudInit,
    /// Configuration of Ignition, version 3.3.0.
    Ignition,
    /// Script for bash.
    Script,
}

/// JSON form of a valid document.
#[derive(Debug, Serialize)]
struct DocumentSummary {
    format: &'static str,
    bundles: usize,
    entries: usize,
    revision: String,
}

/// JSON form of an invalid field.
#[derive(Debug, Serialize)]
struct InvalidField<'a> {
    path: &'a str,
    message: &'a str,
}

impl ConfigurationCommand {
    pub fn run(self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<Ending, Failure> {
        match self {
            Self::Validate(validate) => return validate.run(globals, system),
            Self::Export(export) => export.run(system)?,
            Self::Render(render) => render.run(system)?,
            Self::Diff(diff) => return diff.run(globals, system),
            Self::Schema => {
                let printer = &mut Printer::new(system, globals.output, globals.ids_only);
                printer.print_data(&json_schema())?;
            }
        }
        Ok(Ending::Done)
    }
}

impl Validate {
    fn run(self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<Ending, Failure> {
        let parsed = ParsedDocument::load(&self.file, self.input_format, system)?;
        let printer = &mut Printer::new(system, globals.output, globals.ids_only);
        match &parsed.result {
            Ok(document) => print_summary(document, parsed.format, printer)?,
            Err(errors) => {
                print_errors(errors, printer)?;
                return Ok(Ending::DocumentInvalid);
            }
        }
        Ok(Ending::Done)
    }
}

fn print_summary(
    document: &Document,
    format: InputFormat,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let summary = DocumentSummary {
        format: format.name(),
        bundles: document.bundles.len(),
        entries: document.entries().count(),
        revision: revision::revision(document),
    };
    let mut page = DetailPage::default();
    page.field("format", summary.format)
        .field("bundles", summary.bundles.to_string())
        .field("entries", summary.entries.to_string())
        .field("revision", &summary.revision);
    printer.print_page(&summary, &summary.revision, &page)
}

fn print_errors(errors: &[FieldError], printer: &mut Printer<'_>) -> Result<(), Failure> {
    if printer.is_human_readable() {
        for error in errors {
            printer.print_line(&error.to_string())?;
        }
        return Ok(());
    }
    if printer.is_ids_only() {
        for error in errors {
            printer.print_text(&sanitize_text(&error.path))?;
        }
        return Ok(());
    }
    let fields = errors.iter();
    let fields = fields.map(|error| InvalidField { path: &error.path, message: &error.message });
    printer.print_data(&fields.collect::<Vec<_>>())
}

impl Export {
    fn run(self, system: &mut System<'_>) -> Result<(), Failure> {
        let document = load_valid(&self.file, self.input_format, system)?;
        let text = match self.format {
            ExportFormat::Native => native::write(&document),
            ExportFormat::Bcfg2 => bcfg2::write(&document).map_err(|errors| {
                Failure::Unrepresentable { format: "Bcfg2", errors: to_lines(&errors) }
            })?,
        };
        print_document_text(&text, system)
    }
}

impl Render {
    fn run(self, system: &mut System<'_>) -> Result<(), Failure> {
        let document = load_valid(&self.file, self.input_format, system)?;
        let (format, name) = match self.format {
            RenderFormat::CloudInit => (UserDataFormat::CloudInit, "user-data for cloud-init"),
            RenderFormat::Ignition => (UserDataFormat::Ignition, "user-data for Ignition"),
            RenderFormat::Script => (UserDataFormat::Script, "a script"),
        };
        let text = user_data::render(&document, format).map_err(|errors| {
            Failure::Unrepresentable { format: name, errors: to_lines(&errors) }
        })?;
        print_document_text(&text, system)
    }
}

/// Prints a document with one line break at its end. The output is for a file or another program,
/// so it keeps control characters.
fn print_document_text(text: &str, system: &mut System<'_>) -> Result<(), Failure> {
    writeln!(system.out, "{}", text.trim_end_matches('\n'))?;
    Ok(system.out.flush()?)
}
