//! Rules of files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use super::accounts::check_owner;
use super::text::MAX_PATH_BYTES;
use super::{ErrorList, child_path, excerpt};
use crate::document::{FileContent, FileKind, FileMode, FileState, SecretRef};

/// Hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

/// Longest name and key of a secret.
const MAX_SECRET_NAME_BYTES: usize = 253;

pub(super) fn check(path: &str, state: &FileState, errors: &mut ErrorList) {
    let kind = state.kind;
    let mut refuse = |field: &str, is_set: bool, accepting: &str| {
        if is_set {
            let message = format!(
                "does not belong to the type {}; it belongs to {accepting}; remove it",
                kind.name()
            );
            errors.add(&child_path(path, field), message);
        }
    };
    let has_attributes = kind != FileKind::Absent;
    let has_mode = has_attributes && kind != FileKind::Symlink;
    let others = "file, directory and permissions";
    refuse("mode", state.mode.is_some() && !has_mode, others);
    refuse("owner", state.owner.is_some() && !has_attributes, "every type except absent");
    refuse("group", state.group.is_some() && !has_attributes, "every type except absent");
    refuse("content", state.content.is_some() && kind != FileKind::File, "file");
    refuse("target", state.target.is_some() && kind != FileKind::Symlink, "symlink");
    let has_prune = matches!(kind, FileKind::Directory | FileKind::Absent);
    refuse("prune", state.prune && !has_prune, "directory and absent");
    check_values(path, state, errors);
}

fn check_values(path: &str, state: &FileState, errors: &mut ErrorList) {
    if state.mode.is_some_and(|mode| mode.0 > FileMode::MAX.0) {
        errors.add(&child_path(path, "mode"), "is above 7777; write four octal digits");
    }
    if let Some(owner) = &state.owner {
        check_owner(&child_path(path, "owner"), owner, "user", errors);
    }
    if let Some(group) = &state.group {
        check_owner(&child_path(path, "group"), group, "group", errors);
    }
    if let Some(content) = &state.content {
        check_content(&child_path(path, "content"), content, errors);
    }
    let is_unchanged = state.mode.is_none() && state.owner.is_none() && state.group.is_none();
    if state.kind == FileKind::Permissions && is_unchanged {
        errors.add(path, "the type permissions needs at least one of mode, owner and group");
    }
    match &state.target {
        None if state.kind == FileKind::Symlink => {
            errors.add(path, "the type symlink needs the field \"target\"");
        }
        Some(target) => check_target(&child_path(path, "target"), target, errors),
        None => {}
    }
}

fn check_target(path: &str, target: &str, errors: &mut ErrorList) {
    if target.is_empty() {
        errors.add(path, "is empty; write a path");
    } else if target.chars().any(char::is_control) {
        errors.add(path, format!("{} has a control character; remove it", excerpt(target)));
    } else if target.len() > MAX_PATH_BYTES {
        errors.add(path, format!("is longer than {MAX_PATH_BYTES} bytes"));
    }
}

fn check_content(path: &str, content: &FileContent, errors: &mut ErrorList) {
    let kinds = [
        ("inline", content.inline.is_some()),
        ("base64", content.base64.is_some()),
        ("secretRef", content.secret_ref.is_some()),
        ("uri", content.uri.is_some()),
    ];
    let set: Vec<&str> =
        kinds.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
    match set.as_slice() {
        [] => errors.add(path, "needs one of inline, base64, secretRef and uri"),
        [_] => {}
        _ => errors.add(
            path,
            format!(
                "has {}; write exactly one of inline, base64, secretRef and uri",
                set.join(", ")
            ),
        ),
    }
    if content.inline.as_ref().is_some_and(|text| text.contains('\0')) {
        errors.add(&child_path(path, "inline"), "has a NUL character; write base64");
    }
    if content.base64.as_ref().is_some_and(|text| STANDARD.decode(text).is_err()) {
        errors.add(&child_path(path, "base64"), "is not base64 with padding (RFC 4648)");
    }
    if let Some(secret_ref) = &content.secret_ref {
        check_secret_ref(&child_path(path, "secretRef"), secret_ref, errors);
    }
    check_download(path, content, errors);
}

fn check_download(path: &str, content: &FileContent, errors: &mut ErrorList) {
    if let Some(uri) = &content.uri
        && let Err(message) = check_uri(uri)
    {
        errors.add(&child_path(path, "uri"), message);
    }
    let digest_path = child_path(path, "sha256");
    match (&content.sha256, &content.uri) {
        (None, Some(_)) => {
            errors.add(path, "uri needs the field \"sha256\", the digest of the content");
        }
        (Some(_), None) => errors.add(&digest_path, "belongs to uri; remove it"),
        (Some(digest), Some(_)) => {
            let is_hex = digest.bytes().all(|b| b.is_ascii_hexdigit());
            if digest.len() != SHA256_DIGITS || !is_hex {
                let accepted = format!("accepted are {SHA256_DIGITS} hexadecimal digits");
                errors.add(&digest_path, format!("is not a SHA-256; {accepted}"));
            }
        }
        (None, None) => {}
    }
}

fn check_uri(uri: &str) -> Result<(), String> {
    let url = Url::parse(uri).map_err(|error| format!("{} is not a URI: {error}", excerpt(uri)))?;
    match url.scheme() {
        "https" => {}
        "http" => {
            return Err(
                "http sends the content unencrypted, and anyone on the way can withhold it; \
                        write an https address"
                    .to_owned(),
            );
        }
        scheme => {
            return Err(format!("the scheme {} is not accepted; write https", excerpt(scheme)));
        }
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "contains a user name or a password, which everyone could read who may read the \
                    document; remove them"
                .to_owned(),
        );
    }
    Ok(())
}

fn check_secret_ref(path: &str, secret_ref: &SecretRef, errors: &mut ErrorList) {
    let is_name = |text: &str| {
        let is_accepted = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        is_secret_length(text)
            && text.bytes().all(|b| is_accepted(b) || b"-.".contains(&b))
            && text.bytes().next().is_some_and(is_accepted)
            && text.bytes().next_back().is_some_and(is_accepted)
    };
    if !is_name(&secret_ref.name) {
        errors.add(
            &child_path(path, "name"),
            "is not the name of a secret; accepted are lower-case letters, digits, \"-\" and \
             \".\", with a letter or digit at both ends",
        );
    }
    let is_key = |text: &str| {
        is_secret_length(text)
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    };
    if !is_key(&secret_ref.key) {
        errors.add(
            &child_path(path, "key"),
            "is not a key of a secret; accepted are letters, digits, \"-\", \"_\" and \".\"",
        );
    }
    let is_version = |version: u64| (1..=SecretRef::MAX_VERSION).contains(&version);
    if secret_ref.version.is_some_and(|version| !is_version(version)) {
        let message = format!("accepted are 1 to {}", SecretRef::MAX_VERSION);
        errors.add(&child_path(path, "version"), message);
    }
}

fn is_secret_length(text: &str) -> bool {
    (1..=MAX_SECRET_NAME_BYTES).contains(&text.len())
}
