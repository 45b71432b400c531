//! The entries in which two documents differ.
