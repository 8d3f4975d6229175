//! `millrace read`: records of one log, one line each.
//!
//! Prints the records from the offset or the time asked for on, in the order of the log. Without
//! `--to` and `--follow` it ends where the log ends. The node asked is the one given, so that a
//! follower's copy can be read as well as the leader's.

use super::{Failure, MS_MOST, node_address};
use clap::{Args, ValueEnum};
use millrace::client::Ends;
use millrace::client::driver::ReaderConfig;
use millrace::client::driver::blocking::Reader;
use millrace::types::{OriginId, ReadLevel, whole};
use millrace::wire::record::Record;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `read`.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The node to read from.
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    node: String,
    /// The shard.
    #[arg(long, default_value_t = 0, value_parser = whole(0, u16::MAX))]
    shard: u16,
    /// Whose records: the node at which they were appended (mesh); default: those of the node
    /// asked. In a set there is one origin, the cluster.
    #[arg(long, value_parser = whole(0, u32::MAX))]
    origin: Option<u32>,
    /// First offset; default: the first one that the log keeps.
    #[arg(long, value_parser = whole(0, u64::MAX))]
    from: Option<u64>,
    /// Begin at the first record whose time is not below this one, microseconds since the Unix
    /// epoch.
    #[arg(long, value_name = "MICROSECONDS", conflicts_with = "from")]
    #[arg(value_parser = whole(0, u64::MAX))]
    from_time: Option<u64>,
    /// Offset before which to stop; default: the end of the log now. Without --follow a log that
    /// ends before it is a failure.
    #[arg(long, value_parser = whole(0, u64::MAX))]
    to: Option<u64>,
    /// Wait for more when the end is reached.
    #[arg(long)]
    follow: bool,
    /// Which records may be returned; default: committed in a set, local in a mesh.
    #[arg(long, value_enum)]
    level: Option<At>,
    /// How a record is printed.
    #[arg(long, value_enum, default_value_t = Format::Raw)]
    format: Format,
    /// How long connecting, and how long each request, may go without a useful answer,
    /// milliseconds. With --follow a log where nothing happens is no failure, however long.
    #[arg(long, default_value_t = 10_000, value_parser = whole(1, MS_MOST))]
    timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum At {
    /// Below the high watermark.
    Committed,
    /// All that the node holds.
    Local,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// The value, then a line end.
    Raw,
    /// An object with offset, timestamp, key, labels and value; a key or value that is no UTF-8
    /// also as key_base64 or value_base64.
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let patience = Duration::from_millis(arguments.timeout_ms);
    let mut config = ReaderConfig::new(arguments.shard)
        .at_seed()
        .timeout(patience)
        .connect_timeout(patience);
    config = match arguments.level {
        Some(At::Committed) => config.level(ReadLevel::Committed),
        Some(At::Local) => config.level(ReadLevel::Local),
        None => config,
    };
    if let Some(origin) = arguments.origin {
        config = config.origin(origin);
    }
    config = match (arguments.from_time, arguments.from) {
        (Some(time_us), _) => config.from_time_us(time_us),
        (None, Some(offset)) => config.from_offset(offset),
        (None, None) => config,
    };
    if arguments.follow {
        config = config.follow();
    }
    let mut reader = Reader::connect([&arguments.node[..]], &config)?;
    let cluster = reader.cluster();
    refuse_bad_range(arguments, cluster.leaders.len())?;
    refuse_unknown_origin(arguments, &cluster.origins)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let done = print_all(arguments, &mut reader, &mut out);
    // What was read before a failure is printed too.
    out.flush()?;
    done
}

fn print_all(
    arguments: &Arguments,
    reader: &mut Reader,
    out: &mut impl Write,
) -> Result<ExitCode, Failure> {
    let mut next = arguments.from.unwrap_or(0);
    let mut is_first = true;
    while arguments.to.is_none_or(|to| next < to) {
        let Some(batch) = reader.next_batch()? else {
            return at_end(arguments, reader.ends(), next);
        };
        if is_first && arguments.from.is_none() && arguments.from_time.is_none() {
            tell_start(arguments, batch.first().0)?;
        }
        is_first = false;
        for (offset, record) in batch.records() {
            if arguments.to.is_none_or(|to| offset.0 < to) {
                print_record(arguments.format, out, &record, offset.0)?;
            }
        }
        next = batch.end().0;
        if arguments.follow {
            out.flush()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The log ended before `--to`, or where it was to be read to; `next` is the first offset that was
/// not read.
fn at_end(arguments: &Arguments, ends: Option<Ends>, next: u64) -> Result<ExitCode, Failure> {
    let (readable, held) = ends.map_or((next, next), |ends| (ends.readable.0, ends.held.0));
    let behind = format!(
        "the committed end known here is {readable} while the log ends at {held}; \
         --level local shows what lies in between"
    );
    match arguments.to {
        Some(to) if held > readable => Err(Failure::Failed(format!(
            "the records that may be read here end at {readable}, before --to {to}: {behind}; \
             mend: look at `millrace status` for whether this node hears its leader, or wait \
             with --follow"
        ))),
        Some(to) => Err(Failure::Failed(format!(
            "the records that may be read here end at {readable}, before --to {to}; \
             mend: --follow waits for more"
        ))),
        None if held > readable => {
            eprintln!("millrace: {behind}");
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Says that the log begins above 0: what was before is not there to be printed.
fn tell_start(arguments: &Arguments, start: u64) -> Result<(), Failure> {
    if start == 0 {
        return Ok(());
    }
    match arguments.to {
        Some(to) if to <= start => Err(Failure::Failed(format!(
            "--to {to}: the log begins at {start}, what was before was trimmed; \
             mend: name a higher one"
        ))),
        _ => {
            eprintln!("millrace: the log begins at {start}, what was before was trimmed");
            Ok(())
        }
    }
}

/// Whether the node has logs of the origin that the flags name.
fn refuse_unknown_origin(arguments: &Arguments, known: &[OriginId]) -> Result<(), Failure> {
    let Some(origin) = arguments
        .origin
        .filter(|origin| !known.contains(&OriginId(*origin)))
    else {
        return Ok(());
    };
    let known: Vec<String> = known.iter().map(OriginId::to_string).collect();
    Err(Failure::Input(format!(
        "--origin {origin}: must be one of {}; mend: choose another one",
        known.join(", ")
    )))
}

/// Holds the shard and the range against the cluster and each other.
fn refuse_bad_range(arguments: &Arguments, shards: usize) -> Result<(), Failure> {
    let (shard, from) = (arguments.shard, arguments.from.unwrap_or(0));
    if usize::from(shard) >= shards {
        let text = format!("--shard {shard}: must be below {shards}; mend: choose another one");
        return Err(Failure::Input(text));
    }
    match arguments.to {
        Some(to) if to < from => Err(Failure::Input(format!(
            "--to {to}: must not be below --from {from}; mend: exchange them"
        ))),
        _ => Ok(()),
    }
}

fn print_record(
    format: Format,
    out: &mut impl Write,
    record: &Record<'_>,
    offset: u64,
) -> io::Result<()> {
    match format {
        Format::Raw => {
            out.write_all(record.value)?;
            out.write_all(b"\n")
        }
        Format::Json => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let labels: Vec<_> = record.labels().collect();
            let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
            let all_text = labels
                .iter()
                .all(|(name, value)| is_text(name) && is_text(value));
            let pairs = |show: &dyn Fn(&[u8]) -> String| -> Vec<[String; 2]> {
                labels
                    .iter()
                    .map(|(name, value)| [show(name), show(value)])
                    .collect()
            };
            let mut object = serde_json::json!({
                "offset": offset,
                "timestamp": record.timestamp,
                "key": text(record.key),
                "labels": pairs(&text),
                "value": text(record.value),
            });
            if !all_text {
                object["labels_base64"] = serde_json::json!(pairs(&base64));
            }
            // Text cannot hold every byte: what is no UTF-8 stands beside it as it is.
            for (name, bytes) in [("key_base64", record.key), ("value_base64", record.value)] {
                if std::str::from_utf8(bytes).is_err() {
                    object[name] = base64(bytes).into();
                }
            }
            writeln!(out, "{object}")
        }
    }
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let known = digit <= three.len();
            let value = (bits >> (18 - 6 * digit)) & 63;
            text.push(if known {
                DIGITS[value as usize] as char
            } else {
                '='
            });
        }
    }
    text
}
