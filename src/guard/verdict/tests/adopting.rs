use super::*;
use crate::guard::stale::{KIND, Wanted, detail};

/// What is adopted is what was seen: who has decided otherwise in between has won.
#[test]
fn an_answer_is_adopted_only_on_the_entry_that_was_seen() {
    let (mut journal, entry) = doubt();
    let ruled = done(act(&mut journal, &entry, &forced(completed()), LIVE));
    let mut tx = journal.begin(Durability::Power).unwrap();
    let late = Event {
        kind: KIND.to_owned(),
        at: Micros(40),
        entry: Some((entry.branch, entry.seq)),
        fence: Some(entry.fence),
        session: None,
        letter: None,
        detail: Some(detail(Status::Completed, b"{\"late\":1.0}", true)),
        merge_key: None,
    };
    tx.event(&late).unwrap();
    tx.commit().unwrap();
    let adopt = |seen| Act::Adopt {
        wanted: Wanted {
            status: Status::Completed,
            digest: String::new(),
        },
        forces: false,
        seen,
    };
    for (seen, expected) in [
        (Some(entry.fence), Refused::Changed),
        (
            None,
            Refused::NotNow {
                was: Status::Completed,
                why: "so there is a verdict to take back; name its seq alone to do that",
            },
        ),
    ] {
        let ruling = act(&mut journal, &entry, &adopt(seen), GONE);
        assert_eq!(ruling, Ruling::Refused(expected));
        assert_eq!(stored(&mut journal, &entry).entry, ruled);
    }
    let ruling = act(&mut journal, &entry, &adopt(Some(ruled.fence)), LIVE);
    assert!(
        matches!(
            &ruling,
            Ruling::Done {
                was_fenced: false,
                ..
            }
        ),
        "{ruling:?}"
    );
    let after = done(ruling);
    assert_eq!((after.status, after.fence), (Status::Completed, Fence(3)));
    assert_eq!(after.digest, Some(outcome_digest(b"{\"late\":1.0}")));
    assert!(after.is_undelivered());
    // What an older owner still writes loses as before.
    let mut tx = journal.begin(Durability::Power).unwrap();
    assert!(tx.outcome(Fence(2)).unwrap().is_some());
    let late = lifecycle::bury(&ruled).unwrap();
    assert_eq!(put(&mut tx, late, None, None), Applied::Lost);
}
