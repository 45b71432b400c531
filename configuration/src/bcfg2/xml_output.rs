//! Writes XML.

use std::fmt::Write as _;

/// A document that grows at its end.
#[derive(Debug)]
pub(super) struct XmlOutput {
    text: String,
    /// Names of the open elements, outermost first.
    open_elements: Vec<&'static str>,
}

impl XmlOutput {
    pub fn new() -> Self {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        Self { text, open_elements: Vec::new() }
    }

    /// Opens an element that has elements.
    pub fn open(&mut self, tag: &'static str, attributes: &[(&str, &str)]) {
        self.start(tag, attributes);
        self.text.push_str(">\n");
        self.open_elements.push(tag);
    }

    /// Closes the innermost element.
    pub fn close(&mut self) {
        if let Some(tag) = self.open_elements.pop() {
            self.indent();
            self.close_tag(tag);
        }
    }

    /// Adds an element with a text.
    pub fn add(&mut self, tag: &'static str, attributes: &[(&str, &str)], content: &str) {
        self.start(tag, attributes);
        if content.is_empty() {
            self.text.push_str("/>\n");
        } else {
            self.text.push('>');
            push_escaped(&mut self.text, content);
            self.close_tag(tag);
        }
    }

    /// The document, with all elements closed.
    pub fn finish(mut self) -> String {
        while !self.open_elements.is_empty() {
            self.close();
        }
        self.text
    }

    fn start(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        self.indent();
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            for c in value.chars() {
                match c {
                    // A reader takes white space that is not escaped as a space.
                    '"' | '\t' | '\n' | '\r' => push_reference(&mut self.text, c),
                    _ => push_escaped(&mut self.text, c.encode_utf8(&mut [0; 4])),
                }
            }
            self.text.push('"');
        }
    }

    fn close_tag(&mut self, tag: &str) {
        self.text.push_str("</");
        self.text.push_str(tag);
        self.text.push_str(">\n");
    }

    fn indent(&mut self) {
        for _ in &self.open_elements {
            self.text.push_str("  ");
        }
    }
}

fn push_escaped(output: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => output.push_str("&amp;"),
            '<' => output.push_str("&lt;"),
            '>' => output.push_str("&gt;"),
            '\r' => push_reference(output, c),
            _ => output.push(c),
        }
    }
}

fn push_reference(output: &mut String, c: char) {
    write!(output, "&#{};", u32::from(c)).expect("a string takes any text");
}
