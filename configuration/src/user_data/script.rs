//! The script for bash.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::MARKER_PATH;
use super::plan::{
    PlannedActivation, PlannedContent, PlannedObject, PlannedPath, PlannedText, PlannedUnit,
    ProvisionPlan,
};
use crate::document::UNIT_FOLDER;
use crate::shell::quote;

const UNIT_MODE: u32 = 0o644;
/// Length of the lines of base64.
const BASE64_LINE_LENGTH: usize = 76;

const HEADER: &str = "#!/bin/bash
# Configures a new machine. It runs once.
set -euo pipefail
umask 022
";

/// A script that fails has written no incomplete file to a path of the document, and no marker.
const PROLOGUE: &str = r#"
if [ -e "$marker" ]; then
  echo "This machine is configured already."
  exit 0
fi

# Writes the standard input to a file. Arguments: path, mode, owner:group.
write_file() {
  local directory new
  directory=$(dirname -- "$1")
  mkdir -p -- "$directory"
  new=$(mktemp -- "$directory/.new-XXXXXXXX")
  if ! {
    cat > "$new" && chown -- "$3" "$new" && chmod -- "$2" "$new" && mv -fT -- "$new" "$1"
  }; then
    rm -f -- "$new"
    return 1
  fi
}
"#;

/// A unit that does not exist is neither enabled nor active.
const DISABLE_FUNCTION: &str = r#"
disable_unit() {
  if systemctl cat -- "$1" > /dev/null 2>&1; then
    systemctl disable "$1" && systemctl stop --no-block "$1"
  fi
}
"#;

const EPILOGUE: &str = r#"
mkdir -p -- "$(dirname -- "$marker")"
: > "$marker"
"#;

/// Renders the script. Contents in it are base64, or texts in here-documents without expansion.
pub(super) fn render(plan: &ProvisionPlan<'_>) -> String {
    let mut script = format!("{HEADER}marker={MARKER_PATH}\n{PROLOGUE}");
    for path in &plan.paths {
        add_path(&mut script, path);
    }
    for unit in &plan.units {
        add_unit_files(&mut script, unit);
    }
    if !plan.units.is_empty() {
        add_commands(&mut script, &plan.units);
    }
    script.push_str(EPILOGUE);
    script
}

fn add_path(script: &mut String, planned: &PlannedPath<'_>) {
    let path = quote(planned.path, false);
    let owner = quote(&format!("{}:{}", planned.owner, planned.group), false);
    match &planned.object {
        PlannedObject::File { mode, content } => {
            add_file(script, &format!("write_file {path} {mode:04o} {owner}"), content);
        }
        PlannedObject::Directory { mode } => {
            add_lines(
                script,
                &[
                    String::new(),
                    format!("mkdir -p -- {path}"),
                    format!("chown -- {owner} {path}"),
                    format!("chmod -- {mode:04o} {path}"),
                ],
            );
        }
        PlannedObject::Symlink { target } => {
            let target = quote(target, false);
            add_lines(
                script,
                &[
                    String::new(),
                    format!("mkdir -p -- \"$(dirname -- {path})\""),
                    format!("ln -sfnT -- {target} {path}"),
                    format!("chown -h -- {owner} {path}"),
                ],
            );
        }
    }
}

fn add_unit_files(script: &mut String, unit: &PlannedUnit<'_>) {
    let write = |path: &str| format!("write_file {} {UNIT_MODE:04o} root:root", quote(path, false));
    let path = format!("{UNIT_FOLDER}/{}", unit.name);
    if let Some(content) = &unit.content {
        add_text_file(script, &write(&path), *content);
    }
    for (name, content) in &unit.drop_ins {
        add_text_file(script, &write(&format!("{path}.d/{name}")), *content);
    }
}

fn add_commands(script: &mut String, units: &[PlannedUnit<'_>]) {
    if units.iter().any(|unit| unit.activation == PlannedActivation::Disabled) {
        script.push_str(DISABLE_FUNCTION);
    }
    let mut lines = vec![String::new(), "systemctl daemon-reload".to_owned()];
    lines.push("failed=0".to_owned());
    for unit in units {
        let name = quote(unit.name, false);
        let enable = |command: &str| {
            format!("systemctl enable {name} && systemctl {command} --no-block {name} || failed=1")
        };
        lines.extend(match unit.activation {
            PlannedActivation::Enabled => Some(enable("restart")),
            PlannedActivation::Stopped => Some(enable("stop")),
            PlannedActivation::Disabled => Some(format!("disable_unit {name} || failed=1")),
            PlannedActivation::Template => None,
        });
    }
    lines.push("if [ \"$failed\" -ne 0 ]; then".to_owned());
    lines.push(
        "  echo \"A unit could not be enabled, disabled, started or stopped.\" >&2".to_owned(),
    );
    lines.push("  exit 1".to_owned());
    lines.push("fi".to_owned());
    add_lines(script, &lines);
}

/// Adds a command whose standard input is the content.
fn add_file(script: &mut String, command: &str, content: &PlannedContent<'_>) {
    match content {
        PlannedContent::Text(text) => add_text_file(script, command, *text),
        PlannedContent::Binary(bytes) => add_encoded_file(script, command, bytes),
        PlannedContent::Download { .. } => {
            unreachable!("only plans for Ignition have downloads")
        }
    }
}

fn add_text_file(script: &mut String, command: &str, content: PlannedText<'_>) {
    let PlannedText { text, is_readable } = content;
    if !is_readable {
        add_encoded_file(script, command, text.as_bytes());
        return;
    }
    let delimiter = delimiter(text);
    let start = match text.strip_suffix('\n') {
        Some(_) => format!("{command} << '{delimiter}'"),
        // A here-document ends with a line break that the text does not have.
        None => format!("head -c -1 << '{delimiter}' | {command}"),
    };
    let lines = text.strip_suffix('\n').unwrap_or(text).to_owned();
    add_lines(script, &[String::new(), start, lines, delimiter]);
}

fn add_encoded_file(script: &mut String, command: &str, bytes: &[u8]) {
    if bytes.is_empty() {
        add_lines(script, &[String::new(), format!("{command} < /dev/null")]);
        return;
    }
    let digits = STANDARD.encode(bytes);
    let mut lines = vec![String::new(), format!("base64 -d << 'EOF' | {command}")];
    let mut rest = digits.as_str();
    while rest.len() > BASE64_LINE_LENGTH {
        let (line, tail) = rest.split_at(BASE64_LINE_LENGTH);
        lines.push(line.to_owned());
        rest = tail;
    }
    lines.push(rest.to_owned());
    lines.push("EOF".to_owned());
    add_lines(script, &lines);
}

/// A delimiter that the text does not contain.
fn delimiter(text: &str) -> String {
    let mut delimiter = "EOF".to_owned();
    let mut number = 0_usize;
    while text.contains(&delimiter) {
        number += 1;
        delimiter = format!("EOF_{number}_");
    }
    delimiter
}

fn add_lines(script: &mut String, lines: &[String]) {
    for line in lines {
        writeln!(script, "{line}").expect("a String accepts every text");
    }
}
