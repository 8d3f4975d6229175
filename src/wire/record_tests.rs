//! Tests of the record encoding: golden bytes, round trips, foreign bytes, and what does not fit.

use super::*;
use crate::wire::golden;
use proptest::prelude::*;

const GOLDEN: &str = include_str!("../../tests/data/wire/records.txt");

type Labels = [(&'static [u8], &'static [u8])];
const GOLDEN_LABELS: &Labels = &[(b"unit", b"K"), (b"", &[0xff, 0])];

fn golden_bytes() -> Vec<u8> {
    golden::unhex(&golden::lines(GOLDEN).flatten().collect::<Vec<_>>())
}

fn golden_records() -> [Record<'static>; 2] {
    [
        Record::new(0x0102_0304_0506_0708, &[0, 0x7f, 0x80, 0xff]).with_key(b"key"),
        Record::new(0x1112_1314_1516_1718, &[]),
    ]
}

/// A record as plain values: timestamp, key, labels, value.
type Plain = (u64, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>);

fn plain(record: &Record<'_>) -> Plain {
    let labels = record
        .labels()
        .map(|(name, value)| (name.to_vec(), value.to_vec()));
    let (key, value) = (record.key.to_vec(), record.value.to_vec());
    (record.timestamp, key, labels.collect(), value)
}

fn read_plain(body: &[u8]) -> Option<Vec<Plain>> {
    read_all(body).map(|one| Some(plain(&one.ok()?))).collect()
}

fn builder_with(records: &[Plain]) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for (timestamp, key, labels, value) in records {
        let labels: Vec<_> = labels.iter().map(|(n, v)| (&n[..], &v[..])).collect();
        builder.push_labelled(&Record::new(*timestamp, value).with_key(key), &labels);
    }
    builder
}

/// S-46: what a client puts in comes out, byte for byte, and the header counts it.
#[test]
fn golden_bytes_are_written_and_read() {
    let [first, second] = golden_records();
    let mut builder = BatchBuilder::new();
    builder.producer(7, 8, 9);
    builder.push_labelled(&first, GOLDEN_LABELS);
    builder.push(&second);
    assert_eq!(builder.record_count(), 2);
    assert_eq!(builder.len(), BATCH_HEADER + golden_bytes().len());
    let batch = builder.finish();
    assert_eq!(batch[BATCH_HEADER..], golden_bytes());
    let half = batch::check_from_client(&batch).expect("a batch");
    let expected = ClientHalf {
        record_count: 2,
        stored_len: 62,
        raw_len: 62,
        base_timestamp: first.timestamp,
        max_timestamp: second.timestamp,
        producer_id: 7,
        producer_epoch: 8,
        flags: batch::FLAG_KEYED | batch::FLAG_LABELS,
        base_sequence: 9,
    };
    assert_eq!(half, expected);

    let found: Vec<_> = read_all(&batch[BATCH_HEADER..])
        .collect::<Result<_, _>>()
        .expect("records");
    assert_eq!(found[0].key, first.key);
    assert_eq!(found[0].value, first.value);
    assert_eq!(found[0].labels().collect::<Vec<_>>(), GOLDEN_LABELS);
    assert_eq!(found[1], second);
    assert_eq!(found.len(), 2);
}

#[test]
fn a_flipped_golden_bit_shows() {
    let value = read_plain(&golden_bytes()).expect("records");
    golden::assert_flips_show(&golden_bytes(), &value, read_plain);
}

#[test]
fn cut_off_records_are_refused() {
    let golden = golden_bytes();
    for len in 0..golden.len() {
        let whole = [0, 42].contains(&len);
        assert_eq!(read_plain(&golden[..len]).is_some(), whole, "{len} bytes");
    }
    let mut ended = read_all(&golden[..50]);
    assert!(ended.by_ref().any(|one| one.is_err()));
    assert_eq!(ended.next(), None, "nothing follows what does not parse");
}

/// zeros and ones are no records.
#[test]
fn blank_and_erased_bytes_are_no_record() {
    for len in 0..64 {
        assert_eq!(read(&vec![0; len]), Err(RecordError));
        assert_eq!(read(&vec![0xff; len]), Err(RecordError));
    }
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    for (what, at, with) in [
        ("len below the header", 0, 15),
        ("len past the bytes", 3, 1),
        ("key past the record", 12, 0xff),
        ("labels that are not there", 14, 3),
        ("labels not counted", 14, 1),
        ("value past the record", 18, 1),
        ("value into the labels", 16, 5),
        ("value too short", 16, 3),
        ("label past the record", 24, 0xff),
    ] {
        let bytes = golden::patched(&golden_bytes(), at..at + 1, &[with]);
        assert_eq!(read(&bytes).err(), Some(RecordError), "{what}");
    }
}

#[test]
fn what_does_not_fit_is_refused_whole() {
    let long = vec![0; FIELD_MAX + 1];
    let most = &long[..FIELD_MAX];
    let value = vec![0; BATCH_MAX - BATCH_HEADER - HEADER];
    let record = Record::new(1, b"v");
    let mut builder = BatchBuilder::new();
    assert_eq!(
        builder.try_push(&record.with_key(&long), &[]),
        Err(RecordError)
    );
    assert_eq!(builder.try_push(&record, &[(&long, b"")]), Err(RecordError));
    assert_eq!(builder.try_push(&record, &[(b"", &long)]), Err(RecordError));
    let labels: Vec<(&[u8], &[u8])> = vec![(b"", b""); FIELD_MAX + 1];
    assert_eq!(builder.try_push(&record, &labels), Err(RecordError));
    let larger = [&value[..], &[0]].concat();
    assert_eq!(
        builder.try_push(&Record::new(1, &larger), &[]),
        Err(RecordError)
    );
    assert!(builder.is_empty());
    assert_eq!(builder.len(), BATCH_HEADER);

    let full = BatchBuilder::new().try_push(&Record::new(1, &value), &[]);
    assert_eq!(full, Ok(()), "as large as a batch can be");
    assert_eq!(
        builder.try_push(&record.with_key(most), &[(most, most)]),
        Ok(())
    );
    assert_eq!(builder.try_push(&record, &labels[..FIELD_MAX]), Ok(()));
    let batch = builder.finish();
    let found: Vec<_> = read_all(&batch[BATCH_HEADER..])
        .map(|one| one.expect("a record"))
        .collect();
    assert_eq!(found[0].key, most);
    assert_eq!(found[0].labels().next(), Some((most, most)));
    assert_eq!(found[1].labels().count(), FIELD_MAX);
}

#[test]
#[should_panic(expected = "above FIELD_MAX")]
fn a_key_that_does_not_fit_is_never_cut_short() {
    BatchBuilder::new().push(&Record::new(1, b"").with_key(&vec![0; FIELD_MAX + 1]));
}

/// H-65
#[test]
fn encoding_is_counted() {
    let before = records_encoded();
    builder_with(&[(1, vec![], vec![], vec![]), (2, vec![], vec![], vec![])]).finish();
    assert!(records_encoded() >= before + 2);
}

fn bytes_up_to(len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..len)
}

fn records() -> impl Strategy<Value = Vec<Plain>> {
    let labels = prop::collection::vec((bytes_up_to(9), bytes_up_to(9)), 0..4);
    let record = (any::<u64>(), bytes_up_to(20), labels, bytes_up_to(50));
    prop::collection::vec(record, 1..8)
}

proptest! {
    #[test]
    fn records_round_trip(records in records()) {
        let batch = builder_with(&records).finish();
        let half = batch::check_from_client(&batch).expect("a batch");
        prop_assert_eq!(half.record_count as usize, records.len());
        prop_assert_eq!(half.base_timestamp, records[0].0);
        prop_assert_eq!(Some(half.max_timestamp), records.iter().map(|record| record.0).max());
        let keyed = records.iter().any(|record| !record.1.is_empty());
        prop_assert_eq!(half.flags & batch::FLAG_KEYED != 0, keyed);
        let labelled = records.iter().any(|record| !record.2.is_empty());
        prop_assert_eq!(half.flags & batch::FLAG_LABELS != 0, labelled);
        prop_assert_eq!(read_plain(&batch[BATCH_HEADER..]), Some(records));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in bytes_up_to(200)) {
        let found = read_all(&bytes).filter(Result::is_ok).count();
        prop_assert!(found * HEADER <= bytes.len());
    }

    /// What is read after any change to a body is written as the same bytes.
    #[test]
    fn changed_bodies_do_no_harm(noise in bytes_up_to(8), at in 0..62_usize) {
        let mut bytes = golden_bytes();
        let end = (at + noise.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&noise[..end - at]);
        if let Some(found) = read_plain(&bytes) {
            prop_assert_eq!(&builder_with(&found).finish()[BATCH_HEADER..], &bytes[..]);
        }
    }
}
