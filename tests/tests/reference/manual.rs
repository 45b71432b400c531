//! Renders the manual page of a program, with all of its commands, in the language of man(7).

use clap::{Arg, Command};

use super::command_line::{commands, is_shown, meaning, spelling};
use super::page::{end_sentence, one_line};

/// The page of a program. `files` are the paths that it uses, each with its purpose; `see_also` are
/// the names of other pages in section 1.
pub fn render(mut program: Command, files: &[(&str, &str)], see_also: &[&str]) -> String {
    program.build();
    let name = program.get_name().to_owned();
    let about = program.get_about().expect("a description").to_string();
    let mut text = format!(
        ".\\\" Generated from the code by `make generate`. Do not edit this page.\n\
         .TH {} 1 \"\" \"Evenkeel\" \"Evenkeel\"\n\
         .SH NAME\n{} \\- {}\n\
         .SH SYNOPSIS\n\\fB{}\\fR [\\fIOPTIONS\\fR] \\fICOMMAND\\fR\n\
         .SH DESCRIPTION\n",
        name.to_uppercase(),
        escape(&name),
        escape(one_line(&about).trim_end_matches('.')),
        escape(&name),
    );
    text.push_str(&description(&program));
    let globals = program.get_arguments().filter(|arg| arg.is_global_set());
    let globals = options(globals);
    if !globals.is_empty() {
        text.push_str(".SH OPTIONS\nThese options are valid for every command.\n");
        text.push_str(&globals);
    }
    text.push_str(".SH COMMANDS\n");
    text.push_str(&commands(&program).map(render_command).collect::<String>());
    text.push_str(".SH FILES\n");
    for (path, purpose) in files {
        text.push_str(&format!(".TP\n\\fI{}\\fR\n{}\n", escape(path), escape(purpose)));
    }
    let pages = see_also.iter().map(|page| format!("\\fB{}\\fR(1)", escape(page)));
    let pages = pages.collect::<Vec<_>>().join(",\n");
    text.push_str(&format!(".SH SEE ALSO\n{pages}\n"));
    text
}

/// A command and the commands in it. A group of commands has no usage of its own.
fn render_command(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_default();
    let mut text = format!(".SS \"{}\"\n", escape(name));
    if commands(command).next().is_none() {
        let usage = one_line(&command.clone().render_usage().to_string());
        let usage = usage.trim_start_matches("Usage: ").to_owned();
        text.push_str(&format!("{}\n.PP\n", escape(&usage)));
    }
    text.push_str(&description(command));
    text.push_str(&options(command.get_arguments().filter(|arg| !arg.is_global_set())));
    text.push_str(&commands(command).map(render_command).collect::<String>());
    text
}

fn description(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    let about = about.unwrap_or_else(|| panic!("{} has no description", command.get_name()));
    let about = about.to_string();
    let paragraphs = about.split("\n\n").map(|text| escape(&end_sentence(&one_line(text))));
    paragraphs.collect::<Vec<_>>().join("\n.PP\n") + "\n"
}

fn options<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let shown = arguments.filter(|arg| is_shown(arg));
    let lines = shown.map(|argument| {
        let (mut text, default) = meaning(argument);
        if !default.is_empty() {
            text.push_str(&format!(" Default: {}", end_sentence(&default)));
        }
        let text = text.replace("&lt;", "<");
        format!(".TP\n{}\n{}\n", escape(&spelling(argument)), escape(&text))
    });
    lines.collect()
}

/// Escapes what groff would interpret. Text in backticks becomes bold.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    let mut is_bold = false;
    // A line that begins with a dot is a request.
    if text.starts_with('.') {
        escaped.push_str("\\&");
    }
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '"' => escaped.push_str("\\(dq"),
            '~' => escaped.push_str("\\(ti"),
            '^' => escaped.push_str("\\(ha"),
            '`' => {
                is_bold = !is_bold;
                escaped.push_str(if is_bold { "\\fB" } else { "\\fR" });
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[test]
fn text_is_escaped_and_code_is_bold() {
    assert_eq!(escape(".x `a-b` 'c' \\ ~"), "\\&.x \\fBa\\-b\\fR \\(aqc\\(aq \\e \\(ti");
}

#[test]
fn a_page_has_every_command_and_option() {
    let inner = Command::new("list")
        .about("List things")
        .arg(Arg::new("filter").long("filter").help("Filter [default: all]"));
    let group = Command::new("thing").about("Manage things").subcommand(inner);
    let program = Command::new("tool").bin_name("tool").about("A tool.").subcommand(group);
    let page = render(program, &[("/etc/tool", "Settings.")], &["other"]);
    for part in [
        ".TH TOOL 1 ",
        ".SH NAME\ntool \\- A tool\n",
        ".SS \"tool thing\"\nManage things.\n",
        ".SS \"tool thing list\"\ntool thing list",
        ".TP\n\\fB\\-\\-filter <filter>\\fR\nFilter. Default: all.\n",
        ".TP\n\\fI/etc/tool\\fR\nSettings.\n",
        ".SH SEE ALSO\n\\fBother\\fR(1)\n",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
}
