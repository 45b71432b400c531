//! The whole agent, from the server's word to the package, with one of its doors replaced: the system below it
//! (`attempts`, `resume`) or nothing but the machine at the other end of the wire (`link`).

mod attempts;
mod link;
mod resume;
mod support;
