//! Deliberate faults, for testing the checkers: each must be caught, by name.
//!
//! Without the feature `faults` every question is answered "no" at compile time. With it, the
//! variable `MILLRACE_FAULT`, read once, switches one fault on for the whole process.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Count a block as durable when its write is handed to the disk.
    AckEarly,
    /// Take a short write for a whole one.
    IgnoreShortWrite,
    /// Erase a cut from its first block on.
    EraseFirstFirst,
    /// Admit blocks without checking their CRCs.
    SkipCrc,
    /// Truncate below the high watermark when asked to.
    TruncateBelowCommit,
    /// Acknowledge `durable_end` without the bound of `verified_end`.
    AckUnbounded,
    /// Count the bytes of refused frames as still held.
    LeakCreditOnNack,
    /// Write blocks with another byte in their padding than they came with.
    ReEncode,
    /// Write one copy of the checkpoint only.
    OneCheckpointCopy,
    /// Compare epochs instead of header CRCs for blocks already held.
    CompareEpochsOnly,
    /// Move the high watermark up to `durable_end` without the bound of `verified_end`.
    CommitUnbounded,
    /// Let a lower epoch in.
    ForgetFence,
    /// Answer a retry at once, whatever its first copy has reached.
    AnswerDuplicateAtOnce,
    /// Start with no producers, whatever the log holds of them.
    ForgetProducers,
    /// Go on knowing the batches that a cut took away.
    KeepCutProducers,
    /// Promise an epoch to a second candidate.
    GrantTwoVotes,
    /// Go on leading without a majority.
    NoStepDown,
    /// Call durable what a dead process left in the device's cache, without a sync.
    SkipSync,
    /// Count a block as durable as soon as one behind it is.
    AckOutOfOrder,
    /// Send blocks that are read back from the disk with a header made anew.
    ReEncodeOnCatchUp,
    /// Count a follower that is out of reach as if it still followed.
    StaleMajority,
    /// Answer a committed read with all that is durable here.
    ReadUncommitted,
}

impl Fault {
    /// Every fault with its name in `MILLRACE_FAULT`.
    pub const ALL: [(Fault, &'static str); 22] = [
        (Fault::AckEarly, "ack_early"),
        (Fault::IgnoreShortWrite, "ignore_short_write"),
        (Fault::EraseFirstFirst, "erase_first_first"),
        (Fault::SkipCrc, "skip_crc"),
        (Fault::TruncateBelowCommit, "truncate_below_commit"),
        (Fault::AckUnbounded, "ack_unbounded"),
        (Fault::LeakCreditOnNack, "leak_credit_on_nack"),
        (Fault::ReEncode, "re_encode"),
        (Fault::OneCheckpointCopy, "one_checkpoint_copy"),
        (Fault::CompareEpochsOnly, "compare_epochs_only"),
        (Fault::CommitUnbounded, "commit_unbounded"),
        (Fault::ForgetFence, "forget_fence"),
        (Fault::AnswerDuplicateAtOnce, "answer_duplicate_at_once"),
        (Fault::ForgetProducers, "forget_producers_on_restart"),
        (Fault::KeepCutProducers, "keep_cut_producers"),
        (Fault::GrantTwoVotes, "grant_two_votes"),
        (Fault::NoStepDown, "no_step_down"),
        (Fault::SkipSync, "skip_sync"),
        (Fault::AckOutOfOrder, "ack_out_of_order"),
        (Fault::ReEncodeOnCatchUp, "re_encode_on_catch_up"),
        (Fault::StaleMajority, "stale_majority"),
        (Fault::ReadUncommitted, "read_uncommitted"),
    ];
}

/// Whether `fault` is switched on.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn active(_fault: Fault) -> bool {
    false
}

/// Whether `fault` is switched on.
#[cfg(feature = "faults")]
pub fn active(fault: Fault) -> bool {
    use std::sync::OnceLock;
    static CHOSEN: OnceLock<Option<Fault>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("MILLRACE_FAULT").ok()?;
        let found = Fault::ALL.iter().find(|(_, known)| *known == name);
        assert!(found.is_some(), "MILLRACE_FAULT={name} is no known fault");
        found.map(|(fault, _)| *fault)
    });
    *chosen == Some(fault)
}
