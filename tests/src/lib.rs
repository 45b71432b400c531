//! What the tests of the whole need: the rules of the house ([`house`]), a lab with real Debian roots, real repositories
//! and a real server ([`lab`], [`outside`]), power cuts ([`cut`]), what must hold after them ([`aftermath`]) and what a
//! machine would start then ([`boot`]), and servers that are killed while simulated nodes speak to them ([`history`]).

pub mod aftermath;
pub mod boot;
pub mod cut;
pub mod history;
pub mod house;
pub mod lab;
pub mod outside;
