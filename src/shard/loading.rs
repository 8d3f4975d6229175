//! Loads from disk under way: what each is for, and the sums that bound them.
//!
//! Looked at for every read and every fetch, so nothing here walks the loads: each sum is kept up
//! as they come and go. Who may start one is decided in `reads.rs` and `links.rs`.

use super::Purpose;
use crate::types::ConnectionId;
use std::collections::BTreeMap;

/// The loads of one log.
#[derive(Debug, Default)]
pub(super) struct Loading {
    purposes: BTreeMap<u64, Purpose>,
    reads: usize,
    /// Reads of each client's connection that has one.
    reads_of: BTreeMap<ConnectionId, usize>,
    fetches: usize,
}

impl Loading {
    /// Loads of any kind.
    pub(super) fn len(&self) -> usize {
        self.purposes.len()
    }

    /// Loads for readers: of all, and of this connection.
    pub(super) fn reads(&self, connection: ConnectionId) -> (usize, usize) {
        let own = self.reads_of.get(&connection).copied();
        let sums = (self.reads, own.unwrap_or_default());
        debug_assert_eq!(sums, self.walked(connection), "sums of the loads");
        sums
    }

    /// Loads for opening leaders.
    pub(super) fn fetches(&self) -> usize {
        self.fetches
    }

    /// A load begins under a number that was never used before.
    pub(super) fn begin(&mut self, request: u64, purpose: Purpose) {
        match &purpose {
            Purpose::Read(read) => {
                self.reads += 1;
                *self.reads_of.entry(read.request.connection).or_default() += 1;
            }
            Purpose::Fetch(_) => self.fetches += 1,
            Purpose::Find(_) | Purpose::Run(_) => {}
        }
        let before = self.purposes.insert(request, purpose);
        assert!(before.is_none(), "load {request} begins twice");
    }

    /// A load ended: what it was for.
    pub(super) fn end(&mut self, request: u64) -> Option<Purpose> {
        let purpose = self.purposes.remove(&request)?;
        match &purpose {
            Purpose::Read(read) => {
                self.reads -= 1;
                let connection = read.request.connection;
                let own = self.reads_of.get_mut(&connection);
                let own = own.expect("counted when it began");
                *own -= 1;
                if *own == 0 {
                    self.reads_of.remove(&connection);
                }
            }
            Purpose::Fetch(_) => self.fetches -= 1,
            Purpose::Find(_) | Purpose::Run(_) => {}
        }
        Some(purpose)
    }

    /// What the sums must be.
    fn walked(&self, connection: ConnectionId) -> (usize, usize) {
        let reads = self.purposes.values().filter_map(|purpose| match purpose {
            Purpose::Read(read) => Some(read.request.connection),
            Purpose::Find(_) | Purpose::Run(_) | Purpose::Fetch(_) => None,
        });
        let own = reads.clone().filter(|of| *of == connection).count();
        (reads.count(), own)
    }
}

#[cfg(test)]
#[path = "loading_tests.rs"]
mod tests;
