//! Resolvers converge however the origins interleave, and see each record once.

use super::*;
use proptest::prelude::*;

/// What one origin wrote, in order: (key, record time, value).
type Written = Vec<(u8, u64, i8)>;

fn source(origin: usize, offset: usize) -> Source {
    Source {
        origin: OriginId(origin as u32 + 1),
        shard: ShardId(0),
        offset: Offset(offset as u64),
    }
}

fn amount(record: &Record<'_>) -> Option<i64> {
    std::str::from_utf8(record.value).ok()?.parse().ok()
}

fn change(record: &Record<'_>) -> Option<Change> {
    let add = amount(record)? % 2 == 0;
    Some(if add { Change::Add } else { Change::Remove })
}

#[derive(Clone, Debug)]
struct All(Counters, Registers, Sets);

impl Resolver for All {
    fn apply(&mut self, source: Source, record: &Record<'_>) {
        self.0.apply(source, record);
        self.1.apply(source, record);
        let value = &record.value[..1];
        let whole = Record::new(record.timestamp, record.value).with_key(record.key);
        if change(&whole).is_some() {
            let element = Record::new(record.timestamp, value).with_key(record.key);
            // Membership is decided by the number, the element is its first character.
            let mut one = Sets::new(if change(&whole) == Some(Change::Add) {
                |_| Some(Change::Add)
            } else {
                |_| Some(Change::Remove)
            });
            std::mem::swap(&mut one.elements, &mut self.2.elements);
            one.apply(source, &element);
            std::mem::swap(&mut one.elements, &mut self.2.elements);
        }
    }
}

fn merge() -> Merge<All> {
    let (counters, sets) = (Counters::new(amount), Sets::new(change));
    Merge::new(All(counters, Registers::default(), sets))
}

/// Takes the origins' records in the order that `picks` says, then the rest; some come twice.
fn run(origins: &[Written], picks: &[(usize, bool)]) -> Merge<All> {
    let mut merge = merge();
    let mut at = vec![0; origins.len()];
    let rest = (0..origins.len()).flat_map(|origin| vec![(origin, false); origins[origin].len()]);
    for (origin, again) in picks.iter().copied().chain(rest) {
        let origin = origin % origins.len();
        let Some((key, time, value)) = origins[origin].get(at[origin]) else {
            continue;
        };
        let (key, value) = ([*key], value.to_string());
        let record = Record::new(*time, value.as_bytes()).with_key(&key);
        for _ in 0..=usize::from(again) {
            let taken = merge.take_records([(source(origin, at[origin]), record)]);
            assert_eq!(taken, Ok(()));
        }
        at[origin] += 1;
    }
    merge
}

fn shown(merge: &Merge<All>) -> String {
    format!(
        "{:?} {:?} {:?}",
        merge.resolver.0.sums, merge.resolver.1, merge.resolver.2.elements
    )
}

fn written() -> impl Strategy<Value = Written> {
    // Few keys and times, so that writes conflict.
    proptest::collection::vec((0..3_u8, 0..4_u64, any::<i8>()), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Counters, last-writer-wins registers and sets: the state is the same whatever the
    /// interleaving of the origins, and so is what was seen of each; no order across them is needed
    /// or given.
    ///
    /// S-143, S-144, S-151, S-184
    #[test]
    fn state_does_not_depend_on_how_origins_interleave(
        origins in proptest::collection::vec(written(), 1..4),
        one in proptest::collection::vec((0..4_usize, any::<bool>()), 0..80),
        other in proptest::collection::vec((0..4_usize, any::<bool>()), 0..80),
    ) {
        let (one, other) = (run(&origins, &one), run(&origins, &other));
        prop_assert_eq!(shown(&one), shown(&other));
        prop_assert_eq!(&one.next, &other.next);
        // Each amount counted once, given twice or not.
        for key in 0..3_u8 {
            let all = origins.iter().flatten().filter(|(of, _, _)| *of == key);
            let sum: i128 = all.map(|(_, _, value)| i128::from(*value)).sum();
            prop_assert_eq!(one.state().0.sum(&[key]), sum);
        }
    }
}

/// The rule of the register by example: the later time, then the higher origin.
#[test]
fn the_last_writer_wins_by_time_then_origin() {
    let mut merge = Merge::new(Registers::default());
    let write = |time, value| Record::new(time, value).with_key(b"k");
    let steps = [
        (source(1, 0), write(5, &b"a"[..]), &b"a"[..]),
        (source(0, 0), write(4, b"late"), b"a"),
        (source(0, 1), write(5, b"lower origin"), b"a"),
        (source(2, 0), write(5, b"higher origin"), b"higher origin"),
        (source(0, 2), write(6, b"later"), b"later"),
    ];
    for (source, record, winner) in steps {
        merge.take_records([(source, record)]).unwrap();
        assert_eq!(merge.state().value(b"k"), Some(winner));
    }
    assert_eq!(merge.next(OriginId(1), ShardId(0)), Offset(3));
}

#[test]
fn members_of_a_set_are_what_was_added_last() {
    fn by_label(record: &Record<'_>) -> Option<Change> {
        match record.timestamp % 2 {
            0 => Some(Change::Add),
            _ => Some(Change::Remove),
        }
    }
    let mut merge = Merge::new(Sets::new(by_label));
    for (offset, (time, value)) in [(2, "x"), (4, "y"), (5, "x"), (6, "z")].iter().enumerate() {
        let record = Record::new(*time, value.as_bytes()).with_key(b"k");
        merge.take_records([(source(0, offset), record)]).unwrap();
    }
    let members: Vec<&[u8]> = merge.state().members(b"k").collect();
    assert_eq!(members, [b"y", b"z"]);
    assert_eq!(merge.state().members(b"j").count(), 0);
}

/// A hole in an origin's log is told, never skipped.
#[test]
fn missing_records_are_told() {
    let mut merge = Merge::new(Registers::default());
    let record = Record::new(1, b"v").with_key(b"k");
    let missing = Missing {
        wanted: source(0, 0),
        found: Offset(1),
    };
    assert_eq!(merge.take_records([(source(0, 1), record)]), Err(missing));
    assert_eq!(merge.state().value(b"k"), None);
    merge.start_at(OriginId(1), ShardId(0), Offset(1));
    assert_eq!(merge.take_records([(source(0, 1), record)]), Ok(()));
}
