//! Presets: named sets of values for one way of use (`link.preset`).
//!
//! A preset lies under file, variables and flags and over the defaults, so a single key of it can
//! be set otherwise. It is checked with everything else: what contradicts it is refused, never
//! adapted. A preset changes keys of the log too, because how long a block waits and how many
//! records it holds is what the source tunes a link by. `max_batch_size` and the block's bytes are
//! facts of the cluster: give all nodes the same preset.

/// One preset.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub meaning: &'static str,
    /// Keys with their values; all are whole numbers.
    pub values: &'static [(&'static str, i64)],
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "shanghai",
        meaning: "the numbers of the text that links follow (S-162..S-168)",
        values: &[
            ("link.initial_credit", 100),
            ("link.max_batch_size", 100),
            ("link.max_batch_bytes", 1_048_576),
            ("log.batch_timeout_ms", 10),
            ("link.rpc_timeout_ms", 5_000),
            ("link.retry_backoff_ms", 1_000),
        ],
    },
    // S-169. The text leaves the credit at 100, which could never carry such a block (D-S11): here
    // the credit stays at its default, 262,144 records.
    Preset {
        name: "throughput",
        meaning: "fuller blocks: 1,000 records, up to 100 ms",
        values: &[
            ("link.max_batch_size", 1_000),
            ("log.batch_timeout_ms", 100),
        ],
    },
    // S-170.
    Preset {
        name: "latency",
        meaning: "small blocks at once: 10 records, up to 1 ms",
        values: &[("link.max_batch_size", 10), ("log.batch_timeout_ms", 1)],
    },
    // S-186: the window is rate times round trip. 250 MB/s over 300 ms are 75 MB in flight; twice
    // that, because credit comes back with acks and not with arrivals, rounded up to 160 MiB. As
    // many records as that holds at 100 bytes each. A peer so far away is silent for longer
    // before it counts as lost.
    Preset {
        name: "wan",
        meaning: "a window for 250 MB/s over a round trip of 300 ms",
        values: &[
            ("link.initial_credit", 1_677_722),
            ("link.initial_credit_bytes", 167_772_160),
            ("log.batch_timeout_ms", 20),
            ("link.rpc_timeout_ms", 15_000),
            ("link.retry_backoff_ms", 2_000),
        ],
    },
    // A core's buffers follow from block and credit: about 64 MiB a log less than by default.
    // Segments and spares are a quarter. Its uplink comes and goes, so it asks again less often.
    Preset {
        name: "edge",
        meaning: "a small machine: little memory and disk, an uplink that comes and goes",
        values: &[
            ("log.segment_bytes", 16_777_216),
            ("log.max_block_bytes", 262_144),
            ("link.max_batch_size", 65_536),
            ("log.write_depth", 4),
            ("link.initial_credit", 65_536),
            ("link.initial_credit_bytes", 4_194_304),
            ("link.rpc_timeout_ms", 10_000),
            ("link.retry_backoff_ms", 5_000),
        ],
    },
];

/// The preset with this name.
pub fn find(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}

/// The names of all presets, for a refusal.
pub fn names() -> String {
    let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
    names.join(", ")
}
