//! How a checker says what it found: a panic with a named verdict.
//!
//! The form is `verdict: NAME after N images: DETAILS (WHERE)`, on a line of its own;
//! `scripts/mutants` looks for it. N counts the post-crash images examined by this test so far,
//! WHERE is what replays the case. Read `model.rs` for what is checked.

use std::cell::{Cell, RefCell};
use std::fmt::Arguments;

thread_local! {
    static IMAGES: Cell<u64> = const { Cell::new(0) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Gives a verdict: the engine did what it must never do.
macro_rules! verdict {
    ($name:ident, $($details:tt)*) => {
        $crate::verdict::give(stringify!($name), format_args!($($details)*))
    };
}
pub(crate) use verdict;

/// Ends the test with a verdict.
pub fn give(name: &str, details: Arguments<'_>) -> ! {
    let images = images();
    let place = PLACE.with_borrow(Clone::clone);
    panic!("verdict: {name} after {images} images: {details} ({place})")
}

/// One more image is examined.
pub fn count_image() {
    IMAGES.set(IMAGES.get() + 1);
}

/// Images examined by this test so far.
pub fn images() -> u64 {
    IMAGES.get()
}

/// Says where the test is, for verdicts to come.
pub fn place(text: String) {
    PLACE.set(text);
}
