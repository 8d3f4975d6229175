//! Tests of the registry of codes: numbers, names and texts that operators and clients rely on.

use super::*;
use std::collections::BTreeSet;

#[test]
fn numbers_and_names_are_unique_and_round_trip() {
    let numbers: BTreeSet<u16> = Code::ALL.iter().map(|code| code.number()).collect();
    let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(numbers.len(), Code::ALL.len());
    assert_eq!(names.len(), Code::ALL.len());
    for code in Code::ALL {
        assert_eq!(Code::from_number(code.number()), Some(*code));
        assert_eq!(Code::from_name(code.name()), Some(*code));
    }
    for number in (0..=u16::MAX).filter(|number| !numbers.contains(number)) {
        assert_eq!(Code::from_number(number), None);
    }
    assert_eq!(Code::from_name(""), None);
    assert_eq!(Code::from_number(0), None, "0 is no code");
}

///
#[test]
fn each_code_says_what_it_means_and_what_mends_it() {
    let texts: BTreeSet<&str> = Code::ALL.iter().map(|code| code.text()).collect();
    assert_eq!(texts.len(), Code::ALL.len(), "each meaning once");
    for code in Code::ALL {
        for sentence in [code.text(), code.mend()] {
            let one_line = !sentence.is_empty() && sentence.trim() == sentence;
            assert!(one_line && !sentence.contains('\n'), "{code:?}: {sentence}");
        }
    }
}

/// Numbers are never reused: what an older node or client knows keeps its meaning.
#[test]
fn published_numbers_keep_their_names() {
    let names: Vec<&str> = (1..=37)
        .map(|number| Code::from_number(number).map_or("", Code::name))
        .collect();
    let published = "Unsupported WrongDirection BadFrame WrongVersion WrongCluster WrongNode \
        WrongFingerprint WrongCore NotLeader UnknownLog UnknownLevel BadBatch BadCrc EmptyBatch \
        TooLarge NotReady Overloaded LogFailed NoSpace Unknown OutOfRange Timeout StaleEpoch \
        OutOfSync Diverged OverCredit MemoryLost WrongMembers Stopping Replaced SequenceGap \
        SequenceReused UnknownProducer ProducerFenced Truncated TooManyConnections LogBehind";
    assert_eq!(names.join(" "), published);
    let names = [38, 39, 40, 41, 42].map(|number| Code::from_number(number).map(Code::name));
    assert_eq!(
        names,
        [
            "WrongSecret",
            "SecretMissing",
            "RetentionFull",
            "BlocksDamaged",
            "LacksCapability"
        ]
        .map(Some)
    );
}

#[test]
fn numbers_beside_a_code_are_named() {
    let full = Code::RetentionFull.explain([9, 8]);
    assert!(
        full.contains("(bytes held: 9, bound: 8); mend: raise"),
        "{full}"
    );
    let one = Code::UnknownLevel.explain([7, 0]);
    assert!(one.contains("quorum (level: 7); mend: "), "{one}");
    let bare = Code::LogFailed.explain([0, 0]);
    assert!(!bare.contains('('), "{bare}");
    let lacks = Code::LacksCapability.explain([2, 0]);
    assert!(
        lacks.contains("(finalized: take_over, the refused side has: none)"),
        "{lacks}"
    );
    let prints = Code::WrongFingerprint.explain([0x00ab_cdef, 0xfe]);
    assert!(
        prints.contains("(the refusing side's: 00abcdef, the refused side's: 000000fe)"),
        "{prints}"
    );
    assert!(Code::BadFrame.explain([3, 4]).contains("(3, 4)"));
}
