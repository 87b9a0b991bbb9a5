//! Tests of `pipe`, with real pipes, sockets and files.

use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::sink::{How, Output};
use super::source::DOUBLING_BYTES_MAX;
use super::*;

const MAX: usize = 64 * 1024 * 1024;

fn pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = std::io::pipe().unwrap();
    (read.into(), write.into())
}

fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap()).contains(OFlag::O_NONBLOCK)
}

fn lines(source: &mut Source, max: usize) -> Vec<Line> {
    std::iter::from_fn(|| source.next_line(max)).collect()
}

fn whole(text: &str) -> Line {
    Line::Whole(text.as_bytes().to_vec())
}

#[test]
fn lines_end_at_newlines_only() {
    let (read, write) = pipe();
    let mut write = std::fs::File::from(write);
    let mut source = Source::own(read).unwrap();
    assert_eq!(source.fill().unwrap(), Filled::WouldBlock);
    write
        .write_all("a\r\nb\u{2028}\rc\n\nrest".as_bytes())
        .unwrap();
    assert_eq!(source.fill().unwrap(), Filled::Data);
    assert!(source.has_unread());
    assert_eq!(
        lines(&mut source, MAX),
        [whole("a\r\n"), whole("b\u{2028}\rc\n"), whole("\n")]
    );
    assert_eq!(source.held_bytes(), 4);
    assert!(!source.has_unread());
    write.write_all(b" and more\nx").unwrap();
    assert_eq!(source.fill().unwrap(), Filled::Data);
    assert_eq!(
        source.fill().unwrap(),
        Filled::Data,
        "nothing is lost by an early fill"
    );
    assert_eq!(lines(&mut source, MAX), [whole("rest and more\n")]);
    drop(write);
    assert_eq!(source.fill().unwrap(), Filled::Eof);
    assert_eq!(source.fill().unwrap(), Filled::Eof);
    assert_eq!(source.rest(), Some(whole("x")));
    assert_eq!(source.rest(), None);
}

#[test]
fn shared_input_is_not_made_non_blocking_and_does_not_block() {
    let (read, mut write) = UnixStream::pair().unwrap();
    let watched = read.try_clone().unwrap();
    let mut source = Source::shared(read.into());
    assert_eq!(source.fill().unwrap(), Filled::WouldBlock);
    write.write_all(b"a\n").unwrap();
    assert_eq!(source.fill().unwrap(), Filled::Data);
    assert!(!is_nonblocking(watched.as_fd()));
    assert_eq!(source.take_unread(), b"a\n");
    assert!(!source.has_unread());
}

/// Feeds bytes through a real pipe, a piece at a time, and takes the lines.
fn feed(bytes: &[u8], piece: usize, max: usize) -> Vec<Line> {
    let (read, write) = pipe();
    let mut write = std::fs::File::from(write);
    let mut source = Source::own(read).unwrap();
    let mut found = Vec::new();
    for part in bytes.chunks(piece) {
        write.write_all(part).unwrap();
        while source.fill().unwrap() == Filled::Data {
            found.extend(lines(&mut source, max));
        }
    }
    drop(write);
    loop {
        match source.fill().unwrap() {
            Filled::Data => found.extend(lines(&mut source, max)),
            // A process that another test is just starting holds the other end for a moment.
            Filled::WouldBlock => {
                let mut fds = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::NONE).unwrap();
            }
            Filled::Eof => break,
        }
    }
    found.extend(source.rest());
    found
}

#[test]
fn the_limit_counts_the_line_without_its_newline() {
    for piece in [1, 2, 3, 100] {
        let expected = [
            whole("12345\n"),
            Line::TooLong {
                prefix: b"123456".to_vec(),
                discarded: 1,
            },
            whole("1\n"),
            Line::TooLong {
                prefix: b"abcdefg".to_vec(),
                discarded: 0,
            },
        ];
        assert_eq!(
            feed(b"12345\n123456\n1\nabcdefg", piece, 5),
            expected,
            "piece {piece}"
        );
    }
}

#[test]
fn a_line_over_the_limit_is_read_past_in_bounded_memory() {
    let max = 200_000;
    let size = 3_000_000;
    let (read, write) = pipe();
    let feeder = std::thread::spawn(move || {
        let mut line = vec![b'x'; size];
        line.extend_from_slice(b"\nnext\n");
        std::fs::File::from(write).write_all(&line).unwrap();
    });
    let mut source = Source::shared(read);
    let mut found = Vec::new();
    loop {
        match source.fill().unwrap() {
            Filled::Eof => break,
            Filled::Data => found.extend(lines(&mut source, max)),
            Filled::WouldBlock => std::thread::yield_now(),
        }
        assert!(source.held_bytes() <= max + READ_BYTES_MAX);
    }
    feeder.join().unwrap();
    let discarded = (size + 1 - PREFIX_BYTES_MAX) as u64;
    assert_eq!(
        found,
        [
            Line::TooLong {
                prefix: vec![b'x'; PREFIX_BYTES_MAX],
                discarded
            },
            whole("next\n")
        ]
    );
}

#[test]
fn a_large_line_costs_little_more_than_its_size() {
    let size = 24 * 1024 * 1024;
    let (read, write) = pipe();
    let feeder = std::thread::spawn(move || {
        let mut line = vec![b'x'; size];
        line.push(b'\n');
        std::fs::File::from(write).write_all(&line).unwrap();
    });
    let mut source = Source::shared(read);
    let line = loop {
        source.fill().unwrap();
        if let Some(line) = source.next_line(MAX) {
            break line;
        }
        let held = source.partial.len();
        assert!(
            held < DOUBLING_BYTES_MAX
                || source.partial.capacity() <= held + held / 7 + READ_BYTES_MAX
        );
    };
    feeder.join().unwrap();
    let Line::Whole(line) = line else {
        panic!("whole")
    };
    assert_eq!(line.len(), size + 1);
    assert_eq!(
        source.partial.capacity(),
        0,
        "nothing is kept after the line"
    );
}

#[test]
fn a_full_pipe_blocks_the_queue_and_nothing_else() {
    let (read, write) = pipe();
    let mut sink = Sink::own(write).unwrap();
    assert_eq!(sink.flush().unwrap(), Flushed::Done);
    let first: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    sink.push(first.clone());
    sink.push(Vec::new());
    sink.push(b"second".to_vec());
    let (start, end) = (first.len() as u64, first.len() as u64 + 6);
    assert_eq!(sink.flush().unwrap(), Flushed::Blocked);
    assert_eq!(sink.progress(0..start), Progress::Partial);
    assert_eq!(sink.progress(start..end), Progress::Untouched);
    assert_eq!(
        sink.queued_bytes() as u64,
        sink.total_pushed() - sink.total_written()
    );
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        std::fs::File::from(read).read_to_end(&mut all).unwrap();
        all
    });
    while sink.flush().unwrap() == Flushed::Blocked {
        std::thread::yield_now();
    }
    assert_eq!(sink.progress(start..end), Progress::Whole);
    assert!(sink.is_empty());
    sink.close();
    assert_eq!(sink.flush().unwrap(), Flushed::Broken);
    assert_eq!(
        reader.join().unwrap(),
        [first.as_slice(), b"second"].concat()
    );
}

#[test]
fn a_reader_that_is_gone_is_not_an_error() {
    let (read, write) = pipe();
    let mut sink = Sink::own(write).unwrap();
    drop(read);
    sink.push(b"line\n".to_vec());
    assert_eq!(sink.flush().unwrap(), Flushed::Broken);
    assert_eq!(sink.progress(0..5), Progress::Untouched);
    sink.push(b"later\n".to_vec());
    assert_eq!(
        (
            sink.queued_bytes(),
            sink.total_pushed(),
            sink.total_written()
        ),
        (0, 11, 0)
    );
}

#[test]
fn a_shared_pipe_is_opened_again_and_keeps_one_writer() {
    let (read, write) = pipe();
    let witness = write.try_clone().unwrap();
    let mut sink = Sink::shared(write).unwrap();
    assert_eq!(sink.how, How::Write);
    assert!(!is_nonblocking(witness.as_fd()));
    drop(witness);
    sink.push(vec![7; 1 << 20]);
    assert_eq!(sink.flush().unwrap(), Flushed::Blocked);
    sink.close();
    let mut all = Vec::new();
    std::fs::File::from(read).read_to_end(&mut all).unwrap();
    assert_eq!(
        all.len() as u64,
        sink.total_written(),
        "the reader sees the end"
    );
}

#[test]
fn a_shared_socket_is_sent_to_without_blocking() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let witness = ours.try_clone().unwrap();
    let mut sink = Sink::shared(ours.into()).unwrap();
    assert_eq!(sink.how, How::Send);
    sink.push(b"a".to_vec());
    sink.push(vec![b'b'; 4 << 20]);
    assert_eq!(sink.flush().unwrap(), Flushed::Blocked);
    assert!(!is_nonblocking(witness.as_fd()));
    let mut first = [0; 2];
    theirs.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"ab");
    drop(theirs);
    assert_eq!(sink.flush().unwrap(), Flushed::Broken);
}

#[test]
fn a_blocking_pipe_that_cannot_be_opened_again_is_written_with_care() {
    let (read, write) = pipe();
    let mut sink = Sink::new(Output::Own(write), How::Cautious);
    sink.push(vec![1; 1 << 20]);
    assert_eq!(sink.flush().unwrap(), Flushed::Blocked);
    assert!(sink.total_written() > 0);
    drop(read);
    assert_eq!(sink.flush().unwrap(), Flushed::Broken);
}

#[test]
fn a_file_keeps_its_offset() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before\n").unwrap();
    let mut sink = Sink::shared(file.try_clone().unwrap().into()).unwrap();
    sink.push(b"after\n".to_vec());
    assert_eq!(sink.flush().unwrap(), Flushed::Done);
    let mut all = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut all).unwrap();
    assert_eq!(all, "before\nafter\n");
}

/// What `feed` must find, said in the simplest way.
fn split(bytes: &[u8], max: usize) -> Vec<Line> {
    let judge = |line: &[u8]| {
        let length = line.strip_suffix(b"\n").map_or(line.len(), <[u8]>::len);
        if length <= max {
            return Line::Whole(line.to_vec());
        }
        let prefix = line[..length.min(PREFIX_BYTES_MAX)].to_vec();
        let discarded = (line.len() - prefix.len()) as u64;
        Line::TooLong { prefix, discarded }
    };
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(judge)
        .collect()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn lines_do_not_depend_on_how_they_arrive(text in "[ab\r\n]{0,300}", piece in 1usize..40, max in 0usize..12) {
        proptest::prop_assert_eq!(feed(text.as_bytes(), piece, max), split(text.as_bytes(), max));
    }
}
