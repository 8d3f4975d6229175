//! Free space: what an experiment may write is known before it starts.
//!
//! Nodes on one disk write every record once each, and keep segments ahead of need. A load ends
//! early before the disk is full, which spoils a figure and nothing else: too little for the load
//! is a warning, too little for the nodes themselves is refused. Read `bench.rs` next.

use std::ffi::CString;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Failure;

/// What the nodes need before the first record: ready segments, and what a load leaves free.
const BASE_BYTES: u64 = 2_500_000_000;
const NODE_BYTES: u64 = 1_000_000_000;

/// More than a closed loop ever reached for one node, bytes a second.
const FASTEST_NODE: u64 = 450_000_000;

/// Bytes of a record besides its value, headers and padding included, at most.
const RECORD_MORE: u64 = 33;

/// Bytes free in a folder; none if it cannot be told.
pub fn free_bytes(directory: &Path) -> Option<u64> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the struct is written before it is read.
    unsafe {
        (libc::statvfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| {
            let found = found.assume_init();
            found.f_bavail * found.f_frsize
        })
    }
}

/// What `nodes` nodes write of a load of so many records of `record_bytes` a second at most.
pub fn written(nodes: u64, record_bytes: u64, rate: Option<f64>, seconds: f64) -> u64 {
    let bytes = (record_bytes + RECORD_MORE) as f64;
    let fastest = FASTEST_NODE as f64;
    // A closed loop of small records is bound by what makes them.
    let per_s = rate.unwrap_or(4e6) * bytes * 1.25;
    (nodes as f64 * per_s.min(fastest) * seconds) as u64
}

/// Says what is needed; refused if there is not enough for `nodes` nodes at all.
pub fn check(work: &Path, nodes: u64, written: u64) -> Result<(), Failure> {
    let least = BASE_BYTES + nodes * NODE_BYTES;
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let Some(free) = free_bytes(work) else {
        let text = format!("--work {}: its free space cannot be told", work.display());
        return Err(Failure::BadInput(text));
    };
    let (place, need) = (work.display(), least + written);
    if free < least {
        return Err(Failure::Failed(format!(
            "{:.1} GB are needed at least in {place}, {:.1} GB are free; name a folder with more \
             room",
            gb(least),
            gb(free)
        )));
    }
    let note = if free < need {
        ": a load that meets the end of it ends early and does not count"
    } else {
        ""
    };
    let (need, free) = (gb(need), gb(free));
    let line =
        format!("space       at most {need:.1} GB needed in {place}, {free:.1} GB free{note}");
    let _ = writeln!(io::stderr(), "{line}");
    Ok(())
}
