//! Groups and bundles of nodes, as the server of Bcfg2 1.3.4 resolves them.

use evenkeel_configuration::bcfg2::groups::{ClientFile, GroupFile, NodeGroups, resolve};

/// What Bcfg2 makes of one node.
struct Case {
    name: &'static str,
    /// Content of `<Groups>`.
    groups: &'static str,
    /// Content of `<Clients>`.
    clients: &'static str,
    node: &'static str,
    facts: &'static [&'static str],
    /// Node, profile, groups and bundles.
    expected: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "a profile brings its groups, and their groups and bundles",
        groups: r#"<Group name="web" profile="true"><Bundle name="nginx"/><Group name="base"/></Group>
            <Group name="base"><Bundle name="ntp"/><Group name="all"/></Group>
            <Group name="all"/><Group name="other"><Bundle name="x"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [all base web] [nginx ntp]",
    },
    Case {
        name: "an unknown node gets the default profile, also if it is not public",
        groups: r#"<Group name="web" profile="true" default="true" public="false"><Bundle name="nginx"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "N2.Example.com",
        facts: &[],
        expected: "n2.example.com web [web] [nginx]",
    },
    Case {
        name: "the last default group counts",
        groups: r#"<Group name="a" profile="true" default="true"/><Group name="b" profile="true" default="true"/>"#,
        clients: "",
        node: "n1",
        facts: &[],
        expected: "n1 b [b] []",
    },
    Case {
        name: "a default group that is no profile is a group",
        groups: r#"<Group name="a" default="true"/>"#,
        clients: "",
        node: "n1",
        facts: &[],
        expected: "n1 - [a] []",
    },
    Case {
        name: "names and aliases of clients are compared in lower case",
        groups: r#"<Group name="web" profile="true"/>"#,
        clients: r#"<Client name="N1" profile="web"><Alias name="mgmt" address="10.0.0.1"/></Client>"#,
        node: "Mgmt",
        facts: &[],
        expected: "n1 web [web] []",
    },
    Case {
        name: "an alias hides the client of that name",
        groups: r#"<Group name="a" profile="true"/><Group name="b" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="a"><Alias name="n2"/></Client><Client name="n2" profile="b"/>"#,
        node: "n2",
        facts: &[],
        expected: "n1 a [a] []",
    },
    Case {
        name: "the last client with an alias counts",
        groups: r#"<Group name="a" profile="true"/><Group name="b" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="a"><Alias name="m"/></Client><Client name="n2" profile="b"><Alias name="m"/></Client>"#,
        node: "m",
        facts: &[],
        expected: "n2 b [b] []",
    },
    Case {
        name: "a group with groups inside is a condition",
        groups: r#"<Group name="mail" profile="true"><Group name="deb12"><Group name="exim"/></Group>
            <Group name="deb13"><Group name="postfix"/></Group></Group>
            <Group name="exim"><Bundle name="exim4"/></Group>"#,
        clients: r#"<Client name="n1" profile="mail"/>"#,
        node: "n1",
        facts: &["deb12"],
        expected: "n1 mail [deb12 exim mail] [exim4]",
    },
    Case {
        name: "a negated condition holds for all others",
        groups: r#"<Group name="web" profile="true"/><Group name="debian"/>
            <Group name="debian" negate="true"><Group name="foreign"/></Group>
            <Group name="web"><Client name="n1" negate="true"><Group name="foreign"/></Client></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [foreign web] []",
    },
    Case {
        name: "a client in groups.xml gets groups",
        groups: r#"<Group name="web" profile="true"/><Group name="canary"><Bundle name="c"/></Group>
            <Client name="n1"><Group name="canary"/></Client><Client name="n2"><Group name="web"/></Client>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [canary web] [c]",
    },
    Case {
        name: "a client in groups.xml with an upper-case letter never matches",
        groups: r#"<Group name="web" profile="true"/><Group name="canary"/><Client name="N1"><Group name="canary"/></Client>"#,
        clients: r#"<Client name="N1" profile="web"/>"#,
        node: "N1",
        facts: &[],
        expected: "n1 web [web] []",
    },
    Case {
        name: "one negation removes a group and its bundles",
        groups: r#"<Group name="web" profile="true"><Group name="selinux"/><Group name="base"/></Group>
            <Group name="base"><Group name="selinux"/></Group><Group name="selinux"><Bundle name="se"/></Group>
            <Client name="n1"><Group name="selinux" negate="TRUE"/></Client>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [base web] []",
    },
    Case {
        name: "groups of a removed group stay if they joined before",
        groups: r#"<Group name="web" profile="true"><Group name="a"/><Group name="b"><Group name="a" negate="true"/></Group></Group>
            <Group name="a"><Group name="b"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [b web] []",
    },
    Case {
        name: "a node without groups gets the default profile, and keeps its own one",
        groups: r#"<Group name="web" profile="true"/><Group name="base" profile="true" default="true"><Bundle name="b"/></Group>
            <Client name="n1"><Group name="web" negate="true"/></Client>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [base] [b]",
    },
    Case {
        name: "the first group of a category counts",
        groups: r#"<Group name="web" profile="true"><Group name="b"/><Group name="a"/></Group>
            <Group name="a" category="ring"><Bundle name="xa"/></Group><Group name="b" category="ring"><Bundle name="xb"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [b web] [xb]",
    },
    Case {
        name: "groups inside of groups precede groups inside of clients",
        groups: r#"<Client name="n1"><Group name="a"/></Client><Group name="web" profile="true"><Group name="b"/></Group>
            <Group name="a" category="ring"/><Group name="b" category="ring"/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [b web] []",
    },
    Case {
        name: "a removed group takes its category in each pass before other groups",
        groups: r#"<Group name="web" profile="true"><Group name="a"/><Group name="b"/><Group name="c"/></Group>
            <Group name="a" category="ring"/><Group name="b" category="ring"/><Group name="c"/>
            <Client name="n1"><Group name="a" negate="true"/></Client>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [c web] []",
    },
    Case {
        name: "a category in the profile counts first",
        groups: r#"<Group name="web" profile="true" category="kind"><Group name="db"/></Group><Group name="db" category="kind"/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [web] []",
    },
    Case {
        name: "an empty category is none",
        groups: r#"<Group name="web" profile="true" category=""><Group name="db"/></Group><Group name="db" category=""/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [db web] []",
    },
    Case {
        name: "the first definition of a group counts, and all its conditions",
        groups: r#"<Group name="web" profile="true"><Bundle name="one"/></Group>
            <Group name="web" category="x"><Bundle name="two"/><Group name="base"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [base web] [one]",
    },
    Case {
        name: "a definition below Groups precedes one in a group, also if it follows",
        groups: r#"<Group name="web" profile="true"><Group name="base" category="x"/><Group name="other" category="x"/></Group>
            <Group name="base"><Bundle name="b"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [base other web] [b]",
    },
    Case {
        name: "a comment makes a condition",
        groups: r#"<Group name="web" profile="true"><Group name="base"><!-- for all --></Group></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [web] []",
    },
    Case {
        name: "flags are true only as true",
        groups: r#"<Group name="web" profile="True"/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 - [web] []",
    },
    Case {
        name: "a profile that is not defined is a group",
        groups: r#"<Group name="web" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="mail"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 - [mail] []",
    },
    Case {
        name: "a profile group of a rule becomes the profile",
        groups: r#"<Group name="a"><Group name="web"/></Group><Group name="web" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="a"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [a web] []",
    },
    Case {
        name: "groups that bring each other are one group",
        groups: r#"<Group name="a" profile="true"><Group name="b"/><Group name="a"/></Group><Group name="b"><Group name="a"/></Group>"#,
        clients: r#"<Client name="n1" profile="a"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 a [a b] []",
    },
    Case {
        name: "Bcfg2 ignores the condition of a bundle in the first definition",
        groups: r#"<Group name="web" profile="true"><Groups><Group name="base"><Bundle name="b"/><Group name="x"/></Group></Groups></Group>"#,
        clients: r#"<Clients><Client name="n1" profile="web"/></Clients>"#,
        node: "n1",
        facts: &["base"],
        expected: "n1 web [base web x] [b]",
    },
    Case {
        name: "a bundle in a condition belongs to a group without another definition",
        groups: r#"<Group name="web" profile="true"><Group name="os"><Group name="base"><Bundle name="b"/></Group></Group></Group>
            <Client name="n1"><Group name="base"/></Client>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [base web] [b]",
    },
    Case {
        name: "other bundles in a condition are ignored",
        groups: r#"<Group name="web" profile="true"><Group name="base"><Bundle name="b"/></Group><Client name="n1"><Bundle name="c"/></Client></Group>
            <Client name="n1"><Bundle name="d"/><Group name="base"/><Group name="base"><Bundle name="e"/></Group></Client><Group name="base"/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [base web] []",
    },
    Case {
        name: "the bundles of a negated definition are those of the group",
        groups: r#"<Group name="web" profile="true"/><Group name="web" negate="true"><Bundle name="x"/></Group>
            <Group name="base" negate="true"><Bundle name="b"/><Group name="c"/></Group><Group name="c" negate="true"/>"#,
        clients: r#"<Client name="n1" profile="web"/><Client name="n2" profile="base"/>"#,
        node: "n2",
        facts: &[],
        expected: "n2 - [base] [b]",
    },
    Case {
        name: "a client without groups in a condition is a group",
        groups: r#"<Group name="web" profile="true"><Client name="n1"/><Client name="kvm" negate="true"/></Group><Group name="n1"><Bundle name="b"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &["kvm"],
        expected: "n1 web [n1 web] [b]",
    },
    Case {
        name: "a client that is there twice has both profiles",
        groups: r#"<Group name="a"><Bundle name="x"/></Group><Group name="b" profile="true"><Bundle name="y"/></Group><Group name="c" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="a"/><Client name="N1" profile="b"/><Client name="n1" profile="c"/>"#,
        node: "n1",
        facts: &[],
        expected: "n1 b [a b c] [x y]",
    },
    Case {
        name: "Groups inside of Groups define groups",
        groups: r#"<Groups><Group name="web" profile="true"><Bundle name="b"/><Group name="x"/></Group></Groups>"#,
        clients: r#"<Clients><Client name="n1" profile="web"/></Clients>"#,
        node: "n1",
        facts: &[],
        expected: "n1 web [web x] [b]",
    },
    Case {
        name: "a fact is a group without a definition",
        groups: r#"<Group name="web" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &["kvm", "web", "kvm"],
        expected: "n1 web [kvm web] []",
    },
    Case {
        name: "facts join after other groups of a category, the first one first",
        groups: r#"<Group name="web" profile="true"><Group name="a"/></Group><Group name="a" category="r"/>
            <Group name="b" category="r"/><Group name="c" category="s"/><Group name="d" category="s"/>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &["b", "d", "c"],
        expected: "n1 web [a d web] []",
    },
    Case {
        name: "bundles of a group that facts remove stay",
        groups: r#"<Group name="web" profile="true"><Group name="a"/></Group><Group name="a"><Bundle name="x"/></Group>
            <Group name="kvm"><Group name="a" negate="true"/></Group>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &["kvm"],
        expected: "n1 web [kvm web] [x]",
    },
    Case {
        name: "facts can give the profile",
        groups: r#"<Group name="a"/><Group name="p" profile="true"/><Group name="q" profile="true"/>"#,
        clients: r#"<Client name="n1" profile="a"/>"#,
        node: "n1",
        facts: &["kvm", "q", "p"],
        expected: "n1 q [a kvm p q] []",
    },
    Case {
        name: "with facts, the default profile is the last choice",
        groups: r#"<Group name="a"/><Group name="p" profile="true" default="true"/>"#,
        clients: r#"<Client name="n1" profile="a"/>"#,
        node: "n1",
        facts: &["kvm"],
        expected: "n1 p [a kvm] []",
    },
    Case {
        name: "a removal of a group that is not defined works",
        groups: r#"<Group name="web" profile="true"/><Client name="n1"><Group name="kvm" negate="true"/></Client>"#,
        clients: r#"<Client name="n1" profile="web"/>"#,
        node: "n1",
        facts: &["kvm"],
        expected: "n1 web [web] []",
    },
    Case {
        name: "names may have any letters",
        groups: r#"<Group name="Müller &amp; Söhne" profile="true"><Bundle name="ä"/></Group>"#,
        clients: r#"<Client name="NÄ.example" profile="Müller &amp; Söhne"/>"#,
        node: "nÄ.example",
        facts: &[],
        expected: "nä.example Müller & Söhne [Müller & Söhne] [ä]",
    },
];

/// Resolves a node. Errors and warnings are texts.
pub fn resolve_node(
    groups: &str,
    clients: &str,
    node: &str,
    facts: &[impl AsRef<str>],
) -> Result<NodeGroups, String> {
    let lines = |errors: Vec<_>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let groups = GroupFile::read(&format!("<Groups>{groups}</Groups>"), None);
    let groups = groups.map_err(|errors| lines(errors).join("\n"))?;
    let clients = ClientFile::read(&format!("<Clients>{clients}</Clients>"), None);
    let clients = clients.map_err(|errors| lines(errors).join("\n"))?;
    let facts: Vec<String> = facts.iter().map(|fact| fact.as_ref().to_owned()).collect();
    resolve(&groups, &clients, node, &facts).map_err(|error| error.to_string())
}

fn summary(groups: &NodeGroups) -> String {
    let list = |names: &std::collections::BTreeSet<String>| {
        names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    let profile = groups.profile.as_deref().unwrap_or("-");
    format!("{} {profile} [{}] [{}]", groups.node, list(&groups.groups), list(&groups.bundles))
}

#[test]
fn nodes_get_the_groups_and_bundles_of_bcfg2() {
    for case in CASES {
        let groups = resolve_node(case.groups, case.clients, case.node, case.facts);
        let found = groups.map_or_else(|_| "refused".to_owned(), |groups| summary(&groups));
        assert_eq!(found, case.expected, "{}", case.name);
    }
}

#[test]
fn warnings_name_what_bcfg2_decides_silently() {
    let ring = r#"<Group name="web" profile="true"><Group name="a"/><Group name="b"/></Group>
        <Group name="a" category="ring"/><Group name="b" category="ring"/>"#;
    let plain = r#"<Group name="web"/>"#;
    let two = r#"<Group name="web"><Group name="q"/><Group name="p"/></Group>
        <Group name="p" profile="true"/><Group name="q" profile="true"/>"#;
    let cases = [
        (ring, "n1", "node n1 does not join group b: category ring already has group a"),
        (plain, "n1", "client n1 has the profile web, which is not a profile group"),
        ("", "n1", "client n1 has the profile web, which is not defined"),
        (
            r#"<Group name="p" profile="true" default="true"/>"#,
            "n2",
            "node n2 is not a client; it gets the default profile p",
        ),
        (
            two,
            "n1",
            "client n1 has the profile web, which is not a profile group|\
             node n1 has no profile of its own, and is in the profile groups p and q; Bcfg2 may \
             take another one than p",
        ),
    ];
    for (groups, node, warning) in cases {
        let clients = r#"<Client name="n1" profile="web"/>"#;
        let resolved = resolve_node(groups, clients, node, &[""; 0]).unwrap();
        assert_eq!(resolved.warnings.join("|"), warning);
    }
}

#[test]
fn a_node_without_a_profile_is_an_error() {
    let error = resolve_node(r#"<Group name="web"/>"#, "", "N1", &["kvm"]).unwrap_err();
    assert_eq!(error, "node n1 is not a client, and no group is the default profile");
}

#[test]
fn memberships_that_change_without_end_are_an_error() {
    let groups = "\n<Group name='p' profile='true'><Group name='a'/></Group>
        <Group name='a'><Group name='b'/></Group>
        <Group name='b'>
            <Group name='a' negate='true'/>
            <Group name='b' negate='true'/>
        </Group>";
    let clients = "<Client name='n1' profile='p'/>";
    let error = resolve_node(groups, clients, "n1", &[""; 0]).unwrap_err();
    assert_eq!(
        error,
        "line 6: node n1 joins and leaves group b without end, because groups that depend on each \
         other are negated; change this condition. The server of Bcfg2 hangs on it."
    );
}

#[test]
fn the_time_is_bounded() {
    // Each pass finds one more group.
    let chain = (0..16_000).rev();
    let chain = chain.map(|n| format!("<Group name='g{n}'><Group name='g{}'/></Group>", n + 1));
    let groups = chain.collect::<String>();
    let clients = "<Client name='n1' profile='g0'/>";
    let error = resolve_node(&groups, clients, "n1", &[""; 0]).unwrap_err();
    assert_eq!(
        error,
        "the groups of node n1 need more than 100000000 evaluations; remove conditions that depend \
         on each other"
    );
}
