//! Images of a run: the desired one, and those that ran before and after it.

use serde::{Deserialize, Serialize};

/// How a run changes the image of a node. The agent sends the first three fields with its plan, and `booted` at the
/// end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageChange {
    /// The profile: the series of releases.
    pub profile_name: String,
    /// Version that ran when the update was planned; empty if unknown.
    pub before: String,
    /// Version that the run installs.
    pub desired: String,
    /// Version that was booted at the end; `None` if not reported.
    pub booted: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_change_survives_serialization() {
        let planned = ImageChange {
            profile_name: "edge".to_owned(),
            before: "1.0".to_owned(),
            desired: "1.1".to_owned(),
            booted: None,
        };
        let ended = ImageChange { booted: Some("1.0".to_owned()), ..planned.clone() };
        for change in [ImageChange::default(), planned, ended] {
            let stored = serde_json::to_value(&change).expect("JSON");
            let read: ImageChange = serde_json::from_value(stored).expect("a change");
            assert_eq!(read, change);
        }
        let read: ImageChange =
            serde_json::from_value(json!({"desired": "1.1"})).expect("a change");
        assert_eq!((read.desired.as_str(), read.booted), ("1.1", None));
    }
}
