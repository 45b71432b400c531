//! Label options.

use clap::Args;
use evenkeel_api::status::MetadataItem;

/// Labels of a new resource.
#[derive(Clone, Debug, Default, Args)]
pub struct NewLabels {
    /// Label, such as `country=de`. Can be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<MetadataItem>,
}

/// Label changes of a resource; other labels are not affected.
#[derive(Clone, Debug, Default, Args)]
pub struct LabelChanges {
    /// Label to add or replace, such as `country=de`. Can be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<MetadataItem>,
    /// Label to remove. Can be repeated.
    #[arg(long = "no-label", value_name = "KEY")]
    remove_keys: Vec<String>,
}

impl LabelChanges {
    /// IDs of the clap arguments, for argument groups.
    pub const OPTIONS: [&str; 2] = ["labels", "remove_keys"];

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.remove_keys.is_empty()
    }

    /// Applies the changes to the current labels.
    pub fn apply_to(&self, now: &[MetadataItem]) -> Vec<MetadataItem> {
        let stays = |old: &&MetadataItem| {
            !self.remove_keys.contains(&old.key) && self.labels.iter().all(|new| new.key != old.key)
        };
        let old = now.iter().filter(stays);
        old.chain(&self.labels).cloned().collect()
    }
}

/// Parses a label. The server validates its key and value.
fn label(text: &str) -> Result<MetadataItem, String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("give a key and a value, such as `country=de`")?;
    Ok(MetadataItem { key: key.to_owned(), value: value.to_owned() })
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
            remove_keys: vec!["rack".to_owned()],
        };
        let all = [item("country=de"), item("tier=silver"), item("new=")];
        assert_eq!(changes.apply_to(&now), all);
        assert!(!changes.is_empty() && LabelChanges::default().is_empty());
    }

    #[test]
    fn a_label_has_a_key() {
        for bad in ["country", "=de", ""] {
            assert!(label(bad).is_err(), "{bad}");
        }
    }
}
