//! Epochs against a plain list of blocks.

use super::Epochs;
use crate::types::{BlockNo, Epoch};

#[test]
fn answers_as_a_plain_list_would() {
    let mut epochs = Epochs::new(BlockNo(0), Epoch(0));
    let mut list: Vec<u32> = Vec::new();
    let mut start = 0usize;
    let mut step = 12_345u64;
    for _ in 0..4000 {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let draw = (step >> 33) as usize;
        match draw % 8 {
            0 if list.len() > start => {
                let at = start + draw / 8 % (list.len() - start + 1);
                list.truncate(at);
                epochs.cut(BlockNo(at as u64));
            }
            1 if list.len() > start => {
                start += draw / 8 % (list.len() - start + 1);
                epochs.trim(BlockNo(start as u64));
            }
            _ => {
                let last = list.last().copied().unwrap_or(1);
                let epoch = last + u32::from(draw / 8 % 4 == 0);
                list.push(epoch);
                epochs.append(Epoch(epoch));
            }
        }
        check(&epochs, &list, start);
    }
}

fn check(epochs: &Epochs, list: &[u32], start: usize) {
    assert_eq!(epochs.log_end(), BlockNo(list.len() as u64));
    for at in start.saturating_sub(3)..list.len() + 2 {
        let before = at + 1 == start || (at >= start && at < list.len());
        let expected = before.then(|| list.get(at).copied().unwrap_or_default());
        let found = epochs.epoch_of(BlockNo(at as u64)).map(|epoch| epoch.0);
        assert_eq!(found, expected, "block {at} of {list:?} from {start}");
    }
    for epoch in list.iter().copied().chain([0]) {
        let kept = list.iter().enumerate().skip(start);
        let first = kept.clone().find(|(_, other)| **other == epoch);
        let expected = first.map(|(at, _)| BlockNo(at as u64));
        assert_eq!(epochs.first_of_epoch(Epoch(epoch)), expected);
    }
}
