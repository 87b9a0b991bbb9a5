//! Reading: from a descriptor to lines.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::{is_ready, set_nonblocking};

/// How much one [`Source::fill`] reads at most, in bytes: the size of a pipe on Linux.
pub const READ_BYTES_MAX: usize = 64 * 1024;

/// How much of a line over the limit is kept, in bytes, so that its id can be looked for.
pub const PREFIX_BYTES_MAX: usize = 64 * 1024;

/// Above this, a partial line grows by an eighth and not twofold, so that it costs its own size.
pub(super) const DOUBLING_BYTES_MAX: usize = 1024 * 1024;

/// What [`Source::fill`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// Bytes are there; call [`Source::next_line`] until it returns `None`.
    Data,
    /// Nothing to read now.
    WouldBlock,
    /// The other side has closed; [`Source::rest`] has what it left without a newline.
    Eof,
}

/// One line of a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// The bytes up to and with the `\n` (without one only from [`Source::rest`]).
    Whole(Vec<u8>),
    /// The line was longer than the limit and has been read past.
    TooLong {
        /// Its first bytes, [`PREFIX_BYTES_MAX`] at most.
        prefix: Vec<u8>,
        /// How many bytes came after the prefix, the `\n` included.
        discarded: u64,
    },
}

impl Line {
    /// How many bytes of it are in memory.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        match self {
            Self::Whole(bytes) | Self::TooLong { prefix: bytes, .. } => bytes.len(),
        }
    }
}

/// Where a [`Source`] reads.
#[derive(Debug)]
enum Input {
    /// A non-blocking end that only we have.
    Own(OwnedFd),
    /// A description that others may share; it may be blocking, so it is polled before each read.
    Shared(OwnedFd),
    /// Our standard input, which is shared in the same sense.
    Stdin(io::Stdin),
}

/// A reader that splits into lines and never blocks.
///
/// `fill` and `next_line` alternate: `fill` reads once, `next_line` is called until it returns
/// `None`. A caller that stops half-way (its other side is full) just goes on later; until then
/// [`Source::has_unread`] is true and `fill` does nothing.
#[derive(Debug)]
pub struct Source {
    from: Input,
    /// What the last read brought; `unread` is the part that no line has taken yet.
    read: Box<[u8]>,
    unread: std::ops::Range<usize>,
    /// The begun line, without any `\n`.
    pub(super) partial: Vec<u8>,
    /// While a line over the limit is read past: how many bytes beyond `partial` went away.
    discarded: Option<u64>,
    /// The last bytes of what is read past: several SDKs write the id at the end.
    tail: Vec<u8>,
    is_at_eof: bool,
    /// The caller's `poll(2)` has just said that a read won't block.
    is_announced: bool,
    /// The last read brought as much as it could: more may be there.
    was_full: bool,
}

/// How much of the end of a line over the limit is kept, in bytes.
const TAIL_BYTES_MAX: usize = 4 * 1024;

impl Source {
    /// Reads a descriptor whose open file description is ours alone, and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// The descriptor's flags can't be changed.
    pub fn own(fd: OwnedFd) -> io::Result<Self> {
        set_nonblocking(fd.as_fd())?;
        Ok(Self::new(Input::Own(fd)))
    }

    /// Reads a descriptor whose open file description others may share; its flags are left alone.
    #[must_use]
    pub fn shared(fd: OwnedFd) -> Self {
        Self::new(Input::Shared(fd))
    }

    /// Reads our standard input; nothing else in the process may read it.
    #[must_use]
    pub fn stdin() -> Self {
        Self::new(Input::Stdin(io::stdin()))
    }

    fn new(from: Input) -> Self {
        Self {
            from,
            read: vec![0; READ_BYTES_MAX].into_boxed_slice(),
            unread: 0..0,
            partial: Vec::new(),
            discarded: None,
            tail: Vec::new(),
            is_at_eof: false,
            is_announced: false,
            was_full: false,
        }
    }

    /// Spares the next [`Source::fill`] its look whether the descriptor is readable: the caller's
    /// `poll(2)` has just said so.
    pub fn announce(&mut self) {
        self.is_announced = true;
    }

    /// Whether the last read was as large as a read can be, so that more may be there. A shorter
    /// one has emptied the pipe.
    #[must_use]
    pub fn was_full(&self) -> bool {
        self.was_full
    }

    /// Reads once, if all that was read before has been taken.
    ///
    /// A peer that vanished (`EIO` of a hung-up terminal, `ECONNRESET`) is an end like any other.
    ///
    /// # Errors
    ///
    /// What `read(2)` says, apart from the above and from interruptions, which are no data yet.
    pub fn fill(&mut self) -> io::Result<Filled> {
        if self.has_unread() {
            return Ok(Filled::Data);
        }
        if self.is_at_eof {
            return Ok(Filled::Eof);
        }
        let fd = match &self.from {
            Input::Own(fd) => fd.as_fd(),
            Input::Shared(fd) => fd.as_fd(),
            Input::Stdin(stdin) => stdin.as_fd(),
        };
        // A read that has been announced can't block, one that has not could for ever.
        let is_announced = std::mem::take(&mut self.is_announced);
        let is_own = matches!(self.from, Input::Own(_));
        self.was_full = false;
        if !is_own && !is_announced && !is_ready(fd, PollFlags::POLLIN)? {
            return Ok(Filled::WouldBlock);
        }
        match nix::unistd::read(fd, &mut self.read) {
            Ok(0) | Err(Errno::EIO | Errno::ECONNRESET) => {
                self.is_at_eof = true;
                Ok(Filled::Eof)
            }
            Ok(count) => {
                self.unread = 0..count;
                self.was_full = count == self.read.len();
                Ok(Filled::Data)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Filled::WouldBlock),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next line, if its end has been read.
    ///
    /// `max` limits a line in bytes without its `\n`. Past it nothing is kept but the prefix.
    pub fn next_line(&mut self, max: usize) -> Option<Line> {
        if self.unread.is_empty() {
            return None;
        }
        let new = &self.read[self.unread.clone()];
        let Some(at) = memchr::memchr(b'\n', new) else {
            let all = self.unread.clone();
            self.append(all, max);
            self.unread = 0..0;
            return None;
        };
        let end = self.unread.start + at;
        let line = self.unread.start..end + 1;
        self.unread.start = end + 1;
        if self.partial.is_empty() && self.discarded.is_none() && at <= max {
            return Some(Line::Whole(self.read[line].to_vec()));
        }
        // The newline does not count, so that a line of exactly `max` bytes is whole.
        self.append(line.start..end, max);
        if self.discarded.is_none() {
            self.partial.push(b'\n');
        }
        self.discarded = self.discarded.map(|count| count + 1);
        Some(self.take_partial())
    }

    /// Takes what is left after the end of input: a line without `\n`, or nothing.
    ///
    /// Meaningful once `fill` has returned [`Filled::Eof`] and `next_line` has returned `None`.
    pub fn rest(&mut self) -> Option<Line> {
        if self.partial.is_empty() && self.discarded.is_none() {
            return None;
        }
        Some(self.take_partial())
    }

    /// Takes all that has been read as it is, for a stream that has no lines.
    ///
    /// Not to be mixed with `next_line` on one source.
    pub fn take_unread(&mut self) -> &[u8] {
        let all = std::mem::take(&mut self.unread);
        &self.read[all]
    }

    /// Takes the last bytes, 4 KiB at most, of the last [`Line::TooLong`]; they may
    /// overlap its prefix.
    pub fn take_tail(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.tail)
    }

    /// Whether bytes have been read that no line has taken: call `next_line` before polling.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// How many bytes are held: the begun line, and what has been read and not been taken.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.partial.len() + self.unread.len()
    }

    /// Whether the end of input has been read.
    #[must_use]
    pub fn is_at_eof(&self) -> bool {
        self.is_at_eof
    }

    /// Adds a piece without `\n` to the begun line, or to what is discarded of it.
    fn append(&mut self, piece: std::ops::Range<usize>, max: usize) {
        let piece = &self.read[piece];
        if self.discarded.is_some() {
            keep_last(&mut self.tail, piece);
        }
        if let Some(count) = &mut self.discarded {
            // A limit below the prefix's size must not make the prefix depend on the reads' sizes.
            let room = PREFIX_BYTES_MAX.saturating_sub(self.partial.len());
            let kept = piece.len().min(room);
            self.partial.extend_from_slice(&piece[..kept]);
            *count += (piece.len() - kept) as u64;
            return;
        }
        if self.partial.len() + piece.len() > max {
            let kept_bytes = self.partial.len() + piece.len();
            // The prefix is copied, so that the long line's memory is given back now.
            let mut prefix = Vec::with_capacity(kept_bytes.min(PREFIX_BYTES_MAX));
            for part in [self.partial.as_slice(), piece] {
                let room = PREFIX_BYTES_MAX - prefix.len();
                prefix.extend_from_slice(&part[..part.len().min(room)]);
            }
            self.tail.clear();
            let from = self.partial.len().saturating_sub(TAIL_BYTES_MAX);
            keep_last(&mut self.tail, &self.partial[from..]);
            keep_last(&mut self.tail, piece);
            self.discarded = Some((kept_bytes - prefix.len()) as u64);
            self.partial = prefix;
            return;
        }
        reserve(&mut self.partial, piece.len() + 1);
        self.partial.extend_from_slice(piece);
    }

    fn take_partial(&mut self) -> Line {
        let bytes = std::mem::take(&mut self.partial);
        match self.discarded.take() {
            None => Line::Whole(bytes),
            Some(discarded) => Line::TooLong {
                prefix: bytes,
                discarded,
            },
        }
    }
}

/// The descriptor to poll for `POLLIN`, until [`Filled::Eof`]: after it, polling would not wait.
impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.from {
            Input::Own(fd) | Input::Shared(fd) => fd.as_fd(),
            Input::Stdin(stdin) => stdin.as_fd(),
        }
    }
}

/// Adds bytes and keeps the last [`TAIL_BYTES_MAX`] of all.
fn keep_last(tail: &mut Vec<u8>, piece: &[u8]) {
    let piece = &piece[piece.len().saturating_sub(TAIL_BYTES_MAX)..];
    let over = (tail.len() + piece.len()).saturating_sub(TAIL_BYTES_MAX);
    tail.drain(..over.min(tail.len()));
    tail.extend_from_slice(piece);
}

/// Makes room for `more` bytes; a large line grows by an eighth, so its time stays linear.
fn reserve(bytes: &mut Vec<u8>, more: usize) {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() {
        return;
    }
    if needed < DOUBLING_BYTES_MAX {
        bytes.reserve(more);
    } else {
        bytes.reserve_exact(more.max(bytes.capacity() / 8));
    }
}
