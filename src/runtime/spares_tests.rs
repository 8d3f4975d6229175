//! Spares on a real file system: zeroed ahead, provided by rename, taken back, zeroed again.

use super::*;

const SEGMENT: u64 = 1 << 20;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        // Beside the test's executable, which lies on a disk: direct I/O wants one.
        let executable = std::env::current_exe().unwrap();
        let directory = tempfile::tempdir_in(executable.parent().unwrap()).unwrap();
        fs::create_dir(directory.path().join("log")).unwrap();
        Place { directory }
    }

    fn spares(&self) -> Spares {
        Spares::open(&self.directory.path().join("spare"), SEGMENT, 1).unwrap()
    }

    fn segment(&self, name: &str) -> PathBuf {
        self.directory.path().join("log").join(name)
    }
}

fn is_zero(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap();
    bytes.len() as u64 == SEGMENT && bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn files_are_ready_before_they_are_needed_and_survive_a_restart() {
    let place = Place::new();
    let spares = place.spares();
    spares.prepare(Duration::from_secs(10)).unwrap();
    assert_eq!(spares.ready(), limits::SPARES_PER_LOG);
    let again = place.spares();
    assert_eq!(again.ready(), limits::SPARES_PER_LOG);
    again.provide(&place.segment("a")).unwrap();
    assert!(is_zero(&place.segment("a")));
    assert_eq!(again.provided_ready.load(Ordering::Relaxed), 1);
}

#[test]
fn an_empty_pool_provides_all_the_same() {
    let place = Place::new();
    let spares = place.spares();
    spares.provide(&place.segment("a")).unwrap();
    assert!(is_zero(&place.segment("a")));
    assert_eq!(spares.provided_cold.load(Ordering::Relaxed), 1);
}

#[test]
fn a_file_that_was_used_is_zeros_when_it_comes_again() {
    let place = Place::new();
    let spares = place.spares();
    for provided in ["from a dirty file", "zeroed by the thread"] {
        let path = place.segment("a");
        spares.provide(&path).unwrap();
        assert!(is_zero(&path), "{provided}");
        fs::write(&path, vec![7; SEGMENT as usize]).unwrap();
        spares.reclaim(&path).unwrap();
        assert!(!path.exists());
    }
    spares.prepare(Duration::from_secs(10)).unwrap();
    for name in ["a", "b", "c"] {
        spares.provide(&place.segment(name)).unwrap();
        assert!(is_zero(&place.segment(name)));
    }
}

#[test]
fn no_file_is_ever_replaced() {
    let place = Place::new();
    let spares = place.spares();
    let path = place.segment("a");
    fs::write(&path, "precious").unwrap();
    spares.provide(&path).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}
