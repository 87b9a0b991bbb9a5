//! A VFS between SQLite and the system's: it writes down every operation on this thread, and
//! makes the one fail that it is told to. It is the default one in this process, so that the
//! journal code that ships runs on it without knowing.

#![expect(
    unsafe_code,
    reason = "SQLite's VFS is a C interface; this crate is a test"
)]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use rusqlite::ffi;

/// One operation, as the disk would see it.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A file was opened that was not there.
    Create(String),
    Write(String, u64, Vec<u8>),
    Truncate(String, u64),
    Sync(String),
    /// A sync failed: the pages that it was to write are gone for the disk, and the page cache
    /// takes them for written.
    SyncFailed(String),
    Delete(String, bool),
    /// Something that changes nothing on the disk.
    Other,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Writes and truncations say EIO, syncs fail and drop the pages.
    Io,
    /// Writes say that the disk is full.
    Full,
    /// Reads fall short.
    Read,
}

#[derive(Default)]
pub(crate) struct Record {
    pub(crate) ops: Vec<Op>,
    pub(crate) is_on: bool,
    /// From which operation on what fails, and whether it goes on failing.
    pub(crate) failure: Option<(usize, Failure, bool)>,
    pub(crate) failed: usize,
    count: usize,
}

thread_local! {
    static RECORD: RefCell<Record> = RefCell::default();
}

/// Begins a record on this thread.
pub(crate) fn begin(failure: Option<(usize, Failure, bool)>) {
    RECORD.set(Record {
        is_on: true,
        failure,
        ..Record::default()
    });
}

/// Returns how many operations there have been.
pub(crate) fn count() -> usize {
    RECORD.with_borrow(|record| record.ops.len())
}

/// Ends the record and returns it.
pub(crate) fn end() -> Record {
    RECORD.take()
}

fn note(op: Op) {
    RECORD.with_borrow_mut(|record| {
        if record.is_on {
            record.ops.push(op);
        }
    });
}

/// Whether this operation, which `kind` can spoil, is to fail.
fn fails(kinds: &[Failure]) -> Option<Failure> {
    RECORD.with_borrow_mut(|record| {
        let (at, failure, is_sticky) = record.failure?;
        if !record.is_on || !kinds.contains(&failure) {
            return None;
        }
        let number = record.count;
        record.count += 1;
        let hits = number == at || (is_sticky && number > at);
        record.failed += usize::from(hits);
        hits.then_some(failure)
    })
}

#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    real: *mut ffi::sqlite3_file,
    /// A leaked name: there are few, and the process is short.
    name: *const String,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

fn real_vfs(vfs: *mut ffi::sqlite3_vfs) -> *mut ffi::sqlite3_vfs {
    // SAFETY: `install` put the system's VFS there, which lives as long as the process.
    unsafe { (*vfs).pAppData.cast() }
}

fn parts(file: *mut ffi::sqlite3_file) -> (*mut ffi::sqlite3_file, String) {
    // SAFETY: SQLite hands back the file that `open` filled in.
    unsafe {
        let file = file.cast::<File>();
        ((*file).real, (*(*file).name).clone())
    }
}

macro_rules! real {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        let (real, _) = parts($file);
        // SAFETY: the system's VFS filled in its methods when it opened the file.
        unsafe { (*(*real).pMethods).$method.expect("the method is there")(real $(, $argument)*) }
    }};
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let real_vfs = real_vfs(vfs);
    let text = if name.is_null() {
        String::new()
    } else {
        // SAFETY: SQLite's names end in a NUL.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    };
    let was_there = std::fs::exists(&text).unwrap_or(false);
    // SAFETY: SQLite allotted `szOsFile` bytes, which hold ours and the system's.
    unsafe {
        let ours = file.cast::<File>();
        let real = file
            .cast::<u8>()
            .add(size_of::<File>())
            .cast::<ffi::sqlite3_file>();
        (*ours).base.pMethods = std::ptr::null();
        let code =
            (*real_vfs).xOpen.expect("it opens files")(real_vfs, name, real, flags, out_flags);
        if code != ffi::SQLITE_OK {
            return code;
        }
        (*ours).real = real;
        (*ours).name = Box::leak(Box::new(text.clone()));
        (*ours).base.pMethods = &raw const METHODS;
    }
    note(if was_there {
        Op::Other
    } else {
        Op::Create(text)
    });
    ffi::SQLITE_OK
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    note(Op::Other);
    real!(file, xClose)
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    bytes: c_int,
    at: i64,
) -> c_int {
    if fails(&[Failure::Read]).is_some() {
        return ffi::SQLITE_IOERR_READ;
    }
    real!(file, xRead, into, bytes, at)
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    bytes: c_int,
    at: i64,
) -> c_int {
    match fails(&[Failure::Io, Failure::Full]) {
        Some(Failure::Full) => return ffi::SQLITE_FULL,
        Some(_) => return ffi::SQLITE_IOERR_WRITE,
        None => {}
    }
    let code = real!(file, xWrite, from, bytes, at);
    if code == ffi::SQLITE_OK {
        // SAFETY: SQLite gives as many bytes as it says.
        let data = unsafe {
            std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(bytes).unwrap_or(0))
        };
        let at = u64::try_from(at).unwrap_or(0);
        note(Op::Write(parts(file).1, at, data.to_vec()));
    }
    code
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    if fails(&[Failure::Io]).is_some() {
        return ffi::SQLITE_IOERR_TRUNCATE;
    }
    let code = real!(file, xTruncate, size);
    if code == ffi::SQLITE_OK {
        note(Op::Truncate(
            parts(file).1,
            u64::try_from(size).unwrap_or(0),
        ));
    }
    code
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    if fails(&[Failure::Io]).is_some() {
        note(Op::SyncFailed(parts(file).1));
        return ffi::SQLITE_IOERR_FSYNC;
    }
    let code = real!(file, xSync, flags);
    if code == ffi::SQLITE_OK {
        note(Op::Sync(parts(file).1));
    }
    code
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    real!(file, xFileSize, size)
}
unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    real!(file, xLock, level)
}
unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    real!(file, xUnlock, level)
}
unsafe extern "C" fn check_reserved_lock(
    file: *mut ffi::sqlite3_file,
    is_held: *mut c_int,
) -> c_int {
    real!(file, xCheckReservedLock, is_held)
}
unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    what: c_int,
    argument: *mut c_void,
) -> c_int {
    real!(file, xFileControl, what, argument)
}
unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    real!(file, xSectorSize)
}
unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    real!(file, xDeviceCharacteristics)
}
unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    size: c_int,
    extends: c_int,
    into: *mut *mut c_void,
) -> c_int {
    real!(file, xShmMap, region, size, extends, into)
}
unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    real!(file, xShmLock, offset, count, flags)
}
unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    real!(file, xShmBarrier)
}
unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, deletes: c_int) -> c_int {
    real!(file, xShmUnmap, deletes)
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    syncs_folder: c_int,
) -> c_int {
    if fails(&[Failure::Io]).is_some() {
        return ffi::SQLITE_IOERR_DELETE;
    }
    let real_vfs = real_vfs(vfs);
    // SAFETY: as SQLite called us, so the system's VFS may be called.
    let code =
        unsafe { (*real_vfs).xDelete.expect("it deletes files")(real_vfs, name, syncs_folder) };
    if code == ffi::SQLITE_OK {
        // SAFETY: SQLite's names end in a NUL.
        let text = unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned();
        note(Op::Delete(text, syncs_folder != 0));
    }
    code
}

/// Makes this VFS the default one of the process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the system's VFS is copied, so that all but two of its functions are its own
        // and get the system's own data where they need it; both live as long as the process.
        unsafe {
            let real = ffi::sqlite3_vfs_find(std::ptr::null());
            let mut ours = *real;
            ours.szOsFile += c_int::try_from(size_of::<File>()).expect("a small number");
            ours.pNext = std::ptr::null_mut();
            ours.zName = c"recording".as_ptr();
            ours.pAppData = real.cast();
            ours.xOpen = Some(open);
            ours.xDelete = Some(delete);
            ours.xAccess = Some(access);
            ours.xFullPathname = Some(full_pathname);
            assert_eq!(
                ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 1),
                ffi::SQLITE_OK
            );
        }
    });
}

// The system's functions read their own `pAppData`.
unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let real = real_vfs(vfs);
    // SAFETY: as SQLite called us.
    unsafe { (*real).xAccess.expect("it looks")(real, name, flags, out) }
}
unsafe extern "C" fn full_pathname(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    bytes: c_int,
    out: *mut c_char,
) -> c_int {
    let real = real_vfs(vfs);
    // SAFETY: as SQLite called us.
    unsafe { (*real).xFullPathname.expect("it names")(real, name, bytes, out) }
}
