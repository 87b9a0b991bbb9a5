//! Reads what the first 100 bytes of an SQLite file say, without SQLite.
//!
//! SQLite itself may change a file by looking at it (it rolls back a left transaction, and makes
//! a database out of an empty file). So what must be refused is told from the plain bytes.
//!
//! Pure: bytes in, values out.
//!
//! Source: SQLite "Database File Format", sections 1.3 and 4.1.

/// The size of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 100;

/// The size in bytes of a write-ahead log that holds no frame.
pub(crate) const WAL_HEADER_BYTES: u64 = 32;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// What the header of an SQLite file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The size of a page in bytes, 512 to 65,536.
    pub(crate) page_bytes: u32,
    /// The number of pages; `None` where a very old writer left a number that does not count.
    pub(crate) pages: Option<u32>,
    /// Bytes 18 and 19: 1 and 1 in rollback mode, 2 and 2 in WAL mode.
    pub(crate) versions: [u8; 2],
    /// Whose format it is.
    pub(crate) application_id: u32,
    /// The version of the schema.
    pub(crate) user_version: i32,
}

/// Why bytes are not a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// There is no byte at all.
    Empty,
    /// The bytes begin as a header does, and end too early.
    Short,
    /// The bytes are of another format.
    Foreign,
    /// It is a header that no writer of SQLite makes.
    Damaged(String),
}

impl Header {
    /// Returns what `bytes`, the first (at most 100) bytes of a file, say.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, NoHeader> {
        if bytes.is_empty() {
            return Err(NoHeader::Empty);
        }
        let magic_bytes = bytes.len().min(MAGIC.len());
        if bytes[..magic_bytes] != MAGIC[..magic_bytes] {
            return Err(NoHeader::Foreign);
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(NoHeader::Short);
        };
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let page_bytes = match u32::from(u16::from_be_bytes([header[16], header[17]])) {
            1 => 65_536,
            size if size.is_power_of_two() && size >= 512 => size,
            size => return Err(NoHeader::Damaged(format!("its page size is {size}"))),
        };
        let versions = [header[18], header[19]];
        if versions != [1, 1] && versions != [2, 2] {
            return Err(NoHeader::Damaged(format!(
                "its format versions are {} and {}",
                versions[0], versions[1]
            )));
        }
        if header[21..24] != [64, 32, 32] {
            return Err(NoHeader::Damaged("its payload fractions are wrong".into()));
        }
        // The count is only meant where the change counter equals the one noted beside it.
        let pages = (word(24) == word(92) && word(28) > 0).then(|| word(28));
        Ok(Self {
            page_bytes,
            pages,
            versions,
            application_id: word(68),
            user_version: word(60).cast_signed(),
        })
    }

    /// Returns whether the file says that it is in WAL mode.
    pub(crate) fn is_wal(&self) -> bool {
        self.versions == [2, 2]
    }

    /// Returns the size in bytes that the file must at least have, given its size.
    pub(crate) fn size_min_bytes(&self, size_bytes: u64) -> u64 {
        let page_bytes = u64::from(self.page_bytes);
        match self.pages {
            Some(pages) => u64::from(pages) * page_bytes,
            None => size_bytes.next_multiple_of(page_bytes),
        }
    }
}
