//! Renders a document as user-data.
