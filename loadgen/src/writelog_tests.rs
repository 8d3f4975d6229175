//! A log made by hand, cut everywhere: what a flush covers is there, what comes behind may not be.

use super::*;

const SECTOR: usize = 512;

/// What was done, one after the other: where and with what, or a flush.
enum Did {
    Write(u64, u8, u64),
    Discard(u64, u64),
    Flush,
}

struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// A disk of 16 sectors of 0xee, and this log.
    fn new(all: &[Did]) -> Made {
        let folder = tempfile::tempdir().expect("a folder");
        let made = Made { folder };
        fs::write(made.path("base"), vec![0xee; 16 * SECTOR]).expect("written");
        let mut log = vec![0; SECTOR];
        log[..8].copy_from_slice(&MAGIC.to_le_bytes());
        log[8..16].copy_from_slice(&VERSION.to_le_bytes());
        log[16..24].copy_from_slice(&(all.len() as u64).to_le_bytes());
        log[24..28].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        for did in all {
            let (sector, sectors, flags, data) = match *did {
                Did::Write(sector, fill, sectors) => (sector, sectors, 0, Some(fill)),
                Did::Discard(sector, sectors) => (sector, sectors, DISCARD, None),
                Did::Flush => (0, 0, FLUSH, None),
            };
            let mut entry = vec![0; SECTOR];
            for (place, number) in [sector, sectors, flags, 0_u64].into_iter().enumerate() {
                entry[8 * place..8 * place + 8].copy_from_slice(&number.to_le_bytes());
            }
            log.extend(entry);
            if let Some(fill) = data {
                log.extend(vec![fill; sectors as usize * SECTOR]);
            }
        }
        fs::write(made.path("log"), log).expect("written");
        made
    }

    fn open(&self) -> WriteLog {
        WriteLog::open(&self.path("log")).expect("a log")
    }

    /// The first byte of each of the first six sectors once the power was lost.
    fn cut(&self, at: u64, seed: Option<u64>) -> (Cut, Vec<u8>) {
        let (base, image) = (self.path("base"), self.path("image"));
        let cut = self.open().cut(&base, &image, at, seed).expect("cut");
        let bytes = fs::read(image).expect("read");
        let sectors = bytes.chunks(SECTOR).map(|sector| {
            assert!(
                sector.iter().all(|byte| *byte == sector[0]),
                "sectors are whole"
            );
            sector[0]
        });
        (cut, sectors.take(6).collect())
    }
}

fn example() -> Made {
    Made::new(&[
        Did::Write(0, 1, 2),
        Did::Flush,
        Did::Write(1, 2, 3),
        Did::Discard(0, 1),
        Did::Flush,
        Did::Write(2, 3, 4),
    ])
}

#[test]
fn a_cut_holds_what_was_begun_before_it() {
    let made = example();
    let ends: Vec<u64> = made.open().entries.iter().map(|entry| entry.end).collect();
    let states: [&[u8]; 7] = [
        &[0xee, 0xee, 0xee, 0xee, 0xee, 0xee],
        &[1, 1, 0xee, 0xee, 0xee, 0xee],
        &[1, 1, 0xee, 0xee, 0xee, 0xee],
        &[1, 2, 2, 2, 0xee, 0xee],
        &[0, 2, 2, 2, 0xee, 0xee],
        &[0, 2, 2, 2, 0xee, 0xee],
        &[0, 2, 3, 3, 3, 3],
    ];
    assert_eq!(made.cut(0, None).1, states[0]);
    for (end, pair) in ends.iter().zip(states.windows(2)) {
        assert_eq!(
            made.cut(end - 1, None).1,
            pair[0],
            "an entry counts as a whole"
        );
        assert_eq!(made.cut(*end, None).1, pair[1]);
    }
    let log = made.open();
    assert_eq!(log.flushes().collect::<Vec<_>>(), [ends[1], ends[4]]);
}

#[test]
fn chance_takes_what_no_flush_covers_and_nothing_else() {
    let made = example();
    let end = made.open().entries.last().expect("some").end;
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let (cut, sectors) = made.cut(end, Some(seed));
        assert_eq!(sectors[..2], [0, 2], "seed {seed}");
        let old_or_new = [2, 2, 0xee, 0xee].iter().zip(&sectors[2..]);
        assert!(old_or_new.clone().all(|(old, now)| now == old || *now == 3));
        assert_eq!(cut.durable, 3);
        assert_eq!(cut.kept + cut.torn + cut.dropped, 1);
        seen.insert(sectors);
        assert_eq!(made.cut(end, Some(seed)).0, cut, "a seed replays");
    }
    assert!(seen.len() > 8, "{seen:?}");
}

#[test]
fn what_is_no_log_is_refused() {
    let made = example();
    let whole = fs::read(made.path("log")).expect("read");
    for (at, byte) in [(0, 0), (8, 2), (24, 3), (25, 0), (512 + 15, 0xff)] {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        fs::write(made.path("log"), bytes).expect("written");
        assert!(WriteLog::open(&made.path("log")).is_err(), "byte {at}");
    }
    fs::write(made.path("log"), &whole[..whole.len() - 1]).expect("written");
    assert!(WriteLog::open(&made.path("log")).is_err(), "cut short");
}
