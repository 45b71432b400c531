//! Which image an attempt was for, and which one ran before and after it.

use serde::{Deserialize, Serialize};

/// How an attempt changes the image of a node. An agent says the first three with its plan, and what it booted with the
/// end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageChange {
    /// The line of releases.
    pub profile_name: String,
    /// The version that ran when the attempt was planned; empty if it is not known.
    pub before: String,
    /// The version that the attempt is for.
    pub wanted: String,
    /// The version that was booted at the end; none if nobody said.
    pub booted: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_kept_as_it_was() {
        let planned = ImageChange {
            profile_name: "edge".to_owned(),
            before: "1.0".to_owned(),
            wanted: "1.1".to_owned(),
            booted: None,
        };
        let ended = ImageChange {
            booted: Some("1.0".to_owned()),
            ..planned.clone()
        };
        for change in [ImageChange::default(), planned, ended] {
            let kept = serde_json::to_value(&change).expect("JSON");
            let read: ImageChange = serde_json::from_value(kept).expect("a change");
            assert_eq!(read, change);
        }
        let read: ImageChange = serde_json::from_value(json!({"wanted": "1.1"})).expect("a change");
        assert_eq!((read.wanted.as_str(), read.booted), ("1.1", None));
    }
}
