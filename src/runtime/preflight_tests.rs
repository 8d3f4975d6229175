//! What the kernel must know of io_uring, asked of this one and of kernels that lack something.

use super::{OPERATIONS, io_uring, operations};

/// this kernel has all; one without an operation is refused by the operation's name, with the
/// mend; one that cannot even be asked lacks them all.
#[test]
fn an_operation_that_the_kernel_does_not_know_is_named() {
    assert!(io_uring().is_ok(), "{:?}", io_uring());
    for (code, name) in OPERATIONS {
        let said = operations(|asked| asked != code).unwrap_err().to_string();
        for word in ["io_uring", &format!("no {name}"), "mend: use Linux 5.8"] {
            assert!(said.contains(word), "no `{word}` in: {said}");
        }
    }
    let said = operations(|_| false).unwrap_err().to_string();
    let named = |(_, name): &(u8, &str)| said.contains(name);
    assert!(OPERATIONS.iter().all(named), "{said}");
}
