//! The page about what the agent sends has exactly one row for each field of the requests.

use std::collections::{BTreeMap, BTreeSet};

/// The requests of the agent.
const REQUESTS: [&str; 5] =
    ["EnrollRequest", "RenewRequest", "PollRequest", "BeginRequest", "ReportRequest"];

/// The fields of each message that the agent can send: names by message.
type SentFields = BTreeMap<String, BTreeSet<String>>;

/// The differences between the page and the protocol.
pub fn differences(page: &str, protocol: &str) -> Vec<String> {
    let (sent, described) = (sent_fields(protocol), described_fields(page));
    let mut findings = Vec::new();
    for (message, fields) in &sent {
        let rows = described.get(message);
        let missing = fields.iter().filter(|field| !rows.is_some_and(|rows| rows.contains(*field)));
        findings.extend(missing.map(|field| format!("{message}.{field} has no row")));
    }
    for (message, rows) in &described {
        let fields = sent.get(message);
        let extra = rows.iter().filter(|row| !fields.is_some_and(|fields| fields.contains(*row)));
        findings.extend(extra.map(|row| format!("{message}.{row} is not sent")));
    }
    findings.extend(page.lines().filter(|line| is_incomplete(line)).map(str::to_owned));
    findings
}

/// The fields of the requests and of all messages in them. Messages without fields are left out.
fn sent_fields(protocol: &str) -> SentFields {
    let messages = parse_messages(protocol);
    let mut sent = SentFields::new();
    let mut pending: Vec<&str> = REQUESTS.to_vec();
    while let Some(name) = pending.pop() {
        let Some(fields) = messages.get(name) else { continue };
        if fields.is_empty() || sent.contains_key(name) {
            continue;
        }
        let names = fields.iter().map(|(field, _)| (*field).to_owned());
        sent.insert(name.to_owned(), names.collect());
        pending.extend(fields.iter().map(|(_, field_type)| *field_type));
    }
    sent
}

/// The fields of each message, with their types.
fn parse_messages(protocol: &str) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut messages: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let mut current = None;
    for line in protocol.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        if let Some(rest) = line.strip_prefix("message ") {
            let name = rest.split_whitespace().next().expect("a name");
            messages.entry(name).or_default();
            current = Some(name);
        } else if ["enum ", "service "].iter().any(|start| line.starts_with(start)) {
            current = None;
        } else if let (Some(message), Some((declaration, _))) = (current, line.split_once(" = ")) {
            let words: Vec<&str> = declaration.split_whitespace().collect();
            if let [.., field_type, field] = words[..] {
                messages.entry(message).or_default().push((field, field_type));
            }
        }
    }
    messages
}

/// The rows of the page, by the heading above them.
fn described_fields(page: &str) -> SentFields {
    let mut described = SentFields::new();
    let mut heading = "";
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title;
        } else if let Some((field, _)) =
            line.strip_prefix("| `").and_then(|row| row.split_once('`'))
        {
            let is_new = described.entry(heading.to_owned()).or_default().insert(field.to_owned());
            assert!(is_new, "{heading}.{field} has two rows");
        }
    }
    described
}

/// Whether a row has an empty purpose or switch.
fn is_incomplete(line: &str) -> bool {
    line.starts_with("| `") && line.split('|').skip(1).take(3).any(|cell| cell.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOL: &str = "\
service AgentService {
  rpc Poll(PollRequest) returns (PollResponse);
}
message PollRequest {
  // The facts = 7.
  Facts facts = 1;
  oneof kind {
    Empty empty = 10;
  }
}
message Empty {}
message Facts {
  repeated string modules = 6;
}
message PollResponse {
  uint32 next = 1;
}
enum Cause {
  CAUSE_UNSPECIFIED = 0;
}
";

    #[test]
    fn missing_extra_and_incomplete_rows_are_found() {
        let page = "## PollRequest\n| `facts` | a | b |\n| `empty` | a | b |\n\
            ## Facts\n| `modules` | a | b |\n";
        assert_eq!(differences(page, PROTOCOL), [""; 0]);
        let page = "## PollRequest\n| `facts` | a |  |\n| `next` | a | b |\n";
        assert_eq!(
            differences(page, PROTOCOL),
            [
                "Facts.modules has no row",
                "PollRequest.empty has no row",
                "PollRequest.next is not sent",
                "| `facts` | a |  |",
            ]
        );
    }
}
