//! Compares the segment files of all nodes byte for byte.
//!
//! Of every log, from the highest log start on, up to the end of the last block that every node
//! holds. After a clean stop that is all of it, so a node that ends below what is known to be
//! committed is found here. Where files differ, the bytes that most nodes hold count as right, and
//! each node with others is named with the first place. It never decides by a CRC what a comparison
//! can show. Read `mod.rs` for the verdict.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use millrace::limits::{BATCH_HEADER, DISK_ALIGNMENT, SEGMENT_HEADER};
use millrace::types::{BlockNo, LogId};
use millrace::wire::batch;
use millrace::wire::block;
use millrace::wire::record;

use super::finding::{Findings, Kind, Place};
use super::reader::{Progress, Reader};
use super::walk::{Segment, Shape};

const CHUNK: u64 = 1 << 20;

/// One node as walked.
#[derive(Debug)]
pub struct Walked<'a> {
    /// Its data directory.
    pub data: &'a Path,
    /// Its logs.
    pub shapes: &'a BTreeMap<LogId, Shape>,
}

/// What the comparison of all nodes says of one.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// Bytes held against those of the other nodes.
    pub bytes: u64,
    /// Where it differs.
    pub findings: Findings,
}

/// Compares all logs of all nodes; the answer is node by node.
pub fn compare(nodes: &[Walked<'_>], progress: &Progress) -> io::Result<Vec<Compared>> {
    let mut compared = vec![Compared::default(); nodes.len()];
    if nodes.len() < 2 {
        return Ok(compared);
    }
    let mut logs: Vec<LogId> = nodes
        .iter()
        .flat_map(|node| node.shapes.keys().copied())
        .collect();
    logs.sort_unstable();
    logs.dedup();
    for log in logs {
        let shapes: Vec<Option<&Shape>> = nodes.iter().map(|node| node.shapes.get(&log)).collect();
        for (node, shape) in shapes.iter().enumerate() {
            if shape.is_none() {
                let place = Place::file(&nodes[node].data.join(log.to_string()));
                compared[node].differs(place, "other nodes hold this log, this one does not");
            }
        }
        let shapes: Vec<(usize, &Shape)> = shapes
            .into_iter()
            .enumerate()
            .filter_map(|(node, shape)| Some((node, shape?)))
            .collect();
        ends(nodes, log, &shapes, &mut compared);
        log_segments(&shapes, &mut compared, progress)?;
    }
    Ok(compared)
}

impl Compared {
    fn differs(&mut self, place: Place, text: impl Into<String>) {
        self.findings.add(Kind::Differing, 1, place, text);
    }
}

/// Names each node whose log ends below what some block says is committed.
fn ends(nodes: &[Walked<'_>], log: LogId, shapes: &[(usize, &Shape)], compared: &mut [Compared]) {
    let committed = shapes.iter().map(|(_, shape)| shape.committed_end).max();
    let committed = committed.unwrap_or_default();
    for (node, shape) in shapes {
        if shape.end_block < committed {
            let place = Place::file(&nodes[*node].data.join(log.to_string()));
            let place = place.block(shape.end_block.0).offset(shape.end_offset.0);
            let text = format!("the log ends here, and blocks below {committed} are committed");
            compared[*node].differs(place, text);
        }
    }
}

fn log_segments(
    shapes: &[(usize, &Shape)],
    compared: &mut [Compared],
    progress: &Progress,
) -> io::Result<()> {
    let first = shapes.iter().map(|(_, shape)| shape.first_block).max();
    let end = shapes.iter().map(|(_, shape)| shape.end_block).min();
    let (Some(first), Some(end)) = (first, end) else {
        return Ok(());
    };
    let mut bases: Vec<BlockNo> = shapes
        .iter()
        .flat_map(|(_, shape)| shape.segments.iter().map(|segment| segment.base))
        .filter(|base| (first..end).contains(base))
        .collect();
    bases.sort_unstable();
    bases.dedup();
    for base in bases {
        let mut held = Vec::new();
        for (node, shape) in shapes {
            match shape.segments.iter().find(|segment| segment.base == base) {
                Some(segment) => held.push((*node, segment)),
                None => {
                    let file = shape.segments.first().and_then(|first| first.path.parent());
                    let place = Place::file(file.unwrap_or(Path::new(""))).block(base.0);
                    let text = "on other nodes a segment begins with this block";
                    compared[*node].differs(place, text);
                }
            }
        }
        segment(&held, compared, progress)?;
    }
    Ok(())
}

fn segment(
    held: &[(usize, &Segment)],
    compared: &mut [Compared],
    progress: &Progress,
) -> io::Result<()> {
    let Some(end) = held.iter().map(|(_, segment)| segment.end_position).min() else {
        return Ok(());
    };
    let mut readers = held
        .iter()
        .map(|(_, segment)| Reader::open(&segment.path, progress))
        .collect::<io::Result<Vec<_>>>()?;
    let mut named = vec![false; held.len()];
    let mut position = 0;
    while position < end {
        let len = CHUNK.min(end - position);
        let views = readers
            .iter_mut()
            .map(|reader| reader.view(position, len))
            .collect::<io::Result<Vec<&[u8]>>>()?;
        let right = most_common(&views);
        let mut differing = Vec::new();
        for (index, view) in views.iter().enumerate() {
            if !named[index] && *view != views[right] {
                let at = first_difference(view, views[right]) as u64;
                differing.push((index, position + at));
            }
        }
        for (index, at) in differing {
            named[index] = true;
            let (node, segment) = held[index];
            let place = describe(&segment.path, at, progress)?;
            let like = held[right].1.path.display();
            let text = format!("the first byte that differs from {like}");
            compared[node].differs(place, text);
        }
        position += len;
    }
    for (node, _) in held {
        compared[*node].bytes += end;
    }
    Ok(())
}

/// The index of the view that most others equal; the first of them.
fn most_common(views: &[&[u8]]) -> usize {
    if views.windows(2).all(|pair| pair[0] == pair[1]) {
        return 0;
    }
    let votes = |index: usize| views.iter().filter(|view| **view == views[index]).count();
    (0..views.len())
        .rev()
        .max_by_key(|index| votes(*index))
        .unwrap_or(0)
}

fn first_difference(one: &[u8], two: &[u8]) -> usize {
    let equal = one.iter().zip(two).take_while(|(one, two)| one == two);
    equal.count()
}

/// Names what stands at `position` of a segment file: block, offset, producer and sequence.
fn describe(path: &Path, position: u64, progress: &Progress) -> io::Result<Place> {
    let mut reader = Reader::open(path, progress)?;
    let place = Place::file(path).at(position);
    let mut at = SEGMENT_HEADER as u64;
    while at <= position {
        let Ok(header) = block::read_header(reader.view(at, DISK_ALIGNMENT as u64)?) else {
            break;
        };
        let end = at + header.padded_len() as u64;
        if position >= end {
            at = end;
            continue;
        }
        let place = place.block(header.block.0);
        let bytes = reader.view(at, header.padded_len() as u64)?;
        let target = (position - at) as usize;
        let batches = block::batches(bytes, &header);
        let found = batches
            .into_iter()
            .find(|(start, prefix)| (*start..start + prefix.total_len()).contains(&target));
        let Some((start, prefix)) = found else {
            return Ok(place);
        };
        let batch = &bytes[start..bytes.len().min(start + prefix.total_len())];
        let half = batch::client_half(batch);
        let index = record_at(
            &batch[BATCH_HEADER..],
            (target - start).checked_sub(BATCH_HEADER),
        );
        let sequence = half.base_sequence.wrapping_add(index);
        let place = place.offset(prefix.base_offset.0 + u64::from(index));
        return Ok(place.record(half.producer_id as u32, sequence));
    }
    Ok(place)
}

/// Which record of a body holds this byte; the first if it lies in the batch's header.
fn record_at(body: &[u8], target: Option<usize>) -> u32 {
    let (mut rest, mut index) = (body, 0);
    while let Ok((_, after)) = record::read(rest) {
        if target.is_none_or(|target| body.len() - after.len() > target) {
            break;
        }
        rest = after;
        index += 1;
    }
    index
}
