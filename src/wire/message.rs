//! The catalogue of operator messages: one entry for each kind of line that a node writes.
//!
//! Beside the registry of codes (`code.rs`) the one place where such words are kept (H-79). A line
//! carries the entry's name, the log that it is about and what happened, with names and numbers.
//! Names and numbers are never reused, so that tools can look for them.

/// Who should look at a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Nobody: part of a normal life.
    Info,
    /// Whoever is on duty, if it lasts or comes again.
    Warn,
    /// Somebody, now.
    Error,
}

macro_rules! messages {
    ($($name:ident $number:literal $severity:ident $meaning:literal, $mend:literal;)*) => {
        /// A message. See the list in the source for number, severity, meaning and mend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Message {
            $(#[doc = $meaning] $name = $number,)*
        }

        impl Message {
            /// Every message.
            pub const ALL: &'static [Message] = &[$(Message::$name,)*];

            /// The message's name.
            pub fn name(self) -> &'static str {
                match self { $(Message::$name => stringify!($name),)* }
            }

            /// Who should look at it.
            pub fn severity(self) -> Severity {
                match self { $(Message::$name => Severity::$severity,)* }
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self { $(Message::$name => $meaning,)* }
            }

            /// What to do about it; empty if nothing is to be done.
            pub fn mend(self) -> &'static str {
                match self { $(Message::$name => $mend,)* }
            }
        }
    };
}

messages! {
    EpochOpened 1 Info
        "this node leads the log from now on",
        "";
    EpochWaits 2 Info
        "this node cannot open an epoch yet: too few members answer",
        "if it lasts, see why the other nodes do not answer; if a majority has lost its disks or \
         gave up its blocks, let every node that still has blocks run, stop the others and move \
         the log's directory away on each; start as many of those as are missing for a majority, \
         of three one, once with `millrace serve --new-member`, and the rest without it as soon \
         as the log is led: what is left then counts as all there was";
    EpochLost 3 Warn
        "this node leads the log no more; appends that waited end as Unknown",
        "none: a new epoch is opened as soon as a majority promises it";
    BlocksCopied 4 Info
        "the leader copies blocks that only another member held",
        "";
    CannotLead 5 Error
        "the most up-to-date member holds other committed blocks than the placed leader",
        "compare the two logs; nothing is deleted by itself";
    PeerError 6 Warn
        "another node refused what this one sent",
        "see the code in the line and that node's log";
    AckPastEnd 7 Error
        "a follower acknowledged blocks that this leader does not have",
        "compare the two logs; see whether two clusters share a directory";
    MemoryChanged 8 Info
        "a follower lost its memory, or has it whole again",
        "";
    LogsDiverged 9 Error
        "a follower holds other committed blocks; the link stays stopped",
        "compare the two logs; nothing is deleted by itself";
    StateLost 10 Error
        "a follower acknowledged blocks that it no longer holds",
        "see whether its disk was replaced or its writes are not durable";
    LinkReplicating 11 Info
        "blocks flow on the link",
        "";
    LinkWaitsForCredit 12 Warn
        "the follower takes blocks more slowly than they are written",
        "if it lasts, see the follower's disk, or raise the credit";
    LinkPaused 13 Info
        "an operator or the follower asked for a pause",
        "`millrace link resume` ends the pause of an operator";
    LinkStopped 14 Error
        "the link stays stopped until somebody acts",
        "see the cause in the line";
    LinkDisconnected 15 Warn
        "the follower cannot be reached",
        "see whether that node runs and the network between the two";
    LeaderSilent 16 Warn
        "nothing was heard of the leader within rpc_timeout_ms",
        "see whether that node runs and the network between the two";
    BlocksCut 17 Warn
        "blocks that were never committed were cut off: the leader has others there, or they were \
         damaged here and nobody else can hold them",
        "none: this is how logs become equal again; what was acknowledged at `leader` or `local` \
         alone goes with them, so append at `quorum` what must outlive its leader";
    TornTail 18 Info
        "blocks that were being written at a crash were cut off; nothing acknowledged was in them",
        "";
    LogClosed 19 Error
        "the log is closed until restart",
        "see the mend in the line";
    DiskFull 20 Error
        "there is no space for the next segment file: appends are refused, replication goes on",
        "free space or set retention; the log goes on by itself";
    DiskHasSpace 21 Info
        "the log takes appends again",
        "";
    PauseAsked 22 Warn
        "this follower cannot keep up and asks its leader to pause",
        "see the reason in the line: its disk, or too little processor time; it goes on by itself";
    PauseEnded 23 Info
        "this follower lets its leader go on",
        "";
    ConnectionsFull 24 Warn
        "clients are refused: a core has as many connections as it takes",
        "see who opens them; share connections, or give the node more cores";
    NotAccepted 25 Warn
        "connections cannot be taken: the system refuses them",
        "raise the limit of open files (ulimit -Hn, LimitNOFILE in the service), or see the error";
    TwoOfOneId 26 Error
        "connections of one node take each other's place again and again",
        "stop one of the two, or give it a node.id of its own";
    CheckpointLost 27 Error
        "the only member of the log lost its checkpoint and cannot know what was in the log",
        "restore the directory from a copy, or start the node once with --new-member, which takes \
         what the log still holds for all there was";
    LogAdopted 28 Warn
        "an operator said that what the log holds is all there was",
        "none";
    ElectionBegins 29 Warn
        "no leader is heard: this node asks the other members for their votes",
        "if it lasts, see why the other nodes do not answer";
    MajorityLost 30 Error
        "this leader was not heard by a majority of the members and leads no more",
        "see whether those nodes run and the network between them";
    HandOver 31 Info
        "the leadership is handed to another member, or was not taken over in time",
        "";
    NoSecret 32 Warn
        "other machines reach this node, and nothing proves that who connects is a member",
        "set cluster.secret_file on all nodes, or let nobody else reach their ports";
    DamageFound 33 Error
        "bytes on this node's disk are not those that were written; they are fetched from others",
        "none if it stays alone; if it comes again, replace the device";
    DamageRepaired 34 Info
        "damaged blocks were written again with the right bytes and read back",
        "";
    DamageStays 35 Error
        "no node that can be asked has the blocks that are damaged here",
        "see whether the other nodes are up; see `millrace scrub` for what is damaged where";
    Rewritten 36 Warn
        "the header of a segment or a copy of the checkpoint was damaged and was written anew",
        "none if it stays alone; if it comes again, replace the device";
    Scrubbed 37 Info
        "the log was read from end to end and compared with its checksums",
        "";
    MemoryLost 38 Warn
        "this node may not know all that it promised or acknowledged for a log: its checkpoint or \
         the log's end was damaged, or an operator gave up a part of it; until the others have \
         brought it up it neither votes, leads nor acknowledges for it",
        "none while a majority of the other members is up; else start those first";
}

impl Message {
    /// The message's number.
    pub fn number(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
