//! The agent's modules: the code that runs them knows none of them.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{before_tests, only_code};
use super::naming::{identifiers, type_names};
use super::tree::SourceFile;

/// Where the modules and their models are.
const MODULES: &str = "update-agent/src/modules/";
const MODELS: &str = "update-agent/src/model/";

/// Files next to the modules that are no modules.
const INTERFACE: &[&str] = &["any", "kind"];

/// The code that runs modules: the files of these names, and the folders.
pub const RUNNERS: &[&str] =
    &["agent", "commands", "engine", "gate", "history", "journal", "status"];

/// Each use of a module in the code that runs modules: a path to it, or a type that it defines.
pub fn uses_of_modules(files: &[SourceFile]) -> Vec<String> {
    let types = module_types(files);
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| RUNNERS.iter().any(|name| is_runner(name, &file.path))) {
        let code = only_code(before_tests(&file.text));
        let names: BTreeSet<&str> = identifiers(&code).collect();
        let paths = names_in_module_paths(&code);
        for (module, types) in &types {
            let used = types.iter().filter(|name| names.contains(name.as_str()));
            findings.extend(used.map(|name| format!("{} uses `{name}` of {module}", file.path)));
            if paths.contains(module) {
                findings.push(format!("{} uses modules::{module}", file.path));
            }
        }
    }
    findings.sort();
    findings
}

/// The names of the modules.
pub fn module_names(files: &[SourceFile]) -> BTreeSet<&str> {
    let paths =
        files.iter().filter_map(|file| file.path.strip_prefix(MODULES)?.strip_suffix(".rs"));
    paths.filter(|name| !name.contains('/') && !INTERFACE.contains(name)).collect()
}

/// Whether a file belongs to the code that runs modules, under this name.
pub fn is_runner(name: &str, path: &str) -> bool {
    path.strip_prefix("update-agent/src/").is_some_and(|path| is_file_of(name, path))
}

/// Whether a path is the file of a module of Rust, or in its folder.
fn is_file_of(name: &str, path: &str) -> bool {
    path.strip_prefix(name).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// The types that each module defines, also in its model.
fn module_types(files: &[SourceFile]) -> BTreeMap<&str, BTreeSet<String>> {
    let types_of = |module: &str| {
        let is_own = |path: &str| {
            let mut inside = [MODULES, MODELS].into_iter().filter_map(|at| path.strip_prefix(at));
            inside.any(|path| is_file_of(module, path))
        };
        let own = files.iter().filter(|file| is_own(&file.path) && !file.is_test());
        own.flat_map(|file| type_names(&only_code(before_tests(&file.text)))).collect()
    };
    module_names(files).into_iter().map(|module| (module, types_of(module))).collect()
}

/// The names that follow `modules::`, alone or in braces.
fn names_in_module_paths(code: &str) -> BTreeSet<&str> {
    let after = code.match_indices("modules::").map(|(at, path)| &code[at + path.len()..]);
    after.flat_map(|rest| identifiers(first_part(rest))).collect()
}

/// The first name of a path, or its part in braces.
fn first_part(path: &str) -> &str {
    let mut depth = 0_usize;
    let end = path.find(|c: char| {
        depth = match c {
            '{' => depth + 1,
            '}' => depth.saturating_sub(1),
            _ => depth,
        };
        depth == 0 && c != '_' && !c.is_ascii_alphanumeric()
    });
    &path[..end.unwrap_or(path.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(runners: &[(&str, &str)]) -> Vec<String> {
        let sample = |(path, text): &(&str, &str)| {
            SourceFile::sample(&format!("update-agent/src/{path}"), text)
        };
        let modules = [
            ("modules/any.rs", "pub struct AnyStep;"),
            ("modules/packages.rs", "pub struct PackagesModule;"),
            ("modules/packages/apt.rs", "pub(super) enum AptView {}"),
            ("modules/packages/tests.rs", "struct Agent;"),
            ("modules/files.rs", "pub struct FilesModule;\n#[cfg(test)]\nstruct Engine;"),
            ("modules/commands.rs", "pub struct CommandsModule;"),
            ("model/packages.rs", "pub struct PackageSpec;"),
            ("model/failure.rs", "pub struct Failure;"),
        ];
        uses_of_modules(&modules.iter().chain(runners).map(sample).collect::<Vec<_>>())
    }

    #[test]
    fn a_use_of_a_module_is_found() {
        let runners = [
            ("agent.rs", "use crate::model::*;\nfn f(spec: &PackageSpec) {}"),
            ("commands/plan.rs", "use crate::{cli, modules::{self, AnyStep, packages}};"),
            ("engine/apply.rs", "use crate::model::{\n    Failure, PackageSpec,\n};\n"),
            ("gate.rs", "fn f() -> crate::model::PackageSpec {}"),
            ("history.rs", "use super::modules::packages::apt::AptView as View;"),
            ("journal.rs", "fn f() { crate::modules::packages::f(); }"),
        ];
        assert_eq!(
            findings(&runners),
            [
                "update-agent/src/agent.rs uses `PackageSpec` of packages",
                "update-agent/src/commands/plan.rs uses modules::packages",
                "update-agent/src/engine/apply.rs uses `PackageSpec` of packages",
                "update-agent/src/gate.rs uses `PackageSpec` of packages",
                "update-agent/src/history.rs uses `AptView` of packages",
                "update-agent/src/history.rs uses modules::packages",
                "update-agent/src/journal.rs uses modules::packages",
            ]
        );
    }

    #[test]
    fn a_name_like_that_of_a_module_is_no_use_of_it() {
        let runners = [
            ("agent.rs", "use crate::modules::AnyStep;\nstruct Agent { engine: Engine }"),
            ("commands.rs", "use crate::{modules::{self, MODULES}, commands};\nlet packages = 1;"),
            ("engine.rs", "// use crate::modules::packages;\nuse crate::modules::package_names;"),
            ("facts.rs", "use crate::modules::packages::hex;"),
            ("journal.rs", "use crate::durable::{self, FileError};\nuse crate::model::Failure;"),
            ("status.rs", "#[cfg(test)]\nuse crate::modules::packages;"),
        ];
        assert_eq!(findings(&runners), [""; 0]);
    }
}
