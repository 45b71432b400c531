//! Labels as people give them.

use clap::Args;
use evenkeel_api::status::MetadataItem;

/// The labels of something new.
#[derive(Clone, Debug, Default, Args)]
pub struct NewLabels {
    /// A label, such as `country=de`. May be given again.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<MetadataItem>,
}

/// What changes about labels; the others stay.
#[derive(Clone, Debug, Default, Args)]
pub struct LabelChanges {
    /// A label that it gets, or gets anew, such as `country=de`. May be given again.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<MetadataItem>,
    /// A label that it loses. May be given again.
    #[arg(long = "no-label", value_name = "KEY")]
    without: Vec<String>,
}

impl LabelChanges {
    /// The names of the options, for groups.
    pub const OPTIONS: [&str; 2] = ["labels", "without"];

    /// Whether anything changes.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.without.is_empty()
    }

    /// What the labels become.
    pub fn over(&self, now: &[MetadataItem]) -> Vec<MetadataItem> {
        let stays = |old: &&MetadataItem| {
            !self.without.contains(&old.key) && self.labels.iter().all(|new| new.key != old.key)
        };
        let old = now.iter().filter(stays);
        old.chain(&self.labels).cloned().collect()
    }
}

/// Reads a label. The server says what may stand in it.
fn label(text: &str) -> Result<MetadataItem, String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("give a key and a value, such as `country=de`")?;
    Ok(MetadataItem {
        key: key.to_owned(),
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_are_not_named_stay() {
        let item = |text: &str| label(text).expect("a label");
        let now = [item("country=de"), item("tier=gold"), item("rack=7")];
        let changes = LabelChanges {
            labels: vec![item("tier=silver"), item("new=")],
            without: vec!["rack".to_owned()],
        };
        let all = [item("country=de"), item("tier=silver"), item("new=")];
        assert_eq!(changes.over(&now), all);
        assert!(!changes.is_empty() && LabelChanges::default().is_empty());
    }

    #[test]
    fn a_label_has_a_key() {
        for bad in ["country", "=de", ""] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }
}
