//! Crash states of the write-ahead log, enumerated.

mod sim;

#[path = "crash/disk_tests.rs"]
mod disk_tests;
