//! The maintenance manager, told as stories on a real Postgres.

mod agent;
mod bad_input;
mod brake;
mod defects;
mod eim;
mod explain;
mod facts;
mod fleet;
mod house;
mod invalidated;
mod loops;
mod news;
mod node_tokens;
mod orders;
mod rules;
mod system_info;
mod takeover;
mod wire;
mod words;
