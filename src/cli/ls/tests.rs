use super::super::golden::assert_golden;
use super::super::view::tests::{MOMENT, entry};
use super::*;

fn now() -> Time {
    Time(MOMENT.0 + 200_000_000)
}

/// One entry of each sort that people tell apart.
fn entries() -> Vec<EntryView> {
    let mut doubt = entry(8);
    doubt.status = Status::Pending;
    doubt.in_doubt = true;
    doubt.completed_at = None;
    doubt.delivered_at = None;
    doubt.is_error = None;
    doubt.provenance = None;
    doubt.note = Some("process 4121 gone".to_owned());
    let mut running = doubt.clone();
    running.seq = 9;
    running.in_doubt = false;
    running.running = true;
    running.call_id = None;
    running.note = None;
    let mut failed = entry(7);
    failed.status = Status::Failed;
    failed.is_error = None;
    failed.delivered_at = None;
    failed.attempt = 2;
    let mut synthetic = entry(10);
    synthetic.tool = "send\u{1b}[2J\nmail".to_owned();
    synthetic.is_error = Some(true);
    synthetic.quarantined = true;
    synthetic.provenance = Some("operator".to_owned());
    synthetic.completed_at = Some(Time(MOMENT.0 + 12_340_000));
    vec![running, doubt, synthetic, failed]
}

fn listing_of(entries: impl IntoIterator<Item = EntryView>, limit: usize) -> Listing {
    let mut listing = Listing::new(limit);
    for entry in entries {
        listing.add(entry);
    }
    listing.finish();
    listing
}

fn listing(limit: usize) -> Listing {
    listing_of(entries(), limit)
}

#[test]
fn a_table_for_pipes() {
    assert_golden("cli/ls-pipe.txt", &render(&listing(0), &Look::PIPE, now()));
}

#[test]
fn a_table_for_a_terminal() {
    use super::super::output::Times;
    let look = Look {
        colour: false,
        width: Some(80),
        times: Times::Since(now()),
    };
    let text = render(&listing(3), &look, now());
    assert_golden("cli/ls-terminal.txt", &text);
    let table: Vec<&str> = text.lines().collect();
    for line in &table[..table.len() - 1] {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    let colour = Look {
        colour: true,
        ..look
    };
    let painted = render(&listing(3), &colour, now());
    assert!(painted.contains('\u{1b}'));
    assert_eq!(anstream::adapter::strip_str(&painted).to_string(), text);
}

#[test]
fn a_document_for_programs() {
    let (output, listing) = (Output::plain(), listing(0));
    let document = output.long_document("entries");
    let text = document.last_piece(&listing.entries, &listing).unwrap();
    assert_golden("cli/ls.json", &text);
}

#[test]
fn an_empty_journal_is_counted_too() {
    let empty = listing_of([], 100);
    assert_eq!(render(&empty, &Look::PIPE, now()), "0 entries\n");
    assert!(next_step(&empty, Path::new("j"), &|_| None).is_none());
}

#[test]
fn workflows_and_branches_are_told_apart_where_there_are_several() {
    let mut other = entry(1);
    other.workflow_id = "w2".to_owned();
    other.branch = 1;
    let listing = listing_of([other, entry(1)], 0);
    let text = render(&listing, &Look::PIPE, now());
    assert!(text.starts_with("WORKFLOW   BRANCH  SEQ  STATUS"), "{text}");
    assert_eq!(listing.entries[0].workflow_id, "/w/run.db");
}

#[test]
fn the_limit_keeps_the_newest_and_counts_all() {
    let many = (1..=500).map(|seq| {
        let mut entry = entry(seq);
        // The newest are the last that were reserved, whatever their clocks said.
        entry.created_at = Time(MOMENT.0 - i64::try_from(seq).unwrap());
        entry
    });
    let listing = listing_of(many, 2);
    let seqs: Vec<u64> = listing.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [499, 500]);
    assert_eq!((listing.counts.matched, listing.counts.shown), (500, 2));
    assert_eq!(
        listing.counts.line(),
        "500 entries: 500 completed (the newest 2 are shown; --limit 0 shows all)"
    );
}

#[test]
fn a_doubt_is_pointed_at() {
    assert_eq!(
        next_step(&listing(0), Path::new("pay.db"), &|_| None).unwrap(),
        "1 call is in doubt; see `checkpoint show 8 --journal pay.db`"
    );
}
