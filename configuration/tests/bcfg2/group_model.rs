//! Random files of groups, compared with a slow model that evaluates each membership by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::group_rules::resolve_node;

/// Passes after which the model takes the memberships as endless.
const MAX_PASSES: usize = 500;

/// A `Group` or `Client` below `<Groups>` or in a condition.
#[derive(Clone, Debug, Default)]
struct Element {
    /// `Group` or `Client`.
    tag: &'static str,
    name: String,
    is_negated: bool,
    category: Option<&'static str>,
    is_profile: bool,
    is_default: bool,
    bundles: Vec<&'static str>,
    children: Vec<Element>,
}

impl Element {
    fn is_client(&self) -> bool {
        self.tag == "Client"
    }

    fn xml(&self) -> String {
        let tag = self.tag;
        let mut xml = format!("<{tag} name='{}'", self.name);
        let flags = [
            ("negate", self.is_negated),
            ("profile", self.is_profile),
            ("default", self.is_default),
        ];
        for (name, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            write!(xml, " {name}='true'").unwrap();
        }
        if let Some(category) = self.category {
            write!(xml, " category='{category}'").unwrap();
        }
        xml.push('>');
        xml.extend(self.bundles.iter().map(|name| format!("<Bundle name='{name}'/>")));
        xml.extend(self.children.iter().map(Element::xml));
        write!(xml, "</{tag}>").unwrap();
        xml
    }
}

/// The conditions around a membership, the outermost first.
type Conditions<'e> = Vec<&'e Element>;

/// The groups of one node, as text.
#[derive(Debug, Default)]
struct Model<'e> {
    definitions: BTreeMap<&'e str, &'e Element>,
    default: Option<&'e str>,
    memberships: Vec<(&'e str, Conditions<'e>)>,
    removals: Vec<(&'e str, Conditions<'e>)>,
    groups: BTreeSet<String>,
    categories: BTreeMap<&'static str, String>,
    bundles: BTreeSet<&'static str>,
}

impl<'e> Model<'e> {
    fn new(elements: &'e [Element]) -> Self {
        let mut model = Self::default();
        let groups = || elements.iter().filter(|element| !element.is_client());
        for element in groups() {
            model.define(element);
        }
        for element in groups() {
            model.define_children(element);
        }
        let clients = elements.iter().filter(|element| element.is_client());
        for element in groups().chain(clients) {
            model.add_rules(element, &mut vec![]);
        }
        model
    }

    fn define(&mut self, element: &'e Element) {
        if !element.is_client() && !self.definitions.contains_key(element.name.as_str()) {
            self.definitions.insert(&element.name, element);
            if element.is_default {
                self.default = Some(&element.name);
            }
        }
    }

    fn define_children(&mut self, element: &'e Element) {
        for child in &element.children {
            self.define(child);
            self.define_children(child);
        }
    }

    fn add_rules(&mut self, element: &'e Element, outer: &mut Conditions<'e>) {
        outer.push(element);
        for child in &element.children {
            if !child.children.is_empty() {
                self.add_rules(child, outer);
            } else if child.is_negated {
                self.removals.push((&child.name, outer.clone()));
            } else {
                self.memberships.push((&child.name, outer.clone()));
            }
        }
        outer.pop();
    }

    fn holds(&self, conditions: &Conditions<'_>, node: &str) -> bool {
        conditions.iter().all(|condition| {
            let is_match = if condition.is_client() {
                condition.name == node
            } else {
                self.groups.contains(&condition.name)
            };
            is_match != condition.is_negated
        })
    }

    fn category(&self, group: &str) -> Option<&'static str> {
        self.definitions.get(group).and_then(|definition| definition.category)
    }

    /// Takes the category of a group, if no other group has it.
    fn claim(&mut self, group: &str) -> bool {
        let Some(category) = self.category(group) else {
            return true;
        };
        let is_free = !self.categories.contains_key(category);
        if is_free {
            self.categories.insert(category, group.to_owned());
        }
        is_free
    }

    fn join(&mut self, group: &str) {
        if !self.groups.contains(group) && self.claim(group) {
            self.groups.insert(group.to_owned());
        }
    }

    /// Evaluates all rules. None if the memberships change without end.
    fn settle(&mut self, node: &str) -> Option<()> {
        for _ in 0..MAX_PASSES {
            let before = self.groups.len();
            let mut joined = BTreeSet::new();
            let mut done = BTreeSet::new();
            for (group, _) in self.memberships.clone() {
                let is_new = done.insert(group) && !self.groups.contains(group);
                let mut rules = self.memberships.iter().filter(|(name, _)| *name == group);
                let joins = is_new && rules.any(|(_, conditions)| self.holds(conditions, node));
                if joins && self.claim(group) {
                    joined.insert(group.to_owned());
                }
            }
            self.groups.extend(joined);
            let removed = self.removals.iter().filter(|(_, rules)| self.holds(rules, node));
            let removed: BTreeSet<_> = removed.map(|(group, _)| *group).collect();
            for group in removed {
                if self.groups.remove(group)
                    && let Some(category) = self.category(group)
                {
                    self.categories.remove(category);
                }
            }
            if self.groups.len() == before {
                let definitions =
                    self.groups.iter().filter_map(|name| self.definitions.get(name.as_str()));
                self.bundles.extend(definitions.flat_map(|definition| definition.bundles.clone()));
                return Some(());
            }
        }
        None
    }

    /// Groups and bundles of a node; none if there are none.
    fn resolve(mut self, node: &str, profile: Option<&str>, facts: &[String]) -> Option<Self> {
        let profile = profile.or(self.default)?;
        self.join(profile);
        self.settle(node)?;
        if let (true, Some(default)) = (self.groups.is_empty(), self.default) {
            self.join(default);
            self.settle(node)?;
        }
        if !facts.is_empty() {
            for fact in facts {
                self.join(fact);
            }
            self.settle(node)?;
        }
        Some(self)
    }
}

fn group_name() -> impl Strategy<Value = String> {
    (0..7).prop_map(|number| format!("g{number}"))
}

/// A membership or a condition, in a condition.
fn inner_element() -> impl Strategy<Value = Element> {
    let category = prop::option::weighted(0.1, prop::sample::select(vec!["x", "y"]));
    let leaf = (group_name(), prop::bool::weighted(0.25), category);
    let leaf = leaf.prop_map(|(name, is_negated, category)| Element {
        tag: "Group",
        name,
        is_negated,
        category,
        ..Element::default()
    });
    leaf.prop_recursive(3, 12, 3, |inner| {
        let children = prop::collection::vec(inner, 1..4);
        let client = prop::option::weighted(0.3, prop::sample::select(vec!["n1", "n2"]));
        (group_name(), client, prop::bool::weighted(0.3), children).prop_map(condition)
    })
}

fn condition(
    (group, client, is_negated, children): (String, Option<&'static str>, bool, Vec<Element>),
) -> Element {
    let tag = if client.is_some() { "Client" } else { "Group" };
    let name = client.map_or(group, str::to_owned);
    Element { tag, name, is_negated, children, ..Element::default() }
}

/// Definitions, conditions and clients below `<Groups>`. All groups are defined.
fn outer_elements() -> impl Strategy<Value = Vec<Element>> {
    let options = (
        prop::option::weighted(0.4, prop::sample::select(vec!["x", "y"])),
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::collection::vec(prop::sample::select(vec!["b1", "b2", "b3"]), 0..3),
    );
    let children = || prop::collection::vec(inner_element(), 0..4);
    let definition = (options, children());
    let definitions = prop::collection::vec(definition, 7).prop_map(|definitions| {
        let numbered = definitions.into_iter().enumerate();
        let elements =
            numbered.map(|(number, ((category, is_profile, is_default, bundles), children))| {
                Element {
                    tag: "Group",
                    name: format!("g{number}"),
                    category,
                    is_profile,
                    is_default,
                    bundles,
                    children,
                    ..Element::default()
                }
            });
        elements.collect::<Vec<_>>()
    });
    let children = prop::collection::vec(inner_element(), 1..4);
    let client = prop::option::weighted(0.5, prop::sample::select(vec!["n1", "n2"]));
    let others = (group_name(), client, prop::bool::weighted(0.4), children).prop_map(condition);
    let others = prop::collection::vec(others, 0..4);
    (definitions, others)
        .prop_map(|(definitions, others)| [definitions, others].concat())
        .prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(20_261_201), ..ProptestConfig::default()
    })]

    #[test]
    fn groups_and_bundles_are_those_of_the_model(
        elements in outer_elements(),
        profile in prop::option::weighted(0.8, group_name()),
        facts in prop::collection::vec((0..9).prop_map(|number| format!("g{number}")), 0..4),
    ) {
        let groups: String = elements.iter().map(Element::xml).collect();
        let client = |profile| format!("<Client name='n1' profile='{profile}'/>");
        let clients = profile.as_ref().map(client).unwrap_or_default();
        let resolved = resolve_node(&groups, &clients, "n1", &facts);
        let expected = Model::new(&elements).resolve("n1", profile.as_deref(), &facts);
        match (resolved, expected) {
            (Ok(resolved), Some(expected)) => {
                prop_assert_eq!(&resolved.groups, &expected.groups, "{}", groups);
                let bundles: BTreeSet<_> = expected.bundles.iter().map(|name| (*name).to_owned()).collect();
                prop_assert_eq!(&resolved.bundles, &bundles, "{}", groups);
            }
            (Err(error), None) => {
                let is_expected = error.contains("without end") || error.contains("is not a client");
                prop_assert!(is_expected, "{error}");
            }
            (resolved, expected) => prop_assert!(false, "{groups}: {resolved:?}, not {expected:?}"),
        }
    }
}
