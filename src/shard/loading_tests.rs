//! The sums of loads against a walk over all of them, whatever comes and goes.

use super::super::{Read, WaitingRead};
use super::*;
use crate::replica::ServeFetch;
use crate::shard::Request;
use crate::types::{BlockNo, Epoch, Offset, ReadLevel, Time};
use crate::wire::body::FetchOk;
use proptest::prelude::*;

const CONNECTIONS: u64 = 4;

/// What a load is for, by a number: a fetch, a search, or a read of some connection.
fn purpose(number: u64) -> Purpose {
    let request = Request {
        connection: ConnectionId(number % CONNECTIONS),
        correlation: number,
    };
    match number % 7 {
        0 => Purpose::Fetch(ServeFetch {
            connection: request.connection,
            from: BlockNo(0),
            end: BlockNo(1),
            max_bytes: 1,
            head: FetchOk {
                epoch: Epoch(1),
                first: BlockNo(0),
                prev_epoch: Epoch(0),
                committed_end: BlockNo(0),
                count: 0,
                padded_len: 0,
            },
        }),
        1 => Purpose::Find(request),
        _ => Purpose::Read(WaitingRead {
            request,
            deadline: Time(0),
            patient: false,
            read: Read {
                offset: Offset(number),
                last_epoch: Epoch(0),
                max_bytes: 1,
                level: ReadLevel::Local,
            },
        }),
    }
}

fn assert_sums(loading: &Loading) {
    for connection in (0..=CONNECTIONS).map(ConnectionId) {
        assert_eq!(loading.reads(connection), loading.walked(connection));
    }
    let is_fetch = |purpose: &&Purpose| matches!(purpose, Purpose::Fetch(_));
    let fetches = loading.purposes.values().filter(is_fetch).count();
    assert_eq!(loading.fetches(), fetches);
    assert_eq!(loading.len(), loading.purposes.len());
}

proptest! {
    #[test]
    fn sums_are_those_of_a_walk(
        steps in proptest::collection::vec((0..100_u64, any::<bool>()), 1..200),
    ) {
        let mut loading = Loading::default();
        for (number, (drawn, begins)) in steps.iter().enumerate() {
            if *begins {
                loading.begin(number as u64, purpose(*drawn));
            } else {
                let known = loading.purposes.keys().nth(*drawn as usize % 8).copied();
                let ended = known.map(|known| loading.end(known));
                prop_assert!(ended.is_none_or(|ended| ended.is_some()));
                prop_assert!(loading.end(u64::MAX).is_none());
            }
            assert_sums(&loading);
        }
        while let Some(known) = loading.purposes.keys().next().copied() {
            loading.end(known);
        }
        prop_assert!(loading.reads_of.is_empty());
        assert_sums(&loading);
    }
}
