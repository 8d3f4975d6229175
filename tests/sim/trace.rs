//! The trace of a run: a hash over everything that happened, and the last lines of it.
//!
//! Every event given to a node, every action taken from one, every fault goes through `note`.
//! Equal seeds give equal hashes; two runs that differ anywhere do not. Lines are only made into
//! text that is kept when somebody will read them, so that runs without failure stay fast.

use super::facts::fnv_on;
use core::fmt;
use std::collections::VecDeque;

/// What happened, in order.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    tail: VecDeque<String>,
    keep: usize,
}

impl Trace {
    /// An empty trace that keeps so many of its last lines as text.
    pub fn new(keep: usize) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            tail: VecDeque::new(),
            keep,
        }
    }

    /// Something happened at this virtual time.
    pub fn note(&mut self, now_us: u64, what: fmt::Arguments<'_>) {
        self.events += 1;
        self.hash = fnv_on(self.hash, &now_us.to_le_bytes());
        let mut hashing = Hashing(self.hash);
        fmt::write(&mut hashing, what).expect("hashing does not fail");
        self.hash = hashing.0;
        if self.keep > 0 {
            if self.tail.len() == self.keep {
                self.tail.pop_front();
            }
            self.tail
                .push_back(shortened(format!("{now_us:>10} {what}")));
        }
    }

    /// Hash over all that was noted.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How much was noted.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last lines, oldest first.
    pub fn tail(&self) -> impl Iterator<Item = &str> {
        self.tail.iter().map(String::as_str)
    }
}

fn shortened(mut line: String) -> String {
    const MOST: usize = 400;
    if line.len() > MOST {
        let cut = (0..=MOST).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(cut.unwrap_or(0));
        line.push_str(" ...");
    }
    line
}

struct Hashing(u64);

impl fmt::Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = fnv_on(self.0, text.as_bytes());
        Ok(())
    }
}
