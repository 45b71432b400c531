//! The agent's modules: the code that runs them knows none of them.

use super::code::{before_tests, only_code};
use super::naming::{identifiers, parts};
use super::tree::SourceFile;

/// Where the modules are.
const MODULES: &str = "update-agent/src/modules/";

/// Files next to the modules that are no modules.
const INTERFACE: &[&str] = &["any", "kind"];

/// The code that runs modules: the files of these names, and the folders.
const RUNNERS: &[&str] = &["agent", "commands", "engine", "gate", "history", "journal", "status"];

/// Each import of a module, or of something that is named after one, in the code that runs modules.
pub fn imports_of_modules(files: &[SourceFile]) -> Vec<String> {
    let modules: Vec<&str> = files.iter().filter_map(|file| module_name(&file.path)).collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| is_runner(&file.path)) {
        let code = only_code(before_tests(&file.text));
        for import in imports(&code) {
            let names = identifiers(import).flat_map(parts);
            let names: Vec<String> = names.map(|name| singular(&name).to_owned()).collect();
            let known = modules.iter().filter(|module| names.contains(&singular(module).into()));
            findings.extend(known.map(|module| format!("{} imports {module}", file.path)));
        }
        let paths = modules.iter().filter(|module| code.contains(&format!("modules::{module}")));
        findings.extend(paths.map(|module| format!("{} uses modules::{module}", file.path)));
    }
    findings.sort();
    findings.dedup();
    findings
}

/// The name of the module that a file defines.
fn module_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix(MODULES)?.strip_suffix(".rs")?;
    (!name.contains('/') && !INTERFACE.contains(&name)).then_some(name)
}

fn is_runner(path: &str) -> bool {
    let Some(path) = path.strip_prefix("update-agent/src/") else { return false };
    RUNNERS.iter().any(|name| {
        path.strip_prefix(name).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    })
}

/// The `use` declarations of a file.
fn imports(code: &str) -> impl Iterator<Item = &str> {
    code.split(';').filter_map(|statement| {
        let at = statement.rfind("use ")?;
        let is_start = statement[..at].chars().next_back().is_none_or(char::is_whitespace);
        is_start.then(|| &statement[at..])
    })
}

fn singular(word: &str) -> &str {
    word.strip_suffix('s').unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_of_a_module_is_found() {
        let files = [
            SourceFile::sample("update-agent/src/modules/any.rs", ""),
            SourceFile::sample("update-agent/src/modules/packages.rs", ""),
            SourceFile::sample("update-agent/src/modules/packages/apt.rs", ""),
            SourceFile::sample(
                "update-agent/src/engine/apply.rs",
                "use std::fs;\n\nuse crate::model::{\n    Failure, PackageSpec,\n};\n",
            ),
            SourceFile::sample(
                "update-agent/src/journal.rs",
                "fn f() { crate::modules::packages::f(); }",
            ),
            SourceFile::sample("update-agent/src/facts.rs", "use crate::modules::packages::hex;"),
            SourceFile::sample(
                "update-agent/src/agent.rs",
                "use crate::modules::AnyModule;\n// use crate::modules::packages;\nlet packages = 1;",
            ),
        ];
        assert_eq!(
            imports_of_modules(&files),
            [
                "update-agent/src/engine/apply.rs imports packages",
                "update-agent/src/journal.rs uses modules::packages",
            ]
        );
    }
}
