//! Files that `groups.xml` and `clients.xml` include, as Bcfg2 1.3.4 reads them.

use std::collections::HashMap;
use std::path::Path;

use evenkeel_configuration::bcfg2::groups::{ClientFile, GroupFile, NodeGroups, resolve};

/// Two groups of one category, so that the order of the rules is seen.
const RING: &str = "<Group name='a' category='k'/><Group name='b' category='k'/>";

const PROFILE: &str = "<Group name='p' profile='true'/>";

/// Folder of the files: paths and contents.
type Files<'f> = [(&'f str, &'f str)];

/// Reads a file of groups. Errors are texts.
fn read_groups(content: &str, files: &Files<'_>) -> Result<GroupFile, String> {
    let files: HashMap<_, _> = files.iter().copied().collect();
    let mut read_include = |path: &Path| match path.to_str().unwrap() {
        "../secret.xml" => Err("it is not in the folder".to_owned()),
        path => Ok(files.get(path).map(|content| format!("<Groups>{content}</Groups>"))),
    };
    let file = GroupFile::read(&format!("<Groups>\n{content}</Groups>"), Some(&mut read_include));
    file.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// Resolves client n1 with the profile p.
fn resolve_groups(content: &str, files: &Files<'_>) -> NodeGroups {
    let groups = read_groups(content, files).unwrap();
    let clients = ClientFile::read("<Clients><Client name='n1' profile='p'/></Clients>", None);
    resolve(&groups, &clients.unwrap(), "n1", &[]).unwrap()
}

fn group_names(content: &str, files: &Files<'_>) -> String {
    resolve_groups(content, files).groups.into_iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn includes_of_the_first_file_follow_its_own_elements() {
    let member = "<Group name='p' profile='true'><Group name='a'/></Group>";
    let content = format!("<xi:include href='x.xml' parse='xml'/>{member}{RING}");
    let file = "<Group name='p'><Bundle name='late'/><Group name='b'/></Group>";
    let resolved = resolve_groups(&content, &[("x.xml", file)]);
    assert_eq!(resolved.groups, ["a", "p"].map(str::to_owned).into());
    assert!(resolved.bundles.is_empty());
}

#[test]
fn includes_of_included_files_keep_their_order_and_are_relative_to_their_file() {
    let content = format!("<xi:include href='d/x.xml'/>{PROFILE}");
    let x = format!("<xi:include href='y.xml'/><Group name='p'><Group name='b'/></Group>{RING}");
    let files = [("d/x.xml", x.as_str()), ("d/y.xml", "<Group name='p'><Group name='a'/></Group>")];
    assert_eq!(group_names(&content, &files), "a p");
}

#[test]
fn definitions_included_in_a_group_are_definitions_with_a_condition() {
    let content = "<Group name='p' profile='true'><xi:include href='x.xml'/></Group>";
    let file =
        "<Group name='x1'><Bundle name='b'/></Group><Group name='p'><Group name='x3'/></Group>";
    assert_eq!(group_names(content, &[("x.xml", file)]), "p x3");
}

#[test]
fn clients_are_included() {
    let text = "<Clients><xi:include href='c.xml'/></Clients>";
    let mut read_include = |_: &Path| {
        Ok(Some(
            "<Clients><Client name='n1' profile='p'><Alias name='m'/></Client></Clients>"
                .to_owned(),
        ))
    };
    let clients = ClientFile::read(text, Some(&mut read_include)).unwrap();
    let resolved = resolve(&read_groups(PROFILE, &[]).unwrap(), &clients, "m", &[]).unwrap();
    assert_eq!((resolved.node.as_str(), resolved.profile.as_deref()), ("n1", Some("p")));
}

#[test]
fn missing_files_are_a_warning_unless_there_is_a_fallback() {
    for (include, warning) in [
        ("<xi:include href='no.xml'/>", "line 2: there is no file no.xml; Bcfg2 skips it"),
        ("<xi:include href='no.xml'><xi:fallback><Group name='a'/></xi:fallback></xi:include>", ""),
    ] {
        let content = format!("{include}{PROFILE}");
        let file = read_groups(&content, &[]).unwrap();
        let warnings: Vec<_> = file.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings.join("|"), warning);
        assert_eq!(group_names(&content, &[]), "p");
    }
}

#[test]
fn messages_name_the_included_file() {
    let files = [
        ("d/x.xml", "\n<Group/><xi:include href='y.xml'/>"),
        ("d/y.xml", "<Grp/>"),
        ("bad.xml", "<Group>"),
    ];
    let content = "<xi:include href='d/x.xml'/>\n<xi:include href='bad.xml'/>";
    let bad = read_groups(content, &files).unwrap_err();
    assert!(bad.starts_with("line 3: cannot include bad.xml: line 1: it is not XML: "), "{bad}");
    assert!(
        bad.ends_with(
            "\nline 2 of d/x.xml: <Group> has no attribute name; add name=\"…\"\n\
             line 1 of d/y.xml: <Grp> is not accepted here; accepted: Group, Client and Bundle"
        ),
        "{bad}"
    );
}

#[test]
fn other_includes_are_refused() {
    let deep = "line 1 of x.xml: includes are nested deeper than 8 levels; check that no file \
                includes itself";
    for (include, error) in [
        ("href='x.xml'", deep),
        ("href='../secret.xml'", "line 2: cannot include ../secret.xml: it is not in the folder"),
        ("href='*.xml'", "line 2: the pattern *.xml is not expanded; include each file"),
        ("parse='xml'", "line 2: the include has no attribute href; add href=\"…\""),
        (
            "href='x.xml' parse='text'",
            "line 2: an include may only have the attributes href and parse=\"xml\"",
        ),
        (
            "href='y.xml'",
            "line 1 of y.xml: an include in an included file must have an empty fallback",
        ),
    ] {
        let files = [
            ("x.xml", "<xi:include href='x.xml'/>"),
            (
                "y.xml",
                "<xi:include href='x.xml'><xi:fallback><Group name='a'/></xi:fallback></xi:include>",
            ),
        ];
        assert_eq!(read_groups(&format!("<xi:include {include}/>"), &files).unwrap_err(), error);
    }
}

#[test]
fn the_size_of_all_included_files_is_bounded() {
    let many = "<Group name='a'/>".repeat(40_000);
    let long = " ".repeat(9 << 20);
    let twice = "<xi:include href='twice.xml'/>".repeat(2);
    let files = [("many.xml", many.as_str()), ("long.xml", &long), ("twice.xml", &twice)];
    for (name, count, error) in [
        ("many", 3, "the files have more than 100000 elements"),
        ("long", 2, "the files have more than 16777216 bytes"),
        ("none", 2000, "more than 1000 files are included"),
        ("twice", 100, "includes are nested deeper than 8 levels"),
    ] {
        let content = format!("<xi:include href='{name}.xml'/>").repeat(count);
        let errors = read_groups(&content, &files).unwrap_err();
        assert!(errors.contains(error), "{errors:.300}");
    }
}
