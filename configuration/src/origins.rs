//! Where the entries of a document are in a text of another format.

use crate::validation::FieldError;

/// Paths of the bundles and entries of a document in the text that it was read from.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// Path of the list of all bundles.
    pub root: &'static str,
    pub bundles: Vec<BundleOrigin>,
}

/// Path of a bundle, and of each of its entries.
#[derive(Debug, Default)]
pub(crate) struct BundleOrigin {
    pub path: String,
    pub entries: Vec<String>,
}

impl Origins {
    /// Replaces the paths of an error of the document with those of the text. `field_path` has the
    /// path of a bundle or an entry, and a path in it such as `desired.mode`.
    pub fn locate(
        &self,
        error: &FieldError,
        field_path: impl Fn(&str, &str) -> String,
    ) -> FieldError {
        let message = self.replace_paths(&error.message);
        match self.split(&error.path) {
            Some((origin, rest)) => {
                FieldError::new(field_path(origin, rest.trim_start_matches('.')), message)
            }
            None if error.path == "bundles" => FieldError::new(self.root, message),
            None => FieldError::new(error.path.as_str(), message),
        }
    }

    fn replace_paths(&self, message: &str) -> String {
        let mut replaced = String::with_capacity(message.len());
        let mut rest = message;
        while let Some(start) = rest.find(BUNDLES) {
            let (before, path) = rest.split_at(start);
            replaced.push_str(before);
            if let Some((origin, after)) = self.split(path) {
                replaced.push_str(origin);
                rest = after;
            } else {
                replaced.push_str(BUNDLES);
                rest = &path[BUNDLES.len()..];
            }
        }
        replaced.push_str(rest);
        replaced
    }

    /// Splits `bundles[0].entries[3].desired` into the origin of the entry and `.desired`.
    fn split<'a>(&'a self, path: &'a str) -> Option<(&'a str, &'a str)> {
        let (index, rest) = split_index(path.strip_prefix(BUNDLES)?)?;
        let bundle = self.bundles.get(index)?;
        let entry = rest.strip_prefix(ENTRIES).and_then(split_index);
        let entry = entry.and_then(|(index, rest)| Some((bundle.entries.get(index)?, rest)));
        Some(match entry {
            Some((origin, rest)) => (origin, rest),
            None => (&bundle.path, rest),
        })
    }
}

const BUNDLES: &str = "bundles[";
const ENTRIES: &str = ".entries[";

fn split_index(text: &str) -> Option<(usize, &str)> {
    let (index, rest) = text.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_path_of_the_text() {
        let entries = vec!["file 1".to_owned(), "unit 0".to_owned()];
        let bundle = BundleOrigin { path: "top".to_owned(), entries };
        let origins = Origins { root: "root", bundles: vec![bundle] };
        let locate = |path: &str, message: &str| {
            let field_path = |origin: &str, field: &str| format!("{origin}/{field}");
            origins.locate(&FieldError::new(path, message), field_path).to_string()
        };
        assert_eq!(locate("bundles[0].entries[0]", "is bad"), "file 1/: is bad");
        assert_eq!(
            locate("bundles[0].entries[1].name", "is also bundles[0].entries[0]; x bundles[ y"),
            "unit 0/name: is also file 1; x bundles[ y"
        );
        assert_eq!(locate("bundles[0].name", "is also bundles[0]"), "top/name: is also top");
        assert_eq!(locate("bundles[0].entries[7].name", "a"), "top/entries[7].name: a");
        assert_eq!(locate("bundles[1].name", "a"), "bundles[1].name: a");
        assert_eq!(locate("bundles", "a"), "root: a");
        assert_eq!(locate("", "a"), "a");
    }
}
