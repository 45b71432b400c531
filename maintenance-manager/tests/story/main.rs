//! The maintenance manager, told as stories on a real Postgres.

mod agent;
mod bad_input;
mod brake;
mod defects;
mod eim;
mod explain;
mod facts;
mod fleet;
mod held;
mod house;
mod images;
mod invalidated;
mod loops;
mod marks;
mod news;
mod node_tokens;
mod orders;
mod quiet;
mod replicas;
mod rules;
mod stale;
mod system_info;
mod takeover;
mod wire;
mod words;
