//! The write-ahead log of one log on one node.
pub mod config;
pub mod op;
