//! Files of groups and clients that are refused, or read with warnings.

use std::fmt::Write as _;

use evenkeel_configuration::FieldError;
use evenkeel_configuration::bcfg2::groups::{ClientFile, GroupFile};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::group_rules::resolve_node;

/// Each error of a file in a line.
fn lines(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn group_errors(text: &str) -> String {
    GroupFile::read(text, None).map_or_else(|errors| lines(&errors), |_| "none".to_owned())
}

fn client_errors(text: &str) -> String {
    ClientFile::read(text, None).map_or_else(|errors| lines(&errors), |_| "none".to_owned())
}

/// Errors of the content of `<Groups>`, which begins in line 2.
fn group_content_errors(content: &str) -> String {
    group_errors(&format!("<Groups>\n{content}\n</Groups>"))
}

#[test]
fn groups_that_bcfg2_reads_in_another_way_are_a_warning() {
    let bundle = "is inside of a condition: Bcfg2 ignores the bundle or the condition; define a \
                  group with the bundle below <Groups>, and put that group into the condition";
    let cases = [
        (
            "<Group name='a'>\n<Group name='b'><Bundle name='x'/></Group></Group>",
            format!("line 3: bundle x {bundle}"),
        ),
        ("<Client name='n1'><Bundle name='x'/></Client>", format!("line 2: bundle x {bundle}")),
        (
            "<Client name='n1'>\n<Group name='b'>\n<Bundle name='x'/></Group></Client>",
            format!("line 4: bundle x {bundle}"),
        ),
        (
            "<Group name='a'><Client name='n1'><Bundle name='x'/></Client></Group>",
            format!("line 2: bundle x {bundle}"),
        ),
        (
            "\n<Group name='a' negate='true'><Bundle name='x'/></Group>",
            "line 3: negate=\"true\" with bundles: Bcfg2 gives them to the members of the group, \
             not to others; put the bundles into another group, and that group into this element"
                .to_owned(),
        ),
        (
            "<Group name='a' negate='True'/>",
            "line 2: negate=\"true\" without groups inside has no effect in Bcfg2; to remove a \
             client from the group, put this element into a condition"
                .to_owned(),
        ),
        (
            "<Group name='n1'><Client name='n1'/></Group>",
            "line 2: <Client> without groups inside: Bcfg2 takes it as a group n1; remove it, or \
             put groups inside"
                .to_owned(),
        ),
    ];
    for (content, warning) in cases {
        let file = GroupFile::read(&format!("<Groups>\n{content}\n</Groups>"), None).unwrap();
        assert_eq!(lines(file.warnings()), warning, "{content}");
    }
}

#[test]
fn memberships_that_bcfg2_fails_on_are_refused() {
    for (content, group) in [
        ("<Client name='n1'>\n\n<Group name='b'/></Client>", "b"),
        ("<Group name='a'>\n\n<Client name='n1'/></Group>", "n1"),
    ] {
        let error = format!(
            "line 4: group {group} is not defined, and Bcfg2 reads no definition inside of a client; \
             add <Group name=\"{group}\"/> below <Groups>"
        );
        assert_eq!(group_content_errors(content), error, "{content}");
    }
}

#[test]
fn what_is_missing_or_not_accepted_is_named() {
    let cases = [
        ("<Group/>", "line 2: <Group> has no attribute name; add name=\"…\""),
        ("<Group name=''/>", "line 2: <Group> has no attribute name; add name=\"…\""),
        (
            "<Group name='a'><Bundle/></Group>",
            "line 2: <Bundle> has no attribute name; add name=\"…\"",
        ),
        (
            "<Group name='a'><Bundle name='b'><Group name='c'/></Bundle></Group>",
            "line 2: <Group> is not accepted here; accepted: none",
        ),
        (
            "<Client><Group name='a'/></Client>",
            "line 2: <Client> has no attribute name; add name=\"…\"",
        ),
        (
            "<Grp name='a'/>",
            "line 2: <Grp> is not accepted here; accepted: Group, Client and Bundle",
        ),
        (
            "<xi:include xmlns:xi='http://www.w3.org/2001/XInclude' href='web.xml'/>",
            "line 2: web.xml is not read, because the file is standard input; give the path of the file",
        ),
    ];
    for (content, error) in cases {
        assert_eq!(group_content_errors(content), error, "{content}");
    }
    let cases = [
        ("<Clients/>", "line 1: the document is <Clients>; give a file with <Groups>"),
        ("<Groups xmlns='urn:x'/>", "line 1: Bcfg2 finds no element in a namespace; remove xmlns"),
        ("", "line 1: the document has no element"),
    ];
    for (text, error) in cases {
        assert_eq!(group_errors(text), error, "{text}");
    }
}

#[test]
fn clients_need_a_name_and_a_profile() {
    let cases = [
        ("<Client name='n1'/>", "line 2: <Client> has no attribute profile; add profile=\"…\""),
        (
            "<Client/>",
            "line 2: <Client> has no attribute name; add name=\"…\"\n\
             line 2: <Client> has no attribute profile; add profile=\"…\"",
        ),
        (
            "<Client name='n1' profile='a'><Alias/></Client>",
            "line 2: <Alias> has no attribute name; add name=\"…\"",
        ),
        (
            "<Client name='n1' profile='a'><Client name='n2' profile='a'/></Client>",
            "line 2: <Client> is not accepted here; accepted: Alias",
        ),
        ("<Group name='a'/>", "line 2: <Group> is not accepted here; accepted: Client"),
    ];
    for (content, error) in cases {
        assert_eq!(client_errors(&format!("<Clients>\n{content}</Clients>")), error, "{content}");
    }
    assert_eq!(
        client_errors("<Groups/>"),
        "line 1: the document is <Groups>; give a file with <Clients>"
    );
}

#[test]
fn what_bcfg2_ignores_is_a_warning() {
    let content = "<Bundle name='x'/>
        <Group name='a' profile='True' colour='red'><Group name='b'><!-- c --></Group></Group>
        <Group name='a'><Bundle name='x'/></Group>
        <Client name='N1'/>
        <Group name='d' default='true'/>
        <Group name='e' profile='true' default='true'/>";
    let file = GroupFile::read(&format!("<Groups>\n{content}\n</Groups>"), None).unwrap();
    assert_eq!(
        lines(file.warnings()),
        "line 2: bundle x is in no group
line 3: <Group> has no attribute colour in Bcfg2; it is ignored
line 5: client N1 never matches, because names of clients are lower-case in Bcfg2; write n1
line 5: client N1 has no groups inside
line 3: Bcfg2 takes profile=\"True\" as false; write \"true\" or \"false\"
line 4: group a is defined in line 3; Bcfg2 ignores the attributes and bundles of this definition
line 6: the default group d is not a profile; add profile=\"true\"
line 7: group d is a default as well; Bcfg2 takes e
line 3: Bcfg2 takes b as a condition, because it has a comment inside; move the comment"
    );
    let content =
        "<Client name='n1' profile='a' adress='::1'><Alias name='M'/><Alias name='n2'/></Client>
        <Client name='n2' profile='a'><Alias name='k'/></Client>
        <Client name='n3' profile='a'><Alias name='k'/></Client>
        <Client name='N3' profile='b'/>";
    let file = ClientFile::read(&format!("<Clients>\n{content}\n</Clients>"), None).unwrap();
    assert_eq!(
        lines(file.warnings()),
        "line 2: <Client> has no attribute adress in Bcfg2; it is ignored
line 2: alias M matches no node, because Bcfg2 compares lower-case names; write m
line 4: k is an alias of n2 as well; Bcfg2 takes it as n3
line 5: client n3 is in line 4 as well; Bcfg2 gives it all of the profiles
line 3: Bcfg2 takes n2 as an alias of client n1"
    );
}

#[test]
fn files_that_attack_the_reader_are_refused() {
    let mut laughs = "<!DOCTYPE l [<!ENTITY a0 'ha'>".to_owned();
    for level in 1..40 {
        let before = level - 1;
        write!(laughs, "<!ENTITY a{level} '&a{before};&a{before};'>").unwrap();
    }
    laughs.push_str("]><Groups><Group name='&a39;'/></Groups>");
    let document_type = "line 1: a document type (<!DOCTYPE>) is refused";
    assert_eq!(group_errors(&laughs), document_type);
    assert_eq!(client_errors(&laughs), document_type);
    let external = "<!DOCTYPE c [<!ENTITY x SYSTEM 'file:///etc/shadow'>]><Clients>&x;</Clients>";
    assert_eq!(client_errors(external), document_type);

    let deep = format!("<Groups>{}", "<Group name='a'>".repeat(100_000));
    assert_eq!(group_errors(&deep), "line 1: elements are nested deeper than 16 levels");
    let many = format!("<Groups>{}</Groups>", "<Group name='a'/>".repeat(200_000));
    assert_eq!(group_errors(&many), "line 1: the document has more than 100000 elements");
    let large = format!("<Clients>{}</Clients>", " ".repeat(20 << 20));
    assert_eq!(
        client_errors(&large),
        "the document has 20971539 bytes; at most 16777216 are accepted"
    );

    // Messages stay short, and lists of them too.
    let long = format!(
        "<Groups><Client name='{0}'><Bundle name='{0}'/></Client></Groups>",
        "ä".repeat(20_000)
    );
    assert!(group_errors(&long).len() < 3_000);
    let errors = GroupFile::read(&format!("<Groups>{}</Groups>", "<Group/>".repeat(90_000)), None);
    assert_eq!(errors.unwrap_err().len(), 101);
    let file =
        GroupFile::read(&format!("<Groups>{}</Groups>", "<Bundle name='x'/>".repeat(300)), None);
    let warnings = lines(file.unwrap().warnings());
    assert!(warnings.ends_with("\n200 further warnings are not listed"), "{warnings}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(20_261_201), ..ProptestConfig::default()
    })]

    #[test]
    fn any_content_is_read_or_refused(
        tokens in prop::collection::vec(prop::sample::select(vec![
            "<Group name='a'>", "</Group>", "<Group name='b' negate='true'/>", "<Client name='n1'>",
            "</Client>", "<Bundle name='x'/>", "<Groups>", "</Groups>", "<!-- c -->", "text", "&#0;",
            "<Group name='c' category='k'/>", "<?pi?>", "<Group", "é", "<Client name='n1' profile='a'/>",
        ]), 0..24),
    ) {
        let content = tokens.concat();
        let clients = "<Client name='n1' profile='a'/>";
        let _ = resolve_node(&content, clients, "n1", &["b"]);
        let _ = resolve_node("<Group name='a' default='true'/>", &content, "n1", &["b"]);
    }
}
