//! Memory is told from a disk.

use super::*;

#[test]
fn memory_is_no_disk() {
    // Every Linux with POSIX shared memory has this one.
    let memory = Path::new("/dev/shm");
    assert_eq!(memory_file_system(memory).unwrap(), Some("tmpfs"));
    let disk = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(memory_file_system(disk).unwrap(), None);
    assert!(memory_file_system(Path::new("/no/such/directory")).is_err());
}
