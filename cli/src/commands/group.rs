//! `evenkeel group`: groups of nodes. Resolving the groups of Bcfg2 needs no server.

mod include_folder;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use evenkeel_configuration::FieldError;
use evenkeel_configuration::bcfg2::groups::{
    ClientFile, GroupFile, NodeGroups, ReadInclude, ResolveError, resolve,
};
use evenkeel_configuration::source::{DocumentText, is_standard_input};

use self::include_folder::IncludeFolder;
use super::configuration::parsed::to_lines;
use super::configuration::source::read_text;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::page::sanitize_text;
use crate::{Ending, Failure, System};

/// Resolve the groups of nodes.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    Resolve(ResolveGroups),
}

const RESOLVE_EXAMPLES: &str = "Examples:
  cd /var/lib/bcfg2/Metadata
  evenkeel group resolve --groups groups.xml --clients clients.xml --node web1.example.com
  evenkeel group resolve --groups groups.xml --clients clients.xml --node web1.example.com \\
    --fact-group debian12 --fact-group virtual
  git show HEAD:groups.xml |
    evenkeel group resolve --groups - --clients clients.xml --node web1.example.com -o yaml";

/// Print the profile, the groups and the bundles that Bcfg2 gives a node.
///
/// Reads the two files of Bcfg2's plugin Metadata, and evaluates them as Bcfg2 1.3.4 does. Prints
/// JSON, with `-o yaml` YAML, and with `-q` only the groups, one on a line. Needs no server and no
/// login.
///
/// Follows `xi:include` in the folder of each file. Prints warnings about what Bcfg2 ignores in the
/// files. Exits with status 1 if a file is invalid or if the node has no profile.
#[derive(Debug, Args)]
#[command(after_help = RESOLVE_EXAMPLES)]
pub struct ResolveGroups {
    /// `groups.xml` of Bcfg2, or `-` for standard input.
    #[arg(long, value_name = "FILE")]
    groups: PathBuf,
    /// `clients.xml` of Bcfg2, or `-` for standard input.
    #[arg(long, value_name = "FILE")]
    clients: PathBuf,
    /// Name or alias of the node. A node that is not a client gets the default profile.
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Group that facts of the node give it, such as the output of a probe of Bcfg2; may be repeated.
    /// The groups join in this order.
    #[arg(long = "fact-group", value_name = "GROUP")]
    fact_groups: Vec<String>,
}

impl GroupCommand {
    pub fn run(self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<Ending, Failure> {
        match self {
            Self::Resolve(resolve) => resolve.run(globals, system)?,
        }
        Ok(Ending::Done)
    }
}

impl ResolveGroups {
    fn run(&self, globals: &GlobalOptions, system: &mut System<'_>) -> Result<(), Failure> {
        self.check_arguments()?;
        let (groups_name, groups) = load(&self.groups, GroupFile::read, system)?;
        print_warnings(&groups_name, groups.warnings(), system)?;
        let (clients_name, clients) = load(&self.clients, ClientFile::read, system)?;
        print_warnings(&clients_name, clients.warnings(), system)?;
        let resolved = resolve(&groups, &clients, &self.node, &self.fact_groups);
        let node_groups = resolved.map_err(|error| match error {
            ResolveError::UnknownNode(node) => Failure::usage_with(
                format!("{clients_name} has no client {node}, and {groups_name} no default profile"),
                "check the name; to give unknown nodes a profile, add default=\"true\" to its group",
            ),
            ResolveError::Endless(error) => {
                Failure::InvalidDocument { name: groups_name, errors: to_lines(&[error]) }
            }
        })?;
        for warning in &node_groups.warnings {
            writeln!(system.notes, "warning: {}", sanitize_text(warning))?;
        }
        print_groups(&node_groups, &mut Printer::new(system, globals.output, globals.ids_only))
    }

    fn check_arguments(&self) -> Result<(), Failure> {
        if is_standard_input(&self.groups) && is_standard_input(&self.clients) {
            return Err(Failure::usage_with(
                "standard input can be only one of the files",
                "give a file for --groups or --clients",
            ));
        }
        let mut names = std::iter::once(&self.node).chain(&self.fact_groups);
        if names.any(|name| name.trim().is_empty()) {
            return Err(Failure::usage_with(
                "a name is empty",
                "check the values of --node and --fact-group",
            ));
        }
        Ok(())
    }
}

/// Reads a file and the files that it includes. Returns its name for messages as well.
fn load<T>(
    path: &Path,
    read: impl FnOnce(&str, Option<&mut ReadInclude<'_>>) -> Result<T, Vec<FieldError>>,
    system: &mut System<'_>,
) -> Result<(String, T), Failure> {
    let DocumentText { name, text } = read_text(path, &mut *system.input)?;
    let result = if is_standard_input(path) {
        read(&text, None)
    } else {
        let folder = IncludeFolder::from_file(path);
        read(&text, Some(&mut |include| folder.read_file(include)))
    };
    match result {
        Ok(file) => Ok((name, file)),
        Err(errors) => Err(Failure::InvalidDocument { name, errors: to_lines(&errors) }),
    }
}

fn print_warnings(
    name: &str,
    warnings: &[FieldError],
    system: &mut System<'_>,
) -> Result<(), Failure> {
    for warning in warnings {
        writeln!(system.notes, "warning: {name}: {}", sanitize_text(&warning.to_string()))?;
    }
    Ok(())
}

fn print_groups(node_groups: &NodeGroups, printer: &mut Printer<'_>) -> Result<(), Failure> {
    if !printer.is_ids_only() {
        return printer.print_data(node_groups);
    }
    for group in &node_groups.groups {
        printer.print_text(&sanitize_text(group))?;
    }
    Ok(())
}
