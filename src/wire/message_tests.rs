//! The catalogue is complete and unambiguous.

use super::*;
use std::collections::BTreeSet;

/// H-79, Q-30
#[test]
fn each_message_is_one_and_says_what_it_means() {
    let numbers: BTreeSet<u16> = Message::ALL.iter().map(|m| m.number()).collect();
    let names: BTreeSet<&str> = Message::ALL.iter().map(|m| m.name()).collect();
    assert_eq!(numbers.len(), Message::ALL.len());
    assert_eq!(names.len(), Message::ALL.len());
    for message in Message::ALL {
        assert!(!message.meaning().is_empty(), "{message:?}");
        let calm = message.severity() == Severity::Info;
        assert!(calm || !message.mend().is_empty(), "{message:?}");
    }
}

/// Numbers and names are never reused: tools look for them.
#[test]
fn published_numbers_keep_their_names() {
    let first: Vec<&str> = Message::ALL.iter().take(4).map(|m| m.name()).collect();
    assert_eq!(
        first,
        ["EpochOpened", "EpochWaits", "EpochLost", "BlocksCopied"]
    );
    assert_eq!(Message::LogClosed.number(), 19);
}
