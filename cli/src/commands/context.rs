//! `evenkeel context`: servers and projects to work with.

use clap::Subcommand;

use crate::args::Globals;
use crate::client::parse_server;
use crate::contexts::{Context, Contexts, absolute};
use crate::view::{Page, Printer};
use crate::{Failure, World};

/// Servers and projects to work with.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Add a context, or change one: takes --server, --project and --ca.
    Add {
        /// What to call it.
        name: String,
    },
    /// Make a context the current one.
    Use {
        /// Which.
        name: String,
    },
    /// List the contexts.
    List,
    /// Remove a context with its token.
    Remove {
        /// Which.
        name: String,
    },
    /// Show a context, without its token.
    Show {
        /// Which [default: the current one].
        name: Option<String>,
    },
}

impl ContextCommand {
    pub fn run(self, globals: &Globals, world: &mut World<'_>) -> Result<(), Failure> {
        let path = world.environment.contexts.clone();
        let mut contexts = Contexts::load(&path)?;
        let text = match self {
            Self::List => return list(&contexts, globals, world),
            Self::Show { name } => {
                return show(
                    &contexts,
                    name.as_deref().or(globals.context.as_deref()),
                    globals,
                    world,
                );
            }
            Self::Add { name } => {
                contexts.put(added(&contexts, &name, globals)?);
                format!("context {name} added")
            }
            Self::Use { name } => {
                contexts
                    .named(&name)
                    .ok_or_else(|| contexts.unknown(&name))?;
                let text = format!("context {name} is the current one");
                contexts.current = Some(name);
                text
            }
            Self::Remove { name } => {
                contexts
                    .named(&name)
                    .ok_or_else(|| contexts.unknown(&name))?;
                contexts.contexts.retain(|context| context.name != name);
                contexts.current = contexts.current.filter(|current| *current != name);
                format!("context {name} removed")
            }
        };
        contexts.save(&path)?;
        Ok(writeln!(world.out, "{text}")?)
    }
}

/// The context that is added: what is not given stays as it was, but a token never goes to another server.
fn added(contexts: &Contexts, name: &str, globals: &Globals) -> Result<Context, Failure> {
    let old = contexts.named(name);
    let server = match (&globals.server, old) {
        (Some(server), _) => server.clone(),
        (None, Some(old)) => old.server.clone(),
        (None, None) => {
            return Err(Failure::usage_with(
                "a new context needs the address of its server",
                format!("evenkeel context add {name} --server http://127.0.0.1:8080"),
            ));
        }
    };
    parse_server(&server)?;
    let same = old.filter(|old| old.server == server);
    Ok(Context {
        name: name.to_owned(),
        project: globals
            .project
            .clone()
            .or_else(|| old.and_then(|old| old.project.clone())),
        ca: absolute(globals.ca.as_deref())?.or_else(|| same.and_then(|old| old.ca.clone())),
        token: same.and_then(|old| old.token.clone()),
        login: same.and_then(|old| old.login.clone()),
        server,
    })
}

fn list(contexts: &Contexts, globals: &Globals, world: &mut World<'_>) -> Result<(), Failure> {
    let rows = contexts.contexts.iter().map(|context| {
        let is_current = contexts.current.as_deref() == Some(context.name.as_str());
        vec![
            if is_current { "*" } else { " " }.into(),
            context.name.clone().into(),
            context.server.clone().into(),
            context.project.clone().unwrap_or_default().into(),
            if context.token.is_some() { "yes" } else { "no" }.into(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let names: Vec<_> = contexts
        .contexts
        .iter()
        .map(|context| context.name.as_str())
        .collect();
    let shown: Vec<_> = contexts.contexts.iter().map(without_token).collect();
    let printer = &mut Printer::new(world, globals.output, globals.quiet);
    if rows.is_empty() && printer.is_for_people() {
        return printer.text("no contexts; `evenkeel context add NAME --server URL` makes one");
    }
    printer.rows(
        &shown,
        &names,
        &["CURRENT", "NAME", "SERVER", "PROJECT", "TOKEN"],
        rows,
    )
}

fn show(
    contexts: &Contexts,
    name: Option<&str>,
    globals: &Globals,
    world: &mut World<'_>,
) -> Result<(), Failure> {
    let context = contexts.chosen(name)?.ok_or_else(|| {
        Failure::usage_with(
            "no context is the current one",
            "`evenkeel context use NAME` makes one so",
        )
    })?;
    let mut page = Page::default();
    page.field("name", context.name.clone())
        .field("server", context.server.clone())
        .field("project", context.project.clone().unwrap_or_default())
        .field(
            "ca",
            context
                .ca
                .as_ref()
                .map(|ca| ca.display().to_string())
                .unwrap_or_default(),
        )
        .field(
            "token",
            if context.token.is_some() {
                "stored"
            } else {
                "none"
            },
        );
    if let Some(login) = &context.login {
        page.field("user", format!("{} at {}", login.username, login.realm));
    }
    Printer::new(world, globals.output, globals.quiet).page(
        &without_token(context),
        &context.name,
        &page,
    )
}

fn without_token(context: &Context) -> Context {
    Context {
        token: None,
        login: None,
        ..context.clone()
    }
}
