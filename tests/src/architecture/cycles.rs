//! Import cycles between the top-level modules of a crate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::code::{before_tests, only_code};
use super::tree::SourceFile;

/// Crates whose top-level modules import each other in one direction only.
pub const CRATES_WITHOUT_CYCLES: &[&str] = &[
    "bench",
    "cli",
    "configuration",
    "inventory",
    "kit",
    "maintenance-manager",
    "migrations",
    "proto",
    "server",
];

/// Name of the crate root among the modules.
const ROOT: &str = "lib";

/// The shortest import cycle of each crate that has one. An item that the crate root re-exports
/// belongs to its module; other items of the root belong to `lib`.
pub fn import_cycles(files: &[SourceFile], crates: &[&str]) -> Vec<String> {
    let cycle = |package: &&str| {
        let graph = ImportGraph::read(files, package);
        let cycle = graph.shortest_cycle()?;
        Some(format!("{package}: {}", cycle.join(" -> ")))
    };
    crates.iter().filter_map(cycle).collect()
}

/// Which top-level module imports which.
#[derive(Debug, Default)]
struct ImportGraph {
    /// All modules, each with those that it imports.
    imports: BTreeMap<String, BTreeSet<String>>,
    /// Module of each item that the root re-exports.
    exports: BTreeMap<String, String>,
}

impl ImportGraph {
    fn read(files: &[SourceFile], package: &str) -> Self {
        let folder = format!("{package}/src/");
        let inside = files.iter().filter(|file| !file.is_test());
        let inside = inside.filter_map(|file| Some((file.path.strip_prefix(&folder)?, file)));
        let code =
            inside.map(|(path, file)| (module_path(path), only_code(before_tests(&file.text))));
        let code: Vec<(Vec<&str>, String)> = code.collect();
        let mut graph = Self::default();
        // A program next to a library sees the library from outside.
        let root = if code.iter().any(|(path, _)| *path == [ROOT]) { ROOT } else { "main" };
        for (path, code) in &code {
            if *path == [root] {
                graph.add_root(code);
            }
        }
        for (path, code) in &code {
            if *path != [root] && graph.imports.contains_key(path[0]) {
                graph.add_module(path, code);
            }
        }
        graph
    }

    /// Adds the modules that the root declares, what it re-exports, and what it uses itself.
    fn add_root(&mut self, code: &str) {
        let mut own = String::new();
        for statement in code.split_inclusive(';') {
            let words: Vec<&str> = names(statement).map(|(_, name)| name).collect();
            match words.as_slice() {
                [.., "mod", module] if statement.ends_with(';') => {
                    self.imports.entry((*module).to_owned()).or_default();
                }
                ["pub", rest @ ..] if rest.contains(&"use") => {
                    let path = rest.iter().skip_while(|word| **word != "use").skip(1);
                    let mut path = path.filter(|word| !matches!(**word, "self" | "crate"));
                    let Some(module) = path.next() else { continue };
                    let items = path.map(|item| ((*item).to_owned(), (*module).to_owned()));
                    self.exports.extend(items);
                }
                _ => own.push_str(statement),
            }
        }
        let used = names(&own).filter(|(at, name)| own[at + name.len()..].starts_with("::"));
        let used: BTreeSet<String> = used.map(|(_, name)| name.to_owned()).collect();
        let used = used.into_iter().filter(|name| self.imports.contains_key(name)).collect();
        self.imports.insert(ROOT.to_owned(), used);
    }

    /// Adds what a file of a module imports.
    fn add_module(&mut self, path: &[&str], code: &str) {
        for (at, name) in names(code) {
            let rest = &code[at..];
            let tree = match name {
                "crate" => rest.strip_prefix("crate::"),
                "super" if !code[..at].ends_with("super::") => {
                    rest.strip_prefix("super::".repeat(path.len()).as_str())
                }
                _ => None,
            };
            for item in tree.map(first_names).unwrap_or_default() {
                let module = self.imports.contains_key(item).then_some(item);
                let module = module.or(self.exports.get(item).map(String::as_str));
                let module = module.unwrap_or(ROOT).to_owned();
                if module != path[0] {
                    self.imports.entry(path[0].to_owned()).or_default().insert(module);
                }
            }
        }
    }

    fn shortest_cycle(&self) -> Option<Vec<&str>> {
        let cycles = self.imports.keys().filter_map(|start| self.path_back(start));
        cycles.min_by_key(Vec::len)
    }

    /// The shortest path from a module back to itself.
    fn path_back<'a>(&'a self, start: &'a str) -> Option<Vec<&'a str>> {
        let mut reached = BTreeSet::new();
        let mut open = VecDeque::from([vec![start]]);
        while let Some(path) = open.pop_front() {
            for next in self.imports.get(*path.last()?).into_iter().flatten() {
                let longer = [path.as_slice(), &[next.as_str()]].concat();
                if next == start {
                    return Some(longer);
                }
                if reached.insert(next) {
                    open.push_back(longer);
                }
            }
        }
        None
    }
}

/// Modules of a file: `commands/os/mod.rs` and `commands/os.rs` are both `commands`, `os`.
fn module_path(file: &str) -> Vec<&str> {
    let mut path: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    path.pop_if(|last| *last == "mod");
    path
}

/// All words of the text with their positions.
fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_name = |c: char| c == '_' || c.is_alphanumeric();
    let words = text.split(move |c: char| !is_name(c)).filter(|word| !word.is_empty());
    words.map(move |word| (word.as_ptr().addr() - text.as_ptr().addr(), word))
}

/// The first names of a use tree: `a` of `a::b`, and `a`, `b` of `{a::{c, d}, b}`.
fn first_names(tree: &str) -> Vec<&str> {
    if !tree.starts_with('{') {
        return names(tree).map(|(_, name)| name).take(1).collect();
    }
    let mut depth = 0_usize;
    let mut first = Vec::new();
    let mut is_item_start = false;
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && matches!(c, '{' | ',') {
            is_item_start = true;
        } else if is_item_start && !c.is_whitespace() {
            is_item_start = false;
            first.extend(names(&tree[at..]).map(|(_, name)| name).take(1));
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let sample = |(path, text): &(&str, &str)| SourceFile::sample(path, text);
        let files: Vec<_> = files.iter().map(sample).collect();
        import_cycles(&files, &["x"])
    }

    #[test]
    fn a_cycle_is_found_through_crate_and_super() {
        let found = cycles(&[
            ("x/src/lib.rs", "mod a;\npub mod b;\nmod c;\npub use d::Error;\nmod d;\n"),
            ("x/src/a.rs", "mod inner;\n"),
            ("x/src/a/inner.rs", "use super::super::b::Item;\nuse super::Own;\n"),
            ("x/src/b.rs", "fn f() { super::c::g() }\n"),
            ("x/src/c/mod.rs", "use crate::{\n    Error,\n    a::{self, Own},\n};\n"),
            ("x/src/d.rs", "use std::fmt;\n"),
        ]);
        assert_eq!(found, ["x: a -> b -> c -> a"]);
    }

    #[test]
    fn an_item_of_the_root_belongs_to_the_module_that_defines_it() {
        let module = ("x/src/b.rs", "use crate::Thing;\n");
        let reexported = "mod a;\nmod b;\npub use a::{Other, Thing};\n";
        let importing = ("x/src/a.rs", "use crate::b::f;\n");
        assert_eq!(cycles(&[("x/src/lib.rs", reexported), importing, module]), ["x: a -> b -> a"]);
        let own = "mod b;\npub struct Thing;\nfn run() { b::f(&Thing) }\n";
        assert_eq!(cycles(&[("x/src/lib.rs", own), module]), ["x: b -> lib -> b"]);
        let leaf = "mod b;\npub struct Thing;\npub use b::f;\n";
        assert!(cycles(&[("x/src/lib.rs", leaf), module]).is_empty());
    }

    #[test]
    fn tests_comments_and_programs_next_to_a_library_are_no_imports() {
        let lib = ("x/src/lib.rs", "mod a;\nmod b;\n");
        let a = ("x/src/a.rs", "// crate::b\nuse other_crate::b;\n#[cfg(test)]\nuse crate::b;\n");
        let b = ("x/src/b.rs", "use crate::a;\n");
        let main = ("x/src/main.rs", "mod a;\nuse crate::b;\n");
        assert!(cycles(&[lib, a, b, main]).is_empty());
    }
}
