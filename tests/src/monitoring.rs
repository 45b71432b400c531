//! The queries of the alerts and the dashboard in `deploy/monitoring`, and the metrics that they use.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::architecture::tree;

/// Folder of the alerts and the dashboard.
pub const FOLDER: &str = "deploy/monitoring";

/// Functions that a query may call.
const FUNCTIONS: [&str; 6] =
    ["abs", "histogram_quantile", "increase", "label_values", "rate", "time"];

const AGGREGATIONS: [&str; 4] = ["count", "max", "min", "sum"];

const OPERATORS: [&str; 3] = ["and", "or", "unless"];

/// A query in `PromQL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromQuery {
    /// What it belongs to, for messages.
    pub owner: String,
    pub text: String,
}

/// The metrics and labels that a query uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct QueryUse {
    pub selectors: Vec<Selector>,
    /// The labels of `by (…)`.
    pub grouping: BTreeSet<String>,
}

/// A metric and the values that a query selects.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    /// Labels and each value that they are compared with.
    pub matchers: Vec<(String, Vec<String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Symbol(char),
}

/// Content of a file in the folder.
///
/// # Panics
/// The file cannot be read.
pub fn read_file(name: &str) -> String {
    let path = tree::root().join(FOLDER).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The expression of each alert. Each has one line; `promtool` checks the rest of the file.
pub fn alert_queries(rules: &str) -> Vec<PromQuery> {
    let mut owner = String::new();
    let mut queries = Vec::new();
    for line in rules.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("- alert: ") {
            name.clone_into(&mut owner);
        }
        if let Some(text) = line.strip_prefix("expr: ") {
            queries.push(PromQuery { owner: owner.clone(), text: text.to_owned() });
        }
    }
    queries
}

/// The queries of each panel and variable of the dashboard, with values for its variables.
///
/// # Panics
/// The dashboard is not JSON of the expected form.
pub fn dashboard_queries(dashboard: &str) -> Vec<PromQuery> {
    let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
    let mut queries = Vec::new();
    let mut add = |owner: &Value, text: &Value| {
        let (owner, text) = (owner.as_str().expect("a title"), text.as_str().expect("a query"));
        let text = text
            .replace("$__rate_interval", "5m")
            .replace("$instance", ".*")
            .replace("$job", "evenkeel");
        assert!(!text.contains('$'), "{owner}: an unknown variable in {text}");
        queries.push(PromQuery { owner: owner.to_owned(), text });
    };
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            add(&panel["title"], &target["expr"]);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        if variable["type"] == "query" {
            add(&variable["name"], &variable["query"]["query"]);
        }
    }
    queries
}

/// Parses the names in a query. Strict: an unknown function, an unknown character and a selector
/// of another form are errors.
///
/// # Errors
/// Says what is not understood.
pub fn parse_query(text: &str) -> Result<QueryUse, String> {
    let tokens = split_tokens(text)?;
    let mut found = QueryUse::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        let Token::Word(word) = token else {
            if *token == Token::Symbol('[') {
                at += skip_to(&tokens[at..], ']')?;
            }
            continue;
        };
        let next = tokens.get(at);
        if word == "by" {
            if next != Some(&Token::Symbol('(')) {
                return Err("`by` without labels".to_owned());
            }
            let length = skip_to(&tokens[at..], ')')?;
            let labels = tokens[at..at + length].iter().filter_map(|token| match token {
                Token::Word(label) => Some(label.clone()),
                Token::Text(_) | Token::Symbol(_) => None,
            });
            found.grouping.extend(labels);
            at += length;
        } else if next == Some(&Token::Symbol('(')) || AGGREGATIONS.contains(&word.as_str()) {
            if !FUNCTIONS.contains(&word.as_str()) && !AGGREGATIONS.contains(&word.as_str()) {
                return Err(format!("unknown function {word}"));
            }
            if word == "label_values" {
                return parse_label_values(&tokens[at + 1..]);
            }
        } else if !OPERATORS.contains(&word.as_str()) {
            let mut selector = Selector { metric: word.clone(), matchers: Vec::new() };
            if next == Some(&Token::Symbol('{')) {
                let length = skip_to(&tokens[at..], '}')?;
                selector.matchers = parse_matchers(&tokens[at + 1..at + length - 1])?;
                at += length;
            }
            found.selectors.push(selector);
        }
    }
    if found.selectors.is_empty() {
        return Err("no metric".to_owned());
    }
    Ok(found)
}

/// Arguments of `label_values`, a function of Grafana: a selector and the name of a label.
fn parse_label_values(tokens: &[Token]) -> Result<QueryUse, String> {
    let is_comma = |token: &Token| *token == Token::Symbol(',');
    let comma = tokens.iter().rposition(is_comma).ok_or("label_values needs two arguments")?;
    let Some(Token::Word(label)) = tokens.get(comma + 1) else {
        return Err("label_values needs the name of a label".to_owned());
    };
    let Some(Token::Word(metric)) = tokens.first() else {
        return Err("label_values needs a metric".to_owned());
    };
    let mut selector = Selector { metric: metric.clone(), matchers: Vec::new() };
    if tokens.get(1) == Some(&Token::Symbol('{')) {
        selector.matchers = parse_matchers(&tokens[2..comma - 1])?;
    }
    Ok(QueryUse { selectors: vec![selector], grouping: BTreeSet::from([label.clone()]) })
}

/// Number of tokens up to and including a symbol.
fn skip_to(tokens: &[Token], symbol: char) -> Result<usize, String> {
    let end = tokens.iter().position(|token| *token == Token::Symbol(symbol));
    end.map(|end| end + 1).ok_or_else(|| format!("missing {symbol}"))
}

fn parse_matchers(tokens: &[Token]) -> Result<Vec<(String, Vec<String>)>, String> {
    let matchers = tokens.split(|token| *token == Token::Symbol(','));
    let parse = |matcher: &[Token]| match matcher {
        [Token::Word(label), Token::Symbol('=' | '!'), rest @ ..] => match rest {
            [Token::Text(value)] => Ok((label.clone(), vec![value.clone()])),
            [Token::Symbol('=' | '~'), Token::Text(value)] => {
                Ok((label.clone(), value.split('|').map(str::to_owned).collect()))
            }
            _ => Err(format!("a matcher of {label} is not understood")),
        },
        _ => Err(format!("not a matcher: {matcher:?}")),
    };
    matchers.map(parse).collect()
}

fn split_tokens(text: &str) -> Result<Vec<Token>, String> {
    let is_word = |c: char| c == '_' || c == ':' || c.is_ascii_alphanumeric();
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' {
            let end = rest[1..].find('"').ok_or("an open string")?;
            tokens.push(Token::Text(rest[1..=end].to_owned()));
            end + 2
        } else if first.is_ascii_digit() {
            // A number or a duration.
            rest.find(|c: char| c != '.' && !is_word(c)).unwrap_or(rest.len())
        } else if is_word(first) {
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            end
        } else if "(){}[],=!~<>+-*/".contains(first) {
            tokens.push(Token::Symbol(first));
            1
        } else {
            return Err(format!("unknown character {first}"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_in_a_query_are_found() {
        let query =
            r#"sum by (result) (rate(a_total{x="1", y=~"2|3"}[5m])) > 0.2 * max(b) and c_up != 1"#;
        let found = parse_query(query).unwrap();
        let metrics: Vec<&str> = found.selectors.iter().map(|s| s.metric.as_str()).collect();
        assert_eq!(metrics, ["a_total", "b", "c_up"]);
        assert_eq!(found.grouping, BTreeSet::from(["result".to_owned()]));
        let matchers = &found.selectors[0].matchers;
        assert_eq!(matchers[0], ("x".to_owned(), vec!["1".to_owned()]));
        assert_eq!(matchers[1], ("y".to_owned(), vec!["2".to_owned(), "3".to_owned()]));
        let found = parse_query(r#"label_values(a{job="b"}, instance)"#).unwrap();
        assert_eq!(found.selectors[0].metric, "a");
        assert_eq!(found.selectors[0].matchers.len(), 1);
        assert!(found.grouping.contains("instance"));
        assert_eq!(parse_query("label_values(a, job)").unwrap().selectors[0].metric, "a");
    }

    #[test]
    fn a_query_that_is_not_understood_is_an_error() {
        for query in [
            "",
            "1 + 1",
            "summ(a)",
            "a{b}",
            "a{b=1}",
            "a{b=\"1\"",
            "sum by x (a)",
            "a @ 1",
            "rate(a[5m)",
            "a{b=\"1}",
        ] {
            assert!(parse_query(query).is_err(), "{query}");
        }
    }

    #[test]
    fn the_queries_of_the_files_are_found() {
        let rules = "- alert: A\n  expr: a > 1\n  for: 1m\n- alert: B\n  expr: b\n";
        let alerts = alert_queries(rules);
        assert_eq!(alerts.len(), 2);
        assert_eq!((alerts[1].owner.as_str(), alerts[1].text.as_str()), ("B", "b"));
        let dashboard = r#"{"panels":[{"title":"R"},{"title":"P","targets":[
            {"expr":"rate(a{job=\"$job\"}[$__rate_interval])"}]}],"templating":{"list":[]}}"#;
        let queries = dashboard_queries(dashboard);
        assert_eq!(queries[0].text, r#"rate(a{job="evenkeel"}[5m])"#);
    }
}
