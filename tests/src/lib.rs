//! What the tests of the whole need: the rules of the house ([`house`]), and a lab with real Debian roots, real
//! repositories and a real server ([`lab`]).

pub mod house;
pub mod lab;
