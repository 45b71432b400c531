//! Reads the files back from user-data.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use evenkeel_configuration::user_data::UserDataFormat;
use serde_json::Value;

/// Contents by path.
pub fn files(user_data: &str, format: UserDataFormat) -> BTreeMap<String, Vec<u8>> {
    match format {
        UserDataFormat::Script => files_of_script(user_data),
        UserDataFormat::CloudInit => files_of_script(&script_of_archive(user_data)),
        UserDataFormat::Ignition => files_of_ignition(user_data),
    }
}

/// The only part of an archive.
pub fn script_of_archive(archive: &str) -> String {
    assert!(archive.starts_with("#cloud-config-archive\n"));
    let mut parts: Vec<BTreeMap<String, String>> = serde_saphyr::from_str(archive).unwrap();
    assert_eq!(parts.len(), 1);
    let mut part = parts.remove(0);
    assert_eq!(part.remove("type").as_deref(), Some("text/x-shellscript"));
    let script = part.remove("content").unwrap();
    assert!(part.is_empty());
    script
}

fn files_of_script(script: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut lines = script.split('\n');
    while let Some(line) = lines.next() {
        let Some(call) = line.find("write_file ").filter(|_| !line.ends_with("() {")) else {
            continue;
        };
        if line.starts_with('#') {
            continue;
        }
        let path = first_word(&line[call + "write_file ".len()..]);
        let content = match line.split_once("<< '") {
            Some((_, rest)) => {
                let (delimiter, _) = rest.split_once('\'').unwrap();
                let body: Vec<_> = lines.by_ref().take_while(|line| *line != delimiter).collect();
                body_content(line, &body)
            }
            None => Vec::new(),
        };
        assert!(files.insert(path, content).is_none());
    }
    files
}

fn body_content(command: &str, body: &[&str]) -> Vec<u8> {
    if command.starts_with("base64 -d ") {
        STANDARD.decode(body.concat()).unwrap()
    } else if command.starts_with("head -c -1 ") {
        body.join("\n").into_bytes()
    } else {
        (body.join("\n") + "\n").into_bytes()
    }
}

/// The first word of a command, without its quotes.
fn first_word(command: &str) -> String {
    let mut word = String::new();
    let mut is_quoted = false;
    let mut characters = command.chars();
    while let Some(c) = characters.next() {
        match c {
            '\'' => is_quoted = !is_quoted,
            '\\' if !is_quoted => word.extend(characters.next()),
            ' ' if !is_quoted => break,
            _ => word.push(c),
        }
    }
    word
}

fn files_of_ignition(json: &str) -> BTreeMap<String, Vec<u8>> {
    let config: Value = serde_json::from_str(json).unwrap();
    assert_eq!(config["ignition"]["version"], "3.3.0");
    let files = config["storage"]["files"].as_array().unwrap();
    let decode = |file: &Value| {
        let path = file["path"].as_str().unwrap().to_owned();
        (path, decode_url(file["contents"]["source"].as_str().unwrap()))
    };
    files.iter().map(decode).collect()
}

/// Decodes a data URL, and refuses the characters that Ignition refuses.
fn decode_url(url: &str) -> Vec<u8> {
    if let Some(digits) = url.strip_prefix("data:;base64,") {
        return STANDARD.decode(digits).unwrap();
    }
    let text = url.strip_prefix("data:,").unwrap();
    let mut content = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        assert!(byte.is_ascii_graphic() && !b"<>#\"{}|\\^[]`".contains(&byte), "{url}");
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            let digits = str::from_utf8(&digits).unwrap();
            content.push(u8::from_str_radix(digits, 16).unwrap());
        } else {
            content.push(byte);
        }
    }
    content
}
