//! `evenkeel context`: saved servers, projects and tokens.

use clap::Subcommand;

use super::login::VARIABLE_NOTE;
use crate::contexts::{Context, Contexts, absolute_path};
use crate::http::parse_server_address;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::page::{DetailPage, cells};
use crate::{Failure, System};

/// Manage contexts: saved servers, projects and tokens.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Add or change a context. Uses --server, --project and --ca.
    Add {
        /// Name of the context.
        name: String,
    },
    /// Set the current context.
    Use {
        /// Name of the context.
        name: String,
    },
    /// List contexts.
    List,
    /// Remove a context and its token.
    Remove {
        /// Name of the context.
        name: String,
    },
    /// Show a context without its token.
    Show {
        /// Name of the context [default: current context].
        name: Option<String>,
    },
}

impl ContextCommand {
    pub fn run(self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<(), Failure> {
        let path = system.environment.contexts.clone();
        let mut contexts = Contexts::load(&path)?;
        let text = match self {
            Self::List => return print_contexts(&contexts, globals, system),
            Self::Show { name } => {
                return print_context(
                    &contexts,
                    name.as_deref().or(globals.context.as_deref()),
                    globals,
                    system,
                );
            }
            Self::Add { name } => {
                contexts.upsert(merge_context(&contexts, &name, globals)?);
                format!("context {name} added")
            }
            Self::Use { name } => {
                contexts
                    .find_by_name(&name)
                    .ok_or_else(|| contexts.unknown_context_error(&name))?;
                let text = format!("switched to context {name}");
                contexts.current = Some(name);
                text
            }
            Self::Remove { name } => {
                contexts
                    .find_by_name(&name)
                    .ok_or_else(|| contexts.unknown_context_error(&name))?;
                contexts.contexts.retain(|context| context.name != name);
                contexts.current = contexts.current.filter(|current| *current != name);
                format!("context {name} removed")
            }
        };
        contexts.save(&path)?;
        Ok(writeln!(system.out, "{text}")?)
    }
}

/// Merges the options into an existing context, or creates one. The token is kept only for the same
/// server.
fn merge_context(
    contexts: &Contexts,
    name: &str,
    globals: &GlobalOptions,
) -> Result<Context, Failure> {
    let old = contexts.find_by_name(name);
    let server = match (&globals.server, old) {
        (Some(server), _) => server.clone(),
        (None, Some(old)) => old.server.clone(),
        (None, None) => {
            return Err(Failure::usage_with(
                "a new context needs a server address",
                format!("add it with `evenkeel context add {name} --server http://127.0.0.1:8080`"),
            ));
        }
    };
    parse_server_address(&server)?;
    let same = old.filter(|old| old.server == server);
    Ok(Context {
        name: name.to_owned(),
        project: globals.project.clone().or_else(|| old.and_then(|old| old.project.clone())),
        ca: absolute_path(globals.ca.as_deref())?.or_else(|| same.and_then(|old| old.ca.clone())),
        token: same.and_then(|old| old.token.clone()),
        login: same.and_then(|old| old.login.clone()),
        server,
    })
}

fn print_contexts(
    contexts: &Contexts,
    globals: &GlobalOptions,
    system: &mut System<'_>,
) -> Result<(), Failure> {
    let rows = contexts.contexts.iter().map(|context| {
        let is_current = contexts.current.as_deref() == Some(context.name.as_str());
        cells![
            if is_current { "*" } else { " " },
            &context.name,
            &context.server,
            context.project.clone().unwrap_or_default(),
            if context.token.is_some() { "yes" } else { "no" }
        ]
    });
    let rows: Vec<_> = rows.collect();
    let names: Vec<_> = contexts.contexts.iter().map(|context| context.name.as_str()).collect();
    let redacted: Vec<_> = contexts.contexts.iter().map(without_token).collect();
    let printer = &mut Printer::new(system, globals.output, globals.ids_only);
    if rows.is_empty() && printer.is_human_readable() {
        return printer
            .print_text("no contexts; `evenkeel context add NAME --server URL` creates one");
    }
    printer.print_rows(&redacted, &names, &["CURRENT", "NAME", "SERVER", "PROJECT", "TOKEN"], rows)
}

fn print_context(
    contexts: &Contexts,
    name: Option<&str>,
    globals: &GlobalOptions,
    system: &mut System<'_>,
) -> Result<(), Failure> {
    let context = contexts.select(name)?.ok_or_else(|| {
        Failure::usage_with("no current context is set", "set it with `evenkeel context use NAME`")
    })?;
    let mut page = DetailPage::default();
    page.field("name", &context.name)
        .field("server", &context.server)
        .field("project", context.project.clone().unwrap_or_default())
        .field("ca", context.ca.as_ref().map(|ca| ca.display().to_string()).unwrap_or_default())
        .field("token", if context.token.is_some() { "stored" } else { "none" });
    if let Some(login) = &context.login {
        page.field("user", format!("{} at {}", login.username, login.realm));
    }
    let has_variable = system.environment.token.is_some();
    let printer = &mut Printer::new(system, globals.output, globals.ids_only);
    printer.print_page(&without_token(context), &context.name, &page)?;
    if has_variable {
        printer.print_note(VARIABLE_NOTE)?;
    }
    Ok(())
}

fn without_token(context: &Context) -> Context {
    Context { token: None, login: None, ..context.clone() }
}
