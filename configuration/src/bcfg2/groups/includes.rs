//! Replaces `xi:include` elements with the elements of other files.
//!
//! As in Bcfg2, the includes of the first file move to the end of their element, and those of an
//! included file stay in their place. The path of an include is relative to its file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{FileFindings, XmlElement};
use crate::bcfg2::xml::{self, MAX_ELEMENTS};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::validation::{FieldError, short};

/// Maximum number of includes in a file and in the files that it includes.
const MAX_INCLUDES: usize = 1000;

/// Maximum nesting depth of included files.
const MAX_INCLUDE_DEPTH: usize = 8;

/// Reads an included file. The path is relative to the folder of the first file. Returns none if
/// there is no such file; an error is a message for the user.
pub type ReadInclude<'r> = dyn FnMut(&Path) -> Result<Option<String>, String> + 'r;

/// Parses a file. Without `read_include`, an include is an error.
pub(super) fn parse_with_includes(
    text: &str,
    read_include: Option<&mut ReadInclude<'_>>,
    findings: &mut FileFindings,
) -> Result<XmlElement, Vec<FieldError>> {
    let mut root = xml::parse(text).map_err(|error| vec![error])?;
    let (byte_count, element_count) = (text.len(), root.count_elements());
    let mut expander =
        IncludeExpander { read_include, findings, include_count: 0, byte_count, element_count };
    expander.expand(&mut root, Path::new(""), 0);
    Ok(root)
}

struct IncludeExpander<'r, 's> {
    read_include: Option<&'r mut ReadInclude<'s>>,
    findings: &'r mut FileFindings,
    include_count: usize,
    /// Length of all files.
    byte_count: usize,
    element_count: usize,
}

impl IncludeExpander<'_, '_> {
    /// Replaces the includes in an element of a file. `depth` is 0 in the first file.
    fn expand(&mut self, element: &mut XmlElement, file: &Path, depth: usize) {
        let mut included = Vec::new();
        for mut child in std::mem::take(&mut element.children) {
            if !child.name.ends_with(":include") {
                self.expand(&mut child, file, depth);
                element.children.push(child);
                continue;
            }
            match self.load(&child, file, depth) {
                Ok(root) if depth == 0 => included.extend(root),
                Ok(root) => element.children.extend(root),
                Err(message) => self.findings.add_error(&child, message),
            }
        }
        element.children.append(&mut included);
    }

    /// The root element of an included file, with its includes replaced. None if there is no file.
    fn load(
        &mut self,
        include: &XmlElement,
        file: &Path,
        depth: usize,
    ) -> Result<Option<XmlElement>, String> {
        let href = include.attribute("href").unwrap_or_default();
        let path = self.check_include(include, href, file, depth)?;
        self.check_size()?;
        let name = short(href);
        let Some(read_include) = self.read_include.as_mut() else {
            return Err(format!(
                "{name} is not read, because the file is standard input; give the path of the file"
            ));
        };
        let text =
            read_include(&path).map_err(|error| format!("cannot include {name}: {error}"))?;
        let Some(text) = text else {
            // An empty fallback marks a file that need not exist.
            if include.children.is_empty() {
                let message = format!("there is no file {name}; Bcfg2 skips it");
                self.findings.add_warning(include, message);
            }
            return Ok(None);
        };
        self.byte_count += text.len();
        self.check_size()?;
        let root = xml::parse(&text);
        let mut root = root.map_err(|error| format!("cannot include {name}: {error}"))?;
        self.element_count += root.count_elements();
        self.check_size()?;
        root.set_file(&Arc::from(path.display().to_string()));
        self.expand(&mut root, &path, depth + 1);
        Ok(Some(root))
    }

    /// The path of an include that is accepted.
    fn check_include(
        &mut self,
        include: &XmlElement,
        href: &str,
        file: &Path,
        depth: usize,
    ) -> Result<PathBuf, String> {
        let fallback = include.children.iter().flat_map(|fallback| &fallback.children);
        self.include_count += 1;
        if href.is_empty() {
            Err("the include has no attribute href; add href=\"…\"".to_owned())
        } else if href.contains(['*', '?', '[']) {
            Err(format!("the pattern {} is not expanded; include each file", short(href)))
        } else if include.attributes.iter().any(|(name, value)| !is_accepted(name, value)) {
            Err("an include may only have the attributes href and parse=\"xml\"".to_owned())
        } else if depth > 0 && fallback.count() > 0 {
            Err("an include in an included file must have an empty fallback".to_owned())
        } else if depth >= MAX_INCLUDE_DEPTH {
            Err(format!(
                "includes are nested deeper than {MAX_INCLUDE_DEPTH} levels; check that no file \
                 includes itself"
            ))
        } else if self.include_count > MAX_INCLUDES {
            Err(format!("more than {MAX_INCLUDES} files are included"))
        } else {
            Ok(file.parent().unwrap_or(Path::new("")).join(href))
        }
    }

    fn check_size(&self) -> Result<(), String> {
        if self.byte_count > MAX_DOCUMENT_BYTES {
            return Err(format!("the files have more than {MAX_DOCUMENT_BYTES} bytes"));
        }
        if self.element_count > MAX_ELEMENTS {
            return Err(format!("the files have more than {MAX_ELEMENTS} elements"));
        }
        Ok(())
    }
}

/// Whether an include may have an attribute.
fn is_accepted(name: &str, value: &str) -> bool {
    name == "href" || (name, value) == ("parse", "xml")
}
