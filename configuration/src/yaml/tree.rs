//! A document as a tree of values that keeps scalars as they are written.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{DuplicateKeyPolicy, Error, Location, MergeKeyPolicy, Options, Spanned};

use super::{MAX_DEPTH, MAX_VALUES};
use crate::validation::excerpt;

/// A value of YAML or JSON.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    /// A scalar without quotes that YAML reads as null, a boolean or a number, as it is written:
    /// `y`, `0644`, `1e3`, `~`.
    Plain(String),
    /// Any other scalar.
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Parses YAML or JSON. Tags, repeated keys, further documents, and more than `max_aliases`
    /// anchors, aliases or merge keys are refused.
    ///
    /// # Errors
    /// Names the line and the column.
    pub(crate) fn parse(text: &str, max_aliases: usize) -> Result<Self, String> {
        let root: LocatedNode = serde_saphyr::from_str_with_options(text, options(max_aliases))
            .map_err(|e| describe(&e))?;
        Ok(root.resolve(text))
    }

    /// Removes the fields of objects that are null.
    pub(crate) fn without_null_fields(self) -> Self {
        match self {
            Self::List(items) => {
                Self::List(items.into_iter().map(Self::without_null_fields).collect())
            }
            Self::Map(fields) => {
                let is_set = |node: &Self| !matches!(node, Self::Plain(text) if text == "null");
                let fields = fields.into_iter().filter(|(_, node)| is_set(node));
                Self::Map(fields.map(|(key, node)| (key, node.without_null_fields())).collect())
            }
            scalar => scalar,
        }
    }

    /// Whether the value is null or absent.
    pub(crate) fn is_null(&self) -> bool {
        const NULLS: [&str; 5] = ["", "~", "null", "Null", "NULL"];
        matches!(self, Self::Plain(text) if NULLS.contains(&text.as_str()))
    }

    /// What the value is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Plain(_) if self.is_null() => "null",
            Self::Plain(_) => "a number or a boolean",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "an object",
        }
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Plain("null".to_owned()),
            Value::Bool(value) => Self::Plain(value.to_string()),
            Value::Number(number) => Self::Plain(number.to_string()),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(key, value)| (key, value.into()));
                Self::Map(fields.collect())
            }
        }
    }
}

/// Most events of the reader that all aliases repeat.
const MAX_REPLAYED_EVENTS: usize = 10_000;

/// Deepest nesting of aliases in the values of aliases.
const MAX_ALIAS_DEPTH: usize = 8;

fn options(max_aliases: usize) -> Options {
    let merge_keys = if max_aliases == 0 { MergeKeyPolicy::Error } else { MergeKeyPolicy::Merge };
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_anchors: max_aliases,
            max_aliases: max_aliases,
            max_merge_keys: max_aliases,
            max_documents: 1,
            max_depth: MAX_DEPTH,
            max_nodes: MAX_VALUES,
            max_events: MAX_VALUES * 3,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: merge_keys,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED_EVENTS,
            max_replay_stack_depth: MAX_ALIAS_DEPTH,
        },
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// A value and where it is in the text.
struct LocatedNode {
    node: ParsedNode,
    /// Byte offset and length.
    span: (usize, usize),
}

enum ParsedNode {
    /// The reader has converted the scalar. The span has it as it is written.
    Converted,
    Text(String),
    List(Vec<LocatedNode>),
    Map(Vec<(String, LocatedNode)>),
}

impl LocatedNode {
    fn resolve(self, source: &str) -> Node {
        match self.node {
            ParsedNode::Converted => {
                let (start, length) = self.span;
                let written = source.get(start..start.saturating_add(length));
                let written = written.unwrap_or_default().trim();
                // A scalar with a tag may be in quotes: !!int "5".
                Node::Plain(written.trim_matches(['"', '\'']).to_owned())
            }
            ParsedNode::Text(text) => Node::Text(text),
            ParsedNode::List(items) => {
                Node::List(items.into_iter().map(|item| item.resolve(source)).collect())
            }
            ParsedNode::Map(fields) => {
                let resolve = |(key, field): (String, Self)| (key, field.resolve(source));
                Node::Map(fields.into_iter().map(resolve).collect())
            }
        }
    }
}

impl<'de> Deserialize<'de> for LocatedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<ParsedNode>::deserialize(deserializer)?;
        let span = spanned.defined.span();
        let start = span.byte_offset().and_then(|offset| usize::try_from(offset).ok());
        let length = span.byte_len().and_then(|length| usize::try_from(length).ok());
        Ok(Self { node: spanned.value, span: (start.unwrap_or(0), length.unwrap_or(0)) })
    }
}

impl<'de> Deserialize<'de> for ParsedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = ParsedNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Converted)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Converted)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Converted)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Converted)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Converted)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<ParsedNode, E> {
        Ok(ParsedNode::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<ParsedNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(ParsedNode::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<ParsedNode, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = access.next_key()? {
            fields.push((key, access.next_value()?));
        }
        Ok(ParsedNode::Map(fields))
    }
}

/// The message for users, with the line and the column if they are known.
fn describe(error: &Error) -> String {
    let error = error.without_snippet();
    let message = match error {
        Error::Budget { breach, .. } => describe_breach(breach),
        Error::MultipleDocuments { .. } => ONE_DOCUMENT.to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {} occurs twice in one object", excerpt(key))
        }
        Error::DuplicateMappingKey { key: None, .. } => {
            "a key occurs twice in one object".to_owned()
        }
        Error::MergeKeyNotAllowed { .. } => {
            "merge keys (<<) are not accepted; write the fields out".to_owned()
        }
        Error::UnsupportedTag { tag, .. } => {
            format!("the tag {} is not accepted; write the value without a tag", excerpt(tag))
        }
        Error::NullIntoString { .. } => "a key is null; write keys in quotes".to_owned(),
        Error::Unexpected { .. } => "a key is an object or a list; keys are texts".to_owned(),
        // The text of the other errors ends with their location.
        other => return format!("this is not YAML or JSON: {other}"),
    };
    match error.location() {
        Some(location) if location != Location::UNKNOWN => {
            format!("line {}, column {}: {message}", location.line(), location.column())
        }
        _ => message,
    }
}

const ONE_DOCUMENT: &str = "a second document begins here; write one document a file";

fn describe_breach(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::AliasAnchorRatio { .. }
        | BudgetBreach::MergeKeys { .. } => {
            "anchors (&) and aliases (*) are not accepted here; write the value out".to_owned()
        }
        BudgetBreach::Documents { .. } => ONE_DOCUMENT.to_owned(),
        BudgetBreach::Depth { .. } => {
            format!("values are nested more than {MAX_DEPTH} levels deep")
        }
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            format!("the document has more than {MAX_VALUES} values; split it")
        }
        other => format!("the document exceeds a limit: {other:?}"),
    }
}
