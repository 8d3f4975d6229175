//! x
mod sim;
