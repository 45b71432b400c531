//! Documents: commands, links and numbers must be valid.

use std::collections::BTreeSet;

use super::tree::SourceFile;

/// Command lines in the fenced `sh` blocks of a Markdown text. Continued lines are joined.
pub fn commands(text: &str) -> Vec<String> {
    let mut complete = Vec::new();
    let mut is_inside = false;
    let mut joined = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_inside = !is_inside && matches!(language.trim(), "sh" | "bash" | "console");
            continue;
        }
        if !is_inside {
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default().trim();
        if let Some(begun) = line.strip_suffix('\\') {
            joined.push_str(begun);
            continue;
        }
        joined.push_str(line);
        let command = std::mem::take(&mut joined);
        complete.extend((!command.is_empty()).then_some(command));
    }
    complete
}

/// Each `make TARGET` in the documents for a target that the Makefile does not have.
pub fn unknown_targets(documents: &[SourceFile], makefile: &str) -> Vec<String> {
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .filter(|target| !target.is_empty() && !target.contains([' ', '\t', '.', '=']))
        .collect();
    let mut findings = Vec::new();
    for document in documents {
        for command in commands(&document.text) {
            let mut arguments = command.split_whitespace();
            if arguments.next() != Some("make") {
                continue;
            }
            for target in
                arguments.filter(|argument| !argument.contains('=') && !argument.starts_with('-'))
            {
                if !targets.contains(target) {
                    findings.push(format!("{} names `make {target}`", document.path));
                }
            }
        }
    }
    findings
}

/// Each command line in the documents that its program rejects. `understands` gets the arguments of each command
/// whose first argument is one of `programs`, and returns what is wrong. A line may join commands with `&&` and `|`, have
/// a command after `--`, and redirect its output with `>`.
pub fn invalid_commands(
    documents: &[SourceFile],
    programs: &[&str],
    understands: impl Fn(&[&str]) -> Result<(), String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    for document in documents {
        for command in commands(&document.text) {
            let Some(arguments) = shlex::split(&command) else {
                findings.push(format!("{}: `{command}`: unclosed quote", document.path));
                continue;
            };
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let is_separator = |argument: &&str| matches!(*argument, "&&" | "|" | "--" | ">");
            for arguments in arguments.split(is_separator) {
                if arguments.first().is_some_and(|first| programs.contains(first))
                    && let Err(why) = understands(arguments)
                {
                    findings.push(format!("{}: `{command}`: {why}", document.path));
                }
            }
        }
    }
    findings
}

/// Each relative link to a missing file. The closure tells whether a path exists
/// in the repository.
pub fn broken_links(documents: &[SourceFile], is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for document in documents {
        let folder = document.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in links(&document.text) {
            let target = link.split('#').next().unwrap_or_default();
            let is_elsewhere = link.contains("://") || link.starts_with("mailto:");
            if is_elsewhere || target.is_empty() {
                continue;
            }
            if !is_there(&resolve(folder, target)) {
                findings.push(format!("{} links to {link}", document.path));
            }
        }
    }
    findings
}

/// Each page in the folder `docs` to which the index of the folder has no link.
pub fn unlisted_pages(documents: &[SourceFile]) -> Vec<String> {
    let index = documents.iter().find(|document| document.path == "docs/README.md");
    let text = index.map_or("", |index| index.text.as_str());
    let without_anchor = |link: &str| resolve("docs", link.split('#').next().unwrap_or_default());
    let listed: BTreeSet<String> = links(text).into_iter().map(without_anchor).collect();
    let mut findings = Vec::new();
    for document in documents {
        let name = document.path.strip_prefix("docs/").unwrap_or_default();
        let is_page = !name.is_empty() && !name.contains('/') && name != "README.md";
        if is_page && !listed.contains(&document.path) {
            findings.push(format!("docs/README.md does not link to {}", document.path));
        }
    }
    findings
}

/// Targets of the links in a Markdown text.
pub fn links(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link).collect()
}

/// Path of a link target, from the folder of the document that links to it.
pub fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Each decision record with a wrong number in its file name or title.
pub fn misnumbered(records: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for (at, record) in records.iter().enumerate() {
        let number = format!("{:04}", at + 1);
        let name = record.path.rsplit('/').next().unwrap_or_default();
        if !name.starts_with(&format!("{number}-")) {
            findings.push(format!("{} should be number {number}", record.path));
        }
        if !record.text.starts_with(&format!("# {number}. ")) {
            findings.push(format!("{} does not begin with `# {number}. `", record.path));
        }
    }
    findings
}

/// The lowest version of a package on which the control file of another one depends.
pub fn required_version<'a>(control: &'a str, package: &str) -> Option<&'a str> {
    let depends = control.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let mut clauses = depends.split(", ");
    clauses.find_map(|clause| {
        let rest = clause.strip_prefix(package)?;
        rest.strip_prefix(" (>= ")?.strip_suffix(')')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "text `make nothing`\n```sh\nmake demo # comment\nmake tset KEEP=1\nevenkeel host \\\n  list\ntrue && evenkeel token | evenkeel x -\n```\n```text\nmake no\n```\n[a](docs/a.md) [b](b.md#part) [c](https://example.org)";

    #[test]
    fn commands_are_those_of_shell_blocks() {
        let joined = "true && evenkeel token | evenkeel x -";
        let expected = ["make demo", "make tset KEEP=1", "evenkeel host list", joined];
        assert_eq!(commands(SAMPLE), expected);
    }

    #[test]
    fn a_target_that_does_not_exist_is_found() {
        let readme = [SourceFile::sample("README.md", SAMPLE)];
        let makefile = "step := x\n.PHONY: demo\ndemo: ## the demo\n\tmake tset: x\ntest: a b\n";
        assert_eq!(unknown_targets(&readme, makefile), ["README.md names `make tset`"]);
    }

    #[test]
    fn a_command_that_its_program_does_not_understand_is_found() {
        let readme = [SourceFile::sample("README.md", SAMPLE)];
        let never = |arguments: &[&str]| Err(format!("no {}", arguments[1]));
        assert_eq!(
            invalid_commands(&readme, &["evenkeel"], never),
            [
                "README.md: `evenkeel host list`: no host",
                "README.md: `true && evenkeel token | evenkeel x -`: no token",
                "README.md: `true && evenkeel token | evenkeel x -`: no x",
            ]
        );
        assert!(invalid_commands(&readme, &["evenkeel"], |_| Ok(())).is_empty());
    }

    #[test]
    fn a_command_of_another_user_is_checked_without_its_redirection() {
        let text = "```sh\nrunuser -u a -- evenkeel host > file\n```\n";
        let page = [SourceFile::sample("README.md", text)];
        let shown = |arguments: &[&str]| Err(arguments.join(" "));
        assert_eq!(
            invalid_commands(&page, &["evenkeel"], shown),
            ["README.md: `runuser -u a -- evenkeel host > file`: evenkeel host"]
        );
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let readme = [
            SourceFile::sample("README.md", SAMPLE),
            SourceFile::sample("docs/adr/x.md", "[up](../../README.md) [no](../no.md)"),
        ];
        let there = ["docs/a.md", "README.md"];
        assert_eq!(
            broken_links(&readme, |path| there.contains(&path)),
            ["README.md links to b.md#part", "docs/adr/x.md links to ../no.md"]
        );
    }

    #[test]
    fn a_page_that_the_index_does_not_name_is_found() {
        let documents = [
            SourceFile::sample("docs/README.md", "[a](a.md#part) [up](../c.md)"),
            SourceFile::sample("docs/a.md", ""),
            SourceFile::sample("docs/b.md", ""),
            SourceFile::sample("docs/adr/x.md", ""),
            SourceFile::sample("c.md", ""),
        ];
        assert_eq!(unlisted_pages(&documents), ["docs/README.md does not link to docs/b.md"]);
    }

    #[test]
    fn a_record_out_of_number_is_found() {
        let records = [
            SourceFile::sample("docs/adr/0001-a.md", "# 0001. A"),
            SourceFile::sample("docs/adr/0003-b.md", "# 0002. B"),
            SourceFile::sample("docs/adr/0003-c.md", "# C"),
        ];
        assert_eq!(
            misnumbered(&records),
            [
                "docs/adr/0003-b.md should be number 0002",
                "docs/adr/0003-c.md does not begin with `# 0003. `",
            ]
        );
    }

    #[test]
    fn a_required_version_belongs_to_the_whole_name_of_the_package() {
        let required = |depends: &str| required_version(depends, "apt").map(str::to_owned);
        assert_eq!(required("Package: x\nDepends: dpkg, apt (>= 2.1)\n"), Some("2.1".to_owned()));
        for missing in
            ["Depends: apt, dpkg", "Depends: apt-utils (>= 2.1)", "Recommends: apt (>= 2)"]
        {
            assert_eq!(required(missing), None, "{missing}");
        }
    }
}
