//! Renders a command line.

use clap::{Arg, Command};

use super::page::{end_sentence, escape, header, one_line, row, wrap};

/// The page of a program: its global options, and every command in the order of its help.
pub fn render(mut program: Command) -> String {
    program.build();
    let mut text = format!("# {}\n\n{}", program.get_name(), description(&program));
    if program.get_arguments().any(|arg| arg.is_global_set() && is_shown(arg)) {
        text.push_str("\n## Global options\n\nThese options are valid for every command.\n\n");
        text.push_str(&table(program.get_arguments().filter(|arg| arg.is_global_set())));
    }
    for command in commands(&program) {
        text.push_str(&render_command(command, 2));
    }
    text
}

fn render_command(command: &Command, level: usize) -> String {
    let name = command.get_bin_name().unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let mut text = format!("\n{} {name}\n\n{}", "#".repeat(level), description(command));
    let is_group = commands(command).next().is_some();
    if !is_group {
        let usage = usage.trim_start_matches("Usage: ");
        text.push_str(&format!("\n```text\n{usage}\n```\n"));
    }
    let mut arguments = command.get_arguments().filter(|arg| !arg.is_global_set());
    if arguments.any(is_shown) {
        let own = command.get_arguments().filter(|arg| !arg.is_global_set());
        text.push_str(&format!("\n{}", table(own)));
    }
    for inner in commands(command) {
        text.push_str(&render_command(inner, (level + 1).min(4)));
    }
    text
}

/// The commands in a command that its help shows.
pub fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
}

fn description(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    let about = about.unwrap_or_else(|| panic!("{} has no description", command.get_name()));
    wrap(&end_sentence(&escape(&about.to_string())))
}

/// Whether the help shows an argument, without those of each program.
pub fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !["help", "version"].contains(&argument.get_id().as_str())
}

fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut text = header(&["Argument", "Default", "Meaning"]);
    for argument in arguments.filter(|arg| is_shown(arg)) {
        let (meaning, default) = meaning(argument);
        text.push_str(&row(&[&spelling(argument), &default, &meaning]));
    }
    text
}

/// The argument as it is written: `-o, --output <OUTPUT>`.
pub fn spelling(argument: &Arg) -> String {
    match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(_)) => format!("`-{short}, {argument}`"),
        _ => format!("`{argument}`"),
    }
}

/// The help text with the values and the environment variable, and the default.
pub fn meaning(argument: &Arg) -> (String, String) {
    let help = argument.get_long_help().or(argument.get_help());
    let help = help.unwrap_or_else(|| panic!("{argument} has no help"));
    let (mut text, written_default) = split_default(&one_line(&help.to_string()));
    text = end_sentence(&escape(&text));
    if argument.get_action().takes_values() {
        text.push_str(&values(argument));
    }
    if let Some(variable) = argument.get_env() {
        text.push_str(&format!(" Environment variable: `{}`.", variable.display()));
    }
    let defaults = argument.get_default_values().iter();
    let defaults: Vec<String> = defaults.map(|value| format!("`{}`", value.display())).collect();
    let has_default = !defaults.is_empty()
        && argument.get_action().takes_values()
        && !argument.is_hide_default_value_set();
    let default = if has_default { defaults.join(", ") } else { written_default };
    (text, default)
}

/// Takes a written default, `[default: all]`, out of a help text.
fn split_default(help: &str) -> (String, String) {
    let begin = " [default: ";
    let parts = help.split_once(begin).and_then(|(before, rest)| {
        let (default, after) = rest.split_once(']')?;
        Some((format!("{before}{after}"), escape(default)))
    });
    parts.unwrap_or_else(|| (help.to_owned(), String::new()))
}

fn values(argument: &Arg) -> String {
    let values = argument.get_possible_values();
    let shown: Vec<String> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| {
            let help = value.get_help().map(|help| one_line(&help.to_string()));
            let help = help.map(|help| format!(" ({})", escape(help.trim_end_matches('.'))));
            format!("`{}`{}", value.get_name(), help.unwrap_or_default())
        })
        .collect();
    if shown.is_empty() { String::new() } else { format!(" Values: {}.", shown.join(", ")) }
}

#[test]
fn a_written_default_is_taken_out_of_the_help() {
    let (help, default) = split_default("Context to use [default: current context]. More.");
    assert_eq!(help, "Context to use. More.");
    assert_eq!(default, "current context");
    assert_eq!(split_default("Plain."), ("Plain.".to_owned(), String::new()));
}
