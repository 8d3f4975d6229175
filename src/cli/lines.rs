//! The lines of an input, read ahead by a thread of their own, in bounded memory.
//!
//! A line longer than any record may be is not kept: it is said to be too long as soon as that is
//! known, and skipped up to its end. So an input without line ends costs no more than one line.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait to be taken.
const LINES: usize = 4096;
/// Bytes of lines that wait to be taken; one line may always wait.
const LINES_BYTES: usize = 8 << 20;

/// One line, without its end.
#[derive(Debug)]
pub(super) enum Line {
    /// As it is.
    Whole(Vec<u8>),
    /// Above the bound on lines.
    TooLong {
        /// The bound, bytes.
        most: usize,
    },
    /// The input cannot be read; nothing follows.
    Failed(io::Error),
}

/// What there is.
#[derive(Debug)]
pub(super) enum Next {
    /// A line.
    Line(Line),
    /// None has come in time.
    Waiting,
    /// There will be none any more.
    End,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The input has ended.
    ended: bool,
    /// Nobody takes lines any more.
    abandoned: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Lines came or went, or one side ended.
    changed: Condvar,
}

/// Lines that are read ahead.
#[derive(Debug)]
pub(super) struct Lines(Arc<Shared>);

impl Lines {
    /// Reads standard input; lines of `most` bytes at most.
    pub(super) fn of_standard_input(most: usize) -> Lines {
        let shared = Arc::new(Shared::default());
        let reader = Arc::clone(&shared);
        thread::spawn(move || reader.read_all(&mut io::stdin().lock(), most));
        Lines(shared)
    }

    /// The next line, waited for so long at most.
    pub(super) fn next(&self, wait: Duration) -> Next {
        let until = Instant::now() + wait;
        let mut queue = self.0.lock();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.len();
                self.0.changed.notify_one();
                return Next::Line(line);
            }
            if queue.ended {
                return Next::End;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Waiting;
            }
            let waited = self.0.changed.wait_timeout(queue, left);
            queue = waited.expect("nobody panics under the lock").0;
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.0.lock().abandoned = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics under the lock")
    }

    /// Reads to the end of the input, as far as there is room and somebody takes the lines.
    fn read_all(&self, input: &mut impl BufRead, most: usize) {
        loop {
            let line = match read_line(input, most) {
                Ok(None) => break,
                Ok(Some(line)) => line,
                Err(error) => Line::Failed(error),
            };
            let (is_long, is_last) = match line {
                Line::Whole(_) => (false, false),
                Line::TooLong { .. } => (true, false),
                Line::Failed(_) => (false, true),
            };
            if !self.give(line) || is_last {
                break;
            }
            if is_long && let Err(error) = skip_line(input) {
                self.give(Line::Failed(error));
                break;
            }
        }
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for room; false if nobody takes lines any more.
    fn give(&self, line: Line) -> bool {
        let mut queue = self.lock();
        let full = |queue: &Queue| {
            let bytes = queue.bytes + line.len() > LINES_BYTES && !queue.lines.is_empty();
            queue.lines.len() >= LINES || bytes
        };
        while full(&queue) && !queue.abandoned {
            let waited = self.changed.wait(queue);
            queue = waited.expect("nobody panics under the lock");
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        self.changed.notify_one();
        !queue.abandoned
    }
}

impl Line {
    /// Bytes that it keeps.
    fn len(&self) -> usize {
        match self {
            Line::Whole(line) => line.len(),
            Line::TooLong { .. } | Line::Failed(_) => 0,
        }
    }
}

/// The next line; none at the end of the input. Of one above the bound the rest is still to be
/// read.
fn read_line(input: &mut impl BufRead, most: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    // The bound and the line's end.
    let bound = most as u64 + 1;
    if input.by_ref().take(bound).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    line.pop_if(|last| *last == b'\n');
    if line.len() > most {
        return Ok(Some(Line::TooLong { most }));
    }
    Ok(Some(Line::Whole(line)))
}

/// Reads up to the end of a line and keeps nothing of it.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = match input.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (used, over) = match end {
            Some(at) => (at + 1, true),
            None => (bytes.len(), bytes.is_empty()),
        };
        input.consume(used);
        if over {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], most: usize) -> Vec<String> {
        let shared = Arc::new(Shared::default());
        let lines = Lines(Arc::clone(&shared));
        let mut input = io::BufReader::with_capacity(3, text);
        shared.read_all(&mut input, most);
        let mut said = Vec::new();
        loop {
            match lines.next(Duration::ZERO) {
                Next::Line(Line::Whole(line)) => {
                    said.push(String::from_utf8(line).expect("text"));
                }
                Next::Line(line) => said.push(format!("{line:?}")),
                Next::Waiting => panic!("the input has ended"),
                Next::End => return said,
            }
        }
    }

    #[test]
    fn lines_are_whole_up_to_the_bound_and_skipped_above_it() {
        let long = "TooLong { most: 4 }";
        assert_eq!(all(b"", 4), [""; 0]);
        assert_eq!(all(b"\n", 4), [""]);
        assert_eq!(all(b"1234\n1234", 4), ["1234", "1234"]);
        assert_eq!(
            all(b"12345\nab\n123456789\n\nc", 4),
            [long, "ab", long, "", "c"]
        );
        assert_eq!(all(b"12345", 4), [long]);
    }

    /// Whoever reads ahead waits for whoever takes.
    #[test]
    fn no_more_than_the_bound_waits() {
        let shared = Arc::new(Shared::default());
        let lines = Lines(Arc::clone(&shared));
        let one = [vec![b'x'; 1 << 20], vec![b'\n']].concat();
        let reader = thread::spawn(move || {
            let input = one.repeat(32);
            shared.read_all(&mut &input[..], 1 << 20);
        });
        let until = Instant::now() + Duration::from_secs(30);
        while lines.0.lock().bytes < LINES_BYTES {
            assert!(Instant::now() < until, "nothing is read");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(50));
        assert_eq!(lines.0.lock().bytes, LINES_BYTES);
        for _ in 0..32 {
            assert!(matches!(lines.next(Duration::from_secs(30)), Next::Line(_)));
        }
        assert!(matches!(lines.next(Duration::from_secs(30)), Next::End));
        reader.join().expect("it ends");
    }
}
