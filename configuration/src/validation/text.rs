//! Rules that several components share.

use super::{ErrorList, excerpt};

/// Longest path of Linux, without the final NUL.
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// Longest name of a file.
pub(super) const MAX_NAME_BYTES: usize = 255;

/// A name that only people and reports use: of a bundle or an action.
pub(super) fn check_label(path: &str, label: &str, errors: &mut ErrorList) {
    if label.trim().is_empty() {
        errors.add(path, "is empty; write a name");
    } else if label.len() > MAX_NAME_BYTES {
        errors.add(path, format!("is longer than {MAX_NAME_BYTES} bytes"));
    } else if label.chars().any(char::is_control) || label.trim() != label {
        errors.add(path, "has a control character, or a space at its start or end; remove it");
    }
}

/// An absolute and normalised path other than `/`.
pub(super) fn check_path(path: &str, value: &str, errors: &mut ErrorList) {
    if let Err(message) = check_absolute(value) {
        errors.add(path, message);
    }
}

fn check_absolute(value: &str) -> Result<(), String> {
    let Some(relative) = value.strip_prefix('/') else {
        return Err(format!("{} is not an absolute path; begin with \"/\"", excerpt(value)));
    };
    if value.chars().any(char::is_control) {
        return Err(format!("{} has a control character; remove it", excerpt(value)));
    }
    if value.len() > MAX_PATH_BYTES {
        return Err(format!("is longer than {MAX_PATH_BYTES} bytes"));
    }
    if relative.is_empty() {
        return Err("is the root directory; name something in it".to_owned());
    }
    let mut names = relative.split('/');
    if names.clone().any(|name| name == "..") {
        return Err(format!("{} contains \"..\"; write the path without it", excerpt(value)));
    }
    if names.clone().any(|name| name.is_empty() || name == ".") {
        let kept: Vec<&str> = names.filter(|name| !name.is_empty() && *name != ".").collect();
        let normal = format!("/{}", kept.join("/"));
        return Err(format!("{} is not normalised; write {}", excerpt(value), excerpt(&normal)));
    }
    match names.find(|name| name.len() > MAX_NAME_BYTES) {
        Some(name) => {
            Err(format!("contains a name with more than {MAX_NAME_BYTES} bytes: {}", excerpt(name)))
        }
        None => Ok(()),
    }
}

/// A text that programs read as a line or a script: it is not empty and has no NUL.
pub(super) fn check_script(path: &str, text: &str, errors: &mut ErrorList) {
    if text.trim().is_empty() {
        errors.add(path, "is empty; write text, or remove the field");
    } else if text.contains('\0') {
        errors.add(path, "has a NUL character; remove it");
    }
}
