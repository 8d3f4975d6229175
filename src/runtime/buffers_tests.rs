//! The pool: sizes, holds, budget. Memory outside the executor needs none, so these are plain
//! tests.

use super::*;

const KIB: usize = 1024;

#[test]
fn a_buffer_is_a_power_of_two_at_an_aligned_address() {
    let mut pool = Pool::new(1 << 20);
    for (len, size) in [(1, 4 * KIB), (4096, 4 * KIB), (4097, 8 * KIB)] {
        let id = pool.take(len).unwrap();
        assert_eq!(pool.bytes(id).len(), size);
        assert_eq!(pool.bytes(id).as_ptr() as usize % LEAST, 0);
    }
}

#[test]
fn memory_comes_back_when_released_and_no_longer_held() {
    let mut pool = Pool::new(4 * KIB);
    let id = pool.take(1).unwrap();
    pool.hold(id);
    pool.release(id);
    assert_eq!(pool.take(1), None);
    assert!(!pool.core_may_go_on());
    pool.unhold(id);
    assert!(pool.core_may_go_on());
    assert!(pool.take(1).is_some());
}

#[test]
fn free_memory_of_another_size_makes_room() {
    let mut pool = Pool::new(8 * KIB);
    let small = pool.take(1).unwrap();
    pool.release(small);
    assert!(pool.take(8 * KIB).is_some());
    assert_eq!(pool.allocated(), 8 * KIB);
}

///
#[test]
fn appends_never_take_more_than_their_share() {
    let mut pool = Pool::new(2 * limits::CORE_APPEND_BYTES);
    let size = limits::MAX_BUFFER_BYTES;
    let mut taken = Vec::new();
    while let Some(id) = pool.take_for_append(size) {
        taken.push(id);
    }
    assert_eq!(taken.len() * size, limits::CORE_APPEND_BYTES);
    assert!(pool.take(size).is_some(), "the logs' share is untouched");
    pool.release(taken[0]);
    assert!(pool.take_for_append(size).is_some());
}

#[test]
#[should_panic(expected = "changed while in use")]
fn a_held_buffer_does_not_change() {
    let mut pool = Pool::new(4 * KIB);
    let id = pool.take(1).unwrap();
    pool.hold(id);
    pool.bytes_mut(id);
}

#[test]
fn copies_between_buffers() {
    let mut pool = Pool::new(8 * KIB);
    let (from, to) = (pool.take(1).unwrap(), pool.take(1).unwrap());
    pool.bytes_mut(from)[..3].copy_from_slice(b"abc");
    pool.copy(from, 1..3, to, 7);
    assert_eq!(&pool.bytes(to)[7..9], b"bc");
}

#[test]
fn what_nobody_wanted_for_a_while_goes_back_to_the_system() {
    const COUNT: usize = 16;
    let mut pool = Pool::new(64 << 20);
    let taken: Vec<_> = (0..COUNT).map(|_| pool.take(1 << 20).unwrap()).collect();
    let places = taken.iter().map(|id| pool.bytes(*id).as_ptr() as usize);
    let places: Vec<usize> = places.collect();
    assert_eq!(resident(&places, 1 << 20), COUNT << 20);
    taken[1..].iter().for_each(|id| pool.release(*id));
    pool.trim();
    assert_eq!(pool.allocated(), COUNT << 20, "free for no time at all");
    // Four of them are wanted now and then.
    let again: Vec<_> = (0..4).map(|_| pool.take(1 << 20).unwrap()).collect();
    again.iter().for_each(|id| pool.release(*id));
    pool.trim();
    assert_eq!(pool.allocated(), 5 << 20);
    let kept = resident(&places, 1 << 20);
    // Others of this process may have got the addresses meanwhile.
    assert!(kept < (COUNT / 2) << 20, "{kept} bytes are still there");
    pool.trim();
    assert_eq!(pool.allocated(), 1 << 20);
    assert_eq!(pool.bytes(taken[0]).as_ptr() as usize, places[0]);
}

/// Bytes of memory at these places, `len` at each, that the process really has.
fn resident(places: &[usize], len: usize) -> usize {
    let mut pages = vec![0_u8; len / LEAST];
    let mut count = |place: &usize| {
        // SAFETY: mincore reads no memory but its own result, which is as long as it must be. It
        // fails where nothing is mapped.
        let result = unsafe { libc::mincore(*place as *mut _, len, pages.as_mut_ptr()) };
        let there = pages.iter().filter(|page| **page & 1 == 1).count();
        if result == 0 { there * LEAST } else { 0 }
    };
    places.iter().map(&mut count).sum()
}
