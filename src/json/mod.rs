//! JSON read as bytes: what is legal, where each member stands, what two texts mean.
//!
//! The guarantee of the proxy rests on reading a line exactly as any upstream may read it. Common
//! parsers refuse legal JSON (lone surrogates, `1e400`, deep nesting), round numbers and keep one
//! of two equal members without a word. This room does none of that.
//!
//! Invariants:
//!
//! - Nothing here recurses: depth is bounded by the length of the text alone.
//! - Nothing here panics on any bytes. Functions that say 'checked' are exact on text that
//!   [`check`] has passed, and best effort on anything else.
//! - Time is linear in the length of the text (and `n log n` in the members of one object).
//! - Values are slices of the text they came from. Strings decode to WTF-8, so that lone
//!   surrogates stay apart.
//!
//! It must not know what a message is, and it does no I/O.

mod canonical;
mod check;
mod diff;
mod members;
mod number;
mod outline;
mod scan;
mod splice;
mod text;

pub use canonical::{Duplicate, canonical, canonical_text, find_duplicate};
pub use check::{Invalid, check};
pub use diff::diff;
pub use members::{
    Elements, Member, Members, is_object, is_whole, kind, last_member, member, trim,
};
pub use members::{Kind, tolerant_members};
pub use number::{number_key, plain_integer};
pub use outline::POINTER_BYTES_MAX;
pub use splice::{remove_byte_order_mark, replace, set};
pub use text::{quote, quote_bytes, string, text};
