//! What the tests of the whole need: the rules of the house ([`house`]), a lab with real Debian roots, real repositories
//! and a real server ([`lab`]), and servers that are killed while simulated nodes speak to them ([`history`]).

pub mod history;
pub mod house;
pub mod lab;
