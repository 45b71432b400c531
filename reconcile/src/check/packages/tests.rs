use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::check::test_machine::{MachineFixture, document_of};

fn stanza(name: &str, status: &str, rest: &str) -> String {
    format!("Package: {name}\nStatus: {status}\nPriority: optional\nVersion: 1.2-3\n{rest}\n\n")
}

const AMD64: &str = "Architecture: amd64";
const INSTALLED: &str = "install ok installed";

fn machine_with(stanzas: &[String]) -> MachineFixture {
    let fixture = MachineFixture::offline();
    fixture.write(STATUS_PATH, stanzas.concat());
    fixture
}

fn describe(stanzas: &[String], name: &str, version: &str) -> String {
    let desired = format!("{{version: \"{version}\"}}");
    machine_with(stanzas).describe_entry(("Package", name, &desired))
}

#[test]
fn the_version_of_a_package_is_compared_as_text() {
    let cases = [
        ("any", "good"),
        ("1.2-3", "good"),
        ("0:1.2-3", r#"version 1.2-3 is installed {"version":"1.2-3"}"#),
        ("1.2", r#"version 1.2-3 is installed {"version":"1.2-3"}"#),
        ("absent", r#"version 1.2-3 is installed {"version":"1.2-3"}"#),
    ];
    for (version, expected) in cases {
        assert_eq!(describe(&[stanza("nginx", INSTALLED, AMD64)], "nginx", version), expected);
    }
}

#[test]
fn only_an_installed_and_configured_package_is_good() {
    let cases = [
        ("install ok installed", "good"),
        ("hold ok installed", "good"),
        ("deinstall ok installed", "the package is selected for removal {}"),
        ("install reinstreq installed", "the package must be installed again {}"),
        ("install reinstreq half-installed", "the package must be installed again {}"),
        ("install ok half-installed", "the package is half-installed {}"),
        ("install ok unpacked", "the package is unpacked and not configured {}"),
        ("install ok half-configured", "the package is half-configured {}"),
        ("install ok triggers-awaited", "the package waits for triggers of other packages {}"),
        ("install ok triggers-pending", "the package has triggers that have not run {}"),
        ("install ok new-state", "dpkg's database has an unknown state of the package {}"),
        ("", "dpkg's database has no state of the package {}"),
        (
            "deinstall ok config-files",
            "the package is not installed; its configuration files are left \
             {\"version\":\"absent\"}",
        ),
        ("unknown ok not-installed", r#"the package is not installed {"version":"absent"}"#),
    ];
    for (status, expected) in cases {
        let stanzas = [stanza("nginx", status, AMD64)];
        assert_eq!(describe(&stanzas, "nginx", "any"), expected, "{status}");
    }
    let missing = describe(&[], "nginx", "any");
    assert_eq!(missing, r#"the package is not installed {"version":"absent"}"#);
}

#[test]
fn configuration_files_may_be_left_of_an_absent_package() {
    let cases = [
        ("deinstall ok config-files", "good"),
        ("unknown ok not-installed", "good"),
        ("deinstall ok half-installed", r#"the package is half-installed {"version":"1.2-3"}"#),
    ];
    for (status, expected) in cases {
        let stanzas = [stanza("nginx", status, AMD64)];
        assert_eq!(describe(&stanzas, "nginx", "absent"), expected, "{status}");
    }
    assert_eq!(describe(&[], "nginx", "absent"), "good");
}

#[test]
fn an_incomplete_package_of_another_version_has_both_reasons() {
    let stanzas = [stanza("nginx", "install ok unpacked", AMD64)];
    let expected = "the package is unpacked and not configured; version 1.2-3 is installed \
                    {\"version\":\"1.2-3\"}";
    assert_eq!(describe(&stanzas, "nginx", "2"), expected);
}

#[test]
fn a_name_without_an_architecture_stands_for_all_of_them() {
    let missing = r#"the package is not installed {"version":"absent"}"#;
    let present = r#"version 1.2-3 is installed {"version":"1.2-3"}"#;
    let i386 = "Architecture: i386";
    let cases = [
        ("libc6", "any", [AMD64, i386], "good"),
        ("libc6:i386", "any", [AMD64, i386], "good"),
        ("libc6:armhf", "any", [AMD64, i386], missing),
        ("libc6:armhf", "absent", [AMD64, i386], "good"),
        ("libc6", "absent", [AMD64, i386], present),
        ("libc6:i386", "absent", [AMD64, i386], present),
        ("libc6:i386", "absent", [AMD64, AMD64], "good"),
        ("libc6:i386", "any", [AMD64, "Architecture: all"], "good"),
    ];
    for (name, version, architectures, expected) in cases {
        let stanzas = architectures.map(|line| stanza("libc6", INSTALLED, line));
        assert_eq!(describe(&stanzas, name, version), expected, "{name} {version}");
    }
    let stanzas = [stanza("libc6", "install ok unpacked", i386), stanza("libc6", INSTALLED, AMD64)];
    assert_eq!(describe(&stanzas, "libc6", "any"), "good", "one architecture is enough");
}

#[test]
fn an_unreadable_database_makes_packages_bad() {
    let fixture = MachineFixture::offline();
    for version in ["any", "absent"] {
        let desired = format!("{{version: {version}}}");
        let check = fixture.check_entry(("Package", "nginx", &desired));
        assert!(check.report.reason.starts_with("cannot read /var/lib/dpkg/status: "));
        assert!(check.differences.is_empty(), "nothing can be corrected");
    }
}

fn extras(stanzas: &[String], marks: &str) -> Vec<String> {
    let fixture = machine_with(stanzas);
    if !marks.is_empty() {
        fixture.write(EXTENDED_STATES_PATH, marks);
    }
    let document = document_of(&[
        ("Package", "documented", "{}"),
        ("Package", "unwelcome", "{version: absent}"),
        ("Package", "native:amd64", "{}"),
    ]);
    let extras = fixture.check(&document).extras;
    extras.into_iter().map(|extra| extra.name).collect()
}

#[test]
fn packages_that_a_person_has_installed_are_extras() {
    let add = |name: &str, rest: &str| stanza(name, INSTALLED, &format!("{AMD64}\n{rest}"));
    let stanzas = [
        add("zsh", ""),
        add("apache2", "Depends: libapache, perl:any (>= 5) | perl-base\nRecommends: ssl-cert"),
        add("documented", "Pre-Depends: dash"),
        add("unwelcome", ""),
        add("libapache", ""),
        add("perl-base", ""),
        add("ssl-cert", ""),
        add("dash", ""),
        add("mawk", "Provides: awk"),
        add("scripts", "Depends: awk\n , scripts"),
        add("automatic", ""),
        add("evenkeel-agent", ""),
        stanza("base-files", INSTALLED, "Essential: yes"),
        stanza("init", INSTALLED, "Protected: yes"),
        stanza("apt", INSTALLED, "Priority: important"),
        stanza("libc6", INSTALLED, "Priority: required"),
        stanza("removed", "deinstall ok config-files", "Depends: zsh"),
        stanza("broken", "install ok half-configured", "Depends: used-by-broken"),
        add("used-by-broken", ""),
        stanza("data", INSTALLED, "Architecture: all"),
    ];
    let marks = "Package: automatic\nArchitecture: amd64\nAuto-Installed: 1\n\n\
                 Package: data\nArchitecture: amd64\nAuto-Installed: 1\n\n\
                 Package: zsh\nArchitecture: amd64\nAuto-Installed: 0\n";
    assert_eq!(extras(&stanzas, marks), ["apache2", "scripts", "zsh"]);
    let without_marks = ["apache2", "automatic", "data", "scripts", "zsh"];
    assert_eq!(extras(&stanzas, ""), without_marks, "apt has marked nothing");
}

#[test]
fn an_extra_has_an_architecture_if_there_are_several_of_its_name() {
    let of = |name: &str, architecture: &str| {
        stanza(name, INSTALLED, &format!("Architecture: {architecture}"))
    };
    let stanzas = [of("zsh", "i386"), of("zsh", "amd64"), of("tcsh", "i386")];
    assert_eq!(extras(&stanzas, ""), ["tcsh", "zsh:amd64", "zsh:i386"]);
    let stanzas = [of("native", "amd64"), of("native", "i386")];
    assert_eq!(extras(&stanzas, ""), ["native:i386"]);
}

proptest! {
    #[test]
    fn any_database_is_read_without_a_panic(content in vec(any::<u8>(), 0..300)) {
        let marks = parse_marks(LineReader::new(&content[..])).unwrap();
        let lines = LineReader::new(&content[..]);
        PackageDatabase::parse(lines, &["a", "a:b"], Some(&marks)).unwrap();
    }

    #[test]
    fn any_damaged_database_is_read_without_a_panic(
        content in
            "(Package: [ab]|Status: |install |ok |installed|Depends: |[ab,|(:]|\n|\n\n){0,60}"
    ) {
        let lines = || LineReader::new(content.as_bytes());
        let marks = parse_marks(lines()).unwrap();
        let database = PackageDatabase::parse(lines(), &["a"], Some(&marks)).unwrap();
        prop_assert!(!database.extras.contains(&"a".to_owned()), "the document has it");
    }

    #[test]
    fn relations_contain_the_names_that_they_are_written_with(
        names in vec("[a-z0-9+.-]{2,9}", 0..6),
        suffix in "( |:any|\\(>= 1\\)| \\(= 2:1\\)| \\[amd64\\])?",
        separator in "(, |,\n|\\|| \\| )",
    ) {
        let parts: Vec<_> = names.iter().map(|name| format!("{name}{suffix}")).collect();
        let relation = parts.join(separator.as_str());
        let read: Vec<_> = relation_names(&relation).collect();
        prop_assert_eq!(read, names);
    }
}
